"""What a backend is: anything that turns a conversation into a stream of generation events.

Two levels. ``ChatBackend`` is what a route leads to: our engine, or another server. ``Backend`` is our
engine, which takes prompt tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self, cast

import msgspec

from ultrafast.engine.messages import (
    GenerationEvent,
    GenerationRequest,
    ModelDescription,
    Summary,
    TokenLogprob,
    TopToken,
)
from ultrafast.models.sampling import SamplingParameters

__all__ = [
    "Backend",
    "BackendState",
    "Call",
    "ChatBackend",
    "ChatRequest",
    "GenerationEvent",
    "GenerationRequest",
    "GenerationStream",
    "LastError",
    "ModelDescription",
    "RelayedStream",
    "SamplingParameters",
    "Summary",
    "TokenLogprob",
    "TopToken",
    "as_relayed",
]


class ChatRequest(msgspec.Struct, frozen=True):
    """What a client asks, validated. ``messages`` hold ``role``, ``content`` and perhaps ``name``, all strings."""

    model: str
    messages: list[dict[str, str]]
    sampling: SamplingParameters
    seed: int  # as given or drawn; ``sampling.seed`` is the same, unsigned
    choices: int
    max_tokens: int | None
    stop: list[str]
    logprobs: bool
    stream: bool
    include_usage: bool
    tier: str | None  # the tier's name as asked for; None: the project's own


class Call(msgspec.Struct, frozen=True):
    """One request on its way to a backend, admitted to ``tier``, the tier that is served and billed."""

    request_id: str
    chat: ChatRequest
    model: str  # the real one's name
    tier: str
    project: str  # id; a backend that keeps prefixes shares them within a project only
    max_tokens: int  # new tokens per choice, the default filled in
    prompt_tokens: list[int] | None = None  # where the model runs on an engine of ours, which counts in its tokens


class GenerationStream(Protocol):
    """The events of one request, in order; it ends after the event that carries the summary.

    Iteration raises an ``UltrafastError`` where the request cannot be finished. ``aclose`` (or cancelling the task
    that iterates, under ``contextlib.aclosing``) stops the work within one step; it is safe at any time, and twice.
    """

    @property
    def summary(self) -> Summary | None:
        """The account once it is known: from the last event or, where a backend tells it, of what was given up."""
        ...

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> GenerationEvent: ...

    async def aclose(self) -> None:
        """Give the request up."""
        ...

    def divert(self, sink: Callable[[GenerationEvent], bool], ended: Callable[[], None]) -> None:
        """From now on offer each event to ``sink`` the moment it comes.

        What it returns False for is iterated over as ever, in order: no event is offered while an earlier one waits.
        The event with the summary is never offered. When it has come, or the stream has failed, ``ended`` is called
        once: nothing is generated any more, though events may still wait for a slow reader.

        Events of our engine come between two of its steps: caches are cold then, and its threads want the processor
        back. One that needs no task to be woken costs them a fraction.
        """
        ...


class RelayedStream(Protocol):
    """What a stream of another server's tokens tells beside its events, whose ``token_ids`` are empty: unknown here."""

    @property
    def served_tier(self) -> str | None:
        """The tier that it says it serves, as far as is known by now; ``None``: the call's own."""
        ...

    @property
    def estimated(self) -> bool:
        """Whether the summary's token counts are estimates, as that server sent no usage."""
        ...


def as_relayed(stream: GenerationStream) -> RelayedStream | None:
    """``stream`` where it is a ``RelayedStream``."""
    return cast("RelayedStream", stream) if hasattr(stream, "served_tier") else None


class LastError(msgspec.Struct, frozen=True):
    """What went wrong last, in words, and when, in Unix seconds."""

    reason: str
    at: float


class BackendState(msgspec.Struct, frozen=True):
    """How a backend is at this moment, for its operator."""

    state: str  # one of those that `ultrafast backends` describes
    running: int = 0  # requests
    last_error: LastError | None = None
    tiers: tuple[str, ...] = ()  # at which the state holds, where not at all of them
    retry_seconds: float | None = None  # until a request may try it again


class ChatBackend(Protocol):
    """Runs calls; what a route leads to."""

    @property
    def name(self) -> str:
        """As the operator calls it: for logs, the ledger and metrics."""
        ...

    @property
    def ready(self) -> bool:
        """Whether a call submitted now would be tried."""
        ...

    @property
    def state(self) -> BackendState:
        """How it is, for its operator."""
        ...

    def answer(self, call: Call) -> GenerationStream:
        """Submit ``call`` and return its events. Raises ``EngineUnavailableError`` when not ready."""
        ...


class Backend(Protocol):
    """Our engine: runs requests for one model."""

    @property
    def name(self) -> str:
        """A short name for logs: ``local``."""
        ...

    @property
    def ready(self) -> bool:
        """Whether a request submitted now would run."""
        ...

    @property
    def state(self) -> BackendState:
        """How it is, for its operator."""
        ...

    @property
    def model(self) -> ModelDescription:
        """The served model; known once ``start`` has returned."""
        ...

    async def start(self) -> None:
        """Come up; returns when ready. Raises an ``UltrafastError`` where that is impossible."""
        ...

    async def stop(self) -> None:
        """End: requests in flight fail with ``EngineUnavailableError``; safe twice."""
        ...

    def generate(self, request: GenerationRequest) -> GenerationStream:
        """Submit ``request`` and return its events. Raises ``EngineUnavailableError`` when not ready."""
        ...
