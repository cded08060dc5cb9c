"""One request being answered, and its account: what it asked, what it was given, how it ended."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field

from ultrafast.backends.base import ChatRequest, GenerationEvent, GenerationStream, Summary
from ultrafast.errors import UltrafastError
from ultrafast.gateway.admission import Grant
from ultrafast.gateway.failures import Headers, code_of, status_of
from ultrafast.gateway.records.projects import Identity
from ultrafast.gateway.responses import Heading
from ultrafast.gateway.routes import Opened

CANCELLED = "cancelled"
_CLIENT_CLOSED = 499  # nginx's word for a client that left; no response carries it


@dataclass(slots=True, eq=False)
class Exchange:
    """Grows as the request goes on: nothing is known at first but who asks, and when."""

    request_id: str
    identity: Identity
    received: float  # by time.perf_counter
    started: float = field(default_factory=time.time)  # seconds since 1970
    chat: ChatRequest | None = None
    model: str = ""
    tier_asked: str | None = ""  # None: nothing was said; empty: the request was not understood so far
    tier_served: str = ""
    backend: str = ""  # the last one that worked on it or, where none did, the first of the route
    stream: GenerationStream | None = None  # of that backend
    begun: bool = False  # something was computed for it, be it a part of its prompt
    prompt_tokens: int = 0
    queue_seconds: float = 0.0
    grant: Grant | None = None
    system_fingerprint: str | None = None
    produced: int = 0  # tokens or, of a backend that does not tell them, events
    summary: Summary | None = None
    finish_reason: str | None = None  # of the choice that ended last
    outcome: str = CANCELLED
    status: int = _CLIENT_CLOSED
    answer: list[str] | None = None  # its pieces, where it is to be recorded
    task: asyncio.Task[None] | None = None  # that works on it
    _abort: UltrafastError | None = None

    @property
    def used_tokens(self) -> int:
        """Tokens that count against the limits."""
        summary = self.summary
        if summary is not None:
            return summary.prompt_tokens + summary.completion_tokens
        return self.prompt_tokens + self.produced if self.produced else 0

    def note(self, event: GenerationEvent) -> None:
        """Count what one event brings."""
        self.produced += len(event.token_ids) or bool(event.text)
        if event.finish_reason is not None:
            self.finish_reason = event.finish_reason
        if self.answer is not None:
            self.answer.append(event.text)

    def generated(self) -> None:
        """The backend works on the answer no more: its slots are the next one's, though this reader take his time."""
        if self.grant is not None:
            self.grant.free_slots()

    def settle(self) -> None:
        """Nothing works on it any more: what was computed, also until it was given up, counts, and no more."""
        if self.summary is None and self.stream is not None:
            self.summary = self.stream.summary
        if self.summary is not None and self.summary.prompt_tokens:
            self.begun = True
        if self.grant is not None:
            self.grant.release(self.used_tokens)

    def abort(self, error: UltrafastError) -> None:
        """End the request with ``error`` wherever it stands."""
        if self.task is not None and not self.task.done() and self._abort is None:
            self._abort = error
            self.task.cancel()

    def take_abort(self) -> UltrafastError | None:
        """The error of ``abort``, for the task that was cancelled by it; None where somebody else cancelled it."""
        error, self._abort = self._abort, None
        if error is not None and self.task is not None:
            self.task.uncancel()
        return error

    def heading(self) -> Heading:
        """What is equal in every piece of the response; the tier is the one served as far as is known by now."""
        return Heading(
            id="chatcmpl-" + uuid.uuid4().hex,
            created=int(self.started),
            model=self.model,
            service_tier=self.tier_served,
            system_fingerprint=self.system_fingerprint,
        )

    def headers(self) -> Headers:
        """The response's own headers."""
        milliseconds = int((time.perf_counter() - self.received) * 1000)
        limits = [] if self.grant is None else self.grant.limits.headers()
        return [
            (b"x-request-id", self.request_id.encode()),
            (b"openai-processing-ms", b"%d" % milliseconds),
            *limits,
        ]

    def succeed(self, summary: Summary, opened: Opened) -> None:
        """The answer is complete and sent."""
        self.summary, self.outcome, self.status = summary, "ok", 200
        self.tier_served = opened.tier

    def fail(self, error: UltrafastError) -> None:
        """The request ends with ``error``."""
        self.outcome = code_of(error)
        self.status = status_of(error)
