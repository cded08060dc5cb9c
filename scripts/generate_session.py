"""Write docs/session.md: commands, run one after another on a real server, and what they really printed.

With `--check`, run them again and compare all that does not vary: ids, keys, times, the date and the port do.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ultrafast.weights.store import cache_directory, resolve_model

TARGET = Path("docs/session.md")
EXAMPLES = Path(__file__).parent.parent / "examples"
PORT = 8000
START_SECONDS = 120
COMMAND_SECONDS = 60
MARK = "-- ended with "
INTRODUCTION = """\
# A session: two projects, their tiers, and the bill

Written by `scripts/generate_session.py`, which runs these commands on a real server with the default model; a test runs
them again and compares. What each command does is in [operations.md](operations.md) and [cli.md](cli.md).
"""

QUESTION = "What is the capital of Japan?"

# Texts and commands; a command is one line for a shell.
STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        """\
## Two projects, one in the preview

In another terminal. Both projects get a key, shown this once; only `research` may use the tier `ultrafast`.
""",
        (
            "ultrafast projects create research",
            "ultrafast projects create website",
            "ultrafast preview grant research",
            "ultrafast projects list",
            "RESEARCH=$(ultrafast keys create --project research --name notebook)",
            "WEBSITE=$(ultrafast keys create --project website --name shop)",
            "ultrafast keys list",
        ),
    ),
    (
        """\
## The same question at two tiers

`tiers.py` is one of the [examples](../examples/README.md): the official client asks at the tier that is named, and
prints which tier served it.
""",
        (
            "export OPENAI_BASE_URL=http://127.0.0.1:{port}/v1",
            f"OPENAI_API_KEY=$RESEARCH python examples/tiers.py ultrafast '{QUESTION}'",
            f"OPENAI_API_KEY=$WEBSITE python examples/tiers.py default '{QUESTION}'",
            f"OPENAI_API_KEY=$WEBSITE python examples/tiers.py ultrafast '{QUESTION}'",
        ),
    ),
    (
        """\
## Capacity to zero and back

With its tier closed, a request is at once served at `default`: that is the tier
reported, and the one billed.
""",
        (
            "ultrafast capacity show",
            "ultrafast capacity set ultrafast 0",
            f"OPENAI_API_KEY=$RESEARCH python examples/tiers.py ultrafast '{QUESTION}'",
            "ultrafast capacity reset ultrafast",
            f"OPENAI_API_KEY=$RESEARCH python examples/tiers.py ultrafast '{QUESTION}'",
        ),
    ),
    (
        """\
## The bill

The refused request costs nothing, the downgraded one what `default` costs, and tokens that were not computed again a
tenth.
""",
        ("ultrafast usage", "ultrafast usage --by tier,backend"),
    ),
)

VARYING: tuple[tuple[str, str], ...] = (
    (r"\b(key|proj)_[0-9a-f]{24}", r"\1_…"),
    (r"…[\w-]{4}", "…last"),
    (r"\b\d{4}-\d\d-\d\d\b", "DATE"),
    (r"\b\d+\.\d+ s\b", "TIME"),
    (r"127\.0\.0\.1:\d+", "127.0.0.1:PORT"),
    (r" --port \d+", ""),
    (r"context [\d,]+, \d+ threads?, \w+", "MACHINE"),
)


class SessionError(Exception):
    """The session could not be recorded; the text says why."""


class Terminal:
    """A shell that runs one command after another."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self._step = folder / "step"
        self._shell = subprocess.Popen(
            ["/bin/sh"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
        )

    def run(self, command: str) -> str:
        """What the command printed, on both streams."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        # From a file, with no input: a command would read what is meant for the shell.
        self._step.write_text(command + "\n", encoding="utf-8")
        self._shell.stdin.write(f'. "{self._step}" </dev/null; echo "{MARK}$?"\n')
        self._shell.stdin.flush()
        lines = []
        while not (line := self._shell.stdout.readline()).startswith(MARK):
            if not line:
                raise SessionError(f"the shell ended in: {command}")
            lines.append(line)
        return "".join(lines)

    def close(self) -> None:
        self._shell.kill()
        self._shell.communicate()


@contextlib.contextmanager
def serving(command: str, environment: dict[str, str], folder: Path) -> Iterator[str]:
    """Run the server's command; yields what it printed until it listened."""
    log = folder / "log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while "Listening on" not in (shown := log.read_text("utf-8")):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SessionError(f"the server did not start: {shown}")
            time.sleep(0.05)
        yield shown
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(COMMAND_SECONDS)


def environment_in(folder: Path) -> dict[str, str]:
    """A user's environment whose home is ``folder``, with `ultrafast` and `python` on the path."""
    programs = folder / "bin"
    programs.mkdir()
    for name, words in (("ultrafast", "-m ultrafast.cli "), ("python", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n', encoding="utf-8")
        program.chmod(0o755)
    python_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ULTRAFAST", "XDG_", "OPENAI"))}
    return kept | {
        "HOME": str(folder),
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
        "ULTRAFAST_CACHE": str(cache_directory()),
        "COLUMNS": "100",
        # Relative folders are meant from here, not from where the commands run.
        "PYTHONPATH": os.pathsep.join(str(Path(name).absolute()) for name in python_path if name),
    }


def free_port() -> int:
    for port in (PORT, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            found: int = probe.getsockname()[1]
            return found
    raise SessionError("no port is free")


def record() -> str:
    """The page."""
    resolve_model(None)  # fetched before, so that the page does not tell of it
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "examples").symlink_to(EXAMPLES)
        environment = environment_in(folder)
        port = free_port()
        serve = "ultrafast serve" + ("" if port == PORT else f" --port {port}")
        sections = [INTRODUCTION]
        with serving(serve, environment, folder) as shown:
            sections.append(f"## The server\n\n{block([(serve, shown)])}")
            terminal = Terminal(environment, folder)
            try:
                for text, commands in STEPS:
                    lines = [line.replace("{port}", str(port)) for line in commands]
                    sections.append(f"{text}\n{block([(line, terminal.run(line)) for line in lines])}")
            finally:
                terminal.close()
        return "\n".join(sections).replace(str(folder), "~")


def block(commands: list[tuple[str, str]]) -> str:
    shown = "".join(f"$ {command}\n{output}" for command, output in commands)
    lines = "\n".join(line.rstrip() for line in shown.splitlines())
    return f"```console\n{lines}\n```\n"


def normalised(page: str) -> str:
    """Without what differs from run to run and from machine to machine; columns may move with it."""
    for pattern, replacement in VARYING:
        page = re.sub(pattern, replacement, page)
    return page


def main() -> int:
    try:
        page = record()
    except SessionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if sys.argv[1:] == ["--check"]:
        kept = TARGET.read_text(encoding="utf-8") if TARGET.is_file() else ""
        same = normalised(kept) == normalised(page)
        print(f"{TARGET} is {'up to date' if same else 'stale: run scripts/generate_session.py'}")
        if not same:
            print(normalised(page))
        return int(not same)
    TARGET.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
