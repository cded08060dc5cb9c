"""Drives a scheduler as the engine does, over a fake model whose memory tells what every entry was computed from.

An entry of the fake cache is a hash of the salt and of all tokens up to its own, made from the entry before it: a row
that reads what another sequence, another salt or nobody has written is seen at once, and so is a token that was
skipped or fed twice. The next token is a function of the newest entry and of the request.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from ultrafast.engine.kv_cache import BlockPool
from ultrafast.engine.prefix_cache import PrefixCache
from ultrafast.engine.scheduler import Plan, Scheduler, Work
from ultrafast.engine.sequence import Sequence
from ultrafast.engine.tiers import (
    OVERDUE_INTERVAL_SECONDS,
    PATIENCE_SECONDS,
    STALL_SECONDS,
    TIER_RANKS,
    ULTRAFAST,
)
from ultrafast.errors import CacheFullError

BLOCK_TOKENS = 4
VOCABULARY = 3
Tier = str


def after(entry: int, token: int) -> int:
    return (entry * 1_000_003 ^ (token + 1) * 0x9E37_79B1) & 0xFFFF_FFFF


def salted(salt: str) -> int:
    return after(7, sum(map(ord, salt)))


@dataclass(eq=False)
class Story:
    """What the world knows of a sequence without asking the scheduler."""

    seed: int
    entries: list[int]  # of all its tokens
    said: list[int] = field(default_factory=list)
    last_row: float = -1.0
    longest_wait: float = 0.0
    preempted_at: int = -1  # tokens it had said

    def next_token(self, entry: int) -> int:
        return (entry >> 7 ^ self.seed * len(self.said)) % VOCABULARY


class World:
    """A scheduler, its fake model and a clock; every step is checked."""

    def __init__(
        self,
        *,
        blocks: int,
        max_sequences: int,
        max_rows: int,
        reserved_slots: int = 0,
        seconds_per_step: float = 0.0046,
        seconds_per_row: float = 0.0009,
    ) -> None:
        self.pool = BlockPool(blocks, BLOCK_TOKENS)
        self.cache = PrefixCache(self.pool)
        self.scheduler = Scheduler(
            self.cache, max_sequences=max_sequences, max_rows=max_rows, reserved_slots=reserved_slots
        )
        self.admission = self.scheduler.admission
        self.others = self.scheduler.max_sequences - reserved_slots
        self.seconds_per_step, self.seconds_per_row = seconds_per_step, seconds_per_row
        self.time = 0.0
        self.memory = [[0] * BLOCK_TOKENS for _ in range(blocks)]
        self.bound: dict[int, tuple[Sequence, int]] = {}  # slot → its sequence and how many entries it has
        self.stories: dict[Sequence, Story] = {}
        self.ended: dict[Sequence, str] = {}
        self.rode = [0.0] * 4
        self.last_step_seconds = 0.0
        self.recent_step_seconds = deque([0.0], maxlen=4)
        self.served_overdue = 0.0
        self.ran = [0.0] * 4

    # What happens.

    def arrive(
        self, tier: Tier, prompt: list[int], max_tokens: int, *, salt: str = "", seed: int = 0
    ) -> Sequence | None:
        sequence = Sequence(np.array(prompt, np.int32), max_tokens, self.time, tier, salt)
        try:
            self.scheduler.add(sequence)
        except CacheFullError:
            assert len(prompt) + max_tokens > self.pool.block_count * BLOCK_TOKENS
            return None
        entries = [salted(salt)]
        for token in prompt:
            entries.append(after(entries[-1], token))
        self.stories[sequence] = Story(seed, entries[1:], last_row=self.time)
        return sequence

    def end(self, sequence: Sequence, how: str) -> None:
        assert sequence not in self.ended
        self.ended[sequence] = how
        if sequence.slot >= 0:
            assert self.bound.pop(sequence.slot)[0] is sequence
        self.scheduler.finish(sequence, keep=how != "failure")
        assert sequence.output == self.stories[sequence].said == self.undisturbed(sequence)

    def undisturbed(self, sequence: Sequence) -> list[int]:
        """What it says where nobody else ever runs."""
        story = Story(self.stories[sequence].seed, [])
        entry = salted(sequence.salt)
        for token in sequence.prompt.tolist():
            entry = after(entry, token)
        while len(story.said) < len(sequence.output):
            story.said.append(story.next_token(entry))
            entry = after(entry, story.said[-1])
        return story.said

    @property
    def running(self) -> list[Sequence]:
        return [sequence for group in self.admission.running for sequence in group]

    @property
    def waiting(self) -> list[Sequence]:
        return [sequence for queue in self.admission.waiting for sequence in queue]

    def step(self) -> Plan:
        before = {sequence: sequence.must_progress for sequence in self.running}
        ended = len(self.ended)
        plan = self.scheduler.schedule(self.time)
        overdue = self.admission.overdue
        self.check_admission(plan, before, overdue)
        self.check_nobody_waits_in_vain()
        self.check_rows(plan)
        self.check_bounds(overdue)
        self.run(plan)
        rows = sum(work.rows for work in plan.work)
        seconds = self.seconds_per_step + self.seconds_per_row * rows
        for work in plan.work:
            self.settle(work)
        self.scheduler.observe(plan, seconds)
        self.time += seconds
        self.last_step_seconds = seconds
        self.recent_step_seconds.append(seconds)
        if plan.admitted or len(self.ended) > ended:
            self.check_accounts()
        return plan

    def run(self, plan: Plan) -> None:
        """As the engine: release, then copy and bind in order, then compute."""
        for slot in plan.preempted_slots:
            assert self.bound.pop(slot)[0].slot != slot or slot in {item.slot for item in plan.admitted}
        for sequence in plan.admitted:
            reservation = sequence.reservation
            assert reservation is not None
            if reservation.copied_block >= 0:
                target = reservation.blocks[len(reservation.shared)]
                self.memory[target] = list(self.memory[reservation.copied_block])
            assert sequence.slot not in self.bound
            assert sequence.computed == reservation.cached_tokens < sequence.prefill_length
            self.bound[sequence.slot] = (sequence, sequence.computed)
        for sequence in plan.admitted:
            for position in range(sequence.computed):
                assert self.entry(sequence, position) == self.stories[sequence].entries[position]
        for work in plan.work:
            self.compute(work)

    def entry(self, sequence: Sequence, position: int) -> int:
        assert sequence.reservation is not None
        return self.memory[sequence.reservation.blocks[position // BLOCK_TOKENS]][position % BLOCK_TOKENS]

    def compute(self, work: Work) -> None:
        sequence, start, rows, _ = work
        reservation, story = sequence.reservation, self.stories[sequence]
        assert reservation is not None
        assert self.bound[sequence.slot] == (sequence, start)
        fed = [sequence.output[-1]] if start >= sequence.prefill_length else sequence.prefill[start : start + rows]
        assert len(fed) == rows
        for position, token in enumerate(fed, start):
            before = self.entry(sequence, position - 1) if position else salted(sequence.salt)
            entry = after(before, int(token))
            assert entry == story.entries[position], "a token was skipped, repeated or computed from another's entry"
            assert position // BLOCK_TOKENS >= len(reservation.shared), "wrote to a shared block"
            self.memory[reservation.blocks[position // BLOCK_TOKENS]][position % BLOCK_TOKENS] = entry
        self.bound[sequence.slot] = (sequence, start + rows)

    def settle(self, work: Work) -> None:
        story = self.stories[work.sequence]
        story.longest_wait = max(story.longest_wait, self.time - story.last_row)
        story.last_row = self.time
        new: list[int] = []
        if work.samples:
            assert work.start + work.rows == len(story.entries)
            new = [story.next_token(story.entries[-1])]
            story.said += new
            story.entries.append(after(story.entries[-1], new[0]))
        self.scheduler.advance(work, new)
        if len(story.said) == work.sequence.max_tokens:
            self.end(work.sequence, "length")

    # What must hold.

    def check_admission(self, plan: Plan, before: dict[Sequence, bool], overdue: Sequence | None) -> None:
        ranks = {item.rank for item in before}
        if not plan.admitted:
            assert not plan.preempted_slots
            assert self.running == list(before)
            return
        victims = [item for item in before if item.reservation is None or item in plan.admitted]
        assert len(victims) == len(plan.preempted_slots)
        for victim in victims:
            story = self.stories[victim]
            assert not before[victim], "preempted before it had progressed"
            assert story.preempted_at < len(story.said) or story.preempted_at < 0
            story.preempted_at = len(story.said)
            assert any(
                item.rank < victim.rank or (item is overdue and item.rank not in ranks) for item in plan.admitted
            ), "preempted for its own tier or a lower one"
        for item in plan.admitted:
            for other in self.waiting:
                if overdue not in (item, other):
                    assert other.rank >= item.rank, "a lower tier overtook"
                    is_behind = other.rank > item.rank or other.must_progress or item.must_progress
                    assert is_behind or item.arrived <= other.arrived, "admission out of order"

    def check_nobody_waits_in_vain(self) -> None:
        """Whoever is first has to wait only where slots or blocks are lacking, those of lower tiers counted in."""
        if not self.waiting:
            return
        first = self.waiting[0]
        lower = [item for item in self.running if item.rank > first.rank and not item.must_progress]
        others = sum(item.rank != ULTRAFAST for item in self.running)
        has_slot = len(self.running) - len(lower) < self.scheduler.max_sequences
        if first.rank != ULTRAFAST:
            has_slot = has_slot and others - len(lower) < self.others
        gained = sum(
            len(item.reservation.blocks) - len(item.reservation.shared)
            for item in lower
            if item.reservation is not None
        )
        needed = self.pool.blocks_for(first.capacity)
        assert not has_slot or needed > self.cache.free_count + gained, "it could run"

    def check_rows(self, plan: Plan) -> None:
        rows = sum(work.rows for work in plan.work)
        planned = {work.sequence for work in plan.work}
        assert len(planned) == len(plan.work)
        assert rows <= self.scheduler.max_rows
        assert bool(rows) == bool(self.running)
        riding = {item.rank for item in planned}
        prefill_of_ultrafast = any(item.computed < item.prefill_length for item in self.admission.running[ULTRAFAST])
        for rank in range(1, 4):
            if not self.admission.running[rank] or self.admission.running[rank] == [
                item for item in plan.admitted if item.rank == rank
            ]:
                self.rode[rank] = self.time
        if prefill_of_ultrafast and riding - {ULTRAFAST}:
            assert any(self.time - self.rode[rank] >= STALL_SECONDS for rank in range(1, 4))
        left_out = [item for item in self.running if item not in planned and item.computed >= item.prefill_length]
        left_out_ranks = {item.rank for item in left_out}
        for item in planned:
            if item.rank not in left_out_ranks:
                self.rode[item.rank] = self.time
        for item in left_out:
            since = max(self.stories[item].last_row, item.admitted)
            assert self.time - since < STALL_SECONDS, "a stream was stalled"
            is_turn_of_prompts = self.others < self.scheduler.max_sequences and not self.admission.running[ULTRAFAST]
            if is_turn_of_prompts and len(plan.work) > plan.decode_rows:
                ranks = [work.sequence.rank for work in plan.work[: plan.decode_rows]]
                assert item.rank > max(ranks, default=-1), "part of a tier had its turn"
                assert item.rank >= min(work.sequence.rank for work in plan.work[plan.decode_rows :])
            else:
                assert item.rank > max(riding), "a step left out a row of a tier that took part"
        for work in plan.work:
            assert work.start == work.sequence.computed
            assert work.samples == (work.start + work.rows >= work.sequence.prefill_length)

    def check_bounds(self, overdue: Sequence | None) -> None:
        # Looked for between steps, and served by the one after: the steps of that while, not only the last, take time.
        slack = OVERDUE_INTERVAL_SECONDS + 2 * max(self.recent_step_seconds)
        if overdue is not None:
            self.served_overdue = self.time
        for rank, group in enumerate(self.admission.running):
            self.ran[rank] = self.time if group else self.ran[rank]
        if self.time - self.served_overdue <= slack:
            return
        for item in [*self.waiting, *self.running]:
            is_starved = item.slot >= 0 or self.time - self.ran[item.rank] > slack
            if is_starved and item.computed < item.prefill_length and item.progressed < self.time:
                waited = self.time - max(self.stories[item].last_row, item.admitted)
                assert waited <= PATIENCE_SECONDS[item.rank] + slack

    def check_accounts(self) -> None:
        running, waiting = self.running, self.waiting
        assert (self.admission.running_count, self.admission.waiting_count) == (len(running), len(waiting))
        own = [block for item in running if (held := item.reservation) for block in held.blocks[len(held.shared) :]]
        kept: list[int] = []
        nodes = list(self.cache._roots.values())
        while nodes:
            children = nodes.pop().children.values()
            nodes += children
            kept += [node.block for node in children]
        assert sorted([*own, *kept, *self.pool._free]) == list(range(self.pool.block_count))
        assert {item.slot: item for item in running} == {slot: item for slot, (item, _) in self.bound.items()}
        assert len(self.bound) == len(running) <= self.scheduler.max_sequences
        assert sum(item.rank != ULTRAFAST for item in running) <= self.others
        assert all(item.reservation is None and item.slot < 0 for item in waiting)
        assert len(self.stories) == len(running) + len(waiting) + len(self.ended)
        assert self.ended.keys().isdisjoint([*running, *waiting])


def random_history(seed: int, events: int) -> World:
    """Arrivals, floods, cancels, failures, stops and preemptions; then left alone until everything has ended."""
    source = random.Random(seed)
    pace = source.choice([1, 1, 1, 20, 1000])  # at the slowest, patience ends within a few steps
    max_sequences = source.randint(1, 6)
    world = World(
        blocks=source.randint(2, 24),
        max_sequences=max_sequences,
        max_rows=source.choice([1, 5, 12, 30]) + max_sequences,
        reserved_slots=min(source.choice([0, 0, 1, 5]), max_sequences - 1),
        seconds_per_step=0.004 * pace,
        seconds_per_row=0.001 * pace,
    )
    tiers = source.choices(list(TIER_RANKS), k=source.randint(1, 4))
    for _ in range(source.randint(1, events)):
        chance = source.random()
        if chance < 0.4:
            flood = source.choice([1, 1, 1, 5])
            tier = source.choice(tiers)
            for _ in range(flood):
                prompt = source.choices(range(VOCABULARY), k=source.choice([1, 3, 9, 30]))
                world.arrive(tier, prompt, source.randint(1, 8), salt=source.choice("ab"), seed=source.randrange(3))
        elif chance < 0.5:
            alive = [*world.running, *world.waiting]
            if alive:
                world.end(source.choice(alive), "cancel")
                world.check_accounts()
        elif chance < 0.55:
            if world.running:
                world.end(source.choice(world.running), source.choice(["failure", "stop"]))
        else:
            world.step()
    drain(world)
    return world


def drain(world: World) -> None:
    """Left alone, everything ends, within a bound known beforehand: a step computes a row at least, and what a
    preemption loses is at most what was computed since the token before it.
    """
    bound = 1 + sum((item.capacity + 1) * (item.max_tokens + 1) for item in world.stories)
    while world.scheduler.has_work:
        assert bound > 0, "no progress"
        bound -= 1
        world.step()
    assert world.ended.keys() == world.stories.keys()
    assert world.cache.free_count == world.pool.block_count
