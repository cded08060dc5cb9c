"""FAULTS row 9, the model emits invalid UTF-8 or half a character: partial bytes are held, U+FFFD only at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data import ENGLISH
from ultrafast.tokens.detokenizer import IncrementalDetokenizer
from ultrafast.tokens.tokenizer import Tokenizer

# Low ids are the single bytes and short merges: half characters are common among them.
IDS = st.lists(st.one_of(st.integers(0, 300), st.integers(0, 49_151)), max_size=40)
TEXTS = st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"]))  # see test_tokenizer
CUTS = st.lists(st.integers(0, 40), max_size=12)


def pieces(tokenizer: Tokenizer, ids: Sequence[int], cuts: Sequence[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer)
    ends = sorted({*(cut for cut in cuts if cut < len(ids)), len(ids)})
    parts, start = [], 0
    for end in ends:
        parts.append(detokenizer.add(ids[start:end]))
        start = end
    return [*parts, detokenizer.finish()]


@given(ids=IDS, cuts=CUTS)
@settings(max_examples=500, deadline=None)
def test_row_9_any_division_equals_decoding_at_once(tokenizer: Tokenizer, ids: list[int], cuts: list[int]) -> None:
    assert "".join(pieces(tokenizer, ids, cuts)) == tokenizer.decode(ids)


@given(text=TEXTS)
@settings(max_examples=300, deadline=None)
def test_row_9_never_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    """Of valid text no piece holds U+FFFD unless the text does, and each is the text's own continuation."""
    ids = tokenizer.encode(text)
    parts = pieces(tokenizer, ids, range(len(ids)))
    assert "".join(parts) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in parts)


def test_row_9_emoji_byte_by_byte(tokenizer: Tokenizer) -> None:
    ids = [index for byte in "👩".encode() for index in range(17, 300) if tokenizer.token_bytes(index) == bytes([byte])]
    assert len(ids) == 4
    assert pieces(tokenizer, ids, range(5)) == ["", "", "", "", "👩", ""]


def test_row_9_a_broken_end_is_one_replacement(tokenizer: Tokenizer) -> None:
    ids = [
        index for byte in "👩".encode()[:3] for index in range(17, 300) if tokenizer.token_bytes(index) == bytes([byte])
    ]
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert detokenizer.add(ids) == ""
    assert detokenizer.finish() == "\ufffd"
    assert tokenizer.decode(ids) == "\ufffd"


def test_control_tokens_do_not_part_a_character(tokenizer: Tokenizer) -> None:
    first, second = (
        next(index for index in range(17, 300) if tokenizer.token_bytes(index) == bytes([byte]))
        for byte in "é".encode()
    )
    assert pieces(tokenizer, [first, 2, second], [1, 2]) == ["", "", "é", ""]


def test_a_token_costs_microseconds(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(ENGLISH[:40_000])
    detokenizer = IncrementalDetokenizer(tokenizer)

    def seconds() -> float:
        started = time.process_time()
        for index in ids:
            detokenizer.add((index,))
        return time.process_time() - started

    assert min(seconds() for _ in range(3)) / len(ids) < 20e-6


@pytest.mark.parametrize("ids", [[], [2, 2]])
def test_nothing(tokenizer: Tokenizer, ids: list[int]) -> None:
    assert pieces(tokenizer, ids, []) == ["", ""]
