"""Write vocabularies.json.gz and families.json: small vocabularies, and what transformers makes of strings with them.

    python -m tests.golden.make_family_golden [--train]     (needs transformers and sentencepiece; from the root)

``--train`` makes the vocabularies anew. The references are transformers' own classes where it has one for a family,
else the pre-tokeniser that the family's published tokenizer.json holds. Unused pieces, which transformers takes for
normal ones, are held against the sentencepiece library.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Callable
from typing import Any

import sentencepiece
import tokenizers
import transformers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Split
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer
from transformers.tokenization_utils_base import generate_merges

from tests.data import ENGLISH
from tests.golden.digests import digest, digest_of_ids
from tests.tokens.families import (
    BYTE_LEVEL_FAMILIES,
    FAMILIES_PATH,
    PIECE_FAMILIES,
    VOCABULARIES_PATH,
    by_kind,
    vocabularies,
)
from tests.tokens.strings import COUNT, SEED, id_sequences, varied_strings

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"]
TOKEN_COUNT = 3_000
PIECE_COUNT = 1_600
CORPUS_CHUNK_LETTERS = 50
SPACE = "\u2581"


def corpus() -> list[str]:
    texts = [*varied_strings(3_000, SEED + 7), *(ENGLISH[i : i + 400] for i in range(0, 120_000, 400))]
    chunks = [text[i : i + CORPUS_CHUNK_LETTERS] for text in texts for i in range(0, len(text), CORPUS_CHUNK_LETTERS)]
    return [chunk for chunk in chunks if not any(text in chunk for text in (*SPECIAL, "<think>"))]


def train_bytes() -> dict[str, Any]:
    tokenizer = tokenizers.Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=TOKEN_COUNT, initial_alphabet=ByteLevel.alphabet(), max_token_length=24, show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].__getitem__), *SPECIAL, "<think>"]
    return {
        "tokens": tokens,
        "types": [1] * (len(tokens) - len(SPECIAL) - 1) + [3] * len(SPECIAL) + [4],
        "merges": [" ".join(merge) for merge in model["merges"]],
    }


def train_pieces(*, prefix: bool, control: list[str], user_defined: list[str]) -> dict[str, Any]:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text.replace("\0", "") for text in corpus() if text.strip("\0")]),
        model_writer=model,
        model_type="bpe",
        vocab_size=PIECE_COUNT,
        byte_fallback=True,
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        allow_whitespace_only_pieces=True,
        split_digits=True,
        character_coverage=0.98,
        control_symbols=control,
        user_defined_symbols=user_defined,
        minloglevel=2,
    )
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    return {
        "tokens": [piece.piece for piece in proto.pieces],
        "types": [piece.type for piece in proto.pieces],
        "scores": [piece.score for piece in proto.pieces],
        "prefix": prefix,
    }


def train() -> None:
    prefixed = train_pieces(prefix=True, control=["<|im_end|>"], user_defined=[])
    runs = [
        letter * count
        for letter in (SPACE, "\n", "\t")
        for count in range(9, 0, -1)
        if letter + str(count) != f"{SPACE}1"
    ]
    plain = train_pieces(prefix=False, control=["<|im_end|>"], user_defined=[*runs, "<think>", "<b>"])
    instruct = train_pieces(prefix=True, control=["[INST]", "[/INST]"], user_defined=[])
    unused = dict(prefixed)
    normal = [index for index, kind in enumerate(prefixed["types"]) if kind == 1 and len(prefixed["tokens"][index]) > 1]
    unused["types"] = [5 if index in normal[::3] else kind for index, kind in enumerate(prefixed["types"])]
    made = {"bytes": train_bytes(), "prefixed": prefixed, "plain": plain, "instruct": instruct, "unused": unused}
    text = json.dumps(made, ensure_ascii=False, separators=(",", ":"))
    VOCABULARIES_PATH.write_bytes(gzip.compress(text.encode(), mtime=0))
    vocabularies.cache_clear()


def byte_level_reference(family: str) -> PreTrainedTokenizerFast:
    made = vocabularies()["bytes"]
    vocabulary = {text: index for index, text in enumerate(made["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in made["merges"]]
    classes: dict[str, Callable[..., PreTrainedTokenizerFast]] = {
        "gpt-2": transformers.GPT2Tokenizer,
        "olmo": transformers.GPTNeoXTokenizer,
        "command-r": transformers.CohereTokenizer,
        "qwen2": transformers.Qwen2Tokenizer,
        "qwen35": Qwen3_5Tokenizer,
    }
    if family in classes:
        names = dict.fromkeys(
            ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token"), "<s>"
        )
        return with_added(classes[family](vocab=vocabulary, merges=merges, **names))
    backend = tokenizers.Tokenizer(BPE(vocabulary, merges, ignore_merges=family in ("llama-bpe", "tekken")))
    cuts = [
        cut if isinstance(cut, Digits) else Split(Regex(cut), behavior="isolated") for cut in PUBLISHED_CUTS[family]
    ]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, ByteLevel(add_prefix_space=False, use_regex=family == "smollm")]
    )
    backend.decoder = decoders.ByteLevel()
    return with_added(PreTrainedTokenizerFast(tokenizer_object=backend))


CL100K = TikTokenConverter().pattern
CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|[^\r\n\p{L}\p{N}]?"
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|%s| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PUBLISHED_CUTS: dict[str, list[Any]] = {
    "smollm": [Digits(individual_digits=True)],
    "llama-bpe": [CL100K],
    "dbrx": [CL100K],
    "gpt-4o": [CASED % (SUFFIX, SUFFIX, r"\p{N}{1,3}")],
    "tekken": [CASED % ("", "", r"\p{N}")],
    "deepseek-llm": [
        "[\r\n]",
        r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1f7d}ᾀ-ᾴᾶ-ᾼ\x{1fbe}ῂ-ῄῆ-ῌ"
        r"ῐ-\x{1fd3}ῖ-\x{1fdb}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212a}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        "[一-龥ࠀ-一가-\ud7ff]+",
        Digits(individual_digits=True),
    ],
    "deepseek-coder": [
        "[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        "[一-龥ࠀ-一가-\ud7ff]+",
        Digits(individual_digits=True),
    ],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
}  # fmt: skip


def with_added(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    backend = tokenizer.backend_tokenizer
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    backend.add_tokens([AddedToken("<think>", normalized=False)])
    return tokenizer


def piece_reference(family: str) -> PreTrainedTokenizerFast:
    """As transformers converts a SentencePiece model: merges made from the scores, byte fallback."""
    made = vocabularies()[PIECE_FAMILIES[family]["pieces"]]
    texts, types = made["tokens"], made["types"]
    vocabulary = {text: index for index, text in enumerate(texts)}
    scores = {text: score for text, score, kind in zip(texts, made["scores"], types, strict=True) if kind in (1, 4)}
    skipped = [text for text, kind in zip(texts, types, strict=True) if kind in (2, 3, 6)]
    backend = tokenizers.Tokenizer(
        BPE(
            vocabulary,
            generate_merges(vocabulary, scores, skipped),
            fuse_unk=True,
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    if family == "mistral-v3":
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        prepend = [normalizers.Prepend(SPACE)] if made["prefix"] else []
        backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if made["prefix"] else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    added = [(text, kind) for text, kind in zip(texts, types, strict=True) if kind in (2, 3, 4)]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text, kind in added if kind != 4])
    backend.add_tokens([AddedToken(text, normalized=False) for text, kind in added if kind == 4])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def piece_processor(family: str) -> sentencepiece.SentencePieceProcessor:
    made = vocabularies()[PIECE_FAMILIES[family]["pieces"]]
    proto = sentencepiece_model_pb2.ModelProto()
    for text, kind, score in zip(made["tokens"], made["types"], made["scores"], strict=True):
        proto.pieces.add(piece=text, type=kind, score=score)
    proto.trainer_spec.model_type = 2
    proto.trainer_spec.byte_fallback = True
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = made["prefix"]
    proto.normalizer_spec.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


def decoded(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Texts of random ids; where bytes are malformed, the libraries differ in how many U+FFFD they write."""
    texts = (tokenizer.decode(ids, skip_special_tokens=True) for ids in id_sequences(len(tokenizer)))
    return ["" if "\ufffd" in text else digest(text) for text in texts]


def golden(encode: Callable[[str, bool], list[int]], strings: list[str]) -> dict[str, str]:
    """Digests of the ids of each kind of strings: plain, and with control tokens recognised."""
    return {
        mode: "".join(
            digest("\n".join(digest_of_ids(encode(text, mode == "special")) for text in group))
            for group in by_kind(strings)
        )
        for mode in ("plain", "special")
    }


def main() -> None:
    if "--train" in sys.argv:
        train()
    strings = varied_strings()
    families: dict[str, Any] = {}
    for family in [*BYTE_LEVEL_FAMILIES, *PIECE_FAMILIES]:
        if family == "unused":
            processor = piece_processor(family)
            plain = golden(lambda text, special, processor=processor: processor.encode(text), strings)["plain"]
            families[family] = {"plain": plain}
            continue
        tokenizer = piece_reference(family) if family in PIECE_FAMILIES else byte_level_reference(family)

        def encode(text: str, special: bool, tokenizer: PreTrainedTokenizerFast = tokenizer) -> list[int]:
            ids: list[int] = tokenizer(text, add_special_tokens=False, split_special_tokens=not special).input_ids
            return ids

        if family in ("llama", "gemma"):
            processor = piece_processor(family)
            differing = sum(processor.encode(text) != encode(text, False) for text in strings)
            print(family, differing, "strings differ between transformers and sentencepiece")
        families[family] = golden(encode, strings) | {"decoded": decoded(tokenizer)}
        print(family, families[family]["plain"][:16])
    written = {
        "made_by": f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}, "
        f"sentencepiece {sentencepiece.__version__}",
        "seed": SEED,
        "count": COUNT,
        "families": families,
    }
    FAMILIES_PATH.write_text(json.dumps(written, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
