"""Who may run now: slots per tier, limits per project and tier, and the queue in front of a full tier.

One slot is one sequence being generated; an idle connection holds none. Invariants, held by tests over random
histories: a tier never has more slots in use than it has; a limit's bucket is never overdrawn; within a tier slots are
given in order of arrival; every request that asked is granted, refused or gone; what a grant holds is given back once.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from ultrafast.gateway.admin import TierUse
from ultrafast.gateway.configuration import TierLimits, TierSettings
from ultrafast.gateway.failures import SHOULD_NOT_RETRY, HttpError, retry_headers
from ultrafast.gateway.limits import Bucket, LimitView
from ultrafast.gateway.tiers import DEFAULT_TIER, LOWEST_TIERS, OverCapacity, lane_of

MAXIMUM_WAITING: Final = 1024  # requests in one tier's queue; beyond, refusing at once is kinder


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks for: ``tier`` in the request's own word, ``tokens`` at most, prompt and answer."""

    project: str
    tier: str
    sequences: int
    tokens: int
    over_capacity: OverCapacity | None = None  # None: the tier's own rule
    queue_seconds: float | None = None  # None: the tier's own deadline


@dataclass(slots=True, eq=False)
class Grant:
    """The right to run, until it is released; ``tier`` is the one served."""

    tier: str
    queue_seconds: float
    limits: LimitView
    _admission: Admission
    _wish: Wish
    _has_slots: bool = True
    _released: bool = False

    def free_slots(self) -> None:
        """Give the slots back: nothing is generated any more. Safe twice."""
        if self._has_slots:
            self._has_slots = False
            self._admission._free_slots(self._wish, self.tier)

    def release(self, used_tokens: int) -> None:
        """Give everything back: slots, the stream, and the tokens that were set aside and not used. Safe twice."""
        self.free_slots()
        if not self._released:
            self._released = True
            self._admission._release(self._wish, self.tier, used_tokens)


@dataclass(slots=True, eq=False)
class _Waiting:
    sequences: int
    turn: asyncio.Future[None]


@dataclass(slots=True)
class _Tier:
    settings: TierSettings
    slots: int | None
    used: int = 0
    queue: deque[_Waiting] = field(default_factory=deque)

    def takes(self, sequences: int) -> bool:
        """Whether so many more may run. A request of more choices than there are slots runs when it is alone."""
        return self.slots is None or self.used + sequences <= self.slots or (self.used == 0 < self.slots)

    def wake(self) -> None:
        """Give free slots to those who wait longest; strictly in order, so that a wide request is not passed by."""
        while self.queue:
            waiting = self.queue[0]
            if not waiting.turn.done():  # done: it was cancelled and has not run since
                if not self.takes(waiting.sequences):
                    return
                self.used += waiting.sequences
                waiting.turn.set_result(None)
            self.queue.popleft()


@dataclass(slots=True)
class _Account:
    """One project at one tier."""

    requests: Bucket
    tokens: Bucket
    streams: int = 0


class Admission:
    """Decides for every request: run, wait, run at ``default`` instead, or go away."""

    def __init__(self, tiers: Mapping[str, TierSettings], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tiers = {name: _Tier(settings, settings.slots) for name, settings in tiers.items()}
        self._accounts: dict[tuple[str, str], _Account] = {}

    def configure(self, tiers: Mapping[str, TierSettings], capacity: Mapping[str, int]) -> None:
        """Take new settings; ``capacity`` overrides slots. What runs goes on; what waits may have its turn."""
        for name, settings in tiers.items():
            tier = self._tiers[name]
            tier.settings = settings
            tier.slots = capacity.get(name, settings.slots)
            tier.wake()
        for (_, name), account in self._accounts.items():
            limits = self._tiers[name].settings.limits
            account.requests.resize(limits.requests_per_minute)
            account.tokens.resize(limits.tokens_per_minute)

    def uses(self) -> dict[str, TierUse]:
        """Every tier's slots."""
        return {name: TierUse(tier.slots, tier.used, len(tier.queue)) for name, tier in self._tiers.items()}

    async def enter(self, wish: Wish) -> Grant:
        """Wait for a slot as the rules say. Raises HttpError 429 ``rate_limit_exceeded`` or ``tier_at_capacity``."""
        asked = self._clock()
        try:
            return await self._enter(wish, wish.tier, asked)
        except _FullError:
            name = lane_of(wish.tier)
            if name in LOWEST_TIERS or self._rule(name, wish) != "downgrade":
                raise self._at_capacity(wish, name) from None
        try:
            return await self._enter(wish, DEFAULT_TIER, asked)
        except _FullError:
            raise self._at_capacity(wish, DEFAULT_TIER) from None

    async def _enter(self, wish: Wish, tier_word: str, asked: float) -> Grant:
        name = lane_of(tier_word)
        tier = self._tiers[name]
        account = self._account(wish.project, name)
        try:
            self._reserve(account, tier.settings.limits, wish)
        except HttpError as error:  # which limit it was, a client reads where an answer has it
            error.headers += self._limits_view(account, tier.settings.limits).headers()
            raise
        try:
            await self._slot(tier, wish, self._patience(name, wish, downgraded=tier_word != wish.tier))
        except BaseException:
            self._refund(account, wish)
            raise
        return Grant(tier_word, self._clock() - asked, self._limits_view(account, tier.settings.limits), self, wish)

    def _rule(self, name: str, wish: Wish) -> OverCapacity:
        """What happens where this tier is full; one below which there is none keeps its own rule."""
        own = self._tiers[name].settings.over_capacity
        wanted = own if wish.over_capacity == "downgrade" and name in LOWEST_TIERS else wish.over_capacity
        return wanted or own

    def _patience(self, name: str, wish: Wish, *, downgraded: bool) -> float:
        """Seconds that this request waits for a slot of a tier."""
        tier = self._tiers[name]
        own = tier.settings.queue_milliseconds / 1000
        if tier.slots == 0 and (downgraded or wish.over_capacity != "queue"):
            return 0.0  # a closed tier is waited for by those only who ask to
        if downgraded:
            return own
        rule = self._rule(name, wish)
        if rule == "refuse":
            return 0.0
        if wish.queue_seconds is not None:
            return wish.queue_seconds
        if rule == "queue" and tier.settings.over_capacity != "queue":  # the client would rather wait
            return max(own, self._tiers[DEFAULT_TIER].settings.queue_milliseconds / 1000)
        return own

    async def _slot(self, tier: _Tier, wish: Wish, patience: float) -> None:
        if not tier.queue and tier.takes(wish.sequences):
            tier.used += wish.sequences
            return
        if patience <= 0 or len(tier.queue) >= MAXIMUM_WAITING:
            raise _FullError
        waiting = _Waiting(wish.sequences, asyncio.get_running_loop().create_future())
        tier.queue.append(waiting)
        try:
            async with asyncio.timeout(patience):
                await waiting.turn
        except BaseException as error:
            if waiting.turn.done() and not waiting.turn.cancelled():  # had its turn in the very moment it gave up
                tier.used -= waiting.sequences
            elif waiting in tier.queue:
                tier.queue.remove(waiting)
            tier.wake()  # whoever stood behind
            if isinstance(error, TimeoutError):
                raise _FullError from None
            raise

    def _account(self, project: str, name: str) -> _Account:
        account = self._accounts.get((project, name))
        if account is None:
            limits = self._tiers[name].settings.limits
            account = _Account(
                Bucket(limits.requests_per_minute, self._clock), Bucket(limits.tokens_per_minute, self._clock)
            )
            self._accounts[project, name] = account
        return account

    @staticmethod
    def _reserve(account: _Account, limits: TierLimits, wish: Wish) -> None:
        if limits.streams is not None and account.streams + 1 > limits.streams:
            raise _limited("request", "at once", limits.streams, 1.0)
        if not account.requests.take(1):
            raise _limited("request", "a minute", limits.requests_per_minute, account.requests.seconds_until(1))
        if not account.tokens.take(wish.tokens):
            account.requests.give(1)
            if wish.tokens > (limits.tokens_per_minute or 0):
                raise HttpError(
                    HTTPStatus.TOO_MANY_REQUESTS,
                    f"the request may take {wish.tokens} tokens, more than this project's limit of "
                    f"{limits.tokens_per_minute} tokens a minute at this tier: shorten it or lower max_tokens",
                    code="rate_limit_exceeded",
                    headers=[SHOULD_NOT_RETRY],
                )
            raise _limited("token", "a minute", limits.tokens_per_minute, account.tokens.seconds_until(wish.tokens))
        account.streams += 1

    @staticmethod
    def _refund(account: _Account, wish: Wish) -> None:
        """Undo a reservation: a request that did not run is not counted."""
        account.requests.give(1)
        account.tokens.give(wish.tokens)
        account.streams -= 1

    def _free_slots(self, wish: Wish, tier_word: str) -> None:
        tier = self._tiers[lane_of(tier_word)]
        tier.used -= wish.sequences
        tier.wake()

    def _release(self, wish: Wish, tier_word: str, used_tokens: int) -> None:
        account = self._account(wish.project, lane_of(tier_word))
        account.streams -= 1
        account.tokens.give(max(0, wish.tokens - used_tokens))

    def _at_capacity(self, wish: Wish, name: str) -> HttpError:
        closed = self._tiers[name].slots == 0
        view = self._limits_view(self._account(wish.project, name), self._tiers[name].settings.limits)
        return HttpError(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"the tier '{name}' is " + ("closed: ask for another" if closed else "at capacity: try again, or another"),
            code="tier_at_capacity",
            # A closed one is opened by an operator, not by time.
            headers=([SHOULD_NOT_RETRY] if closed else retry_headers()) + view.headers(),
        )

    @staticmethod
    def _limits_view(account: _Account, limits: TierLimits) -> LimitView:
        return LimitView(
            limits.requests_per_minute, account.requests.view(), limits.tokens_per_minute, account.tokens.view()
        )


class _FullError(Exception):
    """No slot within the time allowed."""


def _limited(noun: str, span: str, limit: int | None, seconds: float) -> HttpError:
    return HttpError(
        HTTPStatus.TOO_MANY_REQUESTS,
        f"the limit of this project at this tier, {limit} {noun}{'' if limit == 1 else 's'} {span}, is reached",
        code="rate_limit_exceeded",
        headers=retry_headers(seconds),
    )
