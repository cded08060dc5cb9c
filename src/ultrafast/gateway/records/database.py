"""The SQLite file: its tables, the migrations that led to them, and its failures in words for a person."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    text,
)
from sqlalchemy.exc import DBAPIError

from ultrafast.errors import ConfigurationError, storage_reason
from ultrafast.gateway.records.directory import own_file, unusable

APPLICATION_ID: Final = 0x55465354  # "UFST": which program's database this is
_BUSY_SECONDS = 5.0
_metadata = MetaData()

projects = Table(
    "projects",
    _metadata,
    Column("number", Integer, primary_key=True),  # the order they were made in
    Column("id", String, nullable=False),
    Column("name", String, nullable=False),
    Column("created", Integer, nullable=False),  # Unix seconds, as every time here
    Column("default_tier", String, nullable=False),
    Column("in_preview", Integer, nullable=False),
)
keys = Table(
    "keys",
    _metadata,
    Column("number", Integer, primary_key=True),
    Column("id", String, nullable=False),
    Column("project", String, nullable=False),
    Column("name", String, nullable=False),
    Column("created", Integer, nullable=False),
    Column("digest", LargeBinary, nullable=False),  # SHA-256 of the secret, which is kept nowhere
    Column("hint", String, nullable=False),
    Column("revoked", Integer),
)
capacity = Table(
    "capacity",
    _metadata,
    Column("tier", String, primary_key=True),
    Column("slots", Integer, nullable=False),
)
ledger = Table(
    "ledger",
    _metadata,
    Column("number", Integer, primary_key=True),
    Column("request_id", String, nullable=False),
    Column("started", Float, nullable=False),
    Column("project", String, nullable=False),
    Column("key_id", String, nullable=False),
    Column("model", String, nullable=False),
    Column("tier_asked", String),
    Column("tier_served", String),
    Column("backend", String),
    Column("status", Integer, nullable=False),
    Column("outcome", String, nullable=False),
    Column("finish_reason", String),
    Column("prompt_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("completion_tokens", Integer, nullable=False),
    Column("accepted_prediction_tokens", Integer, nullable=False),
    Column("rejected_prediction_tokens", Integer, nullable=False),
    Column("queue_seconds", Float),
    Column("prefill_seconds", Float),
    Column("decode_seconds", Float),
    Column("ttft_seconds", Float),
    Column("total_seconds", Float),
    Column("cost", Integer, nullable=False),
    Column("currency", String, nullable=False),
    Column("prompt_text", String),
    Column("answer_text", String),
)

# Each step leads from one version of the file to the next and is never changed once released; the tables above are
# what they add up to. PRAGMA user_version tells how many of them a file has had.
_MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        "CREATE TABLE projects (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL UNIQUE,"
        " created INTEGER NOT NULL, default_tier TEXT NOT NULL, in_preview INTEGER NOT NULL)",
        "CREATE TABLE keys (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,"
        " project TEXT NOT NULL REFERENCES projects (id), name TEXT NOT NULL, created INTEGER NOT NULL,"
        " digest BLOB NOT NULL UNIQUE, hint TEXT NOT NULL, revoked INTEGER)",
        "CREATE TABLE capacity (tier TEXT PRIMARY KEY, slots INTEGER NOT NULL)",
    ),
    (
        "CREATE TABLE ledger (number INTEGER PRIMARY KEY, request_id TEXT NOT NULL UNIQUE, started REAL NOT NULL,"
        " project TEXT NOT NULL, key_id TEXT NOT NULL, model TEXT NOT NULL, tier_asked TEXT, tier_served TEXT,"
        " backend TEXT, status INTEGER NOT NULL, outcome TEXT NOT NULL, finish_reason TEXT,"
        " prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,"
        " accepted_prediction_tokens INTEGER NOT NULL, rejected_prediction_tokens INTEGER NOT NULL,"
        " queue_seconds REAL, prefill_seconds REAL, decode_seconds REAL, ttft_seconds REAL, total_seconds REAL,"
        " cost INTEGER NOT NULL, currency TEXT NOT NULL, prompt_text TEXT, answer_text TEXT)",
        "CREATE INDEX ledger_by_time ON ledger (started)",
    ),
)
SCHEMA_VERSION: Final = len(_MIGRATIONS)


class Database:
    """The open file, its schema up to date. Safe for threads; transactions that write exclude each other."""

    def __init__(self, path: Path) -> None:
        """Open ``path``, made where it is missing; raises ConfigurationError where it cannot be read and written."""
        self.path = path
        try:
            # Closed before SQLite opens the file: closing it later would drop SQLite's own locks.
            os.close(own_file(path))
        except OSError as error:
            raise unusable(path, storage_reason(error)) from None
        self._engine = _engine(path)
        self._readers = self._engine.execution_options(reading=True)
        try:
            with self.writing() as connection:
                self._migrate(connection)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that no other one writes beside. Raises ConfigurationError where the file fails."""
        with self._translated(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A consistent view of the file, which waits for nobody. Raises ConfigurationError where the file fails."""
        with self._translated(), self._readers.begin() as connection:
            yield connection

    def close(self) -> None:
        """Close every connection; safe twice."""
        self._engine.dispose()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            if not is_storage_failure(error):
                raise
            raise unusable(self.path, reason_of(error)) from None

    def _migrate(self, connection: Connection) -> None:
        version = _pragma(connection, "user_version")
        tables = connection.execute(text("SELECT count(*) FROM sqlite_schema")).scalar_one()
        if _pragma(connection, "application_id") != APPLICATION_ID and (version or tables):
            raise unusable(self.path, "it is a database of another program")
        if version > SCHEMA_VERSION:
            raise ConfigurationError(
                f"{self.path} was written by a newer version of ultrafast (schema {version}; this one knows "
                f"{SCHEMA_VERSION}): update ultrafast, or choose another data directory"
            )
        for statements in _MIGRATIONS[version:]:
            for statement in statements:
                connection.execute(text(statement))
        # Written even where nothing changes: a disk that is full, or a file that is not ours to write, shows now.
        connection.execute(text(f"PRAGMA application_id = {APPLICATION_ID}"))
        connection.execute(text(f"PRAGMA user_version = {SCHEMA_VERSION}"))


def _engine(path: Path) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        # Statements carry prompts and digests: no error may repeat them.
        hide_parameters=True,
        # Transactions are ours to begin, below: sqlite3 would begin them late, and without their kind.
        connect_args={"isolation_level": None, "timeout": _BUSY_SECONDS},
        max_overflow=-1,  # a reader never waits for another's connection
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        reading = connection.get_execution_options().get("reading", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine


def _pragma(connection: Connection, name: str) -> int:
    return int(connection.execute(text(f"PRAGMA {name}")).scalar_one())


def is_storage_failure(error: DBAPIError) -> bool:
    """Whether it is the file that failed, rather than the values given to it."""
    return type(error.orig) in (sqlite3.OperationalError, sqlite3.DatabaseError)


def reason_of(error: DBAPIError) -> str:
    """Why the file failed, in words for a person; SQLite's own are not repeated, for they may hold values."""
    name = getattr(error.orig, "sqlite_errorname", "")
    for prefix, reason in _REASONS.items():
        if name.startswith(prefix):
            return reason
    return name or type(error.orig).__name__


_REASONS: Final = {
    "SQLITE_FULL": "the disk is full",
    "SQLITE_READONLY": "it cannot be written to",
    "SQLITE_IOERR": "the disk refused a read or a write",
    "SQLITE_CANTOPEN": "it cannot be opened",
    "SQLITE_BUSY": "another program holds it",
    "SQLITE_CORRUPT": "it is damaged",
    "SQLITE_NOTADB": "it is damaged, or no database",
}
