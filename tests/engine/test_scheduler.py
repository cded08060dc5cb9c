"""The scheduler's invariants over random histories; it is pure, so a history needs no model and no clock."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ultrafast.engine.kv_cache import BlockPool
from ultrafast.engine.prefix_cache import PrefixCache
from ultrafast.engine.scheduler import Plan, Scheduler, Sequence
from ultrafast.errors import CacheFullError

BLOCK_TOKENS = 8


class History:
    """Drives a scheduler as the engine does, and checks what must hold at every moment."""

    def __init__(self, *, blocks: int, max_sequences: int, max_rows: int, beside: int) -> None:
        self.block_count = blocks
        self.cache = PrefixCache(BlockPool(blocks, BLOCK_TOKENS))
        self.scheduler = Scheduler(self.cache, max_sequences=max_sequences, max_rows=max_rows)
        self.scheduler.prefill_rows_beside_decode = beside
        self.time = 0.0
        self.arrived: list[Sequence] = []
        self.admitted: list[Sequence] = []
        self.ended: dict[Sequence, str] = {}

    def arrive(self, prompt_length: int, max_tokens: int, talk: int = 0) -> None:
        """Prompts of the same ``talk`` begin alike."""
        prompt = np.arange(prompt_length, dtype=np.int32) + talk
        sequence = Sequence(prompt, max_tokens, self.time)
        try:
            self.scheduler.add(sequence)
        except CacheFullError:
            assert prompt_length + max_tokens > self.block_count * BLOCK_TOKENS
        else:
            self.arrived.append(sequence)

    def end(self, sequence: Sequence, how: str) -> None:
        assert sequence not in self.ended
        self.ended[sequence] = how
        tokens = np.arange(sequence.computed, dtype=np.int32) + sequence.prompt[0]
        self.scheduler.finish(sequence, None if how == "failure" else tokens)

    def step(self) -> Plan:
        self.time += 1.0
        decoding = [item for item in self.scheduler.running if item.computed >= item.prompt_length]
        plan = self.scheduler.schedule(self.time)
        self.admitted += plan.admitted
        self.check_plan(plan, decoding)
        for work in plan.work:
            self.scheduler.advance(work, int(work.samples))
            if work.sequence.generated == work.sequence.max_tokens:
                self.end(work.sequence, "length")
        self.check_accounts()
        return plan

    def check_plan(self, plan: Plan, decoding: list[Sequence]) -> None:
        rows = sum(work.rows for work in plan.work)
        assert rows <= self.scheduler.max_rows
        assert bool(rows) == bool(self.scheduler.running)
        planned = [work.sequence for work in plan.work]
        assert len(set(planned)) == len(planned)
        assert set(decoding) <= set(planned), "a stream was stalled"
        prefilling = [item for item in self.scheduler.running if item.computed < item.prompt_length]
        assert not prefilling or prefilling[0] in planned, "the oldest prompt was starved"
        prefill_rows = sum(work.rows for work in plan.work if work.start < work.sequence.prompt_length)
        assert not decoding or prefill_rows <= self.scheduler.prefill_rows_beside_decode
        for work in plan.work:
            assert work.start == work.sequence.computed
            assert work.sequence.reservation is not None
            assert work.start + work.rows <= len(work.sequence.reservation.blocks) * BLOCK_TOKENS
            assert work.samples == (work.start + work.rows >= work.sequence.prompt_length)

    def check_accounts(self) -> None:
        running, waiting = self.scheduler.running, self.scheduler.waiting
        owned = {block for item in running if item.reservation for block in item.reservation.blocks}
        assert len(owned) + self.cache.free_count == self.block_count
        slots = [sequence.slot for sequence in running]
        assert len(set(slots)) == len(slots)
        assert all(0 <= slot < self.scheduler.max_sequences for slot in slots)
        assert all(sequence.reservation is None and sequence.slot < 0 for sequence in waiting)
        assert set(self.arrived) == {*running, *waiting, *self.ended}
        order = [sequence for sequence in self.arrived if sequence in self.admitted]
        assert self.admitted == order, "admission out of order"


events = st.one_of(
    st.tuples(st.just("arrive"), st.integers(1, 70), st.integers(1, 20), st.integers(0, 2)),
    st.tuples(st.sampled_from(["cancel", "failure", "stop"]), st.integers(0, 1000), st.just(0), st.just(0)),
    st.tuples(st.just("step"), st.just(0), st.just(0), st.just(0)),
)


@settings(max_examples=300, deadline=None)
@given(
    history=st.lists(events, max_size=120),
    blocks=st.integers(1, 30),
    max_sequences=st.integers(1, 6),
    max_rows=st.integers(2, 40),
    beside=st.integers(1, 40),
)
def test_random_histories(
    history: list[tuple[str, int, int, int]], blocks: int, max_sequences: int, max_rows: int, beside: int
) -> None:
    world = History(blocks=blocks, max_sequences=max_sequences, max_rows=max_rows, beside=beside)
    for kind, first, second, talk in history:
        alive = [*world.scheduler.running, *world.scheduler.waiting]
        if kind == "arrive":
            world.arrive(first, second, talk)
        elif kind == "step":
            world.step()
        elif kind == "cancel" and alive:
            world.end(alive[first % len(alive)], "cancel")
        elif kind in {"failure", "stop"} and world.scheduler.running:
            world.end(world.scheduler.running[first % len(world.scheduler.running)], kind)
        world.check_accounts()
    # Whatever was going on: left alone, everything ends, within a bound known beforehand.
    bound = sum(sequence.prompt_length + sequence.max_tokens for sequence in world.arrived) + 1
    for _ in range(bound):
        if not world.scheduler.has_work:
            break
        world.step()
    assert not world.scheduler.has_work
    assert set(world.ended) == set(world.arrived)
    assert world.cache.free_count == blocks


def test_a_long_prompt_never_stalls_a_stream() -> None:
    world = History(blocks=200, max_sequences=4, max_rows=32, beside=8)
    world.arrive(4, 100)
    world.step()
    world.arrive(1000, 4, talk=5000)
    for _ in range(50):
        plan = world.step()
        assert [work.rows for work in plan.work] == [1, 8]


def test_a_small_request_does_not_overtake_a_large_one() -> None:
    world = History(blocks=10, max_sequences=4, max_rows=32, beside=32)
    world.arrive(40, 8)  # 6 blocks
    world.arrive(40, 8)
    world.arrive(1, 1)
    assert len(world.step().admitted) == 1
    assert len(world.scheduler.waiting) == 2


def test_what_never_fits_is_refused_at_once() -> None:
    scheduler = Scheduler(PrefixCache(BlockPool(2, BLOCK_TOKENS)), max_sequences=1, max_rows=8)
    with pytest.raises(CacheFullError):
        scheduler.add(Sequence(np.zeros(16, np.int32), 1, 0.0))
    scheduler.add(Sequence(np.zeros(15, np.int32), 1, 0.0))
