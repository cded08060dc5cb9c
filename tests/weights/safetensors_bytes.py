"""safetensors files and model directories written by hand, so that they may be wrong in any way a test likes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

CONFIGURATION: dict[str, Any] = {"model_type": "llama", "hidden_size": 4, "rope_scaling": {"factor": 8.0}, "x": None}


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A whole file; ``header`` as JSON, or as bytes just as they are; ``length`` may lie."""
    packed = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(packed) if length is None else length) + packed + data


def sound(**arrays: np.ndarray) -> bytes:
    """A valid file of F16 and F32 arrays, padded as its usual writer pads."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in arrays.items():
        raw = array.tobytes()
        header[name] = entry(
            {"f2": "F16", "f4": "F32"}[array.dtype.str[1:]], [*array.shape], len(data), len(data + raw)
        )
        data += raw
    packed = json.dumps(header).encode()
    return safetensors(packed + b" " * (-len(packed) % 8), data)


def small() -> dict[str, np.ndarray]:
    return {
        "model.a.weight": np.arange(8, dtype=np.float32).reshape(2, 4),
        "model.b.weight": np.arange(4, dtype=np.float16),
        "scalar": np.array(3, np.float32),
    }


def write_directory(directory: Path, *, sharded: bool = False) -> Path:
    """A valid model directory of ``small()``."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIGURATION))
    if not sharded:
        (directory / "model.safetensors").write_bytes(sound(**small()))
        return directory
    places = {}
    for number, (name, array) in enumerate(small().items(), 1):
        places[name] = f"model-{number:05}-of-00003.safetensors"
        (directory / places[name]).write_bytes(sound(**{name: array}))
    write_index(directory, places)
    return directory


def write_index(directory: Path, places: object) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
