"""Random weights of every stored type, for tests: the gguf package writes some types, the rest are random blocks."""

from __future__ import annotations

import gguf
import numpy as np
from numpy.typing import NDArray

from ultrafast.weights.gguf import TENSOR_TYPES

KINDS = {kind.name: kind for kind in TENSOR_TYPES.values()}
FLOATS = ("F32", "F16", "BF16")
QUANTISED = tuple(name for name in KINDS if name not in FLOATS)
# Where a block keeps its float16 scale and minimum.
_HALVES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
# The largest |value| that the integers of a block may reach, so that weights come out near a deviation.
_RANGES = {"Q2_K": 45, "Q3_K": 128, "Q4_K": 945, "Q5_K": 1953, "Q6_K": 4096, "IQ4_NL": 127, "IQ4_XS": 4064, "MXFP4": 12}


def random_weights(
    random: np.random.Generator, rows: int, columns: int, weight_type: str, deviation: float
) -> NDArray[np.uint8]:
    """``uint8[rows, bytes of a row]``; ``columns`` are whole blocks."""
    kind = KINDS[weight_type]
    if weight_type not in _RANGES:
        values = random.normal(0.0, deviation, (rows, columns)).astype(np.float32)
        packed: NDArray[np.uint8] = gguf.quants.quantize(values, gguf.GGMLQuantizationType[weight_type])
        return np.ascontiguousarray(packed).view(np.uint8).reshape(rows, -1)
    blocks = random.integers(0, 256, (rows * columns // kind.block_elements, kind.block_bytes), np.uint8)
    if weight_type == "MXFP4":
        blocks[:, 0] = 127 + round(float(np.log2(deviation))) - 2
    for offset in _HALVES.get(weight_type, ()):
        scale = 3 * deviation / _RANGES[weight_type] * random.uniform(0.5, 1.0, len(blocks))
        blocks[:, offset : offset + 2] = scale.astype(np.float16)[:, None].view(np.uint8)
    return blocks.reshape(rows, -1)
