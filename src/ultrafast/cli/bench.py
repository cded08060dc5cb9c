"""`ultrafast bench`: our engine beside its peers, on one file and one machine."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ultrafast.cli import options, output

if TYPE_CHECKING:
    from rich.table import Table

    from ultrafast.bench.results import Bar, Result, Skipped

__all__ = ["app"]

PLAIN_WIDTH = 160
EXIT_BAR_MISSED = 1
NO_PEER = "none"
MAXIMUM_ROUNDS = 10_000

app = typer.Typer(
    help="Measure our engine beside its peers, each in an environment made on demand.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Peers = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        metavar="NAME",
        help="A runtime to measure beside ours: llama-cpp (default), transformers-bfloat16, transformers-float32, "
        "openvino-genai, or none; may be repeated. Installed at first use, which takes minutes.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", metavar="FILE", help="Write the result as JSON, with the command, machine and date."),
]
Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Draw the result as .svg or .png (needs matplotlib).")
]


def _rounds(meaning: str) -> Any:
    return typer.Option("--rounds", parser=options.whole_number(1, MAXIMUM_ROUNDS), metavar="N", help=meaning)


@app.command("speed", short_help="Decode, prefill and time to first token.")
def speed(
    *,
    model: options.Model = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            metavar="NAME",
            help="standard (default), prompt, pass, kernels, history, batch, q4_0, random-1.1b, random-8b or start; "
            "may be repeated.",
        ),
    ] = None,
    peer: Peers = None,
    threads: options.Threads = None,
    rounds: Annotated[int | None, _rounds("Alternating rounds that count. Default: 7.")] = None,
    output_path: Output = None,
    plot: Plot = None,
) -> None:
    """Decode, prefill and time to first token, alternating between the runtimes; medians with their ranges.

    Further parts measure what else the engine is held to. Exits with 1 where it misses what it promises.
    """
    from ultrafast.bench.plot import plot_speed
    from ultrafast.bench.speed import DEFAULT_ROUNDS, SpeedOptions, run_speed
    from ultrafast.bench.speed_parts import STANDARD
    from ultrafast.bench.tables import parts_table, speed_table
    from ultrafast.cli.progress import download_progress

    _check(plot)
    chosen = SpeedOptions(
        model=model,
        parts=(STANDARD,) if part is None else tuple(part),
        peers=_peer_names(peer),
        threads=threads,
        rounds=DEFAULT_ROUNDS if rounds is None else rounds,
        command=_command("speed", model, peer, {"--part": part, "--threads": threads, "--rounds": rounds}),
    )
    with download_progress() as progress, _stages() as stage:
        result = run_speed(chosen, progress=stage, pull_progress=progress)
    if result.runtimes:
        _show(speed_table(result))
    _show(parts_table(result), result.skipped)
    _keep(result, output_path, plot, plot_speed)
    _judge(result.bars)


@app.command("fidelity", short_help="Closeness to a float32 forward pass.")
def fidelity(
    *,
    model: options.Model = None,
    peer: Peers = None,
    threads: options.Threads = None,
    text: Annotated[
        str | None,
        typer.Option("--text", metavar="NAME", help="The shipped text to score: english (default) or chinese."),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens",
            parser=options.whole_number(1, options.MAXIMUM_TOKENS),
            metavar="N",
            help="Tokens of the text to score. Default: 20480.",
        ),
    ] = None,
    output_path: Output = None,
) -> None:
    """How close each runtime's distributions are to a float32 forward pass over the same weights.

    Exits with 1 where our engine misses what it promises.
    """
    from ultrafast.bench.fidelity import DEFAULT_TOKENS, FidelityOptions, run_fidelity
    from ultrafast.bench.tables import fidelity_table
    from ultrafast.bench.text import DEFAULT_TEXT
    from ultrafast.cli.progress import download_progress

    chosen = FidelityOptions(
        text=text or DEFAULT_TEXT,
        model=model,
        peers=_peer_names(peer),
        threads=threads,
        tokens=DEFAULT_TOKENS if tokens is None else tokens,
        command=_command("fidelity", model, peer, {"--threads": threads, "--text": text, "--tokens": tokens}),
    )
    with download_progress() as progress, _stages() as stage:
        result = run_fidelity(chosen, progress=stage, pull_progress=progress)
    _show(fidelity_table(result), result.skipped)
    _keep(result, output_path)
    _judge(result.bars)


@app.command("quantisations", short_help="Decode speed on every type of llama.cpp's quantiser.")
def quantisations(
    *,
    model: options.Model = None,
    file_type: Annotated[
        list[str] | None,
        typer.Option(
            "--type", metavar="NAME", help="A file type such as Q4_K_M; may be repeated. Default: every one it knows."
        ),
    ] = None,
    threads: options.Threads = None,
    rounds: Annotated[int | None, _rounds("Alternating rounds that count. Default: 3.")] = None,
    output_path: Output = None,
    plot: Plot = None,
) -> None:
    """Decode speed beside llama.cpp on every file type that its own quantiser writes of the model.

    Exits with 1 where our engine does not run one, or is slower.
    """
    from ultrafast.bench.plot import plot_quantisations
    from ultrafast.bench.quantisations import DEFAULT_ROUNDS, QuantisationOptions, run_quantisations
    from ultrafast.bench.tables import quantisation_table
    from ultrafast.cli.progress import download_progress

    _check(plot)
    chosen = QuantisationOptions(
        model=model,
        types=None if file_type is None else tuple(file_type),
        threads=threads,
        rounds=DEFAULT_ROUNDS if rounds is None else rounds,
        command=_command("quantisations", model, None, {"--type": file_type, "--threads": threads, "--rounds": rounds}),
    )
    with download_progress() as progress, _stages() as stage:
        result = run_quantisations(chosen, progress=stage, pull_progress=progress)
    _show(quantisation_table(result))
    _keep(result, output_path, plot, plot_quantisations)
    _judge(result.bars)


@app.command("load", short_help="Seconds and memory to load a model of 1.1 billion weights.")
def load(
    *,
    weight_type: Annotated[
        str | None,
        typer.Option("--type", metavar="NAME", help="How weights are stored: q4_0, q8_0 (default), f16 or q4_k_m."),
    ] = None,
    threads: options.Threads = None,
    rounds: Annotated[int | None, _rounds("Fresh processes that load it. Default: 3.")] = None,
    output_path: Output = None,
) -> None:
    """Seconds to load a model of 1.1 billion random weights from a warm disk, and the memory that it holds.

    Exits with 1 where our engine misses what it promises.
    """
    from ultrafast.bench.load import DEFAULT_ROUNDS, LoadOptions, run_load
    from ultrafast.bench.tables import load_table
    from ultrafast.cli.progress import download_progress

    default = LoadOptions()
    chosen = LoadOptions(
        weight_type=default.weight_type if weight_type is None else weight_type.lower(),
        threads=threads,
        rounds=DEFAULT_ROUNDS if rounds is None else rounds,
        command=_command("load", None, None, {"--type": weight_type, "--threads": threads, "--rounds": rounds}),
    )
    with download_progress() as progress, _stages() as stage:
        result = run_load(chosen, progress=stage, pull_progress=progress)
    _show(load_table(result))
    _keep(result, output_path)
    _judge(result.bars)


@app.command("serving", short_help="What a server keeps of its promises about tiers.")
def serving(
    *,
    model: options.Model = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            metavar="NAME",
            help="stream, gateway, turn, beside, flood, refusal or overload; may be repeated. Default: all of them.",
        ),
    ] = None,
    threads: options.Threads = None,
    output_path: Output = None,
    plot: Plot = None,
) -> None:
    """Speed, waiting, refusals and goodput over HTTP, on real servers with the load that the result states.

    Exits with 1 where a server misses what it promises.
    """
    from ultrafast.bench.plot import plot_serving
    from ultrafast.bench.serving import ServingOptions, run_serving
    from ultrafast.bench.tables import serving_table
    from ultrafast.cli.progress import download_progress

    _check(plot)
    chosen = ServingOptions(
        model=model,
        parts=None if part is None else tuple(part),
        threads=threads,
        command=_command("serving", model, None, {"--part": part, "--threads": threads}),
    )
    with download_progress() as progress, _stages() as stage:
        result = run_serving(chosen, progress=stage, pull_progress=progress)
    _show(serving_table(result))
    _keep(result, output_path, plot, plot_serving)
    _judge(result.bars)


def _peer_names(chosen: list[str] | None) -> tuple[str, ...]:
    from ultrafast.bench.catalogue import DEFAULT_PEERS

    return DEFAULT_PEERS if chosen is None else tuple(name for name in chosen if name != NO_PEER)


def _command(
    verb: str, model: str | None, peers: list[str] | None, values: dict[str, int | str | list[str] | None]
) -> str:
    """The command as a reader would type it again; a model's path shrinks to its last part, which names no folder."""
    words = ["ultrafast", "bench", verb]
    if model is not None:
        words += ["--model", Path(model).name]
    for option, value in {"--peer": peers, **values}.items():
        for each in value if isinstance(value, list) else [value]:
            if each is not None:
                words += [option, str(each)]
    return shlex.join(words)


def _check(plot: Path | None) -> None:
    """Now, not after minutes of measuring."""
    from ultrafast.bench.plot import check_plot

    if plot is not None:
        check_plot(plot)


def _keep(
    result: Result,
    output_path: Path | None,
    plot: Path | None = None,
    draw: Callable[[Result, Path], None] | None = None,
) -> None:
    """Write and draw the result where that was asked for."""
    from ultrafast.bench.results import write_result

    if output_path is not None:
        write_result(result, output_path)
    if plot is not None and draw is not None:
        draw(result, plot)


def _show(table: Table, skipped: Sequence[Skipped] = ()) -> None:
    from rich.console import Console

    # Rendered first, so that writing goes the way of every other answer.
    terminal = output.stdout_is_terminal()
    rendered = io.StringIO()
    Console(file=rendered, width=None if terminal else PLAIN_WIDTH, color_system=None).print(table)
    output.write(rendered.getvalue())
    for peer in skipped:
        output.note(f"{peer.name} was left out: {output.one_line(peer.reason)}")


def _judge(bars: list[Bar]) -> None:
    """Say which promises were kept, and exit with 1 where one was not."""
    for bar in bars:
        verdict, side = "met" if bar.met else "MISSED", "at least" if bar.at_least else "at most"
        output.write(f"{verdict}: {bar.name} {bar.measured:.4g}, {side} {bar.limit:g}\n")
    if not all(bar.met for bar in bars):
        raise typer.Exit(EXIT_BAR_MISSED)


@contextmanager
def _stages() -> Iterator[Callable[[str], None]]:
    """Say what is going on: a moving line in a terminal, elsewhere one line for each kind of work."""
    if not output.stderr_is_terminal():
        latest = ""

        def say(text: str) -> None:
            nonlocal latest
            kind = text.partition(":")[0]
            if kind != latest:
                output.note(output.one_line(kind))
            latest = kind

        yield say
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    with console.status("starting", spinner="line") as status:
        # Plain text: what pip prints is no markup, and a line longer than the terminal would leave traces.
        yield lambda text: status.update(Text(output.one_line(text)[: console.width - 4]))
