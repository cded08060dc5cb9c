"""Whether another server is worth a try, judged by real requests only."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

FIRST_BACK_OFF_SECONDS: Final = 0.5
MAXIMUM_BACK_OFF_SECONDS: Final = 30.0
MAXIMUM_RETRY_AFTER_SECONDS: Final = 600.0  # whatever the server asks for: it is asked again by then


class Health:
    """Back-off after failures: doubled each time, jittered, capped; then one request at a time until one succeeds.

    A request belongs to the round in which it began. What a request of an earlier round came to says nothing about
    now: of fifty that fail together the first one counts, and a stream that still runs heals nothing.
    """

    def __init__(self, clock: Callable[[], float], draw: Callable[[], float] = random.random) -> None:
        self._clock = clock
        self._draw = draw
        self._round = 0
        self._failures = 0
        self._until = 0.0
        self._probing = False

    @property
    def failing(self) -> bool:
        """Whether the last thing heard was a failure."""
        return self._failures > 0

    @property
    def ready(self) -> bool:
        """Whether a request may begin."""
        return not self.failing or (not self._probing and self._clock() >= self._until)

    @property
    def wait_seconds(self) -> float:
        """How long until the next request may begin, as far as is known."""
        return max(0.0, self._until - self._clock()) if self.failing else 0.0

    @property
    def words(self) -> str:
        """How things stand, for a person."""
        if not self.failing:
            return "ok"
        if self._probing:
            return "tried again by one request, after a failure"
        seconds = self.wait_seconds
        return (
            f"left alone after a failure, for {seconds:.1f} s more"
            if seconds
            else "to be tried again by the next request"
        )

    def begin(self) -> int:
        """A request begins; the number goes into the calls below."""
        self._probing = self.failing
        return self._round

    def succeed(self, number: int) -> None:
        """The request was answered."""
        if number == self._round:
            self._failures = 0
            self._probing = False

    def fail(self, number: int, retry_after_seconds: float | None = None) -> None:
        """The request failed by the server's fault, which perhaps said when to come again."""
        if number == self._round:
            self._round += 1
            pause = min(MAXIMUM_BACK_OFF_SECONDS, FIRST_BACK_OFF_SECONDS * 2.0 ** min(self._failures, 16))
            self._failures += 1
            self._probing = False
            # Between half and all of it: gateways that failed together do not come back together.
            self._until = self._clock() + pause * (0.5 + self._draw() / 2)
        if retry_after_seconds is not None and self.failing:
            asked = min(retry_after_seconds, MAXIMUM_RETRY_AFTER_SECONDS)
            self._until = max(self._until, self._clock() + asked)

    def abandon(self, number: int) -> None:
        """The request was given up before anything was known; another may try."""
        if number == self._round:
            self._probing = False
