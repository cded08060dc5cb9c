"""What a folder stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.weights.gguf_bytes import sound
from tests.weights.safetensors_bytes import write_directory
from tests.weights.test_gguf_parts import part, write
from ultrafast.errors import ModelError
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
