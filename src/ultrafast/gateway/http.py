"""Small helpers over raw ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from ultrafast.errors import UltrafastError
from ultrafast.gateway.failures import Headers, body_of, headers_of, status_of

DirectWrite = Callable[[bytes], bool]

_DIRECT_WRITE: Final = "ultrafast.direct_write"  # an extension of the scope


def offer_direct_write(scope: Scope, write: DirectWrite) -> None:
    """Let whoever answers the request of ``scope`` write pieces of the body from a callback of the event loop.

    ``write`` takes a piece at once and tells whether it did: not before the response has begun, after its end, or to
    a reader who is behind.
    """
    scope["extensions"] = {_DIRECT_WRITE: {"write": write}}


def direct_write(scope: Scope) -> DirectWrite:
    """What ``offer_direct_write`` was given; under another server, one that takes nothing."""
    offered = scope.get("extensions", {}).get(_DIRECT_WRITE)
    return _take_nothing if offered is None else offered["write"]


def _take_nothing(data: bytes) -> bool:
    return False


async def send_json(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """One whole JSON response."""
    all_headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: UltrafastError, headers: Headers) -> None:
    """One error response in OpenAI's shape."""
    await send_json(send, status_of(error), body_of(error), headers + headers_of(error))


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work``, cancelling it when the client leaves. The body was read before."""
    task = asyncio.current_task()
    assert task is not None
    has_left = False

    def leave(watching: asyncio.Task[None]) -> None:
        nonlocal has_left
        has_left = True
        task.cancel()

    # The work begins at once, in this very task; its watcher begins when it first waits.
    watching = asyncio.create_task(_until_disconnect(receive))
    watching.add_done_callback(leave)
    try:
        await work
    except asyncio.CancelledError:
        if not has_left:
            raise
    finally:
        watching.remove_done_callback(leave)
        watching.cancel()
        if has_left:
            task.uncancel()


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
