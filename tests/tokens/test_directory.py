"""Tokenizer and chat template of a Hugging Face directory: the same tokens as from a GGUF file, and hostile files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordLevel

from tests.tokens.families import family_file, vocabularies
from tests.tokens.strings import id_sequences, varied_strings
from ultrafast.errors import ModelError, ModelFileError, UnsupportedModelError
from ultrafast.tokens import directory_files, directory_vocabulary
from ultrafast.tokens.chat_template import ChatTemplate
from ultrafast.tokens.pre_tokenizers import PRE_TOKENIZERS
from ultrafast.tokens.tokenizer import Tokenizer

STRINGS = varied_strings(700)
SPACE = "\u2581"


def byte_level(family: str) -> tokenizers.Tokenizer:
    """tokenizer.json of the family's small vocabulary."""
    made, rule = vocabularies()["bytes"], PRE_TOKENIZERS[family]
    backend = tokenizers.Tokenizer(
        BPE(
            {text: index for index, text in enumerate(made["tokens"])},
            [tuple(merge.split(" ")) for merge in made["merges"]],
            ignore_merges=rule.ignore_merges,
        )
    )
    backend.pre_tokenizer = rule.make()
    if (normalizer := rule.normalizer()) is not None:
        backend.normalizer = normalizer
    backend.decoder = decoders.ByteLevel()
    typed = list(zip(made["tokens"], made["types"], strict=True))
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text, kind in typed if kind == 3])
    backend.add_tokens([AddedToken(text, normalized=False) for text, kind in typed if kind == 4])
    return backend


def pieces(pre_tokenizer: Any, normalizer: Any) -> tokenizers.Tokenizer:
    """A small vocabulary of pieces with byte fallback."""
    texts = ["<unk>", "<s>", "</s>", "[INST]", *(f"<0x{byte:02X}>" for byte in range(256))]
    texts += [SPACE, "a", "b", SPACE + "a", SPACE + SPACE, "ab"]
    merges = [(SPACE, SPACE), (SPACE, "a"), ("a", "b")]
    backend = tokenizers.Tokenizer(
        BPE(
            {text: index for index, text in enumerate(texts)},
            merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in texts[:4]])
    return backend


PREFIX = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])


def write(directory: Path, backend: tokenizers.Tokenizer | None = None, **files: Any) -> Path:
    if backend is not None:
        backend.save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return directory


@pytest.mark.parametrize("family", ["llama-bpe", "qwen2", "smollm", "deepseek-v3"])
def test_tokens_equal_those_of_the_gguf_file(family: str, tmp_path: Path) -> None:
    from_gguf = Tokenizer.from_gguf(family_file(family))
    tokenizer = Tokenizer.from_directory(
        write(tmp_path, byte_level(family), tokenizer_config={"bos_token": "<s>", "eos_token": {"content": "</s>"}})
    )
    for special in (False, True):
        for text in STRINGS:
            assert tokenizer.encode(text, special=special) == from_gguf.encode(text, special=special)
    for ids in id_sequences(tokenizer.vocabulary_size, 200):
        assert tokenizer.decode(ids) == from_gguf.decode(ids)
    assert tokenizer.beginning_of_sequence_id == from_gguf.beginning_of_sequence_id
    assert tokenizer.end_of_sequence_id == from_gguf.end_of_sequence_id
    assert tokenizer.end_ids == from_gguf.end_ids


@pytest.mark.parametrize(
    ("pre_tokenizer", "normalizer"),
    [
        (None, PREFIX),
        (pre_tokenizers.Metaspace(prepend_scheme="first", split=False), None),
        (pre_tokenizers.Metaspace(prepend_scheme="always", split=False), None),
    ],
    ids=["every part", "first part", "where no space is"],
)
@pytest.mark.parametrize("text", ["ab a", "[INST]ab", "[INST] ab[INST]  a", " a[INST]", "<s>[INST]a</s>", "é\ufffd"])
def test_pieces_equal_the_library(pre_tokenizer: Any, normalizer: Any, text: str, tmp_path: Path) -> None:
    backend = pieces(pre_tokenizer, normalizer)
    tokenizer = Tokenizer.from_directory(write(tmp_path, backend))
    ids = backend.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text, special=True) == ids
    assert tokenizer.decode(ids) == backend.decode(ids)
    assert not set(tokenizer.encode(text)) & set(range(4))


def test_white_space_that_belongs_to_a_control_token(tmp_path: Path) -> None:
    backend = pieces(None, PREFIX)
    backend.add_special_tokens(
        [
            AddedToken("<|end|>", special=True, normalized=False, rstrip=True),
            AddedToken("<mask>", special=True, normalized=False, lstrip=True),
        ]
    )
    tokenizer = Tokenizer.from_directory(write(tmp_path, backend))
    for text in ("a<|end|>\n \u2003b", "a \n<mask> b", "<|end|> <mask>", " <|end|>", "<mask><|end|>  "):
        assert tokenizer.encode(text, special=True) == backend.encode(text, add_special_tokens=False).ids, text


def test_settings(tmp_path: Path) -> None:
    backend = byte_level("gpt-2")
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 3000)])
    index = {text: backend.token_to_id(text) for text in ("<s>", "</s>", "<|im_end|>", "<|endoftext|>")}
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", index["<s>"])])
    write(tmp_path, backend, special_tokens_map={"bos_token": "<s>"}, config={"eos_token_id": 5})
    tokenizer = Tokenizer.from_directory(tmp_path)
    named = {index["</s>"], index["<|im_end|>"], index["<|endoftext|>"]}
    assert tokenizer.adds_beginning_of_sequence
    assert tokenizer.encode_prompt("a") == [index["<s>"], *tokenizer.encode("a")]
    assert tokenizer.end_of_sequence_id is None
    assert tokenizer.end_ids == named | {5}
    write(
        tmp_path,
        tokenizer_config={"add_bos_token": False, "eos_token": "a"},
        generation_config={"eos_token_id": [6, 7]},
    )
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert not tokenizer.adds_beginning_of_sequence
    assert tokenizer.end_of_sequence_id == backend.token_to_id("a")
    assert tokenizer.end_ids == named | {6, 7, backend.token_to_id("a")}


def test_rows_without_a_token_stand_for_nothing(tmp_path: Path) -> None:
    size = len(vocabularies()["bytes"]["tokens"])
    tokenizer = Tokenizer.from_directory(write(tmp_path, byte_level("gpt-2")), vocabulary_size=size + 50)
    assert tokenizer.vocabulary_size == size + 50
    assert tokenizer.decode([size, *tokenizer.encode("ab"), size + 49]) == "ab"
    with pytest.raises(ModelFileError, match="ids up to"):
        Tokenizer.from_directory(tmp_path, vocabulary_size=size - 1)


def test_dropout_truncation_and_padding_are_for_training(tmp_path: Path) -> None:
    backend = byte_level("gpt-2")
    expected = backend.encode("the model of a token").ids
    backend.model.dropout = 0.9
    backend.enable_truncation(2)
    backend.enable_padding(length=50)
    tokenizer = Tokenizer.from_directory(write(tmp_path, backend))
    assert all(tokenizer.encode("the model of a token") == expected for _ in range(5))


def with_cut(pattern: str) -> tokenizers.Tokenizer:
    backend = byte_level("gpt-2")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    return backend


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", r"(?:q+\d?)+#", "a*a*a*b", "(.*)*z"])
def test_regular_expressions_without_end_are_refused(
    pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_vocabulary, "MAX_TRIAL_SECONDS", 1.0)
    with pytest.raises(UnsupportedModelError, match="regular expressions"):
        Tokenizer.from_directory(write(tmp_path, with_cut(pattern)))


def test_regular_expressions_in_use_pass_quickly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_vocabulary, "MAX_TRIAL_SECONDS", 5.0)
    for family in ("tekken", "gpt-4o", "deepseek-llm"):
        Tokenizer.from_directory(write(tmp_path, byte_level(family)))


def without_decoder() -> tokenizers.Tokenizer:
    backend = byte_level("gpt-2")
    backend.decoder = decoders.WordPiece()
    return backend


def edited(change: Any) -> str:
    state = json.loads(byte_level("gpt-2").to_str())
    change(state)
    return json.dumps(state)


FAULTS: dict[str, tuple[type[ModelError], dict[str, Any]]] = {
    "no tokenizer.json": (ModelFileError, {"tokenizer": None}),
    "empty": (ModelFileError, {"tokenizer": ""}),
    "not JSON": (ModelFileError, {"tokenizer": "{"}),
    "another object": (ModelFileError, {"tokenizer": "[1]"}),
    "deep": (ModelFileError, {"tokenizer": "[" * 100_000}),
    "a merge of unknowns": (ModelFileError, {"tokenizer": edited(lambda s: s["model"]["merges"].append(["zz", "yy"]))}),
    "a negative id": (ModelFileError, {"tokenizer": edited(lambda s: s["model"]["vocab"].update({"zz": -1}))}),
    "a huge id": (ModelFileError, {"tokenizer": edited(lambda s: s["model"]["vocab"].update({"zz": 2**31}))}),
    "a bad regular expression": (
        ModelFileError,
        {"tokenizer": edited(lambda s: s["pre_tokenizer"]["pretokenizers"][0].update(pattern={"Regex": "(("}))},
    ),
    "another model": (UnsupportedModelError, {"tokenizer": tokenizers.Tokenizer(WordLevel({"a": 0})).to_str()}),
    "another decoder": (UnsupportedModelError, {"tokenizer": without_decoder().to_str()}),
    "many patterns": (UnsupportedModelError, {"tokenizer": with_cut("a" * 20_000).to_str()}),
    "settings of a list": (ModelFileError, {"tokenizer_config": []}),
    "settings that are not JSON": (ModelFileError, {"generation_config": "{"}),
    "deep settings": (ModelFileError, {"generation_config": '{"a":' + "[" * 100_000}),
    "an end outside": (ModelFileError, {"generation_config": {"eos_token_id": [1, 10**30]}}),
    "a negative end": (ModelFileError, {"config": {"eos_token_id": -1}}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_hostile_files(name: str, tmp_path: Path) -> None:
    kind, files = FAULTS[name]
    files = {"tokenizer": byte_level("gpt-2").to_str()} | files
    with pytest.raises(ModelError) as caught:
        Tokenizer.from_directory(
            write(tmp_path, **{name: content for name, content in files.items() if content is not None})
        )
    assert type(caught.value) is kind
    assert str(caught.value).isprintable()


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, byte_level("gpt-2"), config={"a": "b" * 100})
    monkeypatch.setattr(directory_files, "MAX_SETTINGS_BYTES", 100)
    with pytest.raises(ModelFileError, match=r"config\.json is larger"):
        Tokenizer.from_directory(tmp_path)
    monkeypatch.setattr(directory_vocabulary, "MAX_TOKENIZER_BYTES", 100)
    with pytest.raises(ModelFileError, match=r"tokenizer\.json is larger"):
        Tokenizer.from_directory(tmp_path)


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(ModelFileError, match="not a regular file"):
        Tokenizer.from_directory(tmp_path)


def test_a_panic_of_the_library_is_our_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    panic = type("PanicException", (BaseException,), {})

    class Panicking:
        @staticmethod
        def from_buffer(data: bytes) -> None:
            raise panic("canary")

    write(tmp_path, byte_level("gpt-2"))
    monkeypatch.setattr(tokenizers, "Tokenizer", Panicking)
    with pytest.raises(ModelFileError) as caught:
        Tokenizer.from_directory(tmp_path)
    assert "canary" not in str(caught.value)


TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"chat_template": TEMPLATE, "bos_token": "<s>"}},
        {"chat_template": {"chat_template": TEMPLATE}, "tokenizer_config": {"chat_template": "x", "bos_token": "<s>"}},
        {
            "tokenizer_config": {
                "bos_token": "<s>",
                "chat_template": [{"name": "rag", "template": "x"}, {"name": "default", "template": TEMPLATE}],
            }
        },
    ],
    ids=["settings", "a file of its own", "named"],
)
def test_chat_templates(files: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, byte_level("llama-bpe"), **files)
    tokenizer = Tokenizer.from_directory(tmp_path)
    template = ChatTemplate.from_directory(tmp_path, tokenizer)
    assert template is not None
    assert template.render([{"role": "user", "content": "a"}]) == "<s>a"
    ids = template.render_tokens([{"role": "user", "content": "a<s>"}])
    assert ids == [tokenizer.beginning_of_sequence_id, *tokenizer.encode("a<s>")]  # once, though added by default
    (tmp_path / "chat_template.jinja").write_text("[{{ messages[0].content }}]")
    template = ChatTemplate.from_directory(tmp_path, tokenizer)
    assert template is not None
    assert template.render([{"role": "user", "content": "a"}]) == "[a]"


def test_a_directory_without_template_has_none(tmp_path: Path) -> None:
    assert ChatTemplate.from_directory(tmp_path, Tokenizer.from_gguf(family_file("gpt-2"))) is None


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        (ModelFileError, {"tokenizer_config": {"chat_template": [{"name": "rag", "template": "x"}, 1]}}),
        (ModelFileError, {"tokenizer_config": {"chat_template": 1}}),
        (ModelFileError, {"chat_template": {"chat_template": "{{"}}),
    ],
    ids=str,
)
def test_hostile_chat_templates(kind: type[ModelError], files: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(family_file("gpt-2"))
    with pytest.raises(ModelError) as caught:
        ChatTemplate.from_directory(write(tmp_path, **files), tokenizer)
    assert type(caught.value) is kind
    assert str(caught.value).isprintable()
