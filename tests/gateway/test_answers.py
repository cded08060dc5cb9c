"""A streamed answer to readers of any speed: what is written at once and what waits come out in one order."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message

from tests.fault_proxy import Fault, FaultProxy, events
from ultrafast.backends.base import Call, ChatRequest, GenerationEvent, GenerationStream, SamplingParameters, Summary
from ultrafast.backends.connection import EngineConnection, LocalStream
from ultrafast.backends.settings import UpstreamSettings
from ultrafast.backends.upstream import UpstreamBackend
from ultrafast.gateway import answers
from ultrafast.gateway.admission import Admission, Wish
from ultrafast.gateway.answers import Prepare, stream_answer
from ultrafast.gateway.configuration import Configuration, TierLimits, TierSettings
from ultrafast.gateway.exchange import Exchange
from ultrafast.gateway.records.projects import Identity, Project
from ultrafast.gateway.responses import KEEP_ALIVE
from ultrafast.gateway.routes import Opened

SUMMARY = Summary(1, 0, 3, 0.0, 0.0, 0.0, 0.0, 3)
CHAT = ChatRequest("m", [], SamplingParameters(), 0, 1, None, [], False, True, True, None)


class Client:
    """Takes what is sent while it reads; a buffer of one piece is full at once."""

    def __init__(self) -> None:
        self.body = b""
        self.direct_writes = 0
        self._reads = asyncio.Event()
        self._reads.set()

    def read(self, *, on: bool) -> None:
        (self._reads.set if on else self._reads.clear)()

    async def send(self, message: Message) -> None:
        await self._reads.wait()
        self.body += message.get("body", b"")

    def write(self, data: bytes) -> bool:
        if not self._reads.is_set():
            return False
        self.body += data
        self.direct_writes += 1
        return True

    def texts(self) -> list[str]:
        events = [line.removeprefix("data: ") for line in self.body.decode().split("\n\n") if line.startswith("data")]
        assert events.pop() == "[DONE]"
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        return [text for choice in choices if (text := choice["delta"].get("content"))]


def make_exchange() -> Exchange:
    project = Project("proj-1", "one", 0, "default", in_preview=True)
    return Exchange("req_1", Identity(project, "key-1"), time.perf_counter(), model="m")


async def answer(client: Client, stream: GenerationStream, exchange: Exchange) -> None:
    async def opening(prepare: Prepare) -> Opened:
        prepare()
        first = await anext(stream)
        return Opened(stream, first, backend="local", tier="default", attempts=[])

    await stream_answer(exchange, CHAT, opening, client.send, client.write)


class LateStream:
    """Of another server that names the tier only with its usage."""

    estimated = False
    summary: Summary | None = None
    served_tier: str | None = None

    def __init__(self) -> None:
        self._events = [token(0), token(1), GenerationEvent(0, [], "", None, "stop", SUMMARY)]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GenerationEvent:
        event = self._events.pop(0)
        if event.summary is not None:
            self.served_tier = "default"
        return event

    async def aclose(self) -> None:
        pass

    def divert(self, sink: object, ended: object) -> None:
        """Its events are iterated."""


def test_a_tier_that_is_told_late_is_in_what_follows_and_billed() -> None:
    async def play() -> tuple[Client, Exchange]:
        client, exchange = Client(), make_exchange()
        exchange.tier_served = "ultrafast"

        async def opening(prepare: Prepare) -> Opened:
            prepare()
            stream = LateStream()
            return Opened(stream, await anext(stream), backend="other", tier="ultrafast", attempts=[])

        await stream_answer(exchange, CHAT, opening, client.send, client.write)
        return client, exchange

    client, exchange = asyncio.run(play())
    lines = [line.removeprefix("data: ") for line in client.body.decode().split("\n\n")][:-2]
    chunks = [json.loads(line) for line in lines]
    assert [chunk["service_tier"] for chunk in chunks] == ["ultrafast", "ultrafast", "default", "default"]
    assert chunks[-1]["usage"]["completion_tokens"] == SUMMARY.completion_tokens
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert exchange.tier_served == "default"


def token(index: int) -> GenerationEvent:
    return GenerationEvent(0, [index], f"{index} ", None)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=20))
def test_nothing_is_lost_doubled_or_overtaken(story: list[tuple[bool, int]]) -> None:
    """Each event: whether the client reads when it comes, and how often the tasks run before the next."""

    async def play() -> tuple[Client, Exchange]:
        client, exchange = Client(), make_exchange()
        stream = LocalStream(EngineConnection(lambda stage: None), "req_1", "default")
        answering = asyncio.create_task(answer(client, stream, exchange))
        for index, (reads, turns) in enumerate(story):
            client.read(on=reads)
            stream.push(token(index))
            for _ in range(turns):
                await asyncio.sleep(0)
        client.read(on=True)
        stream.push(GenerationEvent(0, [len(story)], "", None, "stop", SUMMARY))
        await answering
        return client, exchange

    client, exchange = asyncio.run(play())
    assert client.texts() == [f"{index} " for index in range(len(story))]
    assert exchange.produced == len(story) + 1


def test_a_reader_who_keeps_up_costs_no_task() -> None:
    async def play() -> Client:
        client = Client()
        stream = LocalStream(EngineConnection(lambda stage: None), "req_1", "default")
        answering = asyncio.create_task(answer(client, stream, make_exchange()))
        for index in range(10):
            stream.push(token(index))
            await asyncio.sleep(0.001)
        stream.push(GenerationEvent(0, [10], "", None, "stop", SUMMARY))
        await answering
        return client

    assert asyncio.run(play()).direct_writes == 9, "all but the first, with which the response begins"


def test_a_slow_reader_holds_no_slot_when_its_answer_is_generated() -> None:
    async def play() -> tuple[list[int], str]:
        admission = Admission(Configuration().tiers | {"ultrafast": TierSettings(slots=1)})
        client, exchange = Client(), make_exchange()
        exchange.grant = await admission.enter(Wish("proj-1", "ultrafast", 1, 10))
        stream = LocalStream(EngineConnection(lambda stage: None), "req_1", "ultrafast")
        answering = asyncio.create_task(answer(client, stream, exchange))
        used = []
        for index in range(3):
            stream.push(token(index))
            await asyncio.sleep(0.001)
            client.read(on=False)
            used.append(admission.uses()["ultrafast"].used)
        stream.push(GenerationEvent(0, [3], "", None, "stop", SUMMARY))
        used.append(admission.uses()["ultrafast"].used)
        other = await admission.enter(Wish("proj-2", "ultrafast", 1, 10))
        client.read(on=True)
        await answering
        exchange.settle()
        used.append(admission.uses()["ultrafast"].used)
        return used, other.tier

    assert asyncio.run(play()) == ([1, 1, 1, 0, 1], "ultrafast")


def test_a_slow_reader_of_another_servers_answer_holds_nothing_of_it_once_it_is_complete() -> None:
    """Neither a slot nor a connection; and how slow he is, is not told as that server's time."""
    words = [f"{index} " for index in range(500)]
    chunks = [json.dumps({"choices": [{"index": 0, "delta": {"content": word}}]}) for word in words]
    end = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})

    async def play() -> Client:
        admission = Admission(Configuration().tiers | {"default": TierSettings(slots=1)})
        client, exchange = Client(), make_exchange()
        exchange.grant = await admission.enter(Wish("proj-1", "default", 1, 10))
        async with FaultProxy() as proxy:
            proxy.fault, proxy.script = Fault.SCRIPT, events(*chunks, end, "[DONE]")
            backend = UpstreamBackend("other", UpstreamSettings(url=proxy.url, model="theirs"), environment={})
            stream = backend.answer(Call("req_1", CHAT, "m", "default", "proj-1", 1000))
            client.read(on=False)
            answering = asyncio.create_task(answer(client, stream, exchange))
            await asyncio.sleep(2)
            assert (admission.uses()["default"].used, backend.in_flight, client.body) == (0, 0, b"")
            client.read(on=True)
            await answering
            await asyncio.wait_for(backend.retire(), 5)
        return client

    client = asyncio.run(play())
    assert client.texts() == words
    last = next(line for line in client.body.decode().split("\n\n") if "time_info" in line)
    assert json.loads(last.removeprefix("data: "))["time_info"]["completion_time"] < 1.5


@pytest.mark.parametrize(
    ("summary", "used"),
    [
        (Summary(70, 30, 0, 0.0, 0.1, 0.0, 0.0, 0), 70),  # of a prompt of 90
        (Summary(90, 30, 5, 0.0, 0.1, 0.1, 0.1, 5), 95),
        (Summary(0, 0, 0, 0.1, 0.0, 0.0, 0.0, 0), 0),
        (None, 0),  # an engine that does not answer
    ],
)
def test_what_was_computed_of_a_request_given_up_counts(summary: Summary | None, used: int) -> None:
    async def play() -> Exchange:
        limits = TierLimits(tokens_per_minute=1000)
        admission = Admission(Configuration().tiers | {"default": TierSettings(limits=limits)}, clock=lambda: 0.0)
        exchange, stream = make_exchange(), LocalStream(EngineConnection(lambda stage: None), "req_1", "default")
        exchange.prompt_tokens = 90
        exchange.grant = await admission.enter(Wish("proj-1", "default", 1, 190))
        exchange.stream = stream
        stream.summary = summary
        exchange.settle()
        after = await admission.enter(Wish("proj-1", "default", 1, 0))
        assert after.limits.tokens.remaining == 1000 - used
        return exchange

    assert asyncio.run(play()).begun == (used > 0)


def test_a_silent_answer_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "KEEP_ALIVE_SECONDS", 0.05)

    async def play() -> Client:
        client = Client()
        stream = LocalStream(EngineConnection(lambda stage: None), "req_1", "default")
        answering = asyncio.create_task(answer(client, stream, make_exchange()))
        await asyncio.sleep(0.4)
        stream.push(token(0))
        stream.push(GenerationEvent(0, [1], "", None, "stop", SUMMARY))
        await answering
        comments = client.body.count(KEEP_ALIVE)
        await asyncio.sleep(0.2)
        assert client.body.count(KEEP_ALIVE) == comments, "a comment after the end"
        return client

    client = asyncio.run(play())
    assert client.body.count(KEEP_ALIVE) >= 2
    assert client.texts() == ["0 "]
