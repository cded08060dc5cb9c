"""The scheduler's rules, one by one; what holds over random histories is in ``test_histories``."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.histories import BLOCK_TOKENS, World, drain
from ultrafast.engine.kv_cache import BlockPool
from ultrafast.engine.prefix_cache import PrefixCache
from ultrafast.engine.scheduler import SHORT_STEP_SECONDS, Scheduler
from ultrafast.engine.sequence import Sequence
from ultrafast.engine.step_costs import MINIMUM_PREFILL_ROWS
from ultrafast.engine.tiers import PATIENCE_SECONDS, TIER_NAMES, TIER_RANKS, ULTRAFAST
from ultrafast.errors import CacheFullError


def make_world(*, blocks: int = 4000, max_sequences: int = 16, reserved_slots: int = 0) -> World:
    return World(blocks=blocks, max_sequences=max_sequences, max_rows=512, reserved_slots=reserved_slots)


def arrive(world: World, tier: str, prompt: int = 3, max_tokens: int = 8) -> Sequence:
    """Every prompt is one of its own."""
    number = len(world.stories)
    sequence = world.arrive(tier, [number * 1000 + index for index in range(prompt)], max_tokens)
    assert sequence is not None
    return sequence


def tokens_of(world: World, tier: str) -> int:
    return sum(len(story.said) for item, story in world.stories.items() if item.tier == tier)


def keep_full(world: World, tier: str, *, waiting: int = 4, prompt: int = 3, max_tokens: int = 8) -> None:
    while len(world.admission.waiting[TIER_RANKS[tier]]) < waiting:
        arrive(world, tier, prompt, max_tokens)


def test_a_long_prompt_never_stalls_a_stream() -> None:
    world = make_world()
    world.scheduler.costs.prefill_rows_beside_decode = 7  # too few to learn from
    arrive(world, "default", 4, 100)
    world.step()
    arrive(world, "default", 1000)
    for _ in range(50):
        assert [work.rows for work in world.step().work] == [1, 7]


def test_a_small_request_does_not_overtake_a_large_one() -> None:
    world = make_world(blocks=10)
    for prompt, tier in ((20, "default"), (20, "default"), (1, "default"), (1, "flex")):
        arrive(world, tier, prompt, 4)
    assert len(world.step().admitted) == 1
    assert len(world.waiting) == 3


def test_what_never_fits_is_refused_at_once() -> None:
    scheduler = Scheduler(PrefixCache(BlockPool(2, BLOCK_TOKENS)), max_sequences=1, max_rows=8)
    with pytest.raises(CacheFullError):
        scheduler.add(Sequence(np.zeros(8, np.int32), 1, 0.0))
    scheduler.add(Sequence(np.zeros(7, np.int32), 1, 0.0))


def test_the_newest_of_the_lowest_tier_makes_room_and_goes_on_where_it_was() -> None:
    world = make_world(max_sequences=4)
    tiers = ["default", "flex", "flex", "priority"]
    running = [arrive(world, tier, 40, 50) for tier in tiers]
    for _ in range(5):
        world.step()
    later = arrive(world, "flex")
    ultrafast = arrive(world, "ultrafast", 5, 3)
    plan = world.step()
    assert plan.admitted == [ultrafast]
    assert world.waiting == [running[2], later], "it waits before the others of its tier"
    computed = 40 + len(running[2].output) - 1
    for _ in range(4):
        world.step()
    assert running[2] in world.running
    assert running[2].reservation is not None
    assert running[2].reservation.cached_tokens == computed
    drain(world)
    assert world.admission.preemptions == 1


@pytest.mark.parametrize("tier", TIER_NAMES)
def test_nobody_makes_room_for_its_own_tier(tier: str) -> None:
    world = make_world(max_sequences=2)
    for _ in range(6):
        arrive(world, tier)
        world.step()
    drain(world)
    assert world.admission.preemptions == 0


def test_blocks_are_taken_only_where_they_suffice() -> None:
    world = make_world(blocks=10)
    arrive(world, "default", 17, 3)  # 5 blocks
    arrive(world, "flex", 9, 3)  # 3
    world.step()
    large = arrive(world, "priority", 33, 3)  # 9: with those of both
    world.step()
    assert world.running == [large]
    larger = arrive(world, "ultrafast", 33, 7)
    world.step()
    assert world.running == [larger]
    arrive(world, "ultrafast", 1, 1)
    world.step()
    assert world.running == [larger], "nothing lower runs: it waits"
    drain(world)


def test_reserved_slots_are_for_ultrafast_only() -> None:
    world = make_world(max_sequences=5, reserved_slots=2)
    for _ in range(8):
        arrive(world, "priority", 3, 100)
    world.step()
    assert len(world.running) == 3
    for _ in range(2):
        arrive(world, "ultrafast", 3, 100)
    world.step()
    assert len(world.running) == 5
    assert world.admission.preemptions == 0
    arrive(world, "ultrafast", 3, 100)
    world.step()
    assert [len(group) for group in world.admission.running] == [3, 2, 0, 0], "it may have the others too"
    with pytest.raises(ValueError, match="leave one"):
        make_world(max_sequences=2, reserved_slots=2)


def test_an_ultrafast_prompt_goes_first_and_alone() -> None:
    world = make_world()
    for _ in range(8):
        arrive(world, "default", 10, 1000)
    world.step()
    ultrafast = arrive(world, "ultrafast", 300, 2)
    while not ultrafast.output:
        assert [work.sequence for work in world.step().work] == [ultrafast]


def measure(world: World, tier: str, seconds: float) -> float:
    """Tokens a second of ``tier`` while the world goes on as it is; forgets the waits of before."""
    for story in world.stories.values():
        story.longest_wait = 0.0
    until, start = world.time + seconds, world.time
    before = tokens_of(world, tier)
    while world.time < until:
        world.step()
    return (tokens_of(world, tier) - before) / (world.time - start)


@pytest.mark.parametrize(("tier", "least", "others_least"), [("ultrafast", 0.85, 0.17), ("priority", 0.5, 0.6)])
def test_one_stream_beside_sixteen_of_a_lower_tier(tier: str, least: float, others_least: float) -> None:
    """The bar of ultrafast (0.8 and 0.15) with room, where a step takes 4.6 ms and 0.9 ms a row."""
    alone = make_world()
    arrive(alone, tier, 20, 4000)
    speed_alone = measure(alone, tier, 10.0)

    world = make_world(blocks=10_000, max_sequences=17)
    for _ in range(16):
        arrive(world, "default", 20, 2000)
    measure(world, "default", 1.0)
    others_alone = measure(world, "default", 1.0)
    stream = arrive(world, tier, 20, 4000)
    while not stream.output:
        world.step()
    others, start = tokens_of(world, "default"), world.time
    assert measure(world, tier, 10.0) >= least * speed_alone
    assert (tokens_of(world, "default") - others) / (world.time - start) >= others_least * others_alone
    assert max(story.longest_wait for story in world.stories.values()) < 0.5


def test_what_lower_tiers_cost_the_next_step_is_theirs() -> None:
    world = make_world()
    for _ in range(2):  # a row of one costs no more than the share that is theirs in any case
        arrive(world, "default", 3, 1000)
    arrive(world, "ultrafast", 3, 1000)
    measure(world, "ultrafast", 1.0)
    for _ in range(3):
        while len(world.step().work) == 1:
            pass
        usual, world.seconds_per_step = world.seconds_per_step, 0.05
        assert len(world.step().work) == 1
        world.seconds_per_step = usual
        assert world.scheduler.costs.decode_seconds(1) < 0.006, "the step after is none without them"
        for _ in range(48):
            assert len(world.step().work) == 1, "and is paid for"


def test_lower_tiers_ride_on_when_the_higher_one_has_ended() -> None:
    world = make_world()
    for _ in range(4):
        arrive(world, "default", 3, 1000)
    stream = arrive(world, "ultrafast", 3, 50)
    while stream not in world.ended:
        world.step()
    for _ in range(20):
        assert len(world.step().work) == 4


def test_a_long_ultrafast_prompt_leaves_others_a_token_in_time() -> None:
    world = make_world(blocks=6000)
    for _ in range(4):
        arrive(world, "default", 3, 3000)
    measure(world, "default", 1.0)
    arrive(world, "ultrafast", 15_000, 2)
    measure(world, "default", 12.0)
    assert world.admission.running[ULTRAFAST], "it is still computed"
    assert max(story.longest_wait for story in world.stories.values()) < 1.0


def test_an_arriving_ultrafast_request_waits_for_a_short_step_only() -> None:
    """Lower tiers at several times their capacity, slots reserved."""
    world = make_world(blocks=6000, max_sequences=18, reserved_slots=2)
    drain_of(world, arrive(world, "default", 100))  # as the engine warms up, so that a pace is known
    for _ in range(16):
        for _ in range(40):
            for tier in ("priority", "default", "flex"):
                keep_full(world, tier, prompt=100, max_tokens=40)
            world.step()
            assert world.last_step_seconds <= SHORT_STEP_SECONDS + 0.0009 * MINIMUM_PREFILL_ROWS
        ultrafast = arrive(world, "ultrafast", 50, 2)
        assert [work.sequence for work in world.step().work] == [ultrafast]
        drain_of(world, ultrafast)


def reserving_world_with_crowd(crowd: int, *, seconds_per_step: float, seconds_per_row: float) -> World:
    """Slots reserved, the pace known from a first prompt as the engine warms up, and a crowd of default decoding."""
    world = make_world(blocks=20_000, max_sequences=18, reserved_slots=2)
    world.seconds_per_step, world.seconds_per_row = seconds_per_step, seconds_per_row
    drain_of(world, arrive(world, "default", 100))
    for _ in range(crowd):
        arrive(world, "default", 3, 2000)
    measure(world, "default", 3.0)
    return world


def test_prompts_take_turns_with_a_crowd_that_decodes() -> None:
    """With slots reserved, steps are short; a prompt must not live on what decode rows leave of them."""
    world = reserving_world_with_crowd(14, seconds_per_step=0.0, seconds_per_row=0.0025)  # rows are what counts
    crowd = measure(world, "default", 1.0)
    late = arrive(world, "default", 160, 2)
    start, said = world.time, tokens_of(world, "default")
    while not late.output:
        world.step()
    prompt_seconds = 160 * world.seconds_per_row
    assert world.time - start < 2 * prompt_seconds, "it had half of the time, at least"
    assert tokens_of(world, "default") - said > crowd * (world.time - start) / 5, "and the others went on"
    assert max(story.longest_wait for story in world.stories.values()) < 0.2


def test_prompts_of_a_large_model_ride_with_a_crowd_that_decodes() -> None:
    """Where reading the weights takes longer than a short step, turns would only read them more often."""
    world = reserving_world_with_crowd(14, seconds_per_step=0.25, seconds_per_row=0.004)
    late = arrive(world, "default", 160, 2)
    while not late.output:
        plan = world.step()
        assert plan.decode_rows == 14
        assert len(plan.work) == 14 + 1
        assert plan.work[-1].rows >= min(14, late.prefill_length - plan.work[-1].start)


def test_prompts_and_few_decode_rows_share_their_steps() -> None:
    world = reserving_world_with_crowd(3, seconds_per_step=0.0046, seconds_per_row=0.0009)
    late = arrive(world, "default", 160, 2)
    while not late.output:
        assert len(world.step().work) == 4


def drain_of(world: World, sequence: Sequence) -> None:
    while sequence not in world.ended:
        world.step()


@pytest.mark.parametrize("flood", ["ultrafast", "priority", "default"])
def test_no_flood_of_a_higher_tier_starves_a_lower_one(flood: str) -> None:
    """FAULTS row 24. Each sequence, not only the first of its tier, goes on within its bound."""
    world = make_world(blocks=600, max_sequences=3)
    world.seconds_per_step = 0.25
    lower = [name for name in TIER_NAMES if TIER_RANKS[name] > TIER_RANKS[flood]]
    starved = {name: [arrive(world, name, 10, 1000 if name == "flex" else 300) for _ in range(2)] for name in lower}
    while world.time < 1000.0:
        keep_full(world, flood, prompt=10, max_tokens=20)
        world.step()
    for name, sequences in starved.items():
        patience = PATIENCE_SECONDS[TIER_RANKS[name]]
        for item in sequences:
            assert len(world.stories[item].said) >= 1000 / (2.5 * patience)
            assert max(world.stories[item].longest_wait, world.time - item.progressed) < 2 * patience
    assert tokens_of(world, flood) > 0.8 * world.admission.running_count * world.time / 0.26


def test_a_crowd_that_is_overdue_does_not_turn_the_order_around() -> None:
    speeds = []
    for crowd in (0, 200):
        world = make_world(max_sequences=8)
        for _ in range(crowd):
            arrive(world, "flex", 20, 20)
        world.time = 10 * PATIENCE_SECONDS[TIER_RANKS["flex"]]
        keep_full(world, "default", prompt=20, max_tokens=40)
        start = world.time
        while world.time < start + 10.0:
            keep_full(world, "default", prompt=20, max_tokens=40)
            world.step()
        speeds.append(tokens_of(world, "default"))
        assert (tokens_of(world, "flex") >= 20) == bool(crowd)
    assert speeds[1] > 0.8 * speeds[0]


def test_a_prompt_behind_others_gets_a_part_of_the_chunk_when_it_is_overdue() -> None:
    world = make_world()
    flex = arrive(world, "flex", 500)
    world.scheduler.costs.prefill_rows_alone = 8
    world.step()
    assert flex.computed == 8
    arrive(world, "default", 4000)
    waited_since = world.time
    while True:
        world.scheduler.costs.prefill_rows_alone = 40
        is_overdue = world.time - waited_since > PATIENCE_SECONDS[flex.rank]
        work = world.step().work
        if is_overdue:
            break
        assert [item.rows for item in work] == [40]
        world.time += 9.0
    assert [(item.sequence is flex, item.rows) for item in work] == [(True, 10), (False, 30)]
