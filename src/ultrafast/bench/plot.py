"""A result as one picture: a panel per metric, a bar per runtime, its rounds as dots."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ultrafast.bench.results import METRICS
from ultrafast.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from ultrafast.bench.results import Metric, SpeedResult

_OURS, _PEER, _DOT, _QUIET = "#0b6e4f", "#b8c4cc", "#22303c", "#5a6872"


def check_plot(path: Path) -> None:
    """Raise ``ConfigurationError`` where a plot cannot be drawn to ``path``."""
    if path.suffix not in {".svg", ".png"}:
        raise ConfigurationError("a plot is a file with the suffix .svg or .png")
    if find_spec("matplotlib") is None:
        raise ConfigurationError("a plot needs matplotlib: pip install 'ultrafast[bench]'")


def plot_speed(result: SpeedResult, path: Path) -> None:
    """Draw a speed result to ``path``; its suffix, ``.svg`` or ``.png``, chooses the format.

    Raises:
        ConfigurationError: matplotlib is not installed, or the file cannot be written.
    """
    check_plot(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Text stays text and ids stay put, so that a redrawn SVG differs only where its figures do.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "ultrafast", "font.size": 10}):
        figure = Figure(figsize=(11, 1.7 + 0.42 * len(result.runtimes)), layout="constrained")
        panels = figure.subplots(1, len(METRICS), sharey=True)
        for axes, metric in zip(panels, METRICS, strict=True):
            _draw_panel(axes, result, metric)
        figure.suptitle(_title(result), x=0.01, ha="left", fontsize=11, fontweight="bold")
        figure.supxlabel(_footnote(result), x=0.01, ha="left", fontsize=8, color=_QUIET, linespacing=1.4)
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


def _title(result: SpeedResult) -> str:
    provenance = result.provenance
    machine = provenance.machine
    return f"{provenance.model.name}, {result.runtimes[0].threads} threads of {machine.cpu_model}"


def _footnote(result: SpeedResult) -> str:
    provenance = result.provenance
    components = dict(item for runtime in result.runtimes for item in runtime.versions.items())
    versions = ", ".join(f"{component} {version}" for component, version in components.items())
    return (
        f"Bars: medians of {result.rounds} alternating rounds, dots: the rounds. "
        f"{provenance.read_bandwidth_bytes_per_second / 1e9:.1f} GB/s read. {provenance.started_at[:10]}.\n{versions}"
    )
