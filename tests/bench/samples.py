"""Results as a run would leave them, with figures that are easy to check."""

from __future__ import annotations

from ultrafast.bench.results import METRICS, RuntimeFidelity, RuntimeSpeed
from ultrafast.bench.statistics import paired_speedup, summarise


def runtime_speed(name: str, scale: float) -> RuntimeSpeed:
    samples = {metric: [scale * rate for rate in (101.0, 99.0, 100.0)] for metric in METRICS}
    ours = [101.0, 99.0, 100.0]
    return RuntimeSpeed(
        name=name,
        versions={name: "1.0"},
        detail="",
        threads=2,
        load_seconds=0.5,
        idle_cpu_share=0.0,
        equal_tokens=129,
        measurements={metric.key: summarise(samples[metric]) for metric in METRICS},
        speedup={
            metric.key: paired_speedup(ours, samples[metric], higher_is_better=metric.higher_is_better)
            for metric in METRICS
            if name != "ultrafast"
        },
    )


def runtime_fidelity(name: str, perplexity_ratio: float, mean_kl: float) -> RuntimeFidelity:
    return RuntimeFidelity(name, {}, "", 20 * perplexity_ratio, perplexity_ratio, mean_kl, 1e-5, 0.02, 0.3, 0.967)
