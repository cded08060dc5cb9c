"""Back-off of another server, with a clock and dice of our own."""

from __future__ import annotations

import pytest

from ultrafast.backends import health
from ultrafast.backends.health import Health


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def failed(subject: Health, clock: Clock, **values: float) -> float:
    """Wait until it is ready, fail once, and say how long it backs off now."""
    clock.now += subject.wait_seconds
    assert subject.ready
    subject.fail(subject.begin(), **values)
    assert not subject.ready
    return subject.wait_seconds


def test_the_pause_doubles_up_to_its_limit(clock: Clock) -> None:
    subject = Health(clock, draw=lambda: 1.0)
    pauses = [failed(subject, clock) for _ in range(9)]
    assert pauses == pytest.approx([0.5, 1, 2, 4, 8, 16, 30, 30, 30])
    for _ in range(10_000):
        failed(subject, clock)
    assert subject.wait_seconds == pytest.approx(health.MAXIMUM_BACK_OFF_SECONDS)


def test_the_pause_is_jittered_between_half_and_all_of_it(clock: Clock) -> None:
    assert failed(Health(clock, draw=lambda: 0.0), clock) == pytest.approx(0.25)
    assert failed(Health(clock, draw=lambda: 1.0), clock) == pytest.approx(0.5)


def test_what_the_server_asks_for_is_kept_within_reason(clock: Clock) -> None:
    assert failed(Health(clock), clock, retry_after_seconds=20.0) == pytest.approx(20)
    assert failed(Health(clock, lambda: 1.0), clock, retry_after_seconds=0.0) == pytest.approx(0.5)
    assert failed(Health(clock), clock, retry_after_seconds=1e9) == health.MAXIMUM_RETRY_AFTER_SECONDS


def test_after_the_pause_one_request_tries(clock: Clock) -> None:
    subject = Health(clock)
    failed(subject, clock)
    clock.now += 1
    number = subject.begin()
    assert not subject.ready
    subject.abandon(number)
    assert subject.ready, "a request that was given up must not block the next one"
    subject.succeed(subject.begin())
    assert subject.ready
    assert subject.wait_seconds == 0
    subject.begin()
    assert subject.ready, "a healthy server takes many at once"


def test_success_begins_anew(clock: Clock) -> None:
    subject = Health(clock, draw=lambda: 1.0)
    assert [failed(subject, clock) for _ in range(3)] == pytest.approx([0.5, 1, 2])
    clock.now += 2
    subject.succeed(subject.begin())
    assert failed(subject, clock) == pytest.approx(0.5)


def test_requests_that_fail_together_count_once(clock: Clock) -> None:
    subject = Health(clock, draw=lambda: 1.0)
    numbers = [subject.begin() for _ in range(50)]
    for number in numbers:
        subject.fail(number)
    assert subject.wait_seconds == pytest.approx(0.5)
    subject.fail(numbers[0], 9.0)
    assert subject.wait_seconds == pytest.approx(9)  # but what one of them was told counts


def test_what_began_before_a_failure_heals_nothing(clock: Clock) -> None:
    subject = Health(clock)
    old, bad = subject.begin(), subject.begin()
    subject.fail(bad)
    subject.succeed(old)
    subject.abandon(old)
    assert not subject.ready
    clock.now += 1
    subject.begin()
    subject.abandon(old)
    assert not subject.ready, "the one that tries is still under way"
