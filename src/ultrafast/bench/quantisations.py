"""Quantisations: every file type that llama.cpp's own quantiser writes of a model, decoded by us and by llama.cpp."""

from __future__ import annotations

import collections
import math
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ultrafast.bench import environments, provenance
from ultrafast.bench.catalogue import PEERS
from ultrafast.bench.contest import assembled
from ultrafast.bench.lock import exclusive
from ultrafast.bench.machine import check_disk
from ultrafast.bench.quantiser import Quantiser
from ultrafast.bench.race import Race
from ultrafast.bench.results import DECODE, Bar, QuantisationResult, QuantisationSpeed, Workload
from ultrafast.bench.text import text_tokens
from ultrafast.errors import ConfigurationError, EngineError, ModelError
from ultrafast.models import resources
from ultrafast.weights.gguf import open_gguf
from ultrafast.weights.store import cache_directory, resolve_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultrafast.bench.contest import Progress
    from ultrafast.bench.text import TextTokens
    from ultrafast.weights.store import Progress as PullProgress

DEFAULT_ROUNDS = 3
DECODE_RATIO_LIMIT = 1.0
_PEER = PEERS["llama-cpp"]


@dataclass(frozen=True)
class QuantisationOptions:
    """``types`` of ``None`` is every one the quantiser knows; the other fields as for speed."""

    model: str | None = None
    types: tuple[str, ...] | None = None
    threads: int | None = None
    rounds: int = DEFAULT_ROUNDS
    command: str = "ultrafast bench quantisations"


def run_quantisations(
    options: QuantisationOptions, *, progress: Progress, pull_progress: PullProgress | None = None
) -> QuantisationResult:
    """Write, measure and delete one file after another.

    Raises:
        ConfigurationError: an option is wrong, the peer cannot be installed, the disk is too full, or another benchmark
            is running.
        ModelError: the model cannot be had or used.
        EngineError: the peer's environment does not work.
    """
    location = resolve_model(options.model, progress=pull_progress)
    if location.path.is_dir():
        raise ConfigurationError("llama.cpp quantises GGUF files only; name one with --model")
    threads = options.threads or resources.default_threads()
    root = cache_directory() / "bench"
    with exclusive(root), tempfile.TemporaryDirectory() as folder:
        check_disk(Path(folder), _largest_bytes(location.path))
        python = environments.interpreter(_PEER.environment, root, progress)
        quantiser = Quantiser(python, location.path, threads)
        types = _chosen(quantiser.file_types(), options.types)
        text = text_tokens(location.path)
        progress("describing the machine, measuring its read bandwidth")
        circumstances = provenance.gather(options.command, location.name, location.path, threads)
        trial = Trial(text, options.rounds, threads, root, progress)
        quantisations = []
        for position, (name, number) in enumerate(types.items(), start=1):
            heading = f"{name} ({position} of {len(types)})"
            progress(f"{heading}: quantising")
            file = Path(folder) / "model.gguf"
            outcome = quantiser.write(number, file)
            if outcome.refusal is None:
                quantisations.append(trial.measured(name, file, importances=outcome.importances))
            else:
                quantisations.append(QuantisationSpeed(name, outcome.refusal, importances=outcome.importances))
            file.unlink(missing_ok=True)
    return QuantisationResult(circumstances, trial.workload, options.rounds, quantisations, bars(quantisations))


@dataclass
class Trial:
    """How each file is measured."""

    text: TextTokens
    rounds: int
    threads: int
    root: Path
    progress: Progress
    workload: Workload = field(default_factory=Workload)

    def measured(self, name: str, file: Path, *, importances: bool) -> QuantisationSpeed:
        """Decode speed on this file: ours and llama.cpp's in alternation, each in a process of its own."""
        size_bytes, tensor_types = file.stat().st_size, _tensor_types(file)

        def say(stage: str) -> None:
            self.progress(f"{name}: {stage}")

        try:
            with assembled(
                [_PEER], file, threads=self.threads, context=self.workload.context, root=self.root, progress=say
            ) as contest:
                race = Race(contest, self.text, self.workload, self.rounds, say, metrics=(DECODE,))
                race.run()
                runtimes, skipped, failure = race.runtimes(), contest.skipped, None
        except EngineError as error:
            # Everything that we refuse or break on counts against us; a peer's failure would be in ``skipped``.
            runtimes, skipped, failure = [], [], str(error)
        return QuantisationSpeed(
            name,
            size_bytes=size_bytes,
            importances=importances,
            tensor_types=tensor_types,
            runtimes=runtimes,
            skipped=skipped,
            failure=failure,
        )


def bars(quantisations: list[QuantisationSpeed]) -> list[Bar]:
    """Our promises: everything that the quantiser writes runs, and decodes no slower than in llama.cpp."""
    failures = sum(one.failure is not None for one in quantisations)
    ratios = [ratio for one in quantisations if (ratio := one.decode_ratio) is not None]
    result = [Bar("file types that llama.cpp's quantiser writes and our engine does not run", 0, failures)]
    if ratios:
        result.append(Bar("lowest decode speed ÷ llama.cpp's", DECODE_RATIO_LIMIT, min(ratios), at_least=True))
    return result


def _chosen(known: dict[str, int], wanted: Sequence[str] | None) -> dict[str, int]:
    if wanted is None:
        return known
    if unknown := [name for name in wanted if name not in known]:
        raise ConfigurationError(f"{len(unknown)} unknown file type(s); known are: {', '.join(known)}")
    return {name: known[name] for name in dict.fromkeys(wanted)}


def _largest_bytes(path: Path) -> int:
    """The float32 file, with some room for metadata: the largest that is written, and one is there at a time."""
    with open_gguf(path, any_type=True) as file:
        elements = sum(math.prod(tensor.shape) for tensor in file.tensors.values())
    return 4 * elements + path.stat().st_size


def _tensor_types(path: Path) -> dict[str, int]:
    """How many matrices are stored as what; empty where the file holds a type that has no name here."""
    try:
        with open_gguf(path, any_type=True) as file:
            kinds = collections.Counter(tensor.type_name for tensor in file.tensors.values() if len(tensor.shape) >= 2)
    except ModelError:
        return {}
    return dict(kinds.most_common())
