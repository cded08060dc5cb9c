from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from ultrafast.bench.provenance import commit_of, sha256_of


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", folder, *identity, *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository laid out as this one: a package below ``src``."""
    folder = tmp_path / "checkout"
    (folder / "src" / "package").mkdir(parents=True)
    (folder / "src" / "package" / "__init__.py").write_text("ANSWER = 42\n")
    git(tmp_path, "init", "-q", str(folder))
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The same package, installed elsewhere."""
    folder = tmp_path / "site-packages" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("ANSWER = 42\n")
    return folder


def test_a_package_in_its_checkout_is_of_that_commit(checkout: Path, tmp_path: Path) -> None:
    package = checkout / "src" / "package"
    head = git(checkout, "rev-parse", "HEAD")
    assert commit_of(package, tmp_path) == head
    (checkout / "benchmarks").mkdir()
    (checkout / "benchmarks" / "result.json").write_text("{}")  # no code
    assert commit_of(package, tmp_path) == head
    (package / "new.py").write_text("")
    assert commit_of(package, tmp_path) == f"{head}+changes"


def test_an_installed_package_is_of_the_checkout_around_only_if_it_is_the_same(checkout: Path, installed: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    assert commit_of(installed, checkout) == head
    assert commit_of(installed, installed) is None
    (installed / "__init__.py").write_text("ANSWER = 43\n")
    assert commit_of(installed, checkout) is None


def test_a_file_is_known_by_its_hash(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc" * 1000)
    assert sha256_of(tmp_path / "file") == hashlib.sha256(b"abc" * 1000).hexdigest()
