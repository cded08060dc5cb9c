"""Load: how long a model of 1.1 billion random weights takes to load from a warm disk, and the memory it then holds."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ultrafast.bench import provenance, random_model
from ultrafast.bench.lock import exclusive
from ultrafast.bench.machine import check_disk
from ultrafast.bench.results import Bar, LoadResult
from ultrafast.bench.statistics import summarise
from ultrafast.bench.worker import Worker
from ultrafast.errors import ConfigurationError
from ultrafast.models import resources
from ultrafast.weights.gguf import open_gguf
from ultrafast.weights.store import cache_directory, resolve_model

if TYPE_CHECKING:
    from ultrafast.bench.contest import Progress
    from ultrafast.bench.statistics import Summary
    from ultrafast.weights.store import Progress as PullProgress

DEFAULT_ROUNDS = 3
LOAD_SECONDS_LIMIT = 5.0
MEMORY_RATIO_LIMIT = 1.15


@dataclass(frozen=True)
class LoadOptions:
    """``weight_type`` is q4_0, q8_0, f16 or q4_k_m; ``threads`` of ``None`` is every usable CPU."""

    weight_type: str = "q8_0"
    threads: int | None = None
    rounds: int = DEFAULT_ROUNDS
    command: str = "ultrafast bench load"


def run_load(options: LoadOptions, *, progress: Progress, pull_progress: PullProgress | None = None) -> LoadResult:
    """Make the file, load it in one fresh process after another, and delete it.

    Raises:
        ConfigurationError: an option is wrong, the system does not tell the memory of a process, the disk is too full,
            or another benchmark is running.
        ModelError: the default model, whose tokenizer is borrowed, cannot be had.
        EngineError: our engine failed.
    """
    if options.weight_type not in random_model.WEIGHT_TYPES:
        raise ConfigurationError(f"a type is one of {', '.join(random_model.WEIGHT_TYPES)}")
    if not Path("/proc/self/status").exists():
        raise ConfigurationError("the memory of a process is read from /proc, which this system does not have")
    location = resolve_model(None, progress=pull_progress)
    threads = options.threads or resources.default_threads()
    with exclusive(cache_directory() / "bench"), tempfile.TemporaryDirectory() as folder:
        shape = random_model.SHAPES["1.1b"]
        check_disk(Path(folder), shape.file_bytes(options.weight_type) + random_model.METADATA_BYTES)
        path = Path(folder) / f"random-1.1b-{options.weight_type}.gguf"
        with open_gguf(location.path) as vocabulary:
            random_model.write_random_model(path, shape, options.weight_type, vocabulary, progress)
        progress("describing the machine, measuring its read bandwidth")
        circumstances = provenance.gather(options.command, path.stem, path, threads)  # reads the whole file once
        samples = []
        for number in range(1, options.rounds + 1):
            progress(f"loading: round {number} of {options.rounds}")
            samples.append(_load_once(path, threads, shape.context))
    seconds, memory, peak = (summarise(values) for values in zip(*samples, strict=True))
    return LoadResult(
        provenance=circumstances,
        weight_type=options.weight_type,
        parameters=shape.parameter_count(),
        context=shape.context,
        threads=threads,
        load_seconds=seconds,
        memory_bytes=memory,
        peak_memory_bytes=peak,
        bars=bars(seconds, memory, circumstances.model.size_bytes),
    )


def bars(seconds: Summary, memory: Summary, size_bytes: int) -> list[Bar]:
    """Our promises."""
    return [
        Bar("seconds to load", LOAD_SECONDS_LIMIT, seconds.median),
        Bar("memory after loading ÷ file", MEMORY_RATIO_LIMIT, memory.median / size_bytes),
    ]


def process_memory(process_id: int) -> tuple[int, int]:
    """(bytes that a process holds now, the most it ever held), mapped files and huge pages included."""
    fields = {}
    for line in Path(f"/proc/{process_id}/status").read_text("ascii", "replace").splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM", "HugetlbPages"):
            fields[name] = int(value.split()[0]) * 1024
    huge = fields.get("HugetlbPages", 0)
    return fields["VmRSS"] + huge, fields["VmHWM"] + huge


def _load_once(path: Path, threads: int, context: int) -> tuple[float, float, float]:
    with Worker.of_engine() as worker:
        report = worker.load(path, threads=threads, context=context)
        return (report.load_seconds, *process_memory(worker.process_id))
