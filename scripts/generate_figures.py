"""Write the README's figures from benchmarks/results; with `--check`, only say whether they are up to date."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ultrafast.bench.provenance import Provenance
from ultrafast.bench.results import DECODE, METRICS, FidelityResult, ServingResult, SpeedResult, read_result

TARGET = Path("README.md")
RESULTS = Path("benchmarks/results")
SPEED, FIDELITY, PLOT = RESULTS / "speed.json", RESULTS / "fidelity.json", RESULTS / "speed.svg"
SERVING = RESULTS / "serving.json"
BLOCK = re.compile(r"(<!-- figures:begin[^\n]*-->\n).*?(<!-- figures:end -->)", re.DOTALL)


def circumstances(provenance: Provenance) -> str:
    machine = provenance.machine
    largest = max(machine.caches, key=lambda cache: cache.level, default=None)
    cache = f", {largest.size_bytes >> 20} MB level-{largest.level} cache" if largest else ""
    return (
        f"{provenance.model.name}, {machine.cpu_model}, {machine.usable_cpus:g} CPUs{cache}, "
        f"{provenance.read_bandwidth_bytes_per_second / 1e9:.1f} GB/s read; {provenance.started_at[:10]}; "
        f"`{provenance.command}`"
    )


def speed_lines(result: SpeedResult) -> list[str]:
    work = result.workload
    lines = [
        "| | decode, tokens/s | prefill, tokens/s | TTFT, ms | decode, ours ÷ it |",
        "|---|---:|---:|---:|---:|",
    ]
    for runtime in result.runtimes:
        decode, prefill, ttft = (runtime.measurements[metric.key].median for metric in METRICS)
        speedup = runtime.speedup.get(DECODE.key)
        ratio = f"{speedup.median:.2f} ({speedup.minimum:.2f}–{speedup.maximum:.2f})" if speedup else ""
        versions = " ".join(runtime.versions.values())
        lines.append(f"| {runtime.name} {versions} | {decode:.1f} | {prefill:.0f} | {1000 * ttft:.0f} | {ratio} |")
    return [
        *lines,
        "",
        f"Decode: {work.decode_tokens} tokens after {work.decode_prompt_tokens}; prefill: {work.prefill_tokens}; time "
        f"to the first token: {work.ttft_prompt_tokens}. {result.runtimes[0].threads} threads, medians of "
        f"{result.rounds} alternating rounds. {circumstances(result.provenance)}.",
    ]


def fidelity_lines(result: FidelityResult) -> list[str]:
    lines = [
        "| | perplexity | against float32 | mean KL, nats | same top token |",
        "|---|---:|---:|---:|---:|",
        f"| float32 reference | {result.reference_perplexity:.3f} | | | |",
    ] + [
        f"| {runtime.name} {' '.join(runtime.versions.values())} | {runtime.perplexity:.3f} "
        f"| {runtime.perplexity_ratio - 1:+.2%} | {runtime.mean_kl:.5f} | {runtime.top1_agreement:.1%} |"
        for runtime in result.runtimes
    ]
    text = result.text
    return [*lines, "", f"{text.predicted_tokens:,} predicted tokens of English. {circumstances(result.provenance)}."]


def serving_lines(result: ServingResult) -> list[str]:
    lines = ["| Tiers and gateway, over HTTP | measured | held to |", "|---|---:|---:|"] + [
        f"| {bar.name} | {bar.measured:.3g} | {'≥' if bar.at_least else '≤'} {bar.limit:.3g} |" for bar in result.bars
    ]
    return [*lines, "", f"{circumstances(result.provenance)}. What was asked: `benchmarks/README.md`."]


def figures() -> str:
    parts: list[str] = []
    if SPEED.is_file():
        parts += [*speed_lines(read_result(SPEED, SpeedResult)), ""]
    if PLOT.is_file():
        parts += [f"![Speed beside the peers]({PLOT.as_posix()})", ""]
    if FIDELITY.is_file():
        parts += [*fidelity_lines(read_result(FIDELITY, FidelityResult)), ""]
    if SERVING.is_file():
        parts += serving_lines(read_result(SERVING, ServingResult))
    return "\n".join(parts).strip() or "No results are committed yet."


def main() -> int:
    page = TARGET.read_text(encoding="utf-8")
    generated, count = BLOCK.subn(lambda block: f"{block[1]}{figures()}\n{block[2]}", page)
    if count != 1:
        print(f"{TARGET} must have one block of figures")
        return 1
    if sys.argv[1:] == ["--check"]:
        print(f"{TARGET} is {'up to date' if page == generated else 'stale: run scripts/generate_figures.py'}")
        return int(page != generated)
    TARGET.write_text(generated, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
