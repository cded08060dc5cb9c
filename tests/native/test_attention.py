"""The attention kernel against a plain twin that takes one query at a time."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ultrafast import _native

SETS = _native.instruction_sets()
F32 = NDArray[np.float32]
CHUNK = 128


def fused(a: F32 | np.float32, b: F32, c: F32) -> F32:
    """One rounding: the product of two float32 is exact in an extended double."""
    return (np.asarray(a, np.longdouble) * b + c).astype(np.float32)


def exponential(x: F32, shift: np.float32) -> F32:
    """The kernel's own exponential, which has a test of its own."""
    return _native.kernels.exp_sum(SETS[0], np.ascontiguousarray(x), float(shift))[0]


def plain_fold(lanes: F32) -> np.float32:
    while len(lanes) > 4:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return np.float32((lanes[0] + lanes[2]) + (lanes[1] + lanes[3]))


def plain_query(query: F32, keys: F32, values: F32, begin: int, end: int, scale: np.float32) -> F32:
    """Exactness rule 6 for one query that sees positions [begin, end)."""
    output, maximum, total = np.zeros_like(query), np.float32(0), np.float32(0)
    for start in range(begin // CHUNK * CHUNK, end, CHUNK):
        first, last = max(begin, start), min(end, start + CHUNK)
        scores = np.zeros(last - first, np.float32)
        for d, part in enumerate(query):
            scores = fused(part, keys[first:last, d], scores)
        scores = scores * scale
        weights = exponential(scores, scores.max())
        lanes = np.zeros(16, np.float32)
        sums = np.zeros_like(query)
        for p, weight in zip(range(first, last), weights, strict=True):
            lanes[p % 16] = lanes[p % 16] + weight
            sums = fused(weight, values[p], sums)
        weight_sum = plain_fold(lanes)
        if first == begin:
            output, maximum, total = sums, scores.max(), weight_sum
            continue
        larger = max(maximum, scores.max())
        old, new = (exponential(np.array([m], np.float32), larger)[0] for m in (maximum, scores.max()))
        output, total, maximum = output * old + sums * new, total * old + weight_sum * new, larger
    return output / total


@pytest.mark.parametrize(
    ("rows", "heads", "size", "positions", "window"),
    [
        (1, 1, 64, 1, 0),
        (1, 3, 64, 300, 0),
        (2, 3, 64, 130, 0),
        (5, 1, 24, 131, 0),
        (8, 4, 32, 259, 0),
        (10, 3, 64, 133, 0),
        (32, 1, 16, 140, 0),
        (4, 2, 48, 150, 1),
        (7, 3, 40, 290, 5),
        (16, 2, 64, 400, 130),
        (3, 1, 256, 260, 200),
    ],
)
def test_attention(rows: int, heads: int, size: int, positions: int, window: int) -> None:
    random = np.random.default_rng(rows * positions + size)
    query = random.normal(0, 1, (rows, heads, size)).astype(np.float32)
    keys, values = (random.normal(0, 1, (positions, size)).astype(np.float32) for _ in range(2))
    scale = np.float32(size**-0.5)
    half_keys, half_values = (x.astype(np.float16).astype(np.float32) for x in (keys, values))
    expected = np.zeros_like(query)
    for r in range(rows):
        end = positions - rows + r + 1
        begin = max(0, end - window) if window else 0
        for h in range(heads):
            expected[r, h] = plain_query(query[r, h], half_keys, half_values, begin, end, scale)
    for instruction_set in SETS:
        found = _native.kernels.attention(instruction_set, query, keys, values, window, float(scale), 0.0)
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -3e38])
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_what_is_not_finite_shows_in_the_output(value: float, where: str) -> None:
    random = np.random.default_rng(2)
    query = random.normal(0, 1, (2, 1, 32)).astype(np.float32)
    keys, values = (random.normal(0, 1, (200, 32)).astype(np.float32) for _ in range(2))
    if where == "query":
        query[:] = value
    else:
        (keys if where == "key" else values)[70, :] = value  # beyond float16, so infinite in the cache
    for instruction_set in SETS:
        assert not np.isfinite(_native.kernels.attention(instruction_set, query, keys, values, 0, 1.0, 0.0)).any()


def test_a_later_row_that_is_not_finite_leaves_earlier_rows_alone() -> None:
    random = np.random.default_rng(1)
    query = random.normal(0, 1, (4, 2, 32)).astype(np.float32)
    keys, values = (random.normal(0, 1, (40, 32)).astype(np.float32) for _ in range(2))
    for instruction_set in SETS:
        good = _native.kernels.attention(instruction_set, query, keys, values, 0, 0.2, 0.0)
        bad_keys, bad_values = keys.copy(), values.copy()
        bad_keys[39], bad_values[39] = np.nan, np.inf
        bad = _native.kernels.attention(instruction_set, query, bad_keys, bad_values, 0, 0.2, 0.0)
        assert bad[:3].tobytes() == good[:3].tobytes()
        assert not np.isfinite(bad[3]).any()
