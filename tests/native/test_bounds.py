"""An output layer in two parts: exact products of the same bits, and upper parts that bound them (bounds.h)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.quantised import random_weights
from ultrafast import _native

SETS = _native.instruction_sets()
F32 = NDArray[np.float32]
BLOCK_BYTES = 34


def blocks(codes: NDArray[np.int8], scales: NDArray[np.float16]) -> NDArray[np.uint8]:
    """Q8_0 as a file stores it; ``codes`` is [blocks, 32]."""
    out = np.empty((len(codes), BLOCK_BYTES), np.uint8)
    out[:, :2] = scales.reshape(-1, 1).view(np.uint8)
    out[:, 2:] = codes.view(np.uint8)
    return out.reshape(-1)


def residuals(codes: NDArray[np.int8]) -> NDArray[np.float64]:
    """What the lower parts add to the values that the upper parts stand for."""
    return (codes.astype(np.int64) + 128) % 8 - 3.5


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.sampled_from([1, 16, 33, 70]),
    columns=st.sampled_from([32, 64, 576]),
    count=st.integers(1, 9),
)
def test_exact_products_have_the_bits_of_q8_0(seed: int, rows: int, columns: int, count: int) -> None:
    chance = np.random.default_rng(seed)
    data = random_weights(chance, rows, columns, "Q8_0", 1.0).reshape(-1)
    x = chance.normal(size=(count, columns)).astype(np.float32)
    for instruction_set in SETS:
        expected = _native.kernels.linear(instruction_set, "Q8_0", data, rows, columns, 0, x)
        exact, *_ = _native.kernels.split_linear(instruction_set, data, rows, columns, x)
        assert exact.tobytes() == expected.tobytes()
        for one in range(count):
            alone, *_ = _native.kernels.split_linear(instruction_set, data, rows, columns, x[one : one + 1])
            assert alone.tobytes() == expected[one].tobytes()


@given(seed=st.integers(0, 2**32 - 1))
def test_a_row_is_looked_up_as_it_is_stored(seed: int) -> None:
    rows, columns = 40, 96
    data = random_weights(np.random.default_rng(seed), rows, columns, "Q8_0", 1.0).reshape(-1)
    for instruction_set in SETS:
        expected = _native.kernels.dequantise(instruction_set, "Q8_0", data, rows, columns, 0)
        assert (
            _native.kernels.dequantise(instruction_set, "Q8_0", data, rows, columns, 0, in_parts=True).tobytes()
            == expected.tobytes()
        )


def check_bounds(data: NDArray[np.uint8], rows: int, columns: int, x: F32) -> float:
    """Return how near the worst product comes to its bound; 1 is on it."""
    seen = []
    for instruction_set in SETS:
        exact, upper, slack, norms = _native.kernels.split_linear(instruction_set, data, rows, columns, x)
        seen.append((exact.tobytes(), upper.tobytes(), slack.tobytes(), norms.tobytes()))
        bound = slack.astype(np.float64) * norms.astype(np.float64)[:, None] + 1e-30
        distance = np.abs(exact.astype(np.float64) - upper.astype(np.float64))
        assert (distance <= bound).all()
    assert len(set(seen)) == 1, "instruction sets differ"
    return float((distance / bound).max())


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["normal", "extreme", "tiny", "huge", "negative scales"]),
    columns=st.sampled_from([32, 576, 2048]),
)
def test_no_product_is_further_off_than_its_bound(seed: int, kind: str, columns: int) -> None:
    chance = np.random.default_rng(seed)
    rows = 33
    shape = (rows * columns // 32, 32)
    codes = chance.integers(-128, 128, shape).astype(np.int8)
    scales = np.abs(chance.normal(size=len(codes))).astype(np.float16)
    x = chance.normal(size=(5, columns)).astype(np.float32)
    if kind == "extreme":
        codes = chance.choice(np.array([-128, -121, 127], np.int8), shape)
        x = np.sign(x)
    elif kind == "tiny":
        scales = np.full(len(codes), 6e-8, np.float16)
        x *= np.float32(1e-29)
    elif kind == "huge":
        scales = np.full(len(codes), 65504, np.float16)
        x *= np.float32(1e9)
    elif kind == "negative scales":
        scales = -scales
    check_bounds(blocks(codes, scales), rows, columns, x)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_bound_is_met_where_activations_follow_the_residuals(sign: int) -> None:
    """The worst case of Cauchy and Schwarz: no smaller slack would do."""
    columns = 576
    codes = np.random.default_rng(5).integers(-128, 128, (columns // 32, 32)).astype(np.int8)
    scales = np.full(len(codes), 0.01, np.float16)
    x = (sign * residuals(codes)).astype(np.float32).reshape(1, columns)
    assert 0.999 < check_bounds(blocks(codes, scales), 1, columns, x) <= 1


@pytest.mark.parametrize("scale", [np.inf, np.nan])
def test_a_scale_that_is_no_number_has_no_slack(scale: float) -> None:
    data = blocks(np.ones((2, 32), np.int8), np.array([1, scale], np.float16))
    _, _, slack, _ = _native.kernels.split_linear(SETS[0], data, 2, 32, np.ones((1, 32), np.float32))
    assert np.isfinite(slack).tolist() == [True, False]
