"""Tokens of every family equal transformers' (tests/golden/make_family_golden.py), on small vocabularies."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden.digests import DIGEST_LETTERS, digest, digest_of_ids
from tests.tokens.families import (
    BYTE_LEVEL_FAMILIES,
    FAMILIES_PATH,
    PIECE_FAMILIES,
    by_kind,
    family_file,
    in_memory,
)
from tests.tokens.strings import COUNT, KINDS, SEED, id_sequences, varied_strings
from ultrafast.errors import ModelFileError, RequestError
from ultrafast.tokens.detokenizer import IncrementalDetokenizer
from ultrafast.tokens.pre_tokenizers import PRE_TOKENIZERS
from ultrafast.tokens.tokenizer import Tokenizer

FAMILIES = [*BYTE_LEVEL_FAMILIES, *PIECE_FAMILIES]
TOKENIZERS: dict[str, Tokenizer] = {}


def tokenizer_of(family: str) -> Tokenizer:
    if family not in TOKENIZERS:
        TOKENIZERS[family] = Tokenizer.from_gguf(family_file(family))
    return TOKENIZERS[family]


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(FAMILIES_PATH.read_text())
    assert (read["seed"], read["count"]) == (SEED, COUNT)
    assert list(read["families"]) == FAMILIES
    families: dict[str, Any] = read["families"]
    return families


@pytest.fixture(scope="module")
def strings() -> list[str]:
    made = varied_strings()
    assert len(made) >= 5_000
    return made


# The reference for unused pieces knows no control tokens in text.
@pytest.mark.parametrize(
    ("family", "special"),
    [(family, special) for family in FAMILIES for special in (False, True) if not (special and family == "unused")],
)
def test_ids_equal_those_of_transformers(
    family: str, special: bool, golden: dict[str, Any], strings: list[str]
) -> None:
    mode = "special" if special else "plain"
    tokenizer = tokenizer_of(family)
    for kind, group in zip(KINDS, by_kind(strings), strict=True):
        ours = digest("\n".join(digest_of_ids(tokenizer.encode(text, special=special)) for text in group))
        start = KINDS.index(kind) * DIGEST_LETTERS
        assert ours == golden[family][mode][start : start + DIGEST_LETTERS], kind.__name__


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "unused"])
def test_decoding_equals_that_of_transformers(family: str, golden: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(family)
    checked = 0
    for ids, expected in zip(id_sequences(tokenizer.vocabulary_size), golden[family]["decoded"], strict=True):
        if expected:  # left out where bytes are malformed: libraries differ in how many U+FFFD they write
            assert digest(tokenizer.decode(ids)) == expected
            checked += 1
    assert checked > 50


def test_families_make_different_tokens(golden: dict[str, Any]) -> None:
    assert len({golden[family]["plain"] for family in BYTE_LEVEL_FAMILIES}) >= len(BYTE_LEVEL_FAMILIES) - 1


def test_every_rule_is_covered() -> None:
    covered = [PRE_TOKENIZERS[family] for family in BYTE_LEVEL_FAMILIES]
    assert [name for name, rule in PRE_TOKENIZERS.items() if rule not in covered] == ["default"]


def test_the_default_rule() -> None:
    cut = PRE_TOKENIZERS["default"].make().pre_tokenize_str("it's 12345,  (x<y)")
    words = ["it", "'", "s", " ", "123", "45", ",", "  ", "(", "x", "<", "y", ")"]
    text = "it's 12345,  (x<y)"
    assert [text[start:end] for _, (start, end) in cut] == words


@given(ids=st.lists(st.integers(0, 1_590), max_size=30), cuts=st.lists(st.integers(0, 30), max_size=8))
@pytest.mark.parametrize("family", ["gpt-2", *PIECE_FAMILIES])
@settings(max_examples=150, deadline=None)
def test_any_division_equals_decoding_at_once(family: str, ids: list[int], cuts: list[int]) -> None:
    tokenizer = tokenizer_of(family)
    detokenizer = IncrementalDetokenizer(tokenizer)
    ends = sorted({*(cut for cut in cuts if cut < len(ids)), len(ids)})
    text, start = "", 0
    for end in ends:
        text += detokenizer.add(ids[start:end])
        start = end
    assert text + detokenizer.finish() == tokenizer.decode(ids)


TEXTS = st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs"]))


@given(text=TEXTS)
@pytest.mark.parametrize("family", ["llama", "gemma", "unused"])
@settings(max_examples=150, deadline=None)
def test_pieces_survive_the_round_trip(family: str, text: str) -> None:
    tokenizer = tokenizer_of(family)
    spaced = text.replace("\u2581", " ")  # the letter that stands for a space is no other letter's
    assert tokenizer.decode(tokenizer.encode(text)) == spaced
    detokenizer = IncrementalDetokenizer(tokenizer)
    parts = [detokenizer.add([index]) for index in tokenizer.encode(text)] + [detokenizer.finish()]
    assert "".join(parts) == spaced
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in parts)


def test_the_space_before_an_answer() -> None:
    tokenizer = tokenizer_of("llama")
    ids = tokenizer.encode("the of")
    control = next(index for index in range(tokenizer.vocabulary_size) if tokenizer.token_bytes(index) == b"<|im_end|>")

    def answer(previous: int | None) -> str:
        detokenizer = IncrementalDetokenizer(tokenizer, previous=previous)
        return "".join(detokenizer.add([index]) for index in ids) + detokenizer.finish()

    assert answer(None) == answer(control) == "the of"
    assert answer(ids[0]) == " the of"  # goes on from text


def test_user_defined_pieces_come_before_merging() -> None:
    tokenizer = tokenizer_of("gemma")
    texts = [tokenizer.token_bytes(index).decode() for index in tokenizer.encode("a     b\n\n\n\tc<b>d<think>")]
    assert texts == ["a", "     ", "b", "\n\n\n", "\t", "c", "<b>", "d", "<think>"]


def test_prompts_begin_as_the_file_says() -> None:
    made = tokenizer_of("llama")
    assert made.adds_beginning_of_sequence
    assert made.encode_prompt("a<s>") == [1, *made.encode("a<s>")]
    assert 1 not in made.encode("a<s>")
    assert tokenizer_of("qwen2").encode_prompt("a") == tokenizer_of("qwen2").encode("a")


def small_pieces(**changes: Any) -> Tokenizer:
    metadata: dict[str, Any] = {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", "\u2581ab", "<|end|>", "</s", "  "],
        "scores": np.array([0, 0, 0, -3, -4, -5, -1, -2, 0, -9, 0], np.float32),
        "token_type": np.array([2, 3, 3, 1, 1, 1, 1, 1, 4, 1, 4], np.int32),
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | changes
    return Tokenizer.from_gguf(in_memory(**metadata))


def test_unknown_letters_without_bytes_are_one_token() -> None:
    assert small_pieces().encode("ab中中a") == [7, 0, 4]
    assert small_pieces(unknown_token_id=-1).encode("ab中中a") == [7, 4]


def test_extra_spaces_go_where_the_file_says() -> None:
    assert small_pieces().encode("  ab") == [10, 7]
    assert small_pieces(remove_extra_whitespaces=True).encode("  ab   ab ") == [7, 7]


def test_a_user_defined_end_of_turn_is_control() -> None:
    tokenizer = small_pieces()
    assert tokenizer.end_ids == {2, 8}
    assert tokenizer.encode("ab<|end|>", special=True) == [7, 8]
    assert tokenizer.decode([7, 8]) == "ab"


def test_answers_of_several_messages_do_not_end_with_the_first() -> None:
    tokens = ["a", "<|end|>", "<|return|>", "<|call|>", "<|endoftext|>"]
    types = np.array([1, 3, 3, 3, 3], np.int32)
    assert Tokenizer.from_gguf(
        in_memory(model="gpt2", pre="gpt-4o", tokens=tokens, token_type=types, merges=[])
    ).end_ids == {2, 3, 4}


def test_phi_3_takes_the_space_after_a_control_token() -> None:
    file = family_file("llama")
    file.metadata["general.architecture"] = "phi3"
    tokenizer, other = Tokenizer.from_gguf(file), tokenizer_of("llama")
    assert tokenizer.encode("<|im_end|>\n \u2003a", special=True) == other.encode("<|im_end|>a", special=True)
    assert tokenizer.encode("<s> \na", special=True) == other.encode("<s> \na", special=True)
    assert tokenizer.encode("<|im_end|> a") == other.encode("<|im_end|> a")


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_lone_surrogates_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        tokenizer_of("llama").encode(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": np.array([0.0] * 10, np.float32)},
        {"scores": np.array([np.nan] * 11, np.float32)},
        {"scores": ["1"] * 11},
        {"token_type": np.array([2, 3, 3, 6, 1, 1, 1, 1, 4, 1, 4], np.int32)},
        {"unknown_token_id": 11},
        {"add_space_prefix": 1},
    ],
    ids=str,
)
def test_hostile_pieces(changes: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError) as caught:
        small_pieces(**changes)
    assert str(caught.value).isprintable()
