"""The load generator's HTTP/1.1: raw, so that it takes little from the server it measures on the same machine.

What comes is noted with its time and looked into when the answer is over.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from ultrafast.errors import EngineError

_LAST_CHUNK = b"0\r\n\r\n"
_HEAD_END = b"\r\n\r\n"
_EVENT_END = b"\n\n"
_EVENT_START = b"data: "
_DONE = b"[DONE]"


class TimeInfo(msgspec.Struct, frozen=True):
    """The server's own account of one request, in seconds."""

    queue_time: float
    prompt_time: float


class PromptDetails(msgspec.Struct, frozen=True):
    """A part of the usage object."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptDetails


class _Delta(msgspec.Struct, frozen=True):
    content: str = ""


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    service_tier: str = ""
    usage: Usage | None = None
    time_info: TimeInfo | None = None
    error: dict[str, Any] | None = None


@dataclass
class Reply:
    """An answer as it was read; a token's time is that of the event which brought it."""

    status: int
    started: float
    ended: float | None  # None: not over
    token_times: list[float] = field(default_factory=list)
    text: str = ""
    service_tier: str = ""
    usage: Usage | None = None
    time_info: TimeInfo | None = None
    error_code: str | None = None

    @property
    def ttft_seconds(self) -> float:
        """From the request's first byte sent to the first text received."""
        return self.token_times[0] - self.started

    @property
    def output_tokens_per_second(self) -> float:
        """Tokens after the first event ÷ the time from the first event to the last one with text."""
        assert self.usage is not None
        return (self.usage.completion_tokens - 1) / (self.token_times[-1] - self.token_times[0])

    def waits(self) -> list[tuple[float, float]]:
        """From each token to the next: (its time, the next one's)."""
        return list(pairwise(self.token_times))

    def engine_account(self) -> tuple[Usage, TimeInfo]:
        """Usage and times. Raises EngineError where the answer was not finished."""
        if self.usage is None or self.time_info is None or not self.token_times:
            raise EngineError(f"the server did not finish an answer: status {self.status}, {self.error_code}")
        return self.usage, self.time_info


class Exchange:
    """A request under way: what has come of its answer, and when."""

    def __init__(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        self.started = 0.0
        self.arrivals: list[tuple[float, bytes]] = []
        self.begun: asyncio.Future[None] = loop.create_future()  # first text, or the end without any
        self.done: asyncio.Future[None] = loop.create_future()
        self._connection = connection
        self._reply: Reply | None = None

    def cancel(self) -> None:
        """Leave: the server stops its work."""
        if not self.done.done():
            self._connection.leave()

    def reply(self) -> Reply:
        """What came until now."""
        if self._reply is None:
            reply = _read(self)
            if not self.done.done():
                return reply
            self._reply = reply
            self.arrivals = []
        return self._reply

    def _end(self) -> None:
        for future in (self.begun, self.done):
            if not future.done():
                future.set_result(None)


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, idle: list[Connection]) -> None:
        self._idle = idle
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._head = b""
        self._in_body = False
        self._tail = b""
        self._body_bytes: int | None = None  # that are still to come; None: the last chunk ends the body

    @property
    def usable(self) -> bool:
        """Whether the server has kept it open."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes) -> Exchange:
        """Send a whole request."""
        assert self._transport is not None
        exchange = self._exchange = Exchange(self)
        self._head = self._tail = b""
        self._in_body, self._body_bytes = False, None
        exchange.started = time.perf_counter()
        self._transport.write(request)
        return exchange

    def leave(self) -> None:
        """Close in the middle of whatever comes."""
        if self._transport is not None:
            self._transport.abort()
        self._finish(reusable=False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's is one in all but its base class

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._finish(reusable=False)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop: the hot path."""
        exchange = self._exchange
        if exchange is None:
            return
        exchange.arrivals.append((time.perf_counter(), data))
        if not exchange.begun.done() and b'"content":' in data:
            exchange.begun.set_result(None)
        if not self._in_body:
            data = self._read_head(data)
        if self._body_bytes is not None:
            self._body_bytes -= len(data)
        self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
        if self._in_body and (self._tail == _LAST_CHUNK if self._body_bytes is None else self._body_bytes <= 0):
            self._finish(reusable=True)

    def _read_head(self, data: bytes) -> bytes:
        """Take the head from what has come; returns what is of the body."""
        head, found, body = (self._head + data).partition(_HEAD_END)
        self._head = head
        if not found:
            return b""
        self._in_body = True
        length = _header(head, b"content-length")
        self._body_bytes = None if length is None else int(length)
        return body

    def _finish(self, *, reusable: bool) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange._end()
            if reusable:
                self._idle.append(self)


class Client:
    """Connections to one server; each is kept and used again."""

    def __init__(self, port: int, key: str) -> None:
        self.port = port
        self._key = key
        self._idle: list[Connection] = []

    async def start(
        self, body: dict[str, Any], *, key: str | None = None, over_capacity: str | None = None
    ) -> Exchange:
        """Send a chat completion request, streamed with usage."""
        stream = {"model": "benchmark", "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        content = json.dumps(stream | body).encode()
        extra = "" if over_capacity is None else f"x-ultrafast-over-capacity: {over_capacity}\r\n"
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\n"
            f"authorization: Bearer {key or self._key}\r\ncontent-type: application/json\r\n{extra}"
            f"content-length: {len(content)}\r\n\r\n"
        )
        connection = await self._connection()
        return connection.send(head.encode("ascii") + content)

    async def ask(self, body: dict[str, Any], *, key: str | None = None, over_capacity: str | None = None) -> Reply:
        """Send a request and wait for the end of its answer."""
        exchange = await self.start(body, key=key, over_capacity=over_capacity)
        await exchange.done
        return exchange.reply()

    def close(self) -> None:
        """Close what is kept."""
        for connection in self._idle:
            connection.leave()
        self._idle.clear()

    async def _connection(self) -> Connection:
        while self._idle:
            kept = self._idle.pop()
            if kept.usable:
                return kept
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: Connection(self._idle), "127.0.0.1", self.port)
        except OSError as error:
            raise EngineError(f"the server took no connection: {error.strerror}") from error
        return connection


def _header(head: bytes, name: bytes) -> bytes | None:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return None


def _read(exchange: Exchange) -> Reply:
    arrivals = exchange.arrivals
    reply = Reply(0, exchange.started, arrivals[-1][0] if arrivals and exchange.done.done() else None)
    raw = b""
    in_body = False
    for moment, data in arrivals:
        raw += data
        if not in_body:
            if _HEAD_END not in raw:
                continue
            head, _, raw = raw.partition(_HEAD_END)
            reply.status = int(head.split(None, 2)[1])
            in_body = True
        if reply.status != 200:
            continue
        *events, raw = raw.split(_EVENT_END)
        for event in events:
            _read_event(event, moment, reply)
    if in_body and reply.status != 200 and reply.ended is not None:
        reply.error_code = json.loads(raw)["error"]["code"]
    return reply


def _read_event(event: bytes, moment: float, reply: Reply) -> None:
    """``event`` may begin with the framing of its chunk."""
    _, found, payload = event.partition(_EVENT_START)
    if not found or payload == _DONE:
        return
    chunk = msgspec.json.decode(payload, type=_Chunk)
    text = chunk.choices[0].delta.content if chunk.choices else ""
    if text:
        reply.token_times.append(moment)
        reply.text += text
    reply.service_tier = chunk.service_tier or reply.service_tier
    reply.usage = chunk.usage or reply.usage
    reply.time_info = chunk.time_info or reply.time_info
    if chunk.error is not None:
        reply.error_code = str(chunk.error.get("code"))
