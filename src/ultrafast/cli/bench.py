"""`ultrafast bench`: our engine beside its peers, on one file and one machine."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ultrafast.cli import options, output

if TYPE_CHECKING:
    from rich.table import Table

    from ultrafast.bench.results import Skipped

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


@app.command("speed", short_help="Decode, prefill and time to first token.")
def speed(
    *,
    model: options.Model = None,
    peer: Peers = None,
    threads: options.Threads = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            parser=options.whole_number(1, MAXIMUM_ROUNDS),
            metavar="N",
            help="Alternating rounds that count. Default: 7.",
        ),
    ] = None,
    output_path: Output = None,
    plot: Plot = None,
) -> None:
    """Decode, prefill and time to first token, alternating between the runtimes; medians with their ranges."""
    from ultrafast.bench.plot import check_plot, plot_speed
    from ultrafast.bench.results import write_result
    from ultrafast.bench.speed import DEFAULT_ROUNDS, SpeedOptions, run_speed
    from ultrafast.bench.tables import speed_table
    from ultrafast.cli.progress import download_progress

    if plot is not None:
        check_plot(plot)  # now, not after minutes of measuring
    chosen = SpeedOptions(
        model=model,
        peers=_peer_names(peer),
        threads=threads,
        rounds=DEFAULT_ROUNDS if rounds is None else rounds,
        command=_command("speed", model, peer, {"--threads": threads, "--rounds": rounds}),
    )
    with download_progress() as progress, _stages() as stage:
        result = run_speed(chosen, progress=stage, pull_progress=progress)
    _show(speed_table(result), result.skipped)
    if output_path is not None:
        write_result(result, output_path)
    if plot is not None:
        plot_speed(result, plot)


@app.command("fidelity", short_help="Closeness to a float32 forward pass.")
def fidelity(
    *,
    model: options.Model = None,
    peer: Peers = None,
    threads: options.Threads = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens",
            parser=options.whole_number(1, options.MAXIMUM_TOKENS),
            metavar="N",
            help="Tokens of the shipped text to score. Default: 20480.",
        ),
    ] = None,
    output_path: Output = None,
) -> None:
    """How close each runtime's distributions are to a float32 forward pass over the same weights.

    Exits with 1 where our engine misses what it promises.
    """
    from ultrafast.bench.fidelity import DEFAULT_TOKENS, FidelityOptions, run_fidelity
    from ultrafast.bench.results import write_result
    from ultrafast.bench.tables import fidelity_table
    from ultrafast.cli.progress import download_progress

    chosen = FidelityOptions(
        model=model,
        peers=_peer_names(peer),
        threads=threads,
        tokens=DEFAULT_TOKENS if tokens is None else tokens,
        command=_command("fidelity", model, peer, {"--threads": threads, "--tokens": tokens}),
    )
    with download_progress() as progress, _stages() as stage:
        result = run_fidelity(chosen, progress=stage, pull_progress=progress)
    _show(fidelity_table(result), result.skipped)
    for bar in result.bars:
        output.write(f"{'met' if bar.met else 'MISSED'}: {bar.name} {bar.measured:.4f}, at most {bar.limit}\n")
    if output_path is not None:
        write_result(result, output_path)
    if not all(bar.met for bar in result.bars):
        raise typer.Exit(EXIT_BAR_MISSED)


def _peer_names(chosen: list[str] | None) -> tuple[str, ...]:
    from ultrafast.bench.catalogue import DEFAULT_PEERS

    return DEFAULT_PEERS if chosen is None else tuple(name for name in chosen if name != NO_PEER)


def _command(verb: str, model: str | None, peers: list[str] | None, numbers: dict[str, int | None]) -> str:
    """The command as a reader would type it again; a model's path shrinks to its last part, which names no folder."""
    words = ["ultrafast", "bench", verb]
    if model is not None:
        words += ["--model", Path(model).name]
    for name in peers or ():
        words += ["--peer", name]
    for option, number in numbers.items():
        if number is not None:
            words += [option, str(number)]
    return shlex.join(words)


def _show(table: Table, skipped: list[Skipped]) -> None:
    from rich.console import Console

    # Rendered first, so that writing goes the way of every other answer.
    terminal = output.stdout_is_terminal()
    rendered = io.StringIO()
    Console(file=rendered, width=None if terminal else PLAIN_WIDTH, color_system=None).print(table)
    output.write(rendered.getvalue())
    for peer in skipped:
        output.note(f"{peer.name} was left out: {output.one_line(peer.reason)}")


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
