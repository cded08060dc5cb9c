"""Another server that misbehaves: a proxy with faults before a second, real Ultrafast, and a route that goes on to it.

Each fault ends as the design says: before the first token the next backend answers, after it the stream ends with an
error, and no token is lost or doubled (FAULTS rows 14, 20, 21).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.fault_proxy import EVENTS_BEFORE_THE_FAULT, Fault, FaultProxy, response
from tests.gateway.conftest import MODEL
from tests.gateway.running_server import KEY, RunningServer
from ultrafast.backends.base import Call, ChatRequest, GenerationEvent, SamplingParameters
from ultrafast.backends.settings import UpstreamSettings
from ultrafast.backends.upstream import UpstreamBackend
from ultrafast.errors import EngineUnavailableError, RequestError, UpstreamError
from ultrafast.gateway.assembly import build_upstreams
from ultrafast.gateway.configuration import Configuration, RouteSettings
from ultrafast.gateway.records.store import Records
from ultrafast.gateway.routes import Attempt, Routes

QUESTION = "Name three colours and say what each is good for."
TOKENS = 24
ENVIRONMENT = {"OTHER_KEY": KEY}

BEFORE = [
    Fault.SILENCE,
    Fault.HANG_UP,
    Fault.STALL_BEFORE,
    Fault.CUT_BEFORE,
    Fault.NO_HTTP,
    Fault.NO_EVENTS,
    Fault.NO_JSON,
    Fault.ENDLESS_EVENT,
]
AFTER = [Fault.STALL_AFTER, Fault.CUT_AFTER, Fault.HALF_CLOSE_AFTER, Fault.RESET_AFTER]


def call_of(content: str = QUESTION, *, tier: str = "default", max_tokens: int = TOKENS, choices: int = 1) -> Call:
    chat = ChatRequest(
        model="chat",
        messages=[{"role": "user", "content": content}],
        sampling=SamplingParameters(temperature=0, seed=5),
        seed=5,
        choices=choices,
        max_tokens=max_tokens,
        stop=[],
        logprobs=False,
        stream=True,
        include_usage=False,
        tier=None,
    )
    return Call("req_test", chat, chat.model, tier, "project", max_tokens)


def settings_of(url: str, **values: object) -> UpstreamSettings:
    known = {"key_variable": "OTHER_KEY", "first_token_seconds": 20.0, "idle_seconds": 20.0}
    return UpstreamSettings(url=url, model=MODEL, **known | values)  # type: ignore[arg-type]


@dataclass
class Setting:
    """A route over two backends: through the proxy, then straight to the real server."""

    proxy: FaultProxy
    routes: Routes
    backends: dict[str, UpstreamBackend]
    clock: list[float]  # of the back-offs: it stands still unless a test moves it
    answer: str  # the direct one
    completion_tokens: int


@pytest.fixture
def direct(server: RunningServer) -> tuple[str, int]:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": TOKENS,
    }
    answer = httpx.post(
        server.base_url + "/chat/completions", json=body, headers={"authorization": f"Bearer {KEY}"}, timeout=60
    ).json()
    return answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]


@contextlib.asynccontextmanager
async def setting_of(
    server: RunningServer, direct: tuple[str, int], order: tuple[str, ...] = ("bad", "good"), **values: object
) -> AsyncIterator[Setting]:
    async with FaultProxy(server.port) as proxy:
        settings = {"bad": settings_of(proxy.url, **values), "good": settings_of(server.base_url)}
        clock = [100.0]
        backends = {
            name: UpstreamBackend(name, settings[name], environment=ENVIRONMENT, clock=lambda: clock[0])
            for name in order
        }
        configuration = Configuration(
            backends={name: settings[name] for name in order}, routes=(RouteSettings("chat", order),)
        )
        yield Setting(proxy, Routes(configuration, backends), backends, clock, *direct)
        for backend in backends.values():
            await asyncio.wait_for(backend.retire(), 5)
            assert backend.in_flight == 0


async def read(stream: AsyncIterator[GenerationEvent]) -> list[GenerationEvent]:
    return [event async for event in stream]


def text_of(events: list[GenerationEvent]) -> str:
    return "".join(event.text for event in events)


async def test_a_healthy_server_answers_byte_for_byte(server: RunningServer, direct: tuple[str, int]) -> None:
    async with setting_of(server, direct) as setting:
        for fault in (Fault.NONE, Fault.DRIBBLE):
            setting.proxy.fault = fault
            opened = await setting.routes.open(call_of())
            events = await read(opened)
            assert text_of(events) == setting.answer
            assert (opened.backend, opened.attempts, opened.tier, opened.estimated) == ("bad", [], "default", False)
            summary = events[-1].summary
            assert summary is not None
            assert summary.completion_tokens == setting.completion_tokens
            assert events[-1].finish_reason in ("stop", "length")
            assert [event.summary for event in events[:-1]] == [None] * (len(events) - 1)
            assert summary.ttft_seconds > 0


async def test_a_connection_is_kept_for_the_next_call(server: RunningServer, direct: tuple[str, int]) -> None:
    async with setting_of(server, direct, ("good",)) as setting:
        for _ in range(3):
            assert text_of(await read(await setting.routes.open(call_of()))) == setting.answer
        pool = setting.backends["good"]._client._transport._pool  # type: ignore[attr-defined]
        assert len(pool.connections) == 1


@pytest.mark.parametrize("fault", BEFORE, ids=lambda fault: fault.name)
async def test_a_fault_before_the_first_token_goes_on_to_the_next(
    server: RunningServer, direct: tuple[str, int], fault: Fault
) -> None:
    async with setting_of(server, direct, first_token_seconds=0.5) as setting:
        setting.proxy.fault = fault
        opened = await setting.routes.open(call_of())
        assert text_of(await read(opened)) == setting.answer
        assert opened.backend == "good"
        assert [attempt.backend for attempt in opened.attempts] == ["bad"]
        assert not setting.backends["bad"].ready  # it backs off
        attempts = setting.proxy.connections
        assert text_of(await read(await setting.routes.open(call_of()))) == setting.answer
        assert setting.proxy.connections == attempts, "a backend that backs off was asked"


async def test_nobody_listens(server: RunningServer, direct: tuple[str, int]) -> None:
    async with setting_of(server, direct) as setting:
        assert setting.proxy._server is not None
        setting.proxy._server.close()
        opened = await setting.routes.open(call_of())
        assert text_of(await read(opened)) == setting.answer
        assert opened.attempts == [Attempt("bad", "the server behind this model cannot be reached")]


@pytest.mark.parametrize("status", [429, 498, 500, 502, 503, 401, 403, 404, 307])
async def test_a_refusal_goes_on_to_the_next(server: RunningServer, direct: tuple[str, int], status: int) -> None:
    async with setting_of(server, direct) as setting:
        setting.proxy.fault = Fault.SCRIPT
        body = '{"error": {"message": "secret-of-the-upstream", "type": "x", "code": "y"}}'
        setting.proxy.script = response(status, body, "retry-after: 1", "location: http://127.0.0.1:1/", "x-secret: s")
        opened = await setting.routes.open(call_of())
        assert text_of(await read(opened)) == setting.answer
        assert (opened.backend, len(opened.attempts), setting.proxy.connections) == ("good", 1, 1)
        assert "secret" not in opened.attempts[0].reason


@pytest.mark.parametrize("fault", AFTER, ids=lambda fault: fault.name)
async def test_a_fault_after_the_first_token_ends_the_answer(
    server: RunningServer, direct: tuple[str, int], fault: Fault
) -> None:
    async with setting_of(server, direct, idle_seconds=0.5) as setting:
        setting.proxy.fault = fault
        opened = await setting.routes.open(call_of())
        assert opened.backend == "bad"
        events: list[GenerationEvent] = []
        with pytest.raises(UpstreamError):
            async for event in opened:
                events.append(event)  # noqa: PERF401 - those before the failure are wanted
        # All that came is there once, and nothing of another backend's.
        assert 0 < len(events) <= EVENTS_BEFORE_THE_FAULT
        assert setting.answer.startswith(text_of(events))
        assert text_of(events) != setting.answer
        assert not setting.backends["bad"].ready
        await opened.aclose()


async def test_after_the_back_off_one_request_tries_again(server: RunningServer, direct: tuple[str, int]) -> None:
    async with setting_of(server, direct) as setting:
        setting.proxy.fault = Fault.HANG_UP
        assert text_of(await read(await setting.routes.open(call_of()))) == setting.answer
        assert setting.proxy.connections == 1
        setting.proxy.fault = Fault.NONE
        setting.clock[0] += 0.6
        first, second = await asyncio.gather(setting.routes.open(call_of()), setting.routes.open(call_of()))
        assert {first.backend, second.backend} == {"bad", "good"}
        assert text_of(await read(first)) == text_of(await read(second)) == setting.answer
        third = await setting.routes.open(call_of())
        assert third.backend == "bad"
        await third.aclose()


async def test_the_clients_fault_is_told_and_goes_nowhere_else(server: RunningServer, direct: tuple[str, int]) -> None:
    async with setting_of(server, direct) as setting:
        with pytest.raises(RequestError) as caught:
            await setting.routes.open(call_of("sea " * 20_000))
        assert caught.value.code == "context_length_exceeded"
        assert caught.value.param == "messages"
        assert setting.backends["bad"].ready


async def test_nothing_is_left_to_try(server: RunningServer, direct: tuple[str, int]) -> None:
    async with setting_of(server, direct, ("bad",)) as setting:
        setting.proxy.fault = Fault.SCRIPT
        setting.proxy.script = response(429, "{}", "retry-after: 7")
        attempts: list[Attempt] = []
        for _ in range(2):
            with pytest.raises(EngineUnavailableError) as caught:
                await setting.routes.open(call_of(), attempts)
            assert caught.value.retry_after_seconds == 7
        assert [attempt.backend for attempt in attempts] == ["bad", "bad"]
        assert setting.proxy.connections == 1


@pytest.mark.parametrize("fault", [Fault.SILENCE, Fault.STALL_BEFORE, Fault.STALL_AFTER], ids=lambda fault: fault.name)
async def test_cancelling_closes_the_connection_at_once(
    server: RunningServer, direct: tuple[str, int], fault: Fault
) -> None:
    async def run(setting: Setting) -> None:
        opened = await setting.routes.open(call_of())
        async with contextlib.aclosing(opened):
            await read(opened)

    async with setting_of(server, direct) as setting:
        setting.proxy.fault = fault
        task = asyncio.create_task(run(setting))
        await asyncio.sleep(0.7)
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(setting.proxy.left.wait(), 2)
        assert time.monotonic() - started < 0.5
        assert setting.backends["bad"].in_flight == 0
        assert setting.backends["bad"].ready, "giving up is not the server's failure"


async def test_another_task_closes_the_stream(server: RunningServer, direct: tuple[str, int]) -> None:
    async with setting_of(server, direct) as setting:
        setting.proxy.fault = Fault.STALL_AFTER
        opened = await setting.routes.open(call_of())
        reading = asyncio.create_task(read(opened))
        await asyncio.sleep(0.5)
        await opened.aclose()
        await asyncio.wait_for(reading, 1)  # ends, and without an error
        await asyncio.wait_for(setting.proxy.left.wait(), 1)
        await opened.aclose()
        assert setting.backends["bad"].in_flight == 0


async def test_a_reload_drops_no_stream(server: RunningServer, direct: tuple[str, int]) -> None:
    async with setting_of(server, direct, ("good",)) as setting:
        opened = await setting.routes.open(call_of())
        changed = settings_of(server.base_url, concurrent=3)
        configuration = Configuration(backends={"good": changed}, routes=(RouteSettings("chat", ("good",)),))
        backends = build_upstreams(configuration, ENVIRONMENT, setting.backends)
        routes = Routes(configuration, backends)
        retiring = asyncio.create_task(setting.backends["good"].retire())
        other = await routes.open(call_of())
        assert not retiring.done()
        assert text_of(await read(opened)) == text_of(await read(other)) == setting.answer
        await asyncio.wait_for(retiring, 5)
        await backends["good"].retire()


async def test_what_is_sent_is_openai_s(server: RunningServer, direct: tuple[str, int]) -> None:
    async with setting_of(server, direct, tiers={"priority": "priority"}) as setting:
        for tier in ("ultrafast", "fast", "default"):
            await read(await setting.routes.open(call_of(tier=tier)))
        bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in setting.proxy.requests]
        assert [body.get("service_tier") for body in bodies] == [None, "priority", None]
        assert set(bodies[0]) == {"model", "messages", "stream", "stream_options", "max_tokens", "seed", "temperature"}
        assert bodies[0]["model"] == MODEL
        assert not any(b"ultrafast" in json.dumps(body).encode() for body in bodies)


async def test_no_key_and_no_prompt_is_logged(
    server: RunningServer, direct: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with setting_of(server, direct, first_token_seconds=0.3) as setting:
        for fault in BEFORE:
            setting.proxy.fault = fault
            backend = UpstreamBackend("bad", setting.backends["bad"].settings, environment=ENVIRONMENT)
            with pytest.raises(UpstreamError) as caught:
                await read(backend.answer(call_of("a canary sings 8c1f")))
            assert caught.value.__cause__ is None
            assert KEY not in repr(caught.value) + repr(backend)
            await backend.retire()
    mine = [record.getMessage() for record in caplog.records if record.name.startswith("ultrafast")]
    assert len(mine) == len(BEFORE)
    assert not any("8c1f" in record.getMessage() or KEY in record.getMessage() for record in caplog.records)


def test_the_account_of_a_failed_request_names_the_backend_that_was_tried(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]  # where nobody listens any more
    file = tmp_path / "ultrafast.toml"
    file.write_text(
        f"""
[backends.rack]
kind = "upstream"
url = "http://127.0.0.1:{port}/v1"
model = "theirs"

[[routes]]
model = "chat"
backends = ["rack"]

[tiers.default.limits]
requests_per_minute = 60
""",
        encoding="utf-8",
    )
    server = RunningServer("--config", str(file))
    body = {"model": "chat", "messages": [{"role": "user", "content": "a canary sings 8c1f"}]}
    headers = {"authorization": f"Bearer {KEY}"}
    statuses: list[int] = []
    while statuses.count(502) < 4 or statuses[-1] == 502:  # by then it is left alone for two seconds or more
        refusal = httpx.post(server.base_url + "/chat/completions", json=body, headers=headers, timeout=60)
        statuses.append(refusal.status_code)
        assert refusal.headers["x-ratelimit-limit-requests"] == "60", "as an answer would say"
        assert 60 - len(statuses) <= int(refusal.headers["x-ratelimit-remaining-requests"]) < 60
        time.sleep(0.2 if refusal.status_code == 503 else 0)
    assert set(statuses) == {502, 503}
    assert server.wait_for(r"req_\w+: backend rack: the server behind this model cannot be reached$", 5)
    assert server.wait_for(r"req_\w+: backend rack was not asked: left alone after a failure, for \d\.\d s more$", 5)
    assert server.wait_for(r"req_\w+ upstream_error tier=default backend=rack model=chat project=default prompt=", 5)
    assert server.wait_for(r"req_\w+ server_is_overloaded tier=default backend=rack model=chat project=default ", 5)
    socket_file = Path(server.data_directory) / "admin.sock"
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket_file))) as client:
        (row,) = client.get("http://ultrafast/backends").json()["data"]
    assert (row["name"], row["models"], row["state"], row["tiers"]) == ("rack", ["chat"], "backing off", [])
    assert (row["running"], row["last_error"]) == (0, "no connection")
    assert server.stop() == 0, server.output
    assert "8c1f" not in server.output
    assert KEY not in server.output
    with Records.open(Path(server.data_directory)) as records:
        (row,) = records.usage(["backend", "model", "tier"])
    assert row.group == {"backend": "rack", "model": "chat", "tier": ""}
    assert (row.requests, row.failed, row.cost_millionths, row.served) == (len(statuses), len(statuses), 0, {})


def test_what_a_silent_backend_took_is_told_as_waiting(server: RunningServer, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # takes connections and answers nothing
        file = tmp_path / "ultrafast.toml"
        file.write_text(
            f"""
[backends.silent]
kind = "upstream"
url = "http://127.0.0.1:{listener.getsockname()[1]}/v1"
model = "{MODEL}"
first_token_seconds = 0.5

[backends.good]
kind = "upstream"
url = "{server.base_url}"
model = "{MODEL}"
key_variable = "ULTRAFAST_API_KEY"

[[routes]]
model = "chat"
backends = ["silent", "good"]
""",
            encoding="utf-8",
        )
        gateway = RunningServer("--config", str(file))
        body = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        headers = {"authorization": f"Bearer {KEY}"}
        answer = httpx.post(gateway.base_url + "/chat/completions", json=body, headers=headers, timeout=60).json()
        assert gateway.stop() == 0, gateway.output
    assert answer["time_info"]["queue_time"] >= 0.5
    with Records.open(Path(gateway.data_directory)) as records:
        (row,) = records.usage(["backend"])
    assert row.group == {"backend": "good"}
