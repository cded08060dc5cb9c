"""Results as tables for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from ultrafast.bench.results import DECODE, METRICS
from ultrafast.bench.statistics import percentile

if TYPE_CHECKING:
    from ultrafast.bench.provenance import Provenance
    from ultrafast.bench.results import (
        FidelityResult,
        LoadResult,
        Metric,
        QuantisationResult,
        ServingResult,
        SpeedResult,
    )
    from ultrafast.bench.statistics import Summary

_SAMPLES_OF_A_PERCENTILE = 100  # below, the highest sample says as much


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


def parts_table(result: SpeedResult) -> Table:
    """Every part's samples, and below what was done."""
    table = Table(title=_title("Speed, part by part", result.provenance), title_justify="left", caption_justify="left")
    for column in ("part", "measured", "median (lowest–highest)", "samples"):
        table.add_column(column, justify="left" if column in ("part", "measured") else "right")
    for part in result.parts:
        for index, (name, summary) in enumerate(part.measurements.items()):
            figure = f"{summary.median:.4g} ({summary.minimum:.4g}–{summary.maximum:.4g})"
            if summary.minimum == summary.maximum >= 1e4:
                figure = f"{summary.median:,.0f}"
            table.add_row("" if index else part.name, name.replace("_", " "), figure, str(len(summary.samples)))
        table.add_section()
    table.caption = "\n".join(f"{part.name}: {part.load}." for part in result.parts)
    return table


def fidelity_table(result: FidelityResult) -> Table:
    """Perplexity and divergence from the reference."""
    table = Table(title=_title("Fidelity", result.provenance), title_justify="left", caption_justify="left")
    columns = ("runtime", "perplexity", "against reference", "mean KL", "99 % KL", "highest KL", "same top token")
    clear = result.clear
    for column in (*columns, "other, clear", "not ours, clear") if clear else columns:
        table.add_column(column, justify="left" if column == "runtime" else "right")
    table.add_row("reference, float32", f"{result.reference_perplexity:.4f}")
    for runtime in result.runtimes:
        table.add_row(
            runtime.name,
            f"{runtime.perplexity:.4f}",
            f"{runtime.perplexity_ratio - 1:+.2%}",
            f"{runtime.mean_kl:.5f} ± {runtime.mean_kl_standard_error:.5f}",
            f"{runtime.percentile_99_kl:.4f}",
            f"{runtime.maximum_kl:.3f}",
            f"{runtime.top1_agreement:.2%}",
            *((f"{clear.unlike_reference[runtime.name]}", f"{clear.unlike_ours[runtime.name]}") if clear else ()),
        )
    text = result.text
    table.caption = (
        f"{text.predicted_tokens:,} predicted tokens of {text.name} in sequences of {text.sequence_tokens}. "
        "KL(reference ‖ runtime) in nats over the whole vocabulary."
    )
    if clear:
        table.caption += (
            f" Clear: {clear.positions:,} positions where the reference's top token leads by more than "
            f"{clear.threshold:g} logits; counted is where a runtime's is another, and where it is not ours."
        )
    return table


def quantisation_table(result: QuantisationResult) -> Table:
    """Decode speed on every file that llama.cpp's quantiser wrote, and what it or our engine refused."""
    table = Table(title=_title("Quantisations", result.provenance), title_justify="left", caption_justify="left")
    for column in ("file type", "MB", "ultrafast, tokens/s", "llama.cpp, tokens/s", "ours ÷ it", "matrices", "remark"):
        table.add_column(column, justify="right" if column[-1:] == "s" and "/" in column else "left")
    for one in result.quantisations:
        figures = [_figure(runtime.measurements[DECODE.key], DECODE) for runtime in one.runtimes]
        ratio = _ratio(one.runtimes[1].speedup[DECODE.key]) if one.decode_ratio is not None else ""
        remark = (
            (one.refusal and f"llama.cpp: {one.refusal}")
            or one.failure
            or "; ".join(f"{peer.name}: {peer.reason}" for peer in one.skipped)
            or ("importances all equal" if one.importances else "")
        )
        kinds = " ".join(f"{count}×{kind}" for kind, count in one.tensor_types.items())
        size = f"{one.size_bytes / 1e6:.0f}" if one.size_bytes else ""
        table.add_row(one.name, size, *(*figures, "", "")[:2], ratio, kinds, remark)
    work = result.workload
    table.caption = (
        f"Every file type that llama.cpp's quantiser knows, requantised from {result.provenance.model.name}. "
        f"Median (lowest–highest) of {result.rounds} alternating rounds of {work.decode_tokens} tokens after "
        f"{work.decode_prompt_tokens}. A matrix whose rows are no multiple of a type's block is stored as another type."
    )
    return table


def load_table(result: LoadResult) -> Table:
    """Seconds to load and memory of the process, against the size of the file."""
    table = Table(title=_title("Load", result.provenance), title_justify="left", caption_justify="left")
    for column in ("weights", "file, MB", "load, s", "memory after, MB", "÷ file", "highest memory, MB", "÷ file"):
        table.add_column(column, justify="left" if column == "weights" else "right")
    size = result.provenance.model.size_bytes
    after, peak = result.memory_bytes, result.peak_memory_bytes
    table.add_row(
        result.weight_type,
        f"{size / 1e6:.0f}",
        f"{result.load_seconds.median:.2f} ({result.load_seconds.minimum:.2f}–{result.load_seconds.maximum:.2f})",
        f"{after.median / 1e6:.0f}",
        f"{after.median / size:.3f}",
        f"{peak.median / 1e6:.0f}",
        f"{peak.median / size:.3f}",
    )
    table.caption = (
        f"{result.parameters / 1e9:.2f} billion random weights, context of {result.context} tokens. Median "
        f"(lowest–highest) of {len(result.load_seconds.samples)} fresh processes, the file read before. "
        "Memory: resident, the mapped file included."
    )
    return table


def serving_table(result: ServingResult) -> Table:
    """Every part's samples, and below what was asked."""
    table = Table(title=_title("Serving", result.provenance), title_justify="left", caption_justify="left")
    for column in ("part", "measured", "median (lowest–highest)", "99 %", "samples", "client, CPUs"):
        table.add_column(column, justify="left" if column in ("part", "measured") else "right")
    for part in result.parts:
        share = f"{part.client_cpu_share:.2f}"
        for index, (name, summary) in enumerate(part.measurements.items()):
            samples = summary.samples
            highest = f"{percentile(samples, 0.99):.4g}" if len(samples) >= _SAMPLES_OF_A_PERCENTILE else ""
            figure = f"{summary.median:.4g} ({summary.minimum:.4g}–{summary.maximum:.4g})"
            heading = ("", "") if index else (part.name, share)
            table.add_row(heading[0], name.replace("_", " "), figure, highest, str(len(samples)), heading[1])
        table.add_section()
    loads = "\n".join(f"{part.name}: {part.load}." for part in result.parts)
    table.caption = (
        f"{loads}\nA real server, {result.threads} threads, context of {result.context} tokens, answers "
        "greedy; the load generator is a raw asyncio HTTP/1.1 client without an SDK, on the same machine."
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
