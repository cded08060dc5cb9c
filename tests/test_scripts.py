"""The scripts behind `make`: what a fresh machine lacks is named, with the one command that installs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CHECK = ROOT / "scripts" / "check_requirements.sh"


class Machine:
    """A search path of its own, with nothing on it but what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy("/bin/sh", folder / "sh")
        self.program("id", "echo 0")

    def program(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def python(self, name: str, *, version: str = "3.12", lacks: str = "nothing") -> None:
        """A Python of this version that fails at any check whose text has ``lacks`` in it."""
        old = "exit 1" if version < "3.11" else "exit 0"
        self.program(
            name,
            f'case "$2" in *{lacks}*) exit 1;; *version_info\\ \\<*) {old};; *print*) echo {version};; esac; exit 0',
        )

    def check(self, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.folder / "sh"), str(CHECK)],
            env={"PATH": str(self.folder), **variables},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_bare_machine_with_apt(machine: Machine) -> None:
    machine.program("apt-get", "")
    done = machine.check()
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "error: missing: Python 3.11 or newer with venv and headers, a C++20 compiler; install with: "
        "apt-get install -y python3 python3-dev python3-venv g++\n"
    )


def test_an_old_python_with_dnf_and_a_user_who_is_not_root(machine: Machine) -> None:
    machine.program("dnf", "")
    machine.program("id", "echo 1000")
    machine.python("python3", version="3.09")
    machine.program("c++", "cat >/dev/null 2>&1; exit 0")
    done = machine.check()
    assert done.stderr.endswith("install with: sudo dnf install -y python3.12 python3.12-devel\n")


def test_a_python_without_venv(machine: Machine) -> None:
    machine.program("apt-get", "")
    machine.python("python3.12", lacks="ensurepip")
    machine.program("c++", "exit 0")
    done = machine.check()
    assert done.stderr == (
        "error: missing: the venv module of Python 3.12; install with: apt-get install -y python3.12-venv\n"
    )


def test_a_python_without_headers(machine: Machine) -> None:
    machine.program("dnf", "")
    machine.python("python3.12", lacks="Python.h")
    machine.program("c++", "exit 0")
    assert "the headers of Python 3.12; install with: dnf install -y python3-devel\n" in machine.check().stderr


def test_a_mac_without_a_compiler(machine: Machine) -> None:
    machine.program("xcode-select", "")
    machine.python("python3.13", version="3.13")
    machine.program("c++", "exit 1")
    assert machine.check().stderr == "error: missing: a C++20 compiler; install with: xcode-select --install\n"


def test_the_newest_working_python_is_taken(machine: Machine) -> None:
    machine.program("python3.14", "echo 'not installed' >&2; exit 127")  # as version managers leave behind
    machine.python("python3.13", version="3.13")
    machine.python("python3", version="3.11")
    machine.program("c++", "exit 0")
    done = machine.check()
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{machine.folder / 'python3.13'}\n", "")


def test_the_python_asked_for_is_taken_or_none(machine: Machine) -> None:
    machine.python("python3.13", version="3.13")
    machine.program("c++", "exit 0")
    machine.python("old", version="3.09")
    refused = machine.check(PYTHON="old")
    assert (refused.returncode, refused.stderr) == (
        1,
        "error: PYTHON names no interpreter of version 3.11 or newer\n",
    )
    assert machine.check(PYTHON="python3.13").stdout == f"{machine.folder / 'python3.13'}\n"


def test_this_machine_has_what_is_needed() -> None:
    done = subprocess.run(["sh", str(CHECK)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    subprocess.run([done.stdout.strip(), "-c", "import sys; assert sys.version_info >= (3, 11)"], check=True)


def test_outgrown_files_and_functions_are_found(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    body = "    pass\n" * 60
    (source / "long.py").write_text(f"def short():\n    pass\n\n\ndef long():\n{body}", encoding="utf-8")
    (source / "many.cpp").write_text("int x;\n" * 501, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "check_complexity.py")],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "src/long.py:5: function long has 61 lines (limit 60)",
        "src/many.cpp: 501 lines (limit 500)",
    ]


def test_an_unknown_extra_is_one_line() -> None:
    command = [sys.executable, "scripts/requirements.py", "demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: no extra is called demo; there are test, bench, lint\n"
