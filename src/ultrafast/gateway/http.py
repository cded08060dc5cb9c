"""Small helpers over raw ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive, Send

from ultrafast.errors import UltrafastError
from ultrafast.gateway.failures import Headers, body_of, headers_of, status_of


async def send_json(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """One whole JSON response."""
    all_headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: UltrafastError, headers: Headers) -> None:
    """One error response in OpenAI's shape."""
    await send_json(send, status_of(error), body_of(error), headers + headers_of(error))


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Run ``work``, cancelling it when the client leaves; whether it ran to its end. The body was read before."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_until_disconnect(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        connected = working.done()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
    if connected:
        working.result()  # raises what the work raised
    return connected


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
