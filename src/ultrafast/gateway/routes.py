"""Which backend answers: an ordered list per model and tier, the next one where one fails before its first token."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Self

import msgspec

from ultrafast.backends.base import (
    BackendState,
    Call,
    ChatBackend,
    GenerationEvent,
    GenerationStream,
    ModelDescription,
    Summary,
    as_relayed,
)
from ultrafast.errors import EngineError, EngineUnavailableError
from ultrafast.gateway.catalogue import ModelList, ModelObject
from ultrafast.gateway.configuration import ANY_MODEL, Configuration, RouteSettings
from ultrafast.gateway.failures import HttpError
from ultrafast.gateway.tiers import DEFAULT_TIER, TIERS, lane_of


@dataclass(frozen=True, slots=True)
class Attempt:
    """A backend that did not answer: it failed or, where it was not ``asked``, took no request at that moment."""

    backend: str
    reason: str  # one line, for the operator
    asked: bool = True


class Opened:
    """An answer that has begun: a ``GenerationStream`` whose first event was received and is replayed."""

    def __init__(
        self, stream: GenerationStream, first: GenerationEvent, *, backend: str, tier: str, attempts: list[Attempt]
    ) -> None:
        self.backend = backend
        self.attempts = attempts  # those that failed before
        self._stream = stream
        self._relayed = as_relayed(stream)
        self._first: GenerationEvent | None = first
        self._tier = tier

    @property
    def tier(self) -> str:
        """The tier that is served and billed, as far as is known by now."""
        return tier_served(self._tier, None if self._relayed is None else self._relayed.served_tier)

    @property
    def summary(self) -> Summary | None:
        """See ``GenerationStream``."""
        return self._stream.summary

    @property
    def estimated(self) -> bool:
        """Whether the summary's token counts are estimates."""
        return self._relayed is not None and self._relayed.estimated

    def divert(self, sink: Callable[[GenerationEvent], bool], ended: Callable[[], None]) -> None:
        """Offer ``sink`` what comes after the first event; see ``GenerationStream``."""
        self._stream.divert(sink, ended)

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[GenerationEvent]:
        return self._stream.__anext__() if self._first is None else self._replay()

    async def _replay(self) -> GenerationEvent:
        event, self._first = self._first, None
        assert event is not None
        return event

    async def aclose(self) -> None:
        """Give the request up."""
        self._first = None
        await self._stream.aclose()


def tier_served(asked: str, reported: str | None) -> str:
    """The tier to report and bill where a backend that was asked for ``asked`` reports ``reported``.

    Nobody pays for more than was asked, nor for a word that the operator gave no meaning.
    """
    if reported is None:
        return asked
    lane = lane_of(reported) if lane_of(reported) in TIERS else DEFAULT_TIER
    return lane if TIERS.index(lane) > TIERS.index(lane_of(asked)) else asked


class Routes:
    """All routes of one configuration; another one makes another object, and answers in progress keep theirs.

    ``describe`` tells what model an engine of ours runs, where that is known already.
    """

    def __init__(
        self,
        configuration: Configuration,
        backends: Mapping[str, ChatBackend],
        *,
        describe: Callable[[str], ModelDescription | None] = lambda name: None,
    ) -> None:
        self._configuration = configuration
        self._backends = dict(backends)
        self._describe = describe
        self._created = int(time.time())
        self._routes = {(route.model, tier): route for route in configuration.routes for tier in route.tiers}

    @property
    def models(self) -> dict[str, list[str]]:
        """Every model with the backends that may answer for it. Raises EngineUnavailableError while unknown."""
        found: dict[str, list[str]] = {}
        for route in self._configuration.routes or (self._only_route(),):
            names = found.setdefault(route.model, [])
            names += [name for name in route.backends if name not in names]
        return found

    @property
    def ready(self) -> bool:
        """Whether every model has a backend that a request now would be tried on."""
        return all(any(self._backends[name].ready for name in names) for names in self.models.values())

    def states(self) -> dict[str, BackendState]:
        """How every backend is."""
        return {name: backend.state for name, backend in self._backends.items()}

    def backends_of_tier(self, tier: str) -> list[str]:
        """Every backend that requests at ``tier`` may go to, of any model."""
        if not self._routes:
            return list(self._backends)
        routes = [route for (_, name), route in self._routes.items() if name == tier]
        return list(dict.fromkeys(backend for route in routes for backend in route.backends))

    def model_of(self, name: str) -> str:
        """The model behind ``name``, which may be an alias. Raises HttpError 404."""
        models = list(self.models)
        aliases = self._configuration.aliases
        found = name
        while found not in models and found in aliases:  # the configuration's check leaves no loop
            found = models[0] if aliases[found] == ANY_MODEL else aliases[found]
        if found not in models:
            names = " or ".join(f"'{known}'" for known in (*models, *aliases))
            raise HttpError(
                HTTPStatus.NOT_FOUND,
                f"this server has no model of that name: ask for {names}",
                code="model_not_found",
                param="model",
            )
        return found

    def route(self, model: str, tier: str) -> RouteSettings:
        """The route of a real model's name at ``tier``."""
        return self._routes[model, lane_of(tier)] if self._routes else self._only_route()

    def resolve(self, name: str) -> ModelObject:
        """The model behind ``name`` as ``/v1/models`` shows it. Raises HttpError 404."""
        return self._object(self.model_of(name))

    def all(self) -> ModelList:
        """Every model as ``/v1/models`` lists them."""
        return ModelList([self._object(model) for model in self.models])

    async def open(
        self,
        call: Call,
        attempts: list[Attempt] | None = None,
        submitted: Callable[[str, GenerationStream], None] = lambda backend, stream: None,
    ) -> Opened:
        """Begin to answer ``call``, by the first backend of its route that gives an event.

        ``submitted`` is called with each backend that works on it, and its stream. What was tried before is appended to
        ``attempts``, also where nothing is left to try and an ``EngineError`` is raised. A ``RequestError`` is the
        client's fault: it is raised at once.
        """
        attempts = [] if attempts is None else attempts
        # Backends know the tiers by one word each.
        inner = msgspec.structs.replace(call, tier=lane_of(call.tier))
        failures: list[EngineError] = []
        for name in self.route(call.model, call.tier).backends:
            try:
                stream = self._backends[name].answer(inner)
            except EngineError as error:
                failures.append(error)
                note = error.note if isinstance(error, EngineUnavailableError) else None
                attempts.append(Attempt(name, note or str(error), asked=False))
                continue
            submitted(name, stream)
            try:
                first = await _first_event(stream)
            except EngineError as error:
                failures.append(error)
                attempts.append(Attempt(name, str(error)))
                continue
            return Opened(stream, first, backend=name, tier=call.tier, attempts=attempts)
        raise _worst(failures)

    def _only_route(self) -> RouteSettings:
        """The route of a configuration that names none, and so has one backend."""
        ((name, settings),) = self._configuration.backends.items()
        description = self._describe(name)
        model = settings.model if description is None else description.name
        if model is None:
            raise EngineUnavailableError("the engine is starting")
        return RouteSettings(model, (name,))

    def _object(self, model: str) -> ModelObject:
        descriptions = [found for name in self.models[model] if (found := self._describe(name)) is not None]
        if not descriptions:
            return ModelObject(model, self._created)
        first = descriptions[0]
        return ModelObject(model, first.created, quantised_at_load=first.quantised_at_load or msgspec.UNSET)


async def _first_event(stream: GenerationStream) -> GenerationEvent:
    """The first event; where there is none, for whatever reason, the stream is closed."""
    try:
        async for event in stream:
            return event
        raise EngineError("the backend ended the answer before its first token")
    except BaseException:
        await stream.aclose()
        raise


def _worst(failures: list[EngineError]) -> EngineError:
    """What to tell the client: that a retry is worth while where one backend is merely full, else the last failure."""
    full = [error for error in failures if isinstance(error, EngineUnavailableError)]
    # Sooner is better, and one that does not say when counts as soon.
    return min(full, key=lambda error: error.retry_after_seconds or 0.0) if full else failures[-1]
