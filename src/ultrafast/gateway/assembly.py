"""From the configuration to what runs: engines, upstream servers, routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

from ultrafast.backends.base import ChatBackend, ModelDescription
from ultrafast.backends.engine_chat import EngineChat
from ultrafast.backends.local import LocalBackend
from ultrafast.backends.upstream import UpstreamBackend, read_key
from ultrafast.engine.messages import MAXIMUM_RESERVED_SLOTS
from ultrafast.gateway.configuration import Configuration, EngineSettings, UpstreamSettings
from ultrafast.gateway.routes import Routes
from ultrafast.gateway.tiers import ULTRAFAST
from ultrafast.weights.store import Progress, resolve_model


def build_engines(
    configuration: Configuration,
    *,
    instruction_set: str | None = None,
    progress: Progress | None = None,
    naming: Callable[[tuple[str, ...]], AbstractContextManager[None]] = lambda node: nullcontext(),
) -> dict[str, EngineChat]:
    """Our engines by name, not yet started; their models are fetched where they have to be.

    Raises ModelError where a model cannot be had, within ``naming`` the setting that names it.
    """
    engines = {}
    for name, settings in configuration.backends.items():
        if not isinstance(settings, EngineSettings):
            continue
        reserved = reserved_slots(configuration, name)
        with naming(("backends", name, "model")):
            location = resolve_model(settings.model, progress=progress)
        backend = LocalBackend(
            location,
            threads=settings.threads,
            context=settings.context,
            instruction_set=instruction_set,
            quantize=settings.quantize,
            reserved_slots=reserved,
        )
        template = None if settings.chat_template is None else Path(settings.chat_template)
        engines[name] = EngineChat(name, backend, location, template, reserved_slots=reserved)
    return engines


def reserved_slots(configuration: Configuration, engine: str) -> int:
    """How many sequences this engine keeps free for ``ultrafast``: the tier's slots, where a route of it leads here.

    What goes beyond an engine's bound takes its slots from lower tiers when it comes.
    """
    routes = configuration.routes
    if routes and not any(ULTRAFAST in route.tiers and engine in route.backends for route in routes):
        return 0
    return min(configuration.tiers[ULTRAFAST].slots or 0, MAXIMUM_RESERVED_SLOTS)


def changed_reservations(configuration: Configuration, engines: Mapping[str, EngineChat]) -> list[str]:
    """What running engines go on to reserve otherwise than ``configuration`` has it, for people."""
    changed = [name for name, engine in engines.items() if engine.reserved_slots != reserved_slots(configuration, name)]
    return [f"the places that {name} keeps free for {ULTRAFAST}" for name in changed]


def build_upstreams(
    configuration: Configuration, environment: Mapping[str, str], kept: Mapping[str, ChatBackend] | None = None
) -> dict[str, UpstreamBackend]:
    """The other servers of ``configuration``; those in ``kept`` that are the same go on with what they know and run.

    Whoever replaces a configuration retires those of ``kept`` that are not in the result. Raises ConfigurationError
    for a key that cannot be read.
    """
    found: dict[str, UpstreamBackend] = {}
    for name, settings in configuration.backends.items():
        if isinstance(settings, UpstreamSettings):
            old = (kept or {}).get(name)
            if isinstance(old, UpstreamBackend) and old.same_as(settings, read_key(settings, environment)):
                found[name] = old
            else:
                found[name] = UpstreamBackend(name, settings, environment=environment)
    return found


def doubtful_urls(upstreams: Mapping[str, UpstreamBackend]) -> list[str]:
    """A warning for each server whose address has no path: nearly all take requests at ``/v1`` and below."""
    return [
        f"Warning: backends.{name}.url has no path, so requests go to {one.url}; most servers want /v1 at its end"
        for name, one in upstreams.items()
        if urlsplit(one.settings.url).path in ("", "/")
    ]


def build_routes(
    configuration: Configuration, engines: Mapping[str, EngineChat], upstreams: Mapping[str, UpstreamBackend]
) -> Routes:
    """The way of every request."""

    def describe(name: str) -> ModelDescription | None:
        engine = engines.get(name)
        return None if engine is None else engine.description

    backends: dict[str, ChatBackend] = {**engines, **upstreams}
    return Routes(configuration, backends, describe=describe)
