"""The operator's interface: projects, keys, the preview, capacity and usage, as JSON over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from ultrafast.backends.base import BackendState
from ultrafast.errors import NotFoundError, RequestError
from ultrafast.gateway.auth import KeyCheck
from ultrafast.gateway.boundary import REQUEST_ID, answer, unknown_route
from ultrafast.gateway.fields import Fields
from ultrafast.gateway.json_input import parse_object, read_body
from ultrafast.gateway.records.limits import MAXIMUM_NAME_LETTERS, MAXIMUM_SLOTS
from ultrafast.gateway.records.projects import UNNAMED, Key, Project
from ultrafast.gateway.records.store import Records
from ultrafast.gateway.records.usage import DEFAULT_DIMENSIONS
from ultrafast.gateway.tiers import DEFAULT_TIER, TIERS

_LONGEST_QUERY = 256


class TierUse(msgspec.Struct, frozen=True):
    """A tier at this moment: how many sequences may run (None: as many as the backends take), run, and wait."""

    slots: int | None
    used: int
    waiting: int


class BackendView(msgspec.Struct, frozen=True):
    """A backend at this moment, and the models that it answers for."""

    name: str
    kind: str
    models: list[str]
    state: BackendState


class ServerView(Protocol):
    """What a running server tells of itself."""

    def tier_uses(self) -> Mapping[str, TierUse]: ...

    def backend_views(self) -> Iterable[BackendView]: ...


class AdminApplication:
    """Answers who may reach it: the owner of the Unix socket it is served on or, over TCP, whoever has ``key``.

    Without ``server`` none runs, and only what was set is known.
    """

    def __init__(self, records: Records, server: ServerView | None, *, key: str | None) -> None:
        self._records = records
        self._server = server
        self._keys = KeyCheck(key)
        self._router = Router(
            [
                Route("/projects", self._projects, methods=["GET"]),
                Route("/projects", self._create_project, methods=["POST"]),
                Route("/projects/{project}", self._update_project, methods=["PATCH"]),
                Route("/keys", self._list_keys, methods=["GET"]),
                Route("/keys", self._create_key, methods=["POST"]),
                Route("/keys/{key}/revoke", self._revoke_key, methods=["POST"]),
                Route("/preview", self._preview, methods=["GET"]),
                Route("/preview/{project}", self._grant_preview, methods=["PUT"]),
                Route("/preview/{project}", self._revoke_preview, methods=["DELETE"]),
                Route("/capacity", self._capacity, methods=["GET"]),
                Route("/capacity/{tier}", self._set_capacity, methods=["PUT"]),
                Route("/capacity/{tier}", self._reset_capacity, methods=["DELETE"]),
                Route("/backends", self._backends, methods=["GET"]),
                Route("/usage", self._usage, methods=["GET"]),
                Route("/usage", self._prune, methods=["DELETE"]),
            ],
            redirect_slashes=False,
            default=unknown_route,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        if scope["type"] == "http":
            await answer(self._router, self._admit, scope, receive, send)

    def _admit(self, scope: Scope) -> None:
        self._keys.check(scope["headers"])

    async def _projects(self, request: Request) -> Response:
        return _list(request, map(_project, self._records.projects()))

    async def _create_project(self, request: Request) -> Response:
        fields = await _body(request)
        name = _required(fields, "name")
        tier = fields.choice("default_tier", TIERS) or DEFAULT_TIER
        fields.end()
        return _json(request, _project(await asyncio.to_thread(self._records.create_project, name, tier)))

    async def _update_project(self, request: Request) -> Response:
        fields = await _body(request)
        tier = fields.choice("default_tier", TIERS)
        fields.end()
        if tier is None:
            raise fields.missing("default_tier")
        project = request.path_params["project"]
        return _json(request, _project(await asyncio.to_thread(self._records.set_default_tier, project, tier)))

    async def _list_keys(self, request: Request) -> Response:
        fields = Fields(dict(request.query_params))
        name = fields.string("project", _LONGEST_QUERY)
        fields.end()
        keys = self._records.keys()
        if name is not None:
            project = self._records.project(name).id
            keys = [key for key in keys if key.project == project]
        return _list(request, map(self._key, keys))

    async def _create_key(self, request: Request) -> Response:
        fields = await _body(request)
        project = _required(fields, "project")
        name = fields.string("name", MAXIMUM_NAME_LETTERS) or UNNAMED
        fields.end()
        key, secret = await asyncio.to_thread(self._records.create_key, project, name)
        return _json(request, self._key(key) | {"secret": secret})

    async def _revoke_key(self, request: Request) -> Response:
        key_id = request.path_params["key"]
        active = await asyncio.to_thread(self._records.revoke_key, key_id)
        known = self._records.keys()
        key = next(key for key in known if key.id == key_id)
        return _json(request, self._key(key) | {"was_active": active})

    async def _preview(self, request: Request) -> Response:
        return _list(request, (_project(project) for project in self._records.projects() if project.in_preview))

    async def _grant_preview(self, request: Request) -> Response:
        project = request.path_params["project"]
        return _json(request, _project(await asyncio.to_thread(self._records.grant_preview, project)))

    async def _revoke_preview(self, request: Request) -> Response:
        project = request.path_params["project"]
        return _json(request, _project(await asyncio.to_thread(self._records.revoke_preview, project)))

    async def _capacity(self, request: Request) -> Response:
        return _list(request, map(self._tier, TIERS))

    async def _set_capacity(self, request: Request) -> Response:
        fields = await _body(request)
        slots = fields.integer("slots", 0, MAXIMUM_SLOTS)
        fields.end()
        if slots is None:
            raise fields.missing("slots")
        return await self._change_capacity(request, slots)

    async def _reset_capacity(self, request: Request) -> Response:
        return await self._change_capacity(request, None)

    async def _change_capacity(self, request: Request, slots: int | None) -> Response:
        tier = request.path_params["tier"]
        await asyncio.to_thread(self._records.set_capacity, tier, slots)
        return _json(request, self._tier(tier))

    async def _backends(self, request: Request) -> Response:
        if self._server is None:
            raise NotFoundError("no server runs on this data directory: backends are known only while one does")
        return _list(request, map(_backend, self._server.backend_views()))

    async def _usage(self, request: Request) -> Response:
        fields = Fields(dict(request.query_params))
        by = (fields.string("by", _LONGEST_QUERY) or ",".join(DEFAULT_DIMENSIONS)).split(",")
        since, until = (_seconds(fields, name) for name in ("since", "until"))
        fields.end()
        rows = await asyncio.to_thread(self._records.usage, by, since=since, until=until)
        return _json(request, {"object": "list", "by": by, "data": rows})

    async def _prune(self, request: Request) -> Response:
        fields = Fields(dict(request.query_params))
        before = _seconds(fields, "before")
        fields.end()
        if before is None:
            raise fields.missing("before")
        return _json(request, {"object": "pruning", "deleted": await asyncio.to_thread(self._records.prune, before)})

    def _key(self, key: Key) -> dict[str, Any]:
        return {"object": "key", **asdict(key), "project": self._records.project(key.project).name}

    def _tier(self, tier: str) -> dict[str, Any]:
        override = self._records.capacity().get(tier)
        use = None if self._server is None else self._server.tier_uses().get(tier)
        return {
            "object": "tier",
            "tier": tier,
            "slots": override if use is None else use.slots,
            "override": override,
            "used": None if use is None else use.used,
            "waiting": None if use is None else use.waiting,
        }


def _project(project: Project) -> dict[str, Any]:
    return {"object": "project", **asdict(project)}


def _backend(view: BackendView) -> dict[str, Any]:
    state = view.state
    error = state.last_error
    return {
        "object": "backend",
        "name": view.name,
        "kind": view.kind,
        "models": view.models,
        "state": state.state,
        "tiers": state.tiers,
        "retry_seconds": state.retry_seconds,
        "running": state.running,
        "last_error": None if error is None else error.reason,
        "last_error_at": None if error is None else int(error.at),
    }


async def _body(request: Request) -> Fields:
    return Fields(parse_object(await read_body(request.scope, request.receive)))


def _required(fields: Fields, name: str) -> str:
    value = fields.string(name, MAXIMUM_NAME_LETTERS)
    if not value:
        raise fields.missing(name)
    return value


def _seconds(fields: Fields, name: str) -> float | None:
    text = fields.string(name, _LONGEST_QUERY)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e12:  # which is not true of what is no number either
        raise RequestError(f"'{name}' must be a time in Unix seconds", param=name)
    return value


def _list(request: Request, items: Iterable[dict[str, Any]]) -> Response:
    return _json(request, {"object": "list", "data": list(items)})


def _json(request: Request, value: object) -> Response:
    headers = {"x-request-id": request.scope[REQUEST_ID]}
    return Response(msgspec.json.encode(value), headers=headers, media_type="application/json")
