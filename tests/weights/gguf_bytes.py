"""GGUF files written by hand, byte by byte, so that they may be wrong in any way a test likes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
F32, F16, Q4_0, Q4_1, Q8_0, BF16 = 0, 1, 2, 3, 8, 30
_FORMATS = {
    UINT8: "B", INT8: "b", UINT16: "H", INT16: "h", UINT32: "I", INT32: "i", FLOAT32: "f", BOOL: "B", UINT64: "Q",
    INT64: "q", FLOAT64: "d",
}  # fmt: skip


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def scalar(code: int, value: float) -> bytes:
    return struct.pack("<" + _FORMATS[code], value)


def entry(key: str | bytes, code: int, value: bytes) -> bytes:
    """One metadata entry whose value is already packed."""
    return string(key) + struct.pack("<I", code) + value


def array(code: int, packed: Sequence[bytes], count: int | None = None) -> bytes:
    """The value of an array entry; ``count`` may lie."""
    return struct.pack("<IQ", code, len(packed) if count is None else count) + b"".join(packed)


def tensor(name: str | bytes, dimensions: Sequence[int], code: int, offset: int, count: int | None = None) -> bytes:
    """One tensor's description; ``count``, the number of dimensions, may lie."""
    return (
        string(name)
        + struct.pack("<I", len(dimensions) if count is None else count)
        + b"".join(struct.pack("<Q", size) for size in dimensions)
        + struct.pack("<IQ", code, offset)
    )


def gguf(
    entries: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    entry_count: int | None = None,
    tensor_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file; counts may lie. Data begins at the next multiple of ``alignment`` where there are tensors."""
    header = struct.pack(
        "<4sIQQ",
        magic,
        version,
        len(tensors) if tensor_count is None else tensor_count,
        len(entries) if entry_count is None else entry_count,
    )
    head = header + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % alignment if tensors else 0) + data


def sound() -> bytes:
    """A small file with every kind of value and tensor type, valid in all respects."""
    entries = [
        entry("general.architecture", STRING, string("llama")),
        *(entry(f"n.{code}", code, scalar(code, 1)) for code in _FORMATS),
        *(entry(f"a.{code}", ARRAY, array(code, [scalar(code, 1), scalar(code, 0)])) for code in _FORMATS),
        entry("a.text", ARRAY, array(STRING, [string("a"), string(""), string("é"), string(b"\xff\xfe")])),
        entry("a.empty", ARRAY, array(STRING, [])),
        entry("general.alignment", UINT32, scalar(UINT32, 32)),
    ]
    tensors = [
        tensor("f32", [3, 2], F32, 0),  # 24 bytes
        tensor("f16", [5], F16, 32),  # 10
        tensor("bf16", [2, 2, 2, 2], BF16, 64),  # 32
        tensor("q4_0", [32, 2], Q4_0, 96),  # 36
        tensor("q4_1", [64, 1], Q4_1, 160),  # 40
        tensor("q8_0", [32, 1], Q8_0, 224),  # 34
    ]
    return gguf(entries, tensors, bytes(range(258 - 2)) + b"\1\2")
