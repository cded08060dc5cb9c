"""`ultrafast models`; fetching itself is tested in tests/weights."""

from __future__ import annotations

from pathlib import Path

from ultrafast.weights.store import resolve_model

from .conftest import Ultrafast


def test_list_names_the_default_model_and_its_file(ultrafast: Ultrafast) -> None:
    path = resolve_model().path
    done = ultrafast("models", "list")
    assert done.returncode == 0
    assert done.stdout.startswith("smollm2-135m (default)  98.4 MB  SmolLM2 135M Instruct, Q4_1, Apache-2.0\n")
    assert str(path) in done.stdout


def test_list_says_what_is_not_here(ultrafast: Ultrafast, tmp_path: Path) -> None:
    done = ultrafast("models", "list", ULTRAFAST_CACHE=str(tmp_path))
    assert done.returncode == 0
    assert "not downloaded" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_pull_of_a_model_that_is_here_says_where(ultrafast: Ultrafast) -> None:
    path = resolve_model().path
    for arguments in (("models", "pull"), ("models", "pull", "smollm2-135m")):
        done = ultrafast(*arguments)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"smollm2-135m  98.4 MB  {path}\n", "")


def test_pull_of_an_unknown_name_is_one_line(ultrafast: Ultrafast) -> None:
    done = ultrafast("models", "pull", "gpt-99")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "smollm2-135m" in done.stderr


def test_an_unusable_cache_is_one_line(ultrafast: Ultrafast, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder", encoding="utf-8")
    done = ultrafast("run", "hi", ULTRAFAST_CACHE=str(blocked))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
