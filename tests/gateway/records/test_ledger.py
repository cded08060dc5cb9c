"""The ledger: every request, exactly once, without ever holding up serving."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.records.entries import entry
from ultrafast.gateway.configuration import PriceSettings
from ultrafast.gateway.records import ledger
from ultrafast.gateway.records.ledger import LedgerEntry
from ultrafast.gateway.records.store import Records

ROOT = Path(__file__).parents[3]


def rows(directory: Path, query: str = "SELECT * FROM ledger ORDER BY number") -> list[dict[str, Any]]:
    with closing(sqlite3.connect(directory / "ultrafast.db")) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(query)]


def test_everything_of_an_entry_is_kept(records: Records, directory: Path) -> None:
    full = LedgerEntry(
        request_id="req_1",
        started=1_800_000_000.25,
        project="proj_x",
        key_id="key_x",
        model="model",
        tier_asked="ultrafast",
        tier_served="default",
        backend="local",
        status=200,
        outcome="ok",
        finish_reason="length",
        prompt_tokens=100,
        cached_tokens=40,
        completion_tokens=10,
        accepted_prediction_tokens=6,
        rejected_prediction_tokens=5,
        queue_seconds=0.25,
        prefill_seconds=0.5,
        decode_seconds=1.5,
        ttft_seconds=0.75,
        total_seconds=2.25,
    )
    priced = records.record(full)
    assert (priced.cost, priced.currency) == (60 + 4 + 4 * (10 + 5), "USD")
    records.close()
    (row,) = rows(directory)
    assert row.pop("number") == 1
    assert row == {name: getattr(priced, name) for name in LedgerEntry.__struct_fields__}


def test_an_entry_is_on_disk_within_a_moment(records: Records, directory: Path) -> None:
    records.record(entry())
    deadline = time.monotonic() + 10
    while not rows(directory):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("values", "cost"),
    [
        ({}, 104),
        ({"tier_served": "ultrafast", "tier_asked": "ultrafast"}, 624),
        ({"tier_served": "fast", "tier_asked": "fast"}, 208),
        ({"tier_asked": "ultrafast", "tier_served": "default"}, 104),  # downgraded: the price of what was served
        ({"tier_served": "flex"}, 52),
        ({"outcome": "cancelled"}, 104),
        ({"outcome": "engine_error"}, 0),
        ({"outcome": "tier_at_capacity", "status": 429, "tier_served": None}, 0),
        ({"outcome": "ok", "tier_served": None}, 0),
    ],
)
def test_what_is_billed(records: Records, values: dict[str, Any], cost: int) -> None:
    assert records.record(entry(**values)).cost == cost


def test_texts_are_kept_only_where_that_was_chosen(records: Records, directory: Path) -> None:
    assert records.record(entry(prompt_text="secret", answer_text="answer")).prompt_text is None
    records.configure(PriceSettings(currency="EUR"), record_text=True)
    records.record(entry(prompt_text="kept", answer_text="answer"))
    records.close()
    assert [(row["prompt_text"], row["answer_text"]) for row in rows(directory)] == [(None, None), ("kept", "answer")]
    assert [row["currency"] for row in rows(directory)] == ["USD", "EUR"]
    assert b"secret" not in (directory / "ultrafast.db").read_bytes()


def test_ten_thousand_entries(records: Records, directory: Path) -> None:
    for number in range(10_000):
        records.record(entry(request_id=f"many_{number}", completion_tokens=number))
    (row,) = records.usage([])
    records.close()
    assert row.requests == 10_000
    assert row.completion_tokens == sum(range(10_000))
    assert [line["request_id"] for line in rows(directory)] == [f"many_{number}" for number in range(10_000)]


def test_no_request_is_billed_twice(records: Records) -> None:
    for _ in range(3):
        records.record(entry(request_id="again"))
        assert records.usage([])[0].requests == 1


def test_an_entry_that_no_file_could_hold_keeps_no_other_out(
    records: Records, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records.configure(PriceSettings(), record_text=True)
    for number in range(20):
        records.record(entry(request_id=f"req_{number}a"))
        records.record(entry(request_id=f"req_{number}b", model=None))
        records.record(entry(request_id=f"req_{number}c", prompt_tokens=2**63))
        records.record(entry(request_id=f"req_{number}d", answer_text="half \ud800"))
    assert records.usage([])[0].requests == 20
    assert caplog.text.count("cannot be written and is lost") == 60


def test_a_file_that_fails_beside_such_an_entry_loses_nothing(
    records: Records, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_RETRY_SECONDS", (0.05, 0.1))
    insert, calls = records._writer._insert, iter(range(1000))

    def fails_at_times(batch: list[LedgerEntry]) -> None:
        if next(calls) % 3 == 2:
            raise ledger.ConfigurationError("the disk is full")
        insert(batch)

    monkeypatch.setattr(records._writer, "_insert", fails_at_times)
    for number in range(20):
        records.record(entry(model=None if number == 7 else "model"))
    deadline = time.monotonic() + 30
    while not records._writer.flush(1):
        assert time.monotonic() < deadline
    assert records.usage([])[0].requests == 19
    assert caplog.text.count("is lost") == 1


def test_a_file_that_is_held_loses_nothing(
    records: Records, directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_RETRY_SECONDS", (0.05, 0.1))
    records.record(entry())
    assert records.usage([])[0].requests == 1
    caplog.set_level(logging.WARNING)
    holder = sqlite3.connect(directory / "ultrafast.db", isolation_level=None)
    with closing(holder):
        holder.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        for _ in range(500):
            records.record(entry())
        assert time.monotonic() - started < 4  # the file is waited for by the writer alone, for five seconds
        while "another program holds it" not in caplog.text:
            assert time.monotonic() - started < 60
            time.sleep(0.05)
        assert records.usage([])[0].requests == 1  # what is on disk can still be read
        holder.execute("ROLLBACK")
    while records.usage([])[0].requests < 501:
        assert time.monotonic() - started < 60
        time.sleep(0.05)
    assert caplog.text.count("the ledger cannot be written") == 1
    assert "the ledger is written again; 0 entries were lost" in caplog.text


FULL = """
import logging, resource, sys, time
from pathlib import Path
from tests.gateway.records.entries import entry
from ultrafast.gateway.records import ledger
from ultrafast.gateway.records.store import Records
logging.basicConfig(stream=sys.stdout, format="%(message)s")
ledger._RETRY_SECONDS = (0.05, 0.1)
with Records.open(Path(sys.argv[1])) as records:
    records.record(entry())
    assert records._writer.flush(10)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    for _ in range(2000):
        records.record(entry())
    assert not records._writer.flush(10)
    time.sleep(0.5)
    try:
        records.create_key("default")
    except Exception as error:
        print(type(error).__name__, error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    deadline = time.monotonic() + 20
    while not records._writer.flush(1):
        assert time.monotonic() < deadline
    print(records.usage([])[0].requests)
"""


def test_a_disk_that_fills_while_serving(directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(directory)], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert done.stderr == ""
    failed, refused, again, count = done.stdout.splitlines()
    assert failed.startswith("the ledger cannot be written; ")
    assert "the disk " in failed
    assert refused.startswith("ConfigurationError ")
    assert "the disk " in refused
    assert again == "the ledger is written again; 0 entries were lost"
    assert count == "2001"


def test_the_oldest_are_lost_where_too_many_wait(
    records: Records, directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "MAXIMUM_WAITING", 10)
    monkeypatch.setattr(ledger, "MAXIMUM_WAITING_LETTERS", 1000)
    monkeypatch.setattr(ledger, "_RETRY_SECONDS", (0.05, 0.1))
    caplog.set_level(logging.WARNING)
    records.configure(PriceSettings(), record_text=True)
    insert = records._writer._insert

    def refuse(batch: list[LedgerEntry]) -> None:
        raise ledger.ConfigurationError("no")

    monkeypatch.setattr(records._writer, "_insert", refuse)
    for number in range(25):
        records.record(entry(request_id=f"req_{number}", prompt_text="x" * 300))
    assert not records._writer.flush(10)
    for number in range(25, 30):
        records.record(entry(request_id=f"req_{number}", prompt_text="x" * 300))
    monkeypatch.setattr(records._writer, "_insert", insert)
    deadline = time.monotonic() + 20
    while not records._writer.flush(1):
        assert time.monotonic() < deadline
    records.close()
    kept = rows(directory)
    assert [row["request_id"] for row in kept][-10:] == [f"req_{number}" for number in range(20, 30)]
    assert sum(len(row["prompt_text"] or "") for row in kept[-10:]) <= 1000
    assert records._writer._waiting_letters == 0
    assert f"{30 - len(kept)} entries were lost" in caplog.text


def test_closing_writes_what_waits_and_is_safe_twice(directory: Path) -> None:
    records = Records.open(directory)
    for _ in range(1000):
        records.record(entry())
    records.close()
    records.close()
    assert len(rows(directory)) == 1000
