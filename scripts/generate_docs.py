"""Write what is generated of docs/: cli.md from the commands' own help, configuration.md's tables from the structs.

With `--check`, only say whether they are up to date.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import typer.main
from msgspec import inspect

from ultrafast.cli.application import app, execute
from ultrafast.gateway import configuration
from ultrafast.gateway.configuration_values import key_text, value_text, words_of

COMMANDS = Path("docs/cli.md")
CONFIGURATION = Path("docs/configuration.md")
BEGIN, END = "<!-- fields:begin, by scripts/generate_docs.py -->\n", "<!-- fields:end -->\n"
TABLES: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    ("The top", configuration.Configuration),
    ('`[backends.NAME]` with `kind = "engine"`', configuration.EngineSettings),
    ('`[backends.NAME]` with `kind = "upstream"`', configuration.UpstreamSettings),
    ("`[[routes]]`", configuration.RouteSettings),
    ("`[tiers.NAME]`", configuration.TierSettings),
    ("`[tiers.NAME.limits]`", configuration.TierLimits),
    ("`[prices]`", configuration.PriceSettings),
    ("`[prices.models.NAME]`", configuration.Price),
)
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


def commands() -> str:
    os.environ["COLUMNS"] = "80"
    paths = command_paths(typer.main.get_command(app))
    sections = (f"## `{' '.join(('ultrafast', *path))}`\n\n```text\n{help_text(path)}\n```\n" for path in paths)
    return "\n".join((INTRODUCTION, *sections))


def field_row(field: inspect.Field) -> str | None:
    """A row of a table, None for a field that has a table of its own."""
    description = (getattr(field.type, "extra_json_schema", None) or {}).get("description")
    if description is None:
        return None
    default = field.default_factory() if callable(field.default_factory) else field.default
    if default is msgspec.NODEFAULT:
        shown = "must be given"
    elif isinstance(default, dict):
        pairs = (f"{key_text(name)} = {value_text(value)}" for name, value in default.items())
        shown = f"`{{{', '.join(pairs)}}}`"
    else:
        shown = "none" if default is None else f"`{value_text(default)}`"
    return f"| `{field.name}` | {words_of(field.type)} | {shown} | {description} |"


def fields() -> str:
    sections = []
    for title, struct in TABLES:
        kind = inspect.type_info(struct)
        assert isinstance(kind, inspect.StructType)
        lines = [f"### {title}", "", "| field | value | default | meaning |", "|---|---|---|---|"]
        lines += [row for field in kind.fields if (row := field_row(field)) is not None]
        if struct is configuration.TierSettings:
            lines += ["", *tier_defaults()]
        sections.append("\n".join(lines))
    return "\n" + "\n\n".join(sections) + "\n\n"


def tier_defaults() -> list[str]:
    rows = (
        f"| `{name}` | {tier.slots or 'none'} | {tier.queue_milliseconds} | `{tier.over_capacity}` |"
        for name, tier in configuration.DEFAULT_TIERS.items()
    )
    head = "| tier | `slots` | `queue_milliseconds` | `over_capacity` |"
    return ["By themselves the tiers have:", "", head, "|---|---|---|---|", *rows]


def generate() -> dict[Path, str]:
    before, _, rest = CONFIGURATION.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return {COMMANDS: commands(), CONFIGURATION: before + BEGIN + fields() + END + after}


def main() -> int:
    stale = False
    for target, generated in generate().items():
        if sys.argv[1:] == ["--check"]:
            same = target.is_file() and target.read_text(encoding="utf-8") == generated
            print(f"{target} is {'up to date' if same else 'stale: run scripts/generate_docs.py'}")
            stale |= not same
        else:
            target.write_text(generated, encoding="utf-8")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
