"""Starting, stopping, and what a client sees when the engine dies (FAULTS rows 21, 22, 25, 26)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.terminal import CTRL_C, Terminal
from tests.gateway.conftest import MODEL
from tests.gateway.running_server import KEY, START_SECONDS, RunningServer

CHAT = "/v1/chat/completions"
LONG = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Count for ever."}],
    "max_tokens": 6000,
    "logit_bias": {"2": -100, "0": -100},
    "stream": True,
}
HEADERS = {"authorization": f"Bearer {KEY}"}


@pytest.fixture
def own_server() -> Iterator[RunningServer]:
    """A server that the test may hurt."""
    running = RunningServer()
    yield running
    running.stop()


def http_of(server: RunningServer) -> httpx.Client:
    return httpx.Client(base_url=server.origin, headers=HEADERS, timeout=60)


def check_ending(lines: list[str]) -> dict[str, Any]:
    """A stream that broke off ends with exactly one error event and one [DONE]."""
    events = [line for line in lines if line.startswith("data:")]
    assert events.count("data: [DONE]") == 1
    assert events[-1] == "data: [DONE]"
    error = json.loads(events[-2][6:])
    assert set(error) == {"error"}
    assert all("error" not in json.loads(event[6:]) for event in events[:-2])
    assert error["error"]["code"] == "server_is_overloaded"
    inner = error["error"]
    assert isinstance(inner, dict)
    return inner


def test_rows_21_and_22_a_killed_engine(own_server: RunningServer) -> None:
    (engine,) = own_server.engine_pids()
    with http_of(own_server) as http:
        lines = []
        with http.stream("POST", CHAT, json=LONG) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                lines.append(line)
                if len(lines) == 20:
                    os.kill(engine, signal.SIGKILL)
        check_ending(lines)
        deadline = time.monotonic() + 60
        statuses = set()
        while time.monotonic() < deadline:
            health = http.get("/health")
            statuses.add(health.status_code)
            if health.status_code == 200:
                break
            refusal = http.post(CHAT, json=LONG | {"max_tokens": 3, "stream": False})  # short: the engine may be back
            if refusal.status_code != 200:
                assert refusal.status_code == 503
                assert refusal.json()["error"]["code"] == "server_is_overloaded"
                assert 0 < int(refusal.headers["retry-after-ms"]) < 5000
                assert refusal.headers["x-should-retry"] == "true"
            time.sleep(0.05)
        assert statuses == {503, 200}
        assert own_server.engine_pids() != [engine]
        assert http.post(CHAT, json=LONG | {"max_tokens": 3, "stream": False}).status_code == 200
    assert own_server.stop() == 0
    assert "signal SIGKILL" in own_server.output


def test_row_25_answers_in_progress_may_end(own_server: RunningServer) -> None:
    with http_of(own_server) as http:
        lines = []
        with http.stream("POST", CHAT, json=LONG | {"max_tokens": 60}) as response:
            for line in response.iter_lines():
                lines.append(line)
                if len(lines) == 4:
                    own_server.process.send_signal(signal.SIGTERM)
        events = [line for line in lines if line]
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2][6:])["choices"][0]["finish_reason"] == "length"
    assert own_server.process.wait(15) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_row_25_what_does_not_end_in_time_ends_with_an_error(own_server: RunningServer, number: signal.Signals) -> None:
    with http_of(own_server) as http, http_of(own_server) as other:
        lines = []
        with http.stream("POST", CHAT, json=LONG) as response:
            for line in response.iter_lines():
                lines.append(line)
                if len(lines) == 4:
                    other.get("/health")  # an open connection, used again below
                    own_server.process.send_signal(number)
                    assert own_server.wait_for("Stopping", 5)
                    assert other.get("/health").json() == {"status": "draining"}
                    refusal = other.post(CHAT, json=LONG)
                    assert refusal.status_code == 503
                    own_server.process.send_signal(number)  # at once, please
        check_ending(lines)
    assert own_server.process.wait(15) == 0
    assert "Traceback" not in own_server.output


def test_the_engine_does_not_outlive_a_killed_server(own_server: RunningServer) -> None:
    (engine,) = own_server.engine_pids()
    own_server.process.kill()
    own_server.process.wait()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{engine}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{engine}").exists()


def serve(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ultrafast.cli", "serve", *arguments],
        env=os.environ | {"ULTRAFAST_API_KEY": KEY} | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode != 0
    lines = (done.stdout + done.stderr).strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_row_26_a_taken_port_is_one_clear_line(server: RunningServer) -> None:
    assert str(server.port) in one_line(serve("--port", str(server.port)))


def test_row_26_an_unusable_host_is_one_clear_line() -> None:
    one_line(serve("--host", "no such host"))


def test_serving_without_a_key_needs_a_loopback_address() -> None:
    assert "loopback" in one_line(serve("--host", "0.0.0.0", "--port", "0", "--no-auth"))


def test_an_impossible_context_is_one_clear_line() -> None:
    one_line(serve("--port", "0", "--context", "100000000"))


def test_a_damaged_model_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"\xff" * 100)
    one_line(serve("--port", "0", "--model", str(path)))
    one_line(serve("--port", "0", "--model", str(tmp_path / "absent.gguf")))


def test_without_a_key_in_the_environment_one_is_kept_in_a_file(tmp_path: Path) -> None:
    running = RunningServer(ULTRAFAST_API_KEY="", ULTRAFAST_DATA=str(tmp_path))
    try:
        key = (tmp_path / "api-key").read_text().strip()
        assert (tmp_path / "api-key").stat().st_mode & 0o777 == 0o600
        assert key not in running.output
        url = running.base_url + "/models"
        assert httpx.get(url, headers={"authorization": f"Bearer {key}"}).status_code == 200
        assert httpx.get(url).status_code == 401
    finally:
        assert running.stop() == 0


def test_the_banner_fits_a_terminal_and_has_the_key_on_a_line_of_its_own() -> None:
    with Terminal("serve", "--port", "0", "--alias", "gpt-5.6-sol", "--alias", "mine", "--alias", "mine") as terminal:
        end = terminal.wait_for("\n", after=terminal.wait_for("Listening on", seconds=START_SECONDS))
        lines = terminal.shown[terminal.shown.index("Model ") : end].splitlines()
        terminal.press(CTRL_C)
        assert terminal.exit_code() == 0
    assert max(map(len, lines)) < 80, lines
    assert lines[1:3] == [
        f"Alias gpt-5.6-sol: answered by {MODEL}, not that vendor's model",
        f"Alias mine: answered by {MODEL}",
    ]
    assert lines[3].startswith("API key")
    assert re.fullmatch(r"uf-[\w-]{43}", lines[4])
    assert lines[5].startswith("Listening on")


def test_no_auth_on_loopback() -> None:
    running = RunningServer("--no-auth", "--alias", "mine")
    try:
        assert "vendor" not in running.output
        models = httpx.get(running.base_url + "/models")
        assert models.json()["data"][0]["id"] == MODEL
        body = LONG | {"max_tokens": 1, "stream": False}
        assert httpx.post(running.origin + CHAT, json=body | {"model": "mine"}).status_code == 200
        assert httpx.post(running.origin + CHAT, json=body | {"model": "gpt-5.6-sol"}).status_code == 404
        assert httpx.get(running.base_url + "/models", headers={"origin": "http://evil.example"}).status_code == 403
    finally:
        assert running.stop() == 0
