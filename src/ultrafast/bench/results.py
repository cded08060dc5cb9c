"""What a benchmark leaves behind: typed, versioned JSON that later runs and documents can read."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from ultrafast.bench.provenance import Provenance
from ultrafast.bench.statistics import Summary
from ultrafast.errors import ConfigurationError

SCHEMA_VERSION = 1


class Metric(msgspec.Struct, frozen=True):
    """A quantity that is measured: its key in the JSON, its name for people, its unit, and which way is better."""

    key: str
    title: str
    unit: str
    higher_is_better: bool


DECODE = Metric("decode_tokens_per_second", "Decode", "tokens/s", higher_is_better=True)
PREFILL = Metric("prefill_tokens_per_second", "Prefill", "tokens/s", higher_is_better=True)
TTFT = Metric("ttft_seconds", "TTFT", "s", higher_is_better=False)
METRICS = (DECODE, PREFILL, TTFT)


class Skipped(msgspec.Struct, frozen=True):
    """A peer that could not take part, and why."""

    name: str
    reason: str


class Workload(msgspec.Struct, frozen=True):
    """What every runtime is asked to do, in tokens."""

    decode_prompt_tokens: int = 16
    decode_tokens: int = 128
    prefill_tokens: int = 512
    ttft_prompt_tokens: int = 128
    context: int = 1024


class RuntimeSpeed(msgspec.Struct, frozen=True):
    """One runtime's measurements by metric key.

    ``speedup`` is how many times better ours was in the same round (empty for ours itself). ``equal_tokens`` counts the
    greedy tokens that agree with ours from the start: evidence that the same model answered. ``idle_cpu_share`` is what
    its process used while it was not being measured, in CPUs.
    """

    name: str
    versions: dict[str, str]
    detail: str
    threads: int
    load_seconds: float
    idle_cpu_share: float
    equal_tokens: int
    measurements: dict[str, Summary]
    speedup: dict[str, Summary]


class Bar(msgspec.Struct, frozen=True):
    """A promise and what was measured; the limit is the highest value allowed, or with ``at_least`` the lowest."""

    name: str
    limit: float
    measured: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the measured value is within the limit."""
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


class SpeedPart(msgspec.Struct, frozen=True):
    """One part of the benchmark: what was done, samples by a name that ends with their unit, and its promises."""

    name: str
    load: str
    measurements: dict[str, Summary]
    bars: list[Bar]


class SpeedResult(msgspec.Struct, frozen=True, tag="speed", tag_field="kind"):
    """Alternating runs of our engine and its peers; ours is the first runtime.

    ``runtimes`` are those of the part ``standard``; without it there are none.
    """

    provenance: Provenance
    workload: Workload
    rounds: int
    runtimes: list[RuntimeSpeed]
    skipped: list[Skipped]
    parts: list[SpeedPart] = []  # not in results from before there were any
    schema_version: int = SCHEMA_VERSION

    @property
    def bars(self) -> list[Bar]:
        """Those of all parts."""
        return [bar for part in self.parts for bar in part.bars]


class Text(msgspec.Struct, frozen=True):
    """The text that was scored."""

    name: str
    sha256: str
    sequences: int
    sequence_tokens: int
    predicted_tokens: int


class RuntimeFidelity(msgspec.Struct, frozen=True):
    """How far a runtime's distributions lie from the float32 reference's.

    KL(reference ‖ runtime) is in nats, over the whole vocabulary, at every position; ``top1_agreement`` is the share of
    positions where both find the same token most likely.
    """

    name: str
    versions: dict[str, str]
    detail: str
    perplexity: float
    perplexity_ratio: float
    mean_kl: float
    mean_kl_standard_error: float
    percentile_99_kl: float
    maximum_kl: float
    top1_agreement: float


class ClearMargins(msgspec.Struct, frozen=True):
    """Whether greedy answers are the same where they ought to be.

    A position is clear where the reference's most likely token leads the second by more than ``threshold`` logits.
    Counted are, by runtime, the clear positions where its most likely token is not the reference's, or not ours.
    ``margin_noise`` is the root mean square of what the runtime adds to that lead, over all positions: what the
    threshold is to be judged by.
    """

    threshold: float
    positions: int
    margin_noise: dict[str, float]
    unlike_reference: dict[str, int]
    unlike_ours: dict[str, int]


class FidelityResult(msgspec.Struct, frozen=True, tag="fidelity", tag_field="kind"):
    """Our engine and its peers against the float32 reference, on one text; ours is the first runtime."""

    provenance: Provenance
    text: Text
    reference_perplexity: float
    runtimes: list[RuntimeFidelity]
    skipped: list[Skipped]
    bars: list[Bar]
    clear: ClearMargins | None = None  # not in results from before it was measured
    schema_version: int = SCHEMA_VERSION


class QuantisationSpeed(msgspec.Struct, frozen=True):
    """One file type of llama.cpp's quantiser: the file that it wrote, and decode speed on it, ours first.

    ``refusal`` is the quantiser's reason where it wrote none. ``failure`` is our engine's where it does not run the
    file: ``runtimes`` is empty then. ``skipped`` names llama.cpp where it does not run its own file. ``importances``
    says that the type is not written without an importance matrix, so it was given one of all ones. ``tensor_types``
    counts matrices: one whose rows are no multiple of a type's block is stored as another.
    """

    name: str
    refusal: str | None = None
    size_bytes: int = 0
    importances: bool = False
    tensor_types: dict[str, int] = {}
    runtimes: list[RuntimeSpeed] = []
    skipped: list[Skipped] = []
    failure: str | None = None

    @property
    def decode_ratio(self) -> float | None:
        """Ours ÷ llama.cpp's, the median of the rounds, where both ran."""
        return next((runtime.speedup[DECODE.key].median for runtime in self.runtimes[1:]), None)


class QuantisationResult(msgspec.Struct, frozen=True, tag="quantisations", tag_field="kind"):
    """Every file type that llama.cpp's quantiser knows, requantised from one model file."""

    provenance: Provenance
    workload: Workload
    rounds: int
    quantisations: list[QuantisationSpeed]
    bars: list[Bar]
    schema_version: int = SCHEMA_VERSION


class LoadResult(msgspec.Struct, frozen=True, tag="load", tag_field="kind"):
    """Loading a model of random weights in fresh processes; memory is resident memory, the mapped file included."""

    provenance: Provenance
    weight_type: str
    parameters: int
    context: int
    threads: int
    load_seconds: Summary
    memory_bytes: Summary
    peak_memory_bytes: Summary
    bars: list[Bar]
    schema_version: int = SCHEMA_VERSION


class ServingPart(msgspec.Struct, frozen=True):
    """One part of the benchmark of a server: what was asked of it, and samples by a name that ends with their unit.

    ``client_cpu_share`` is what the load generator used meanwhile, in CPUs: it shares the machine with the server.
    """

    name: str
    load: str
    client_cpu_share: float
    measurements: dict[str, Summary]
    bars: list[Bar]


class ServingResult(msgspec.Struct, frozen=True, tag="serving", tag_field="kind"):
    """What a real server keeps of its promises about tiers."""

    provenance: Provenance
    threads: int
    context: int
    parts: list[ServingPart]
    schema_version: int = SCHEMA_VERSION

    @property
    def bars(self) -> list[Bar]:
        """Those of all parts."""
        return [bar for part in self.parts for bar in part.bars]


AnyResult = SpeedResult | FidelityResult | QuantisationResult | LoadResult | ServingResult
Result = TypeVar("Result", SpeedResult, FidelityResult, QuantisationResult, LoadResult, ServingResult)


def write_result(result: AnyResult, path: Path) -> None:
    """Write a result as indented JSON."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    except OSError as error:
        raise ConfigurationError(f"cannot write the result: {error.strerror}") from error


def read_result(path: Path, kind: type[Result]) -> Result:
    """Read a result of this kind back.

    Raises:
        ConfigurationError: the file is absent, or holds no such result.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise ConfigurationError(f"cannot read the result: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigurationError("the file holds no result of this kind") from error
