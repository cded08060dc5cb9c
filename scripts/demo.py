"""`make demo`: fetch the default model, serve it on a free port, and stream answers through the official client.

The server is stopped however this ends. Programs in ../shared/samples, where that folder exists, are run as they are:
only OPENAI_BASE_URL and OPENAI_API_KEY tell them where to go.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

ULTRAFAST = [sys.executable, "-m", "ultrafast.cli"]
QUESTION = "Explain in three sentences why the sky is blue."
EXAMPLE = Path("examples/stream.py")
SAMPLES = Path("../shared/samples")
START_SECONDS = 120
PROGRAM_SECONDS = 600  # a slow machine is no failure
STOP_SECONDS = 15
# Of a sample's output: a small model at temperature 1 rambles for as long as it may.
SHOWN_LINES = 6
SHOWN_CHARACTERS = 480


class DemoError(Exception):
    """The demonstration cannot go on; the text says why."""


class Server:
    """A server process and the lines it has written so far."""

    def __init__(self, api_key: str, data_directory: str) -> None:
        # A session of its own: Ctrl-C reaches this program alone, which then stops the server in order.
        self.process = subprocess.Popen(
            [*ULTRAFAST, "serve", "--port", "0"],
            env=os.environ | {"ULTRAFAST_API_KEY": api_key, "ULTRAFAST_DATA": data_directory},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def base_url(self) -> str:
        """Wait until the server has said where it listens, which it does when the model is loaded."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for line in self.lines:
                if found := re.search(r"Listening on (http://127\.0\.0\.1:[0-9]+)", line):
                    return found[1] + "/v1"
            if self.process.poll() is not None:
                self._reader.join(timeout=1)
                raise DemoError("the server did not start:\n" + "\n".join(self.lines))
            time.sleep(0.05)
        raise DemoError(f"the server did not start within {START_SECONDS} seconds")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextmanager
def serving(api_key: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as data_directory:  # the user's own may be another server's at this moment
        server = Server(api_key, data_directory)
        try:
            yield server
        finally:
            server.stop()


def heading(text: str) -> None:
    print(f"\n== {text}", flush=True)


class Excerpt:
    """Shows the beginning of a text as it comes, and says how much it left out."""

    def __init__(self) -> None:
        self._lines = 0
        self._characters = 0
        self._hidden = ""

    def add(self, text: str) -> None:
        for character in text:
            if self._hidden or self._lines >= SHOWN_LINES or self._characters >= SHOWN_CHARACTERS:
                self._hidden += character
                continue
            print(character, end="")
            self._characters += 1
            self._lines += character == "\n"
        sys.stdout.flush()

    def end(self) -> None:
        hidden = self._hidden.strip()
        if hidden:
            lines = hidden.count("\n") + 1
            start = "" if self._lines >= SHOWN_LINES else "\n"
            print(
                f"{start}   ... {lines} more line{'s'[: lines > 1]}, {len(hidden):,} characters, not shown", flush=True
            )


def run_program(
    path: Path, arguments: list[str], server: Server, environment: dict[str, str], *, whole: bool = True
) -> None:
    """Run a client program, show its output or the beginning of it, and what the server recorded meanwhile."""
    first = len(server.lines)
    # Out of the terminal's foreground: Ctrl-C ends this program, which ends that one without a traceback.
    program = subprocess.Popen(
        [sys.executable, str(path), *arguments],
        env=environment,
        stdout=None if whole else subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        process_group=0,
    )
    timer = threading.Timer(PROGRAM_SECONDS, program.kill)
    timer.start()
    try:
        if program.stdout is not None:
            excerpt = Excerpt()
            while text := program.stdout.read(1):
                excerpt.add(text)
            excerpt.end()
        program.wait()
    finally:
        in_time = timer.is_alive()
        timer.cancel()
        program.kill()
        program.wait()
    if not in_time:
        raise DemoError(f"{path} did not end within {PROGRAM_SECONDS} seconds")
    if program.returncode:
        raise DemoError(f"{path} ended with exit code {program.returncode}")
    time.sleep(0.2)  # the record is written when the stream has ended
    for line in server.lines[first:]:
        print(f"   server: {shortened(line)}", flush=True)


def shortened(line: str) -> str:
    """A line of the server's record without its time and request id, which say nothing here; others as they are."""
    return re.sub(r"^\S+ \S+ req_\w+ ok tier=(\w+) .*? (?=prompt=)", r"tier \1: ", line).replace(" tokens,", ",", 2)


def demonstrate() -> None:
    heading("The model")
    subprocess.run([*ULTRAFAST, "models", "pull"], check=True)
    api_key = secrets.token_urlsafe(24)
    heading("The server")
    with serving(api_key) as server:
        base_url = server.base_url()
        for line in server.lines:
            print(f"   server: {line}", flush=True)
        environment = os.environ | {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": api_key}
        heading(f'{EXAMPLE}: "{QUESTION}"')
        run_program(EXAMPLE, [QUESTION], server, environment)
        for path in sorted(SAMPLES.glob("*.py")):
            heading(
                f"{path}, unmodified (so at OpenAI's temperature of 1, hot for a model this small); its first lines"
            )
            run_program(path, [], server, environment, whole=False)
    heading("The server has stopped. Three commands to try next")
    print("   .venv/bin/ultrafast chat       a conversation in this terminal")
    print("   .venv/bin/ultrafast doctor     what this CPU allows, and how close to it we are")
    print("   .venv/bin/ultrafast serve      OpenAI's API on http://127.0.0.1:8000/v1", flush=True)


def end(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        demonstrate()
    except KeyboardInterrupt:
        return 130
    except (DemoError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
