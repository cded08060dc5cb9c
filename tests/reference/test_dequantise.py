"""Every tensor type to float32, against the gguf package and against extremes written by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf as gguf_package
import numpy as np
import pytest

from ultrafast.errors import UnsupportedModelError
from ultrafast.reference.dequantise import dequantise
from ultrafast.weights.gguf import TENSOR_TYPES
from ultrafast.weights.source import Tensor

CODES = gguf_package.GGMLQuantizationType
KINDS = {kind.name: kind for kind in TENSOR_TYPES.values()}


def stored(name: str, data: np.ndarray, columns: int) -> Tensor:
    raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
    kind = KINDS[name]
    elements = raw.size // kind.block_bytes * kind.block_elements
    return Tensor("t", name, (elements // columns, columns), raw.size, raw)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_random_blocks_equal_the_gguf_package(name: str) -> None:
    """Any bytes at all, NaN and infinite scales among them."""
    kind = KINDS[name]
    columns = 4 * max(kind.block_elements, 32)
    row_bytes = columns // kind.block_elements * kind.block_bytes
    raw = np.random.default_rng(7).integers(0, 256, (64, row_bytes), np.uint8)
    with np.errstate(all="ignore"):
        ours = dequantise(stored(name, raw, columns))
        theirs = PLAIN[name](raw) if name in PLAIN else gguf_package.quants.dequantize(raw, CODES[name])
    assert ours.dtype == np.float32
    assert ours.shape == (64, columns)
    if name == "IQ1_S":  # a product and a sum here, one product there: an infinite scale may give NaN
        ours = np.where(np.isfinite(ours), ours, np.nan)
        theirs = np.where(np.isfinite(theirs), theirs, np.nan)
    assert np.array_equal(ours, theirs.reshape(64, columns), equal_nan=True)


def plain_q1_0(raw: np.ndarray) -> np.ndarray:
    """The package knows only this type's size: a float16 scale, then 128 bits, set for the scale, else for minus it."""
    values = []
    for content in raw.reshape(-1, 18):
        scale = content[:2].view("<f2")[0].astype(np.float32)
        values += [scale if int(byte) >> bit & 1 else -scale for byte in content[2:] for bit in range(8)]
    return np.array(values, np.float32)


def plain_q2_0(raw: np.ndarray) -> np.ndarray:
    """Newer than the package: a float16 scale, then 64 codes of two bits, the lowest first, that stand for −1 to 2."""
    values = []
    for content in raw.reshape(-1, 18):
        scale = content[:2].view("<f2")[0].astype(np.float32)
        values += [np.float32((int(byte) >> bit & 3) - 1) * scale for byte in content[2:] for bit in (0, 2, 4, 6)]
    return np.array(values, np.float32)


PLAIN = {"Q1_0": plain_q1_0, "Q2_0": plain_q2_0}


def half(value: float) -> bytes:
    return np.float16(value).tobytes()


def block(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def test_blocks_written_by_hand() -> None:
    nibbles = bytes(0xF0 | index for index in range(16))  # elements 0..15 are 0..15, elements 16..31 are 15
    q4_0 = dequantise(stored("Q4_0", block(half(0.5) + nibbles), 32))[0]
    assert q4_0.tolist() == [(index - 8) / 2 for index in range(16)] + [3.5] * 16
    q4_1 = dequantise(stored("Q4_1", block(half(0.5) + half(-1) + nibbles), 32))[0]
    assert q4_1.tolist() == [index / 2 - 1 for index in range(16)] + [6.5] * 16
    q8_0 = dequantise(stored("Q8_0", block(half(2) + np.arange(-128, -96, dtype=np.int8).tobytes()), 32))[0]
    assert q8_0.tolist() == [2.0 * value for value in range(-128, -96)]
    assert dequantise(stored("BF16", block(b"\x80\x3f\x00\xc0"), 2)).tolist() == [[1.0, -2.0]]


def test_codebooks_are_those_of_the_gguf_package() -> None:
    """The engine's and the reference's: both files are what the script makes of the package."""
    done = subprocess.run(
        [sys.executable, "scripts/generate_codebooks.py", "--check"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_result_is_a_copy() -> None:
    values = np.ones(4, np.float32)
    result = dequantise(stored("F32", values, 4))
    result[0, 0] = 2
    assert values[0] == 1


def test_another_type_is_refused() -> None:
    with pytest.raises(UnsupportedModelError):
        dequantise(Tensor("t", "Q8_K", (1, 256), 292, np.zeros(292, np.uint8)))
