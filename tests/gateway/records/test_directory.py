"""Where data lies, who may reach it, and one server at a time (FAULTS row 26)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ultrafast.errors import ConfigurationError
from ultrafast.gateway.records.directory import DirectoryInUseError, DirectoryLock, data_directory
from ultrafast.gateway.records.store import Records

NOBODY = 65534


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ULTRAFAST_DATA", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert data_directory() == tmp_path / ".local/share/ultrafast"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert data_directory() == tmp_path / "Library/Application Support/ultrafast"
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    assert data_directory() == tmp_path / "Library/Application Support/ultrafast"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert data_directory() == tmp_path / "xdg/ultrafast"
    assert data_directory("~/configured") == tmp_path / "configured"
    monkeypatch.setenv("ULTRAFAST_DATA", str(tmp_path / "chosen"))
    assert data_directory() == tmp_path / "chosen"
    assert data_directory("~/configured") == tmp_path / "configured"
    monkeypatch.setenv("ULTRAFAST_DATA", "~no-such-user-here/x")
    with pytest.raises(ConfigurationError, match="no such home directory"):
        data_directory()


def test_only_the_owner_can_read_anything(directory: Path) -> None:
    before = os.umask(0)
    try:
        with Records.open(directory):
            assert directory.stat().st_mode & 0o777 == 0o700
            names = {path.name for path in directory.iterdir()}
            assert {"ultrafast.db", "ultrafast.db-wal", "ultrafast.lock"} <= names
            assert [path.name for path in directory.iterdir() if path.stat().st_mode & 0o077] == []
    finally:
        os.umask(before)


def test_a_database_that_others_could_read_is_closed_to_them(directory: Path) -> None:
    with Records.open(directory):
        pass
    (directory / "ultrafast.db").chmod(0o644)
    with Records.open(directory):
        assert (directory / "ultrafast.db").stat().st_mode & 0o777 == 0o600


def test_a_second_server_gets_one_line(directory: Path) -> None:
    program = "import sys; from pathlib import Path; from ultrafast.gateway.records.store import Records\n"
    program += "Records.open(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        with pytest.raises(DirectoryInUseError) as caught:
            Records.open(directory)
        message = str(caught.value)
        assert str(directory) in message
        assert "ULTRAFAST_DATA" in message
        assert "data_directory" in message
        assert "\n" not in message
    finally:
        process.kill()
        process.communicate()
    Records.open(directory).close()  # a killed server leaves nothing locked


def test_a_failed_opening_holds_nothing(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    (directory / "ultrafast.db").write_bytes(b"this is no database, whatever its name says" * 100)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="damaged"):
            Records.open(directory)
    lock = DirectoryLock(directory)
    lock.close()
    lock.close()


@contextmanager
def as_a_user() -> Iterator[None]:
    """As one whom permissions bind: root is not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_directory_of_another_user(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        Records.open(directory)


def test_a_directory_that_cannot_be_written_to() -> None:
    with as_a_user(), tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o500)
        with pytest.raises(ConfigurationError) as caught:
            Records.open(folder)
        assert str(caught.value).startswith(f"{folder} cannot be used: Permission denied; ")
        assert "--data-directory" in str(caught.value)
        with pytest.raises(ConfigurationError, match="Permission denied"):
            Records.open(folder / "below")
        folder.chmod(0o700)
        Records.open(folder).close()
        folder.chmod(0o500)  # now the files are there, but SQLite cannot make its own beside them
        with pytest.raises(ConfigurationError, match="cannot be used: it cannot be"):
            Records.open(folder)
        folder.chmod(0o700)


def test_a_directory_that_others_may_write_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigurationError, match="others may write to it"):
        Records.open(tmp_path)


def test_what_is_in_the_way(tmp_path: Path, directory: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be used: "):
        Records.open(tmp_path / "file")
    with pytest.raises(ConfigurationError, match="cannot be used: "):
        Records.open(tmp_path / "file" / "below")
    directory.mkdir(mode=0o700)
    (directory / "ultrafast.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match=r"ultrafast\.db cannot be used"):
        Records.open(directory)
    (directory / "ultrafast.db").unlink()
    os.mkfifo(directory / "ultrafast.db")
    with pytest.raises(ConfigurationError, match="no regular file"):
        Records.open(directory)
