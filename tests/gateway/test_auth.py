"""API keys (FAULTS row 13)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ultrafast.errors import ConfigurationError
from ultrafast.gateway.auth import KEY_VARIABLE, IdentityCheck, obtain_key
from ultrafast.gateway.failures import HttpError
from ultrafast.gateway.records.store import Records

KEY = "uf-a-key-for-tests"


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    with Records.open(tmp_path / "data") as records:
        records.adopt_key(KEY)
        yield records


def admits(check: IdentityCheck, *values: bytes) -> bool:
    try:
        check.check([(b"authorization", value) for value in values])
    except HttpError as error:
        assert error.status == 401
        assert error.code == "invalid_api_key"
        assert KEY not in error.message
        return False
    return True


def test_only_the_key_opens(records: Records) -> None:
    check = IdentityCheck(records, required=True)
    assert admits(check, b"Bearer " + KEY.encode())
    assert admits(check, b"bearer   " + KEY.encode())
    for value in (
        b"",
        b"Bearer",
        b"Bearer ",
        b"Basic " + KEY.encode(),
        KEY.encode(),
        b"Bearer " + KEY.encode() + b"x",
        b"Bearer " + KEY.encode()[:-1],
        b"Bearer " + KEY.upper().encode(),
        b"Bearer ' OR 1=1 --",
        b"Bearer \xff\xfe\x00",
        b"Bearer " + b"x" * 100_000,
    ):
        assert not admits(check, value)
    assert not admits(check)
    assert not admits(check, b"Bearer " + KEY.encode(), b"Bearer " + KEY.encode())


def test_no_key_is_asked_for_only_where_that_was_chosen(records: Records) -> None:
    identity = IdentityCheck(records, required=False).check([])
    assert (identity.project.name, identity.key_id) == ("default", "")


def test_the_key_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    key = obtain_key(tmp_path, terminal=False)
    assert (key.value, key.path, key.generated) == (KEY, None, False)
    assert list(tmp_path.iterdir()) == []
    for bad in ("with space", "with\nline", "ключ", "x" * 5000):
        monkeypatch.setenv(KEY_VARIABLE, bad)
        with pytest.raises(ConfigurationError) as caught:
            obtain_key(tmp_path, terminal=False)
        assert bad not in str(caught.value)


def test_on_a_terminal_a_key_is_made_for_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    first, second = (obtain_key(tmp_path, terminal=True) for _ in range(2))
    assert first.value != second.value
    assert first.value.startswith("uf-")
    assert len(first.value) > 40
    assert list(tmp_path.iterdir()) == []


def test_elsewhere_the_key_is_kept_for_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "")
    directory = tmp_path / "cache"
    first = obtain_key(directory, terminal=False)
    assert first.path is not None
    assert first.path.stat().st_mode & 0o777 == 0o600
    second = obtain_key(directory, terminal=False)
    assert (first.value, first.generated, second.generated) == (second.value, True, False)

    first.path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="read by others"):
        obtain_key(directory, terminal=False)
    first.path.chmod(0o600)
    first.path.write_text("")
    with pytest.raises(ConfigurationError, match="empty"):
        obtain_key(directory, terminal=False)


@pytest.mark.parametrize("terminated", ["\n", "\r\n", ""])
def test_a_key_file_written_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminated: str) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    path = tmp_path / "api-key"
    for value in (KEY, "x" * 4000):
        path.write_bytes((value + terminated).encode())
        path.chmod(0o600)
        assert obtain_key(tmp_path, terminal=False).value == value


@pytest.mark.parametrize(
    "content", [b"with space\n", b"two\nlines\n", b"\xff\xfe", "ключ".encode(), b"a\0b", b"x" * 5000, b"\x1b[2J"]
)
def test_a_key_file_is_held_to_the_rules_of_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    path = tmp_path / "api-key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="printable ASCII") as caught:
        obtain_key(tmp_path, terminal=False)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert content.decode("latin-1").strip() not in str(caught.value)


def test_what_is_no_file_of_the_owner_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    path = tmp_path / "api-key"
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigurationError, match="not a regular file"):
        obtain_key(tmp_path, terminal=False)
    path.unlink()
    target = tmp_path / "another"
    target.write_text(KEY)
    target.chmod(0o600)
    path.symlink_to(target)
    with pytest.raises(ConfigurationError, match="symbolic link"):
        obtain_key(tmp_path, terminal=False)
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigurationError):
        obtain_key(tmp_path, terminal=False)
    path.rmdir()
    target.rename(path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigurationError, match="another user"):
        obtain_key(tmp_path, terminal=False)


def test_an_unusable_directory_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError) as caught:
        obtain_key(tmp_path / "file" / "directory", terminal=False)
    assert "\n" not in str(caught.value)
