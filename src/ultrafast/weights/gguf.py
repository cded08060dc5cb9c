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
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from ultrafast.errors import ModelNotFoundError
from ultrafast.weights.recognise import other_kind
from ultrafast.weights.source import (
    MAX_TENSOR_ELEMENTS,
    MAX_TENSOR_NAME_BYTES,
    MAX_TENSORS,
    Complaints,
    ModelSource,
    Tensor,
    map_file,
    quoted,
)

MAX_HEADER_BYTES: Final = 128 << 20  # everything before the tensor data; the largest vocabularies need about 30 MiB
MAX_METADATA_ENTRIES: Final = 65_536
MAX_KEY_BYTES: Final = 65_535  # the format's own limit
MAX_STRING_BYTES: Final = 16 << 20
MAX_STRING_ELEMENTS: Final = 4 << 20  # strings in all arrays together: each costs about 60 bytes of memory
MAX_DIMENSIONS: Final = 4
MAX_PARTS: Final = 1_000
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
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36),
    41: TensorType("Q1_0", 128, 18),
    42: TensorType("Q2_0", 64, 18),
}

# Types this version cannot run, known so that a refusal can name them and `models inspect` can measure them.
OTHER_TENSOR_TYPES: Final[dict[int, TensorType]] = {
    code: TensorType(name, block_elements, block_bytes)
    for code, name, block_elements, block_bytes in (
        (9, "Q8_1", 32, 40), (15, "Q8_K", 256, 292), (24, "I8", 1, 1), (25, "I16", 1, 2), (26, "I32", 1, 4),
        (27, "I64", 1, 8), (28, "F64", 1, 8),
    )
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

_CUT: Final = ": was its download cut? Fetch it again"
PART_NAME: Final = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
# An image encoder, an adapter, an importance matrix: what lies beside a model and is none.
_NO_MODEL: Final = re.compile(r"(?:^|[-._/])(?:mmproj|imatrix|lora|adapter)", re.IGNORECASE)


def is_gguf(name: str) -> bool:
    """Whether a file's name says that it is a GGUF file."""
    return name.lower().endswith(".gguf")


def gguf_models(names: Iterable[str]) -> list[list[str]]:
    """The models among GGUF files, by their names alone: for each its file, or its parts in order."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        if is_gguf(name) and not _NO_MODEL.search(name):
            part = PART_NAME.fullmatch(name)
            groups.setdefault(f"{part['stem']} {part['count']}" if part else name, []).append(name)
    return [group for _, group in sorted(groups.items())]


class GgufFile(ModelSource):
    """An open, validated GGUF file; made by ``open_gguf``.

    ``metadata`` maps keys to values: ``bool``, ``int``, ``float``, ``str``, ``list[str]`` for arrays of strings, and
    one-dimensional NumPy arrays for arrays of numbers. Strings are decoded as UTF-8 with ``surrogateescape``, so a
    value that is not UTF-8 still holds its exact bytes: ``text.encode("utf-8", "surrogateescape")`` gives them back.
    Of a split model, it is the first part's.
    """

    def __init__(
        self,
        path: Path,
        version: int,
        alignment: int,
        metadata: dict[str, MetadataValue],
        tensors: dict[str, Tensor],
        *,
        files: tuple[Path, ...] = (),
    ) -> None:
        super().__init__(path, metadata, tensors, files or (path,))
        self.version = version
        self.alignment = alignment


def open_gguf(path: str | Path, *, any_type: bool = False) -> GgufFile:
    """Open and validate the GGUF file at ``path``, with all its parts where it is one of a split model.

    Time and memory are bounded by the size of the headers, together at most ``MAX_HEADER_BYTES``. A file must not be
    shortened while it is open: a mapping cannot outlive its bytes. With ``any_type``, tensors and contents that this
    version cannot run are no error: it is how a file is inspected.

    Raises ``ModelNotFoundError`` where there is no readable file, ``ModelFileError`` for a damaged or hostile one, and
    ``UnsupportedModelError`` for a sound one of a version, byte order or tensor type this version cannot run.
    """
    path = Path(path)
    first, header_bytes = _read(path, any_type, MAX_HEADER_BYTES)
    count = first.metadata.get("split.count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_PARTS:
        Complaints(path).damaged(f"split.count is not an integer from 0 to {MAX_PARTS:,}")
    return first if count <= 1 else _join(first, count, any_type, MAX_HEADER_BYTES - header_bytes)


def _read(path: Path, any_type: bool, header_limit: int) -> tuple[GgufFile, int]:
    """(the file, the size of its header)."""
    mapping = map_file(path)
    if not MAGIC.startswith(mapping[:4]):
        if kind := other_kind(path, mapping):
            Complaints(path).unsupported(kind)
        Complaints(path).damaged("not a GGUF file (its first four bytes are not GGUF)")
    if len(mapping) < _FIXED_HEADER.size:
        Complaints(path).damaged(f"the file ends inside its header{_CUT}")
    parser = _Parser(path, mapping, any_type, header_limit)
    return parser.parse(), parser.position


def _join(given: GgufFile, count: int, any_type: bool, header_budget: int) -> GgufFile:
    """The whole model of which ``given`` is one part; its parts lie beside it under the names of the format."""
    complaints = Complaints(given.path)
    name = PART_NAME.fullmatch(given.path.name)
    if name is None or int(name["count"]) != count:
        complaints.damaged(f"one of {count} parts, but its name does not end in -00001-of-{count:05}.gguf or the like")
    parts: list[GgufFile] = []
    for number in range(1, count + 1):
        path = given.path.with_name(f"{name['stem']}-{number:05}-of-{count:05}.gguf")
        if number == int(name["number"]):
            part = given
        else:
            try:
                part, header_bytes = _read(path, any_type, header_budget)
            except ModelNotFoundError:
                complaints.damaged(f"part {number} of {count} is missing: {path.name} belongs beside it")
            header_budget -= header_bytes
        if part.metadata.get("split.no") != number - 1 or part.metadata.get("split.count") != count:
            complaints.damaged(f"part {number} of {count} does not say that it is that part")
        parts.append(part)
    tensors: dict[str, Tensor] = {}
    for part in parts:
        if repeated := tensors.keys() & part.tensors.keys():
            complaints.damaged(f"two parts hold the tensor {quoted(min(repeated))}")
        tensors |= part.tensors
    if len(tensors) > MAX_TENSORS or parts[0].metadata.get("split.tensors.count", len(tensors)) != len(tensors):
        complaints.damaged("its parts do not hold as many tensors as they should")
    first = parts[0]
    files = tuple(part.path for part in parts)
    return GgufFile(first.path, first.version, first.alignment, first.metadata, tensors, files=files)


class _Parser(Complaints):
    """One pass over a mapped file. ``position`` never passes ``limit``, the end of what the header may use."""

    def __init__(self, path: Path, mapping: mmap.mmap, any_type: bool, header_limit: int) -> None:
        super().__init__(path)
        self.mapping = mapping
        self.any_type = any_type
        self.limit = min(len(mapping), header_limit)
        self.position = 0
        self.string_elements = 0

    def parse(self) -> GgufFile:
        _, version, tensor_count, metadata_count = _FIXED_HEADER.unpack_from(self.mapping)
        if version & 0xFFFF == 0:
            self.unsupported("a big-endian GGUF file; only little-endian files are supported")
        if version not in SUPPORTED_VERSIONS:
            self.unsupported(
                f"GGUF version {version}; versions {_listed(SUPPORTED_VERSIONS)} are supported: convert the model again"
            )
        if metadata_count > MAX_METADATA_ENTRIES:
            self.damaged(f"claims more than {MAX_METADATA_ENTRIES:,} metadata entries")
        if tensor_count > MAX_TENSORS:
            self.damaged(f"claims more than {MAX_TENSORS:,} tensors")
        self.position = _FIXED_HEADER.size
        metadata = self.read_metadata(metadata_count)
        if not self.any_type and (content := other_content(metadata, tensor_count)):
            self.unsupported(content)
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
                self.damaged(f"{where} repeats the key {quoted(key)}")
            metadata[key] = self.value(self.uint32(where), f"{where} ({quoted(key)})")
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

    def read_tensors(self, count: int, alignment: int) -> dict[str, Tensor]:
        infos: dict[str, tuple[TensorType, tuple[int, ...], int, int]] = {}  # name: type, shape, offset, byte count
        for index in range(count):
            name = self.string(f"the name of tensor {index}", MAX_TENSOR_NAME_BYTES)
            if not name:
                self.damaged(f"tensor {index} has an empty name")
            if name in infos:
                self.damaged(f"tensor {index} repeats the name {quoted(name)}")
            infos[name] = self.tensor_info(f"tensor {index} ({quoted(name)})", alignment)
        data_start = -(-self.position // alignment) * alignment if infos else self.position
        extents = sorted((offset, byte_count, name) for name, (_, _, offset, byte_count) in infos.items())
        end = 0
        for offset, byte_count, name in extents:
            if offset < end:
                self.damaged(f"tensor {quoted(name)} overlaps another tensor")
            end = offset + byte_count
            if data_start + end > len(self.mapping):
                self.damaged(
                    f"tensor {quoted(name)} reaches beyond the end of the file, of {len(self.mapping):,} bytes{_CUT}"
                )
        contents = np.frombuffer(self.mapping, np.uint8)
        return {
            name: Tensor(
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
            kind = OTHER_TENSOR_TYPES.get(code)
            if kind is None or not self.any_type:
                other = kind.name if kind else f"number {code}"
                self.unsupported(
                    f"{where} is of type {other}, which this version does not run: take the model in another "
                    "quantisation, such as Q4_K_M"
                )
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
        self.damaged(f"the file ends inside {where}{_CUT}")


def other_content(metadata: dict[str, MetadataValue], tensor_count: int) -> str | None:
    """What a GGUF file that holds no language model is, and what to do; None for one that may."""
    kind, architecture = metadata.get("general.type"), metadata.get("general.architecture")
    if kind == "adapter" or "adapter.type" in metadata:
        return "a LoRA adapter, not a model: merge it into its base model, and name the merged file"
    if kind == "mmproj" or architecture in ("clip", "mmproj"):
        return "the image or audio encoder of a multimodal model: name the language model's own file, usually beside it"
    if kind == "imatrix" or "imatrix.datasets" in metadata:
        return "an importance matrix, used when a model is quantised: name the model's own file"
    if tensor_count == 0 and "tokenizer.ggml.model" in metadata and "split.count" not in metadata:
        return "a vocabulary without weights: name the model's own file"
    return None


def _listed(values: Iterable[int]) -> str:
    return " and ".join(map(str, values))
