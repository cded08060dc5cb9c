"""How the operator's verbs reach what they change: the running server's socket or, where none runs, its files."""

from __future__ import annotations

import json
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ultrafast.cli import options, output
from ultrafast.directories import CONFIGURATION_VARIABLE
from ultrafast.errors import ConfigurationError, UltrafastError
from ultrafast.gateway.records.limits import ALREADY_EXISTS
from ultrafast.gateway.tiers import ULTRAFAST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import httpx2

__all__ = ["Cell", "DataDirectory", "administer", "money", "path_part", "show", "show_project", "table", "when"]

_ADDRESS: Final = "http://ultrafast"  # of no meaning: the socket is the address
_ANSWER_SECONDS: Final = 60.0
# A server that starts or ends holds the directory and has no socket yet, or no longer; another command is brief.
_PATIENCE_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.1
_FOLDED_LETTERS: Final = 12
_MILLION: Final = 1_000_000

DataDirectory = Annotated[
    Path | None,
    typer.Option(
        "--data-directory",
        metavar="DIR",
        help="The server's data directory. Default: ULTRAFAST_DATA's, else the configuration file's, else your own.",
    ),
]


def administer(
    directory: Path | None,
    method: str,
    path: str,
    *,
    body: Mapping[str, Any] | None = None,
    parameters: Mapping[str, str] | None = None,
) -> Any:
    """The answer of the server that holds ``directory``, or of its files where none does.

    Raises an UltrafastError: a refusal, a server that does not answer, a directory that cannot be used.
    """
    import httpx2

    from ultrafast.gateway.records.directory import SOCKET_FILE, DirectoryInUseError, data_directory

    place = data_directory(_configured_directory()) if directory is None else directory.expanduser().absolute()
    request = httpx2.Request(method, _ADDRESS + path, json=body, params=parameters)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            response = _ask_server(request, place / SOCKET_FILE)
            if response is None:
                response = _ask_files(request, place)
        except DirectoryInUseError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return _content(response)


def _configured_directory() -> str | None:
    """The data directory of the file that the server reads, too, as far as the environment names that file."""
    import os

    if not os.environ.get(CONFIGURATION_VARIABLE):
        return None  # what reads the file is slow to load
    from ultrafast.gateway.configuration_file import configuration_path, read_configuration
    from ultrafast.gateway.configuration_overrides import environment_overrides

    path = configuration_path(None, os.environ)
    return read_configuration(path, environment_overrides(os.environ))[0].data_directory


def _ask_server(request: httpx2.Request, socket: Path) -> httpx2.Response | None:
    """The server's answer, None where there is no server."""
    import httpx2

    if not socket.exists():
        return None
    try:
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(socket)), timeout=_ANSWER_SECONDS) as client:
            return client.send(request)
    except httpx2.ConnectError:  # what a killed server left
        return None
    except httpx2.TransportError:
        raise UltrafastError("the server did not answer; whether it did what was asked is not known") from None


def _ask_files(request: httpx2.Request, place: Path) -> httpx2.Response:
    """The answer of the server's own code in this process, over the same files."""
    import asyncio

    import httpx2

    from ultrafast.gateway.admin import AdminApplication
    from ultrafast.gateway.records.directory import is_used
    from ultrafast.gateway.records.store import Records

    if request.method == "GET" and not is_used(place):  # who only looks leaves nothing behind
        raise UltrafastError(
            f"there is no database in {place}: a server, or a command that changes something, makes it; "
            "--data-directory names another place"
        )

    async def ask(records: Records) -> httpx2.Response:
        transport = httpx2.ASGITransport(AdminApplication(records, None, key=None))
        async with httpx2.AsyncClient(transport=transport, timeout=None) as client:
            return await client.send(request)

    with Records.open(place) as records:
        return asyncio.run(ask(records))


def _content(response: httpx2.Response) -> Any:
    try:
        content = response.json()
        error = content["error"] if response.is_error else None
        message, code = (None, None) if error is None else (error["message"], error["code"])
    except (ValueError, KeyError, TypeError):
        raise UltrafastError("what answers at the server's socket is no ultrafast server") from None
    if message is not None:
        # What was typed is wrong, whatever is in the database: as with any other wrong option.
        is_usage = response.status_code == HTTPStatus.BAD_REQUEST and code != ALREADY_EXISTS
        raise ConfigurationError(message) if is_usage else UltrafastError(message)
    return content


def path_part(argument: str) -> str:
    """A command-line argument as one part of a request's path."""
    from urllib.parse import quote

    # A part that is empty, or that clients take for a step in the path, becomes one that names nothing.
    return quote(options.text_of_argument(argument), safe="") if argument.strip(".") else "~"


def show(content: Any, lines: Sequence[str], *, as_json: bool) -> None:
    """Print the server's answer, as one JSON object or as ``lines``."""
    if as_json:
        output.write(json.dumps(content, ensure_ascii=False, indent=2) + "\n")
    else:
        output.write("".join(f"{output.one_line(line)}\n" for line in lines))


def show_project(project: Any, line: str, *, as_json: bool) -> None:
    """Print a project as the server answered it, or ``line``, and what its default tier means where it has no right."""
    show(project, [line], as_json=as_json)
    if not as_json and project["default_tier"] == ULTRAFAST and not project["in_preview"]:
        name = project["name"]
        output.note(
            f"{name} is not in the preview, so what names no tier is served at default until: "
            f"ultrafast preview grant {name}"
        )


Cell = str | int | tuple[str, ...]  # several short texts stand below each other where there is room


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table: ruled in a terminal, plain in a pipe or a file. Numbers stand to the right."""
    numeric = [bool(rows) and all(isinstance(row[index], int) for row in rows) for index in range(len(columns))]
    if output.stdout_is_terminal():
        _ruled(columns, [[_text(cell, "\n") for cell in row] for row in rows], numeric)
        return
    texts = [[_text(cell, ", ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    for line in (columns, *texts):
        cells = zip(line, widths, numeric, strict=True)
        parts = [text.rjust(width) if right else text.ljust(width) for text, width, right in cells]
        output.write("  ".join(parts).rstrip() + "\n")


def _text(cell: Cell, separator: str) -> str:
    if isinstance(cell, tuple):
        return separator.join(map(output.one_line, cell))
    return f"{cell:,}" if isinstance(cell, int) else output.one_line(cell)


def _ruled(columns: Sequence[str], texts: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    ruled = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    for index, (name, right) in enumerate(zip(columns, numeric, strict=True)):
        # Where a terminal is narrow, long names are folded, and nothing else.
        short = all(len(line) <= _FOLDED_LETTERS for row in texts for line in row[index].split("\n"))
        ruled.add_column(name, justify="right" if right else "left", no_wrap=right or short, overflow="fold")
    for row in texts:
        ruled.add_row(*map(Text, row))  # as text: a name may look like markup
    console = Console(color_system=None)
    with console.capture() as capture:
        console.print(ruled)
    output.write(capture.get())


def when(seconds: int | None) -> str:
    """The day of a time, in UTC as all of them."""
    return "" if seconds is None else time.strftime("%Y-%m-%d", time.gmtime(seconds))


def money(millionths: int) -> str:
    """An exact amount."""
    return f"{millionths // _MILLION}.{millionths % _MILLION:06d}"
