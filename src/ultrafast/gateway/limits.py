"""Limits a minute as token buckets: full at first, refilled steadily, never more than one minute's worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ultrafast.gateway.failures import Headers

_MINUTE_SECONDS = 60.0


class BucketView(NamedTuple):
    """What is left, and the seconds until the bucket is full again."""

    remaining: int
    reset_seconds: float


class Bucket:
    """``limit`` units a minute; ``None`` never runs out."""

    def __init__(self, limit: int | None, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._limit = limit
        self._level = float(limit or 0)
        self._updated = clock()

    def take(self, units: int) -> bool:
        """Take ``units`` if they are there."""
        if self._limit is None:
            return True
        self._refill()
        if units > self._level:
            return False
        self._level -= units
        return True

    def give(self, units: int) -> None:
        """Give back what was taken and not used."""
        if self._limit is not None:
            self._refill()
            self._level = min(float(self._limit), self._level + units)

    def seconds_until(self, units: int) -> float:
        """How long until ``units`` are there, if nobody else takes any."""
        if self._limit is None:
            return 0.0
        self._refill()
        return max(0.0, units - self._level) * _MINUTE_SECONDS / max(self._limit, 1)

    def resize(self, limit: int | None) -> None:
        """Change the limit; what was used of the old one stays used."""
        if limit == self._limit:
            return
        self._refill()
        used = (self._limit - self._level) if self._limit is not None else 0.0
        self._limit = limit
        self._level = max(0.0, (limit or 0) - used)

    def view(self) -> BucketView:
        """For the headers."""
        if self._limit is None:
            return BucketView(0, 0.0)
        self._refill()
        return BucketView(int(self._level), self.seconds_until(self._limit))

    def _refill(self) -> None:
        now = self._clock()
        # A clock may only go forward here; a suspended machine refills for the time it slept, up to one minute's worth.
        elapsed = max(0.0, now - self._updated)
        self._updated = now
        if self._limit is not None:
            self._level = min(float(self._limit), self._level + elapsed * self._limit / _MINUTE_SECONDS)


class LimitView(NamedTuple):
    """The limits of one project at one tier when a request was admitted."""

    requests_limit: int | None
    requests: BucketView
    tokens_limit: int | None
    tokens: BucketView

    def headers(self) -> Headers:
        """OpenAI's ``x-ratelimit-…`` headers; none for a limit that is not set."""
        headers: Headers = []
        for name, limit, bucket in (
            (b"requests", self.requests_limit, self.requests),
            (b"tokens", self.tokens_limit, self.tokens),
        ):
            if limit is not None:
                headers += [
                    (b"x-ratelimit-limit-" + name, b"%d" % limit),
                    (b"x-ratelimit-remaining-" + name, b"%d" % bucket.remaining),
                    (b"x-ratelimit-reset-" + name, _duration(bucket.reset_seconds)),
                ]
        return headers


def _duration(seconds: float) -> bytes:
    """As OpenAI writes it: ``12ms``, ``1.5s``, ``2m3s``."""
    if seconds < 1:
        return b"%dms" % round(seconds * 1000)
    if seconds < _MINUTE_SECONDS:
        return f"{seconds:.3g}s".encode()
    minutes, rest = divmod(round(seconds), 60)
    return b"%dm%ds" % (minutes, rest)
