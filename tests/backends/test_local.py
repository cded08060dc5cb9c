"""The local backend over a real engine process: start, cancel, crash, freeze, stop (FAULTS rows 18, 19, 22)."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from ultrafast.backends import connection, local
from ultrafast.backends.base import GenerationEvent, GenerationRequest, SamplingParameters
from ultrafast.backends.local import LocalBackend
from ultrafast.backends.prompt import ChatPrompt
from ultrafast.errors import (
    ConfigurationError,
    ContextLengthError,
    EngineError,
    EngineUnavailableError,
    ModelFileError,
    RequestError,
    UltrafastError,
)
from ultrafast.weights.store import ModelLocation, resolve_model

SESSION = pytest.mark.asyncio(loop_scope="module")
pytestmark = SESSION
NO_END = {0: -100.0, 2: -100.0}


@pytest.fixture(scope="module")
def location() -> ModelLocation:
    return resolve_model()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(location: ModelLocation) -> AsyncIterator[LocalBackend]:
    stages: list[str] = []
    backend = LocalBackend(location, context=2048, progress=stages.append)
    await backend.start()
    assert len(stages) >= 2
    yield backend
    await backend.stop()


def request(request_id: str, *, prompt: int = 8, tokens: int = 8, seed: int = 0, **values: object) -> GenerationRequest:
    sampling = SamplingParameters(seed=seed, logit_bias=NO_END)
    return GenerationRequest(request_id, list(range(100, 100 + prompt)), sampling, tokens, **values)  # type: ignore[arg-type]


async def collect(backend: LocalBackend, wanted: GenerationRequest) -> list[GenerationEvent]:
    return [event async for event in backend.generate(wanted)]


def tokens_of(events: list[GenerationEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


async def idle(backend: LocalBackend) -> None:
    async with asyncio.timeout(5):
        while True:
            status = await backend.status()
            if (status.running, status.waiting) == (0, 0):
                break
            await asyncio.sleep(0.02)
    assert status.free_blocks == status.block_count


async def test_the_loop_keeps_off_the_engines_core_and_no_engine_inherits_that(
    backend: LocalBackend, location: ModelLocation
) -> None:
    core = set(backend.model.cpus[:1])
    allowed = os.sched_getaffinity(0)
    assert not core & allowed or len(allowed) == 1
    second = LocalBackend(location, context=256)
    await second.start()
    try:
        assert second.model.cpus == backend.model.cpus
        for engine in (backend, second):
            assert engine.process_id is not None
            assert os.sched_getaffinity(engine.process_id) == (core or allowed)
        assert os.sched_getaffinity(0) == allowed
    finally:
        await second.stop()
    assert os.sched_getaffinity(0) == allowed


async def test_a_request(backend: LocalBackend, location: ModelLocation) -> None:
    prompt = ChatPrompt.from_file(location.path).tokens([{"role": "user", "content": "What is the capital of Japan?"}])
    wanted = GenerationRequest("tokyo", prompt, SamplingParameters(temperature=0.0), 32)
    events = await collect(backend, wanted)
    assert "Tokyo" in "".join(event.text for event in events)
    assert events[-1].finish_reason == "stop"
    assert events[-1].summary is not None
    model = backend.model
    assert (model.name, model.context) == ("smollm2-135m", 2048)
    assert model.vocabulary_size == 49152
    assert backend.ready


async def test_reserved_slots_come_on_top_of_the_others(location: ModelLocation) -> None:
    with pytest.raises(ConfigurationError, match="must be 0 to 64"):
        await LocalBackend(location, reserved_slots=65).start()
    reserving = LocalBackend(location, context=256, reserved_slots=3)
    await reserving.start()
    try:
        assert reserving.model.max_sequences == 16 + 3
        (event,) = await collect(reserving, request("one", tokens=1, tier="ultrafast", salt="a project's"))
        assert event.finish_reason == "length"
        assert (await reserving.status()).running_by_tier.keys() == {"ultrafast", "priority", "default", "flex"}
    finally:
        await reserving.stop()


async def test_refusals_are_typed_and_cost_nothing(backend: LocalBackend) -> None:
    with pytest.raises(ContextLengthError):
        await collect(backend, request("long", prompt=4000))
    with pytest.raises(RequestError):
        await collect(backend, GenerationRequest("outside", [10**9], SamplingParameters(), 5))
    await idle(backend)


async def test_a_crowd_at_one_tier_does_not_refuse_another(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "MAXIMUM_IN_FLIGHT", 3)
    crowd = [backend.generate(request(f"flex {number}", tokens=1500, tier="flex")) for number in range(3)]
    with pytest.raises(EngineUnavailableError, match="too many requests"):
        backend.generate(request("one too many", tier="flex"))
    assert len(tokens_of(await collect(backend, request("urgent", tier="ultrafast")))) == 8
    for stream in crowd:
        await stream.aclose()
    await idle(backend)


async def test_closing_stops_while_decoding_prefilling_and_queued(backend: LocalBackend) -> None:
    decoding = backend.generate(request("decoding", tokens=1500))
    for _ in range(3):
        await anext(decoding)
    await decoding.aclose()
    await decoding.aclose()
    await idle(backend)
    with pytest.raises(StopAsyncIteration):
        await anext(decoding)

    assert decoding.summary is not None
    assert decoding.summary.prompt_tokens == 8
    assert decoding.summary.completion_tokens >= 3

    before = (await backend.status()).rows
    prefilling = backend.generate(request("prefilling", prompt=1900))
    await asyncio.sleep(0.3)
    await prefilling.aclose()
    await idle(backend)
    assert prefilling.summary is not None
    computed = prefilling.summary.prompt_tokens - prefilling.summary.cached_tokens
    assert 1900 > computed == (await backend.status()).rows - before > 0

    streams = [
        backend.generate(request(f"many {index}", tokens=1000)) for index in range(backend.model.max_sequences + 4)
    ]
    await anext(streams[0])
    assert (await backend.status()).waiting == 4
    for stream in reversed(streams):
        await stream.aclose()
    await idle(backend)
    assert [stream.summary.prompt_tokens for stream in streams[-4:] if stream.summary is not None] == [0] * 4


async def test_a_cancelled_task_stops_its_work(backend: LocalBackend) -> None:
    task = asyncio.create_task(_drain(backend, request("task", tokens=1500)))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await idle(backend)


async def _drain(backend: LocalBackend, wanted: GenerationRequest) -> None:
    from contextlib import aclosing

    async with aclosing(backend.generate(wanted)) as stream:
        async for _ in stream:
            pass


async def test_cancelling_one_leaves_the_other_alone(backend: LocalBackend) -> None:
    alone = tokens_of(await collect(backend, request("a", tokens=30, seed=3)))
    survivor = asyncio.create_task(collect(backend, request("a", tokens=30, seed=3)))
    for index in range(5):
        neighbour = backend.generate(request(f"b{index}", tokens=500, prompt=50))
        await anext(neighbour)
        await neighbour.aclose()
    assert tokens_of(await survivor) == alone
    await idle(backend)


async def test_an_idle_engine_uses_no_processor(backend: LocalBackend) -> None:
    await idle(backend)
    await asyncio.sleep(0.2)
    before = _processor_seconds(backend.process_id)
    await asyncio.sleep(2.0)
    assert _processor_seconds(backend.process_id) - before <= 0.04


def _processor_seconds(process_id: int | None) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_a_killed_engine_ends_its_streams_and_is_replaced(backend: LocalBackend) -> None:
    expected = tokens_of(await collect(backend, request("before", tokens=10)))
    streams = [asyncio.create_task(collect(backend, request(f"s{index}", tokens=1500))) for index in range(3)]
    await asyncio.sleep(0.3)
    process_id = backend.process_id
    assert process_id is not None
    os.kill(process_id, signal.SIGKILL)
    for stream in streams:
        with pytest.raises(EngineUnavailableError):
            await stream
    assert not backend.ready
    assert (backend.state.state, backend.state.running) == ("restarting", 0)
    with pytest.raises(EngineUnavailableError):
        backend.generate(request("meanwhile"))
    await _until_ready(backend)
    assert backend.state.state == "ok"
    assert backend.state.last_error is not None
    assert backend.state.last_error.reason == "the engine stopped: signal SIGKILL"
    assert backend.process_id != process_id
    assert tokens_of(await collect(backend, request("after", tokens=10))) == expected


async def test_a_frozen_engine_is_noticed_and_replaced(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "BEAT_SECONDS", 0.2)
    await asyncio.sleep(1.2)  # the beat under way still has its old length
    stream = asyncio.create_task(collect(backend, request("frozen", tokens=1500)))
    await asyncio.sleep(0.2)
    process_id = backend.process_id
    assert process_id is not None
    os.kill(process_id, signal.SIGSTOP)
    started = time.monotonic()
    while backend.ready:
        assert time.monotonic() - started < local.BEATS_UNTIL_KILLED * 0.2
        await asyncio.sleep(0.02)
    with pytest.raises(EngineUnavailableError):
        await stream
    await _until_ready(backend)
    assert backend.process_id != process_id
    await collect(backend, request("after"))


async def test_row_22_a_frozen_engine_is_unready_within_five_seconds(backend: LocalBackend) -> None:
    """Frozen at the worst moment: when it has just answered, and the beat counts as heard."""
    connection, process_id = backend._connection, backend.process_id
    assert connection is not None
    assert process_id is not None
    connection.heard = False
    while not connection.heard:  # noqa: ASYNC110 - set by the event loop with each answer
        await asyncio.sleep(0.005)
    os.kill(process_id, signal.SIGSTOP)
    started = time.monotonic()
    while backend.ready:  # noqa: ASYNC110 - a property, there is nothing to await
        await asyncio.sleep(0.01)
    elapsed = time.monotonic() - started
    assert backend.state.state == "not answering"
    os.kill(process_id, signal.SIGCONT)
    assert 3.9 < elapsed < 4.8
    await _until_ready(backend)
    assert backend.process_id == process_id, "replaced though it came back in time"


async def test_a_busy_engine_is_no_frozen_one(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    process_id = backend.process_id
    streams = [collect(backend, request(f"busy {index}", prompt=400, tokens=20)) for index in range(4)]
    await asyncio.gather(*streams)
    assert backend.process_id == process_id
    assert backend.ready


async def _until_ready(backend: LocalBackend) -> None:
    async with asyncio.timeout(60):
        while not backend.ready:  # noqa: ASYNC110 - readiness is a property, there is nothing to await
            await asyncio.sleep(0.02)


async def test_stopping_ends_streams_and_the_process(location: ModelLocation) -> None:
    backend = LocalBackend(location, context=512)
    with pytest.raises(EngineUnavailableError):
        backend.generate(request("early"))
    await backend.start()
    stream = asyncio.create_task(collect(backend, request("a", tokens=400)))
    await asyncio.sleep(0.1)
    process_id = backend.process_id
    await backend.stop()
    await backend.stop()
    with pytest.raises(EngineUnavailableError):
        await stream
    assert not Path(f"/proc/{process_id}").exists()  # noqa: ASYNC240
    with pytest.raises(EngineUnavailableError):
        backend.generate(request("late"))


async def test_an_engine_that_hangs_while_it_starts_is_given_up(
    location: ModelLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_START_BEAT_SECONDS", 0.05)
    monkeypatch.setattr(connection, "_IDLE_BEATS_UNTIL_GIVEN_UP", 20)
    stopped: list[int] = []

    def stop(stage: str) -> None:
        assert backend.process_id is not None
        stopped.append(backend.process_id)
        os.kill(stopped[0], signal.SIGSTOP)

    backend = LocalBackend(location, context=512, progress=stop)
    with pytest.raises(EngineError, match="did nothing for 1 s while reading"):
        async with asyncio.timeout(30):
            await backend.start()
    assert stopped
    assert not Path(f"/proc/{stopped[0]}").exists()  # noqa: ASYNC240
    await backend.stop()


async def test_load_errors_are_those_of_the_loader(location: ModelLocation, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(location.path.read_bytes()[:100_000])
    cases: list[tuple[type[UltrafastError], LocalBackend]] = [
        (ModelFileError, LocalBackend(ModelLocation("broken", broken, 100_000))),
        (ConfigurationError, LocalBackend(location, context=10**8)),
        (ConfigurationError, LocalBackend(location, instruction_set="no such set")),
        (ConfigurationError, LocalBackend(location, threads=100_000)),
    ]
    for expected, backend in cases:
        with pytest.raises(expected) as caught:
            await backend.start()
        assert "\n" not in str(caught.value)
        assert not backend.ready
        await backend.stop()
