"""What surrounds every ASGI application of ours: a failure, whatever its kind, becomes one answer in OpenAI's shape."""

from __future__ import annotations

import logging
import traceback
import uuid
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ultrafast.errors import EngineError, NotFoundError, UltrafastError
from ultrafast.gateway.failures import HttpError, code_of, status_of
from ultrafast.gateway.http import send_error

logger = logging.getLogger("ultrafast.gateway")

REQUEST_ID = "ultrafast.request_id"  # where a scope holds it
ACCOUNTED = "ultrafast.accounted"  # set in a scope whose request has a line of its own in the log
ERROR_HEADERS = "ultrafast.error_headers"  # where a scope holds what a route adds to those of an error


async def answer(
    application: ASGIApp, admit: Callable[[Scope], None], scope: Scope, receive: Receive, send: Send
) -> None:
    """Let ``application`` answer one HTTP request that ``admit`` raises nothing about."""
    request_id = scope.setdefault(REQUEST_ID, "req_" + uuid.uuid4().hex)
    scope["app"] = application  # makes a router raise for a wrong method, rather than answer in its own words
    started = False

    def noted_send(message: Message) -> Awaitable[None]:
        nonlocal started
        started = True
        return send(message)

    try:
        admit(scope)
        await application(scope, receive, noted_send)
    except UltrafastError as error:
        failure = error
    except HTTPException as error:
        failure = _routing_error(error)
    except Exception as error:
        logger.error("%s met a bug: %s", request_id, place_of(error))
        failure = EngineError("the server met an unexpected error")
    else:
        return
    if ACCOUNTED not in scope:
        logger.info("%s %s status=%d", request_id, code_of(failure), status_of(failure))
    if not started:
        await send_error(send, failure, [(b"x-request-id", request_id.encode()), *scope.get(ERROR_HEADERS, [])])


async def unknown_route(scope: Scope, receive: Receive, send: Send) -> None:
    """The answer of a router where no route fits."""
    raise NotFoundError("there is no such route", code="unknown_url")


def _routing_error(error: HTTPException) -> HttpError:
    headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
    return HttpError(
        HTTPStatus(error.status_code),
        "this route does not take that method",
        code="method_not_allowed",
        headers=headers,
    )


def place_of(error: BaseException) -> str:
    """Where a bug struck, without any value: values may hold a key or a prompt."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else "unknown place"
    return f"{type(error).__name__} at {where}"
