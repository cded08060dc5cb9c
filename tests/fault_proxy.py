"""A small server between a client and a real server, which behaves as badly as it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import enum
from types import TracebackType
from typing import Self


class Fault(enum.Enum):
    """What the proxy does with the next connections."""

    NONE = "passes everything on"
    SILENCE = "takes the request and answers nothing"
    HANG_UP = "takes the request and closes"
    STALL_BEFORE = "passes the response's head on, then nothing"
    STALL_AFTER = "passes the first events on, then nothing"
    CUT_BEFORE = "passes the response's head on, then closes"
    CUT_AFTER = "passes the first events on, then closes"
    HALF_CLOSE_AFTER = "passes the first events on, then ends its sending side only"
    RESET_AFTER = "passes the first events on, then resets the connection"
    DRIBBLE = "passes the response on byte by byte"
    NO_HTTP = "answers what is no HTTP"
    NO_EVENTS = "answers a page"
    NO_JSON = "answers events that are no JSON"
    ENDLESS_EVENT = "answers an event that does not end"
    SCRIPT = "answers the bytes in `script`"
    SCRIPT_AND_STALL = "answers the bytes in `script`, then nothing"


EVENTS_BEFORE_THE_FAULT = 3
_HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: "
_STREAM = _HEAD + b"text/event-stream\r\n\r\n"
_SCRIPTED = {
    Fault.NO_HTTP: b"\x15\x03\x01\x00\x02\x02\x46 hello hello hello\r\n\r\n",
    Fault.NO_EVENTS: _HEAD + b"text/html\r\n\r\n<html>Welcome to nginx</html>",
    Fault.NO_JSON: _STREAM + b"data: {hello\n\n",
}
_WHOLE = frozenset({Fault.NONE, Fault.DRIBBLE})
_LATE = frozenset({Fault.STALL_AFTER, Fault.CUT_AFTER, Fault.HALF_CLOSE_AFTER, Fault.RESET_AFTER})
_STALLING = frozenset({Fault.STALL_BEFORE, Fault.STALL_AFTER, Fault.HALF_CLOSE_AFTER})


def response(status: int, body: str, *headers: str) -> bytes:
    """For ``script``: a whole response."""
    content = body.encode()
    lines = [f"HTTP/1.1 {status} Whatever", "content-type: application/json", f"content-length: {len(content)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + content


def events(*data: str) -> bytes:
    """For ``script``: a stream of these events."""
    return _STREAM + "".join(f"data: {each}\n\n" for each in data).encode()


class FaultProxy:
    """An asynchronous context; ``url`` leads to the server at ``port`` on this machine, through the fault."""

    def __init__(self, port: int = 0) -> None:
        self.fault = Fault.NONE
        self.script = b""
        self.scripts: list[bytes] = []  # used up one by one before it
        self.requests: list[bytes] = []
        self.connections = 0
        self.left = asyncio.Event()  # set when a client has closed a connection that we still served
        self._target = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether the connection goes on."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.partition(b":")[2]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        self.requests.append(head + await reader.readexactly(length))
        fault = self.fault
        if fault in _SCRIPTED or fault in (Fault.SCRIPT, Fault.SCRIPT_AND_STALL):
            writer.write(_SCRIPTED.get(fault) or (self.scripts.pop(0) if self.scripts else self.script))
            await writer.drain()
            if fault is Fault.SCRIPT_AND_STALL:
                await self._until_client_leaves(reader)
            return False
        if fault is Fault.ENDLESS_EVENT:
            writer.write(_STREAM + b"data: ")
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()
        if fault is Fault.SILENCE:
            await self._until_client_leaves(reader)
        if fault in (Fault.SILENCE, Fault.HANG_UP):
            return False
        return await self._relay(fault, reader, writer)

    async def _relay(self, fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._target)
        leaving = asyncio.create_task(self._until_client_leaves(reader))
        relaying = asyncio.create_task(self._pieces(fault, upstream_reader, writer))
        try:
            upstream_writer.write(self.requests[-1])
            await asyncio.wait((leaving, relaying), return_when=asyncio.FIRST_COMPLETED)
            if relaying.done():
                await relaying
                if fault in _STALLING:
                    await leaving
            return False
        finally:
            leaving.cancel()
            relaying.cancel()
            upstream_writer.close()  # the real server stops, too

    async def _until_client_leaves(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read(1)
        self.left.set()

    async def _pieces(self, fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass the response on as far as the fault lets it."""
        writer.write(await reader.readuntil(b"\r\n\r\n"))
        passed = 0
        while fault in _WHOLE or (fault in _LATE and passed < EVENTS_BEFORE_THE_FAULT):
            piece = await (reader.read(65_536) if fault in _WHOLE else reader.readuntil(b"\n\n"))
            if not piece:
                break
            passed += 1
            if fault is Fault.DRIBBLE:
                for byte in piece:
                    writer.write(bytes((byte,)))
                    await writer.drain()
                    await asyncio.sleep(0)
            else:
                writer.write(piece)
            await writer.drain()
            if piece.endswith(b"\r\n0\r\n\r\n"):
                break
        if fault is Fault.HALF_CLOSE_AFTER:
            writer.write_eof()
        elif fault is Fault.RESET_AFTER:
            # In a moment: what was written is then on its way, and not lost with the connection.
            await asyncio.sleep(0.05)
            writer.transport.abort()
