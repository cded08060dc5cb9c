"""The reader of server-sent events, whatever pieces the bytes come in."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.backends.server_sent_events import EventReader, EventTooLargeError


def read(pieces: list[bytes], maximum_bytes: int = 1 << 20) -> list[bytes]:
    reader = EventReader(maximum_bytes)
    return [event for piece in pieces for event in reader.feed(piece)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_end_in_three_ways(end: bytes) -> None:
    lines = [b": comment", b"event: x", b"data: one", b"id: 7", b"", b"data:two", b"data: three", b"", b"", b"retry: 5"]
    assert read([end.join([*lines, b"data: unfinished"])]) == [b"one", b"two\nthree"]


@given(
    st.lists(st.text("ab:\\ ü\N{LINE SEPARATOR}", max_size=9).map(str.encode), max_size=6),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(0, 99), max_size=12),
    st.booleans(),
)
def test_pieces_do_not_matter(data: list[bytes], end: bytes, cuts: list[int], comments: bool) -> None:
    comment = b": ping" + end + end if comments else b""
    stream = b"".join(comment + b"data: " + each + end + end for each in data)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[start:stop] for start, stop in itertools.pairwise(places)]
    assert read(pieces) == data
    assert read([stream[place : place + 1] for place in range(len(stream))]) == data


def test_an_event_has_a_bound() -> None:
    assert read([b"data: ", b"x" * 93, b"\n\n"], 100) == [b"x" * 93]
    with pytest.raises(EventTooLargeError):
        read([b"data: ", *[b"x"] * 200], 100)
    with pytest.raises(EventTooLargeError):
        read([b"data: xxxxxxxxx\n"] * 20, 100)
    assert read([b": comment\n"] * 200, 100) == []
