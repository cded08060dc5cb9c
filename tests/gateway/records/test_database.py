"""The file's versions, its failures, and what a kill leaves of it."""

from __future__ import annotations

import hashlib
import re
import resource
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import inspect, text

from tests.gateway.records.entries import entry
from ultrafast.errors import ConfigurationError
from ultrafast.gateway.records import database as module
from ultrafast.gateway.records.database import APPLICATION_ID, SCHEMA_VERSION, Database
from ultrafast.gateway.records.projects import Project
from ultrafast.gateway.records.store import Records

ROOT = Path(__file__).parents[3]

# A file as version 1 left it; never to be changed.
SECRET_OF_VERSION_1 = "uf-of-the-first-version"
VERSION_1 = f"""
CREATE TABLE projects (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL UNIQUE,
  created INTEGER NOT NULL, default_tier TEXT NOT NULL, in_preview INTEGER NOT NULL);
CREATE TABLE keys (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
  project TEXT NOT NULL REFERENCES projects (id), name TEXT NOT NULL, created INTEGER NOT NULL,
  digest BLOB NOT NULL UNIQUE, hint TEXT NOT NULL, revoked INTEGER);
CREATE TABLE capacity (tier TEXT PRIMARY KEY, slots INTEGER NOT NULL);
INSERT INTO projects VALUES (1, 'proj_1', 'default', 1790000000, 'default', 1);
INSERT INTO projects VALUES (2, 'proj_2', 'second', 1790000001, 'flex', 0);
INSERT INTO keys VALUES (1, 'key_1', 'proj_2', 'old', 1790000002,
  x'{hashlib.sha256(SECRET_OF_VERSION_1.encode()).hexdigest()}', 'sion', NULL);
INSERT INTO capacity VALUES ('ultrafast', 5);
PRAGMA application_id = {0x55465354};
PRAGMA user_version = 1;
"""


def write(directory: Path, script: str) -> Path:
    directory.mkdir(mode=0o700)
    path = directory / "ultrafast.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def pragma(path: Path, name: str) -> object:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]


def test_a_file_of_version_1_is_brought_up_to_date(directory: Path) -> None:
    path = write(directory, VERSION_1)
    for _ in range(2):  # and then opened as it is
        with Records.open(directory) as records:
            assert records.projects() == [
                Project("proj_1", "default", 1790000000, "default", True),
                Project("proj_2", "second", 1790000001, "flex", False),
            ]
            identity = records.identify(SECRET_OF_VERSION_1.encode())
            assert identity is not None
            assert (identity.project.name, identity.key_id) == ("second", "key_1")
            assert records.capacity() == {"ultrafast": 5}
            records.record(entry(project="proj_2"))
    with Records.open(directory) as records:
        (row,) = records.usage(["project"])
        assert (row.group, row.requests) == ({"project": "second"}, 2)
    assert pragma(path, "user_version") == SCHEMA_VERSION
    assert pragma(path, "application_id") == APPLICATION_ID


def test_the_migrations_add_up_to_the_tables(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    with closing(Database(directory / "ultrafast.db")) as database, database.reading() as connection:
        there = inspect(connection)
        assert set(there.get_table_names()) == set(module._metadata.tables)
        for name, table in module._metadata.tables.items():
            columns = {column["name"]: column for column in there.get_columns(name)}
            assert list(columns) == [column.name for column in table.columns]
            for column in table.columns:
                if not column.primary_key:
                    assert columns[column.name]["nullable"] == column.nullable, (name, column.name)


def test_a_migration_is_made_wholly_or_not_at_all(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(directory, VERSION_1)
    monkeypatch.setattr(module, "_MIGRATIONS", (*module._MIGRATIONS, ("CREATE TABLE later (x)", "no statement")))
    with pytest.raises(ConfigurationError):
        Records.open(directory)
    assert pragma(path, "user_version") == 1
    monkeypatch.undo()
    with Records.open(directory) as records:
        assert len(records.projects()) == 2
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'later'").fetchone() == (0,)


def test_a_file_of_a_newer_version_is_refused_and_left_alone(directory: Path) -> None:
    path = write(directory, f"CREATE TABLE x (y); PRAGMA application_id = {0x55465354}; PRAGMA user_version = 99;")
    content = path.read_bytes()
    with pytest.raises(ConfigurationError, match=r"newer version of ultrafast \(schema 99.*update ultrafast") as caught:
        Records.open(directory)
    assert "\n" not in str(caught.value)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("x",)]
    assert path.read_bytes()[60:64] == content[60:64]  # user_version, in SQLite's header


def test_another_programs_database_is_refused(directory: Path) -> None:
    write(directory, "CREATE TABLE bookmarks (address TEXT)")
    with pytest.raises(ConfigurationError, match="a database of another program"):
        Records.open(directory)


def test_a_damaged_file_is_one_line(directory: Path) -> None:
    with Records.open(directory) as records:
        for number in range(300):
            records.create_key("default", f"{number}")
    path = directory / "ultrafast.db"
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="damaged") as caught:
        Records.open(directory)
    assert "\n" not in str(caught.value)


def test_a_full_disk_has_a_name(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    with closing(Database(directory / "ultrafast.db")) as database:
        with pytest.raises(ConfigurationError, match="the disk is full"), database.writing() as connection:
            connection.execute(text("PRAGMA max_page_count = 1"))
            connection.execute(text("CREATE TABLE big AS SELECT zeroblob(1000000)"))
        with database.reading() as connection:
            assert connection.execute(text("SELECT count(*) FROM projects")).scalar_one() == 0


def limited(program: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with a file size limit that it may raise: every write beyond fails, as on a full disk."""
    return subprocess.run(
        [sys.executable, "-c", program, str(directory)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY)),
    )


OPENING = """
import sys
from pathlib import Path
from ultrafast.errors import ConfigurationError
from ultrafast.gateway.records.store import Records
try:
    Records.open(Path(sys.argv[1]))
except ConfigurationError as error:
    print(error)
"""


@pytest.mark.parametrize("existing", [False, True])
def test_opening_on_a_full_disk_is_one_line(directory: Path, existing: bool) -> None:
    if existing:
        Records.open(directory).close()
    done = limited(OPENING, directory)
    assert done.stderr == ""
    assert re.fullmatch(r".*ultrafast\.db cannot be used: the disk .*ULTRAFAST_DATA.*\n", done.stdout), done.stdout


KILLED = """
import sys, time
from pathlib import Path
from tests.gateway.records.entries import entry
from ultrafast.gateway.records.store import Records
records = Records.open(Path(sys.argv[1]))
print(records.create_key("default", "before")[1], flush=True)
number = 0
while True:
    for _ in range(50):
        records.record(entry(request_id=f"req_{number}", completion_tokens=number))
        number += 1
    if records._writer.flush(10):
        print(number, flush=True)
"""


def test_what_was_written_survives_a_kill(directory: Path) -> None:
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(directory)], stdout=subprocess.PIPE, cwd=ROOT)
        assert process.stdout is not None
        secret = process.stdout.readline().strip()
        for _ in range(8):
            written = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with Records.open(directory) as records:
            assert records.identify(secret) is not None
            (row,) = records.usage([])
            assert row.requests >= written
            assert row.completion_tokens == sum(range(row.requests))  # each once, none of them torn
        assert pragma(directory / "ultrafast.db", "integrity_check") == "ok"
        (directory / "ultrafast.db").unlink()
