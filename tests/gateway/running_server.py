"""A real server in a process of its own, with the real default model."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.data_directories import fresh_data_directory

KEY = "uf-key-of-the-tests-canary-9c51"
START_SECONDS = 240  # may have to pull the model first
_LISTENING = re.compile(r"Listening on http://127\.0\.0\.1:(\d+)")


class RunningServer:
    """``ultrafast serve`` on a free port; everything it prints is kept in ``lines``."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        kept = {
            name: value for name, value in os.environ.items() if name == "ULTRAFAST_CACHE" or "ULTRAFAST" not in name
        }
        self.data_directory = variables.get("ULTRAFAST_DATA") or fresh_data_directory()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ultrafast.cli", "serve", "--port", "0", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=kept | {"ULTRAFAST_API_KEY": KEY, "ULTRAFAST_DATA": self.data_directory} | variables,
        )
        self.lines: list[str] = []
        self.port = 0
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self.wait_for(_LISTENING, START_SECONDS):
            self.stop()
            raise RuntimeError("the server did not start: " + self.output)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                if match := _LISTENING.search(line):
                    self.port = int(match[1])
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def output(self) -> str:
        with self._changed:
            return "\n".join(self.lines)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return self.origin + "/v1"

    def wait_for(self, pattern: re.Pattern[str] | str, seconds: float, *, after: int = 0) -> str | None:
        """The first line from index ``after`` on that matches, waiting for it as long as the process lives."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                for line in self.lines[after:]:
                    if re.search(pattern, line):
                        return line
                remaining = deadline - time.monotonic()
                if remaining <= 0 or self.process.poll() is not None:
                    return None
                self._changed.wait(min(remaining, 0.2))

    def engine_pids(self) -> list[int]:
        """The server's child processes."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(word) for word in path.read_text(encoding="ascii").split()]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def exchange(self, request: bytes) -> bytes:
        """Send raw bytes, half-close nothing, read until the server closes or a whole response has come."""
        with self.connect() as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(request)
            return b"".join(self.receive(connection))

    @staticmethod
    def receive(connection: socket.socket) -> Iterator[bytes]:
        with contextlib.suppress(ConnectionResetError):
            while data := connection.recv(65536):
                yield data

    def stop(self, seconds: float = 20) -> int:
        """SIGTERM, then force; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
        code = self.process.wait()
        self._reader.join(5)
        return code
