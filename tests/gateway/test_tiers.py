"""Tiers, limits, projects and the ledger over HTTP, on a running server (FAULTS rows 13, 24)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.gateway.conftest import MODEL
from tests.gateway.running_server import KEY, RunningServer
from ultrafast.errors import RequestError
from ultrafast.gateway.tiers import over_capacity_of

CHAT = "/v1/chat/completions"
CONFIGURATION = """
[tiers.ultrafast]
slots = 1
queue_milliseconds = 250
over_capacity = "downgrade"

[tiers.flex]
slots = 1
over_capacity = "refuse"

[tiers.priority.limits]
requests_per_minute = 2

[tiers.flex.limits]
requests_per_minute = 1000
"""


class TieredServer(RunningServer):
    """A server with a configuration file, and the operator's commands on it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "ultrafast.toml"
        self.file.write_text(CONFIGURATION, encoding="utf-8")
        super().__init__("--config", str(self.file), "--context", "2048")

    def operate(self, *arguments: str) -> Any:
        """Run a command as the operator, on the running server; its JSON output."""
        done = subprocess.run(
            [sys.executable, "-m", "ultrafast.cli", *arguments, "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            env={"PATH": "", "HOME": "/nonexistent", "ULTRAFAST_DATA": self.data_directory, "PYTHONPATH": _source()},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def waiting(self, tier: str) -> int:
        """Requests in the tier's queue."""
        (row,) = [row for row in self.operate("capacity", "show")["data"] if row["tier"] == tier]
        return int(row["waiting"])

    def client(self, key: str = KEY) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.base_url, api_key=key, max_retries=0, timeout=120)


def _source() -> str:
    import ultrafast

    return str(Path(ultrafast.__file__).parents[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredServer]:
    running = TieredServer(tmp_path_factory.mktemp("tiers"))
    yield running
    assert running.stop() == 0, running.output
    assert "Traceback" not in running.output


def body(**values: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Say hello."}]
    return {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0} | values


def post(server: TieredServer, key: str = KEY, headers: dict[str, str] | None = None, **values: Any) -> httpx.Response:
    all_headers = {"authorization": f"Bearer {key}"} | (headers or {})
    return httpx.post(server.origin + CHAT, json=body(**values), headers=all_headers, timeout=120)


class Stream:
    """A stream held open in a thread of its own."""

    def __init__(self, server: TieredServer, key: str = KEY, **values: Any) -> None:
        self.lines: list[str] = []
        self.started = threading.Event()
        self._left = threading.Event()
        self._arguments = (server, key, values)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self.started.wait(60)

    def _run(self) -> None:
        server, key, values = self._arguments
        request = body(stream=True, max_tokens=1500, logit_bias={"2": -100, "0": -100}) | values
        with (
            httpx.Client(timeout=60) as client,
            client.stream(
                "POST", server.origin + CHAT, json=request, headers={"authorization": f"Bearer {key}"}
            ) as response,
        ):
            assert response.status_code == 200
            for line in response.iter_lines():
                self.lines.append(line)
                if len(self.lines) > 3:
                    self.started.set()
                if self._left.is_set():
                    return

    @property
    def events(self) -> list[str]:
        return [line[6:] for line in self.lines if line.startswith("data: ")]

    def wait(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def leave(self) -> None:
        self._left.set()
        self._thread.join(20)


@pytest.mark.parametrize("tier", ["ultrafast", "priority", "fast", "default", "flex"])
def test_every_tier_is_served_and_reported_and_gives_the_same_text(server: TieredServer, tier: str) -> None:
    plain = post(server).json()
    answer = post(server, service_tier=tier).json()
    assert answer["service_tier"] == tier
    assert answer["choices"] == plain["choices"]
    assert answer["time_info"]["queue_time"] >= 0


def test_the_limit_of_a_tier_is_a_429_that_says_when(server: TieredServer) -> None:
    project = server.operate("projects", "create", "limited")["name"]
    key = server.operate("keys", "create", "--project", project)["secret"]
    first, second, third = (post(server, key, service_tier="priority") for _ in range(3))
    assert (first.status_code, second.status_code, third.status_code) == (200, 200, 429)
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    error = third.json()["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    assert int(third.headers["retry-after-ms"]) >= 1000
    assert third.headers["x-ratelimit-limit-requests"] == "2"
    assert third.headers["x-ratelimit-remaining-requests"] == "0"
    assert "x-ratelimit-reset-requests" in third.headers
    assert third.headers["x-should-retry"] == "true"
    assert post(server, key).status_code == 200  # another tier's limit is another
    with pytest.raises(openai.RateLimitError):
        server.client(key).chat.completions.create(**body(service_tier="priority"))


def test_a_project_made_later_is_not_in_the_preview_until_it_is_granted(server: TieredServer) -> None:
    server.operate("projects", "create", "newcomers")
    key = server.operate("keys", "create", "--project", "newcomers")["secret"]
    refusal = post(server, key, service_tier="ultrafast")
    assert refusal.status_code == 403
    assert refusal.json()["error"]["code"] == "tier_not_enabled"
    assert refusal.headers["x-should-retry"] == "false"
    assert post(server, key, reasoning_effort="ultrafast").status_code == 403
    assert post(server, key).json()["service_tier"] == "default"
    server.operate("preview", "grant", "newcomers")
    assert post(server, key, service_tier="ultrafast").json()["service_tier"] == "ultrafast"
    server.operate("preview", "revoke", "newcomers")
    with pytest.raises(openai.PermissionDeniedError):
        server.client(key).chat.completions.create(**body(reasoning_effort="ultrafast"))


def test_a_projects_own_default_tier(server: TieredServer) -> None:
    server.operate("projects", "create", "fliers", "--default-tier", "flex")
    key = server.operate("keys", "create", "--project", "fliers")["secret"]
    assert post(server, key).json()["service_tier"] == "flex"
    assert post(server, key, service_tier="auto").json()["service_tier"] == "flex"
    assert post(server, key, service_tier="default").json()["service_tier"] == "default"


def test_a_full_tier_downgrades_refuses_or_queues_as_asked(server: TieredServer) -> None:
    held = Stream(server, service_tier="ultrafast")
    try:
        assert json.loads(held.events[0])["service_tier"] == "ultrafast"
        started = time.monotonic()
        assert post(server, service_tier="ultrafast").json()["service_tier"] == "default"
        assert time.monotonic() - started >= 0.25
        refusal = post(server, headers={"x-ultrafast-over-capacity": "Refuse"}, service_tier="ultrafast")
        assert refusal.status_code == 429
        assert refusal.json()["error"]["code"] == "tier_at_capacity"
        assert "retry-after" in refusal.headers
        wrong = post(server, headers={"x-ultrafast-over-capacity": "explode"}, service_tier="ultrafast")
        assert wrong.status_code == 400
        results: list[httpx.Response] = []
        queued = threading.Thread(
            target=lambda: results.append(
                post(server, headers={"x-ultrafast-over-capacity": "queue"}, service_tier="ultrafast")
            )
        )
        queued.start()
        while server.waiting("ultrafast") == 0:
            assert queued.is_alive()
        time.sleep(0.4)  # beyond the tier's own patience
        assert queued.is_alive()
    finally:
        held.leave()
    queued.join(30)
    assert results[0].json()["service_tier"] == "ultrafast"
    assert results[0].json()["time_info"]["queue_time"] >= 0.4


@pytest.mark.parametrize("value", [b"queue", b" Queue\t", b"QUEUE"])
def test_the_header_is_read_in_any_case_and_without_spaces(value: bytes) -> None:
    assert (
        over_capacity_of([(b"x-ultrafast-over-capacity", value), (b"x-ultrafast-over-capacity", b"queue")]) == "queue"
    )
    for wrong in (b"", b"que ue", b"queue, refuse", b"refuse"):
        with pytest.raises(RequestError, match="must be one of: queue, downgrade, refuse"):
            over_capacity_of([(b"x-ultrafast-over-capacity", value), (b"x-ultrafast-over-capacity", wrong)])


def test_flex_over_capacity_is_refused_at_once_and_uncharged(server: TieredServer) -> None:
    held = Stream(server, service_tier="flex")
    try:
        refusal = post(server, service_tier="flex")
    finally:
        held.leave()
    assert refusal.status_code == 429
    assert refusal.json()["error"]["code"] == "tier_at_capacity"
    assert refusal.headers["x-ratelimit-limit-requests"] == "1000"


def test_capacity_to_zero_and_back(server: TieredServer) -> None:
    server.operate("capacity", "set", "ultrafast", "0")
    assert post(server, service_tier="ultrafast").json()["service_tier"] == "default"
    server.operate("capacity", "set", "ultrafast", "1")
    assert post(server, service_tier="ultrafast").json()["service_tier"] == "ultrafast"
    server.operate("capacity", "reset", "ultrafast")
    assert post(server, service_tier="ultrafast").json()["service_tier"] == "ultrafast"


def test_revoking_a_key_ends_its_streams_and_no_other(server: TieredServer) -> None:
    made = server.operate("keys", "create", "--project", "default")
    bystander = Stream(server)
    doomed = Stream(server, made["secret"])
    server.operate("keys", "revoke", made["id"])
    try:
        assert doomed.wait(5)
        assert doomed.events[-1] == "[DONE]"
        error = json.loads(doomed.events[-2])["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
        count = len(bystander.lines)
        time.sleep(0.5)
        assert len(bystander.lines) > count
    finally:
        bystander.leave()
    assert post(server, made["secret"]).status_code == 401
    with pytest.raises(openai.AuthenticationError):
        server.client(made["secret"]).models.list()


def test_the_ledger_knows_every_request(server: TieredServer) -> None:
    server.operate("projects", "create", "audited")
    key = server.operate("keys", "create", "--project", "audited")["secret"]
    answer = post(server, key, n=2).json()
    assert post(server, key, temperature=9).status_code == 400
    assert post(server, key, service_tier="ultrafast").status_code == 403
    assert post(server, key, service_tier="turbo").status_code == 400
    assert post(server, key, service_tier="flex", model="no-such-model").status_code == 404
    deadline = time.monotonic() + 5
    rows: list[dict[str, Any]] = []
    while time.monotonic() < deadline and sum(row["requests"] for row in rows) < 5:
        rows = [
            row for row in server.operate("usage", "--by", "project")["data"] if row["group"]["project"] == "audited"
        ]
    (row,) = rows
    assert row["requests"] == 5
    assert row["asked"] == {"auto": 1, "ultrafast": 1, "flex": 1}  # the others were never understood
    assert row["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert row["completion_tokens"] == answer["usage"]["completion_tokens"]
    assert row["cost_millionths"] > 0


def leave_after(server: TieredServer, key: str, seconds: float, **values: Any) -> None:
    """Ask, and hang up while the prompt is computed."""
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            server.origin + CHAT,
            json=body(**values),
            headers={"authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(60, read=seconds),
        )


def usage_of(server: TieredServer, project: str, requests: int) -> dict[str, Any]:
    """What a project has used, once so many of its requests have ended."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for row in server.operate("usage", "--by", "project")["data"]:
            if row["group"]["project"] == project and row["requests"] >= requests:
                return dict(row)
    raise AssertionError("the requests are not in the ledger")


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_computed_until_the_client_left_is_paid(server: TieredServer, stream: bool) -> None:
    name = f"leavers-{stream}"
    server.operate("projects", "create", name)
    key = server.operate("keys", "create", "--project", name)["secret"]
    long = [{"role": "user", "content": f"{name} " + "sea and sky " * 600}]
    leave_after(server, key, 0.6, messages=long, stream=stream)
    row = usage_of(server, name, 1)
    assert (row["cancelled"], row["cached_tokens"], row["completion_tokens"]) == (1, 0, 0)
    computed = row["prompt_tokens"]
    assert computed > 0
    assert row["cost_millionths"] > 0
    assert row["served"] == {"default": 1}

    used = post(server, key, messages=long, max_tokens=1).json()["usage"]
    assert used["prompt_tokens"] > computed
    assert used["prompt_tokens_details"]["cached_tokens"] == computed, "sold as cached is what was paid for as input"


def test_who_leaves_with_some_tokens_pays_cached_input_as_such(server: TieredServer) -> None:
    server.operate("projects", "create", "talkers")
    key = server.operate("keys", "create", "--project", "talkers")["secret"]
    long = [{"role": "user", "content": "talkers " + "sea and sky " * 100}]
    answer = post(server, key, messages=long, max_tokens=1).json()
    prompt = answer["usage"]["prompt_tokens"]
    Stream(server, key, messages=long).leave()
    row = usage_of(server, "talkers", 2)
    assert row["cancelled"] == 1
    assert row["prompt_tokens"] == 2 * prompt
    assert row["cached_tokens"] == prompt - 1
    assert row["completion_tokens"] > 3


def test_a_reload_changes_what_may_change_and_drops_no_stream(server: TieredServer) -> None:
    running = Stream(server)
    try:
        before = len(server.lines)
        server.file.write_text(CONFIGURATION.replace("slots = 1", "slots = 0", 1), encoding="utf-8")
        server.process.send_signal(signal.SIGHUP)
        line = server.wait_for("The configuration was reloaded", 10, after=before)
        assert line is not None
        assert line.endswith(
            "; changed: tiers.ultrafast; takes effect at the next start: the places that local keeps free for ultrafast"
        )
        assert post(server, service_tier="ultrafast").json()["service_tier"] == "default"
        before = len(server.lines)
        server.file.write_text("[tiers.ultrafast]\nslots = -1\n", encoding="utf-8")
        server.process.send_signal(signal.SIGHUP)
        line = server.wait_for("was not reloaded", 10, after=before)
        assert line is not None
        assert "ultrafast.toml:2" in line
        before = len(server.lines)
        other = '[backends.local]\nkind = "engine"\n[[routes]]\nmodel = "other"\nbackends = ["local"]\n'
        server.file.write_text(other, encoding="utf-8")
        server.process.send_signal(signal.SIGHUP)
        assert server.wait_for(f"was not reloaded: .*none of the models that are served .{MODEL}", 10, after=before)
        before = len(server.lines)
        server.file.write_text(CONFIGURATION, encoding="utf-8")
        server.process.send_signal(signal.SIGHUP)
        assert server.wait_for("The configuration was reloaded; changed: tiers.ultrafast$", 10, after=before)
        assert post(server, service_tier="ultrafast").json()["service_tier"] == "ultrafast"
        count = len(running.lines)
        time.sleep(0.5)
        assert len(running.lines) > count
    finally:
        running.leave()


def test_a_reload_names_the_aliases_that_changed(server: TieredServer) -> None:
    def reload(text: str) -> list[str]:
        before = len(server.lines)
        server.file.write_text(text + CONFIGURATION, encoding="utf-8")
        server.process.send_signal(signal.SIGHUP)
        assert server.wait_for("The configuration was reloaded$", 10, after=before)
        return [line for line in server.lines[before:] if line.startswith("Alias ")]

    gone = "Alias gpt-5.6-sol: gone, requests for it are refused"
    answered = f"Alias helper: answered by {MODEL}"
    try:
        assert reload('[aliases]\nhelper = "*"\n') == [gone, answered]
        assert post(server, model="gpt-5.6-sol").status_code == 404
        assert reload('[aliases]\nhelper = "*"\n') == []
    finally:
        lines = reload("")
    assert lines[0] == "Alias helper: gone, requests for it are refused"
    assert lines[1].startswith(f"Alias gpt-5.6-sol: answered by {MODEL}")


def test_no_key_or_prompt_is_in_what_the_server_prints(server: TieredServer) -> None:
    key = server.operate("keys", "create", "--project", "default")["secret"]
    post(server, key, messages=[{"role": "user", "content": "canary-in-a-prompt"}])
    post(server, "uf-canary-of-a-wrong-key")
    assert key not in server.output
    assert "canary" not in server.output.replace(KEY, "")
