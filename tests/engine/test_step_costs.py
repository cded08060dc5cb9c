"""What is learnt from steps that ran."""

from __future__ import annotations

import pytest

from ultrafast.engine.step_costs import MINIMUM_PREFILL_ROWS, StepCosts


def test_prefill_chunks_follow_the_measured_speed() -> None:
    costs = StepCosts(512)
    costs.learn_prefill(100, 0.1)
    costs.learn_prefill(100, 10.0)
    slow = costs.prefill_rows_alone, costs.prefill_rows_beside_decode
    for _ in range(50):
        costs.learn_prefill(400, 0.1)
    fast = costs.prefill_rows_alone, costs.prefill_rows_beside_decode
    assert slow[0] < fast[0] <= costs.max_rows
    assert slow[1] < fast[1] <= fast[0]
    for _ in range(50):
        costs.learn_prefill(1, 10.0)
    assert costs.prefill_rows_beside_decode >= 1


def test_a_short_step_counts_its_decode_rows() -> None:
    costs = StepCosts(512)
    assert costs.prefill_rows_within(0.025, 0) == MINIMUM_PREFILL_ROWS, "before the first measurement"
    costs.learn_prefill(100, 0.1)
    assert costs.prefill_rows_within(0.025, 0) == 25
    assert costs.prefill_rows_within(0.025, 10) == 15
    assert costs.prefill_rows_within(0.025, 20) == MINIMUM_PREFILL_ROWS


def test_a_decode_step_is_known_by_its_rows() -> None:
    costs = StepCosts(4)
    assert costs.decode_seconds(1) == 0.0
    costs.learn_decode(1, 0.005)
    costs.learn_decode(4, 0.02)
    assert costs.decode_seconds(1) == 0.005
    for _ in range(100):
        costs.learn_decode(1, 0.008)
    assert costs.decode_seconds(1) == pytest.approx(0.008, rel=1e-3)
    assert costs.decode_seconds(4) == 0.02
