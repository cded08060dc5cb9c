"""How a download and a load show on standard error: moving in a terminal, a few plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TimeRemainingColumn, TransferSpeedColumn

from ultrafast.cli import output

__all__ = ["download_progress", "loading"]

PLAIN_STEP_PERCENT = 25


class DownloadProgress:
    """Tells a person how a download goes; it shows nothing at all when nothing is downloaded."""

    def __init__(self, bar: Progress | None) -> None:
        self._bar = bar
        self._task: TaskID | None = None
        self._next_percent = PLAIN_STEP_PERCENT

    def message(self, text: str) -> None:
        """One line."""
        if self._bar is None:
            output.note(text)
        else:
            self._bar.console.print(output.one_line(text), markup=False, highlight=False, soft_wrap=True)

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        """``done_bytes`` of about ``total_bytes`` have arrived."""
        if self._bar is not None:
            if self._task is None:
                self._bar.start()
                self._task = self._bar.add_task("download", total=total_bytes)
            self._bar.update(self._task, completed=done_bytes, total=total_bytes)
            return
        percent = 100 * done_bytes // max(1, total_bytes)
        if percent >= self._next_percent:
            output.note(f"{percent} % of {total_bytes / 1e6:.0f} MB")
            self._next_percent = percent - percent % PLAIN_STEP_PERCENT + PLAIN_STEP_PERCENT


@contextmanager
def download_progress() -> Iterator[DownloadProgress]:
    """A listener for `resolve_model` and `pull_model`."""
    if not output.stderr_is_terminal():
        yield DownloadProgress(None)
        return
    bar = Progress(
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    try:
        yield DownloadProgress(bar)
    finally:
        bar.stop()


@contextmanager
def loading(text: str) -> Iterator[Callable[[str], None]]:
    """A moving line in a terminal while something takes a moment, and a way to say which stage it is at."""
    if not output.stderr_is_terminal():
        yield lambda stage: None
        return
    text = output.one_line(text)
    with Console(stderr=True).status(text, spinner="line") as status:
        yield lambda stage: status.update(f"{text}: {stage}")
