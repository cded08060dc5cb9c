"""What the bench tests share."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from ultrafast.bench import fidelity, load, quantisations, speed
from ultrafast.bench.fidelity import bars
from ultrafast.bench.lock import exclusive
from ultrafast.bench.machine import Cache, Machine
from ultrafast.bench.provenance import ModelFile, Provenance
from ultrafast.bench.results import (
    ClearMargins,
    FidelityResult,
    LoadResult,
    QuantisationResult,
    QuantisationSpeed,
    ServingPart,
    ServingResult,
    Skipped,
    SpeedResult,
    Text,
    Workload,
)
from ultrafast.bench.serving import PARTS
from ultrafast.bench.speed_measures import Sizes, Stage
from ultrafast.bench.speed_parts import PARTS as PARTS_OF_SPEED
from ultrafast.bench.statistics import summarise
from ultrafast.weights.store import KNOWN_MODELS

from .samples import runtime_fidelity, runtime_speed


@pytest.fixture(autouse=True)
def own_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A developer's benchmark that runs at the same time is no reason to fail."""

    def lock(folder: Path) -> AbstractContextManager[None]:
        return exclusive(folder if folder.is_relative_to(tmp_path) else tmp_path / "lock")

    for module in (fidelity, load, quantisations, speed):
        monkeypatch.setattr(module, "exclusive", lock)


@pytest.fixture
def provenance() -> Provenance:
    """Circumstances as a run would record them."""
    machine = Machine(
        cpu_model="A CPU",
        architecture="x86_64",
        logical_cpus=2,
        usable_cpus=1.5,
        cpu_flags=["avx2"],
        caches=[Cache(3, "unified", 32 << 20, 2)],
        memory_bytes=24 << 30,
        operating_system="An OS 1",
        kernel="Linux 6",
        python="3.11.7",
    )
    return Provenance(
        started_at="2026-11-30T00:00:00+00:00",
        command="ultrafast bench speed",
        ultrafast_version="0.1.0",
        commit=None,
        machine=machine,
        load_average=0.1,
        read_bandwidth_bytes_per_second=2.1e10,
        read_bandwidth_threads=2,
        model=ModelFile("smollm2-135m", 98_362_432, "0" * 64),
    )


@pytest.fixture
def speed_result(provenance: Provenance) -> SpeedResult:
    runtimes = [runtime_speed("ultrafast", 1), runtime_speed("llama-cpp", 0.5)]
    return SpeedResult(provenance, Workload(), 3, runtimes, [Skipped("openvino-genai", "no wheel for this machine")])


@pytest.fixture
def speed_parts_result(provenance: Provenance) -> SpeedResult:
    found = {"linear_gmac_per_second": summarise([60.0, 61.0]), "attention_gmac_per_second": summarise([26.0, 25.0])}
    kernels = replace(PARTS_OF_SPEED["kernels"], measure=lambda _: found, load=lambda _: "the load of kernels")
    known = ModelFile("smollm2-135m", 98_362_432, KNOWN_MODELS["smollm2-135m"].sha256)
    stage = Stage(known, Path(), [], 2, 2, Sizes(), Path(), lambda _: None)
    return SpeedResult(provenance, Workload(), 2, [], [], [kernels.result(stage)])


@pytest.fixture
def fidelity_result(provenance: Provenance) -> FidelityResult:
    runtimes = [runtime_fidelity("ultrafast", 1.003, 0.0030), runtime_fidelity("llama-cpp", 1.004, 0.0031)]
    clear = ClearMargins(
        1.0,
        9_000,
        {"ultrafast": 0.1, "llama-cpp": 0.1},
        {"ultrafast": 0, "llama-cpp": 1},
        {"ultrafast": 0, "llama-cpp": 1},
    )
    text = Text("english.txt", "0" * 64, 40, 512, 20_440)
    return FidelityResult(provenance, text, 20.0, runtimes, [], bars(runtimes, clear), clear)


@pytest.fixture
def quantisation_result(provenance: Provenance) -> QuantisationResult:
    both = [runtime_speed("ultrafast", 1), runtime_speed("llama-cpp", 0.5)]
    types = [
        QuantisationSpeed("Q4_K_M", size_bytes=105_000_000, tensor_types={"Q5_0": 166, "Q4_K": 16}, runtimes=both),
        QuantisationSpeed("IQ1_S", size_bytes=82_000_000, importances=True, runtimes=both),
        QuantisationSpeed("NVFP4", refusal="invalid output file type 39"),
        QuantisationSpeed("Q2_0", size_bytes=62_000_000, failure="ultrafast: a type that we do not run"),
        QuantisationSpeed("TQ1_0", runtimes=both[:1], skipped=[Skipped("llama-cpp", "cannot load this file")]),
    ]
    return QuantisationResult(provenance, Workload(), 3, types, quantisations.bars(types))


@pytest.fixture
def load_result(provenance: Provenance) -> LoadResult:
    size = provenance.model.size_bytes
    seconds, memory, peak = summarise([2.0, 4.0, 3.0]), summarise([1.1 * size] * 3), summarise([2.0 * size] * 3)
    return LoadResult(
        provenance, "q8_0", 1_100_000_000, 2048, 2, seconds, memory, peak, load.bars(seconds, memory, size)
    )


@pytest.fixture
def serving_result(provenance: Provenance) -> ServingResult:
    gateway = {"ttft_seconds": summarise([0.2, 0.1, 0.3]), "added_seconds": summarise([0.001, 0.002, 0.0015])}
    refusal = {"refusal_seconds": summarise([0.004] * 98 + [0.02] * 2)}
    found = {"gateway": gateway, "refusal": refusal}
    parts = [ServingPart(name, f"the load of {name}", 0.05, of, PARTS[name].bars(of)) for name, of in found.items()]
    return ServingResult(provenance, 2, 2048, parts)
