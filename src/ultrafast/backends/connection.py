"""One running engine process, as its parent sees it: the socket, the streams in flight, the process itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from ultrafast.backends import placement
from ultrafast.backends.event_stream import EventStream
from ultrafast.engine import messages
from ultrafast.engine.messages import (
    Cancel,
    EngineStatus,
    Events,
    Failed,
    FromEngine,
    GenerationEvent,
    GenerationRequest,
    Load,
    ModelDescription,
    Ping,
    Pong,
    Progress,
    Ready,
    Shutdown,
    Submit,
    ToEngine,
)
from ultrafast.errors import EngineError, EngineUnavailableError, UltrafastError

logger = logging.getLogger(__name__)

ACCOUNT_SECONDS = 4.0  # for that of a request that was given up: an engine silent for longer counts as unready

_SOCKET_BUFFER_BYTES = 1 << 20
_EXIT_SECONDS = 2.0

# How long loading takes nobody knows: the model is large, the disk slow. An engine that loads uses the processor or
# gets pages from the disk; one that does neither for so many beats hangs. Beats, not seconds: see ``local``.
_START_BEAT_SECONDS = 1.0
_IDLE_BEATS_UNTIL_GIVEN_UP = 60


class LocalStream(EventStream):
    """The events of one request to our engine.

    What waits here is bounded by the request's own ``max_tokens``, so a slow reader needs no further limit.
    """

    def __init__(self, connection: EngineConnection, request_id: str, tier: str) -> None:
        super().__init__()
        self.tier = tier
        self._connection = connection
        self._request_id = request_id
        self._account: asyncio.Future[None] | None = None  # where it was given up: done when the engine has told it

    async def aclose(self) -> None:
        """Give the request up: the engine drops it before its next step, and says what was done."""
        if not self._ended and self._connection.cancel(self._request_id):
            self._account = asyncio.get_running_loop().create_future()
        self.drop()
        if self._account is not None:
            await asyncio.wait([self._account], timeout=ACCOUNT_SECONDS)

    def push(self, event: GenerationEvent) -> None:
        """Hand on or append an event; of a request that was given up, the last one still tells what was done."""
        if self._account is None:
            super().push(event)
        elif event.summary is not None:
            self.summary = event.summary
            self._settle()

    def fail(self, error: Exception) -> None:
        """End with ``error``, after the events that came before it."""
        super().fail(error)
        self._settle()

    def _settle(self) -> None:
        if self._account is not None and not self._account.done():
            self._account.set_result(None)


class EngineConnection(asyncio.Protocol):
    """Speaks with one engine process from its start to its end; never reused for a second one."""

    def __init__(self, on_progress: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        self._on_progress = on_progress
        self._reader = messages.backend_side_reader()
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._streams: dict[str, LocalStream] = {}
        self._pongs: dict[int, asyncio.Future[EngineStatus]] = {}
        self._ping_number = 0
        self._stage = "starting"
        self._ready: asyncio.Future[ModelDescription] = loop.create_future()
        self._fault: UltrafastError | None = None
        self.ended = asyncio.Event()
        self.heard = False  # any message since the supervisor last looked

    @property
    def process_id(self) -> int | None:
        """The process id of the engine, once it was started."""
        return None if self._process is None else self._process.pid

    def in_flight(self, tier: str | None = None) -> int:
        """Requests of a tier, or of all, that were submitted and have not ended."""
        return sum(tier in (None, stream.tier) for stream in self._streams.values())

    async def launch(self, load: Load) -> ModelDescription:
        """Start the process and load the model.

        Raises what the loader reported, or EngineError where the process died or hangs.
        """
        ours, theirs = socket.socketpair()
        try:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
            ours.setblocking(False)
            # -P: the current directory is no place to import code from.
            command = (sys.executable, "-P", "-m", "ultrafast.engine.worker", str(theirs.fileno()))
            with placement.anywhere():
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # Ctrl-C in a terminal is for us, also before the engine can ignore it
                )
            self._socket = ours
            await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)
        except OSError as error:
            ours.close()
            raise EngineError(f"the engine process could not be started: {error.strerror}") from error
        finally:
            theirs.close()
        self._send(load)
        try:
            await self._until_loaded(self._process.pid)
            return await self._ready
        finally:
            self._ready.cancel()  # where nobody waits any more

    async def _until_loaded(self, process_id: int) -> None:
        idle_beats, effort = 0, _effort(process_id)
        while not (await asyncio.wait((self._ready,), timeout=_START_BEAT_SECONDS))[0]:
            before, effort = effort, _effort(process_id)
            idle_beats = idle_beats + 1 if effort is not None and effort == before else 0
            if idle_beats >= _IDLE_BEATS_UNTIL_GIVEN_UP:
                raise EngineError(
                    f"the engine process did nothing for {idle_beats * _START_BEAT_SECONDS:g} s while {self._stage}: "
                    "it was stopped, or the disk with the model does not answer"
                )

    def submit(self, request: GenerationRequest) -> LocalStream:
        """Send a request; its events come to the stream returned."""
        if self.ended.is_set():
            raise EngineUnavailableError("the engine is restarting")
        stream = LocalStream(self, request.request_id, request.tier)
        self._streams[request.request_id] = stream
        self._send(Submit(request, time.monotonic()))
        return stream

    def cancel(self, request_id: str) -> bool:
        """Have the engine drop a request; False where it has ended already: no account will follow."""
        if request_id not in self._streams:
            return False
        self._send(Cancel(request_id))
        return True

    def ping(self) -> asyncio.Future[EngineStatus]:
        """Ask for a sign of life; the future has the engine's counters."""
        self._ping_number += 1
        future: asyncio.Future[EngineStatus] = asyncio.get_running_loop().create_future()
        if self.ended.is_set():
            future.cancel()
            return future
        self._pongs[self._ping_number] = future
        self._send(Ping(self._ping_number))
        return future

    async def close(self) -> None:
        """End the process, by force where it does not go; requests in flight fail. Safe at any time, and twice."""
        if self._process is None:
            return
        self._send(Shutdown(drain=False))
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                await self._process.wait()
        except TimeoutError:
            await self.kill()
        self._end()

    async def kill(self) -> None:
        """End the process now. Works on a stopped one, too."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def exit_reason(self) -> str:
        """Why the process ended, for a log line."""
        if self._fault is not None:
            return str(self._fault)
        if self._process is None:
            return "it never started"
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                code = await self._process.wait()
        except TimeoutError:
            return "it closed its socket"
        if code >= 0:
            return f"exit code {code}"
        return f"signal {signal.Signals(-code).name}"

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its base class

    def data_received(self, data: bytes) -> None:
        """Called by the event loop with whatever pieces have come."""
        self.heard = True
        try:
            for message in self._reader.feed(data):
                self._dispatch(message)
        except messages.ProtocolError as error:
            self._fault = error
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop: the process is gone, or going."""
        self._end()

    def _dispatch(self, message: FromEngine) -> None:
        match message:
            case Events(items):
                for request_id, event in items:
                    stream = self._streams.get(request_id)
                    if stream is not None:
                        if event.summary is not None:
                            del self._streams[request_id]
                        stream.push(event)
            case Pong(number, status):
                future = self._pongs.pop(number, None)
                if future is not None and not future.done():
                    future.set_result(status)
            case Failed():
                self._failed(message)
            case Progress(stage):
                self._stage = stage
                self._on_progress(stage)
            case Ready(description):
                if not self._ready.done():
                    self._ready.set_result(description)

    def _failed(self, failed: Failed) -> None:
        error = messages.failure_error(failed)
        if failed.request_id:
            stream = self._streams.pop(failed.request_id, None)
            if stream is not None:
                stream.fail(error)
            return
        self._fault = error
        if not self._ready.done():
            self._ready.set_exception(error)

    def _end(self) -> None:
        if self.ended.is_set():
            return
        self.ended.set()
        if self._transport is not None:
            self._transport.close()
        if not self._ready.done():
            self._ready.set_exception(EngineError("the engine process ended while loading (out of memory, perhaps)"))
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(EngineUnavailableError("the engine stopped before the answer was complete"))
        pongs, self._pongs = self._pongs, {}
        for future in pongs.values():
            future.cancel()

    def _send(self, message: ToEngine) -> None:
        """Send, now if nothing stands before it: a transport may wait until this turn of the event loop is over."""
        transport, connection = self._transport, self._socket
        if transport is None or connection is None or transport.is_closing():
            return
        frame = messages.encode_frame(message)
        sent = 0
        if transport.get_write_buffer_size() == 0:
            with contextlib.suppress(OSError):  # full; or gone, which the transport finds out by itself
                sent = connection.send(frame)
        if sent < len(frame):
            transport.write(frame[sent:])


def _effort(process_id: int) -> int | None:
    """Processor time and pages got from a disk so far, in sum; None where the system does not tell, or it is gone."""
    try:
        # After the program's name, which may hold anything, the third field of proc_pid_stat(5) and those that follow.
        fields = Path(f"/proc/{process_id}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    major_faults, user_ticks, system_ticks = fields[9], fields[11], fields[12]
    return int(major_faults) + int(user_ticks) + int(system_ticks)
