"""A stream of our engine that is diverted: every event once and in order, whatever the sink takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.backends import connection
from ultrafast.backends.base import GenerationEvent, Summary, as_relayed
from ultrafast.backends.connection import EngineConnection, LocalStream
from ultrafast.errors import EngineUnavailableError

SUMMARY = Summary(1, 0, 3, 0.0, 0.0, 0.0, 0.0, 3)


def make_stream() -> LocalStream:
    stream = LocalStream(EngineConnection(lambda stage: None), "req_1", "ultrafast")
    assert as_relayed(stream) is None
    return stream


def do_nothing() -> None:
    pass


async def iterate(stream: LocalStream, seen: list[int]) -> None:
    async for event in stream:
        seen += event.token_ids


@given(
    taken=st.lists(st.booleans(), min_size=1, max_size=12),
    runs=st.lists(st.booleans(), min_size=12, max_size=12),
    diverted_at=st.integers(0, 12),
)
def test_order_is_kept(taken: list[bool], runs: list[bool], diverted_at: int) -> None:
    """Events come in bursts or one by one; the sink takes them or not; all are seen once, in order."""

    async def play() -> tuple[list[int], list[int]]:
        stream, seen = make_stream(), list[int]()
        direct: list[int] = []

        def sink(event: GenerationEvent) -> bool:
            (index,) = event.token_ids
            if taken[index]:
                seen.append(index)
                direct.append(index)
            return taken[index]

        reader = asyncio.create_task(iterate(stream, seen))
        for index in range(len(taken)):
            if index == diverted_at:
                stream.divert(sink, do_nothing)
            stream.push(GenerationEvent(0, [index], "x", None))
            if runs[index]:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        stream.push(GenerationEvent(0, [len(taken)], "", None, "stop", SUMMARY))
        await reader
        return seen, direct

    seen, direct = asyncio.run(play())
    assert seen == list(range(len(taken) + 1))
    assert len(taken) not in direct, "the event with the summary is never offered"


@pytest.mark.parametrize("answers", [True, False])
def test_who_gives_up_waits_for_the_account_but_not_for_ever(monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    monkeypatch.setattr(connection, "ACCOUNT_SECONDS", 0.1)

    async def play() -> LocalStream:
        stream = make_stream()
        stream._connection._streams["req_1"] = stream
        stream.push(GenerationEvent(0, [1], "x", None))
        closing = [asyncio.create_task(stream.aclose()) for _ in range(2)]
        await asyncio.sleep(0)
        stream.push(GenerationEvent(0, [2], "y", None))  # was under way
        if answers:
            stream.push(GenerationEvent(0, [], "", None, None, SUMMARY))
        await asyncio.wait_for(asyncio.gather(*closing), 5)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        return stream

    assert asyncio.run(play()).summary is (SUMMARY if answers else None)


def broken(event: GenerationEvent) -> bool:
    raise RuntimeError("a bug of one request")


def refusing(event: GenerationEvent) -> bool:
    return False


@pytest.mark.parametrize("sink", [broken, refusing])
def test_what_a_sink_cannot_take_is_iterated_over(sink: Callable[[GenerationEvent], bool]) -> None:
    async def play() -> list[int]:
        stream, seen = make_stream(), list[int]()
        stream.divert(sink, do_nothing)
        stream.push(GenerationEvent(0, [1], "x", None))
        stream.push(GenerationEvent(0, [2], "", None, "stop", SUMMARY))
        await iterate(stream, seen)
        return seen

    assert asyncio.run(play()) == [1, 2]


def test_a_failure_comes_after_what_was_taken() -> None:
    async def play() -> list[int]:
        stream, seen = make_stream(), list[int]()
        stream.divert(lambda event: not seen.extend(event.token_ids), do_nothing)
        reader = asyncio.create_task(iterate(stream, seen))
        await asyncio.sleep(0)
        stream.push(GenerationEvent(0, [1], "x", None))
        stream.fail(EngineUnavailableError("gone"))
        with pytest.raises(EngineUnavailableError):
            await reader
        return seen

    assert asyncio.run(play()) == [1]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("is_late", [False, True])
def test_the_end_is_told_at_once_and_once(fails: bool, is_late: bool) -> None:
    """Also where nobody has read what comes before it, and where the end came before the diversion."""

    async def play() -> None:
        stream, ends = make_stream(), list[bool]()
        if not is_late:
            stream.divert(refusing, lambda: ends.append(True))
        stream.push(GenerationEvent(0, [1], "x", None))
        assert not ends
        if fails:
            stream.fail(EngineUnavailableError("gone"))
        else:
            stream.push(GenerationEvent(0, [2], "", None, "stop", SUMMARY))
        if is_late:
            stream.divert(refusing, lambda: ends.append(True))
        assert ends == [True]
        await stream.aclose()
        assert ends == [True]

    asyncio.run(play())
