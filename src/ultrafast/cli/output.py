"""What commands show: answers on standard output, everything about them on standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn, TextIO

from ultrafast.errors import ConfigurationError, UltrafastError

__all__ = [
    "OutputClosed",
    "error",
    "flush",
    "note",
    "one_line",
    "prepare_streams",
    "printable",
    "stderr_is_terminal",
    "stdout_is_terminal",
    "write",
]


class OutputClosed(Exception):  # noqa: N818 - not a fault: the reader has seen enough
    """The reader of standard output is gone (``ultrafast run … | head``); the command ends quietly."""


def prepare_streams() -> None:
    """Make both streams able to carry any text, whatever the locale: what they cannot encode becomes ``?``.

    Raises:
        ConfigurationError: standard output is closed; its number would go to the next file or socket opened.
    """
    if sys.stdout is None:
        raise ConfigurationError("standard output is closed; to throw an answer away, send it to /dev/null")
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def stdout_is_terminal() -> bool:
    """True when a person, not a file or a pipe, reads standard output."""
    return _is_terminal(sys.stdout)


def stderr_is_terminal() -> bool:
    """True when a person, not a file or a pipe, reads standard error."""
    return _is_terminal(sys.stderr)


def _is_terminal(stream: TextIO) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def printable(text: str) -> str:
    """``text`` without the control characters that could steer a terminal; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        character if character in "\n\t" or not _is_control(character) else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )


def _is_control(character: str) -> bool:
    return character < " " or "\x7f" <= character <= "\x9f"


def write(text: str) -> None:
    """Write an answer, or a part of it, at once; a terminal never receives control characters from a model.

    Raises:
        OutputClosed: the reader is gone.
        UltrafastError: standard output takes no more, as on a full disk.
    """
    try:
        sys.stdout.write(printable(text) if stdout_is_terminal() else text)
        sys.stdout.flush()
    except OSError as failure:
        _give_up_stdout(failure)


def flush() -> None:
    """Flush standard output, so that a failure is met here (raising as `write` does), not at the interpreter's end."""
    try:
        sys.stdout.flush()
    except OSError as failure:
        _give_up_stdout(failure)


def _give_up_stdout(failure: OSError) -> NoReturn:
    # What is still buffered goes nowhere, so that the interpreter's last flush cannot fail.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(failure, BrokenPipeError):
        raise OutputClosed from None
    reason = os.strerror(failure.errno).lower() if failure.errno else type(failure).__name__
    raise UltrafastError(f"cannot write to standard output: {reason}") from None


def one_line(text: str) -> str:
    """``text`` as one printable line."""
    return printable(" ".join(text.split()))


def note(text: str) -> None:
    """One remark on standard error; lost silently when nobody can read it."""
    if sys.stderr is None:
        return  # `print` would take standard output instead
    with contextlib.suppress(OSError, ValueError):
        print(printable(text), file=sys.stderr, flush=True)


def error(message: str) -> None:
    """The one line by which a command fails."""
    note(f"error: {one_line(message)}")
