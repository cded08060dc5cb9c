"""The ASGI application: what comes before every route, and the routes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
import uuid
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from ultrafast.backends.base import Backend
from ultrafast.backends.prompt import ChatPrompt
from ultrafast.errors import EngineError, NotFoundError, UltrafastError
from ultrafast.gateway.auth import KeyCheck
from ultrafast.gateway.catalogue import DEFAULT_ALIASES, Catalogue
from ultrafast.gateway.chat import ChatCompletions
from ultrafast.gateway.failures import Headers, HttpError
from ultrafast.gateway.hosts import HostPolicy
from ultrafast.gateway.http import send_error
from ultrafast.gateway.protocol import MAXIMUM_HEADER_BYTES

logger = logging.getLogger("ultrafast.gateway")

_OPEN_PATH = "/health"  # the one path that needs no key
_HEADER_OVERHEAD_BYTES = 4


class Gateway:
    """OpenAI's API over one backend. Every request passes the same checks before any route sees it."""

    def __init__(
        self, backend: Backend, *, key: str | None, hosts: HostPolicy, aliases: Iterable[str] = DEFAULT_ALIASES
    ) -> None:
        self._backend = backend
        self._catalogue = Catalogue(backend, aliases)
        self._chat = ChatCompletions(backend, self._catalogue)
        self._keys = KeyCheck(key)
        self._hosts = hosts
        self._router = Router(
            [
                Route(_OPEN_PATH, self._health, methods=["GET"]),
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/models/{name:path}", self._model, methods=["GET"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
            ],
            redirect_slashes=False,
            default=_unknown_route,
        )

    def open(self, prompt: ChatPrompt) -> None:
        """Begin to serve: the backend is ready, and ``prompt`` is its model's."""
        self._chat.prompt = prompt

    async def drain(self, seconds: float) -> None:
        """Refuse new requests and wait, so long at most, for those in flight to end."""
        self._chat.draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._chat.idle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        if scope["type"] != "http":
            return
        request_id = "req_" + uuid.uuid4().hex
        scope["ultrafast.request_id"] = request_id
        scope["app"] = self  # makes the router raise for a wrong method, rather than answer in its own words
        started = False

        async def noted_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            self._admit(scope)
            await self._router(scope, receive, noted_send)
        except UltrafastError as error:
            failure = error
        except HTTPException as error:
            failure = _routing_error(error)
        except Exception as error:
            logger.error("%s met a bug: %s", request_id, _place(error))
            failure = EngineError("the server met an unexpected error")
        else:
            return
        if not started:
            await send_error(send, failure, [(b"x-request-id", request_id.encode())])

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
        if scope["path"] != _OPEN_PATH:
            self._keys.check(headers)

    async def _health(self, request: Request) -> Response:
        if self._chat.draining:
            status = "draining"
        elif self._chat.prompt is None:
            status = "starting"
        else:
            status = "ok" if self._backend.ready else "engine not responding"
        code = HTTPStatus.OK if status == "ok" else HTTPStatus.SERVICE_UNAVAILABLE
        return _json(request, {"status": status}, code)

    async def _models(self, request: Request) -> Response:
        return _json(request, self._catalogue.all())

    async def _model(self, request: Request) -> Response:
        return _json(request, self._catalogue.resolve(request.path_params["name"]))


def _json(request: Request, value: object, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(
        msgspec.json.encode(value),
        status,
        {"x-request-id": request.scope["ultrafast.request_id"]},
        media_type="application/json",
    )


async def _unknown_route(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotFoundError("there is no such route", code="unknown_url")


def _routing_error(error: HTTPException) -> HttpError:
    headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
    return HttpError(
        HTTPStatus(error.status_code),
        "this route does not take that method",
        code="method_not_allowed",
        headers=headers,
    )


def _place(error: BaseException) -> str:
    """Where a bug struck, without any value: values may hold a key or a prompt."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else "unknown place"
    return f"{type(error).__name__} at {where}"
