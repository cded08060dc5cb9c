"""The operator's verbs: with no server, and beside one that serves."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.gateway.records.entries import entry
from tests.gateway.test_admin import Server
from ultrafast.backends.base import BackendState, LastError
from ultrafast.cli import administration
from ultrafast.cli.application import execute
from ultrafast.gateway.admin import AdminApplication, BackendView, TierUse
from ultrafast.gateway.admin_socket import serving_admin
from ultrafast.gateway.records.store import Records
from ultrafast.gateway.records.usage import ASKED, DIMENSIONS

from .conftest import COMMAND, Ultrafast, environment
from .terminal import Terminal
from .test_application import assert_one_error_line

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def command(directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a verb on the data directory, in this process; it must end with ``code``."""
    monkeypatch.setenv("ULTRAFAST_DATA", str(directory))

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        ended = execute(arguments)
        shown = capsys.readouterr()
        assert ended == code, shown.err
        if code:
            assert_one_error_line(shown.err)
            assert shown.out == ""
        return subprocess.CompletedProcess(arguments, ended, shown.out, shown.err)

    return run


@contextmanager
def serving(directory: Path, backends: tuple[BackendView, ...] = ()) -> Iterator[Records]:
    """A server's records and socket, in a thread of this process."""
    view = {"ultrafast": TierUse(2, 1, 0), "priority": TierUse(None, 0, 0)}
    started, ended = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    with Records.open(directory) as records:

        async def serve() -> None:
            application = AdminApplication(records, Server(view, backends), key=None)
            async with serving_admin(application, directory / "admin.sock"):
                started.set()
                await ended.wait()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
        thread.start()
        try:
            assert started.wait(30)
            yield records
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join()
            loop.close()


def lines(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    return [re.split(r"\s{2,}", line) for line in done.stdout.splitlines()]


def test_projects_and_keys_without_a_server(command: Command, directory: Path) -> None:
    created = command("projects", "create", "team-a", "--default-tier", "flex").stdout
    assert re.fullmatch(r"created project team-a \(proj_[0-9a-f]{24}\)\n", created)
    assert [row[:3] for row in lines(command("projects", "list"))] == [
        ["name", "default tier", "in preview"],
        ["default", "default", "yes"],
        ["team-a", "flex", "no"],
    ]
    assert command("projects", "update", "team-a", "--default-tier", "priority").stdout.endswith("tier priority\n")
    done = command("keys", "create", "--project", "team-a", "--name", "ci")
    secret = done.stdout.strip()
    assert done.stdout == f"{secret}\n"
    key_id = re.findall(r"key_[0-9a-f]{24}", done.stderr)[0]
    listed = command("keys", "list")
    assert lines(listed)[1][:4] == [key_id, "team-a", "ci", f"…{secret[-4:]}"]
    assert secret not in listed.stdout
    with Records.open(directory) as records:
        identity = records.identify(secret.encode())
        assert identity is not None
        assert (identity.key_id, identity.project.default_tier) == (key_id, "priority")
    assert command("keys", "list", "--project", "default").stdout.count("\n") == 1
    assert command("keys", "revoke", key_id).stdout == f"revoked {key_id} (ci) of project team-a\n"
    assert command("keys", "revoke", key_id).stdout == f"was revoked already: {key_id} (ci) of project team-a\n"
    with Records.open(directory) as records:
        assert records.identify(secret.encode()) is None


def test_the_preview_and_capacity_without_a_server(command: Command) -> None:
    command("projects", "create", "team-a")
    assert command("preview", "grant", "team-a").stdout == "project team-a is in the preview\n"
    assert command("preview", "list").stdout == "default\nteam-a\n"
    assert command("preview", "revoke", "team-a").stdout == "project team-a is not in the preview\n"
    assert command("capacity", "set", "ultrafast", "0").stdout == "ultrafast: 0 (set)\n"
    assert lines(command("capacity", "show"))[1] == ["ultrafast", "0 (set)"]
    assert command("capacity", "reset", "ultrafast").stdout == "ultrafast: as configured\n"


def test_a_default_tier_that_the_project_may_not_use_is_told(command: Command) -> None:
    told = "team-a is not in the preview, so what names no tier is served at default until: "
    told += "ultrafast preview grant team-a\n"
    done = command("projects", "create", "team-a", "--default-tier", "ultrafast")
    assert (done.stdout.startswith("created project team-a"), done.stderr) == (True, told)
    assert command("projects", "update", "team-a", "--default-tier", "ultrafast").stderr == told
    assert command("projects", "update", "team-a", "--default-tier", "flex").stderr == ""
    command("preview", "grant", "team-a")
    assert command("projects", "update", "team-a", "--default-tier", "ultrafast").stderr == ""
    assert command("preview", "revoke", "team-a").stderr == told


def test_json_of_every_verb(command: Command) -> None:
    def answer(*arguments: str) -> dict[str, object]:
        done = command(*arguments, "--json")
        assert done.stderr == ""
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    assert answer("projects", "create", "team")["name"] == "team"
    assert answer("projects", "update", "team", "--default-tier", "flex")["default_tier"] == "flex"
    key = answer("keys", "create", "--project", "team")
    assert str(key["secret"]).startswith("uf-")
    assert answer("keys", "revoke", str(key["id"]))["was_active"] is True
    assert answer("preview", "grant", "team")["in_preview"] is True
    assert answer("preview", "revoke", "team")["in_preview"] is False
    assert answer("capacity", "set", "flex", "7")["override"] == 7
    assert answer("capacity", "reset", "flex")["override"] is None
    for arguments in (("projects", "list"), ("keys", "list"), ("preview", "list"), ("capacity", "show"), ("usage",)):
        assert answer(*arguments)["object"] == "list"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("projects", "create", "two words"), 2, "a project's name must be"),
        (("projects", "create", "default"), 1, "already"),
        (("projects", "create", "x", "--default-tier", "gold"), 2, "must be one of"),
        (("projects", "create"), 2, "NAME"),
        (("projects", "update", "default"), 2, "--default-tier"),
        (("projects", "update", "", "--default-tier", "flex"), 1, "no such project"),
        (("projects", "update", "..", "--default-tier", "flex"), 1, "no such project"),
        (("projects", "update", "a/b?c", "--default-tier", "flex"), 1, ""),
        (("keys", "create"), 2, "--project"),
        (("keys", "create", "--project", "nobody"), 1, "no such project"),
        (("keys", "create", "--project", "default", "--name", "x" * 65), 2, "64 characters"),
        (("keys", "list", "--project", "nobody"), 1, "no such project"),
        (("keys", "revoke", "key_x"), 1, "no such key"),
        (("preview", "grant", "nobody"), 1, "no such project"),
        (("capacity", "set", "gold", "1"), 2, "a tier must be one of"),
        (("capacity", "set", "flex", "-1"), 2, "must be a whole number from 0 to"),
        (("capacity", "set", "flex", "-x"), 2, "must be a whole number from 0 to"),
        (("capacity", "set", "flex", "1", "-1"), 2, "extra argument"),
        (("capacity", "set", "flex", "many"), 2, "whole number"),
        (("usage", "--by", "weather"), 2, "'by' must be some of"),
        (("usage", "--by", "project,project"), 2, "'by' names project twice"),
        (("usage", "prune"), 2, "--before"),
        (("usage", "--csv", "prune", "--before", "7d"), 2, "--csv goes after `prune`"),
        (("usage", "--since", "yesterday"), 2, "must be a date"),
        (("usage", "--since", "99999-01-01"), 2, "must be a date"),
        (("usage", "--csv", "--json"), 2, "exclude each other"),
    ],
)
def test_mistakes_are_one_line(
    command: Command, directory: Path, arguments: tuple[str, ...], code: int, text: str
) -> None:
    with Records.open(directory):
        pass
    assert text in command(*arguments, code=code).stderr


@pytest.mark.parametrize(
    "arguments", ["projects list", "keys list", "preview list", "capacity show", "usage --json", "backends"]
)
def test_who_only_looks_makes_no_database(command: Command, directory: Path, arguments: str) -> None:
    for made in (False, True):
        if made:
            directory.mkdir(mode=0o700)
        error = command(*arguments.split(), code=1).stderr
        assert f"there is no database in {directory}" in error
        assert "--data-directory" in error
        assert directory.exists() == made
        assert not made or list(directory.iterdir()) == []


def test_usage(command: Command, directory: Path) -> None:
    command("projects", "create", "team-a")
    assert command("usage").stderr == "nothing was used\n"
    with Records.open(directory) as records:
        project = records.projects()[0].id
        records.record(entry(project=project, started=1_790_000_000.0))
        for _ in range(1500):
            records.record(entry(project=project, tier_asked="ultrafast", tier_served="default", outcome="cancelled"))
        records.record(entry(project=project, tier_asked="ultrafast", tier_served="ultrafast"))
        records.record(entry(project=project, tier_served=None, outcome="rate_limit_exceeded", status=429))
    header, refused, default, ultrafast, total = lines(command("usage"))
    assert header[:2] == ["project", "tier"]
    assert (header[-1], "served" in header) == ("USD", False)
    assert refused[0] == "default"
    assert default == [
        *("default", "default", "1,501", "0", "150,100", "60,040", "15,010"),
        *("auto 1, ultrafast 1,500", "0.156104"),
    ]
    assert ultrafast[-1] == "0.000624"
    assert (total[0], total[-1]) == ("total", "0.156728")
    by_key = lines(command("usage", "--by", "key"))[1]
    assert by_key[-3:] == ["auto 2, ultrafast 1,501", "ultrafast 1, default 1,501", "0.156728"]
    rows = list(csv.DictReader(io.StringIO(command("usage", "--by", "tier", "--csv").stdout)))
    assert [row["tier"] for row in rows] == ["", "default", "ultrafast"]
    assert (rows[1]["requests"], rows[1]["cancelled"], rows[1]["cost"]) == ("1501", "1500", "0.156104")
    assert [rows[1][f"asked_{tier}"] for tier in ASKED] == ["1", "1500", "0", "0", "0"]
    assert rows[0]["failed"] == "1"
    (day,) = json.loads(command("usage", "--by", "day", "--until", "2026-12-31", "--json").stdout)["data"]
    assert (day["group"], day["requests"], day["cost_millionths"]) == ({"day": "2026-09-21"}, 1, 104)
    for since in ("2026-09-21T14:13:20", "2026-09-21T15:13:20+01:00", "2026-09-21"):
        found = json.loads(command("usage", "--by", "day", "--since", since, "--until", "2026-09-22", "--json").stdout)
        assert len(found["data"]) == 1, since
    assert command("usage", "--since", "2026-09-21T14:13:21", "--until", "2026-09-22").stderr == "nothing was used\n"


def test_pruning_asks_first(command: Command, directory: Path) -> None:
    with Records.open(directory) as records:
        project = records.projects()[0].id
        for started in (1_790_000_000.0, 1_795_000_000.0, 1_799_000_000.0):
            records.record(entry(project=project, started=started))
    asked = command("usage", "prune", "--before", "2026-11-30", code=2)
    assert "2 requests before 2026-11-30 00:00:00 UTC would be deleted from the ledger; --yes does" in asked.stderr
    with Terminal("usage", "prune", "--before", "2026-09-22", "--data-directory", str(directory)) as terminal:
        terminal.wait_for("Delete 1 request before 2026-09-22 00:00:00 UTC from the ledger?")
        terminal.press(b"n\n")
        assert terminal.exit_code() == 130
    assert command("usage", "prune", "--before", "2026-09-22", "--yes").stdout == "deleted 1 request\n"
    done = command("usage", "prune", "--before", "2026-11-30", "--yes", "--json")
    assert json.loads(done.stdout) == {"object": "pruning", "deleted": 1}
    assert lines(command("usage", "--by", "day"))[1][:2] == ["2027-01-03", "1"]


def test_the_help_names_every_dimension(command: Command) -> None:
    assert ",".join(DIMENSIONS) in "".join(command("usage", "--help").stdout.split())


def test_in_a_terminal_the_table_is_ruled(directory: Path) -> None:
    with Records.open(directory):
        pass
    with Terminal("projects", "list", "--data-directory", str(directory)) as terminal:
        terminal.wait_for("default")
        assert terminal.exit_code() == 0
        assert "──" in terminal.shown
        assert "\x1b" not in terminal.shown


def test_the_option_goes_before_the_variable(ultrafast: Ultrafast, tmp_path: Path) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    ultrafast("projects", "create", "team", "--data-directory", one, ULTRAFAST_DATA=other)
    assert "team" in ultrafast("projects", "list", ULTRAFAST_DATA=one).stdout
    assert not Path(other).exists()


def test_the_servers_file_names_the_directory(ultrafast: Ultrafast, tmp_path: Path) -> None:
    """One variable for the server and for the commands on it: neither may act on another database."""
    of_file, file = tmp_path / "of file", tmp_path / "ultrafast.toml"
    file.write_text(f'data_directory = "{of_file}"\n', encoding="utf-8")
    ultrafast("projects", "create", "team", ULTRAFAST_CONFIG=str(file), ULTRAFAST_DATA="")
    assert (of_file / "ultrafast.db").exists()
    assert "team" in ultrafast("projects", "list", "--data-directory", str(of_file)).stdout
    file.write_text("data_directory = 1\n", encoding="utf-8")
    wrong = ultrafast("projects", "list", ULTRAFAST_CONFIG=str(file), ULTRAFAST_DATA="")
    assert "ultrafast.toml:1" in wrong.stderr


def test_beside_a_server_everything_acts_on_it_at_once(command: Command, directory: Path) -> None:
    with serving(directory) as records:
        revoked: list[str] = []
        records.on_revoked(revoked.append)
        command("projects", "create", "team")
        secret = command("keys", "create", "--project", "team").stdout.strip()
        identity = records.identify(secret.encode())
        assert identity is not None
        assert not identity.project.in_preview
        command("preview", "grant", "team")
        identity = records.identify(secret.encode())
        assert identity is not None
        assert identity.project.in_preview
        records.record(entry(project=identity.project.id))
        assert lines(command("usage", "--by", "project"))[1][:2] == ["team", "1"]
        assert lines(command("capacity", "show"))[1] == ["ultrafast", "2", "1", "0"]
        assert lines(command("capacity", "show"))[2] == ["priority", "as many as fit", "0", "0"]
        command("capacity", "set", "ultrafast", "0")
        assert records.capacity() == {"ultrafast": 0}
        command("keys", "revoke", identity.key_id)
        assert records.identify(secret.encode()) is None
        assert revoked == [identity.key_id]


def test_backends(command: Command, directory: Path) -> None:
    assert "there is no database" in command("backends", code=1).stderr
    error = LastError("status 500", 1_790_000_000)
    views = (
        BackendView("local", "engine", ["a"], BackendState("ok", 1_500)),
        BackendView("rack", "upstream", ["a", "b"], BackendState("backing off", 0, error, ("flex",), 12.4)),
        BackendView("far", "upstream", ["b"], BackendState("failed", 2, error)),
    )
    with serving(directory, views):
        assert lines(command("backends"))[1:] == [
            ["local", "engine", "a", "ok", "1,500"],
            ["rack", "upstream", "a, b", "backing off at flex, 12 s more", "0", "status 500 (2026-09-21 14:13:20 UTC)"],
            ["far", "upstream", "b", "failed", "2", "status 500 (2026-09-21 14:13:20 UTC)"],
        ]
        assert [row["state"] for row in json.loads(command("backends", "--json").stdout)["data"]] == [
            *("ok", "backing off", "failed")
        ]
    assert "no server runs on this data directory" in command("backends", code=1).stderr


def test_many_commands_while_requests_are_recorded(command: Command, directory: Path) -> None:
    with serving(directory) as records:
        _, secret = records.create_key("default")
        commands = [
            subprocess.Popen(
                [*COMMAND, "keys", "create", "--project", "default", "--name", f"n{number}"],
                stdout=subprocess.PIPE,
                text=True,
                env=environment(ULTRAFAST_DATA=str(directory)),
            )
            for number in range(4)
        ]
        recorded = 0
        while any(process.poll() is None for process in commands):
            for _ in range(20):
                records.record(entry())
                recorded += 1
            assert records.identify(secret.encode()) is not None
            time.sleep(0.01)
        secrets = [process.communicate()[0].strip() for process in commands]
        assert [process.returncode for process in commands] == [0] * 4
        assert len({secret, *secrets}) == 5
        assert all(records.identify(key.encode()) for key in secrets)
        assert records.usage([])[0].requests == recorded > 0
    with Records.open(directory) as records:
        known = records.keys()
        assert {key.name for key in known} == {"unnamed", "n0", "n1", "n2", "n3"}
        assert records.usage([])[0].requests == recorded


def test_commands_at_once_without_a_server_wait_for_each_other(command: Command, directory: Path) -> None:
    commands = [
        subprocess.Popen(
            [*COMMAND, "projects", "create", f"team-{number}"],
            stdout=subprocess.DEVNULL,
            env=environment(ULTRAFAST_DATA=str(directory)),
        )
        for number in range(3)
    ]
    assert [process.wait(60) for process in commands] == [0] * 3
    assert command("projects", "list").stdout.count("team-") == 3


def test_a_directory_that_is_held_without_a_socket_is_one_line(
    command: Command, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(administration, "_PATIENCE_SECONDS", 0.5)
    with Records.open(directory):
        error = command("projects", "list", code=2).stderr
    assert str(directory) in error
    assert "ULTRAFAST_DATA" in error


def test_a_killed_servers_socket_is_no_obstacle(command: Command, directory: Path) -> None:
    with Records.open(directory), closing(socket.socket(socket.AF_UNIX)) as stale:
        stale.bind(str(directory / "admin.sock"))
    assert command("preview", "list").stdout == "default\n"


def test_a_server_that_breaks_off_is_one_line(command: Command, directory: Path) -> None:
    directory.mkdir(mode=0o700)
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(directory / "admin.sock"))
        listener.listen()

        def answers() -> Iterator[bytes]:
            yield b""
            yield b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
            yield b"HTTP/1.1 500 Oops\r\ncontent-length: 2\r\n\r\n{}"

        def serve() -> None:
            for content in answers():
                with listener.accept()[0] as connection:
                    connection.recv(65536)
                    connection.sendall(content)

        thread = threading.Thread(target=serve)
        thread.start()
        assert "whether it did what was asked is not known" in command("projects", "create", "x", code=1).stderr
        assert "no ultrafast server" in command("projects", "list", code=1).stderr
        assert "no ultrafast server" in command("projects", "list", code=1).stderr
        thread.join()


def test_an_interrupt_ends_a_command_quietly(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(directory / "admin.sock"))
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, "-m", "ultrafast.cli", "projects", "list"],
            stderr=subprocess.PIPE,
            env=environment(ULTRAFAST_DATA=str(directory)),
        )
        listener.settimeout(60)
        with listener.accept()[0]:
            os.kill(process.pid, signal.SIGINT)
            assert (process.communicate(timeout=30)[1], process.returncode) == (b"", 130)


def test_a_listing_does_not_load_what_it_does_not_need(directory: Path) -> None:
    """Beside a server a command starts fast: neither the database's library nor the server's is loaded."""
    program = "import sys; from ultrafast.cli.application import execute; code = execute(['preview', 'list']);"
    program += "print(code, sorted({'sqlalchemy', 'uvicorn', 'numpy', 'rich'} & set(sys.modules)), file=sys.stderr)"
    with serving(directory):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env=environment(ULTRAFAST_DATA=str(directory)),
            check=False,
        )
    assert (done.stdout, done.stderr) == ("default\n", "0 []\n")
