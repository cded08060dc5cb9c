"""Write docs/cli.md from the commands' own help; with `--check`, only say whether it is up to date."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from ultrafast.cli.application import app, execute

TARGET = Path("docs/cli.md")
INTRODUCTION = """\
# Commands

Generated from the commands' own help by `scripts/generate_docs.py`; a test compares. The environment variables are in
[configuration.md](configuration.md).

Answers go to standard output, everything else to standard error. A failed command says why in one line,
`error: …`, and its exit code tells the kind:

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed: a model that cannot be had or run, an engine that could not finish, a request it refused |
| 2 | wrong usage or configuration: an option, a variable, a port that is taken |
| 130 | interrupted (Ctrl-C) |
| 141 | the reader of standard output went away, as in `ultrafast run … \\| head -1` |
"""


def command_paths(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command under ``command``, itself first. ``Any``: typer does not export its command classes."""
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from command_paths(child, (*path, name))


def help_text(path: tuple[str, ...]) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        code = execute([*path, "--help"])
    if code != 0:
        raise RuntimeError(f"{' '.join(path)} --help ended with exit code {code}")
    return "\n".join(line.rstrip() for line in shown.getvalue().strip().splitlines())


def generate() -> str:
    os.environ["COLUMNS"] = "80"
    paths = command_paths(typer.main.get_command(app))
    sections = (f"## `{' '.join(('ultrafast', *path))}`\n\n```text\n{help_text(path)}\n```\n" for path in paths)
    return "\n".join((INTRODUCTION, *sections))


def main() -> int:
    generated = generate()
    if sys.argv[1:] == ["--check"]:
        same = TARGET.is_file() and TARGET.read_text(encoding="utf-8") == generated
        print(f"{TARGET} is {'up to date' if same else 'stale: run scripts/generate_docs.py'}")
        return int(not same)
    TARGET.write_text(generated, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
