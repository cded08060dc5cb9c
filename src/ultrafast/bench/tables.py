"""Results as tables for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from ultrafast.bench.results import METRICS

if TYPE_CHECKING:
    from ultrafast.bench.provenance import Provenance
    from ultrafast.bench.results import FidelityResult, Metric, SpeedResult
    from ultrafast.bench.statistics import Summary


def speed_table(result: SpeedResult) -> Table:
    """Medians with their ranges, and how many times better ours was in the same round."""
    table = Table(title=_title("Speed", result.provenance), title_justify="left", caption_justify="left")
    table.add_column("runtime")
    for metric in METRICS:
        table.add_column(f"{metric.title}, {metric.unit}", justify="right")
        table.add_column("ours ÷ it", justify="right")
    for runtime in result.runtimes:
        cells = [runtime.name]
        for metric in METRICS:
            cells.append(_figure(runtime.measurements[metric.key], metric))
            cells.append(_ratio(runtime.speedup[metric.key]) if metric.key in runtime.speedup else "")
        table.add_row(*cells)
    work = result.workload
    table.caption = (
        f"Median (lowest–highest) of {result.rounds} alternating rounds, {result.runtimes[0].threads} threads. "
        f"Decode: {work.decode_tokens} tokens after {work.decode_prompt_tokens}. "
        f"Prefill: {work.prefill_tokens} tokens. TTFT: {work.ttft_prompt_tokens} tokens. Above 1 × ours is faster."
    )
    return table


def fidelity_table(result: FidelityResult) -> Table:
    """Perplexity and divergence from the reference."""
    table = Table(title=_title("Fidelity", result.provenance), title_justify="left", caption_justify="left")
    for column in ("runtime", "perplexity", "against reference", "mean KL", "99 % KL", "highest KL", "same top token"):
        table.add_column(column, justify="left" if column == "runtime" else "right")
    table.add_row("reference, float32", f"{result.reference_perplexity:.4f}", "", "", "", "", "")
    for runtime in result.runtimes:
        table.add_row(
            runtime.name,
            f"{runtime.perplexity:.4f}",
            f"{runtime.perplexity_ratio - 1:+.2%}",
            f"{runtime.mean_kl:.5f} ± {runtime.mean_kl_standard_error:.5f}",
            f"{runtime.percentile_99_kl:.4f}",
            f"{runtime.maximum_kl:.3f}",
            f"{runtime.top1_agreement:.2%}",
        )
    text = result.text
    table.caption = (
        f"{text.predicted_tokens:,} predicted tokens of {text.name} in sequences of {text.sequence_tokens}. "
        "KL(reference ‖ runtime) in nats over the whole vocabulary."
    )
    return table


def _title(kind: str, provenance: Provenance) -> str:
    machine = provenance.machine
    bandwidth = provenance.read_bandwidth_bytes_per_second / 1e9
    return (
        f"{kind}: {provenance.model.name} on {machine.cpu_model}, {machine.usable_cpus:g} CPUs, "
        f"{bandwidth:.1f} GB/s, {provenance.started_at[:10]}"
    )


def _figure(summary: Summary, metric: Metric) -> str:
    digits = 1 if metric.higher_is_better else 3
    return f"{summary.median:.{digits}f} ({summary.minimum:.{digits}f}–{summary.maximum:.{digits}f})"


def _ratio(summary: Summary) -> str:
    return f"{summary.median:.2f} × ({summary.minimum:.2f}–{summary.maximum:.2f})"
