"""FAULTS row 16: hostile GGUF files end in a typed error of one line, in bounded memory and time."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path

import pytest

from tests.weights.gguf_bytes import (
    ARRAY,
    BF16,
    BOOL,
    F16,
    F32,
    FLOAT32,
    INT32,
    Q4_0,
    Q4_1,
    Q8_0,
    STRING,
    UINT32,
    UINT64,
    array,
    entry,
    gguf,
    scalar,
    sound,
    string,
    tensor,
)  # fmt: skip
from ultrafast.errors import ModelError, ModelFileError, UnsupportedModelError
from ultrafast.weights import gguf as reader
from ultrafast.weights.gguf import open_gguf

HUGE = 2**64 - 1
MAX_SECONDS = 2.0
MAX_BYTES = 4 << 20  # for files of a few hundred bytes


def fails(tmp_path: Path, content: bytes, kind: type[ModelError] = ModelFileError, match: str | None = None) -> None:
    """Opening fails with ``kind``, on one printable line that names the file, cheaply."""
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    started = time.process_time()
    with pytest.raises(kind, match=match) as caught:
        open_gguf(path)
    seconds = time.process_time() - started
    tracemalloc.start()
    try:
        with pytest.raises(kind):
            open_gguf(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert type(caught.value) is kind
    message = str(caught.value)
    assert "hostile.gguf" in message
    assert message.isprintable()
    assert len(message) < 400
    assert seconds < MAX_SECONDS
    assert peak < MAX_BYTES + 2 * len(content)


def alignment(value: int, code: int = UINT32) -> bytes:
    return entry("general.alignment", code, scalar(code, value))


DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "magic only": b"GGUF",
    "other magic": gguf(magic=b"GGML"),
    # dimensions
    "dimension 0": gguf([], [tensor("t", [4, 0], F32, 0)], bytes(64)),
    "first dimension 0": gguf([], [tensor("t", [0], F32, 0)], bytes(64)),
    "product wraps to 0": gguf([], [tensor("t", [2**32, 2**32], F32, 0)], bytes(64)),
    "product wraps to 4": gguf([], [tensor("t", [2**62 + 1, 4], F32, 0)], bytes(64)),
    "product wraps with four": gguf([], [tensor("t", [2**16, 2**16, 2**16, 2**16], F16, 0)], bytes(64)),
    "bytes wrap": gguf([], [tensor("t", [2**62], F32, 0)], bytes(64)),
    "huge dimension": gguf([], [tensor("t", [HUGE], F32, 0)], bytes(64)),
    "negative dimension": gguf([], [tensor("t", [2**63], F32, 0)], bytes(64)),
    "no dimensions": gguf([], [tensor("t", [], F32, 0)], bytes(64)),
    "five dimensions": gguf([], [tensor("t", [1, 1, 1, 1, 1], F32, 0)], bytes(64)),
    "huge dimension count": gguf([], [tensor("t", [1], F32, 0, count=2**32 - 1)], bytes(64)),
    "rows of part blocks": gguf([], [tensor("t", [31, 2], Q8_0, 0)], bytes(128)),
    "whole blocks only in total": gguf([], [tensor("t", [16, 2], Q4_0, 0)], bytes(128)),
    # offsets
    "offset beyond": gguf([], [tensor("t", [4], F32, 64)], bytes(64)),
    "extent beyond by one": gguf([], [tensor("t", [17], F32, 0)], bytes(64)),
    "offset plus size wraps": gguf([], [tensor("t", [16], F32, HUGE - 31)], bytes(64)),
    "pad overflow": gguf([], [tensor("t", [2**40 - 1], F32, HUGE - 31), tensor("u", [1], F32, 0)], bytes(64)),
    "offset unaligned": gguf([], [tensor("t", [4], F32, 4)], bytes(64)),
    "overlap": gguf([], [tensor("t", [16], F32, 0), tensor("u", [4], F32, 32)], bytes(96)),
    "same offset": gguf([], [tensor("t", [4], F32, 0), tensor("u", [4], F32, 0)], bytes(96)),
    "no data": gguf([], [tensor("t", [4], F32, 0)]),
    # alignment
    "alignment 0": gguf([alignment(0)], [tensor("t", [4], F32, 0)], bytes(64)),
    "alignment 1": gguf([alignment(1)], [tensor("t", [4], F32, 0)], bytes(64)),
    "alignment 24": gguf([alignment(24)], [tensor("t", [4], F32, 0)], bytes(64)),
    "alignment huge": gguf([alignment(2**31)], [tensor("t", [4], F32, 0)], bytes(64)),
    "alignment negative": gguf([alignment(-32, INT32)], [tensor("t", [4], F32, 0)], bytes(64)),
    "alignment a float": gguf([alignment(32, FLOAT32)], [tensor("t", [4], F32, 0)], bytes(64)),
    "alignment a truth": gguf([alignment(1, BOOL)], [tensor("t", [4], F32, 0)], bytes(64)),
    "alignment a text": gguf([entry("general.alignment", STRING, string("32"))]),
    "alignment an array": gguf([entry("general.alignment", ARRAY, array(UINT32, [scalar(UINT32, 32)]))]),
    # parts
    "a part under another name": gguf([entry("split.count", UINT32, scalar(UINT32, 4))]),
    "parts without number": gguf([entry("split.count", UINT32, scalar(UINT32, HUGE % 2**32))]),
    "parts of text": gguf([entry("split.count", STRING, string("2"))]),
    # names
    "empty key": gguf([entry("", UINT32, scalar(UINT32, 1))]),
    "duplicate key": gguf([entry("k", UINT32, scalar(UINT32, 1)), entry("k", STRING, string("x"))]),
    "duplicate hostile key": gguf([entry("\x1b[2J\n", UINT32, scalar(UINT32, 1))] * 2),
    "long key": gguf([entry("k" * 65_536, UINT32, scalar(UINT32, 1))]),
    "huge key": gguf([struct.pack("<Q", HUGE) + b"k"]),
    "empty tensor name": gguf([], [tensor("", [4], F32, 0)], bytes(64)),
    "duplicate tensor": gguf([], [tensor("t", [4], F32, 0), tensor("t", [4], F32, 32)], bytes(64)),
    "long tensor name": gguf([], [tensor("t" * 256, [4], F32, 0)], bytes(64)),
    "huge tensor name": gguf([], [struct.pack("<Q", 2**63)], bytes(64)),
    # counts
    "huge entry count": gguf(entry_count=HUGE),
    "more entries than there are": gguf([entry("k", UINT32, scalar(UINT32, 1))], entry_count=60_000),
    "huge tensor count": gguf(tensor_count=HUGE),
    "more tensors than there are": gguf([], [tensor("t", [4], F32, 0)], bytes(64), tensor_count=3),
    "huge array": gguf([entry("k", ARRAY, array(UINT64, [], HUGE))]),
    "array bytes wrap": gguf([entry("k", ARRAY, array(UINT64, [bytes(8)], 2**61 + 1))]),
    "huge text array": gguf([entry("k", ARRAY, array(STRING, [], HUGE))]),
    "text array over the limit": gguf([entry("k", ARRAY, array(STRING, [], reader.MAX_STRING_ELEMENTS + 1))]),
    "text array one too many": gguf([entry("k", ARRAY, array(STRING, [string("abc")], 2))]),
    "text array of huge texts": gguf([entry("k", ARRAY, array(STRING, [struct.pack("<Q", HUGE)] * 4))]),
    "huge text": gguf([entry("k", STRING, struct.pack("<Q", HUGE))]),
    "text over its limit": gguf([entry("k", STRING, struct.pack("<Q", reader.MAX_STRING_BYTES + 1))]),
    # types
    "unknown value type": gguf([entry("k", 13, bytes(8))]),
    "huge value type": gguf([entry("k", 2**32 - 1, bytes(8))]),
    "unknown array type": gguf([entry("k", ARRAY, array(99, [bytes(8)]))]),
    "boolean of 2": gguf([entry("k", BOOL, b"\2")]),
    "boolean array of 255": gguf([entry("k", ARRAY, array(BOOL, [b"\1\xff"], 2))]),
}  # fmt: skip

UNSUPPORTED: dict[str, bytes] = {
    "text": b"#!/bin/sh\necho this is not a model file at all\n",
    "version 0 is big-endian or nothing": gguf(version=0),
    "version 1": gguf(version=1),
    "version 4": gguf(version=4),
    "big-endian": gguf(version=int.from_bytes(struct.pack("<I", 3), "big")),
    "Q8_K": gguf([], [tensor("t", [256], 15, 0)], bytes(512)),
    "removed type": gguf([], [tensor("t", [256], 4, 0)], bytes(256)),
    "type beyond all": gguf([], [tensor("t", [256], 2**32 - 1, 0)], bytes(256)),
    "array of arrays": gguf([entry("k", ARRAY, array(ARRAY, [array(UINT32, [scalar(UINT32, 1)])]))]),
    "arrays nested deeply": gguf([entry("k", ARRAY, struct.pack("<IQ", ARRAY, 1) * 10_000)]),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_row_16_damaged(tmp_path: Path, name: str) -> None:
    fails(tmp_path, DAMAGED[name])


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_row_16_unsupported(tmp_path: Path, name: str) -> None:
    fails(tmp_path, UNSUPPORTED[name], UnsupportedModelError)


def test_row_16_messages_say_what_is_wrong(tmp_path: Path) -> None:
    fails(tmp_path, DAMAGED["overlap"], match="'u' overlaps another tensor")
    fails(tmp_path, DAMAGED["dimension 0"], match=r"tensor 0 \('t'\) has a dimension of 0")
    fails(tmp_path, DAMAGED["alignment 24"], match="power of two")
    fails(tmp_path, DAMAGED["duplicate key"], match="repeats the key 'k'")
    fails(tmp_path, DAMAGED["duplicate hostile key"], match="entry 1 repeats the key with an unprintable name")
    fails(tmp_path, UNSUPPORTED["Q8_K"], UnsupportedModelError, "type Q8_K, which this version does not run: take")
    fails(tmp_path, UNSUPPORTED["big-endian"], UnsupportedModelError, "big-endian")


def test_row_16_every_truncation(tmp_path: Path) -> None:
    whole = sound()
    path = tmp_path / "hostile.gguf"
    path.write_bytes(whole)
    open_gguf(path).close()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError, match=r"hostile\.gguf"):
            open_gguf(path)


@pytest.mark.parametrize(
    ("content", "kind", "says"),
    [
        (b"", ModelFileError, "an empty file"),
        (b"hi", UnsupportedModelError, "a text file"),
        (b"GGU", ModelFileError, "Fetch it again"),
        (b"\x00\xff" * 20, ModelFileError, "not a GGUF file"),
    ],
)
def test_another_file_is_called_that_however_short(
    tmp_path: Path, content: bytes, kind: type[ModelError], says: str
) -> None:
    fails(tmp_path, content, kind, match=says)


@pytest.mark.parametrize("length", [4, 23, 30, 200, len(sound()) - 1])
def test_a_truncated_file_says_what_may_have_happened(tmp_path: Path, length: int) -> None:
    fails(tmp_path, sound()[:length], match=r"was its download cut\? Fetch it again")


def test_row_16_every_byte_changed(tmp_path: Path) -> None:
    """Whatever one byte becomes, the file opens soundly or fails with a typed error."""
    whole = sound()
    path = tmp_path / "hostile.gguf"
    for position in range(len(whole)):
        for value in (0, 0xFF, whole[position] ^ 1):
            path.write_bytes(whole[:position] + bytes([value]) + whole[position + 1 :])
            try:
                file = open_gguf(path)
            except ModelError:
                continue
            for item in file.tensors.values():
                assert item.data.size == item.byte_count
                assert item.byte_count <= len(whole)


def test_row_16_header_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_HEADER_BYTES", 4096)
    content = gguf([entry(f"k{index}", STRING, string("x" * 100)) for index in range(100)])
    fails(tmp_path, content, match="header is longer than 4,096 bytes")


def test_row_16_memory_follows_what_is_there(tmp_path: Path) -> None:
    """Many empty strings, in a file that does hold their lengths: memory of the same order."""
    count = 50_000
    content = gguf([entry("k", ARRAY, array(STRING, [bytes(8 * count)], count))], entry_count=2)
    fails(tmp_path, content, match="the file ends inside")


def test_tensors_may_leave_gaps_and_stand_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "sound.gguf"
    path.write_bytes(
        gguf([alignment(64)], [tensor("t", [32], Q4_1, 128), tensor("u", [1], BF16, 0)], bytes(148), alignment=64)
    )
    with open_gguf(path) as file:
        assert file.alignment == 64
        assert file.tensors["t"].byte_count == 20
        assert file.tensors["u"].shape == (1,)
