"""Hold our tokens and prompts against transformers' on files of real models, which are not kept here.

    python -m tests.golden.compare_real_files FILE...      (needs transformers and sentencepiece; from the root)

A FILE is a directory with tokenizer.json, a GGUF file with SentencePiece pieces (against sentencepiece, given the same
pieces), or a chat template (.jinja). Prints a line for each; the exit status says whether all were equal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from tests.tokens.families import family_file
from tests.tokens.strings import CONVERSATIONS, id_sequences, varied_strings
from ultrafast.errors import RequestError
from ultrafast.tokens.chat_template import ChatTemplate
from ultrafast.tokens.tokenizer import Tokenizer
from ultrafast.weights.gguf import GgufFile, open_gguf

Conversation = list[dict[str, Any]]
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

TOOL = {
    "name": "get_weather",
    "description": 'Of <places> & "more", é',
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
TOOL_CHAT: Conversation = [
    {"role": "system", "content": "Use tools."},
    {"role": "user", "content": "Weather in Paris?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "abcdefghi", "name": "get_weather", "content": '{"t": 20}'},
    {"role": "user", "content": "Thanks"},
]
THOUGHTS: Conversation = [
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\n2"},
    {"role": "user", "content": "2+2"},
]
TOOLS = [{"type": "function", "function": TOOL}]
CASES: list[tuple[Conversation, dict[str, Any]]] = [
    *((list(conversation), {}) for conversation in CONVERSATIONS),
    (THOUGHTS, {}),
    (THOUGHTS, {"enable_thinking": False}),
    (TOOL_CHAT, {"tools": TOOLS}),
    ([{"role": "user", "content": "Hi"}], {"tools": TOOLS, "date_string": "1 Jan 2026"}),
    ([{"role": "user", "content": "Hi"}], {"documents": [{"title": "T", "text": "Doc"}]}),
    ([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], {"reasoning_effort": "low"}),
    ([{"role": "assistant", "content": "x"}], {}),
]


def compare_directory(path: Path) -> bool:
    reference = PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
    ours = Tokenizer.from_directory(path)
    strings = varied_strings()
    differing = sum(
        ours.encode(text, special=special)
        != reference(text, add_special_tokens=False, split_special_tokens=not special).input_ids
        for special in (False, True)
        for text in strings
    )
    decoded = [(ours.decode(ids), reference.decode(ids, True)) for ids in id_sequences(len(reference))]
    differing += sum(text != expected for text, expected in decoded if "\ufffd" not in expected)
    return report(path, differing, 2 * len(strings) + len(decoded))


def compare_pieces(path: Path) -> bool:
    with open_gguf(path) as gguf:
        processor, ours = sentence_piece(gguf), Tokenizer.from_gguf(gguf)
    strings = varied_strings()
    return report(path, sum(ours.encode(text) != processor.encode(text) for text in strings), len(strings))


def sentence_piece(gguf: GgufFile) -> sentencepiece.SentencePieceProcessor:
    proto = sentencepiece_model_pb2.ModelProto()
    types = gguf.numbers("tokenizer.ggml.token_type").tolist()
    scores = gguf.numbers("tokenizer.ggml.scores").tolist()
    unknown = gguf.integer("tokenizer.ggml.unknown_token_id", 0)
    for index, (text, kind, score) in enumerate(zip(gguf.strings("tokenizer.ggml.tokens"), types, scores, strict=True)):
        spaced = text.replace(" ", "\u2581") if kind == _USER_DEFINED else text
        known = _CONTROL if kind == _UNKNOWN else kind  # the library has one unknown piece only
        proto.pieces.add(piece=spaced, score=score, type=_UNKNOWN if index == unknown else known)
    proto.trainer_spec.model_type = 2
    proto.trainer_spec.byte_fallback = True
    proto.trainer_spec.unk_piece = proto.pieces[unknown].piece
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = gguf.boolean("tokenizer.ggml.add_space_prefix", True)
    proto.normalizer_spec.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


def compare_template(path: Path) -> bool:
    source = path.read_text(encoding="utf-8")
    ours = ChatTemplate(source, Tokenizer.from_gguf(family_file("llama")))
    differing = count = 0
    for conversation, variables in CASES:
        for generate in (True, False):
            settings = {"tools": None, "documents": None, **variables, "add_generation_prompt": generate}

            def expected(conversation: Conversation = conversation, settings: dict[str, Any] = settings) -> str:
                texts, _ = render_jinja_template(
                    [conversation], chat_template=source, bos_token="<s>", eos_token="</s>", **settings
                )
                return str(texts[0])

            def got(conversation: Conversation = conversation, settings: dict[str, Any] = settings) -> str:
                return ours.render(conversation, **settings)

            differing += text_or_none(expected, Exception) != text_or_none(got, RequestError)
            count += 1
    return report(path, differing, count)


def text_or_none(render: Callable[[], str], refusal: type[Exception]) -> str | None:
    try:
        return render()
    except refusal:
        return None


def report(path: Path, differing: int, count: int) -> bool:
    print(f"{path.name}: {differing} of {count} differ")
    return differing == 0


def compared(names: list[str]) -> Iterator[bool]:
    for path in map(Path, names):
        if path.is_dir():
            yield compare_directory(path)
        else:
            yield (compare_template if path.suffix == ".jinja" else compare_pieces)(path)


if __name__ == "__main__":
    sys.exit(0 if all(list(compared(sys.argv[1:]))) else 1)
