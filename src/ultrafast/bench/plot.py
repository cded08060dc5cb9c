"""A result as one picture: bars for medians, their rounds as dots."""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ultrafast.bench.results import DECODE, METRICS
from ultrafast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ultrafast.bench.provenance import Provenance
    from ultrafast.bench.results import (
        Bar,
        Metric,
        QuantisationResult,
        QuantisationSpeed,
        RuntimeSpeed,
        ServingResult,
        SpeedResult,
    )

_OURS, _PEER, _DOT, _QUIET, _MISSED = "#0b6e4f", "#b8c4cc", "#22303c", "#5a6872", "#b3341f"


def check_plot(path: Path) -> None:
    """Raise ``ConfigurationError`` where a plot cannot be drawn to ``path``."""
    if path.suffix not in {".svg", ".png"}:
        raise ConfigurationError("a plot is a file with the suffix .svg or .png")
    if find_spec("matplotlib") is None:
        raise ConfigurationError("a plot needs matplotlib: pip install 'ultrafast[bench]'")


def plot_speed(result: SpeedResult, path: Path) -> None:
    """Draw a speed result to ``path``; its suffix, ``.svg`` or ``.png``, chooses the format.

    The standard part alone is drawn as speeds, several parts as their promises.

    Raises:
        ConfigurationError: matplotlib is not installed, or the file cannot be written.
    """
    if len(result.parts) > 1 or not result.runtimes:
        _plot_promises(result, f"Medians of {result.rounds} rounds, fewer where one takes minutes.", path)
        return
    with _figure(path, 1.7 + 0.42 * len(result.runtimes)) as figure:
        panels = figure.subplots(1, len(METRICS), sharey=True)
        for axes, metric in zip(panels, METRICS, strict=True):
            _draw_panel(axes, result, metric)
        footnote = f"Bars: medians of {result.rounds} alternating rounds, dots: the rounds."
        _label(figure, result.provenance, result.runtimes, footnote)


def plot_quantisations(result: QuantisationResult, path: Path) -> None:
    """Draw decode speed by file type, ours above llama.cpp's; otherwise as ``plot_speed``."""
    shown = [one for one in result.quantisations if one.runtimes]
    with _figure(path, 1.9 + 0.36 * len(shown)) as figure:
        axes = figure.subplots()
        _draw_types(axes, shown)
        work = result.workload
        axes.set_title(
            f"Decode, tokens/s ({work.decode_tokens} after {work.decode_prompt_tokens} tokens), by file type; "
            "higher is better",
            loc="left",
            fontsize=10,
        )
        footnote = (
            f"Green: ours, grey: llama.cpp; medians of {result.rounds} alternating rounds, dots: the rounds; "
            "×: ours ÷ llama.cpp's."
        )
        _label(figure, result.provenance, [runtime for one in shown for runtime in one.runtimes], footnote)


def plot_serving(result: ServingResult, path: Path) -> None:
    """Draw every bar as how many times better than promised it was measured; otherwise as ``plot_speed``."""
    _plot_promises(result, f"{result.threads} threads; the loads are in the result.", path)


def _plot_promises(result: SpeedResult | ServingResult, footnote: str, path: Path) -> None:
    bars = result.bars
    with _figure(path, 1.9 + 0.36 * len(bars)) as figure:
        axes = figure.subplots()
        margins = [_margin(bar) for bar in bars]
        colours = [_OURS if bar.met else _MISSED for bar in bars]
        axes.barh(range(len(bars)), [margin - 1 for margin in margins], left=1, color=colours, height=0.62)
        axes.axvline(1, color=_DOT, linewidth=1)
        axes.set_xscale("log")
        lowest, highest = min([*margins, 1.0]), max([*margins, 1.0])
        axes.set_xlim(lowest / 1.1, highest * (highest / lowest) ** 0.3 * 1.1)
        for row, (bar, margin) in enumerate(zip(bars, margins, strict=True)):
            limit = f"{bar.measured:.3g}, {'at least' if bar.at_least else 'at most'} {bar.limit:g}"
            axes.text(max(margin, 1.0) * 1.02, row, limit, va="center", fontsize=9)
        axes.set_yticks(range(len(bars)), [bar.name for bar in bars])
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.set_title("Times better than promised; right of 1 a promise is kept", loc="left", fontsize=10)
        _label(figure, result.provenance, [], footnote)


def _margin(bar: Bar) -> float:
    ratio = bar.measured / bar.limit
    return max(ratio if bar.at_least else 1 / max(ratio, 1e-3), 1e-3)


@contextmanager
def _figure(path: Path, height: float) -> Iterator[Figure]:
    """A figure to draw on, written to ``path`` afterwards."""
    check_plot(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Text stays text and ids stay put, so that a redrawn SVG differs only where its figures do.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "ultrafast", "font.size": 10}):
        figure = Figure(figsize=(11, height), layout="constrained")
        yield figure
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
        except OSError as error:
            raise ConfigurationError(f"cannot write the plot: {error.strerror}") from error


def _draw_panel(axes: Axes, result: SpeedResult, metric: Metric) -> None:
    names = [runtime.name for runtime in result.runtimes]
    summaries = [runtime.measurements[metric.key] for runtime in result.runtimes]
    scale = 1000 if metric.unit == "s" else 1
    rows = range(len(names))
    colours = [_OURS] + [_PEER] * (len(names) - 1)
    axes.barh(rows, [scale * summary.median for summary in summaries], color=colours, height=0.62)
    highest = scale * max(summary.maximum for summary in summaries)
    for row, summary in enumerate(summaries):
        samples = [scale * sample for sample in summary.samples]
        axes.plot(samples, [row] * len(samples), ".", color=_DOT, markersize=3, alpha=0.5)
        axes.text(max(samples) + 0.03 * highest, row, f"{scale * summary.median:.0f}", va="center")
    axes.set_yticks(rows, names)
    axes.set_xlim(0, 1.22 * highest)
    axes.set_title(_panel_title(result, metric), loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if not axes.yaxis_inverted():  # the panels share this axis
        axes.invert_yaxis()


def _panel_title(result: SpeedResult, metric: Metric) -> str:
    work = result.workload
    tokens = {
        "decode_tokens_per_second": f"{work.decode_tokens} after {work.decode_prompt_tokens} tokens",
        "prefill_tokens_per_second": f"{work.prefill_tokens} tokens",
        "ttft_seconds": f"{work.ttft_prompt_tokens} tokens",
    }
    better = "higher is better" if metric.higher_is_better else "lower is better"
    unit = "ms" if metric.unit == "s" else metric.unit
    return f"{metric.title}, {unit} ({tokens[metric.key]})\n{better}"


def _draw_types(axes: Axes, quantisations: list[QuantisationSpeed]) -> None:
    """Two bars a row; beside them the ratio of the two."""
    highest = max((run.measurements[DECODE.key].maximum for one in quantisations for run in one.runtimes), default=1.0)
    for row, one in enumerate(quantisations):
        for side, (runtime, colour) in enumerate(zip(one.runtimes, (_OURS, _PEER), strict=False)):
            summary = runtime.measurements[DECODE.key]
            place = row - 0.19 + 0.38 * side
            axes.barh(place, summary.median, color=colour, height=0.36)
            axes.plot(summary.samples, [place] * len(summary.samples), ".", color=_DOT, markersize=3, alpha=0.5)
        if one.decode_ratio is not None:
            longest = max(runtime.measurements[DECODE.key].maximum for runtime in one.runtimes)
            axes.text(longest + 0.015 * highest, row, f"{one.decode_ratio:.2f} ×", va="center", fontsize=9)
    axes.set_yticks(range(len(quantisations)), [one.name for one in quantisations])
    axes.set_xlim(0, 1.1 * highest)
    axes.set_ylim(len(quantisations) - 0.4, -0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _label(figure: Figure, provenance: Provenance, runtimes: Sequence[RuntimeSpeed], footnote: str) -> None:
    """What was measured above the panels; how, and with what, below."""
    threads = f", {runtimes[0].threads} threads" if runtimes else ""
    title = f"{provenance.model.name}{threads} on {provenance.machine.cpu_model}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    components = dict(item for runtime in runtimes for item in runtime.versions.items())
    versions = ", ".join(f"{component} {version}" for component, version in components.items())
    bandwidth = provenance.read_bandwidth_bytes_per_second / 1e9
    text = f"{footnote} {bandwidth:.1f} GB/s read. {provenance.started_at[:10]}.\n{versions}"
    figure.supxlabel(text, x=0.01, ha="left", fontsize=8, color=_QUIET, linespacing=1.4)
