"""The invariants of admission, scheduling and prefix reuse together, over more than ten thousand random histories."""

from __future__ import annotations

import pytest

from tests.engine.histories import random_history

SHORT, LONG = (900, 12), (100, 40)  # histories, events of each at most
PARTS = [*range(10), *(pytest.param(part, marks=pytest.mark.soak) for part in range(10, 300))]


@pytest.mark.parametrize("part", PARTS)
def test_random_histories(part: int) -> None:
    preemptions = 0
    for count, events in (SHORT, LONG):
        for seed in range(part * count, (part + 1) * count):
            try:
                preemptions += random_history(seed, events).admission.preemptions
            except AssertionError as error:
                raise AssertionError(f"random_history({seed}, {events}): {error}") from error
    assert preemptions > 100
