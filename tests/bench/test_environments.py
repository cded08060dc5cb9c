"""Environments are really made, by the real pip, from a package index in a folder."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from ultrafast.bench import environments
from ultrafast.bench.catalogue import PEERS, Environment
from ultrafast.errors import ConfigurationError


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one wheel: a package that knows its answer."""
    folder = tmp_path_factory.mktemp("index")
    information = "peer_package-1.0.dist-info"
    with zipfile.ZipFile(folder / "peer_package-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("peer_package.py", "ANSWER = 42\n")
        wheel.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: peer-package\nVersion: 1.0\n")
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")
    return folder


@pytest.fixture
def environment(index: Path) -> Environment:
    return Environment(
        "test-peer", ("peer-package==1.0",), ("--no-index", "--find-links", str(index)), remark="installing"
    )


def answer_of(python: Path) -> str:
    return subprocess.run(
        [python, "-c", "import peer_package; print(peer_package.ANSWER)"], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_an_environment_is_made_once_and_continued_after_an_interruption(
    environment: Environment, tmp_path: Path
) -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(line: str) -> None:
        if line.startswith("installing"):
            raise Interrupted

    with pytest.raises(Interrupted):
        environments.interpreter(environment, tmp_path, interrupt)

    lines: list[str] = []
    python = environments.interpreter(environment, tmp_path, lines.append)
    assert answer_of(python) == "42"
    assert any(line.startswith("installing: ") and "peer-package" in line for line in lines)
    assert Path(sys.executable).resolve() != python
    assert "peer-package" in (python.parent.parent / "install.log").read_text()

    def never(_: str) -> None:
        raise AssertionError("made twice")

    assert environments.interpreter(environment, tmp_path, never) == python


def test_an_impossible_environment_is_one_line_and_stays_incomplete(environment: Environment, tmp_path: Path) -> None:
    impossible = replace(environment, requirements=("peer-package==2.0",))
    reason = r"^test-peer cannot be installed: ERROR: .*peer-package==2\.0"
    with pytest.raises(ConfigurationError, match=reason) as error:
        environments.interpreter(impossible, tmp_path, lambda _: None)
    assert "\n" not in str(error.value)
    assert not (tmp_path / environments.folder_name(impossible) / "complete").exists()


def test_an_unwritable_cache_is_one_line(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be installed"):
        environments.interpreter(environment, tmp_path / "file", lambda _: None)


def test_another_interpreter_may_be_named(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert environment.override_variable == "ULTRAFAST_BENCH_PEER_TEST_PEER"
    monkeypatch.setenv("ULTRAFAST_BENCH_PEER_TEST_PEER", sys.executable)
    assert environments.interpreter(environment, tmp_path, lambda _: None) == Path(sys.executable)
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("ULTRAFAST_BENCH_PEER_TEST_PEER", str(tmp_path / "absent"))
    with pytest.raises(ConfigurationError, match="ULTRAFAST_BENCH_PEER_TEST_PEER names no program"):
        environments.interpreter(environment, tmp_path, lambda _: None)


def test_a_new_recipe_gets_a_new_folder() -> None:
    llama_cpp = PEERS["llama-cpp"].environment
    names = {
        environments.folder_name(variant)
        for variant in (
            llama_cpp,
            replace(llama_cpp, requirements=("llama-cpp-python==0.3.35",)),
            replace(llama_cpp, variables={}),
            replace(llama_cpp, pip_options=()),
        )
    }
    assert len(names) == 4
    assert all(name.startswith("llama-cpp-") for name in names)
