"""Token buckets: what is left of a minute's worth, and the headers that say so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.gateway.limits import Bucket, BucketView, LimitView, _duration


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_is_full_at_first_and_refills_steadily() -> None:
    clock = Clock()
    bucket = Bucket(60, clock)
    assert bucket.take(60)
    assert not bucket.take(1)
    assert bucket.seconds_until(30) == pytest.approx(30)
    clock.now += 10
    assert bucket.view() == BucketView(10, pytest.approx(50))
    assert bucket.take(10)
    assert not bucket.take(1)
    clock.now += 3600
    assert bucket.view().remaining == 60


def test_no_limit_never_runs_out() -> None:
    bucket = Bucket(None, Clock())
    assert all(bucket.take(10**9) for _ in range(5))
    assert bucket.seconds_until(10**9) == 0


def test_a_changed_limit_keeps_what_was_used() -> None:
    bucket = Bucket(100, Clock())
    bucket.take(80)
    bucket.resize(200)
    assert bucket.view().remaining == 120
    bucket.resize(50)
    assert bucket.view().remaining == 0
    bucket.resize(None)
    assert bucket.take(10**6)


@given(
    limit=st.integers(1, 1000),
    steps=st.lists(st.tuples(st.sampled_from(["take", "give", "wait", "back"]), st.integers(0, 400)), max_size=60),
)
def test_a_bucket_is_never_overdrawn_nor_overfull(limit: int, steps: list[tuple[str, int]]) -> None:
    clock = Clock()
    bucket = Bucket(limit, clock)
    taken = given = 0
    waited = 0.0
    for what, amount in steps:
        if what == "take" and bucket.take(amount):
            taken += amount
        elif what == "give":
            bucket.give(amount)
            given += amount
        elif what == "wait":
            clock.now += amount / 100
            waited += amount / 100
        elif what == "back":
            clock.now -= amount / 100
            waited += amount / 100  # a step back gives nothing, but the way forward again counts
        assert 0 <= bucket.view().remaining <= limit
        assert taken <= limit + given + waited * limit / 60 + 1e-6


def test_headers_as_openai_writes_them() -> None:
    view = LimitView(60, BucketView(59, 0.012), None, BucketView(0, 0.0))
    assert view.headers() == [
        (b"x-ratelimit-limit-requests", b"60"),
        (b"x-ratelimit-remaining-requests", b"59"),
        (b"x-ratelimit-reset-requests", b"12ms"),
    ]
    assert [_duration(seconds) for seconds in (0.0, 0.9994, 1.5, 59.96, 60.0, 123.4)] == [
        b"0ms",
        b"999ms",
        b"1.5s",
        b"60s",
        b"1m0s",
        b"2m3s",
    ]
