"""safetensors files, memory-mapped and distrusted; one or many that an index ties together.

A file is eight bytes of header length, the header (a JSON object of names to type, shape and extent) and the data.
As the format demands, the extents cover the data without gap or overlap. All is checked on opening, before anything
is allocated for it; arithmetic is on Python's unbounded integers.
"""

from __future__ import annotations

import math
import mmap
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ultrafast.errors import ModelNotFoundError
from ultrafast.weights.json_text import parse_object, read_object
from ultrafast.weights.recognise import other_kind
from ultrafast.weights.source import (
    MAX_TENSOR_ELEMENTS,
    MAX_TENSOR_NAME_BYTES,
    MAX_TENSORS,
    Complaints,
    Tensor,
    map_file,
    quoted,
)

WEIGHTS_NAME: Final = "model.safetensors"
INDEX_NAME: Final = "model.safetensors.index.json"

MAX_HEADER_BYTES: Final = 16 << 20  # a tensor takes about 120 bytes of it
MAX_INDEX_BYTES: Final = 16 << 20
MAX_SHARDS: Final = 1_000
MAX_DIMENSIONS: Final = 8
# Commas and brackets of a header or index: a bound on the memory that parsing it takes.
MAX_JSON_VALUES: Final = 12 * MAX_TENSORS

ELEMENT_BYTES: Final[dict[str, int]] = {"F32": 4, "F16": 2, "BF16": 2}
# Types this version cannot run, known so that a refusal can name them and `models inspect` can measure them.
OTHER_ELEMENT_BYTES: Final[dict[str, int]] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
    "I16": 2, "U16": 2, "I32": 4, "U32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
SUPPORTED_TYPE_NAMES: Final = ", ".join(sorted(ELEMENT_BYTES))
_LENGTH_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class _Entry:
    """What the header says of one tensor; ``begin`` and ``end`` count from the start of the data."""

    type_name: str
    shape: tuple[int, ...]
    begin: int
    end: int


def open_safetensors(path: Path, *, any_type: bool = False) -> dict[str, Tensor]:
    """Map and validate one file; its tensors by name.

    Raises ``ModelNotFoundError`` where there is no readable file, ``ModelFileError`` for a damaged or hostile one, and
    ``UnsupportedModelError`` for a sound one with tensors that this version cannot run, unless ``any_type``.
    """
    mapping = map_file(path)
    complaints = Complaints(path)
    header = _header(mapping, complaints)
    data_start = _LENGTH_BYTES + len(header)
    # Padding after the object is part of the header, and may only be spaces.
    entries = _entries(parse_object(header.rstrip(b" "), complaints, "its header"), complaints, any_type)
    _check_extents(entries, len(mapping) - data_start, complaints)
    contents = np.frombuffer(mapping, np.uint8)
    return {
        name: Tensor(
            name,
            entry.type_name,
            entry.shape,
            entry.end - entry.begin,
            contents[data_start + entry.begin : data_start + entry.end],
        )
        for name, entry in entries.items()
    }


def _header(mapping: mmap.mmap, complaints: Complaints) -> bytes:
    size = len(mapping)
    length = int.from_bytes(mapping[:_LENGTH_BYTES], "little")
    if mapping[_LENGTH_BYTES : _LENGTH_BYTES + 1] != b"{":
        if kind := other_kind(complaints.path, mapping):
            complaints.unsupported(kind)
        complaints.damaged("not a safetensors file (no header where it should begin)")
    if length > MAX_HEADER_BYTES:
        complaints.damaged(f"claims a header of more than {MAX_HEADER_BYTES:,} bytes")
    if length > size - _LENGTH_BYTES:
        complaints.damaged(f"ends inside its header, after {size:,} bytes: was its download cut? Fetch it again")
    header = mapping[_LENGTH_BYTES : _LENGTH_BYTES + length]
    _bound_values(header, complaints, "its header")
    return header


def _bound_values(text: bytes, complaints: Complaints, what: str) -> None:
    if sum(map(text.count, (b",", b"{", b"["))) > MAX_JSON_VALUES:
        complaints.damaged(f"{what} holds more than {MAX_JSON_VALUES:,} values")


def _entries(header: dict[str, Any], complaints: Complaints, any_type: bool) -> dict[str, _Entry]:
    header.pop("__metadata__", None)  # free text about the file: nothing in it is ours to trust or need
    if len(header) > MAX_TENSORS:
        complaints.damaged(f"holds more than {MAX_TENSORS:,} tensors")
    entries = {}
    for index, (name, value) in enumerate(header.items()):
        where = f"tensor {index} ({quoted(name)})"
        if not name or len(name.encode("utf-8", "surrogatepass")) > MAX_TENSOR_NAME_BYTES:
            complaints.damaged(f"tensor {index} has a name that is empty or longer than {MAX_TENSOR_NAME_BYTES} bytes")
        if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
            complaints.damaged(f"{where} is not described by dtype, shape and data_offsets")
        entries[name] = _entry(value, where, complaints, any_type)
    return entries


def _entry(value: dict[str, Any], where: str, complaints: Complaints, any_type: bool) -> _Entry:
    type_name, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(type_name, str):
        complaints.damaged(f"{where} has a dtype that is not a string")
    element_bytes = ELEMENT_BYTES.get(type_name)
    if element_bytes is None:
        element_bytes = OTHER_ELEMENT_BYTES.get(type_name)
        if element_bytes is None or not any_type:
            other = "an unknown type" if element_bytes is None else f"type {type_name}"
            complaints.unsupported(f"{where} is of {other}; supported types are {SUPPORTED_TYPE_NAMES}")
    if not _is_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        complaints.damaged(f"{where} has a shape that is not up to {MAX_DIMENSIONS} sizes")
    if not _is_sizes(offsets) or len(offsets) != 2:
        complaints.damaged(f"{where} has data_offsets that are not two positions")
    begin, end = offsets
    elements = math.prod(shape)
    if elements > MAX_TENSOR_ELEMENTS:
        complaints.damaged(f"{where} has more than 2^40 elements")
    if end - begin != elements * element_bytes:
        complaints.damaged(f"{where} has an extent that is not its shape times its type")
    return _Entry(type_name, tuple(shape), begin, end)


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**63 for size in value)


def _check_extents(entries: dict[str, _Entry], data_bytes: int, complaints: Complaints) -> None:
    end = 0
    for begin, stop, name in sorted((entry.begin, entry.end, name) for name, entry in entries.items()):
        if begin < end:
            complaints.damaged(f"tensor {quoted(name)} overlaps another tensor")
        if begin > end:
            complaints.damaged(f"there is a gap in the data before tensor {quoted(name)}")
        end = stop
    if end > data_bytes:
        complaints.damaged(
            f"its header tells of {end:,} bytes of data and {data_bytes:,} are there: was its download cut? "
            "Fetch it again"
        )
    if end < data_bytes:
        complaints.damaged(f"{data_bytes - end:,} bytes after the data belong to no tensor")


def open_indexed(directory: Path, *, any_type: bool = False) -> tuple[dict[str, Tensor], tuple[Path, ...]]:
    """The tensors of all files that the directory's index names, and those files in order.

    The index and the files must tell of the same tensors; a file outside the directory is refused.
    """
    index_path = directory / INDEX_NAME
    complaints = Complaints(index_path)
    content = map_file(index_path)
    if len(content) > MAX_INDEX_BYTES:
        complaints.damaged(f"longer than {MAX_INDEX_BYTES:,} bytes")
    _bound_values(content[:], complaints, "the file")
    places = read_object(index_path, max_bytes=MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(places, dict) or not places:
        complaints.damaged("has no weight_map")
    if len(places) > MAX_TENSORS:
        complaints.damaged(f"names more than {MAX_TENSORS:,} tensors")
    names_of: defaultdict[str, set[str]] = defaultdict(set)
    for name, file_name in places.items():
        if not isinstance(file_name, str):
            complaints.damaged("maps a tensor to something that is no file name")
        names_of[file_name].add(name)
    if len(names_of) > MAX_SHARDS:
        complaints.damaged(f"names more than {MAX_SHARDS:,} files")
    # All names are judged before the first file is opened.
    files = {file_name: inner_file(directory, file_name, complaints) for file_name in sorted(names_of)}
    tensors: dict[str, Tensor] = {}
    for file_name, path in files.items():
        try:
            found = open_safetensors(path, any_type=any_type)
        except ModelNotFoundError:
            complaints.damaged(f"the file {quoted(file_name)} that it names is missing; fetch the model again")
        if found.keys() != names_of[file_name]:
            complaints.damaged(f"does not name the same tensors as the file {quoted(file_name)} holds")
        tensors |= found
    return tensors, tuple(files.values())


def inner_file(directory: Path, file_name: str, complaints: Complaints) -> Path:
    """The path of a file named by another file: directly in the directory, also after following links.

    The Hugging Face hub's own cache is the one exception: its ``snapshots/<revision>`` hold links to its ``blobs``.
    """
    if not file_name or file_name in (".", "..") or "\0" in file_name or "/" in file_name or "\\" in file_name:
        complaints.damaged("names a file that is not directly in its folder")
    path = directory / file_name
    try:
        home = directory.resolve()
        target = path.resolve()
        if target.is_symlink():  # what newer Pythons leave of a loop
            raise OSError
    except (OSError, RuntimeError, ValueError):
        complaints.damaged("names a file whose links lead nowhere")
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed.append(home.parent.parent / "blobs")
    if target.parent not in allowed:
        complaints.damaged(f"the file {quoted(file_name)} is a link to outside its folder")
    return path
