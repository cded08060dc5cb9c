"""Capacity that is set at run time."""

from __future__ import annotations

from pathlib import Path

import pytest

from ultrafast.errors import RequestError
from ultrafast.gateway.records.limits import MAXIMUM_SLOTS
from ultrafast.gateway.records.store import Records


def test_what_is_set_is_told_and_outlives_the_process(records: Records, directory: Path) -> None:
    told: list[tuple[str, int | None]] = []
    records.on_capacity(lambda tier, slots: told.append((tier, slots)))
    assert records.capacity() == {}
    records.set_capacity("ultrafast", 3)
    records.set_capacity("flex", 0)
    records.set_capacity("ultrafast", MAXIMUM_SLOTS)
    assert records.capacity() == {"ultrafast": MAXIMUM_SLOTS, "flex": 0}
    records.set_capacity("flex", None)
    records.set_capacity("flex", None)
    assert told == [("ultrafast", 3), ("flex", 0), ("ultrafast", MAXIMUM_SLOTS), ("flex", None), ("flex", None)]
    records.capacity()["priority"] = 1  # a copy
    records.close()
    with Records.open(directory) as again:
        assert again.capacity() == {"ultrafast": MAXIMUM_SLOTS}


@pytest.mark.parametrize(
    ("tier", "slots"), [("fast", 1), ("gold", 1), ("", 1), ("flex", -1), ("flex", MAXIMUM_SLOTS + 1)]
)
def test_what_cannot_be_set(records: Records, tier: str, slots: int) -> None:
    with pytest.raises(RequestError):
        records.set_capacity(tier, slots)
    assert records.capacity() == {}
