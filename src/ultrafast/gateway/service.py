"""What the routes of the API share: who answers, who may, and who is being answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from ultrafast.backends.engine_chat import EngineChat
from ultrafast.errors import EngineError, EngineUnavailableError, UltrafastError
from ultrafast.gateway.admin import BackendView, TierUse
from ultrafast.gateway.admission import Admission
from ultrafast.gateway.configuration import Configuration, UpstreamSettings
from ultrafast.gateway.configuration_check import models_of_backends
from ultrafast.gateway.exchange import Exchange
from ultrafast.gateway.failures import HttpError
from ultrafast.gateway.json_input import ClientLeftError
from ultrafast.gateway.records.ledger import LedgerEntry
from ultrafast.gateway.records.store import Records
from ultrafast.gateway.routes import Routes

logger = logging.getLogger("ultrafast.requests")

MAXIMUM_TOKEN_ID: Final = 1 << 31  # where another server has the vocabulary


class Service:
    """One server's state; ``routes`` and ``admission`` change with a new configuration, what runs goes on."""

    def __init__(
        self, configuration: Configuration, engines: Mapping[str, EngineChat], routes: Routes, records: Records
    ) -> None:
        self.configuration = configuration
        self.engines = engines
        self.routes = routes
        self.records = records
        self.admission = Admission(configuration.tiers)
        self.draining = False
        self.open = False
        self._exchanges: set[Exchange] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.apply_capacity()

    def follow_orders(self) -> None:
        """From now on, on the running event loop, what the operator revokes or sets acts at once."""
        self.records.on_revoked(self._end_key)
        self.records.on_capacity(self.apply_capacity)
        self.apply_capacity()

    def apply_capacity(self, tier: str | None = None, slots: int | None = None) -> None:
        """Let the operator's capacity act at once; the arguments are the news, all of it is read anew."""
        self.admission.configure(self.configuration.tiers, self._backend_slots() | self.records.capacity())

    def begin(self) -> None:
        """Serve: every engine has been ready once."""
        self.open = True
        self.apply_capacity()

    def _backend_slots(self) -> dict[str, int]:
        """Slots of tiers that are configured without a number: what their backends take at once, where that is known.

        More would wait inside a backend, where an urgent request could not pass them.
        """
        slots = {}
        for tier, settings in self.configuration.tiers.items():
            found = [self._sequences(name) for name in self.routes.backends_of_tier(tier)]
            known = [count for count in found if count is not None]
            if settings.slots is None and len(known) == len(found) > 0:
                slots[tier] = sum(known)
        return slots

    def _sequences(self, backend: str) -> int | None:
        engine = self.engines.get(backend)
        if engine is not None:
            return engine.unreserved_sequences
        settings = self.configuration.backends.get(backend)
        return settings.concurrent if isinstance(settings, UpstreamSettings) else None

    def reconfigure(self, configuration: Configuration, routes: Routes) -> None:
        """Serve by new settings from now on; requests in flight keep their backends."""
        self.configuration, self.routes = configuration, routes
        self.apply_capacity()

    def check_open(self) -> None:
        """Raise EngineUnavailableError where no request can be taken now."""
        if self.draining or not self.open:
            raise EngineUnavailableError("the server is shutting down" if self.draining else "the engine is starting")

    @property
    def state(self) -> str:
        """For health checks; ``ok`` where requests are answered."""
        if self.draining:
            return "draining"
        if not self.open:
            return "starting"
        return "ok" if self.routes.ready else "engine not responding"

    def find(self, name: Any) -> tuple[str | None, EngineChat | None]:
        """The model that a request names, and the engine of ours that runs it on any route: its tokenizer counts.

        None for a name that is none or unknown: what else is wrong with the request is told first.
        """
        routes = self.routes
        try:
            model = routes.model_of(name) if isinstance(name, str) else None
        except HttpError:
            model = None
        if model is None:
            return None, None
        return model, next((self.engines[each] for each in routes.models[model] if each in self.engines), None)

    def system_fingerprint(self, backend: str) -> str | None:
        """Of the weights that answer; None where another server has them."""
        engine = self.engines.get(backend)
        return None if engine is None else "fp_" + engine.model.fingerprint

    @contextlib.contextmanager
    def account(self, exchange: Exchange) -> Iterator[None]:
        """Write the request's record at its end, whatever that is."""
        if self.configuration.record_text:
            exchange.answer = []
        try:
            yield
        except ClientLeftError:
            raise  # it counts as cancelled
        except Exception as error:
            exchange.fail(error if isinstance(error, UltrafastError) else EngineError("a bug"))
            raise
        finally:
            self._settle(exchange)

    @contextlib.contextmanager
    def in_flight(self, exchange: Exchange) -> Iterator[None]:
        """Let the server's end wait for this request's, and a revoked key end it."""
        self._exchanges.add(exchange)
        self._idle.clear()
        try:
            yield
        finally:
            self._exchanges.discard(exchange)
            if not self._exchanges:
                self._idle.set()

    async def idle(self) -> None:
        """Return when no request is being answered."""
        await self._idle.wait()

    def tier_uses(self) -> dict[str, TierUse]:
        """Slots of every tier, for the operator."""
        return self.admission.uses()

    def backend_views(self) -> list[BackendView]:
        """Every backend with its models, for the operator."""
        settings = self.configuration.backends
        engine_models = {name: engine.model_name for name, engine in self.engines.items()}
        models = models_of_backends(self.configuration, engine_models)
        return [
            BackendView(name, "engine" if name in self.engines else "upstream", models[name], state)
            for name, state in self.routes.states().items()
            if name in settings
        ]

    def end_all(self) -> None:
        """The server stops: what is being answered ends with an error."""
        for exchange in list(self._exchanges):
            exchange.abort(EngineUnavailableError("the server is shutting down"))

    def _end_key(self, key_id: str) -> None:
        """A key was revoked: what it asked for ends now."""
        for exchange in list(self._exchanges):
            if exchange.identity.key_id == key_id:
                exchange.abort(_revoked())

    def _settle(self, exchange: Exchange) -> None:
        total = time.perf_counter() - exchange.received
        _log(exchange, total)
        self.records.record(self._entry(exchange, total))

    def _entry(self, exchange: Exchange, total: float) -> LedgerEntry:
        summary, chat = exchange.summary, exchange.chat
        text = exchange.answer
        return LedgerEntry(
            request_id=exchange.request_id,
            started=exchange.started,
            project=exchange.identity.project.id,
            key_id=exchange.identity.key_id,
            model=exchange.model,
            tier_asked=exchange.tier_asked,
            tier_served=exchange.tier_served if exchange.begun else None,
            backend=exchange.backend or None,
            status=exchange.status,
            outcome=exchange.outcome,
            finish_reason=exchange.finish_reason,
            prompt_tokens=summary.prompt_tokens if summary else exchange.prompt_tokens if exchange.produced else 0,
            cached_tokens=summary.cached_tokens if summary else 0,
            completion_tokens=summary.completion_tokens if summary else exchange.produced,
            queue_seconds=exchange.queue_seconds + (summary.queue_seconds if summary else 0.0),
            prefill_seconds=summary.prefill_seconds if summary else 0.0,
            decode_seconds=summary.decode_seconds if summary else 0.0,
            ttft_seconds=exchange.queue_seconds + summary.ttft_seconds if summary and summary.ttft_seconds else 0.0,
            total_seconds=total,
            prompt_text=json.dumps(chat.messages) if chat and text is not None else None,
            answer_text="".join(text) if text is not None else None,
        )


def _revoked() -> UltrafastError:
    return HttpError(
        HTTPStatus.UNAUTHORIZED,
        "the API key was revoked",
        code="invalid_api_key",
        headers=[(b"x-should-retry", b"false")],
    )


def _log(exchange: Exchange, total: float) -> None:
    """One line for the operator: who was served by what, sizes and times; never a word of the conversation."""
    summary = exchange.summary
    line = "%s %s tier=%s backend=%s model=%s project=%s prompt=%d tokens, completion=%d tokens, "
    values = [
        exchange.request_id,
        exchange.outcome,
        exchange.tier_served or "-",
        exchange.backend or "-",
        exchange.model or "-",
        exchange.identity.project.name,
    ]
    if summary is None or not summary.completion_tokens:
        prompt_tokens = exchange.prompt_tokens if summary is None else summary.prompt_tokens
        logger.info(line + "total=%.3f s", *values, prompt_tokens, exchange.produced, total)
        return
    decode = summary.decode_seconds
    choices = exchange.chat.choices if exchange.chat else 1
    logger.info(
        line + "ttft=%.3f s, total=%.3f s, %.1f tokens/s",
        *values,
        summary.prompt_tokens,
        summary.completion_tokens,
        exchange.queue_seconds + summary.ttft_seconds,
        total,
        (summary.completion_tokens - choices) / decode if decode > 0 else 0.0,
    )
