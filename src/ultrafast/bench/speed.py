"""Speed: the same work for our engine and its peers; further parts measure what else the engine is held to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ultrafast.bench import provenance
from ultrafast.bench.catalogue import DEFAULT_PEERS
from ultrafast.bench.contest import check_peers
from ultrafast.bench.lock import exclusive
from ultrafast.bench.results import SpeedResult
from ultrafast.bench.speed_measures import Sizes, Stage
from ultrafast.bench.speed_parts import PARTS, STANDARD
from ultrafast.errors import ConfigurationError
from ultrafast.models import resources
from ultrafast.weights.store import cache_directory, resolve_model

if TYPE_CHECKING:
    from ultrafast.bench.contest import Progress
    from ultrafast.weights.store import Progress as PullProgress

DEFAULT_ROUNDS = 7


@dataclass(frozen=True)
class SpeedOptions:
    """``model`` is a known name or a path (``None`` for the default); ``threads`` of ``None`` is every usable CPU."""

    model: str | None = None
    peers: tuple[str, ...] = DEFAULT_PEERS
    parts: tuple[str, ...] = (STANDARD,)
    threads: int | None = None
    rounds: int = DEFAULT_ROUNDS
    command: str = "ultrafast bench speed"
    sizes: Sizes = field(default_factory=Sizes)


def run_speed(options: SpeedOptions, *, progress: Progress, pull_progress: PullProgress | None = None) -> SpeedResult:
    """Measure our engine and the peers in alternation.

    Raises:
        ConfigurationError: an option is wrong, or another benchmark is running.
        ModelError: the model cannot be had or used.
        EngineError: our own engine failed. A failing peer is left out and named in the result.
    """
    peers = check_peers(options.peers)
    if any(name not in PARTS for name in options.parts):
        raise ConfigurationError(f"a part is one of {', '.join(PARTS)}")
    location = resolve_model(options.model, progress=pull_progress)
    threads = options.threads or resources.default_threads()
    root = cache_directory() / "bench"
    with exclusive(root):
        progress("describing the machine, measuring its read bandwidth")
        circumstances = provenance.gather(options.command, location.name, location.path, threads)
        stage = Stage(circumstances.model, location.path, peers, threads, options.rounds, options.sizes, root, progress)
        parts = [PARTS[name].result(stage) for name in dict.fromkeys(options.parts)]
        skipped = list({peer.name: peer for peer in stage.skipped}.values())
        return SpeedResult(circumstances, options.sizes.standard, options.rounds, stage.runtimes, skipped, parts)
