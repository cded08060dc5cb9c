"""Who runs and who waits. Pure: the caller brings the clock.

The order is that of the tiers, and of arrival within one; a sequence needs a slot and every block it can ever have, so
that it never lacks one later. Where the first in order lacks either, it takes them from running sequences of lower
tiers, the newest of the lowest first: those leave what they computed to the prefix cache and wait again, before the
others of their tier. Some slots may be reserved for ``ultrafast``, which uses the others too.

No flood of other tiers starves one for ever. Of the sequences that had no progress for as long as their tier's
patience, while none of their tier ran or in the middle of their prompt, the one that has waited the longest for its
tier is *overdue*. It goes before every tier, takes also from higher ones, and keeps its slot until its next token.
There is one at a time, so a crowd of them does not turn the order around. Where its tier does run, a sequence waits its
turn there.

Invariants, held by tests over random histories:
- nobody is admitted while someone of a higher tier, or earlier of its own, waits, except who is overdue;
- others than ``ultrafast`` never hold a reserved slot;
- nobody is preempted for one of its own tier, nor for one of a lower tier, except for who is overdue;
- between two preemptions of a sequence there is a token, so that preemption is always followed by progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ultrafast.engine.prefix_cache import PrefixCache, Tokens
from ultrafast.engine.sequence import Sequence
from ultrafast.engine.tiers import OVERDUE_INTERVAL_SECONDS, PATIENCE_SECONDS, TIER_NAMES, ULTRAFAST
from ultrafast.errors import CacheFullError


class Admission:
    """The queues, the running sequences, their slots and blocks."""

    def __init__(self, cache: PrefixCache, *, max_sequences: int, reserved_slots: int) -> None:
        self.cache = cache
        self.waiting: tuple[deque[Sequence], ...] = tuple(deque() for _ in TIER_NAMES)  # by rank, next first
        self.running: tuple[list[Sequence], ...] = tuple([] for _ in TIER_NAMES)  # by rank, as they were admitted
        self.running_ranks: list[int] = []  # those of which something runs, ascending
        self.waiting_count = 0
        self.running_count = 0
        self.preemptions = 0
        self.overdue: Sequence | None = None
        self._slots = list(range(max_sequences - 1, -1, -1))
        self._unreserved_slots = max_sequences - reserved_slots
        self._is_blocked = False  # the first in order could not be admitted, and nothing has changed since
        self.look_for_overdue_at = 0.0

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. Raises CacheFullError where even an empty cache could not hold it."""
        if not self.cache.holds(sequence.capacity):
            raise CacheFullError("the request needs more KV cache than there is")
        self.waiting[sequence.rank].append(sequence)
        self.waiting_count += 1
        self._is_blocked = False

    def admit(self, now: float) -> tuple[list[int], list[Sequence]]:
        """Let run who can; returns the slots taken from preempted sequences, then the admitted.

        To be called while somebody waits, and when it is time to look for who is overdue.
        """
        if now >= self.look_for_overdue_at:
            self.look_for_overdue_at = now + OVERDUE_INTERVAL_SECONDS
            self._find_overdue(now)
        if self._is_blocked:
            return [], []
        preempted: list[int] = []
        admitted: list[Sequence] = []
        if self.overdue is not None and self.overdue.reservation is None:
            self._try_admit(self.overdue, now, preempted, admitted)
        for queue in self.waiting:
            while queue:
                if not self._try_admit(queue[0], now, preempted, admitted):
                    self._is_blocked = True  # strictly in order: a small request never starves a large one
                    return preempted, admitted
        return preempted, admitted

    def has_progressed(self, sequence: Sequence) -> None:
        """Note that a sequence that had to progress has got a token: from now on it may be preempted again."""
        sequence.must_progress = False
        self._is_blocked = False
        if sequence is self.overdue:
            self.overdue = None

    def finish(self, sequence: Sequence, *, keep: bool) -> None:
        """Forget a sequence, waiting or running (ended or cancelled), and free what it holds at once.

        ``keep``: what it computed serves the next prompt that begins alike; else it must not be used.
        """
        if sequence.reservation is None:
            self.waiting[sequence.rank].remove(sequence)
            self.waiting_count -= 1
        else:
            self._give_back(sequence, sequence.tokens()[: sequence.computed] if keep else None)
        if sequence is self.overdue:
            self.overdue = None
        self._is_blocked = False

    def _find_overdue(self, now: float) -> None:
        if self.overdue is not None and self.overdue.reservation is not None:
            return
        self.overdue = None
        longest = 1.0
        for sequence in self._stuck():
            waited = (now - sequence.progressed) / PATIENCE_SECONDS[sequence.rank]
            if waited > longest:
                longest = waited
                self.overdue = sequence
        if self.overdue is not None:
            self.overdue.must_progress = True
            self._is_blocked = False

    def _stuck(self) -> Iterator[Sequence]:
        """Who may be starved by other tiers."""
        for queue, group in zip(self.waiting, self.running, strict=True):
            if not group:
                yield from queue
            for sequence in group:
                if sequence.computed < sequence.prefill_length:
                    yield sequence

    def _try_admit(self, sequence: Sequence, now: float, preempted: list[int], admitted: list[Sequence]) -> bool:
        reservation = None
        if self._has_slot(sequence, []):
            reservation = self.cache.reserve(sequence.prefill, sequence.capacity, sequence.salt)
        if reservation is None:
            victims = self._victims(sequence)
            if not victims:
                return False
            preempted += [self._preempt(victim) for victim in victims]
            reservation = self.cache.reserve(sequence.prefill, sequence.capacity, sequence.salt)
            assert reservation is not None
        self.waiting[sequence.rank].remove(sequence)
        self.waiting_count -= 1
        sequence.reservation = reservation
        sequence.computed = reservation.cached_tokens
        sequence.slot = self._slots.pop()
        sequence.admitted = sequence.progressed = now
        self.running[sequence.rank].append(sequence)
        self._count_running()
        admitted.append(sequence)
        return True

    def _has_slot(self, sequence: Sequence, without: list[Sequence]) -> bool:
        """Whether there would be a slot for ``sequence`` if those in ``without`` ran no more."""
        if sequence.rank != ULTRAFAST:
            others = self.running_count - len(self.running[ULTRAFAST])
            if others - sum(item.rank != ULTRAFAST for item in without) >= self._unreserved_slots:
                return False
        return len(self._slots) + len(without) > 0

    def _victims(self, sequence: Sequence) -> list[Sequence]:
        """Whom to preempt, in order, so that ``sequence`` can run; nobody where even all of them would not do."""
        takes_from_all = sequence is self.overdue and not self.running[sequence.rank]
        victims: list[Sequence] = []
        for rank in range(len(TIER_NAMES) - 1, -1 if takes_from_all else sequence.rank, -1):
            group = sorted(self.running[rank], key=_arrival)
            while group:
                victim = group.pop()
                if victim.must_progress:
                    continue
                victims.append(victim)
                released = [item.reservation for item in victims if item.reservation is not None]
                if self._has_slot(sequence, victims) and self.cache.could_reserve(
                    sequence.prefill, sequence.capacity, sequence.salt, released
                ):
                    return victims
        return []

    def _preempt(self, sequence: Sequence) -> int:
        """Make a running sequence wait again; returns the slot it had."""
        slot = sequence.slot
        tokens = sequence.tokens()
        self._give_back(sequence, tokens[: sequence.computed])
        sequence.prefill = tokens
        sequence.prefill_length = len(tokens)
        sequence.computed_before = max(sequence.computed, sequence.computed_before)
        sequence.computed = 0
        sequence.must_progress = True
        self.waiting[sequence.rank].appendleft(sequence)
        self.waiting_count += 1
        self.preemptions += 1
        return slot

    def _give_back(self, sequence: Sequence, tokens: Tokens | None) -> None:
        assert sequence.reservation is not None
        self.running[sequence.rank].remove(sequence)
        self._count_running()
        self._slots.append(sequence.slot)
        self.cache.release(sequence.reservation, tokens)
        sequence.slot = -1
        sequence.reservation = None

    def _count_running(self) -> None:
        self.running_ranks = [rank for rank, group in enumerate(self.running) if group]
        self.running_count = sum(map(len, self.running))


def _arrival(sequence: Sequence) -> float:
    return sequence.arrived
