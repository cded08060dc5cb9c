"""The native merging of pieces against a plain twin, and against hostile vocabularies."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ultrafast import _native

NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6


def made(
    texts: list[str], scores: list[float], types: list[int] | None = None, unknown: int = -1
) -> _native.SentencePiece:
    return _native.SentencePiece(
        texts=texts,
        scores=np.array(scores, np.float32),
        types=np.array(types or [NORMAL] * len(texts), np.int32),
        unknown=unknown,
    )


def plain_encode(text: str, texts: list[str], scores: list[float], types: list[int], unknown: int) -> list[int]:
    """Quadratic: look at every pair of neighbours again after every join."""
    index = {text: i for i, text in enumerate(texts) if types[i] in (NORMAL, USER_DEFINED, UNUSED)}
    user_defined = sorted((text for text, i in index.items() if types[i] == USER_DEFINED), key=len, reverse=True)
    symbols: list[tuple[str, bool]] = []
    while text:
        fixed = next((piece for piece in user_defined if text.startswith(piece)), None)
        symbols.append((fixed or text[0], fixed is not None))
        text = text[len(symbols[-1][0]) :]
    while True:
        best: tuple[float, int] | None = None
        for at in range(len(symbols) - 1):
            (left, left_fixed), (right, right_fixed) = symbols[at], symbols[at + 1]
            joined = index.get(left + right)
            if joined is None or left_fixed or right_fixed:
                continue
            if best is None or scores[joined] > best[0]:
                best = (scores[joined], at)
        if best is None:
            break
        at = best[1]
        symbols[at : at + 2] = [(symbols[at][0] + symbols[at + 1][0], False)]
    ids: list[int] = []
    for symbol, _ in symbols:
        if symbol in index:
            ids.append(index[symbol])
        elif unknown >= 0 and ids[-1:] != [unknown]:
            ids.append(unknown)
    return ids


PIECES = st.dictionaries(
    st.text("abé中", min_size=1, max_size=5),
    st.tuples(st.integers(-6, 3), st.sampled_from([1, 1, 1, 4, 3])),
    max_size=25,
)


@given(pieces=PIECES, text=st.text("abé中x", max_size=30))
@settings(max_examples=800, deadline=None)
def test_equals_the_plain_twin(pieces: dict[str, tuple[int, int]], text: str) -> None:
    texts = ["<unk>", *pieces]
    scores = [0.0, *(float(score) for score, _ in pieces.values())]
    types = [CONTROL, *(kind for _, kind in pieces.values())]
    native = made(texts, scores, types, unknown=0)
    assert native.encode(text) == plain_encode(text, texts, scores, types, 0)


def test_higher_scores_join_first_and_the_leftmost_of_equals() -> None:
    texts = ["a", "b", "aa", "ab", "aab"]
    assert made(texts, [0, 0, -1, -2, -3]).encode("aab") == [4]
    assert made(texts[:4], [0, 0, -2, -1]).encode("aab") == [0, 3]
    assert made(["a", "aa"], [0, -1]).encode("aaaaa") == [1, 1, 0]


def test_unused_pieces_are_made_but_never_returned() -> None:
    texts = ["a", "b", "c", "ab", "abc"]
    types = [NORMAL, NORMAL, NORMAL, UNUSED, NORMAL]
    assert made(texts, [0, 0, 0, -1, -2], types).encode("abcab") == [4, 0, 1]


def test_bytes_serve_where_no_piece_does() -> None:
    texts = ["a", *(f"<0x{byte:02X}>" for byte in range(256))]
    native = made(texts, [0.0] * 257, [NORMAL, *[BYTE] * 256])
    assert native.encode("aé\0") == [0, 1 + 0xC3, 1 + 0xA9, 1]
    assert native.encode("<0x41>") == [1 + ord(letter) if letter != "a" else 0 for letter in "<0x41>"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"texts": ["a", "a"], "scores": [0, 0]},
        {"texts": [""], "scores": [0]},
        {"texts": ["a"], "scores": [0, 1]},
        {"texts": ["a"], "scores": [float("nan")]},
        {"texts": ["a"], "scores": [0], "unknown": 1},
        {"texts": ["a"], "scores": [0], "unknown": -2},
        {"texts": ["<0xGG>"], "scores": [0], "types": [BYTE]},
        {"texts": ["<0x1>"], "scores": [0], "types": [BYTE]},
    ],
    ids=str,
)
def test_contradictions_are_value_errors(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        made(**arguments)  # type: ignore[arg-type]


def test_a_long_run_takes_no_square_of_its_length() -> None:
    native = made(["a" * count for count in range(1, 17)], [float(-count) for count in range(16)])
    started = time.process_time()
    ids = native.encode("a" * 1_000_000)
    assert time.process_time() - started < 20
    assert sum(index + 1 for index in ids) == 1_000_000
