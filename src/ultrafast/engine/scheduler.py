"""What the next step computes. Pure: state in, plan out; the caller brings the clock and does the work.

Invariants, held by tests over random histories:
- a sequence is admitted, in order of arrival, only with a slot and every block it can ever need;
- each step, every running sequence past its prompt gets its row, so no prompt, however long, stalls a stream;
- the oldest prompt in progress gets at least one row of each step, so every admitted sequence progresses.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from ultrafast.engine.prefix_cache import PrefixCache, Reservation, Tokens
from ultrafast.errors import CacheFullError


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of one request, as far as scheduling goes."""

    prompt: Tokens
    max_tokens: int
    arrived: float
    tier: str = "default"
    admitted: float = 0.0
    slot: int = -1  # the native sequence number; -1 while waiting and after the end
    reservation: Reservation | None = None  # its blocks, as long as it has a slot
    computed: int = 0  # tokens whose keys and values are stored
    generated: int = 0  # tokens sampled; the newest is not computed yet

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt)

    @property
    def length(self) -> int:
        """Tokens known: prompt and generated."""
        return self.prompt_length + self.generated


class Work(NamedTuple):
    """``rows`` consecutive tokens of ``sequence``, from position ``start``; ``samples`` where a new token follows."""

    sequence: Sequence
    start: int
    rows: int
    samples: bool


@dataclass(slots=True)
class Plan:
    """One step: newly admitted sequences (to be bound first), then the work, decode rows leading."""

    admitted: list[Sequence]
    work: list[Work]


class Scheduler:
    """First come, first served; decode before prefill within a step."""

    def __init__(self, cache: PrefixCache, *, max_sequences: int, max_rows: int) -> None:
        if max_rows < 2 or max_sequences < 1:
            raise ValueError("a step needs room for a decode row and a prefill row")
        self.cache = cache
        # One row of a step always stays free for the oldest prompt in progress.
        self.max_sequences = min(max_sequences, max_rows - 1)
        self.max_rows = max_rows
        self.prefill_rows_alone = max_rows  # prefill rows of a step in which nothing decodes
        self.prefill_rows_beside_decode = max_rows
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._slots = list(range(self.max_sequences - 1, -1, -1))
        self._is_full = False  # the first in the queue found too few blocks, and none were given back since

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. Raises CacheFullError where even an empty cache could not hold it."""
        if not self.cache.holds(sequence.prompt_length + sequence.max_tokens):
            raise CacheFullError("the request needs more KV cache than there is")
        self.waiting.append(sequence)

    def schedule(self, now: float) -> Plan:
        """Admit what fits and choose the rows of the next step."""
        admitted = self._admit(now) if self.waiting else []
        work: list[Work] = []
        prefilling: list[Sequence] = []
        for sequence in self.running:
            if sequence.computed < sequence.prompt_length:
                prefilling.append(sequence)
            else:
                work.append(Work(sequence, sequence.computed, 1, True))
        if prefilling:
            budget = self.prefill_rows_beside_decode if work else self.prefill_rows_alone
            budget = max(1, min(budget, self.max_rows - len(work)))
            for sequence in prefilling:
                rows = min(budget, sequence.prompt_length - sequence.computed)
                end = sequence.computed + rows
                work.append(Work(sequence, sequence.computed, rows, end == sequence.prompt_length))
                budget -= rows
                if budget == 0:
                    break
        return Plan(admitted, work)

    def _admit(self, now: float) -> list[Sequence]:
        admitted: list[Sequence] = []
        while self.waiting and self._slots and not self._is_full:
            sequence = self.waiting[0]
            reservation = self.cache.reserve(sequence.prompt, sequence.prompt_length + sequence.max_tokens)
            if reservation is None:
                self._is_full = True
                break  # strictly in order: a small request never starves a large one
            self.waiting.popleft()
            sequence.reservation = reservation
            sequence.computed = reservation.cached_tokens
            sequence.slot = self._slots.pop()
            sequence.admitted = now
            self.running.append(sequence)
            admitted.append(sequence)
        return admitted

    def advance(self, work: Work, new_tokens: int) -> None:
        """Record that ``work`` was computed and gave ``new_tokens`` tokens."""
        work.sequence.computed += work.rows
        work.sequence.generated += new_tokens

    def finish(self, sequence: Sequence, tokens: Tokens | None) -> None:
        """Forget a sequence, waiting or running (ended or cancelled), and free what it holds at once.

        ``tokens``: those computed, for the next prompt that begins with them; ``None`` where they must not be used.
        """
        self._is_full = False
        if sequence.reservation is None:
            self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        self._slots.append(sequence.slot)
        self.cache.release(sequence.reservation, tokens)
        sequence.slot = -1
        sequence.reservation = None
