"""What a folder stands for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.weights.gguf_bytes import sound
from tests.weights.safetensors_bytes import write_directory
from tests.weights.test_gguf_parts import part, write
from ultrafast.errors import ModelError, UnsupportedModelError
from ultrafast.weights import open_model
from ultrafast.weights.folders import collected_files
from ultrafast.weights.store import resolve_model


def test_a_folder_with_one_gguf_file_stands_for_it(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(sound())
    for beside in ("README.md", "config.json", "mmproj-m.gguf", "m.imatrix.gguf"):
        (tmp_path / beside).write_bytes(b"{}")
    location = resolve_model(str(tmp_path))
    assert (location.name, location.path) == ("m", tmp_path / "m.gguf")
    with open_model(tmp_path) as source:
        assert source.path == tmp_path / "m.gguf"


def test_a_folder_with_the_parts_of_one_model_stands_for_it(tmp_path: Path) -> None:
    paths = write(tmp_path, part(1, 2, "a", total=2), part(2, 2, "b", total=2))
    assert resolve_model(str(tmp_path)).path == paths[0]
    paths[0].unlink()
    with pytest.raises(ModelError, match="part 1 of 2 is missing"):
        open_model(resolve_model(str(tmp_path)).path)


def test_a_model_of_safetensors_goes_before_a_gguf_file(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "model")
    (directory / "m.gguf").write_bytes(sound())
    assert resolve_model(str(directory)).path == directory


def test_a_collection_is_told_from_a_model(tmp_path: Path) -> None:
    assert collected_files("") == collected_files(str(tmp_path / "absent")) == collected_files(str(tmp_path)) == []
    (tmp_path / "notes.txt").write_text("")
    assert collected_files(str(tmp_path)) == [str(tmp_path / "notes.txt")]
    write(tmp_path, part(1, 2, "a", total=2), part(2, 2, "b", total=2))
    assert collected_files(str(tmp_path)) == []  # one model, and what lies beside it
    (tmp_path / "n.gguf").write_bytes(b"")
    assert [Path(path).name for path in collected_files(str(tmp_path))] == [
        "m-00001-of-00002.gguf",
        "n.gguf",
        "notes.txt",
    ]
    assert collected_files(str(write_directory(tmp_path / "model"))) == []


def hub_cache(directory: Path, *revisions: str, main: str | None = None) -> Path:
    """A repository as the hub's own library keeps it: links to files by their hashes."""
    repository = directory / "models--some-org--Some-Model"
    for revision in revisions:
        snapshot = write_directory(repository / "snapshots" / revision)
        (repository / "blobs").mkdir(exist_ok=True)
        for file in list(snapshot.iterdir()):
            blob = repository / "blobs" / f"{revision}-{file.name}"
            file.rename(blob)
            file.symlink_to(f"../../blobs/{blob.name}")
    if main is not None:
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(main)
    return repository


def test_a_repository_of_the_hub_s_cache_stands_for_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = hub_cache(tmp_path, "a" * 40, "b" * 40, main="b" * 40)
    snapshot = repository / "snapshots" / ("b" * 40)
    monkeypatch.chdir(repository)
    for given in (repository, repository / "snapshots", snapshot, Path(), Path("snapshots")):
        location = resolve_model(str(given))
        assert (location.name, location.path) == ("Some-Model", snapshot)
        open_model(given).close()
        assert collected_files(str(given)) == []
    assert collected_files(str(tmp_path)) == [str(repository)]


@pytest.mark.parametrize("main", [None, "", "../../..", "c" * 40])
def test_a_repository_without_a_main_version(tmp_path: Path, main: str | None) -> None:
    only = hub_cache(tmp_path / "one", "a" * 40, main=main)
    assert resolve_model(str(only)).path == only / "snapshots" / ("a" * 40)
    several = hub_cache(tmp_path / "two", "a" * 40, "b" * 40, main=main)
    with pytest.raises(UnsupportedModelError, match=r"in 2 versions: name the folder of one, such as .*/snapshots/a+$"):
        resolve_model(str(several))
    assert collected_files(str(several)) == []
    (tmp_path / "none" / "models--a--b" / "snapshots").mkdir(parents=True)
    with pytest.raises(UnsupportedModelError, match="a folder without a model"):
        resolve_model(str(tmp_path / "none" / "models--a--b"))


def test_a_gguf_file_in_the_hub_s_cache(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--some-org--Some-Model-GGUF" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "m.gguf").write_bytes(sound())
    assert resolve_model(str(snapshot.parent.parent)).path == snapshot / "m.gguf"


def test_a_pipe_in_the_hubs_cache_is_not_waited_for(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    (repository / "snapshots" / "abc").mkdir(parents=True)
    (repository / "snapshots" / "abc" / "m.gguf").write_bytes(sound())
    (repository / "refs").mkdir()
    os.mkfifo(repository / "refs" / "main")
    assert resolve_model(str(repository)).path == repository / "snapshots" / "abc" / "m.gguf"
