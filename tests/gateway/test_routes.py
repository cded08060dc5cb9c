"""Routes without any server: order, fall-back, cancelling, names. With real ones: ``test_upstream_faults``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from http import HTTPStatus
from typing import Self

import pytest

from tests.gateway.test_upstream_faults import call_of
from ultrafast.backends.base import Call, GenerationEvent, ModelDescription, Summary
from ultrafast.errors import (
    ConfigurationError,
    EngineError,
    EngineUnavailableError,
    NonFiniteError,
    RequestError,
    UltrafastError,
    UpstreamError,
)
from ultrafast.gateway.assembly import build_upstreams
from ultrafast.gateway.configuration import Configuration, EngineSettings, RouteSettings, UpstreamSettings
from ultrafast.gateway.failures import HttpError
from ultrafast.gateway.routes import Attempt, Routes, tier_served
from ultrafast.gateway.tiers import TIERS

SUMMARY = Summary(1, 0, 2, 0.0, 0.1, 0.1, 0.1, 2)
ANSWER = [
    GenerationEvent(0, [1], "one "),
    GenerationEvent(0, [2], "two", finish_reason="stop", summary=SUMMARY),
]


class ScriptedStream:
    """Gives events, then perhaps an error, or waits for ever."""

    def __init__(self, script: list[GenerationEvent | UltrafastError | None]) -> None:
        self._script = list(script)
        self.closed = 0
        self.summary: Summary | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GenerationEvent:
        if not self._script:
            raise StopAsyncIteration
        item = self._script.pop(0)
        if item is None:
            await asyncio.Event().wait()
        if isinstance(item, UltrafastError):
            raise item
        assert item is not None
        return item

    async def aclose(self) -> None:
        self.closed += 1

    def divert(self, sink: Callable[[GenerationEvent], bool], ended: Callable[[], None]) -> None:
        pass


class ScriptedBackend:
    """A backend whose answers are known beforehand."""

    def __init__(self, name: str, *script: GenerationEvent | UltrafastError | None, refusal: EngineError | None = None):
        self.name = name
        self.script = list(script)
        self.refusal = refusal
        self.calls: list[Call] = []
        self.streams: list[ScriptedStream] = []

    @property
    def ready(self) -> bool:
        return self.refusal is None

    def answer(self, call: Call) -> ScriptedStream:
        self.calls.append(call)
        if self.refusal is not None:
            raise self.refusal
        self.streams.append(ScriptedStream(self.script))
        return self.streams[-1]


def routes_of(*backends: ScriptedBackend) -> Routes:
    names = tuple(backend.name for backend in backends)
    configuration = Configuration(routes=(RouteSettings("chat", names),), aliases={"other": "*"})
    return Routes(configuration, {backend.name: backend for backend in backends})


@pytest.mark.parametrize(
    ("asked", "reported", "served"),
    [
        ("ultrafast", None, "ultrafast"),
        ("ultrafast", "default", "default"),
        ("ultrafast", "priority", "priority"),
        ("priority", "fast", "priority"),
        ("fast", "priority", "fast"),
        ("fast", None, "fast"),
        ("default", "priority", "default"),  # nobody pays for more than was asked
        ("flex", "default", "flex"),
        ("default", "flex", "flex"),
        ("priority", "on_demand", "default"),
        ("flex", "on_demand", "flex"),
    ],
)
def test_the_tier_to_report_and_bill(asked: str, reported: str | None, served: str) -> None:
    assert tier_served(asked, reported) == served


async def test_the_first_event_is_neither_lost_nor_doubled() -> None:
    backend = ScriptedBackend("a", *ANSWER)
    opened = await routes_of(backend).open(call_of(tier="fast"))
    assert [event async for event in opened] == ANSWER
    assert (opened.backend, opened.tier, opened.attempts, opened.estimated) == ("a", "fast", [], False)
    assert backend.calls[0].tier == "priority", "backends know one word for each tier"


@pytest.mark.parametrize(
    "error", [EngineError("x"), EngineUnavailableError("x"), UpstreamError("x"), NonFiniteError("x")]
)
async def test_the_next_backend_answers(error: EngineError) -> None:
    refusal = EngineUnavailableError("for clients", note="backing off")
    first, second = ScriptedBackend("a", error), ScriptedBackend("b", refusal=refusal)
    third, fourth = ScriptedBackend("c"), ScriptedBackend("d", *ANSWER)
    attempts: list[Attempt] = []
    opened = await routes_of(first, second, third, fourth).open(call_of(), attempts)
    assert [event async for event in opened] == ANSWER
    assert opened.backend == "d"
    assert opened.attempts is attempts
    assert [(attempt.backend, attempt.reason, attempt.asked) for attempt in attempts] == [
        ("a", "x", True),
        ("b", "backing off", False),
        ("c", "the backend ended the answer before its first token", True),
    ]
    assert [first.streams[0].closed, third.streams[0].closed] == [1, 1]


async def test_after_the_first_token_there_is_no_other_backend() -> None:
    first, second = ScriptedBackend("a", ANSWER[0], EngineError("broken")), ScriptedBackend("b", *ANSWER)
    opened = await routes_of(first, second).open(call_of())
    with pytest.raises(EngineError, match="broken"):
        assert [event async for event in opened] == []
    assert second.calls == []


async def test_the_clients_fault_is_raised_at_once() -> None:
    first, second = ScriptedBackend("a", RequestError("too long")), ScriptedBackend("b", *ANSWER)
    with pytest.raises(RequestError, match="too long"):
        await routes_of(first, second).open(call_of())
    assert second.calls == []
    assert first.streams[0].closed == 1


async def test_what_is_raised_when_none_is_left() -> None:
    full = [
        EngineUnavailableError("soon", retry_after_seconds=3),
        EngineUnavailableError("late", retry_after_seconds=9),
    ]
    gone = [UpstreamError("first"), UpstreamError("last")]

    async def raised(*errors: EngineError) -> EngineError:
        backends = [ScriptedBackend(str(place), error) for place, error in enumerate(errors)]
        with pytest.raises(EngineError) as caught:
            await routes_of(*backends).open(call_of())
        return caught.value

    assert await raised(*gone) is gone[1]
    assert await raised(full[1], full[0], *gone) is full[0]


async def test_cancelling_closes_what_is_open() -> None:
    backend = ScriptedBackend("a", None)
    task = asyncio.create_task(routes_of(backend).open(call_of()))
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert backend.streams[0].closed == 1
    opened = await routes_of(ScriptedBackend("b", *ANSWER)).open(call_of())
    await opened.aclose()
    await opened.aclose()


def description(name: str) -> ModelDescription:
    values: dict[str, object] = dict.fromkeys(ModelDescription.__struct_fields__, 0)
    values |= {"name": name, "created": 77, "cpus": [], "quantised_at_load": "q8_0"}
    return ModelDescription(**values)  # type: ignore[arg-type]


TWO_MODELS = Configuration(
    backends={"local": EngineSettings(), "far": UpstreamSettings(url="http://x/v1", model="m")},
    routes=(
        RouteSettings("small", ("local", "far"), ("ultrafast",)),
        RouteSettings("small", ("far",), tuple(tier for tier in TIERS if tier != "ultrafast")),
        RouteSettings("large", ("far",)),
    ),
    aliases={"first": "*", "big": "large", "bigger": "big"},
)


def test_names_lead_to_models() -> None:
    routes = Routes(TWO_MODELS, {})
    names = {"small": "small", "large": "large", "first": "small", "big": "large", "bigger": "large"}
    assert {name: routes.model_of(name) for name in names} == names
    assert routes.models == {"small": ["local", "far"], "large": ["far"]}
    assert routes.route("small", "ultrafast").backends == ("local", "far")
    assert routes.route("small", "fast").backends == ("far",)
    for name in ("", "Small", "small ", "far", "m", "*"):
        with pytest.raises(HttpError) as caught:
            routes.model_of(name)
        assert (caught.value.status, caught.value.code) == (HTTPStatus.NOT_FOUND, "model_not_found")
        assert "ask for 'small' or 'large' or 'first' or 'big' or 'bigger'" in caught.value.message


def test_models_as_they_are_listed() -> None:
    routes = Routes(TWO_MODELS, {}, describe=lambda name: description("smollm") if name == "local" else None)
    listed = routes.all()
    assert [model.id for model in listed.data] == ["small", "large"]
    assert (listed.data[0].created, listed.data[0].quantised_at_load) == (77, "q8_0")
    assert routes.resolve("first") == listed.data[0]
    assert routes.resolve("bigger") == listed.data[1]


def test_without_routes_everything_goes_to_the_one_backend() -> None:
    engine = Configuration()
    loaded = Routes(engine, {}, describe=lambda name: description("smollm2-135m"))
    assert loaded.models == {"smollm2-135m": ["local"]}
    assert loaded.model_of("gpt-5.6-sol") == "smollm2-135m"
    assert {loaded.route("smollm2-135m", tier).backends for tier in TIERS} == {("local",)}
    with pytest.raises(EngineUnavailableError):
        Routes(engine, {}).all()
    far = Configuration(backends={"far": UpstreamSettings(url="http://x/v1", model="m")})
    assert Routes(far, {}).models == {"m": ["far"]}


async def test_a_changed_configuration_keeps_the_servers_that_did_not_change() -> None:
    def configuration(**settings: UpstreamSettings) -> Configuration:
        return Configuration(backends={"local": EngineSettings(), **settings})

    def settings(model: str) -> UpstreamSettings:
        return UpstreamSettings(url="http://x/v1", model=model, key_variable="KEY")

    old = build_upstreams(configuration(a=settings("m"), b=settings("m"), c=settings("m")), {"KEY": "1"})
    assert set(old) == {"a", "b", "c"}
    new = build_upstreams(configuration(a=settings("m"), b=settings("n")), {"KEY": "1"}, old)
    assert set(new) == {"a", "b"}
    assert new["a"] is old["a"]
    assert new["b"] is not old["b"]
    assert build_upstreams(configuration(a=settings("m")), {"KEY": "2"}, old)["a"] is not old["a"], (
        "the key was changed"
    )
    with pytest.raises(ConfigurationError, match="KEY is not set"):
        build_upstreams(configuration(a=settings("m")), {}, old)
