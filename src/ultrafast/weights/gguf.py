"""GGUF files (versions 2 and 3, little-endian), memory-mapped and distrusted.

A model file is untrusted input. Every count, length and offset is checked against what the file can hold before
anything is allocated for it, arithmetic is on Python's unbounded integers (nothing wraps), and each limit is a named
constant below. All validation happens in ``open_gguf``: once it returns, reading metadata and tensors cannot fail.

A message quotes a name from the file only when it is short and plain; other names appear as their index.
"""

from __future__ import annotations

import math
import mmap
import re
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from ultrafast.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError

MAX_HEADER_BYTES: Final = 128 << 20  # everything before the tensor data; the largest vocabularies need about 30 MiB
MAX_METADATA_ENTRIES: Final = 65_536
MAX_KEY_BYTES: Final = 65_535  # the format's own limit
MAX_STRING_BYTES: Final = 16 << 20
MAX_STRING_ELEMENTS: Final = 4 << 20  # strings in all arrays together: each costs about 60 bytes of memory
MAX_TENSORS: Final = 65_536
MAX_TENSOR_NAME_BYTES: Final = 255
MAX_DIMENSIONS: Final = 4
MAX_TENSOR_ELEMENTS: Final = 1 << 40
MAX_ALIGNMENT_BYTES: Final = 1 << 20
DEFAULT_ALIGNMENT_BYTES: Final = 32

MAGIC: Final = b"GGUF"
SUPPORTED_VERSIONS: Final = (2, 3)
_FIXED_HEADER = struct.Struct("<4sIQQ")  # magic, version, tensor count, metadata count

MetadataValue = bool | int | float | str | list[str] | NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorType:
    """How elements are stored: ``block_bytes`` bytes hold ``block_elements`` consecutive elements of one row."""

    name: str
    block_elements: int
    block_bytes: int


TENSOR_TYPES: Final[dict[int, TensorType]] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),  # f16 scale, 16 bytes of nibbles
    3: TensorType("Q4_1", 32, 20),  # f16 scale, f16 minimum, 16 bytes of nibbles
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),  # f16 scale, 32 int8
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    20: TensorType("IQ4_NL", 32, 18),
    23: TensorType("IQ4_XS", 256, 136),
    30: TensorType("BF16", 1, 2),
    39: TensorType("MXFP4", 32, 17),
}
SUPPORTED_TYPE_NAMES: Final = ", ".join(sorted(kind.name for kind in TENSOR_TYPES.values()))

# Types this version cannot run, named only so that the refusal can say which one it met.
_OTHER_TYPE_NAMES: Final[dict[int, str]] = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
}  # fmt: skip

_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS: Final[dict[int, tuple[struct.Struct, np.dtype[Any]]]] = {
    code: (struct.Struct("<" + letter), np.dtype("<" + letter if letter != "?" else "u1"))
    for code, letter in {
        0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
    }.items()
}  # fmt: skip
_UINT32: Final = struct.Struct("<I")
_UINT64: Final = struct.Struct("<Q")

_INCOMPLETE: Final = "the download may be incomplete: fetch the file again"
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,80}")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of an open file.

    ``shape`` is in NumPy order, rows first, so the last axis is contiguous (the file lists it the other way round).
    ``data`` is a read-only ``uint8[byte_count]`` view into the mapped file: no copy, and valid for as long as it is
    referenced, even after the file object is closed.
    """

    name: str
    type_name: str
    shape: tuple[int, ...]
    byte_count: int
    data: NDArray[np.uint8]


class GgufFile:
    """An open, validated GGUF file; made by ``open_gguf``.

    ``metadata`` maps keys to values: ``bool``, ``int``, ``float``, ``str``, ``list[str]`` for arrays of strings, and
    one-dimensional NumPy arrays for arrays of numbers. Strings are decoded as UTF-8 with ``surrogateescape``, so a
    value that is not UTF-8 still holds its exact bytes: ``text.encode("utf-8", "surrogateescape")`` gives them back.

    The typed accessors raise ``ModelFileError`` where a key is absent without default, or holds another kind of value.
    """

    def __init__(
        self,
        path: Path,
        version: int,
        alignment: int,
        metadata: dict[str, MetadataValue],
        tensors: dict[str, GgufTensor],
    ) -> None:
        self.path = path
        self.version = version
        self.alignment = alignment
        self.metadata = metadata
        self.tensors = tensors

    def close(self) -> None:
        """Let go of the mapping; it is unmapped when the last tensor view taken from it dies."""
        self.tensors = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def integer(self, key: str, default: int | None = None, *, minimum: int = 0, maximum: int = 2**31 - 1) -> int:
        """The integer at ``key``, checked to lie in ``minimum..maximum``."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self._wrong(key, "an integer")
        if not minimum <= value <= maximum:
            raise ModelFileError(f"{shown_path(self.path)}: metadata {key} is outside {minimum}..{maximum}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """The finite number at ``key``."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self._wrong(key, "a finite number")
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """The truth value at ``key``."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            self._wrong(key, "a boolean")
        return value

    def string(self, key: str, default: str | None = None) -> str:
        """The string at ``key``."""
        value = self._value(key, default)
        if not isinstance(value, str):
            self._wrong(key, "a string")
        return value

    def strings(self, key: str, default: list[str] | None = None) -> list[str]:
        """The array of strings at ``key``."""
        value = self._value(key, default)
        if not isinstance(value, list):
            self._wrong(key, "an array of strings")
        return value

    def numbers(self, key: str, default: NDArray[Any] | None = None) -> NDArray[Any]:
        """The one-dimensional array of numbers at ``key``."""
        value = self._value(key, default)
        if not isinstance(value, np.ndarray):
            self._wrong(key, "an array of numbers")
        return value

    def _value(self, key: str, default: MetadataValue | None) -> MetadataValue:
        value = self.metadata.get(key, default)
        if value is None:
            raise ModelFileError(f"{shown_path(self.path)}: metadata {key} is missing")
        return value

    def _wrong(self, key: str, expected: str) -> NoReturn:
        raise ModelFileError(f"{shown_path(self.path)}: metadata {key} is not {expected}")


def open_gguf(path: str | Path) -> GgufFile:
    """Open and validate the GGUF file at ``path``.

    Time and memory are bounded by the size of the file's header, itself at most ``MAX_HEADER_BYTES``. The file must
    not be shortened while it is open: a mapping cannot outlive its bytes.

    Raises ``ModelNotFoundError`` where there is no readable file, ``ModelFileError`` for a damaged or hostile one, and
    ``UnsupportedModelError`` for a sound one of a version, byte order or tensor type this version cannot run.
    """
    path = Path(path)
    try:
        # Asked before opening: opening a pipe would wait for its writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModelNotFoundError(f"{shown_path(path)}: not a regular file")
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            if file.read(len(MAGIC)) != MAGIC:
                raise ModelFileError(f"{shown_path(path)}: not a GGUF file (its first four bytes are not GGUF)")
            if size < _FIXED_HEADER.size:
                raise ModelFileError(f"{shown_path(path)}: the file ends inside its header; {_INCOMPLETE}")
            mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
        raise ModelNotFoundError(f"{shown_path(path)}: {reason}") from error
    return _Parser(path, mapping).parse()


class _Parser:
    """One pass over a mapped file. ``position`` never passes ``limit``, the end of what the header may use."""

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        self.path = path
        self.mapping = mapping
        self.limit = min(len(mapping), MAX_HEADER_BYTES)
        self.position = 0
        self.string_elements = 0

    def parse(self) -> GgufFile:
        _, version, tensor_count, metadata_count = _FIXED_HEADER.unpack_from(self.mapping)
        if version & 0xFFFF == 0:
            self.unsupported("a big-endian GGUF file; only little-endian files are supported")
        if version not in SUPPORTED_VERSIONS:
            self.unsupported(f"GGUF version {version}; versions {_listed(SUPPORTED_VERSIONS)} are supported")
        if metadata_count > MAX_METADATA_ENTRIES:
            self.damaged(f"claims more than {MAX_METADATA_ENTRIES:,} metadata entries")
        if tensor_count > MAX_TENSORS:
            self.damaged(f"claims more than {MAX_TENSORS:,} tensors")
        self.position = _FIXED_HEADER.size
        metadata = self.read_metadata(metadata_count)
        split = metadata.get("split.count", 1)
        if isinstance(split, int) and split > 1:
            self.unsupported("one part of a split model; join the parts first")
        alignment = self.checked_alignment(metadata.get("general.alignment", DEFAULT_ALIGNMENT_BYTES))
        tensors = self.read_tensors(tensor_count, alignment)
        return GgufFile(self.path, version, alignment, metadata, tensors)

    def read_metadata(self, count: int) -> dict[str, MetadataValue]:
        metadata: dict[str, MetadataValue] = {}
        for index in range(count):
            where = f"metadata entry {index}"
            key = self.string(f"the key of {where}", MAX_KEY_BYTES)
            if not key:
                self.damaged(f"{where} has an empty key")
            if key in metadata:
                self.damaged(f"{where} repeats the key {_quoted(key)}")
            metadata[key] = self.value(self.uint32(where), f"{where} ({_quoted(key)})")
        return metadata

    def value(self, code: int, where: str) -> MetadataValue:
        if code == _STRING:
            return self.string(where, MAX_STRING_BYTES)
        if code == _ARRAY:
            return self.array(where)
        if code not in _SCALARS:
            self.damaged(f"{where} has an unknown value type")
        packing, _ = _SCALARS[code]
        start = self.take(packing.size, where)
        if code == _BOOL and self.mapping[start] > 1:
            self.damaged(f"{where} is a boolean that is neither 0 nor 1")
        value: MetadataValue = packing.unpack_from(self.mapping, start)[0]
        return value

    def array(self, where: str) -> list[str] | NDArray[Any]:
        code = self.uint32(where)
        count = self.uint64(where)
        if code == _STRING:
            return self.string_array(count, where)
        if code == _ARRAY:
            self.unsupported(f"{where} is an array of arrays")
        if code not in _SCALARS:
            self.damaged(f"{where} is an array of an unknown type")
        dtype = _SCALARS[code][1]
        start = self.take(count * dtype.itemsize, where)
        values = np.frombuffer(self.mapping, dtype, count, start).copy()
        if code == _BOOL:
            if count and int(values.max()) > 1:
                self.damaged(f"{where} holds a boolean that is neither 0 nor 1")
            values = values.astype(np.bool_)
        return values

    def string_array(self, count: int, where: str) -> list[str]:
        """The hot loop of opening a file: a vocabulary and its merges are some hundred thousand strings."""
        mapping, limit, position = self.mapping, self.limit, self.position
        self.string_elements += count
        if self.string_elements > MAX_STRING_ELEMENTS:
            self.damaged(f"{where} brings the strings in arrays above {MAX_STRING_ELEMENTS:,}")
        if count * _UINT64.size > limit - position:
            self.ended(where)
        length_at = _UINT64.unpack_from
        texts: list[str] = []
        for _ in range(count):
            start = position + 8
            if start > limit:
                self.ended(where)
            position = start + length_at(mapping, position)[0]
            if position > limit:
                self.ended(where)
            texts.append(mapping[start:position].decode("utf-8", "surrogateescape"))
        self.position = position
        return texts

    def read_tensors(self, count: int, alignment: int) -> dict[str, GgufTensor]:
        infos: dict[str, tuple[TensorType, tuple[int, ...], int, int]] = {}  # name: type, shape, offset, byte count
        for index in range(count):
            name = self.string(f"the name of tensor {index}", MAX_TENSOR_NAME_BYTES)
            if not name:
                self.damaged(f"tensor {index} has an empty name")
            if name in infos:
                self.damaged(f"tensor {index} repeats the name {_quoted(name)}")
            infos[name] = self.tensor_info(f"tensor {index} ({_quoted(name)})", alignment)
        data_start = -(-self.position // alignment) * alignment if infos else self.position
        extents = sorted((offset, byte_count, name) for name, (_, _, offset, byte_count) in infos.items())
        end = 0
        for offset, byte_count, name in extents:
            if offset < end:
                self.damaged(f"tensor {_quoted(name)} overlaps another tensor")
            end = offset + byte_count
            if data_start + end > len(self.mapping):
                self.damaged(f"tensor {_quoted(name)} reaches beyond the end of the file; {_INCOMPLETE}")
        contents = np.frombuffer(self.mapping, np.uint8)
        return {
            name: GgufTensor(
                name, kind.name, shape, byte_count, contents[data_start + offset : data_start + offset + byte_count]
            )
            for name, (kind, shape, offset, byte_count) in infos.items()
        }

    def tensor_info(self, where: str, alignment: int) -> tuple[TensorType, tuple[int, ...], int, int]:
        dimension_count = self.uint32(where)
        if not 1 <= dimension_count <= MAX_DIMENSIONS:
            self.damaged(f"{where} does not have 1 to {MAX_DIMENSIONS} dimensions")
        dimensions = [self.uint64(where) for _ in range(dimension_count)]
        code = self.uint32(where)
        offset = self.uint64(where)
        if 0 in dimensions:
            self.damaged(f"{where} has a dimension of 0")
        elements = math.prod(dimensions)
        if elements > MAX_TENSOR_ELEMENTS:
            self.damaged(f"{where} has more than 2^40 elements")
        kind = TENSOR_TYPES.get(code)
        if kind is None:
            other = _OTHER_TYPE_NAMES.get(code, f"number {code}")
            self.unsupported(f"{where} is of type {other}; supported types are {SUPPORTED_TYPE_NAMES}")
        if dimensions[0] % kind.block_elements:
            self.damaged(f"{where} has rows that are not whole {kind.name} blocks of {kind.block_elements}")
        if offset % alignment:
            self.damaged(f"{where} is not aligned to {alignment} bytes")
        return kind, tuple(reversed(dimensions)), offset, elements // kind.block_elements * kind.block_bytes

    def checked_alignment(self, value: MetadataValue) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            self.damaged("general.alignment is not an integer")
        if not 8 <= value <= MAX_ALIGNMENT_BYTES or value & (value - 1):
            self.damaged(f"general.alignment is not a power of two from 8 to {MAX_ALIGNMENT_BYTES:,}")
        return value

    def string(self, where: str, limit: int) -> str:
        length = self.uint64(where)
        if length > limit:
            self.damaged(f"{where} is longer than {limit:,} bytes")
        start = self.take(length, where)
        return self.mapping[start : start + length].decode("utf-8", "surrogateescape")

    def uint32(self, where: str) -> int:
        return int(_UINT32.unpack_from(self.mapping, self.take(4, where))[0])

    def uint64(self, where: str) -> int:
        return int(_UINT64.unpack_from(self.mapping, self.take(8, where))[0])

    def take(self, byte_count: int, where: str) -> int:
        """Advance over ``byte_count`` bytes and return where they start."""
        start = self.position
        if byte_count > self.limit - start:
            self.ended(where)
        self.position = start + byte_count
        return start

    def ended(self, where: str) -> NoReturn:
        if self.limit < len(self.mapping):
            self.damaged(f"its header is longer than {MAX_HEADER_BYTES:,} bytes, in {where}")
        self.damaged(f"the file ends inside {where}; {_INCOMPLETE}")

    def damaged(self, what: str) -> NoReturn:
        raise ModelFileError(f"{shown_path(self.path)}: {what}")

    def unsupported(self, what: str) -> NoReturn:
        raise UnsupportedModelError(f"{shown_path(self.path)}: {what}")


def shown_path(path: Path) -> str:
    """The path on one line, whatever characters it holds."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(path))


def _quoted(name: str) -> str:
    """A name from the file, where it is plain enough to print."""
    return f"'{name}'" if _PLAIN_NAME.fullmatch(name) else "with an unprintable name"


def _listed(values: Iterable[int]) -> str:
    return " and ".join(map(str, values))
