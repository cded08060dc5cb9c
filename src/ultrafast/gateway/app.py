"""The ASGI application: what comes before every route, and the routes."""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from ultrafast.gateway.auth import IDENTITY, IdentityCheck
from ultrafast.gateway.boundary import REQUEST_ID, answer, unknown_route
from ultrafast.gateway.chat import ChatCompletions
from ultrafast.gateway.failures import Headers, HttpError
from ultrafast.gateway.hosts import HostPolicy
from ultrafast.gateway.protocol import MAXIMUM_HEADER_BYTES
from ultrafast.gateway.service import Service

OPERATOR_PATH = "/admin"  # only where the operator switched it on
_OPEN_PATH = "/health"  # the one path that needs no key
_HEADER_OVERHEAD_BYTES = 4


class Gateway:
    """OpenAI's API. Every request passes the same checks before any route sees it."""

    def __init__(
        self, service: Service, *, require_key: bool, hosts: HostPolicy, administration: ASGIApp | None = None
    ) -> None:
        self._service = service
        self._keys = IdentityCheck(service.records, required=require_key)
        self._hosts = hosts
        self._administered = administration is not None
        operator = [] if administration is None else [Mount(OPERATOR_PATH, administration)]
        self._router = Router(
            [
                # Tried in this order: first the one that is in a hurry.
                Route("/v1/chat/completions", ChatCompletions(service), methods=["POST"]),
                Route(_OPEN_PATH, self._health, methods=["GET"]),
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/models/{name:path}", self._model, methods=["GET"]),
                *operator,
            ],
            redirect_slashes=False,
            default=unknown_route,
        )

    async def drain(self, seconds: float) -> None:
        """Refuse new requests and wait, so long at most, for those in flight to end."""
        self._service.draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._service.idle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        if scope["type"] == "http":
            await answer(self._router, self._admit, scope, receive, send)

    def _admit(self, scope: Scope) -> None:
        headers: Headers = scope["headers"]
        size = sum(len(name) + len(value) + _HEADER_OVERHEAD_BYTES for name, value in headers)
        if size + len(scope["raw_path"]) + len(scope["query_string"]) > MAXIMUM_HEADER_BYTES:
            raise HttpError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                "the request headers are too large",
                code="headers_too_large",
                headers=[(b"connection", b"close")],
            )
        self._hosts.check(headers)
        if self._administered and scope["path"].startswith(OPERATOR_PATH + "/"):
            return  # it has a key of its own
        if scope["path"] != _OPEN_PATH:
            scope[IDENTITY] = self._keys.check(headers)

    async def _health(self, request: Request) -> Response:
        status = self._service.state
        code = HTTPStatus.OK if status == "ok" else HTTPStatus.SERVICE_UNAVAILABLE
        return _json(request, {"status": status}, code)

    async def _models(self, request: Request) -> Response:
        return _json(request, self._service.routes.all())

    async def _model(self, request: Request) -> Response:
        return _json(request, self._service.routes.resolve(request.path_params["name"]))


def _json(request: Request, value: object, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(
        msgspec.json.encode(value),
        status,
        {"x-request-id": request.scope[REQUEST_ID]},
        media_type="application/json",
    )
