"""A command in a terminal of its own, driven as by a person: keys in, screen text out."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import time
from types import TracebackType
from typing import Self

from .conftest import COMMAND, environment

CTRL_C = b"\x03"
CTRL_D = b"\x04"
OPEN_TERMINAL = 'exec "$@" <"$0" >"$0" 2>&1'


class Terminal:
    """Runs ``ultrafast ARGUMENTS`` on a pseudo-terminal; Ctrl-C reaches its whole process group, as in a shell."""

    def __init__(self, *arguments: str, interpreter_options: tuple[str, ...] = ()) -> None:
        self._master, slave = pty.openpty()
        python, *command = COMMAND
        self.process = subprocess.Popen(
            # The leader of a session gets its controlling terminal by opening one, which the shell does here.
            ["sh", "-c", OPEN_TERMINAL, os.ttyname(slave), python, *interpreter_options, *command, *arguments],
            start_new_session=True,
            env=environment(TERM="xterm"),
        )
        # Held open: without any holder before the shell opens it, reading the other end would fail.
        self._slave: int | None = slave
        self.shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._release()
        os.close(self._master)

    def _release(self) -> None:
        if self._slave is not None:
            os.close(self._slave)
            self._slave = None

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait_for(self, text: str, *, seconds: float = 60, after: int = 0) -> int:
        """Read until ``text`` has been shown beyond position ``after``; returns the position behind it."""
        deadline = time.monotonic() + seconds
        while (position := self.shown.find(text, after)) < 0:
            if self.process.poll() is not None:
                self._release()
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} was not shown; the screen had: {self.shown[-2000:]!r}"
            if not self._read(min(left, 1.0)):
                raise AssertionError(f"the command ended before it showed {text!r}: {self.shown[-2000:]!r}")
        return position + len(text)

    def press_until(self, keys: bytes, text: str, *, after: int, seconds: float = 60) -> int:
        """Press ``keys``, as often as a person would, until ``text`` has been shown; returns the position behind it.

        A Ctrl-C between readline's prompt and its wait for a key sets Python's flag and wakes nobody: only the next
        key shows it.
        """
        deadline = time.monotonic() + seconds
        while True:
            self.press(keys)
            pause = time.monotonic() + 2
            while (position := self.shown.find(text, after)) < 0 and time.monotonic() < min(pause, deadline):
                assert self._read(0.1), f"the command ended before it showed {text!r}: {self.shown[-2000:]!r}"
            if position >= 0:
                return position + len(text)
            assert time.monotonic() < deadline, f"{text!r} was not shown; the screen had: {self.shown[-2000:]!r}"

    def wait_for_more(self, count: int, *, after: int, seconds: float = 60) -> int:
        """Read until ``count`` characters have been shown beyond position ``after``; returns the position reached."""
        deadline = time.monotonic() + seconds
        while len(self.shown) < after + count:
            left = deadline - time.monotonic()
            assert left > 0, f"nothing more was shown; the screen had: {self.shown[-2000:]!r}"
            assert self._read(min(left, 1.0)), f"the command ended: {self.shown[-2000:]!r}"
        return len(self.shown)

    def exit_code(self, *, seconds: float = 30) -> int:
        """Read to the end and return the command's exit code; no process of it may hold the terminal any longer."""
        self._release()
        deadline = time.monotonic() + seconds
        while self._read(max(0.0, deadline - time.monotonic())):
            assert time.monotonic() < deadline, f"the command did not end; the screen had: {self.shown[-2000:]!r}"
        return self.process.wait(seconds)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return True
        data = b""
        with contextlib.suppress(OSError):  # EIO: every process has closed the terminal
            data = os.read(self._master, 65536)
        self.shown += data.decode("utf-8", errors="replace")
        return bool(data)
