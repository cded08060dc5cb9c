"""Request bodies: bounded while they arrive, strict when they are parsed."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from starlette.types import Receive, Scope

from ultrafast.errors import RequestError
from ultrafast.gateway.failures import HttpError

MAXIMUM_BODY_BYTES = 4 << 20
BODY_SECONDS = 30.0

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# Said wherever an answer comes before its body was read: the connection cannot serve another request.
_CLOSES = (b"connection", b"close")
_NOT_JSON = "the body is not valid JSON"


class ClientLeftError(RequestError):
    """The client left before its request was complete: nobody reads this, and it is no failure."""


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """The whole body.

    Raises HttpError: 415 where it is not declared as JSON or is encoded, 413 beyond MAXIMUM_BODY_BYTES (before it is
    read, where its length is declared), 408 where it takes longer than BODY_SECONDS; ClientLeftError where the
    client left.
    """
    headers = dict(scope["headers"])
    media_type = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if media_type != b"application/json":
        raise HttpError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "the content type must be application/json",
            code="unsupported_media_type",
            headers=[_CLOSES],
        )
    encodings = b",".join(value for name, value in scope["headers"] if name == b"content-encoding")
    if not {encoding.strip().lower() for encoding in encodings.split(b",")} <= {b"", b"identity"}:
        raise HttpError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "the body must not have a content encoding: send it uncompressed",
            code="unsupported_media_type",
            headers=[(b"accept-encoding", b"identity"), _CLOSES],
        )
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > MAXIMUM_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeftError("the client left before its request was complete")
                body += message.get("body", b"")
                if len(body) > MAXIMUM_BODY_BYTES:
                    raise _too_large()
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise HttpError(
            HTTPStatus.REQUEST_TIMEOUT,
            "the body did not arrive in time",
            code="request_timeout",
            headers=[_CLOSES],
        ) from None


def _too_large() -> HttpError:
    return HttpError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body is larger than {MAXIMUM_BODY_BYTES} bytes",
        code="request_too_large",
        headers=[_CLOSES],
    )


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``. Raises RequestError for anything that is not exactly one.

    Stricter than the standard library: no duplicate keys, no lone surrogates, bounded depth and integers. ``NaN`` and
    numbers that overflow become non-finite floats here, so that the field readers can name the parameter.
    """
    try:
        text = body.decode("utf-8")
        with _without_collection():
            value = json.loads(text, object_pairs_hook=_object, parse_int=_integer)
        if _ESCAPED_SURROGATE.search(text):
            _check_characters(value)
    except RecursionError:
        raise RequestError("the body is nested too deeply", code="invalid_json") from None
    except ValueError:  # JSONDecodeError, UnicodeError and our own are all of this kind
        raise RequestError(_NOT_JSON, code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object", code="invalid_json")
    return value


@contextmanager
def _without_collection() -> Iterator[None]:
    """No garbage collection meanwhile: a body of a million small lists would set off passes over all of them, four
    times the work of reading it, and nothing else of the process runs while one goes on.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key")
    return result


def _integer(digits: str) -> int | float:
    # No field takes more than 64 bits: what is longer is out of every range, whichever it is.
    return int(digits) if len(digits) <= 20 else math.inf


def _check_characters(value: Any) -> None:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            item.encode("utf-8")
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, dict):
            pending.extend(item)
            pending.extend(item.values())
