"""What the bench tests share."""

from __future__ import annotations

import pytest

from ultrafast.bench.fidelity import bars
from ultrafast.bench.machine import Cache, Machine
from ultrafast.bench.provenance import ModelFile, Provenance
from ultrafast.bench.results import FidelityResult, Skipped, SpeedResult, Text, Workload

from .samples import runtime_fidelity, runtime_speed


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
def fidelity_result(provenance: Provenance) -> FidelityResult:
    runtimes = [runtime_fidelity("ultrafast", 1.003, 0.0030), runtime_fidelity("llama-cpp", 1.004, 0.0031)]
    return FidelityResult(
        provenance, Text("english.txt", "0" * 64, 40, 512, 20_440), 20.0, runtimes, [], bars(runtimes)
    )
