"""The application in this process, over a real engine: what cannot be provoked from outside."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.gateway.conftest import MODEL
from tests.gateway.running_server import KEY
from tests.gateway.test_protocol import serving
from ultrafast.backends.engine_chat import EngineChat
from ultrafast.backends.local import LocalBackend
from ultrafast.backends.prompt import ChatPrompt
from ultrafast.gateway import answers
from ultrafast.gateway.app import Gateway
from ultrafast.gateway.assembly import build_routes
from ultrafast.gateway.configuration import LOCAL, Configuration
from ultrafast.gateway.hosts import HostPolicy
from ultrafast.gateway.records.store import Records
from ultrafast.gateway.service import Service
from ultrafast.weights.store import resolve_model

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[LocalBackend]:
    backend = LocalBackend(resolve_model(), context=2048)
    await backend.start()
    yield backend
    await backend.stop()


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    with Records.open(tmp_path / "data") as records:
        records.adopt_key(KEY)
        yield records


@pytest.fixture
def service(backend: LocalBackend, records: Records) -> Service:
    configuration = Configuration()
    engines = {LOCAL: EngineChat(LOCAL, backend, resolve_model())}
    return Service(configuration, engines, build_routes(configuration, engines, {}), records)


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(service: Service) -> Gateway:
    return Gateway(service, require_key=True, hosts=HostPolicy("127.0.0.1"))


def open_with(service: Service, prompt: ChatPrompt) -> None:
    """As if the engine had just been loaded, with this tokenizer."""
    service.engines[LOCAL]._prompt = prompt
    service.begin()


@pytest_asyncio.fixture(loop_scope="module")
async def http(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(gateway) as port:
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
            yield client


@pytest.fixture
def prompt() -> ChatPrompt:
    return ChatPrompt.from_file(resolve_model().path)


def request(content: str = "Hi", **values: object) -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 4} | values


async def test_before_the_model_is_loaded_everything_is_503(
    service: Service, http: httpx.AsyncClient, prompt: ChatPrompt
) -> None:
    assert (await http.get("/health")).status_code == 503
    refusal = await http.post(CHAT, json=request())
    assert refusal.status_code == 503
    assert refusal.json()["error"]["type"] == "service_unavailable_error"
    assert "retry-after" in refusal.headers
    open_with(service, prompt)
    assert (await http.get("/health")).status_code == 200
    assert (await http.post(CHAT, json=request())).status_code == 200


async def test_every_refusal_has_its_line_and_with_a_key_its_record(
    service: Service, http: httpx.AsyncClient, prompt: ChatPrompt, records: Records, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "ultrafast"):
        answers = [await http.post(CHAT, json=request())]  # 503: the engine is starting
        open_with(service, prompt)
        answers += [
            await http.post(CHAT, json=request(), headers={"x-ultrafast-over-capacity": "explode"}),
            await http.post(CHAT, content=b"{", headers={"content-type": "application/json"}),
            await http.post(CHAT, content=b"{}", headers={"content-type": "text/plain"}),
        ]
        service.draining = True
        answers.append(await http.post(CHAT, json=request()))
        service.draining = False
        with_record = len(answers)
        answers += [
            await http.post(CHAT, json=request(), headers={"authorization": "Bearer uf-wrong-canary"}),
            await http.post(CHAT, json=request(), headers={"host": "evil-canary.example"}),
            await http.get("/v1/canary"),
            await http.get(CHAT),
        ]
    assert [answer.status_code for answer in answers] == [503, 400, 400, 415, 503, 401, 403, 404, 405]
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("ultrafast")]
    for answer in answers:
        (line,) = [line for line in lines if answer.headers["x-request-id"] in line]
        assert answer.json()["error"]["code"] in line
    assert "canary" not in caplog.text
    (row,) = records.usage(["project"])
    assert (row.requests, row.failed) == (with_record, with_record)


async def test_a_client_that_leaves_before_its_request_is_complete_is_no_failure(
    service: Service, http: httpx.AsyncClient, prompt: ChatPrompt, records: Records
) -> None:
    open_with(service, prompt)
    _, writer = await asyncio.open_connection("127.0.0.1", http.base_url.port)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {KEY}\r\n"
    writer.write((head + "content-type: application/json\r\ncontent-length: 99\r\n\r\n{").encode())
    await writer.drain()
    await asyncio.sleep(0.1)
    writer.close()
    for _ in range(100):
        if rows := records.usage(["project"]):
            break
        await asyncio.sleep(0.02)
    assert [(row.requests, row.cancelled, row.failed) for row in rows] == [(1, 1, 0)]


async def test_a_bug_is_recorded_as_a_failure_and_costs_nothing(
    service: Service, http: httpx.AsyncClient, prompt: ChatPrompt, records: Records
) -> None:
    class Broken(ChatPrompt):
        def tokens(self, messages: object, *, context: int | None = None) -> list[int]:
            raise RuntimeError

    open_with(service, Broken(prompt._template, prompt.tokenizer))
    assert (await http.post(CHAT, json=request())).status_code == 500
    (row,) = records.usage(["project"])
    assert (row.failed, row.cancelled) == (1, 0)


async def test_a_long_prefill_keeps_the_connection_alive(
    service: Service, http: httpx.AsyncClient, prompt: ChatPrompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "KEEP_ALIVE_SECONDS", 0.05)
    open_with(service, prompt)
    async with http.stream("POST", CHAT, json=request("sea and sky " * 400, stream=True)) as response:
        assert response.status_code == 200
        lines = [line async for line in response.aiter_lines() if line]
    first_data = next(index for index, line in enumerate(lines) if line.startswith("data: "))
    assert first_data >= 1
    assert set(lines[:first_data]) == {": keep-alive"}
    assert lines[-1] == "data: [DONE]"
    assert all(line.startswith(("data: ", ": keep-alive")) for line in lines)


async def test_a_bug_is_one_clean_error_and_names_no_value(
    service: Service, http: httpx.AsyncClient, prompt: ChatPrompt, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(ChatPrompt):
        def tokens(self, messages: object, *, context: int | None = None) -> list[int]:
            raise RuntimeError("canary-of-a-prompt: " + str(messages))

    open_with(service, Broken(prompt._template, prompt.tokenizer))
    with caplog.at_level(logging.DEBUG):
        response = await http.post(CHAT, json=request("canary-of-a-prompt"))
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "canary" not in response.text
    assert "canary" not in caplog.text
    assert "RuntimeError at test_gateway.py" in caplog.text


async def test_row_11_long_prompts_take_two_threads_and_only_while_somebody_waits(
    service: Service, http: httpx.AsyncClient, prompt: ChatPrompt
) -> None:
    entered: queue.Queue[object] = queue.Queue()
    release = threading.Event()

    class Slow(ChatPrompt):
        def tokens(self, messages: object, *, context: int | None = None) -> list[int]:
            entered.put(messages)
            release.wait(30)
            return [1]

    open_with(service, Slow(prompt._template, prompt.tokenizer))
    leaving = [asyncio.create_task(http.post(CHAT, json=request("x" * 10_000))) for _ in range(8)]
    async with asyncio.timeout(20):
        for _ in range(2):
            await asyncio.to_thread(entered.get, timeout=20)
        await asyncio.sleep(0.3)
        assert entered.empty()
        assert (await http.get("/health")).status_code == 200
        for task in leaving:
            task.cancel()
        await asyncio.wait(leaving)
        await asyncio.sleep(0.3)
        release.set()
        assert (await http.post(CHAT, json=request("y" * 10_000))).status_code == 200
    assert entered.qsize() == 1, "a request was read though its client had left"


async def test_many_at_once_all_end_and_nothing_is_left(
    service: Service, http: httpx.AsyncClient, prompt: ChatPrompt, backend: LocalBackend
) -> None:
    open_with(service, prompt)

    async def one(number: int) -> str:
        if number % 3 == 0:  # leaves early
            async with http.stream("POST", CHAT, json=request(stream=True, max_tokens=200)) as response:
                async for _ in response.aiter_lines():
                    return "left"
        response = await http.post(CHAT, json=request(n=2, seed=number))
        assert response.status_code == 200
        choices = response.json()["choices"]
        assert [choice["index"] for choice in choices] == [0, 1]
        return "ended"

    results = await asyncio.gather(*(one(number) for number in range(24)))
    assert results.count("left") == 8
    service.draining = True
    await service.idle()
    status = await backend.status()
    assert (status.running, status.waiting, status.free_blocks) == (0, 0, status.block_count)
