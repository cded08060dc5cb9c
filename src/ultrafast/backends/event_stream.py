"""The events of one request between the backend that brings them and the task that answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

from ultrafast.engine.messages import GenerationEvent, Summary


class EventStream:
    """See ``backends.base.GenerationStream``. A backend's own stream pushes its events, and tells how to give up."""

    def __init__(self) -> None:
        self.summary: Summary | None = None  # once the last event came
        self._events: deque[GenerationEvent] = deque()
        self._error: Exception | None = None
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Callable[[GenerationEvent], bool] | None = None
        self._on_end: Callable[[], None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GenerationEvent:
        while not self._events:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._events.popleft()

    def divert(self, sink: Callable[[GenerationEvent], bool], ended: Callable[[], None]) -> None:
        """Offer each event to ``sink`` first; see ``backends.base.GenerationStream``."""
        self._sink = sink
        if self._ended:
            ended()
        else:
            self._on_end = ended

    def push(self, event: GenerationEvent) -> None:
        """Hand on or append an event; the one with the summary is the last."""
        if self._sink is not None and not self._events and event.summary is None and _takes(self._sink, event):
            return
        self._events.append(event)
        if event.summary is not None:
            self.summary = event.summary
            self._end()
        self._wake()

    def fail(self, error: Exception) -> None:
        """End with ``error``, after the events that came before it."""
        if not self._ended:
            self._error = error
            self._end()
            self._wake()

    def drop(self) -> None:
        """Nobody wants what is left."""
        self._ended = True
        self._sink = self._on_end = None
        self._events.clear()
        self._wake()

    def _end(self) -> None:
        self._ended = True
        if self._on_end is not None:
            self._on_end()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _takes(sink: Callable[[GenerationEvent], bool], event: GenerationEvent) -> bool:
    try:
        return sink(event)
    except Exception:  # a bug: iteration brings it to the task whose request this is, and no other stream suffers
        return False
