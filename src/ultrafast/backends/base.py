"""What a backend is: anything that turns prompt tokens into a stream of generation events."""

from __future__ import annotations

from typing import Protocol, Self

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
    "GenerationEvent",
    "GenerationRequest",
    "GenerationStream",
    "ModelDescription",
    "SamplingParameters",
    "Summary",
    "TokenLogprob",
    "TopToken",
]


class GenerationStream(Protocol):
    """The events of one request, in order; it ends after the event that carries the summary.

    Iteration raises an ``UltrafastError`` where the request cannot be finished. ``aclose`` (or cancelling the task
    that iterates, under ``contextlib.aclosing``) stops the work within one step; it is safe at any time, and twice.
    """

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> GenerationEvent: ...

    async def aclose(self) -> None:
        """Give the request up."""
        ...


class Backend(Protocol):
    """Runs requests for one model."""

    @property
    def name(self) -> str:
        """A short name for logs: ``local``."""
        ...

    @property
    def ready(self) -> bool:
        """Whether a request submitted now would run."""
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
