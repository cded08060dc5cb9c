"""Stop strings: the division of the text never changes the result, and nothing that must not be shown is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.tokens.stop import StopStringFilter

LETTERS = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)


def run(stops: list[str], parts: list[str]) -> tuple[str, bool]:
    chosen = StopStringFilter(stops)
    shown = ""
    for part in parts:
        emitted, stopped = chosen.add(part)
        shown += emitted
        if stopped:
            assert chosen.add("more") == ("", True)
            return shown + chosen.finish(), True
    return shown + chosen.finish(), False


def plainly(stops: list[str], text: str) -> tuple[str, bool]:
    """The definition: the first end of any stop string, the longest of those that end there."""
    for end in range(len(text) + 1):
        if ended := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, ended))], True
    return text, False


@given(stops=STOPS, text=LETTERS, cuts=st.lists(st.integers(0, 30), max_size=8))
def test_any_division_gives_the_defined_result(stops: list[str], text: str, cuts: list[int]) -> None:
    bounds = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    parts = [text[start:end] for start, end in itertools.pairwise(bounds)]
    assert run(stops, parts) == plainly(stops, text)


@given(stops=STOPS, text=LETTERS)
def test_only_a_possible_beginning_is_held_back(stops: list[str], text: str) -> None:
    emitted, stopped = StopStringFilter(stops).add(text)
    if not stopped:
        held = text[len(emitted) :]
        assert text.startswith(emitted)
        assert not held or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize(
    ("stops", "parts", "expected"),
    [
        ([], ["a", "b"], ("ab", False)),
        (["\n\n"], ["one\n", "\ntwo"], ("one", True)),
        (["END"], ["the E", "N", "d"], ("the ENd", False)),
        (["END"], ["the E", "N"], ("the EN", False)),
        (["END", "the END"], ["the END"], ("", True)),
        (["é"], ["caf", "é!"], ("caf", True)),
        (["", "x"], ["axb"], ("a", True)),
    ],
)
def test_examples(stops: list[str], parts: list[str], expected: tuple[str, bool]) -> None:
    assert run(stops, parts) == expected
