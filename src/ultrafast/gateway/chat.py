"""``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec
from starlette.types import Receive, Scope, Send

from ultrafast.backends.base import Backend, ChatRequest, GenerationRequest, GenerationStream, Summary, TokenLogprob
from ultrafast.backends.prompt import ChatPrompt
from ultrafast.errors import EngineError, EngineUnavailableError, UltrafastError
from ultrafast.gateway.catalogue import Catalogue
from ultrafast.gateway.failures import Headers
from ultrafast.gateway.http import send_json, while_connected
from ultrafast.gateway.json_input import parse_object, read_body
from ultrafast.gateway.responses import (
    DONE,
    KEEP_ALIVE,
    ChatCompletion,
    Choice,
    ChunkWriter,
    Heading,
    Message,
    error_event,
    logprobs_of,
    time_info_of,
    usage_of,
)
from ultrafast.gateway.schema import DEFAULT_MAX_TOKENS, parse_chat_request
from ultrafast.gateway.tiers import DEFAULT_TIER

logger = logging.getLogger("ultrafast.requests")

KEEP_ALIVE_SECONDS = 5.0
_LONG_BODY_BYTES = 8192  # above, parsing and tokenising leave the event loop
_READERS = 2  # threads for that: however many long requests come, the engine keeps its processors


@dataclass(slots=True)
class _Exchange:
    """One request being answered."""

    chat: ChatRequest
    generation: GenerationRequest
    heading: Heading
    headers: Headers
    received: float
    summary: Summary | None = None
    outcome: str = "cancelled"
    produced: int = 0  # tokens, for the record of requests that do not reach their summary


@dataclass(slots=True)
class _Collected:
    """One choice of a response that is sent as a whole."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = "stop"


class ChatCompletions:
    """An ASGI endpoint."""

    def __init__(self, backend: Backend, catalogue: Catalogue) -> None:
        self._backend = backend
        self._catalogue = catalogue
        self.prompt: ChatPrompt | None = None  # set once the model is loaded
        self.draining = False
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="reader")
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; errors before the response began are raised."""
        received = time.perf_counter()
        body = await read_body(scope, receive)
        prompt = self.prompt
        if prompt is None or self.draining or not self._backend.ready:
            raise EngineUnavailableError("the server is shutting down" if self.draining else "the engine is starting")
        await while_connected(receive, self._answer(body, prompt, received, scope["ultrafast.request_id"], send))

    async def _answer(self, body: bytes, prompt: ChatPrompt, received: float, request_id: str, send: Send) -> None:
        if len(body) > _LONG_BODY_BYTES:
            loop = asyncio.get_running_loop()
            chat, tokens = await loop.run_in_executor(self._readers, self._understand, body, prompt)
        else:
            chat, tokens = self._understand(body, prompt)
        exchange = self._exchange(chat, tokens, received, request_id)
        self._in_flight += 1
        self._idle.clear()
        try:
            stream = self._backend.generate(exchange.generation)
            async with contextlib.aclosing(stream):
                answer = self._stream if chat.stream else self._whole
                await answer(exchange, stream, send)
        except UltrafastError as error:
            exchange.outcome = type(error).__name__
            raise
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._idle.set()
            _record(exchange)

    async def idle(self) -> None:
        """Return when no request is being answered."""
        await self._idle.wait()

    def _understand(self, body: bytes, prompt: ChatPrompt) -> tuple[ChatRequest, list[int]]:
        """Validate, find the model, render, tokenise, check the context."""
        model = self._backend.model
        chat = parse_chat_request(parse_object(body), model.vocabulary_size)
        self._catalogue.resolve(chat.model)
        return chat, prompt.tokens(chat.messages, context=model.context)

    def _exchange(self, chat: ChatRequest, tokens: list[int], received: float, request_id: str) -> _Exchange:
        model = self._backend.model
        room = model.context - len(tokens)
        generation = GenerationRequest(
            request_id=request_id,
            prompt_tokens=tokens,
            sampling=chat.sampling,
            max_tokens=min(room, chat.max_tokens or DEFAULT_MAX_TOKENS),
            choices=chat.choices,
            stop=chat.stop,
            logprobs=chat.logprobs,
            tier=chat.tier or DEFAULT_TIER,
        )
        heading = Heading(
            id="chatcmpl-" + uuid.uuid4().hex,
            created=int(time.time()),
            model=model.name,
            service_tier=chat.tier or DEFAULT_TIER,
            system_fingerprint="fp_" + model.fingerprint,
        )
        headers = [(b"x-request-id", request_id.encode())]
        return _Exchange(chat, generation, heading, headers, received)

    @staticmethod
    async def _whole(exchange: _Exchange, stream: GenerationStream, send: Send) -> None:
        chat = exchange.chat
        collected = [_Collected() for _ in range(chat.choices)]
        async for event in stream:
            exchange.produced += len(event.token_ids)
            choice = collected[event.choice]
            choice.texts.append(event.text)
            if event.logprobs is not None:
                choice.logprobs += event.logprobs
            if event.finish_reason is not None:
                choice.finish_reason = event.finish_reason
            exchange.summary = event.summary
        summary = exchange.summary
        if summary is None:
            raise EngineError("the engine ended the answer without its account")
        choices = [
            Choice(
                index,
                Message("assistant", "".join(choice.texts)),
                logprobs_of(choice.logprobs) if chat.logprobs else None,
                choice.finish_reason,
            )
            for index, choice in enumerate(collected)
        ]
        heading = exchange.heading
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
            time_info=time_info_of(summary),
        )
        await send_json(send, 200, msgspec.json.encode(response), _timed(exchange))
        exchange.outcome = "ok"

    @staticmethod
    async def _stream(exchange: _Exchange, stream: GenerationStream, send: Send) -> None:
        response = _EventResponse(exchange, send)
        keeping_alive = asyncio.create_task(response.keep_alive())
        try:
            await response.run(stream)
        except UltrafastError as error:
            if not response.started:
                raise
            exchange.outcome = type(error).__name__
            await response.finish(error_event(error) + DONE)
        finally:
            keeping_alive.cancel()


class _EventResponse:
    """A streamed response. It begins with its first event, so an early refusal still has its own status."""

    def __init__(self, exchange: _Exchange, send: Send) -> None:
        self._exchange = exchange
        self._send = send
        chat = exchange.chat
        self._writer = ChunkWriter(exchange.heading, seed=chat.seed, include_usage=chat.include_usage)
        self._last_sent = time.monotonic()
        self._finished = False
        self.started = False

    async def run(self, stream: GenerationStream) -> None:
        """Send every event and the regular end."""
        exchange, writer = self._exchange, self._writer
        async for event in stream:
            exchange.produced += len(event.token_ids)
            data = writer.event(event.choice, event.text, event.logprobs, event.finish_reason, event.summary)
            summary = event.summary
            if summary is None:
                if data:
                    await self._write(data)
                continue
            exchange.summary = summary
            if exchange.chat.include_usage:
                data += writer.usage(summary)
            await self.finish(data + DONE)
            exchange.outcome = "ok"
            return
        raise EngineError("the engine ended the answer without its account")

    async def keep_alive(self) -> None:
        """Send a comment line whenever nothing else was sent for a while: a long prefill, a long queue."""
        while True:
            await asyncio.sleep(KEEP_ALIVE_SECONDS / 2)
            if not self._finished and time.monotonic() - self._last_sent >= KEEP_ALIVE_SECONDS:
                await self._write(KEEP_ALIVE)

    async def finish(self, data: bytes) -> None:
        """Send the last bytes and end the response."""
        self._finished = True
        await self._begin()
        await self._send({"type": "http.response.body", "body": data})

    async def _write(self, data: bytes) -> None:
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
            *_timed(self._exchange),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})


def _timed(exchange: _Exchange) -> Headers:
    milliseconds = int((time.perf_counter() - exchange.received) * 1000)
    return [*exchange.headers, (b"openai-processing-ms", b"%d" % milliseconds)]


def _record(exchange: _Exchange) -> None:
    """One line for the operator: sizes and times, never a word of the conversation."""
    generation, summary = exchange.generation, exchange.summary
    total = time.perf_counter() - exchange.received
    if summary is None:
        logger.info(
            "%s %s tier=%s prompt=%d tokens, completion=%d tokens, total=%.3f s",
            generation.request_id,
            exchange.outcome,
            generation.tier,
            len(generation.prompt_tokens),
            exchange.produced,
            total,
        )
        return
    decode = summary.decode_seconds
    speed = (summary.completion_tokens - generation.choices) / decode if decode > 0 else 0.0
    logger.info(
        "%s %s tier=%s prompt=%d tokens, completion=%d tokens, ttft=%.3f s, total=%.3f s, %.1f tokens/s",
        generation.request_id,
        exchange.outcome,
        generation.tier,
        summary.prompt_tokens,
        summary.completion_tokens,
        summary.ttft_seconds,
        total,
        speed,
    )
