"""Serving: the promises about tiers, over HTTP, on a real ``ultrafast serve``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from ultrafast.bench import provenance
from ultrafast.bench.lock import exclusive
from ultrafast.bench.results import ServingPart, ServingResult
from ultrafast.bench.serving.parts import PARTS
from ultrafast.bench.serving.prompts import Prompts
from ultrafast.bench.serving.server import Server
from ultrafast.bench.serving.stage import Sizes, Stage
from ultrafast.bench.statistics import summarise
from ultrafast.errors import ConfigurationError
from ultrafast.models import resources
from ultrafast.weights.store import cache_directory, resolve_model

if TYPE_CHECKING:
    from ultrafast.bench.contest import Progress
    from ultrafast.bench.serving.parts import Part
    from ultrafast.weights.store import Progress as PullProgress


@dataclass(frozen=True)
class ServingOptions:
    """``parts`` of ``None`` is all of them; ``threads`` of ``None`` is every usable CPU."""

    model: str | None = None
    parts: tuple[str, ...] | None = None
    threads: int | None = None
    command: str = "ultrafast bench serving"
    sizes: Sizes = field(default_factory=Sizes)


def run_serving(
    options: ServingOptions, *, progress: Progress, pull_progress: PullProgress | None = None
) -> ServingResult:
    """Measure the parts, one after another.

    Raises:
        ConfigurationError: an option is wrong, or another benchmark is running.
        ModelError: the model cannot be had or used.
        EngineError: the server failed.
    """
    names = tuple(PARTS) if options.parts is None else options.parts
    if any(name not in PARTS for name in names):
        raise ConfigurationError(f"a part is one of {', '.join(PARTS)}")
    location = resolve_model(options.model, progress=pull_progress)
    threads = options.threads or resources.default_threads()
    with exclusive(cache_directory() / "bench"):
        progress("describing the machine, measuring its read bandwidth")
        circumstances = provenance.gather(options.command, location.name, location.path, threads)
        prompts = Prompts(location.path)
        chosen = [PARTS[name] for name in dict.fromkeys(names)]
        parts = []
        for tiers, group in groupby(chosen, key=lambda part: part.tiers):
            progress("starting the server")
            with Server(location.path, threads=threads, context=options.sizes.context, tiers=tiers) as server:
                stage = Stage(location.path, threads, options.sizes, server, prompts, progress)
                parts += [_measure(part, stage) for part in group]
    return ServingResult(circumstances, threads, options.sizes.context, parts)


def _measure(part: Part, stage: Stage) -> ServingPart:
    async def measure() -> dict[str, list[float]]:
        try:
            return await part.measure(stage)
        finally:
            stage.client.close()

    started, used = time.perf_counter(), time.process_time()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        samples = runner.run(measure())
    share = (time.process_time() - used) / (time.perf_counter() - started)
    measurements = {name: summarise(values) for name, values in samples.items()}
    return ServingPart(part.name, part.load(stage), share, measurements, part.bars(measurements))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not made for this platform
        return None
    return uvloop.new_event_loop
