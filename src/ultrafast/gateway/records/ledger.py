"""The ledger: one line for every request, written by a thread so that serving never waits for a disk."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from itertools import islice
from typing import Any, Final

import msgspec
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DBAPIError

from ultrafast.errors import ConfigurationError
from ultrafast.gateway.records.database import Database, ledger

logger = logging.getLogger("ultrafast.gateway.records")

SUCCEEDED: Final = "ok"
CANCELLED: Final = "cancelled"

GATHER_SECONDS: Final = 0.1  # what comes within that is one transaction
MAXIMUM_WAITING: Final = 100_000  # entries kept while the file cannot be written
MAXIMUM_WAITING_LETTERS: Final = 64_000_000  # of prompts and answers among them
_BATCH: Final = 250  # entries a transaction: few enough to hold up no other thread
_RETRY_SECONDS: Final = (0.5, 30.0)
_REPORT_SECONDS: Final = 60.0
_LAST_FLUSH_SECONDS: Final = 10.0


class LedgerEntry(msgspec.Struct, frozen=True, gc=False):
    """One request. ``started`` is in Unix seconds; tiers are named as the request and the response named them.

    ``completion_tokens`` are those of the answer; rejected tokens of a prediction are separate, and billed as output.
    ``cost``, in millionths of ``currency``, is filled in when the entry is recorded.
    """

    request_id: str
    started: float
    project: str  # id
    key_id: str
    model: str
    tier_asked: str | None  # None: nothing was said; empty: the request was not understood so far
    tier_served: str | None  # None: it was refused
    backend: str | None
    status: int
    outcome: str  # "ok", "cancelled", or the code of the error that ended it
    finish_reason: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    queue_seconds: float | None = None
    prefill_seconds: float | None = None
    decode_seconds: float | None = None
    ttft_seconds: float | None = None
    total_seconds: float | None = None
    cost: int = 0
    currency: str = ""
    prompt_text: str | None = None
    answer_text: str | None = None

    def __repr__(self) -> str:
        return f"LedgerEntry({self.request_id!r})"  # never a text: it may end in a log


_COLUMNS: Final = LedgerEntry.__struct_fields__


class LedgerWriter:
    """Entries on their way to the file.

    What the file does not take is kept, up to a bound, and tried again: the oldest entries are lost first, texts before
    entries. An entry is never written twice.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[LedgerEntry] = deque()
        self._waiting_letters = 0
        self._recorded = 0  # entries ever
        self._settled = 0  # of them written, or lost
        self._lost = 0  # since the last report
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._closing = False
        self._failing = False
        self._reported = -_REPORT_SECONDS
        self._thread = threading.Thread(target=self._run, name="ultrafast-ledger", daemon=True)
        self._thread.start()

    def append(self, entry: LedgerEntry) -> None:
        """Record ``entry`` soon; waits for nothing."""
        with self._changed:
            letters = _letters(entry)
            if letters and self._waiting_letters + letters > MAXIMUM_WAITING_LETTERS:
                entry, letters = msgspec.structs.replace(entry, prompt_text=None, answer_text=None), 0
            if len(self._waiting) >= MAXIMUM_WAITING:
                self._waiting_letters -= _letters(self._waiting.popleft())
                self._settled += 1
                self._lost += 1
            self._waiting.append(entry)
            self._waiting_letters += letters
            self._recorded += 1
        self._wake.set()

    def flush(self, seconds: float) -> bool:
        """Wait, so long at most, until all that was recorded before is written; whether it is."""
        with self._changed:
            goal = self._recorded
            self._hurry.set()
            self._wake.set()
            return self._changed.wait_for(lambda: self._settled >= goal or self._failing, seconds) and not self._failing

    def close(self) -> None:
        """Write what waits, once more, and end; safe twice."""
        self._closing = True
        self._hurry.set()
        self._wake.set()
        self._thread.join(_LAST_FLUSH_SECONDS)
        with self._changed:
            left, self._recorded = len(self._waiting), self._settled
            self._waiting.clear()
        if left:
            logger.error("%d entries of the ledger could not be written and are lost", left)

    def _run(self) -> None:
        delay = _RETRY_SECONDS[0]
        while True:
            self._wake.wait()
            self._hurry.wait(GATHER_SECONDS)
            self._hurry.clear()
            self._wake.clear()
            closing = self._closing  # read before: what comes between the last write and the end would be lost
            written = self._write_waiting()
            if closing:
                return
            if written:
                delay = _RETRY_SECONDS[0]
            else:
                self._hurry.wait(delay)
                delay = min(2 * delay, _RETRY_SECONDS[1])
                self._wake.set()

    def _write_waiting(self) -> bool:
        """Write all that waits; False where the file does not take it."""
        singly = 0  # entries to be written each for itself
        while batch := self._take(1 if singly else _BATCH):
            singly = max(0, singly - 1)
            try:
                self._insert(batch)
            except ConfigurationError as error:
                self._put_back(batch)
                self._report(str(error))
                return False
            except Exception as error:
                if len(batch) > 1:  # one of them is nothing a file could hold, and must not keep the others out
                    self._put_back(batch)
                    singly = len(batch)
                    continue
                logger.error("an entry of the ledger cannot be written and is lost (%s)", _kind(error))
            self._settle(len(batch))
        if self._failing:
            self._failing = False
            logger.warning("the ledger is written again; %d entries were lost", self._lost)
            self._lost = 0
        return True

    def _take(self, count: int) -> list[LedgerEntry]:
        with self._changed:
            batch = list(islice(self._waiting, count))
            for _ in batch:
                self._waiting.popleft()
            self._waiting_letters -= sum(map(_letters, batch))
            return batch

    def _put_back(self, batch: list[LedgerEntry]) -> None:
        with self._changed:
            self._waiting.extendleft(reversed(batch))
            self._waiting_letters += sum(map(_letters, batch))

    def _settle(self, count: int) -> None:
        with self._changed:
            self._settled += count
            self._changed.notify_all()

    def _insert(self, batch: list[LedgerEntry]) -> None:
        rows = [_row(entry) for entry in batch]
        with self._database.writing() as connection:
            # A commit that seemed to fail may have been made: what is there already is not written again.
            connection.execute(insert(ledger).on_conflict_do_nothing(index_elements=["request_id"]), rows)

    def _report(self, reason: str) -> None:
        with self._changed:
            self._failing = True
            self._changed.notify_all()
        now = time.monotonic()
        if now - self._reported < _REPORT_SECONDS:
            return
        self._reported = now
        logger.error("the ledger cannot be written; %d entries wait in memory: %s", len(self._waiting), reason)


def _row(entry: LedgerEntry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in _COLUMNS}


def _letters(entry: LedgerEntry) -> int:
    return len(entry.prompt_text or "") + len(entry.answer_text or "")


def _kind(error: Exception) -> str:
    """The error without its text, which may repeat a value."""
    return type(error.orig if isinstance(error, DBAPIError) else error).__name__
