"""What was used, by whom and at which tier: sums over the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Integer, Row, case, cast, delete, func, select

from ultrafast.errors import RequestError
from ultrafast.gateway.records.database import Database, ledger, projects
from ultrafast.gateway.records.ledger import CANCELLED, SUCCEEDED
from ultrafast.gateway.tiers import TIERS, lane_of

UNSAID: Final = "auto"  # how a request that says nothing of its tier is counted
ASKED: Final = (UNSAID, *TIERS)

_DIMENSIONS: Final[dict[str, ColumnElement[Any]]] = {
    "project": func.coalesce(projects.c.name, ledger.c.project),
    "key": ledger.c.key_id,
    "model": ledger.c.model,
    "tier": case((ledger.c.tier_served == "fast", lane_of("fast")), else_=func.coalesce(ledger.c.tier_served, "")),
    "backend": func.coalesce(ledger.c.backend, ""),
    "day": func.date(ledger.c.started, "unixepoch"),  # UTC
}
DIMENSIONS: Final = tuple(_DIMENSIONS)
DEFAULT_DIMENSIONS: Final = ("project", "tier")


class UsageRow(msgspec.Struct):
    """Sums over the requests that have ``group`` and ``currency`` in common.

    ``asked`` and ``served`` count requests by tier; a refused request was served by none, and one that was not
    understood asked for none.
    """

    group: dict[str, str]
    currency: str
    requests: int = 0
    succeeded: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    cost_millionths: int = 0  # of the currency's unit
    asked: dict[str, int] = {}
    served: dict[str, int] = {}


_SUMS: Final = (
    "requests",
    "succeeded",
    "cancelled",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "accepted_prediction_tokens",
    "rejected_prediction_tokens",
    "cost_millionths",
)
_PRUNED_AT_ONCE: Final = 1000
_COLUMNS: Final = {"cost_millionths": ledger.c.cost}  # what is called otherwise there


def read_usage(
    database: Database, by: Sequence[str], since: float | None = None, until: float | None = None
) -> list[UsageRow]:
    """Usage by the dimensions ``by``, in their order, of requests that began from ``since`` on and before ``until``.

    Raises RequestError for a dimension that is unknown or named twice.
    """
    if not set(by) <= set(DIMENSIONS):
        raise RequestError(f"'by' must be some of: {','.join(DIMENSIONS)}", param="by")
    if twice := next((name for place, name in enumerate(by) if name in by[:place]), None):
        raise RequestError(f"'by' names {twice} twice", param="by")
    dimensions = [_DIMENSIONS[name].label(f"by_{name}") for name in by]
    keys = [*dimensions, ledger.c.currency, ledger.c.tier_asked, ledger.c.tier_served]
    query = select(*keys, *_sums()).select_from(ledger.outerjoin(projects, projects.c.id == ledger.c.project))
    if since is not None:
        query = query.where(ledger.c.started >= since)
    if until is not None:
        query = query.where(ledger.c.started < until)
    rows: dict[tuple[str, ...], UsageRow] = {}
    with database.reading() as connection:
        for part in connection.execute(query.group_by(*keys).order_by(*keys)):
            group = tuple(str(part[index]) for index in range(len(dimensions)))
            row = rows.get((*group, part.currency))
            if row is None:
                named = dict(zip(by, group, strict=True))
                row = rows[(*group, part.currency)] = UsageRow(named, part.currency, asked={}, served={})
            _add(row, part)
    return list(rows.values())


def prune(database: Database, before: float) -> int:
    """Delete what began before a time, for ever; how many requests that was.

    In short transactions: nobody who writes meanwhile waits for all of it.
    """
    oldest = select(ledger.c.number).where(ledger.c.started < before).order_by(ledger.c.started).limit(_PRUNED_AT_ONCE)
    total = 0
    while True:
        with database.writing() as connection:
            count = connection.execute(delete(ledger).where(ledger.c.number.in_(oldest))).rowcount
        total += count
        if count < _PRUNED_AT_ONCE:
            return total


def _sums() -> list[ColumnElement[Any]]:
    def count(condition: ColumnElement[bool]) -> ColumnElement[int]:
        return cast(func.sum(case((condition, 1), else_=0)), Integer)

    counts: dict[str, ColumnElement[int]] = {
        "requests": func.count(),
        "succeeded": count(ledger.c.outcome == SUCCEEDED),
        "cancelled": count(ledger.c.outcome == CANCELLED),
    }
    columns = {name: _COLUMNS.get(name, ledger.c.get(name)) for name in _SUMS}
    return [(counts[name] if name in counts else func.sum(columns[name])).label(name) for name in _SUMS]


def _add(row: UsageRow, part: Row[Any]) -> None:
    for name in _SUMS:
        setattr(row, name, getattr(row, name) + getattr(part, name))
    row.failed = row.requests - row.succeeded - row.cancelled
    if part.tier_asked != "":
        asked = UNSAID if part.tier_asked is None else lane_of(part.tier_asked)
        row.asked[asked] = row.asked.get(asked, 0) + part.requests
    if part.tier_served is not None:
        served = lane_of(part.tier_served)
        row.served[served] = row.served.get(served, 0) + part.requests
