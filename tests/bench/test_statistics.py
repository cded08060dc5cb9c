from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.bench.statistics import paired_speedup, rotation, summarise

rates = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=30)


@given(rates)
def test_a_summary_keeps_every_sample_and_orders_its_three_figures(samples: list[float]) -> None:
    summary = summarise(samples)
    assert summary.samples == samples
    assert summary.minimum == min(samples)
    assert summary.maximum == max(samples)
    assert summary.median == statistics.median(samples)
    assert summary.minimum <= summary.median <= summary.maximum


def test_nothing_cannot_be_summed_up() -> None:
    with pytest.raises(ValueError, match="at least one"):
        summarise([])


@given(rates, st.floats(0.1, 10))
def test_speedup_is_above_one_where_ours_wins_whichever_way_the_metric_points(
    theirs: list[float], factor: float
) -> None:
    faster = [factor * rate for rate in theirs]
    for speedup in (
        paired_speedup(faster, theirs, higher_is_better=True),
        paired_speedup([1 / rate for rate in faster], [1 / rate for rate in theirs], higher_is_better=False),
    ):
        assert all(math.isclose(ratio, factor, rel_tol=1e-9) for ratio in speedup.samples)


def test_speedup_is_formed_within_a_round_not_between_medians() -> None:
    # The machine became half as fast in the second round; the ratio must not notice.
    assert paired_speedup([200, 100, 60], [100, 50, 30], higher_is_better=True).samples == [2, 2, 2]
    with pytest.raises(ValueError):
        paired_speedup([1, 2], [1], higher_is_better=True)


@given(st.integers(1, 8))
def test_over_a_full_turn_everyone_goes_first_and_last_once(count: int) -> None:
    orders = [rotation(count, index) for index in range(count)]
    assert all(sorted(order) == list(range(count)) for order in orders)
    assert sorted(order[0] for order in orders) == list(range(count))
    assert sorted(order[-1] for order in orders) == list(range(count))
