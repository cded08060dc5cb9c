"""Stored tensors to float32, exactly: one float32 product, and one sum where the type has a minimum, per element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ultrafast.errors import UnsupportedModelError
from ultrafast.weights.source import Tensor

Float32Array = NDArray[np.float32]


def dequantise(tensor: Tensor) -> Float32Array:
    """The tensor's values as a new ``float32[*tensor.shape]``; ``UnsupportedModelError`` for a type without a rule."""
    convert = _CONVERSIONS.get(tensor.type_name)
    if convert is None:
        raise UnsupportedModelError(f"no conversion from {tensor.type_name} to float32")
    return convert(tensor.data).reshape(tensor.shape)


def _from_f32(data: NDArray[np.uint8]) -> Float32Array:
    return data.view("<f4").astype(np.float32)


def _from_f16(data: NDArray[np.uint8]) -> Float32Array:
    return data.view("<f2").astype(np.float32)


def _from_bf16(data: NDArray[np.uint8]) -> Float32Array:
    return (data.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _from_q8_0(data: NDArray[np.uint8]) -> Float32Array:
    blocks = data.reshape(-1, 34)
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _from_q4_0(data: NDArray[np.uint8]) -> Float32Array:
    blocks = data.reshape(-1, 18)
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]) - np.float32(8))


def _from_q4_1(data: NDArray[np.uint8]) -> Float32Array:
    blocks = data.reshape(-1, 20)
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]) + _half(blocks, 2)


def _half(blocks: NDArray[np.uint8], offset: int) -> Float32Array:
    """The float16 at ``offset`` of each block, as ``float32[blocks, 1]``."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: NDArray[np.uint8]) -> Float32Array:
    """``uint8[blocks, 16]`` to ``float32[blocks, 32]``: the low halves are elements 0 to 15, the high ones 16 to 31."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


_CONVERSIONS: Final[dict[str, Callable[[NDArray[Any]], Float32Array]]] = {
    "F32": _from_f32,
    "F16": _from_f16,
    "BF16": _from_bf16,
    "Q8_0": _from_q8_0,
    "Q4_0": _from_q4_0,
    "Q4_1": _from_q4_1,
}
