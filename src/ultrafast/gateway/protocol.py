"""The HTTP connection: uvicorn's, with the limits it leaves to a reverse proxy that is not there."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp, Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from ultrafast.gateway.failures import HttpError, body_of
from ultrafast.gateway.http import offer_direct_write

MAXIMUM_HEADER_BYTES = 32 << 10
HEADER_SECONDS = 15.0
# A request in all, on the wire: the largest body in chunks of one byte, six bytes each. Bounds what trailers may hold.
MAXIMUM_MESSAGE_BYTES = 24 << 20
# After an answer to a request that is still arriving, what comes is thrown away so long, and so much: closing at once,
# with bytes unread, would reset the connection and take the answer with it.
LINGER_SECONDS = 1.0
LINGER_BYTES = 8 << 20
WRITE_SECONDS = 30.0  # how long a client may leave a full buffer unread, or what is left of a whole answer
# A client that ends its sending side may wait for its answer or be gone: nothing tells the two apart before something
# is written. So it has what is answered at once, a refusal or a list; work for the engine is not done on a chance.
HALF_CLOSED_SECONDS = 0.2
LAST_WRITES_SECONDS = 3  # for what was sent before the server stops
_AUTHORITY = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")


class LimitedHttpProtocol(HttpToolsProtocol):
    """Bounds the size and time of a request, trailers included, and the time a client may stop reading.

    Trailers are dropped: merged into the headers they could forge what was checked. A response that ends before its
    request closes the connection, so that nobody without a key holds it open. So does a request that comes before
    the last one was answered: it is not.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._in_headers = True
        self._overtaking = False  # a request came before the last one was answered
        self._header_bytes = 0
        self._message_bytes = 0
        self._lingering = False
        self._linger_bytes = 0
        self._linger_timer: asyncio.TimerHandle | None = None
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._half_closed_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_header_timer()
        self._forget_write_timer()
        for timer in (self._linger_timer, self._half_closed_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        if self._lingering or not self._is_answering or self.cycle.more_body:
            return False  # closes
        # abort: the answer will not be whole, and closing would wait for the client to read what there is.
        self._half_closed_timer = self.loop.call_later(HALF_CLOSED_SECONDS, self.transport.abort)
        return True

    def data_received(self, data: bytes) -> None:
        if self._lingering or self._overtaking:
            self._linger_bytes += len(data)
            if self._linger_bytes > LINGER_BYTES:
                self.transport.abort()
            return
        if self._in_headers:
            self._header_bytes += len(data)
        else:
            self._message_bytes += len(data)
            if self._message_bytes > MAXIMUM_MESSAGE_BYTES:
                self.transport.abort()
                return
        super().data_received(data)
        if self._in_headers and self._header_bytes > MAXIMUM_HEADER_BYTES and not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request headers are too large")

    def on_message_begin(self) -> None:
        self._overtaking = self._is_answering
        if self._overtaking:
            # RFC 9112, 9.3.2: whoever pipelines must expect the connection to close after any answer. One who did and
            # left would not be noticed while the request before is worked on.
            self.cycle.keep_alive = False
            return
        if self.transport.get_write_buffer_size() == 0:
            self._forget_write_timer()
        super().on_message_begin()
        self._await_headers()

    def on_url(self, url: bytes) -> None:
        if not self._overtaking:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers and not self._overtaking:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        if not self._overtaking:
            super().on_body(body)

    def on_headers_complete(self) -> None:
        if self._overtaking:
            return
        self._in_headers = False
        self._forget_header_timer()
        self._obey_absolute_target()
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            _send_without_chunks(self.cycle)
        offer_direct_write(cast("Scope", self.scope), partial(_write_now, self.cycle))

    def on_message_complete(self) -> None:
        if self._overtaking:
            return
        self._in_headers = True
        self._header_bytes = 0
        self._message_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        unread = self.cycle is not None and self.cycle.more_body
        super().on_response_complete()
        if unread:
            self._linger()
        elif self._half_closed_timer is not None and self.cycle.response_complete:
            self._half_closed_timer.cancel()
            self.transport.close()
        self._limit_unsent()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._forget_write_timer()
        # abort, not close: closing would wait for the buffer that nobody reads.
        self._write_timer = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._forget_write_timer()
        super().resume_writing()
        if self._lingering or self.transport.is_closing() or not self._is_answering:
            self._limit_unsent()

    def send_400_response(self, msg: str) -> None:
        self._refuse(HTTPStatus.BAD_REQUEST, "this is not a valid HTTP request")

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _obey_absolute_target(self) -> None:
        """RFC 9112, 3.2.2: a target with a host of its own overrules the ``Host`` header, which must still be there."""
        found = _AUTHORITY.match(self.url)
        if found is None:
            return
        hosts = [index for index, (name, _) in enumerate(self.headers) if name == b"host"]
        for index in hosts:
            self.headers[index] = (b"host", found[1])
        rest = self.url[found.end() :]
        self.url = rest if rest.startswith(b"/") else b"/" + rest

    def _await_headers(self) -> None:
        self._forget_header_timer()
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer without an application, or instead of it, and close; in the middle of an answer only close."""
        if self._is_answering:
            if self.cycle.response_started:
                self.transport.abort()
                return
            self.cycle.disconnected = True  # so that it answers no more, and works no more
            self.cycle.message_event.set()
        body = body_of(HttpError(status, message, code="invalid_http_request"))
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self._linger()

    def _linger(self) -> None:
        """Send no more, read what still comes for a moment, and close."""
        if self._lingering or self.transport.is_closing():
            return
        self._lingering = True
        self._forget_header_timer()
        self._unset_keepalive_if_required()
        self.transport.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._linger_timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)
        self._limit_unsent()

    def _limit_unsent(self) -> None:
        """Let a client who does not read all that was written hold the connection only so long: closing would wait."""
        if self._write_timer is None and self.transport.get_write_buffer_size() > 0:
            self._write_timer = self.loop.call_later(WRITE_SECONDS, self._abort_unsent)

    def _abort_unsent(self) -> None:
        self._write_timer = None
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()

    def _forget_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _forget_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def _send_without_chunks(cycle: RequestResponseCycle) -> None:
    """Have a body end where its connection does: HTTP/1.0 knows no chunks (RFC 9112, 7.1), and uvicorn no other way."""
    send = cycle.send
    cycle.chunked_encoding = False

    async def send_as_it_comes(message: Any) -> None:
        while cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if message["type"] == "http.response.body":
            cycle.expected_content_length = len(message.get("body", b""))  # no length was promised: each is right
        await send(message)  # without another pause

    cycle.send = send_as_it_comes  # type: ignore[method-assign]


def _write_now(cycle: RequestResponseCycle, data: bytes) -> bool:
    """A piece of a response's body, as ``send`` would write it."""
    if not cycle.response_started or cycle.response_complete or not cycle.chunked_encoding:
        return False
    if cycle.disconnected or cycle.flow.write_paused or cycle.transport.is_closing():
        return False
    cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
    return True


class QuietServer(uvicorn.Server):
    """uvicorn as a part of this process: our limits, our log, and signals left to whoever runs it."""

    def __init__(self, application: ASGIApp, **settings: Any) -> None:
        super().__init__(
            Config(
                application,
                http=LimitedHttpProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=LAST_WRITES_SECONDS,
                **settings,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None: uvicorn would end the process by the signal it caught."""
        yield
