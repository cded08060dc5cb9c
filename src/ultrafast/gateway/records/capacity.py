"""Slots that an operator set at run time, in the place of the configured ones."""

from __future__ import annotations

import threading

from sqlalchemy import delete, select
from sqlalchemy.dialects.sqlite import insert

from ultrafast.errors import RequestError
from ultrafast.gateway.records.database import Database, capacity
from ultrafast.gateway.records.limits import MAXIMUM_SLOTS
from ultrafast.gateway.records.subscribers import Subscribers
from ultrafast.gateway.tiers import TIERS


class CapacityOverrides:
    """Slots by tier; a tier that is not named has what is configured."""

    def __init__(self, database: Database) -> None:
        self.changed: Subscribers[str, int | None] = Subscribers()
        self._database = database
        self._changing = threading.Lock()
        with database.reading() as connection:
            self._slots: dict[str, int] = {row.tier: row.slots for row in connection.execute(select(capacity))}

    def slots(self) -> dict[str, int]:
        """All of them."""
        return dict(self._slots)

    def set(self, tier: str, slots: int | None) -> None:
        """Give a tier so many slots; with None it has what is configured again. Raises RequestError."""
        if tier not in TIERS:
            raise RequestError(f"a tier must be one of: {', '.join(TIERS)}", param="tier")
        if slots is not None and not 0 <= slots <= MAXIMUM_SLOTS:
            raise RequestError(f"'slots' must be a whole number from 0 to {MAXIMUM_SLOTS}", param="slots")
        with self._changing:
            with self._database.writing() as connection:
                if slots is None:
                    connection.execute(delete(capacity).where(capacity.c.tier == tier))
                else:
                    row = insert(capacity).values(tier=tier, slots=slots)
                    connection.execute(row.on_conflict_do_update(index_elements=["tier"], set_={"slots": slots}))
            others = {name: number for name, number in self._slots.items() if name != tier}
            self._slots = others if slots is None else others | {tier: slots}
            self.changed.tell(tier, slots)
