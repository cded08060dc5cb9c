"""Every kernel on every instruction set against its plain twin, odd tails and extreme blocks included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.quantised import FLOATS, KINDS, QUANTISED, random_weights, set_scales
from ultrafast import _native
from ultrafast.reference.dequantise import blocks_of, dequantise
from ultrafast.weights.source import Tensor

SETS = _native.instruction_sets()
F32 = NDArray[np.float32]


def plain_values(weight_type: str, data: NDArray[np.uint8], shape: tuple[int, int]) -> F32:
    return dequantise(Tensor("weights", weight_type, shape, data.size, data))


def plain_quantise(x: F32) -> tuple[NDArray[np.int8], F32, NDArray[np.int32]]:
    blocks = x.reshape(-1, 32)
    amax = np.abs(blocks).max(axis=1)
    usable = amax > np.float32(1e-30)
    inverse = np.divide(np.float32(127), amax, out=np.zeros_like(amax), where=usable)
    values = np.rint(np.clip(blocks * inverse[:, None], -127, 127)).astype(np.int8)
    scales = np.where(usable, amax / np.float32(127), np.float32(0)).astype(np.float32)
    return values.reshape(-1), scales, values.sum(axis=1, dtype=np.int32)


def plain_linear(weight_type: str, data: NDArray[np.uint8], rows: int, columns: int, x: F32) -> F32:
    """Exactness rules 1 and 2, step by step in float32."""
    out = np.zeros((len(x), rows), np.float32)
    if weight_type in FLOATS:
        weights = plain_values(weight_type, data, (rows, columns))
        for c in range(columns):
            out = out + weights[:, c] * x[:, c : c + 1]
        return out
    parts = blocks_of(weight_type, data)
    values = parts.values.reshape(rows, -1, 32)
    scales = parts.scale.reshape(rows, -1)
    minima = None if parts.minimum is None else parts.minimum.reshape(rows, -1)
    for r, row in enumerate(x):
        quants, row_scales, sums = plain_quantise(row)
        for b in range(columns // 32):
            block = quants[b * 32 : b * 32 + 32].astype(np.int32)
            dot = values[:, b] @ block
            weight = np.float32(1)
            if parts.half_scales is not None:
                halves = values[:, b].reshape(rows, 2, 16) * block.reshape(2, 16)
                scaled = halves.sum(axis=2).astype(np.float32) * parts.half_scales.reshape(rows, -1, 2)[:, b]
                dot = scaled[:, 0] + scaled[:, 1]
            out[r] = out[r] + (scales[:, b] * row_scales[b]) * dot.astype(np.float32)
            if minima is None:
                continue
            if parts.half_minima is not None:
                weight = parts.half_minima.reshape(rows, -1, 2)[:, b] @ block.reshape(2, 16).sum(axis=1)
                out[r] = out[r] + (minima[:, b] * row_scales[b]) * weight.astype(np.float32)
            else:
                out[r] = out[r] + minima[:, b] * (row_scales[b] * np.float32(sums[b]))
    return out


def whole_blocks(weight_type: str, columns: int) -> int:
    """``columns``, rounded up to what the type can store."""
    elements = KINDS[weight_type].block_elements
    return -(-columns // elements) * elements


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("weight_type", QUANTISED + FLOATS)
@pytest.mark.parametrize(
    ("rows", "columns", "count"), [(1, 32, 1), (33, 64, 2), (77, 96, 3), (32, 576, 7), (9, 160, 9)]
)
def test_linear(instruction_set: str, weight_type: str, rows: int, columns: int, count: int) -> None:
    random = np.random.default_rng(rows * columns + count)
    columns = columns + 5 if weight_type in FLOATS else whole_blocks(weight_type, columns)
    data = random_weights(random, rows, columns, weight_type, 0.5).reshape(-1)
    x = random.normal(0, 2, (count, columns)).astype(np.float32)
    found = _native.kernels.linear(instruction_set, weight_type, data, rows, columns, 0, x)
    assert found.tobytes() == plain_linear(weight_type, data, rows, columns, x).tobytes()


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("weight_type", QUANTISED)
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF, None])
@pytest.mark.parametrize("sign", [1, -1])
def test_extreme_blocks_do_not_saturate(instruction_set: str, weight_type: str, byte: int | None, sign: int) -> None:
    columns = whole_blocks(weight_type, 96)
    data = random_weights(np.random.default_rng(1), 40, columns, weight_type, 1.0)
    blocks = data.reshape(-1, KINDS[weight_type].block_bytes)
    if byte is not None:
        blocks[:] = byte
    set_scales(np.random.default_rng(2), blocks, weight_type, 0.02)
    x = np.full((5, columns), 3.0 * sign, np.float32)
    data = data.reshape(-1)
    found = _native.kernels.linear(instruction_set, weight_type, data, 40, columns, 0, x)
    assert found.tobytes() == plain_linear(weight_type, data, 40, columns, x).tobytes()


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("weight_type", QUANTISED + FLOATS)
def test_dequantise_and_rows_of_interleaved_heads(instruction_set: str, weight_type: str) -> None:
    columns = whole_blocks(weight_type, 64)
    data = random_weights(np.random.default_rng(3), 48, columns, weight_type, 1.0).reshape(-1)
    plain = plain_values(weight_type, data, (48, columns))
    straight = _native.kernels.dequantise(instruction_set, weight_type, data, 48, columns, 0)
    assert straight.tobytes() == plain.tobytes()
    halves = plain.reshape(2, 12, 2, columns).swapaxes(1, 2).reshape(48, columns)  # heads of 24: even rows, then odd
    found = _native.kernels.dequantise(instruction_set, weight_type, data, 48, columns, 24)
    assert found.tobytes() == halves.tobytes()


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("weight_type", ["MXFP4", "NVFP4"])
def test_every_scale_of_eight_bits(instruction_set: str, weight_type: str) -> None:
    kind = KINDS[weight_type]
    data = random_weights(np.random.default_rng(4), 256, kind.block_elements, weight_type, 1.0)
    data[:, : 1 if weight_type == "MXFP4" else 4] = np.arange(256, dtype=np.uint8)[:, None]
    found = _native.kernels.dequantise(instruction_set, weight_type, data.reshape(-1), 256, kind.block_elements, 0)
    assert found.tobytes() == plain_values(weight_type, data.reshape(-1), (256, kind.block_elements)).tobytes()


float_blocks = st.lists(
    st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from([0.0, -0.0, 1e-38, 1e-45, 3.4e38, 0.5, 127.5]),
    min_size=32,
    max_size=32,
)


@settings(max_examples=200, deadline=None)
@given(float_blocks)
def test_quantise(block: list[float]) -> None:
    x = np.array(block, np.float32)
    expected = plain_quantise(x)
    for instruction_set in SETS:
        for found, plain in zip(_native.kernels.quantise(instruction_set, x), expected, strict=True):
            assert found.tobytes() == plain.tobytes()


@pytest.mark.parametrize("n", [1, 7, 8, 15, 16, 31, 576, 577])
def test_rms_norm(n: int) -> None:
    random = np.random.default_rng(n)
    x, weight = (random.normal(0, 3, n).astype(np.float32) for _ in range(2))
    lanes = np.zeros(16, np.float32)
    for i, value in enumerate(x):
        lanes[i % 16] = lanes[i % 16] + value * value
    while len(lanes) > 4:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    mean = ((lanes[0] + lanes[2]) + (lanes[1] + lanes[3])) / np.float32(n)
    expected = x * (np.float32(1) / np.sqrt(mean + np.float32(1e-5))) * weight
    for instruction_set in SETS:
        found, finite = _native.kernels.rms_norm(instruction_set, x, weight, 1e-5)
        assert finite
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_rms_norm_reports_what_is_not_finite(value: float) -> None:
    x = np.ones(40, np.float32)
    x[37] = value  # 3e38 is finite, its square is not
    for instruction_set in SETS:
        assert not _native.kernels.rms_norm(instruction_set, x, np.ones(40, np.float32), 1e-5)[1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-90, 0, width=32), min_size=1, max_size=70))
def test_exp_sum(values: list[float]) -> None:
    x = np.array(values, np.float32)
    results = [_native.kernels.exp_sum(instruction_set, x, 0.25) for instruction_set in SETS]
    for found, total in results:
        exact = np.exp((x - np.float32(0.25)).astype(np.float64))
        np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-37)
        assert abs(total - exact.sum()) <= 2e-6 * exact.sum() + 1e-36
        assert found.tobytes() == results[0][0].tobytes()
        assert total == results[0][1]


@settings(max_examples=200, deadline=None)
@given(st.floats(2.0**-126, 2.0**127, width=32))
def test_log(x: float) -> None:
    results = [_native.kernels.log(instruction_set, x) for instruction_set in SETS]
    assert len(set(results)) == 1
    assert abs(results[0] - np.log(np.float64(np.float32(x)))) <= 3e-7 * max(1.0, abs(np.log(x)))


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_activate_multiply(activation: str) -> None:
    x = np.linspace(-200, 200, 6400, dtype=np.float32)
    up = np.full(6400, 2, np.float32)
    results = [_native.kernels.activate_multiply(instruction_set, activation, x, up) for instruction_set in SETS]
    wide = x.astype(np.float64)
    slope = 2 * np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3) if activation == "gelu" else wide
    np.testing.assert_allclose(results[0], 2 * wide / (1 + np.exp(-np.clip(slope, -700, 700))), rtol=1e-5, atol=1e-34)
    assert len({found.tobytes() for found in results}) == 1


def test_soft_cap() -> None:
    x = np.linspace(-500, 500, 6400, dtype=np.float32)
    results = [_native.kernels.soft_cap(instruction_set, x, 30.0) for instruction_set in SETS]
    np.testing.assert_allclose(results[0], 30 * np.tanh(x.astype(np.float64) / 30), atol=1e-5)
    for value in (np.nan, np.inf, -np.inf):
        bad = np.full(32, value, np.float32)
        assert all(np.isnan(_native.kernels.soft_cap(instruction_set, bad, 30.0)).all() for instruction_set in SETS)
    assert len({found.tobytes() for found in results}) == 1


def plain_philox(counter: int, output_index: int, choice: int, seed: int) -> list[int]:
    """Philox4x32-10 on Python's integers."""
    words, mask = [counter, output_index, choice, 0], 0xFFFFFFFF
    k0, k1 = seed & mask, seed >> 32
    for _ in range(10):
        first, second = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [(second >> 32) ^ words[1] ^ k0, second & mask, (first >> 32) ^ words[3] ^ k1, first & mask]
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return words


def test_philox_twin_gives_the_published_vector() -> None:
    """Known answer of Random123 for an all-zero counter and key."""
    assert plain_philox(0, 0, 0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 200_000), min_size=1, max_size=20),
)
def test_gumbel(seed: int, choice: int, output_index: int, ids: list[int]) -> None:
    expected = []
    for token in ids:
        word = plain_philox(token // 32 * 8 + token % 8, output_index, choice, seed)[token // 8 % 4]
        u = ((word >> 8) + 0.5) * 2.0**-24
        expected.append(-np.log(-np.log(u)))
    results = [_native.kernels.gumbel(instruction_set, seed, choice, output_index, 0, ids) for instruction_set in SETS]
    assert len({found.tobytes() for found in results}) == 1
    np.testing.assert_allclose(results[0], expected, rtol=2e-5, atol=2e-6)


def test_gumbel_of_the_whole_vocabulary_equals_that_of_its_tokens() -> None:
    ids = np.random.default_rng(0).permutation(1001).tolist()
    for instruction_set in SETS:
        whole = _native.kernels.gumbel(instruction_set, 9, 2, 5, 1001, [])
        assert whole[ids].tobytes() == _native.kernels.gumbel(instruction_set, 9, 2, 5, 0, ids).tobytes()
        assert np.isfinite(whole).all()


def test_half_to_float_for_every_bit_pattern() -> None:
    x = np.arange(65_536, dtype=np.uint16)
    expected = x.view(np.float16).astype(np.float32)
    number = ~np.isnan(expected)
    for instruction_set in SETS:
        found = _native.kernels.half_to_float(instruction_set, x)
        assert found[number].tobytes() == expected[number].tobytes()
        assert np.isnan(found[~number]).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-10, 10, width=16), min_size=1, max_size=100))
def test_arg_max_takes_the_lowest_of_equals(values: list[float]) -> None:
    x = np.array(values, np.float32)
    for instruction_set in SETS:
        assert _native.kernels.arg_max(instruction_set, x) == int(x.argmax())


def test_rates_are_of_work_that_is_done() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 64), np.float32)
    weights = random_weights(rng, 4096, 64, "Q4_1", 0.1).reshape(-1)
    query, keys = rng.standard_normal((4, 3, 64), np.float32), rng.standard_normal((8192, 64), np.float32)
    impossible = 1e13  # multiply-adds a second of one core; a loop that does nothing would seem to do more
    rate = _native.kernels.linear_rate(SETS[0], "Q4_1", weights, 4096, 64, x, 0.05)
    assert 0 < rate * 4096 * x.size < impossible
    rate = _native.kernels.attention_rate(SETS[0], query, keys, keys, 0.125, 0.05)
    assert 0 < rate * 2 * 8192 * query.size < impossible
    for seconds in (0.0, -1.0, 61.0, float("nan")):
        with pytest.raises(ValueError, match="seconds must be above 0"):
            _native.kernels.linear_rate(SETS[0], "Q4_1", weights, 4096, 64, x, seconds)
