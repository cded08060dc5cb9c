"""Admission: slots, queues, limits and downgrades, over an injected clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

import pytest

from ultrafast.gateway.admission import Admission, Grant, Wish
from ultrafast.gateway.configuration import Configuration, TierLimits, TierSettings
from ultrafast.gateway.failures import HttpError
from ultrafast.gateway.tiers import TIERS, lane_of

CAPACITY_CODES = {"tier_at_capacity", "rate_limit_exceeded"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def tiers(**changes: TierSettings) -> Mapping[str, TierSettings]:
    return Configuration().tiers | changes


def wish(
    tier: str = "default", *, project: str = "proj_a", sequences: int = 1, tokens: int = 10, **more: object
) -> Wish:
    return Wish(project, tier, sequences, tokens, **more)  # type: ignore[arg-type]


async def refused(admission: Admission, asked: Wish) -> HttpError:
    with pytest.raises(HttpError) as caught:
        await admission.enter(asked)
    assert caught.value.status == 429
    return caught.value


async def test_a_free_slot_is_given_at_once() -> None:
    admission = Admission(tiers(ultrafast=TierSettings(slots=1)))
    grant = await admission.enter(wish("ultrafast"))
    assert grant.tier == "ultrafast"
    assert admission.uses()["ultrafast"].used == 1
    grant.release(4)
    grant.release(4)
    assert admission.uses()["ultrafast"].used == 0


async def test_fast_shares_the_slots_of_priority_and_is_reported_as_asked() -> None:
    admission = Admission(tiers(priority=TierSettings(slots=1, over_capacity="refuse")))
    assert (await admission.enter(wish("fast"))).tier == "fast"
    assert (await refused(admission, wish("priority"))).code == "tier_at_capacity"


async def test_a_full_tier_is_waited_for_and_then_downgraded() -> None:
    settings = TierSettings(slots=1, queue_milliseconds=40, over_capacity="downgrade")
    admission = Admission(tiers(ultrafast=settings))
    held = await admission.enter(wish("ultrafast"))
    started = asyncio.get_running_loop().time()
    grant = await admission.enter(wish("ultrafast"))
    assert asyncio.get_running_loop().time() - started >= 0.039
    assert grant.tier == "default"
    assert admission.uses()["default"].used == 1
    held.release(1)
    grant.release(1)
    assert all(view.used == view.waiting == 0 for view in admission.uses().values())


async def test_a_slot_that_comes_free_in_time_is_taken() -> None:
    admission = Admission(tiers(ultrafast=TierSettings(slots=1, queue_milliseconds=5000, over_capacity="downgrade")))
    held = await admission.enter(wish("ultrafast"))
    waiting = asyncio.create_task(admission.enter(wish("ultrafast")))
    await asyncio.sleep(0.01)
    assert admission.uses()["ultrafast"].waiting == 1
    held.release(1)
    assert (await waiting).tier == "ultrafast"


@pytest.mark.parametrize("tier", ["ultrafast", "priority", "default", "flex"])
async def test_whoever_asks_to_be_refused_is_refused_at_once(tier: str) -> None:
    admission = Admission({name: TierSettings(slots=1, queue_milliseconds=60_000) for name in TIERS})
    await admission.enter(wish(tier))
    error = await asyncio.wait_for(refused(admission, wish(tier, over_capacity="refuse")), 0.5)
    assert error.code == "tier_at_capacity"
    assert {b"retry-after-ms", b"retry-after"} <= {name for name, _ in error.headers}
    assert (b"x-should-retry", b"true") in error.headers


@pytest.mark.parametrize("tier", ["ultrafast", "default"])
async def test_a_closed_tier_is_waited_for_by_those_only_who_ask_to(tier: str) -> None:
    settings = TierSettings(slots=0, queue_milliseconds=60_000, over_capacity="queue")
    admission = Admission(dict.fromkeys(TIERS, settings))
    error = await asyncio.wait_for(refused(admission, wish(tier)), 0.5)
    assert error.code == "tier_at_capacity"
    # Nothing passes by itself here: the operator must open it.
    assert error.headers == [(b"x-should-retry", b"false")]
    assert "closed" in error.message
    waiting = asyncio.create_task(admission.enter(wish(tier, over_capacity="queue")))
    await asyncio.sleep(0.01)
    assert admission.uses()[tier].waiting == 1
    waiting.cancel()


async def test_flex_is_refused_at_once_and_never_waits() -> None:
    admission = Admission(tiers(flex=TierSettings(slots=1, queue_milliseconds=0, over_capacity="refuse")))
    await admission.enter(wish("flex"))
    assert (await asyncio.wait_for(refused(admission, wish("flex")), 0.5)).code == "tier_at_capacity"


@pytest.mark.parametrize("tier", ["default", "flex"])
async def test_below_the_lowest_tiers_there_is_none_so_their_own_rule_holds(tier: str) -> None:
    for rule in ("queue", "refuse"):
        settings = TierSettings(slots=1, queue_milliseconds=5000, over_capacity=rule)
        admission = Admission(tiers(**{tier: settings}))
        held = await admission.enter(wish(tier))
        asked = wish(tier, over_capacity="downgrade")
        if rule == "refuse":
            assert (await asyncio.wait_for(refused(admission, asked), 0.5)).code == "tier_at_capacity"
        else:
            waiting = asyncio.create_task(admission.enter(asked))
            await asyncio.sleep(0.01)
            held.release(1)
            assert (await waiting).tier == tier


async def test_a_client_that_would_rather_queue_outwaits_the_downgrade() -> None:
    admission = Admission(tiers(ultrafast=TierSettings(slots=1, queue_milliseconds=10, over_capacity="downgrade")))
    held = await admission.enter(wish("ultrafast"))
    waiting = asyncio.create_task(admission.enter(wish("ultrafast", over_capacity="queue")))
    await asyncio.sleep(0.06)
    assert not waiting.done()
    held.release(1)
    assert (await waiting).tier == "ultrafast"


async def test_capacity_zero_downgrades_and_coming_back_serves_those_who_wait() -> None:
    settings = tiers(ultrafast=TierSettings(slots=1, queue_milliseconds=10, over_capacity="downgrade"))
    admission = Admission(settings)
    admission.configure(settings, {"ultrafast": 0})
    assert (await admission.enter(wish("ultrafast"))).tier == "default"
    waiting = asyncio.create_task(admission.enter(wish("ultrafast", over_capacity="queue")))
    await asyncio.sleep(0.01)
    admission.configure(settings, {})
    assert (await waiting).tier == "ultrafast"


async def test_slots_are_given_in_order_and_a_wide_request_is_not_passed_by() -> None:
    admission = Admission(tiers(default=TierSettings(slots=3, queue_milliseconds=5000)))
    held = [await admission.enter(wish()) for _ in range(3)]
    order: list[str] = []

    async def enter(name: str, sequences: int) -> Grant:
        grant = await admission.enter(wish(sequences=sequences))
        order.append(name)
        return grant

    wide = asyncio.create_task(enter("wide", 3))
    await asyncio.sleep(0)
    narrow = asyncio.create_task(enter("narrow", 1))
    await asyncio.sleep(0)
    for grant in held:
        grant.release(1)
        await asyncio.sleep(0)
    (await wide).release(1)
    await narrow
    assert order == ["wide", "narrow"]


async def test_a_request_of_more_choices_than_slots_runs_alone() -> None:
    admission = Admission(tiers(default=TierSettings(slots=2, queue_milliseconds=10)))
    grant = await admission.enter(wish(sequences=5))
    assert (await refused(admission, wish())).code == "tier_at_capacity"
    grant.release(1)
    assert (await admission.enter(wish())).tier == "default"


async def test_whoever_gives_up_waiting_leaves_no_trace() -> None:
    admission = Admission(tiers(default=TierSettings(slots=1, queue_milliseconds=5000)))
    held = await admission.enter(wish())
    waiting = [asyncio.create_task(admission.enter(wish())) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    held.release(1)  # its turn and the cancellation of the second meet
    waiting[1].cancel()
    third = await waiting[2]
    third.release(1)
    assert admission.uses()["default"].used == admission.uses()["default"].waiting == 0


async def test_the_limit_of_requests_refills() -> None:
    clock = Clock()
    limits = TierLimits(requests_per_minute=2)
    admission = Admission(tiers(default=TierSettings(limits=limits)), clock=clock)
    for _ in range(2):
        (await admission.enter(wish())).release(1)
    error = await refused(admission, wish())
    assert (error.code, "tier, 2 requests a minute, is" in error.message) == ("rate_limit_exceeded", True)
    assert 30_000 <= int(dict(error.headers)[b"retry-after-ms"]) <= 32_000
    assert dict(error.headers)[b"x-ratelimit-remaining-requests"] == b"0"
    assert (await admission.enter(wish(project="proj_b"))).tier == "default"
    clock.now += 30
    await admission.enter(wish())
    clock.now -= 500  # a clock that jumps back gives nothing
    await refused(admission, wish())


async def test_tokens_set_aside_and_not_used_come_back() -> None:
    admission = Admission(tiers(default=TierSettings(limits=TierLimits(tokens_per_minute=100))), clock=Clock())
    grant = await admission.enter(wish(tokens=90))
    assert grant.limits.headers()[0] == (b"x-ratelimit-limit-tokens", b"100")
    assert grant.limits.headers()[1] == (b"x-ratelimit-remaining-tokens", b"10")
    await refused(admission, wish(tokens=20))
    grant.release(5)
    await admission.enter(wish(tokens=90))


async def test_a_request_that_can_never_fit_the_limit_is_told_so() -> None:
    admission = Admission(tiers(default=TierSettings(limits=TierLimits(tokens_per_minute=100))))
    error = await refused(admission, wish(tokens=101))
    assert (b"x-should-retry", b"false") in error.headers
    assert (b"x-ratelimit-remaining-tokens", b"100") in error.headers


async def test_streams_at_once_are_limited_per_project() -> None:
    admission = Admission(tiers(default=TierSettings(limits=TierLimits(streams=1))))
    grant = await admission.enter(wish())
    error = await refused(admission, wish())
    assert (error.code, "tier, 1 request at once, is" in error.message) == ("rate_limit_exceeded", True)
    await admission.enter(wish(project="proj_b"))
    grant.release(1)
    await admission.enter(wish())


async def test_a_downgraded_request_takes_the_limits_of_default() -> None:
    settings = tiers(
        ultrafast=TierSettings(slots=0, queue_milliseconds=0, over_capacity="downgrade"),
        default=TierSettings(limits=TierLimits(streams=1)),
    )
    admission = Admission(settings)
    assert (await admission.enter(wish("ultrafast"))).tier == "default"
    assert (await refused(admission, wish("ultrafast"))).code == "rate_limit_exceeded"


@pytest.mark.parametrize("seed", range(40))
async def test_random_histories_keep_the_books(seed: int) -> None:
    chance = random.Random(seed)
    settings = {
        name: TierSettings(
            slots=chance.choice([0, 1, 2, 5]),
            queue_milliseconds=chance.choice([0, 1, 8]),
            over_capacity=chance.choice(["queue", "downgrade", "refuse"]),
            limits=TierLimits(streams=chance.choice([None, 3])),
        )
        for name in TIERS
    }
    admission = Admission(settings)
    widest = 3

    async def request() -> str:
        asked = wish(chance.choice([*TIERS, "fast"]), project=chance.choice("ab"), sequences=chance.randint(1, widest))
        await asyncio.sleep(chance.random() * 0.02)
        try:
            grant = await admission.enter(asked)
        except HttpError as error:
            assert error.code in CAPACITY_CODES
            return "refused"
        try:
            assert grant.tier in (asked.tier, "default")
            for name, view in admission.uses().items():
                slots = settings[name].slots
                assert slots is not None
                assert 0 <= view.used <= max(slots, widest if slots else 0)
            await asyncio.sleep(chance.random() * 0.01)
            if chance.random() < 0.5:
                grant.free_slots()
                await asyncio.sleep(chance.random() * 0.01)
        finally:
            grant.release(chance.randint(0, 10))
        return lane_of(grant.tier)

    tasks = [asyncio.create_task(request()) for _ in range(120)]
    await asyncio.sleep(0.01)
    for task in chance.sample(tasks, 30):
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        assert isinstance(result, str | asyncio.CancelledError), result
    assert all(view.used == view.waiting == 0 for view in admission.uses().values())
