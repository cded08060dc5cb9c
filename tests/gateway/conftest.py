"""Servers shared by the tests of the gateway, and the official client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.gateway.running_server import KEY, RunningServer

MODEL = "smollm2-135m"


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """The default model with its default context."""
    running = RunningServer()
    yield running
    assert running.stop() == 0, running.output
    assert "bug" not in running.output
    assert "Traceback" not in running.output


@pytest.fixture(scope="session")
def small_server() -> Iterator[RunningServer]:
    """A context of 128 tokens, so that its end is near."""
    running = RunningServer("--context", "128")
    yield running
    assert running.stop() == 0, running.output


def client_of(server: RunningServer) -> OpenAI:
    return OpenAI(base_url=server.base_url, api_key=KEY, max_retries=0, timeout=120)


@pytest.fixture
def client(server: RunningServer) -> Iterator[OpenAI]:
    with client_of(server) as client:
        yield client


@pytest.fixture
def small_client(small_server: RunningServer) -> Iterator[OpenAI]:
    with client_of(small_server) as client:
        yield client


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a configuration file goes; there is none yet."""
    return tmp_path / "ultrafast.toml"
