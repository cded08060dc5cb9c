"""The whole of a small benchmark, on the real model."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ultrafast.bench import fidelity, machine, random_model, speed, speed_measures
from ultrafast.bench.lock import exclusive
from ultrafast.bench.provenance import ModelFile
from ultrafast.bench.race import equal_from_start
from ultrafast.bench.results import METRICS, SpeedPart, Workload
from ultrafast.bench.speed import SpeedOptions, run_speed
from ultrafast.bench.speed_measures import Sizes, Stage
from ultrafast.bench.speed_parts import PARTS
from ultrafast.bench.statistics import summarise
from ultrafast.errors import ConfigurationError, EngineError
from ultrafast.weights.store import DEFAULT_MODEL, KNOWN_MODELS


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
    assert [(part.name, [bar.name for bar in part.bars]) for part in result.parts] == [
        ("standard", ["time per token ÷ (weights ÷ bandwidth)"])  # the other promises are about llama.cpp
    ]
    found = result.parts[0].measurements
    assert 0.9 * model_path.stat().st_size < found["weights_per_token_bytes"].median < model_path.stat().st_size
    assert found["time_over_limit"].samples == [1 / share for share in found["bandwidth_share"].samples]
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


SMALL = Sizes(
    standard=Workload(decode_tokens=8, prefill_tokens=32, ttft_prompt_tokens=16, context=256),
    prompt=Workload(ttft_prompt_tokens=200, context=256),
    long_rounds=1,
    pass_history_tokens=20,
    passes=2,
    kernel_positions=64,
    kernel_seconds=0.01,
    history_tokens=100,
    random_weights=Workload(decode_prompt_tokens=4, decode_tokens=8, context=64),
)


def measured(path: Path, *parts: str, peers: tuple[str, ...] = ()) -> dict[str, SpeedPart]:
    result = run_speed(SpeedOptions(str(path), peers, parts, threads=2, rounds=2, sizes=SMALL), progress=ignore)
    assert not result.runtimes
    assert [part.name for part in result.parts] == list(parts)
    return {part.name: part for part in result.parts}


def test_every_part_measures_what_its_promises_are_about(model_path: Path) -> None:
    parts = measured(model_path, "prompt", "pass", "kernels", "history", "batch", "start")
    assert all(part.load and part.measurements for part in parts.values())
    assert len(parts["prompt"].measurements["ultrafast_ttft_seconds"].samples) == 1
    passes = parts["pass"].measurements
    assert passes["pass_of_4_over_ultrafast_token"].samples == [
        rows / one
        for rows, one in zip(
            passes["pass_of_4_seconds"].samples, passes["ultrafast_token_seconds"].samples, strict=True
        )
    ]
    assert len(parts["start"].measurements["start_to_first_token_seconds"].samples) == 2
    assert {name: [(bar.limit, bar.at_least) for bar in part.bars] for name, part in parts.items()} == {
        "prompt": [],  # as those of passes: beside llama.cpp
        "pass": [],
        "kernels": [(58.0, True), (27.0, True)],
        "history": [(0.6, True)],
        "batch": [(3.5, True)],
        "start": [(1.0, False)],
    }


def test_promises_beside_llama_cpp_are_judged_where_it_took_part(model_path: Path) -> None:
    ours = summarise([1.0, 3.0, 2.0])
    stage = Stage(
        ModelFile("a name", 1, KNOWN_MODELS[DEFAULT_MODEL].sha256), model_path, [], 2, 3, SMALL, model_path, ignore
    )
    part = replace(PARTS["pass"], measure=lambda _: {"pass_of_4_over_llama-cpp_token": ours})
    assert [(bar.limit, bar.measured, bar.met) for bar in part.result(stage).bars] == [(0.5, 2.0, False)]
    stage.model = ModelFile("another", 1, "0" * 64)  # of which nothing was promised
    assert not part.result(stage).bars


def test_random_weights_are_measured_against_the_bandwidth(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = random_model.Shape("Small", 32_100, 2_048, layers=2, width=256, feed_forward=512, heads=4, kv_heads=2)
    for size in ("1.1b", "8b"):
        monkeypatch.setitem(random_model.SHAPES, size, shape)
    parts = measured(model_path, "random-1.1b", "random-8b")
    for part, weight_type, rounds in zip(parts.values(), ("q4_k_m", "q4_0"), (2, 1), strict=True):
        found = part.measurements
        assert len(found["bandwidth_share"].samples) == rounds
        # Of the embedding a token reads one row.
        assert found["weights_per_token_bytes"].median < shape.file_bytes(weight_type) < found["file_bytes"].median
        assert [(bar.limit, bar.measured) for bar in part.bars] == [(0.85, found["bandwidth_share"].median)]
    monkeypatch.setattr(speed_measures, "check_memory", lambda _: machine.check_memory(1 << 60))
    with pytest.raises(ConfigurationError, match="GB of memory are free"):
        measured(model_path, "random-8b")


def test_a_part_that_is_not_known_is_refused_before_any_work() -> None:
    with pytest.raises(ConfigurationError, match="a part is one of standard, prompt, pass, kernels"):
        run_speed(SpeedOptions(parts=("standard", "\x1b[31mhostile")), progress=ignore)


def test_a_start_that_fails_is_one_line(model_path: Path, tmp_path: Path) -> None:
    stage = Stage(ModelFile("a name", 1, ""), tmp_path / "absent.gguf", [], 2, 1, SMALL, tmp_path, ignore)
    with pytest.raises(EngineError, match=r"^ultrafast run: "):
        PARTS["start"].measure(stage)
