"""The whole of a small benchmark, on the real model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ultrafast.bench import fidelity, speed
from ultrafast.bench.lock import exclusive
from ultrafast.bench.results import METRICS
from ultrafast.bench.speed import SpeedOptions, equal_from_start, run_speed
from ultrafast.errors import ConfigurationError


def ignore(_: str) -> None:
    """Progress nobody reads."""


def test_our_engine_is_measured_without_a_peer_that_cannot_take_part(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ULTRAFAST_BENCH_PEER_OPENVINO_GENAI", sys.executable)  # which has no such library
    result = run_speed(SpeedOptions(str(model_path), ("openvino-genai",), threads=2, rounds=2), progress=ignore)
    assert [runtime.name for runtime in result.runtimes] == ["ultrafast"]
    assert [skipped.name for skipped in result.skipped] == ["openvino-genai"]
    assert "openvino" in result.skipped[0].reason
    ours = result.runtimes[0]
    for metric in METRICS:
        assert len(ours.measurements[metric.key].samples) == 2
        assert ours.measurements[metric.key].minimum > 0
    assert ours.equal_tokens == result.workload.decode_tokens + 1
    assert not ours.speedup
    assert result.provenance.model.size_bytes == model_path.stat().st_size
    assert str(model_path.parent) not in str(result)


def test_an_unknown_peer_is_refused_before_any_work() -> None:
    with pytest.raises(ConfigurationError, match=r"1 unknown peer\(s\); known are: llama-cpp"):
        run_speed(SpeedOptions(peers=("llama-cpp", "\x1b[31mhostile")), progress=ignore)
    with pytest.raises(ConfigurationError, match="openvino-genai gives no logits"):
        fidelity.run_fidelity(fidelity.FidelityOptions(peers=("openvino-genai",)), progress=ignore)


def test_one_benchmark_at_a_time(model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "cache_directory", lambda: tmp_path)
    with (
        exclusive(tmp_path / "bench"),
        pytest.raises(ConfigurationError, match="another benchmark is running"),
    ):
        run_speed(SpeedOptions(str(model_path), ()), progress=ignore)
    with exclusive(tmp_path / "bench"):
        pass  # free again


def test_equal_tokens_are_counted_from_the_start() -> None:
    assert equal_from_start([1, 2, 3], [1, 2, 3]) == 3
    assert equal_from_start([1, 2, 3], [1, 5, 3]) == 1
    assert equal_from_start([], [1]) == 0
