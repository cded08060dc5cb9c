"""Sums over the ledger."""

from __future__ import annotations

import pytest

from tests.gateway.records.entries import entry
from ultrafast.errors import RequestError
from ultrafast.gateway.configuration import PriceSettings
from ultrafast.gateway.records import usage
from ultrafast.gateway.records.store import Records
from ultrafast.gateway.records.usage import UsageRow

DAY = 86400
NOON = 1_800_014_400.0 // DAY * DAY + DAY / 2


@pytest.fixture
def filled(records: Records) -> Records:
    team = records.create_project("team").id
    default = records.projects()[0].id
    records.record(entry(project=default, started=NOON))
    records.record(entry(project=default, started=NOON + DAY, tier_asked="ultrafast", tier_served="ultrafast"))
    records.record(entry(project=team, started=NOON + DAY, tier_asked="ultrafast", tier_served="default"))
    records.record(entry(project=team, started=NOON + DAY, tier_asked="fast", tier_served="fast", backend="remote"))
    records.record(entry(project=team, started=NOON + DAY, tier_asked="priority", tier_served="priority"))
    records.record(
        entry(
            project=team,
            started=NOON + 2 * DAY,
            tier_asked="ultrafast",
            tier_served=None,
            backend=None,
            status=403,
            outcome="tier_not_enabled",
            prompt_tokens=0,
            cached_tokens=0,
            completion_tokens=0,
        )
    )
    records.record(entry(project=team, started=NOON + 2 * DAY, outcome="cancelled", rejected_prediction_tokens=1))
    return records


def test_by_project(filled: Records) -> None:
    default, team = filled.usage(["project"])
    assert default == UsageRow(
        group={"project": "default"},
        currency="USD",
        requests=2,
        succeeded=2,
        prompt_tokens=200,
        cached_tokens=80,
        completion_tokens=20,
        cost_millionths=104 + 624,
        asked={"auto": 1, "ultrafast": 1},
        served={"default": 1, "ultrafast": 1},
    )
    assert (team.requests, team.succeeded, team.cancelled, team.failed) == (5, 3, 1, 1)
    assert team.asked == {"auto": 1, "priority": 2, "ultrafast": 2}  # fast is another word for priority
    assert team.served == {"default": 2, "priority": 2}
    assert team.cost_millionths == 104 + 2 * 208 + 108
    assert team.rejected_prediction_tokens == 1


def test_pruning(filled: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_PRUNED_AT_ONCE", 2)
    before = {row.group["day"]: row.requests for row in filled.usage(["day"])}
    first, *later = before
    assert filled.prune(NOON - DAY) == 0
    assert filled.prune(NOON + DAY / 2) == before[first]
    assert {row.group["day"]: row.requests for row in filled.usage(["day"])} == {day: before[day] for day in later}
    filled.record(entry(started=NOON))  # what is recorded just now is no exception
    assert filled.prune(NOON + 3 * DAY) == sum(before[day] for day in later) + 1 > 4
    assert filled.usage() == []


def test_by_everything_else(filled: Records) -> None:
    assert [row.group["tier"] for row in filled.usage(["tier"])] == ["", "default", "priority", "ultrafast"]
    assert {row.group["backend"]: row.requests for row in filled.usage(["backend"])} == {"": 1, "local": 5, "remote": 1}
    assert [(row.group["day"], row.requests) for row in filled.usage(["day"])] == [
        ("2027-01-15", 1),
        ("2027-01-16", 4),
        ("2027-01-17", 2),
    ]
    assert [row.group for row in filled.usage(["key", "model"])] == [{"key": "key_x", "model": "model"}]
    (everything,) = filled.usage([])
    assert (everything.group, everything.requests) == ({}, 7)


def test_from_when_to_when(filled: Records) -> None:
    assert filled.usage([], since=NOON + DAY)[0].requests == 6
    assert filled.usage([], until=NOON + DAY)[0].requests == 1
    assert filled.usage([], since=NOON + DAY, until=NOON + 2 * DAY)[0].requests == 4
    assert filled.usage([], since=NOON + 9 * DAY) == []


def test_currencies_are_not_added_up(filled: Records) -> None:
    filled.configure(PriceSettings(currency="EUR"), record_text=False)
    filled.record(entry())
    assert [(row.currency, row.requests) for row in filled.usage([])] == [("EUR", 1), ("USD", 7)]


def test_a_project_that_is_not_known_keeps_its_id(records: Records) -> None:
    records.record(entry(project="proj_gone"))
    assert records.usage(["project"])[0].group == {"project": "proj_gone"}


def test_a_request_that_was_not_understood_asked_for_no_tier(records: Records) -> None:
    records.record(entry(tier_asked="", tier_served=None, backend=None, status=400, outcome="invalid_value"))
    (row,) = records.usage([])
    assert (row.requests, row.failed, row.asked, row.served) == (1, 1, {}, {})


def test_a_dimension_that_is_named_twice(records: Records) -> None:
    with pytest.raises(RequestError, match="'by' names project twice"):
        records.usage(["project", "tier", "project"])


@pytest.mark.parametrize("by", [["nothing"], [""], ["project", "'; DROP TABLE ledger"]])
def test_unknown_dimensions(records: Records, by: list[str]) -> None:
    with pytest.raises(RequestError, match="'by' must be some of: project,key,model,tier,backend,day"):
        records.usage(by)
