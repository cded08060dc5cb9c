"""How an answer is sent: as a whole, or event by event as the steps give it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from starlette.types import Send

from ultrafast.backends.base import ChatRequest, GenerationEvent, TokenLogprob
from ultrafast.errors import EngineError, UltrafastError
from ultrafast.gateway.exchange import Exchange
from ultrafast.gateway.http import DirectWrite, send_json
from ultrafast.gateway.responses import (
    DONE,
    KEEP_ALIVE,
    ChatCompletion,
    Choice,
    ChunkWriter,
    Message,
    error_event,
    logprobs_of,
    time_info_of,
    usage_of,
)
from ultrafast.gateway.routes import Opened

KEEP_ALIVE_SECONDS = 5.0

Prepare = Callable[[], None]  # called while a backend begins; the exchange has its fingerprint
Opening = Callable[[Prepare], Coroutine[Any, Any, Opened]]


def _prepare_nothing() -> None:
    pass


@dataclass(slots=True)
class _Collected:
    """One choice of a response that is sent as a whole."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = "stop"


async def whole_answer(exchange: Exchange, chat: ChatRequest, opening: Opening, send: Send) -> None:
    """Collect every event and send one JSON body."""
    collected = [_Collected() for _ in range(chat.choices)]
    summary = None
    async with contextlib.aclosing(await opening(_prepare_nothing)) as opened:
        async for event in opened:
            exchange.note(event)
            choice = collected[event.choice]
            choice.texts.append(event.text)
            if event.logprobs is not None:
                choice.logprobs += event.logprobs
            if event.finish_reason is not None:
                choice.finish_reason = event.finish_reason
            summary = event.summary
    if summary is None:
        raise EngineError("the engine ended the answer without its account")
    exchange.generated()
    choices = [
        Choice(
            index,
            Message("assistant", "".join(choice.texts)),
            logprobs_of(choice.logprobs) if chat.logprobs else None,
            choice.finish_reason,
        )
        for index, choice in enumerate(collected)
    ]
    exchange.tier_served = opened.tier
    heading = exchange.heading()
    response = ChatCompletion(
        id=heading.id,
        object="chat.completion",
        created=heading.created,
        model=heading.model,
        choices=choices,
        usage=usage_of(summary),
        service_tier=heading.service_tier,
        system_fingerprint=heading.system_fingerprint,
        seed=chat.seed,
        time_info=time_info_of(summary, exchange.queue_seconds),
    )
    await send_json(send, 200, msgspec.json.encode(response), exchange.headers())
    exchange.succeed(summary, opened)


async def stream_answer(
    exchange: Exchange, chat: ChatRequest, opening: Opening, send: Send, write: DirectWrite
) -> None:
    """Send every event as it comes; once the response has begun, a failure is an event too."""
    response = _EventResponse(exchange, chat, send, write)
    response.keep_alive()
    try:
        async with contextlib.aclosing(await opening(response.prepare)) as opened:
            await response.run(opened)
    except asyncio.CancelledError:
        error = exchange.take_abort()
        if error is None:
            raise
        await response.fail(error)
    except UltrafastError as error:
        await response.fail(error)
    finally:
        response.close()


class _EventResponse:
    """A streamed response. It begins with its first event, so an early refusal still has its own status; or when the
    first token is long in coming, so that no proxy gives it up.
    """

    def __init__(self, exchange: Exchange, chat: ChatRequest, send: Send, write: DirectWrite) -> None:
        self._exchange = exchange
        self._chat = chat
        self._send = send
        self._direct_write = write
        self._last_sent = time.monotonic()
        self._is_writing = False  # what must not be overtaken
        self._finished = False
        self._writer: ChunkWriter
        self._timer: asyncio.TimerHandle
        self._comment: asyncio.Task[None] | None = None
        self.started = False

    def prepare(self) -> None:
        """Make ready what can be known before the first event: the backend works now, and nothing waits for this."""
        self._writer = ChunkWriter(
            self._exchange.heading(),
            seed=self._chat.seed,
            include_usage=self._chat.include_usage,
            gateway_queue_seconds=self._exchange.queue_seconds,
        )

    async def run(self, opened: Opened) -> None:
        """Send every event and the regular end."""
        exchange, chat = self._exchange, self._chat
        if exchange.tier_served != opened.tier:
            exchange.tier_served = opened.tier
            self.prepare()
        writer = self._writer
        opened.divert(partial(self._take, writer), exchange.generated)
        async for event in opened:
            exchange.note(event)
            summary = event.summary
            if summary is not None and exchange.tier_served != opened.tier:  # another server told it with its account
                exchange.tier_served = opened.tier
                writer.name_tier(opened.tier)
            data = writer.event(event.choice, event.text, event.logprobs, event.finish_reason, summary)
            if summary is None:
                if data:
                    self._is_writing = True
                    await self._write(data)
                    self._is_writing = False
                continue
            exchange.generated()
            if chat.include_usage:
                data += writer.usage(summary)
            await self.finish(data + DONE)
            exchange.succeed(summary, opened)
            return
        raise EngineError("the engine ended the answer without its account")

    def _take(self, writer: ChunkWriter, event: GenerationEvent) -> bool:
        """Send an event the moment it comes, if nothing stands before it and the reader keeps up."""
        if self._is_writing or not writer.has_begun(event.choice):
            return False
        data = writer.event(event.choice, event.text, event.logprobs, event.finish_reason, event.summary)
        if data and not self._direct_write(data):
            return False
        self._last_sent = time.monotonic()
        self._exchange.note(event)
        return True

    async def fail(self, error: UltrafastError) -> None:
        """End with ``error``: as an event, or as a response of its own where nothing was sent yet."""
        if not self.started:
            raise error
        self._exchange.fail(error)
        await self.finish(error_event(error) + DONE)

    def keep_alive(self) -> None:
        """From now on send a comment line whenever nothing else was sent for a while: a long prefill, a long queue."""
        self._timer = asyncio.get_running_loop().call_later(KEEP_ALIVE_SECONDS / 2, self._keep_alive)

    def close(self) -> None:
        """Send nothing more."""
        self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()

    def _keep_alive(self) -> None:
        if not self._finished and time.monotonic() - self._last_sent >= KEEP_ALIVE_SECONDS:
            self._comment = asyncio.ensure_future(self._write(KEEP_ALIVE))
        self.keep_alive()

    async def finish(self, data: bytes) -> None:
        """Send the last bytes and end the response."""
        self._finished = True
        await self._begin()
        await self._send({"type": "http.response.body", "body": data})

    async def _write(self, data: bytes) -> None:
        if not self.started:
            await self._begin()
        self._last_sent = time.monotonic()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _begin(self) -> None:
        if self.started:
            return
        self.started = True
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),  # proxies: pass every event on at once
            *self._exchange.headers(),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
