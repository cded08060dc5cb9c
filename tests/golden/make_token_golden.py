"""Write tokens.json: what transformers makes of the strings, ids and conversations of tests/tokens/strings.py.

    python -m tests.golden.make_token_golden MODEL.gguf        (needs transformers; run from the project's root)

transformers imports vocabulary, merges and chat template from the GGUF file but not the file's pre-tokeniser name: it
always cuts words as GPT-2 does. The rule that the model's own published tokenizer has before that one, single digits,
is put back here; ``differing_without_digits`` counts the strings for which it matters.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tokenizers
import transformers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

from tests.data import GOLDEN_DIRECTORY
from tests.golden.digests import digest, digest_of_ids
from tests.tokens.strings import CONVERSATIONS, COUNT, ID_SEQUENCES, SEED, id_sequences, varied_strings

FULL_EVERY = 23  # every so many strings, the ids themselves are kept beside their digest


def main(model: str) -> None:
    path = Path(model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)

    def encode(text: str, *, plain: bool) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False, split_special_tokens=plain).input_ids
        return ids

    strings = varied_strings()
    imported = [encode(text, plain=True) for text in strings]
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    plain = [encode(text, plain=True) for text in strings]
    special = [encode(text, plain=False) for text in strings]
    decoded = [tokenizer.decode(ids, skip_special_tokens=True) for ids in id_sequences(len(tokenizer))]
    golden: dict[str, Any] = {
        "made_by": f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}",
        "seed": SEED,
        "count": COUNT,
        "id_sequences": ID_SEQUENCES,
        "differing_without_digits": sum(a != b for a, b in zip(imported, plain, strict=True)),
        "strings_digest": digest("\0".join(strings)),
        "plain": "".join(map(digest_of_ids, plain)),
        "special": "".join(map(digest_of_ids, special)),
        "decoded": "".join(map(digest, decoded)),
        "full": {str(index): plain[index] for index in range(0, COUNT, FULL_EVERY)},
        "chats": [
            {
                "text": tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=generate),
                "ids": tokenizer.apply_chat_template(
                    chat, tokenize=True, add_generation_prompt=generate, return_dict=True
                )["input_ids"],
                "generate": generate,
                "conversation": index,
            }
            for index, chat in enumerate(CONVERSATIONS)
            for generate in (True, False)
        ],
    }
    (GOLDEN_DIRECTORY / "tokens.json").write_text(json.dumps(golden, indent=None, separators=(",", ":")) + "\n")
    print(golden["made_by"], golden["differing_without_digits"], "strings differ without the digit rule")


if __name__ == "__main__":
    main(sys.argv[1])
