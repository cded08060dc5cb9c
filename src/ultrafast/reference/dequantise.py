"""Stored tensors as float32, exactly: at most two float32 products and one sum per element, in the format's order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ultrafast.errors import UnsupportedModelError
from ultrafast.reference.codebooks import BOOKS, VALUES
from ultrafast.weights.source import Tensor

Float32Array = NDArray[np.float32]
Int32Array = NDArray[np.int32]
Bytes = NDArray[np.uint8]

# What a four-bit code stands for where it is an index.
IQ4_VALUES: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_VALUES: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice those of E2M1


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of 32 elements, taken apart.

    An element is ``scale × half_scale × value + minimum × half_minimum``. The half scales belong to 16 elements each;
    they have few bits, so that their products with integers are exact.
    """

    values: Int32Array  # [blocks, 32]
    scale: Float32Array  # [blocks]
    minimum: Float32Array | None = None  # [blocks], as it is added
    half_scales: Float32Array | None = None  # [blocks, 2]
    half_minima: Int32Array | None = None  # [blocks, 2]


def dequantise(tensor: Tensor) -> Float32Array:
    """The tensor's values as a new ``float32[*tensor.shape]``; ``UnsupportedModelError`` for a type without a rule."""
    if tensor.type_name in _FLOATS:
        return _FLOATS[tensor.type_name](tensor.data).reshape(tensor.shape)
    blocks = blocks_of(tensor.type_name, tensor.data)
    with np.errstate(invalid="ignore", over="ignore"):
        scale, minimum = blocks.scale[:, None], blocks.minimum
        if blocks.half_scales is not None:
            scale = scale * np.repeat(blocks.half_scales, 16, axis=1)
        values: Float32Array = scale * blocks.values.astype(np.float32)
        if minimum is not None:
            added = minimum[:, None]
            if blocks.half_minima is not None:
                added = added * np.repeat(blocks.half_minima, 16, axis=1).astype(np.float32)
            values = values + added
    return values.reshape(tensor.shape)


def blocks_of(type_name: str, data: Bytes) -> Blocks:
    """Take a quantised tensor's bytes apart. Raises ``UnsupportedModelError`` for a type without a rule."""
    take = _QUANTISED.get(type_name)
    if take is None:
        raise UnsupportedModelError(f"no conversion from {type_name} to float32")
    return take(data)


def _from_f32(data: Bytes) -> Float32Array:
    return data.view("<f4").astype(np.float32)


def _from_f16(data: Bytes) -> Float32Array:
    return data.view("<f2").astype(np.float32)


def _from_bf16(data: Bytes) -> Float32Array:
    return (data.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _half(blocks: Bytes, offset: int) -> Float32Array:
    """The float16 at ``offset`` of each block."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").astype(np.float32)[:, 0]


def _nibbles(packed: Bytes) -> Int32Array:
    """``[blocks, 16]`` to ``[blocks, 32]``: the low halves are elements 0 to 15, the high ones 16 to 31."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.int32)


def _short(size: int, low: int, high: int | None, offset: int, minimum: bool) -> Callable[[Bytes], Blocks]:
    """Types of 32 elements: float16 scale (and minimum), a fifth bit at ``high``, nibbles at ``low``."""

    def take(data: Bytes) -> Blocks:
        blocks = data.reshape(-1, size)
        codes = _nibbles(blocks[:, low:])
        if high is not None:
            codes |= np.unpackbits(blocks[:, high : high + 4], axis=1, bitorder="little").astype(np.int32) << 4
        return Blocks(codes - offset, _half(blocks, 0), _half(blocks, 2) if minimum else None)

    return take


def _q8_0(data: Bytes) -> Blocks:
    blocks = data.reshape(-1, 34)
    return Blocks(blocks[:, 2:].view(np.int8).astype(np.int32), _half(blocks, 0))


def _iq4_nl(data: Bytes) -> Blocks:
    blocks = data.reshape(-1, 18)
    return Blocks(np.array(IQ4_VALUES, np.int32)[_nibbles(blocks[:, 2:])], _half(blocks, 0))


def _mxfp4(data: Bytes) -> Blocks:
    blocks = data.reshape(-1, 17)
    scale = np.ldexp(np.float32(1), blocks[:, 0].astype(np.int32) - 128).astype(np.float32)
    return Blocks(np.array(MXFP4_VALUES, np.int32)[_nibbles(blocks[:, 1:])], scale)


def _fields(packed: Bytes, run: int, bits: int) -> Int32Array:
    """Fields of ``bits`` bits: each run of bytes holds its fields 0, then its fields 1, ...; ``[blocks, elements]``."""
    runs = packed.reshape(len(packed), -1, 1, run)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return (runs >> shifts & np.uint8((1 << bits) - 1)).reshape(len(packed), -1).astype(np.int32)


def _long(values: Int32Array, scale: Float32Array, **parts: NDArray[Any]) -> Blocks:
    """Blocks of 32 out of longer ones; ``scale`` is per block of the file or already per block of 32."""
    scale = np.repeat(scale, values.size // 32 // len(scale)) if scale.ndim == 1 else scale.reshape(-1)
    return Blocks(values.reshape(-1, 32), scale, **parts)


def _q2_k(data: Bytes) -> Blocks:
    blocks = data.reshape(-1, 84)
    scales = blocks[:, :16].reshape(-1, 2).astype(np.int32)
    minimum = np.repeat(-_half(blocks, 82), 8)
    return _long(
        _fields(blocks[:, 16:80], 32, 2),
        _half(blocks, 80),
        minimum=minimum,
        half_scales=(scales & 15).astype(np.float32),
        half_minima=scales >> 4,
    )


def _q3_k(data: Bytes) -> Blocks:
    blocks = data.reshape(-1, 110)
    codes = _fields(blocks[:, 32:96], 32, 2) | _fields(blocks[:, :32], 32, 1) << 2
    packed = blocks[:, 96:]
    low = _fields(packed[:, :8], 8, 4)
    high = _fields(packed[:, 8:12], 4, 2)
    scales = ((low | high << 4) - 32).astype(np.float32)
    return _long(codes - 4, _half(blocks, 108), half_scales=scales.reshape(-1, 2))


def _six_bit_pairs(packed: Bytes) -> tuple[Float32Array, Float32Array]:
    """Scales and minima, ``[blocks, 8]`` each, of the twelve bytes that Q4_K and Q5_K share."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _q4_or_q5_k(size: int) -> Callable[[Bytes], Blocks]:
    def take(data: Bytes) -> Blocks:
        blocks = data.reshape(-1, size)
        codes = _fields(blocks[:, size - 128 :], 32, 4)
        if size > 144:
            codes |= _fields(blocks[:, 16:48], 32, 1) << 4
        scales, minima = _six_bit_pairs(blocks[:, 4:16])
        with np.errstate(invalid="ignore", over="ignore"):
            scale, minimum = _half(blocks, 0)[:, None] * scales, _half(blocks, 2)[:, None] * minima
        return _long(codes, scale, minimum=-minimum.reshape(-1))

    return take


def _q6_k(data: Bytes) -> Blocks:
    blocks = data.reshape(-1, 210)
    codes = _fields(blocks[:, :128], 64, 4) | _fields(blocks[:, 128:192], 32, 2) << 4
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32).reshape(-1, 2)
    return _long(codes - 32, _half(blocks, 208), half_scales=scales)


def _iq4_xs(data: Bytes) -> Blocks:
    blocks = data.reshape(-1, 136)
    low = _fields(blocks[:, 4:8, None].reshape(len(blocks), 4), 1, 4)
    tops = np.ascontiguousarray(blocks[:, 2:4]).view("<u2").astype(np.int32)
    scales = (low | (tops >> np.arange(0, 16, 2) & 3) << 4) - 32
    codes = _nibbles(blocks[:, 8:].reshape(-1, 16))
    with np.errstate(invalid="ignore", over="ignore"):
        scale = _half(blocks, 0)[:, None] * scales.astype(np.float32)
    return _long(np.array(IQ4_VALUES, np.int32)[codes], scale)


def _nvfp4(data: Bytes) -> Blocks:
    blocks = data.reshape(-1, 36)
    codes = _fields(blocks[:, 4:], 8, 4)
    scales = blocks[:, :4].astype(np.int32) & 127  # UE4M3: a sign counts for nothing, its NaN without one for zero
    exponents = np.maximum(scales >> 3, 1)
    significands = (scales & 7) + np.where(scales > 7, 8, 0)
    halved = np.ldexp(significands.astype(np.float32), exponents - 11).astype(np.float32)  # half, as codes are twice
    halved[blocks[:, :4] == 127] = 0
    ones = np.ones(2 * len(blocks), np.float32)
    return Blocks(np.array(MXFP4_VALUES, np.int32)[codes.reshape(-1, 32)], ones, half_scales=halved.reshape(-1, 2))


def _tq1_0(data: Bytes) -> Blocks:
    """Bytes are fractions in base 3: multiplied, their next digit is what carries out of eight bits."""
    blocks = data.reshape(-1, 54)
    runs = ((0, 32, 5), (32, 48, 5), (48, 52, 4))  # from, to, digits
    digits = [
        (blocks[:, None, start:end] * np.array([1, 3, 9, 27, 81][:count], np.uint8)[:, None]).reshape(len(blocks), -1)
        for start, end, count in runs
    ]
    codes = np.concatenate(digits, axis=1).astype(np.int32) * 3 >> 8
    return _long(codes - 1, _half(blocks, 52))


def _tq2_0(data: Bytes) -> Blocks:
    blocks = data.reshape(-1, 66)
    return _long(_fields(blocks[:, :64], 32, 2) - 1, _half(blocks, 64))


def _q1_0(data: Bytes) -> Blocks:
    blocks = data.reshape(-1, 18)
    return _long(2 * _bits(blocks[:, 2:]) - 1, _half(blocks, 0))


def _q2_0(data: Bytes) -> Blocks:
    blocks = data.reshape(-1, 18)
    codes = blocks[:, 2:, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3
    return _long(codes.reshape(len(blocks), -1).astype(np.int32) - 1, _half(blocks, 0))


def _bits(packed: Bytes) -> Int32Array:
    """Bits along the last axis, the lowest of each byte first."""
    return np.unpackbits(packed, axis=-1, bitorder="little").astype(np.int32)


def _words(packed: Bytes, size: int) -> NDArray[np.int64]:
    """Little-endian words of ``size`` bytes along the last axis."""
    words: NDArray[np.int64] = np.ascontiguousarray(packed).view(f"<u{size}").astype(np.int64)
    return words


def _book(name: str) -> Int32Array:
    """The vectors of a codebook."""
    words = np.frombuffer(bytes.fromhex(BOOKS[name]), "<u2").astype(np.int32)
    width = 4 if name.startswith("IQ3") else 2
    places = words[:, None] >> np.arange(0, 16, width) & (1 << width) - 1
    vectors: Int32Array = np.array(VALUES[name], np.int32)[places]
    return vectors


def _signed(magnitudes: Int32Array, signs: Bytes) -> Int32Array:
    """``[blocks, vectors, elements]`` with the signs of as many bits a block."""
    bits = _bits(signs.reshape(len(signs), -1))
    return magnitudes.reshape(bits.shape) * (1 - 2 * bits)


def _even(seven: NDArray[np.int64]) -> Bytes:
    """Eight signs out of seven: the last makes the number of negative ones even."""
    signs = seven.astype(np.uint8)
    signs |= (np.bitwise_count(signs) & np.uint8(1)) << np.uint8(7)
    return signs


def _odd_scales(packed: Bytes) -> Int32Array:
    """Nibbles s as 2 s + 1."""
    return 2 * _fields(packed, 1, 4) + 1


def _of_block(scale: Float32Array, steps: NDArray[Any]) -> Float32Array:
    """A scale per block of 32 out of the file block's and its steps."""
    with np.errstate(invalid="ignore", over="ignore"):
        scaled: Float32Array = scale[:, None] * steps.astype(np.float32)
    return scaled


def _of_halves(steps: NDArray[Any]) -> Float32Array:
    return steps.astype(np.float32).reshape(-1, 2)


def _iq1_s(data: Bytes) -> Blocks:
    blocks = data.reshape(-1, 50)
    words = _words(blocks[:, 34:], 2)
    tops = words[:, :, None] >> np.arange(0, 12, 3) & 7
    values = _book("IQ1_S")[blocks[:, 2:34] | tops.reshape(len(blocks), -1) << 8]
    steps = 2 * (words >> 12 & 7) + 1
    # Codes are one above the book's values, so that what is added holds both that and the shift by an eighth.
    shift = steps * np.where(words >> 15, -1, 1)
    added = _of_block(_half(blocks, 0), shift * np.float32(0.125) - steps)
    return _long(values + 1, _of_block(_half(blocks, 0), steps), minimum=added.reshape(-1))


def _iq1_m(data: Bytes) -> Blocks:
    blocks = data.reshape(-1, 56)
    nibbles = _fields(blocks[:, 32:48], 1, 4)
    values = _book("IQ1_S")[blocks[:, :32] | (nibbles & 7) << 8]
    words = _words(blocks[:, 48:], 2)
    steps = 2 * (words[:, :, None] >> np.arange(0, 12, 3) & 7) + 1
    scale = ((words >> 12) << np.arange(0, 16, 4)).sum(axis=1).astype("<u2").view("<f2").astype(np.float32)
    shifted = 8 * values + np.where(nibbles & 8, -1, 1)[..., None]
    return _long(shifted, scale * np.float32(0.125), half_scales=_of_halves(steps))


def _iq2_xxs(data: Bytes) -> Blocks:
    blocks = data.reshape(-1, 66)
    parts = blocks[:, 2:].reshape(len(blocks), 8, 8)
    words = _words(parts[..., 4:], 4)
    signs = _even(words >> np.arange(0, 28, 7) & 127)
    values = _signed(_book("IQ2_XXS")[parts[..., :4].reshape(len(blocks), -1)], signs)
    return _long(values, _of_block(_half(blocks, 0) * np.float32(0.125), 2 * (words[..., 0] >> 28) + 1))


def _iq2_xs(data: Bytes) -> Blocks:
    blocks = data.reshape(-1, 74)
    words = _words(blocks[:, 2:66], 2)
    values = _signed(_book("IQ2_XS")[words & 511], _even(words >> 9))
    scale = _half(blocks, 0) * np.float32(0.125)
    return _long(values, scale, half_scales=_of_halves(_odd_scales(blocks[:, 66:])))


def _iq2_s(data: Bytes) -> Blocks:
    blocks = data.reshape(-1, 82)
    places = blocks[:, 2:34] | _fields(blocks[:, 66:74], 1, 2) << 8
    values = _signed(_book("IQ2_S")[places], blocks[:, 34:66])
    scale = _half(blocks, 0) * np.float32(0.125)
    return _long(values, scale, half_scales=_of_halves(_odd_scales(blocks[:, 74:])))


def _iq3_xxs(data: Bytes) -> Blocks:
    blocks = data.reshape(-1, 98)
    words = _words(blocks[:, 66:], 4)[..., None]
    signs = _even(words >> np.arange(0, 28, 7) & 127)
    values = _signed(_book("IQ3_XXS")[blocks[:, 2:66]], signs)
    return _long(values, _of_block(_half(blocks, 0) * np.float32(0.25), 2 * (words[..., 0] >> 28) + 1))


def _iq3_s(data: Bytes) -> Blocks:
    blocks = data.reshape(-1, 110)
    places = blocks[:, 2:66] | _bits(blocks[:, 66:74]) << 8
    values = _signed(_book("IQ3_S")[places], blocks[:, 74:106])
    return _long(values, _of_block(_half(blocks, 0), _odd_scales(blocks[:, 106:])))


_FLOATS: Final[dict[str, Callable[[Bytes], Float32Array]]] = {"F32": _from_f32, "F16": _from_f16, "BF16": _from_bf16}
_QUANTISED: Final[dict[str, Callable[[Bytes], Blocks]]] = {
    "Q8_0": _q8_0,
    "Q4_0": _short(18, 2, None, 8, minimum=False),
    "Q4_1": _short(20, 4, None, 0, minimum=True),
    "Q5_0": _short(22, 6, 2, 16, minimum=False),
    "Q5_1": _short(24, 8, 4, 0, minimum=True),
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_or_q5_k(144),
    "Q5_K": _q4_or_q5_k(176),
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
    "Q1_0": _q1_0,
    "Q2_0": _q2_0,
}
