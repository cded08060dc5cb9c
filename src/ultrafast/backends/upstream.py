"""Another server of OpenAI's API as a backend: any URL, its own model name, its own words for tiers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import logging
import random
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec

from ultrafast.backends.base import BackendState, Call, GenerationEvent, LastError
from ultrafast.backends.event_stream import EventStream
from ultrafast.backends.health import Health
from ultrafast.backends.key_file import check_key, read_key_file
from ultrafast.backends.server_sent_events import MAXIMUM_EVENT_BYTES, EventReader
from ultrafast.backends.settings import UpstreamSettings
from ultrafast.backends.upstream_answer import Answer, AnswerError
from ultrafast.backends.upstream_failures import (
    MAXIMUM_ERROR_BYTES,
    Refusal,
    capacity_error,
    refusal_of,
    stream_refusal,
)
from ultrafast.backends.upstream_messages import ALTERNATIVES, read_chunk, request_body
from ultrafast.engine.tiers import TIER_NAMES
from ultrafast.errors import ConfigurationError, UpstreamError

logger = logging.getLogger(__name__)

# For a reader who is behind: some thousand tokens, as servers write them. A single event may be as long.
READ_AHEAD_BYTES: Final = MAXIMUM_EVENT_BYTES

_DONE: Final = b"[DONE]"
_ACCOUNT_SECONDS: Final = 5.0  # for the usage, once every choice has ended
_LAST_BYTES_SECONDS: Final = 1.0  # for the end of the response after its last event
_STALE_TRIES: Final = 4  # of kept connections that the other side may have closed meanwhile
_KEEP_ALIVE_SECONDS: Final = 30.0


def read_key(settings: UpstreamSettings, environment: Mapping[str, str]) -> str | None:
    """The key of a backend. Raises ConfigurationError, which says where it was looked for and never what it is."""
    if settings.key_variable is not None:
        value = environment.get(settings.key_variable, "")
        if not value:
            raise ConfigurationError(f"the environment variable {settings.key_variable} is not set")
        check_key(value, settings.key_variable)
        return value
    if settings.key_file is not None:
        path = Path(settings.key_file).expanduser()
        try:
            return read_key_file(path)
        except OSError as error:
            raise ConfigurationError(f"the key file {path} cannot be read: {error.strerror}") from None
    return None


@functools.cache
def _authorities() -> ssl.SSLContext:
    """Certificates are checked. Made once, for it takes a fifth of a second; where no TLS is spoken, never."""
    return httpx2.create_ssl_context(trust_env=False)


class UpstreamBackend:
    """Sends calls on to one server and relays its tokens. No proxy or login of the environment is used."""

    def __init__(
        self,
        name: str,
        settings: UpstreamSettings,
        *,
        environment: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self.settings = settings
        self.key = read_key(settings, environment)
        self.url = settings.url.rstrip("/") + "/chat/completions"
        self._clock = clock
        self._draw = draw
        # By the word for the tier: a full tier there says nothing about the others.
        self._healths: dict[str | None, Health] = {}
        self._alternatives: dict[str, str | None] = {}  # of fields that it was found to refuse
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._retired = False
        self._last_error: LastError | None = None
        headers = {"accept": "text/event-stream", "accept-encoding": "identity", "content-type": "application/json"}
        if self.key is not None:
            headers["authorization"] = f"Bearer {self.key}"
        encrypted = settings.url.lower().startswith("https:")
        self._client = httpx2.AsyncClient(
            headers=headers | {"user-agent": "ultrafast"},
            timeout=httpx2.Timeout(None, connect=settings.connect_seconds),
            limits=httpx2.Limits(
                max_connections=None,  # calls are counted, none waits
                max_keepalive_connections=settings.concurrent,
                keepalive_expiry=_KEEP_ALIVE_SECONDS,
            ),
            verify=_authorities() if encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            http2=False,
            follow_redirects=False,
            trust_env=False,
        )

    @property
    def ready(self) -> bool:
        """Whether a call submitted now would be tried, at one tier at least."""
        healths = self._healths.values()
        return self._has_room and (not healths or any(health.ready for health in healths))

    @property
    def state(self) -> BackendState:
        """How the server is, as far as requests have shown, for its operator."""
        failing = {word: health for word, health in self._healths.items() if health.failing}
        if not failing:
            return BackendState("ok" if self._has_room else "full", self._in_flight, self._last_error)
        tiers = tuple(tier for tier in TIER_NAMES if self.settings.tiers.get(tier) in failing)
        return BackendState(
            "backing off" if (wait := max(health.wait_seconds for health in failing.values())) else "failed",
            self._in_flight,
            self._last_error,
            () if len(tiers) == len(TIER_NAMES) else tiers,
            wait or None,
        )

    def note_failure(self, note: str) -> None:
        """A call failed by the server's fault."""
        self._last_error = LastError(note, time.time())

    @property
    def in_flight(self) -> int:
        """Calls that are being answered."""
        return self._in_flight

    def same_as(self, settings: UpstreamSettings, key: str | None) -> bool:
        """Whether a backend made from these would be this one."""
        return settings == self.settings and hmac.compare_digest((key or "").encode(), (self.key or "").encode())

    def answer(self, call: Call) -> UpstreamStream:
        """Submit ``call``. Raises EngineUnavailableError while it is full or backing off."""
        word = self.settings.tiers.get(call.tier)
        health = self._healths.setdefault(word, Health(self._clock, self._draw))
        if not self._has_room or not health.ready:
            raise capacity_error(health.wait_seconds or None, note=self._closed_words(health))
        self._in_flight += 1
        self._idle.clear()
        return UpstreamStream(self, call, word, health)

    async def retire(self) -> None:
        """Take no further calls; returns when those that run have ended and every connection is closed."""
        self._retired = True
        await self._idle.wait()
        await self._client.aclose()

    def tier_of(self, word: str) -> str:
        """Our tier for a word of the other server; the word itself where the operator named none."""
        return next((tier for tier, known in self.settings.tiers.items() if known == word), word)

    async def send(self, call: Call, word: str | None) -> httpx2.Response:
        """Send the request until the other server takes it. Raises httpx2's errors and ``RefusedError``."""
        body = request_body(call, model=self.settings.model, service_tier=word)
        for name in self.settings.omit:
            body.pop(name, None)
        tried = dict(self._alternatives)
        _replace(body, tried)
        while True:
            response = await self._post(msgspec.json.encode(body))
            if response.status_code == httpx2.codes.OK:
                self._alternatives = tried
                return response
            data = await _beginning(response)
            found = _refused_field(response.status_code, body, data)
            if found is None:
                raise RefusedError(refusal_of(response.status_code, response.headers, data, secret=self.key))
            tried[found] = ALTERNATIVES[found]
            _replace(body, tried)

    def release(self) -> None:
        """A stream of ours has ended."""
        self._in_flight -= 1
        if self._in_flight == 0:
            self._idle.set()

    @property
    def _has_room(self) -> bool:
        return not self._retired and self._in_flight < self.settings.concurrent

    def _closed_words(self, health: Health) -> str:
        """Why no call is taken now, for the operator."""
        if self._retired:
            return "no longer in the configuration"
        if not self._has_room:
            return f"it answers {self._in_flight} requests already"
        return health.words

    async def _post(self, content: bytes) -> httpx2.Response:
        """One request. A kept connection may turn out closed from the other side: then again, on another."""
        for remaining in reversed(range(_STALE_TRIES)):
            fresh = remaining == 0

            async def note(event: str, _: dict[str, Any]) -> None:
                nonlocal fresh
                fresh |= event == "connection.connect_tcp.started"

            request = self._client.build_request("POST", self.url, content=content, extensions={"trace": note})
            try:
                return await self._client.send(request, stream=True)
            except (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError):
                if fresh:
                    raise
        raise AssertionError("the last try raises or returns")


class RefusedError(Exception):
    """The other server answered, and not with an answer."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__()
        self.refusal = refusal


class UpstreamStream(EventStream):
    """The events of one call; see also ``RelayedStream``.

    A task of its own reads ahead of a slow reader, so that the connection is free when the other server is done; and
    so far only, so that nothing piles up: then he slows the other server down.
    """

    def __init__(self, backend: UpstreamBackend, call: Call, word: str | None, health: Health) -> None:
        super().__init__()
        self._backend = backend
        self._call = call
        self._word = word
        self._health = health
        self._round = health.begin()
        self._judged = False
        self._released = False
        self._whole = False  # its last event has come
        self._answer = Answer(call, limits_tokens="max_tokens" not in backend.settings.omit)
        self._reader = EventReader()
        self._response: httpx2.Response | None = None
        self._pieces: Any = None  # the response's iterator
        self._reading: asyncio.Task[None] | None = None
        self._ahead_bytes = 0  # read while an event waited
        self._caught_up = asyncio.Event()

    @property
    def served_tier(self) -> str | None:
        """See ``RelayedStream``. Where no word was sent, what the other server says is about tiers of its own."""
        reported = self._answer.tier_word
        if self._word is None or reported is None or reported == self._word:
            return None
        return self._backend.tier_of(reported)

    @property
    def estimated(self) -> bool:
        """See ``RelayedStream``."""
        return self._answer.estimated

    async def __anext__(self) -> GenerationEvent:
        if self._reading is None and not self._ended:
            self._reading = asyncio.create_task(self._read())
        if self._ended and not self._events:
            await self.aclose()  # the next call finds the connection free
        event = await super().__anext__()
        if not self._events:
            self._ahead_bytes = 0
            self._caught_up.set()
        return event

    async def aclose(self) -> None:
        """Give the call up: the connection is closed at once, so that the other server stops."""
        reading = self._reading
        if reading is not None and not self._ended:
            reading.cancel()
        self.drop()
        try:
            if reading is not None:
                await asyncio.wait((reading,))
        finally:
            self._release()

    async def _read(self) -> None:
        """Push every event. Whatever goes wrong ends the stream, after the events that came before it."""
        try:
            last = await self._read_answer()
            if isinstance(last, Refusal):
                await self._give_up(last)
            else:
                if self._answer.implausible:
                    logger.warning(
                        "backend %s: the token counts that it reports cannot be right (request %s); what it sent, "
                        "or was asked for at most, is billed",
                        self._backend.name,
                        self._call.request_id,
                    )
                self._release()
                self.push(last)
        except Exception as error:  # a bug: it is raised in the task whose request this is
            self.fail(error)
        finally:
            try:
                await self._close()
            finally:
                self._release()

    async def _read_answer(self) -> GenerationEvent | Refusal:
        """Push all events but the last, and return that, or what went wrong."""
        try:
            await self._read_pieces()
            return self._answer.end()
        except RefusedError as refused:
            return refused.refusal
        except (TimeoutError, httpx2.HTTPError, httpx2.StreamError) as error:
            # Of a complete answer nothing but the account is missing.
            return self._answer.end() if self._answer.complete else self._broken(error)
        except AnswerError as error:
            return _failure("broke off its answer", str(error))
        except (ValueError, RecursionError, msgspec.MsgspecError):
            return _failure("sent no valid answer", "what it sent is no stream of chat completions")

    async def _read_pieces(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self._backend.settings
        async with asyncio.timeout(settings.first_token_seconds) as deadline:
            await self._open()
            while not self._whole and (piece := await anext(self._pieces, None)) is not None:
                alive = self._add(piece)
                self._ahead_bytes = self._ahead_bytes + len(piece) if self._events else 0
                if self._ahead_bytes > READ_AHEAD_BYTES:
                    deadline.reschedule(None)  # it is we who are silent
                    await self._wait_for_reader()
                    alive = True
                if alive:
                    seconds = _ACCOUNT_SECONDS if self._answer.complete else settings.idle_seconds
                    deadline.reschedule(loop.time() + seconds)

    async def _wait_for_reader(self) -> None:
        began = time.perf_counter()
        self._caught_up.clear()
        await self._caught_up.wait()
        self._answer.held_seconds += time.perf_counter() - began

    async def _open(self) -> None:
        self._response = response = await self._backend.send(self._call, self._word)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "text/event-stream" or response.headers.get("content-encoding", "identity") != "identity":
            raise ValueError("no stream of events")
        self._pieces = response.aiter_raw()

    def _add(self, piece: bytes) -> bool:
        """Push the events of ``piece``; whether it shows that something was generated."""
        alive = False
        for data in self._reader.feed(piece):
            if data == _DONE:
                self._whole = True
                break
            chunk = read_chunk(data)
            if chunk.error is not None:
                raise RefusedError(stream_refusal(chunk.error, secret=self._backend.key))
            for event in self._answer.add(chunk):
                self.push(event)
            alive |= self._answer.alive
            if self._answer.begun:
                self._judge_good()
        return alive

    def _broken(self, error: Exception) -> Refusal:
        """What a connection's failure means."""
        settings = self._backend.settings
        match error:
            case TimeoutError():
                seconds = settings.idle_seconds if self._answer.begun else settings.first_token_seconds
                return _failure("took too long to answer", f"no token for {seconds:g} s")
            case httpx2.ConnectTimeout():
                return _failure("cannot be reached", f"no connection in {settings.connect_seconds:g} s")
            case httpx2.ConnectError():
                return _failure("cannot be reached", "no connection")
            case httpx2.ProtocolError():
                return _failure("broke off its answer", "it sent no valid HTTP, or closed the connection too early")
            case _:
                return _failure("broke off its answer", "the connection was lost")

    def _judge_good(self) -> None:
        if not self._judged:
            self._judged = True
            self._health.succeed(self._round)

    async def _give_up(self, refusal: Refusal) -> None:
        if refusal.healthy:
            self._judge_good()
        else:
            self._judged = True
            self._health.fail(self._round, refusal.retry_after_seconds)
            self._backend.note_failure(refusal.note)
            logger.warning(
                "backend %s: %s (request %s); it is tried again in %.1f s",
                self._backend.name,
                refusal.note,
                self._call.request_id,
                self._health.wait_seconds,
            )
        await self._close()
        self._release()
        self.fail(refusal.error)

    async def _close(self) -> None:
        response, self._response = self._response, None
        if response is None:
            return
        try:
            if self._whole:  # then the connection can be kept, once the end of the response is read
                with contextlib.suppress(TimeoutError, httpx2.HTTPError, httpx2.StreamError):
                    async with asyncio.timeout(_LAST_BYTES_SECONDS):
                        await anext(self._pieces, None)
        finally:
            with contextlib.suppress(httpx2.HTTPError, OSError):
                await response.aclose()

    def _release(self) -> None:
        if self._released:
            return
        self._released = True
        if not self._judged:
            self._health.abandon(self._round)
        self._backend.release()


def _failure(words: str, note: str) -> Refusal:
    return Refusal(UpstreamError(f"the server behind this model {words}"), note)


async def _beginning(response: httpx2.Response) -> bytes:
    """As much of an error's body as is worth reading."""
    data = b""
    try:
        with contextlib.suppress(httpx2.HTTPError):  # the status alone says enough
            async for piece in response.aiter_raw():
                data += piece
                if len(data) > MAXIMUM_ERROR_BYTES:
                    break
    finally:
        await response.aclose()
    return data[:MAXIMUM_ERROR_BYTES]


def _replace(body: dict[str, Any], alternatives: Mapping[str, str | None]) -> None:
    for name, other in alternatives.items():
        if name in body:
            value = body.pop(name)
            if other is not None:
                body[other] = value


def _refused_field(status: int, body: Mapping[str, Any], data: bytes) -> str | None:
    """The field that the other server seems to refuse, and that can be sent otherwise."""
    if status in (400, 422):
        for name, other in ALTERNATIVES.items():
            if name in body and (other or name).encode() in data:
                return name
    return None
