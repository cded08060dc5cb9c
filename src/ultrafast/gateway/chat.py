"""``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from starlette.types import Receive, Scope, Send

from ultrafast.backends import placement
from ultrafast.backends.base import Call, ChatRequest, GenerationStream
from ultrafast.gateway.admission import Grant, Wish
from ultrafast.gateway.answers import Prepare, stream_answer, whole_answer
from ultrafast.gateway.auth import IDENTITY
from ultrafast.gateway.boundary import ACCOUNTED, ERROR_HEADERS, REQUEST_ID
from ultrafast.gateway.exchange import Exchange
from ultrafast.gateway.http import DirectWrite, direct_write, while_connected
from ultrafast.gateway.json_input import parse_object, read_body
from ultrafast.gateway.routes import Attempt, Opened
from ultrafast.gateway.schema import DEFAULT_MAX_TOKENS, parse_chat_request
from ultrafast.gateway.service import MAXIMUM_TOKEN_ID, Service
from ultrafast.gateway.tiers import OverCapacity, over_capacity_of, tier_of

logger = logging.getLogger("ultrafast.requests")

_LONG_BODY_BYTES = 8192  # above, parsing and tokenising leave the event loop
_READERS = 2  # threads for that: however many long requests come, the engine keeps its processors


@dataclass(frozen=True, slots=True)
class _Client:
    """The ways to whoever asked."""

    send: Send
    write: DirectWrite


class ChatCompletions:
    """An ASGI endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="reader", initializer=placement.leave)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; errors before the response began are raised."""
        exchange = Exchange(scope[REQUEST_ID], scope[IDENTITY], time.perf_counter())
        scope[ACCOUNTED] = True
        with self._service.account(exchange):
            over_capacity = over_capacity_of(scope["headers"])
            body = await read_body(scope, receive)
            self._service.check_open()
            with self._service.in_flight(exchange):
                client = _Client(send, direct_write(scope))
                try:
                    await while_connected(receive, self._answer(exchange, body, over_capacity, client))
                finally:
                    if exchange.grant is not None:
                        scope[ERROR_HEADERS] = exchange.grant.limits.headers()

    async def _answer(
        self, exchange: Exchange, body: bytes, over_capacity: OverCapacity | None, client: _Client
    ) -> None:
        exchange.task = asyncio.current_task()
        try:
            chat, tokens = await self._understand(exchange, body)
            grant = await self._admit(exchange, chat, over_capacity)
            try:
                await self._run(exchange, chat, grant, tokens, client)
            finally:
                exchange.settle()
        except asyncio.CancelledError:
            error = exchange.take_abort()
            if error is None:
                raise
            raise error from None

    async def _understand(self, exchange: Exchange, body: bytes) -> tuple[ChatRequest, list[int] | None]:
        """Validate, find the model, render, tokenise, check the context; long bodies leave the event loop."""
        if len(body) > _LONG_BODY_BYTES:
            loop = asyncio.get_running_loop()
            chat, tokens = await loop.run_in_executor(self._readers, self._read, exchange, body)
        else:
            chat, tokens = self._read(exchange, body)
        exchange.prompt_tokens = _estimated_tokens(chat) if tokens is None else len(tokens)
        return chat, tokens

    def _read(self, exchange: Exchange, body: bytes) -> tuple[ChatRequest, list[int] | None]:
        """The request, and its prompt's tokens where an engine of ours runs its model.

        The exchange has what is understood as soon as it is, for its account if the rest is refused.
        """
        fields = parse_object(body)
        model, engine = self._service.find(fields.get("model"))
        exchange.model = model or ""
        chat = parse_chat_request(fields, MAXIMUM_TOKEN_ID if engine is None else engine.model.vocabulary_size)
        exchange.chat, exchange.tier_asked = chat, chat.tier
        if model is None:
            exchange.model = self._service.routes.model_of(chat.model)  # raises: it is unknown
        return chat, None if engine is None else engine.prompt_tokens(chat)

    async def _admit(self, exchange: Exchange, chat: ChatRequest, over_capacity: OverCapacity | None) -> Grant:
        """Wait for the right to run, at the tier asked for or the one below it."""
        tier = exchange.tier_served = tier_of(chat.tier, exchange.identity.project)
        route = self._service.routes.route(exchange.model, tier)
        milliseconds = route.queue_milliseconds
        wish = Wish(
            project=exchange.identity.project.id,
            tier=tier,
            sequences=chat.choices,
            tokens=exchange.prompt_tokens + chat.choices * (chat.max_tokens or DEFAULT_MAX_TOKENS),
            over_capacity=over_capacity or route.over_capacity,
            queue_seconds=None if milliseconds is None else milliseconds / 1000,
        )
        grant = await self._service.admission.enter(wish)
        exchange.grant, exchange.tier_served, exchange.queue_seconds = grant, grant.tier, grant.queue_seconds
        return grant

    async def _run(
        self, exchange: Exchange, chat: ChatRequest, grant: Grant, tokens: list[int] | None, client: _Client
    ) -> None:
        call = Call(
            request_id=exchange.request_id,
            chat=chat,
            tier=grant.tier,
            project=exchange.identity.project.id,
            max_tokens=chat.max_tokens or DEFAULT_MAX_TOKENS,
            prompt_tokens=tokens,
            model=exchange.model,
        )
        opening = partial(self._open, exchange, call)
        if chat.stream:
            await stream_answer(exchange, chat, opening, client.send, client.write)
        else:
            await whole_answer(exchange, chat, opening, client.send)

    async def _open(self, exchange: Exchange, call: Call, prepare: Prepare) -> Opened:
        """Have a backend begin to answer; returns with its first event."""
        began, waited_before = time.perf_counter(), exchange.queue_seconds

        def submitted(backend: str, stream: GenerationStream) -> None:
            exchange.backend, exchange.stream = backend, stream
            # With what the backends before this one took to fail.
            exchange.queue_seconds = waited_before + time.perf_counter() - began
            exchange.system_fingerprint = self._service.system_fingerprint(backend)
            prepare()

        attempts: list[Attempt] = []
        try:
            opened = await self._service.routes.open(call, attempts, submitted)
        finally:
            for attempt in attempts:
                exchange.backend = exchange.backend or attempt.backend
                was = "" if attempt.asked else " was not asked"
                logger.warning("%s: backend %s%s: %s", exchange.request_id, attempt.backend, was, attempt.reason)
        exchange.begun = True
        return opened


def _estimated_tokens(chat: ChatRequest) -> int:
    """Where only another server can count: about four bytes a token, and what a template adds per message."""
    return sum(4 + len(message["content"].encode()) // 4 for message in chat.messages)
