"""A route over llama.cpp's own server (of llama-cpp-python) and a second Ultrafast: a server that is not ours."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.gateway.running_server import KEY, RunningServer
from tests.gateway.test_upstream_faults import ENVIRONMENT, QUESTION, TOKENS, call_of, read, settings_of, text_of
from ultrafast.backends.settings import UpstreamSettings
from ultrafast.backends.upstream import UpstreamBackend
from ultrafast.bench.catalogue import PEERS
from ultrafast.bench.environments import interpreter
from ultrafast.errors import UpstreamError
from ultrafast.gateway.configuration import Configuration, RouteSettings
from ultrafast.gateway.routes import Routes
from ultrafast.weights.cache import cache_directory

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]  # it may have to be compiled

START_SECONDS = 120


class LlamaServer:
    """``python -m llama_cpp.server`` on a free port, with the default model."""

    def __init__(self, python: Path, model: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        arguments = ["--model", str(model), "--port", str(self.port), "--n_ctx", "2048", "--api_key", KEY]
        self.process = subprocess.Popen(
            [str(python), "-m", "llama_cpp.server", *arguments, "--model_alias", "theirs"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(self.url + "/models", headers=self.headers).status_code == 200:
                    return
            time.sleep(0.2)
        self.process.kill()
        raise RuntimeError("llama.cpp's server did not start")

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {KEY}"}

    def answer(self) -> tuple[str, int]:
        """What it answers to the question by itself, and in how many tokens."""
        body = {
            "model": "theirs",
            "messages": [{"role": "user", "content": QUESTION}],
            "temperature": 0,
            "max_tokens": TOKENS,
        }
        response = httpx.post(self.url + "/chat/completions", json=body, headers=self.headers, timeout=120).json()
        return response["choices"][0]["message"]["content"], response["usage"]["completion_tokens"]


@pytest.fixture
def llama(model_path: Path) -> Iterator[LlamaServer]:
    peer = PEERS["llama-cpp"].environment
    requirements = tuple(each.replace("llama-cpp-python", "llama-cpp-python[server]") for each in peer.requirements)
    environment = dataclasses.replace(peer, name="llama-cpp-server", requirements=requirements)
    python = interpreter(environment, cache_directory() / "bench", lambda line: None)
    running = LlamaServer(python, model_path)
    yield running
    running.process.kill()
    running.process.wait()


async def test_routes_over_another_server(llama: LlamaServer, server: RunningServer) -> None:
    # Its answers depend on whether it still holds the prompt, as ours do not: from the second one on it does.
    llama.answer()
    expected, tokens = llama.answer()
    settings: dict[str, UpstreamSettings] = {
        "llama": UpstreamSettings(url=llama.url, model="theirs", key_variable="OTHER_KEY", idle_seconds=60),
        "good": settings_of(server.base_url),
    }
    backends = {name: UpstreamBackend(name, each, environment=ENVIRONMENT) for name, each in settings.items()}
    configuration = Configuration(backends={**settings}, routes=(RouteSettings("chat", ("llama", "good")),))
    routes = Routes(configuration, backends)

    opened = await routes.open(call_of())
    events = await read(opened)
    assert text_of(events) == expected
    summary = events[-1].summary
    assert summary is not None
    assert (opened.backend, opened.attempts) == ("llama", [])
    # It sends no usage in streams: its chunks are counted, of which one may hold no text or two tokens.
    assert summary.completion_tokens == pytest.approx(tokens, abs=2)

    # Cancelled in the middle, it is free for the next one at once, who gets the same as before.
    opened = await routes.open(call_of(max_tokens=1500))
    await anext(opened)
    await opened.aclose()
    started = time.monotonic()
    assert text_of(await read(await routes.open(call_of()))) == expected
    assert time.monotonic() - started < 30

    # Killed in the middle, it ends that answer, and the next one comes from the other server.
    opened = await routes.open(call_of(max_tokens=1500))
    await anext(opened)
    llama.process.kill()
    with pytest.raises(UpstreamError):
        await read(opened)
    opened = await routes.open(call_of())
    assert text_of(await read(opened)).strip()
    assert (opened.backend, [attempt.backend for attempt in opened.attempts]) == ("good", ["llama"])
    await asyncio.gather(*(backend.retire() for backend in backends.values()))
