"""What the next step computes. Pure: state in, plan out; the caller brings the clock and does the work.

``admission`` decides who runs; here is decided whose rows a step has. Tiers share steps, decode rows first and prefill
in chunks, except where a higher tier would suffer:

- While ``ultrafast`` or ``priority`` decodes, the tiers below ride along only as often as an account of time allows:
  what their step and the one after it took beyond the same steps without them is a debt, and a share of all time pays
  for it. They ride when nothing is owed, or when they have not ridden for ``STALL_SECONDS``.
- While an ``ultrafast`` prompt is computed, the tiers below ride only to that last rule.
- While ``ultrafast`` runs, or slots are reserved for it, steps with a chunk of another tier's prompt are short: whoever
  arrives does not wait long. Where such a step has less room for a prompt than twice its decode rows, the two take
  turns: a prompt that gets the crumbs of every step comes to its first token too late.

Invariants, held by tests over random histories:
- running sequences past their prompt have a row each at least every ``STALL_SECONDS`` and a step;
- a step that takes a tier along has all decode rows of it and of every higher one, and where their prompts are in
  progress, at least one row of one of them, in tier order; of two that take turns, one of the two;
- a prompt that is overdue gets a quarter of the chunk before all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ultrafast.engine.admission import Admission
from ultrafast.engine.prefix_cache import PrefixCache
from ultrafast.engine.sequence import Sequence
from ultrafast.engine.step_costs import MINIMUM_PREFILL_ROWS, StepCosts
from ultrafast.engine.tiers import SLOWDOWN_SHARES, STALL_SECONDS, TIER_NAMES, ULTRAFAST

SHORT_STEP_SECONDS = 0.025  # that an arriving ultrafast request may wait for
PREFILL_SECONDS_BEFORE_OTHERS = 0.4  # of an ultrafast prompt; with STALL_SECONDS and a step it stays below a second
_PREFILL_TURNS = 2  # to one of decode rows
_OVERDUE_PART = 4  # one in so many rows of a chunk is for the prompt that is overdue


class Work(NamedTuple):
    """``rows`` consecutive tokens of ``sequence``, from position ``start``; ``samples`` where a new token follows."""

    sequence: Sequence
    start: int
    rows: int
    samples: bool


@dataclass(slots=True)
class Plan:
    """One step: slots to release, then sequences to bind, then the work, decode rows leading."""

    preempted_slots: list[int]
    admitted: list[Sequence]
    work: list[Work]
    decode_rows: int
    lowest_rank: int  # of the tiers that take part


class Scheduler:
    """Chooses the rows of each step, and learns from every one what the next may cost."""

    def __init__(self, cache: PrefixCache, *, max_sequences: int, max_rows: int, reserved_slots: int = 0) -> None:
        if max_rows < 2 or max_sequences < 1:
            raise ValueError("a step needs room for a decode row and a prefill row")
        # One row of a step always stays free for the first prompt in progress.
        self.max_sequences = min(max_sequences, max_rows - 1)
        self.max_rows = max_rows
        if not 0 <= reserved_slots < self.max_sequences:
            raise ValueError("reserving slots must leave one for others")
        self.admission = Admission(cache, max_sequences=self.max_sequences, reserved_slots=reserved_slots)
        self.costs = StepCosts(max_rows)
        self._reserves = reserved_slots > 0
        self._debts = [0.0] * len(TIER_NAMES)  # by rank: seconds by which lower tiers slowed it beyond their share
        self._lowest_before = -1  # tier that took part in the step before
        # By rank: when its decode rows, or its prompts if it has no such rows, last took part, or when it began to run.
        self._rode = [0.0] * len(TIER_NAMES)
        self._prefill_turns = 0  # since the last one of decode rows

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return self.admission.running_count + self.admission.waiting_count > 0

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. Raises CacheFullError where even an empty cache could not hold it."""
        self.admission.add(sequence)

    def schedule(self, now: float) -> Plan:
        """Admit what fits and choose the rows of the next step."""
        admission = self.admission
        preempted: list[int] = []
        admitted: list[Sequence] = []
        if admission.waiting_count or now >= admission.look_for_overdue_at:
            preempted, admitted = self._admit(now)
        ranks = admission.running_ranks
        if len(ranks) > 1:
            ranks = self._riding_ranks(now)
        work: list[Work] = []
        prefilling: list[Sequence] = []
        for rank in ranks:
            for sequence in admission.running[rank]:
                if sequence.computed < sequence.prefill_length:
                    prefilling.append(sequence)
                else:
                    work.append(Work(sequence, sequence.computed, 1, True))
        waiting_rank = self._take_turns(work, prefilling, now) if work and prefilling else len(TIER_NAMES)
        for rank in ranks:
            if rank < waiting_rank or not any(item.sequence.rank == rank for item in work):
                self._rode[rank] = now
        if waiting_rank < len(TIER_NAMES):
            work = [item for item in work if item.sequence.rank < waiting_rank]
        for item in work:
            item.sequence.progressed = now
        decode_rows = len(work)
        if prefilling:
            self._add_prefill(work, prefilling, now)
        return Plan(preempted, admitted, work, decode_rows, ranks[-1] if ranks else -1)

    def observe(self, plan: Plan, seconds: float) -> None:
        """Learn from a step that took so long, until the next could begin."""
        work = plan.work
        rows = plan.decode_rows
        # Whoever rode along has left the caches to the next step as he needed them: that one counts as his, too.
        lowest = max(plan.lowest_rank, self._lowest_before)
        self._lowest_before = plan.lowest_rank
        if rows == len(work):
            if lowest == plan.lowest_rank:
                self.costs.learn_decode(rows, seconds)
        else:
            rows += sum(item.rows for item in work[rows:])
            if rows - len(work) >= MINIMUM_PREFILL_ROWS - 1:
                self.costs.learn_prefill(rows, seconds)
        if len(self.admission.running_ranks) > 1:
            self._settle(plan, lowest, seconds)

    def advance(self, work: Work, new_tokens: list[int]) -> None:
        """Record that ``work`` was computed and gave ``new_tokens``."""
        sequence = work.sequence
        sequence.computed += work.rows
        if new_tokens:
            sequence.output += new_tokens
            if sequence.must_progress:
                self.admission.has_progressed(sequence)

    def finish(self, sequence: Sequence, *, keep: bool) -> None:
        """Forget a sequence, waiting or running (ended or cancelled), and free what it holds at once.

        ``keep``: what it computed serves the next prompt that begins alike; else it must not be used.
        """
        self.admission.finish(sequence, keep=keep)

    def _admit(self, now: float) -> tuple[list[int], list[Sequence]]:
        preempted, admitted = self.admission.admit(now)
        for sequence in admitted:
            if self.admission.running[sequence.rank][0] is sequence:
                self._rode[sequence.rank] = now
                self._debts[sequence.rank] = 0.0
        return preempted, admitted

    def _riding_ranks(self, now: float) -> list[int]:
        """The tiers that take part in this step: some, and every running one above them."""
        ranks = self.admission.running_ranks
        count = 0
        is_held_back = False
        for index, rank in enumerate(ranks):
            if is_held_back and now - self._rode[rank] < STALL_SECONDS:
                continue
            count = index + 1
            is_prefill_of_ultrafast = rank == ULTRAFAST and _any_prefill(self.admission.running[rank])
            is_held_back = is_held_back or is_prefill_of_ultrafast or self._debts[rank] > 0.0
        return ranks[:count]

    @property
    def _steps_can_be_short(self) -> bool:
        """Whether a short step holds anything: reading a large model once may take longer, whatever the rows."""
        return self.costs.rows_within(SHORT_STEP_SECONDS) >= MINIMUM_PREFILL_ROWS

    def _take_turns(self, work: list[Work], prefilling: list[Sequence], now: float) -> int:
        """Leave to this step the prompts or the decode rows, where a short one has too little room for both.

        Returns from which rank on the decode rows wait; nobody does where it is beyond the last.
        """
        nobody = len(TIER_NAMES)
        rank = prefilling[0].rank
        if rank == ULTRAFAST or not self._reserves or self.admission.running[ULTRAFAST]:
            return nobody
        rows = sum(item.sequence.rank >= rank for item in work)
        room = self.costs.prefill_rows_within(SHORT_STEP_SECONDS, len(work))
        if not self._steps_can_be_short or room >= rows * _PREFILL_TURNS:
            return nobody
        may_wait = all(now - self._rode[item.sequence.rank] < STALL_SECONDS for item in work)
        if may_wait and self._prefill_turns < _PREFILL_TURNS:
            self._prefill_turns += 1
            return rank
        self._prefill_turns = 0
        prefilling.clear()
        return nobody

    def _settle(self, plan: Plan, lowest: int, seconds: float) -> None:
        """Charge to the tiers down to ``lowest`` by what they slowed higher ones, and pay from the time that passed."""
        for rank, share in SLOWDOWN_SHARES.items():
            if self.admission.running[rank]:
                debt = self._debts[rank] - share * seconds
                if lowest > rank:
                    debt += self._slowdown(plan, rank, seconds)
                # What is owed for longer than anybody may stall has no meaning.
                self._debts[rank] = min(max(debt, 0.0), share * STALL_SECONDS)

    def _add_prefill(self, work: list[Work], prefilling: list[Sequence], now: float) -> None:
        """Append chunks of prompts: that of the overdue one, then the others in order, as far as the rows go."""
        decode_rows = len(work)
        budget = max(1, min(self._chunk_rows(prefilling[0], decode_rows), self.max_rows - decode_rows))
        overdue = self.admission.overdue
        if overdue is not None and len(prefilling) > 1 and overdue in prefilling:
            prefilling.remove(overdue)
            budget -= _add_chunk(work, overdue, max(1, budget // _OVERDUE_PART), now)
        for sequence in prefilling:
            if budget == 0:
                break
            budget -= _add_chunk(work, sequence, budget, now)

    def _chunk_rows(self, first: Sequence, decode_rows: int) -> int:
        if first.rank != ULTRAFAST and (self._reserves or self.admission.running[ULTRAFAST]):
            rows = self.costs.prefill_rows_within(SHORT_STEP_SECONDS, decode_rows)
            return rows if self._steps_can_be_short else max(rows, decode_rows)
        if first.rank == ULTRAFAST and not decode_rows and self.admission.running_count > 1:
            return self.costs.prefill_rows_within(PREFILL_SECONDS_BEFORE_OTHERS, 0)
        return self.costs.prefill_rows_beside_decode if decode_rows else self.costs.prefill_rows_alone

    def _slowdown(self, plan: Plan, rank: int, seconds: float) -> float:
        """By how much the tiers below ``rank``, in it or just before, prolonged a step in which it decoded."""
        rows = sum(work.sequence.rank <= rank for work in plan.work[: plan.decode_rows])
        if any(work.sequence.rank <= rank for work in plan.work[plan.decode_rows :]):
            return 0.0  # its own prefill took most of the step
        # A step that was never seen without them counts whole, so that it will be.
        return seconds - self.costs.decode_seconds(rows) if rows else 0.0


def _any_prefill(group: list[Sequence]) -> bool:
    return any(sequence.computed < sequence.prefill_length for sequence in group)


def _add_chunk(work: list[Work], sequence: Sequence, budget: int, now: float) -> int:
    """Append at most ``budget`` rows of a prompt; returns how many."""
    rows = min(budget, sequence.prefill_length - sequence.computed)
    sequence.progressed = now
    work.append(Work(sequence, sequence.computed, rows, sequence.computed + rows == sequence.prefill_length))
    return rows
