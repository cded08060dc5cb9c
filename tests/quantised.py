"""Random weights of every stored type, for tests: the gguf package writes some types, the rest are random blocks."""

from __future__ import annotations

import gguf
import numpy as np
from numpy.typing import NDArray

from ultrafast.weights.gguf import TENSOR_TYPES

# Newer than the package, whose writer looks its types up here.
if "Q2_0" not in gguf.GGMLQuantizationType.__members__:
    _Q2_0 = int.__new__(gguf.GGMLQuantizationType, 42)
    _Q2_0._name_, _Q2_0._value_ = "Q2_0", 42
    gguf.GGMLQuantizationType._member_map_["Q2_0"] = _Q2_0
    gguf.GGMLQuantizationType._value2member_map_[42] = _Q2_0
    gguf.GGML_QUANT_SIZES[_Q2_0] = (64, 18)

KINDS = {kind.name: kind for kind in TENSOR_TYPES.values()}
FLOATS = ("F32", "F16", "BF16")
QUANTISED = tuple(name for name in KINDS if name not in FLOATS)
# Where a block keeps its float16 scale and minimum, if it does.
_HALVES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    **dict.fromkeys(("MXFP4", "NVFP4", "IQ1_M"), ()),
}
# The largest |value| that the integers of a block may reach, so that weights come out near a deviation.
_RANGES = {
    **{"Q2_K": 45, "Q3_K": 128, "Q4_K": 945, "Q5_K": 1953, "Q6_K": 4096, "IQ4_NL": 127, "IQ4_XS": 4064, "MXFP4": 12},
    **{"NVFP4": 12, "IQ1_S": 17, "IQ1_M": 17, "IQ2_XXS": 167, "IQ2_XS": 167, "IQ2_S": 167, "IQ3_XXS": 480},
    **{"IQ3_S": 465, "TQ1_0": 3, "TQ2_0": 3, "Q1_0": 3, "Q2_0": 2},
}


def set_scales(random: np.random.Generator, blocks: NDArray[np.uint8], weight_type: str, largest: float) -> None:
    """Give each of ``[blocks, bytes]`` a scale of at most ``largest``, and a minimum of that size if it has one."""

    def drawn() -> NDArray[np.float16]:
        return (largest * random.uniform(0.5, 1.0, len(blocks))).astype("<f2")

    for offset in _HALVES.get(weight_type, (0,)):
        blocks[:, offset : offset + 2] = drawn()[:, None].view(np.uint8)
    exponent = round(float(np.log2(largest)))
    if weight_type == "MXFP4":
        blocks[:, 0] = 127 + exponent
    elif weight_type == "NVFP4":
        blocks[:, :4] = min(max(7 + exponent, 0), 15) << 3 | blocks[:, :4] & 7
    elif weight_type == "IQ1_M":
        nibbles = drawn().view("<u2")[:, None] >> np.arange(0, 16, 4, dtype=np.uint16) & 15
        blocks[:, 49::2] = blocks[:, 49::2] & 15 | nibbles.astype(np.uint8) << 4


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
    set_scales(random, blocks, weight_type, 3 * deviation / _RANGES[weight_type])
    return blocks.reshape(rows, -1)
