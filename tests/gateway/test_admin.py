"""The operator's interface over HTTP, in this process and on its socket."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvloop
from starlette.routing import Mount, Route, Router

from tests.gateway.records.entries import entry
from ultrafast.backends.base import BackendState, LastError
from ultrafast.errors import ConfigurationError
from ultrafast.gateway.admin import AdminApplication, BackendView, TierUse
from ultrafast.gateway.admin_socket import MAXIMUM_PATH_BYTES, serving_admin
from ultrafast.gateway.records.store import Records

KEY = "uf-admin-key-canary-77"
PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")


class Server:
    """What a server would tell."""

    def __init__(self, tiers: dict[str, TierUse], backends: tuple[BackendView, ...] = ()) -> None:
        self.tiers, self.backends = tiers, backends

    def tier_uses(self) -> dict[str, TierUse]:
        return self.tiers

    def backend_views(self) -> tuple[BackendView, ...]:
        return self.backends


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    with Records.open(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
async def client(records: Records) -> AsyncIterator[httpx2.AsyncClient]:
    view = {"ultrafast": TierUse(2, 1, 3), "default": TierUse(None, 0, 0)}
    application = AdminApplication(records, Server(view), key=None)
    async with client_of(application) as opened:
        yield opened


def client_of(application: Any, **options: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(application), base_url="http://ultrafast", **options)


async def test_projects(client: httpx2.AsyncClient, records: Records) -> None:
    created = (await client.post("/projects", json={"name": "team", "default_tier": "flex"})).json()
    assert created.pop("id").startswith("proj_")
    assert created.pop("created") > 1_700_000_000
    assert created == {"object": "project", "name": "team", "default_tier": "flex", "in_preview": False}
    listed = (await client.get("/projects")).json()
    assert [(project["name"], project["in_preview"]) for project in listed["data"]] == [
        ("default", True),
        ("team", False),
    ]
    changed = await client.patch("/projects/team", json={"default_tier": "priority"})
    assert changed.json()["default_tier"] == records.project("team").default_tier == "priority"


async def test_keys(client: httpx2.AsyncClient, records: Records) -> None:
    created = (await client.post("/keys", json={"project": "default", "name": "ci"})).json()
    secret = created.pop("secret")
    identity = records.identify(secret.encode())
    assert identity is not None
    assert identity.key_id == created["id"]
    assert (created["project"], created["name"], created["hint"]) == ("default", "ci", secret[-4:])
    listed = await client.get("/keys")
    assert listed.json()["data"] == [created]
    assert secret not in listed.text
    revoked = (await client.post(f"/keys/{created['id']}/revoke")).json()
    assert revoked["was_active"] is True
    assert revoked["revoked"] is not None
    assert records.identify(secret.encode()) is None
    assert (await client.post(f"/keys/{created['id']}/revoke")).json()["was_active"] is False
    await client.post("/projects", json={"name": "team"})
    await client.post("/keys", json={"project": "team"})
    ofteam = (await client.get("/keys", params={"project": "team"})).json()["data"]
    assert [key["name"] for key in ofteam] == ["unnamed"]


async def test_the_preview(client: httpx2.AsyncClient, records: Records) -> None:
    records.create_project("team")
    for _ in range(2):
        assert (await client.put("/preview/team")).json()["in_preview"] is True
    assert [project["name"] for project in (await client.get("/preview")).json()["data"]] == ["default", "team"]
    for _ in range(2):
        assert (await client.delete("/preview/team")).json()["in_preview"] is False
    assert [project["name"] for project in (await client.get("/preview")).json()["data"]] == ["default"]


async def test_capacity(client: httpx2.AsyncClient, records: Records) -> None:
    tiers = {tier["tier"]: tier for tier in (await client.get("/capacity")).json()["data"]}
    assert list(tiers) == ["ultrafast", "priority", "default", "flex"]
    shown = {"object": "tier", "tier": "ultrafast", "slots": 2, "override": None, "used": 1, "waiting": 3}
    assert tiers["ultrafast"] == shown
    assert tiers["flex"]["used"] is None
    assert (await client.put("/capacity/ultrafast", json={"slots": 0})).json()["override"] == 0
    assert records.capacity() == {"ultrafast": 0}
    assert (await client.delete("/capacity/ultrafast")).json()["override"] is None
    assert records.capacity() == {}


async def test_backends(records: Records) -> None:
    error = LastError("no connection", 1_790_000_000.7)
    views = (
        BackendView("local", "engine", ["a", "b"], BackendState("ok", 3)),
        BackendView("rack", "upstream", ["a"], BackendState("backing off", 0, error, ("flex",), 12.5)),
    )
    async with client_of(AdminApplication(records, Server({}, views), key=None)) as client:
        local, rack = (await client.get("/backends")).json()["data"]
    assert (local["name"], local["models"], local["state"], local["running"]) == ("local", ["a", "b"], "ok", 3)
    assert (local["last_error"], local["last_error_at"], local["retry_seconds"]) == (None, None, None)
    assert rack == {
        "object": "backend",
        "name": "rack",
        "kind": "upstream",
        "models": ["a"],
        "state": "backing off",
        "tiers": ["flex"],
        "retry_seconds": 12.5,
        "running": 0,
        "last_error": "no connection",
        "last_error_at": 1_790_000_000,
    }
    async with client_of(AdminApplication(records, None, key=None)) as client:
        refusal = await client.get("/backends")
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (404, "not_found")


async def test_usage(client: httpx2.AsyncClient, records: Records) -> None:
    records.record(entry(project=records.projects()[0].id, started=1000.0))
    records.record(entry(project=records.projects()[0].id, started=2000.0))
    answer = (await client.get("/usage", params={"by": "project,tier", "since": "1500", "until": "2e3"})).json()
    assert answer == {"object": "list", "by": ["project", "tier"], "data": []}
    answer = (await client.get("/usage", params={"since": "1500"})).json()
    assert answer["by"] == ["project", "tier"]
    (row,) = answer["data"]
    assert (row["group"]["project"], row["requests"], row["cost_millionths"]) == ("default", 1, 104)
    assert (await client.delete("/usage", params={"before": "1500"})).json() == {"object": "pruning", "deleted": 1}
    (row,) = (await client.get("/usage")).json()["data"]
    assert row["requests"] == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/projects", {}, 400, "missing_required_parameter"),
        ("POST", "/projects", {"name": 3}, 400, "invalid_value"),
        ("POST", "/projects", {"name": "canary x"}, 400, "invalid_value"),
        ("POST", "/projects", {"name": "x" * 65}, 400, "invalid_value"),
        ("POST", "/projects", {"name": "default"}, 400, "already_exists"),
        ("POST", "/projects", {"name": "team", "default_tier": "canary"}, 400, "invalid_value"),
        ("POST", "/projects", {"name": "team", "in_preview": True}, 400, "unknown_parameter"),
        ("PATCH", "/projects/default", {}, 400, "missing_required_parameter"),
        ("PATCH", "/projects/canary", {"default_tier": "flex"}, 404, "not_found"),
        ("POST", "/keys", {"project": "canary"}, 404, "not_found"),
        ("POST", "/keys", {"project": "default", "secret": "canary"}, 400, "unknown_parameter"),
        ("POST", "/keys/key_canary/revoke", None, 404, "not_found"),
        ("GET", "/keys?project=canary", None, 404, "not_found"),
        ("PUT", "/preview/canary", None, 404, "not_found"),
        ("DELETE", "/preview/canary", None, 404, "not_found"),
        ("PUT", "/capacity/canary", {"slots": 1}, 400, "invalid_value"),
        ("PUT", "/capacity/flex", {"slots": -1}, 400, "invalid_value"),
        ("PUT", "/capacity/flex", {"slots": True}, 400, "invalid_value"),
        ("PUT", "/capacity/flex", {"slots": 10**30}, 400, "invalid_value"),
        ("PUT", "/capacity/flex", {}, 400, "missing_required_parameter"),
        ("GET", "/usage?by=canary", None, 400, "invalid_value"),
        ("GET", "/usage?since=canary", None, 400, "invalid_value"),
        ("GET", "/usage?since=nan", None, 400, "invalid_value"),
        ("GET", "/usage?until=1e999", None, 400, "invalid_value"),
        ("DELETE", "/usage", None, 400, "missing_required_parameter"),
        ("DELETE", "/usage?before=canary", None, 400, "invalid_value"),
        ("GET", "/usage?canary=1", None, 400, "unknown_parameter"),
        ("GET", "/canary", None, 404, "unknown_url"),
        ("GET", "/keys/", None, 404, "unknown_url"),
        ("PUT", "/projects", {}, 405, "method_not_allowed"),
    ],
)
async def test_refusals(
    client: httpx2.AsyncClient, method: str, path: str, body: object, status: int, code: str
) -> None:
    answer = await client.request(method, path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    assert "canary" not in error["message"].replace("'canary' is not a parameter", "")
    assert answer.headers["x-request-id"].startswith("req_")
    assert (await client.get("/projects")).json()["data"][0]["name"] == "default"


async def test_bodies_are_bounded_and_must_be_json(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/projects", content=b"name=x", headers={"content-type": "text/plain"})
    assert answer.status_code == 415
    headers = {"content-type": "application/json"}
    assert (await client.post("/projects", content=b"x" * (5 << 20), headers=headers)).status_code == 413
    for body in (b"", b"[]", b"{", b'{"name": "a", "name": "b"}', b'{"name": "\\ud800"}', b"\xff"):
        answer = await client.post("/projects", content=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


async def test_over_tcp_it_has_a_key_of_its_own(records: Records) -> None:
    own, secret = records.create_key("default")
    mounted = Router([Mount("/admin", AdminApplication(records, None, key=KEY))])
    async with client_of(mounted) as client:
        for value in (None, "Bearer ", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", f"Bearer {secret}"):
            headers = {} if value is None else {"authorization": value}
            for method, path in (("GET", "/admin/keys"), ("POST", f"/admin/keys/{own.id}/revoke"), ("GET", "/admin/x")):
                answer = await client.request(method, path, headers=headers)
                assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
                assert KEY not in answer.text
        assert records.identify(secret.encode()) is not None
        client.headers["authorization"] = f"Bearer {KEY}"
        assert (await client.get("/admin/projects")).json()["data"][0]["name"] == "default"
        assert (await client.get("/admin/usage", params={"by": "tier"})).json()["data"] == []
        assert (await client.get("/projects")).status_code == 404


async def test_a_bug_is_one_line_without_values(records: Records, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Server):
        def tier_uses(self) -> dict[str, TierUse]:
            raise ValueError("canary")

    caplog.set_level(logging.DEBUG)
    async with client_of(AdminApplication(records, Broken({}), key=None)) as client:
        answer = await client.get("/capacity")
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "the server met an unexpected error"
    assert "met a bug: ValueError at test_admin.py" in caplog.text
    assert "canary" not in caplog.text + answer.text


async def test_a_file_that_fails_is_an_error_and_not_the_end(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str, tier: str) -> None:
        raise ConfigurationError("the disk is full")

    async with client_of(AdminApplication(records, None, key=None)) as client:
        monkeypatch.setattr(records, "create_project", full)
        answer = await client.post("/projects", json={"name": "team"})
        assert (answer.status_code, answer.json()["error"]["message"]) == (500, "the disk is full")
        monkeypatch.undo()
        assert (await client.post("/projects", json={"name": "team"})).status_code == 200


def test_every_route_is_documented(records: Records) -> None:
    routes = [route for route in AdminApplication(records, None, key=None)._router.routes if isinstance(route, Route)]
    served = {f"{method} {route.path}" for route in routes for method in (route.methods or ()) if method != "HEAD"}
    assert set(re.findall(r"^\| `((?:GET|POST|PUT|PATCH|DELETE) [^`?]+)[^`]*`", PAGE, re.MULTILINE)) == served
    assert len(served) == 15


def on_socket(path: Path) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=str(path)), base_url="http://ultrafast")


async def test_the_socket(records: Records, tmp_path: Path) -> None:
    path = tmp_path / "data" / "admin.sock"
    for _ in range(2):
        async with serving_admin(AdminApplication(records, None, key=None), path):
            assert path.stat().st_mode & 0o777 == 0o600
            async with on_socket(path) as client:
                answers = await asyncio.gather(*(client.post("/keys", json={"project": "default"}) for _ in range(8)))
                secrets = [answer.json()["secret"] for answer in answers]
                assert len(set(secrets)) == 8
                assert all(records.identify(secret.encode()) for secret in secrets)
                assert (await client.get("/nowhere")).status_code == 404
        assert not path.exists()
        with pytest.raises(httpx2.ConnectError):
            async with on_socket(path) as client:
                await client.get("/projects")


async def test_what_a_killed_server_left_is_removed(records: Records, tmp_path: Path) -> None:
    path = tmp_path / "data" / "admin.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    assert path.exists()
    async with serving_admin(AdminApplication(records, None, key=None), path), on_socket(path) as client:
        assert (await client.get("/projects")).status_code == 200


async def test_a_socket_that_cannot_be_made_is_one_line(records: Records, tmp_path: Path) -> None:
    application = AdminApplication(records, None, key=None)
    path = tmp_path / "data" / "admin.sock"
    path.write_text("a file of somebody's")
    with pytest.raises(ConfigurationError, match=r"admin\.sock is in the way"):
        async with serving_admin(application, path):
            pass
    assert path.read_text() == "a file of somebody's"
    with pytest.raises(ConfigurationError, match=f"at most {MAXIMUM_PATH_BYTES} bytes"):
        async with serving_admin(application, tmp_path / ("x" * MAXIMUM_PATH_BYTES)):
            pass
    with pytest.raises(ConfigurationError, match="No such file or directory"):
        async with serving_admin(application, tmp_path / "missing" / "admin.sock"):
            pass


def test_the_socket_on_uvloop(records: Records, tmp_path: Path) -> None:
    async def ask() -> int:
        path = tmp_path / "data" / "admin.sock"
        async with serving_admin(AdminApplication(records, None, key=None), path), on_socket(path) as client:
            return (await client.get("/capacity")).status_code

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(ask()) == 200
