"""The reader on sound files: the real model and a small one of every kind."""

from __future__ import annotations

import time
from pathlib import Path

import gguf as gguf_package
import numpy as np
import pytest

from tests.weights import gguf_bytes
from ultrafast.errors import ModelFileError, ModelNotFoundError
from ultrafast.weights.gguf import GgufFile, open_gguf


@pytest.fixture
def small(tmp_path: Path) -> GgufFile:
    path = tmp_path / "small.gguf"
    path.write_bytes(gguf_bytes.sound())
    return open_gguf(path)


def test_default_model_equals_the_gguf_package(gguf_file: GgufFile, model_path: Path) -> None:
    theirs = gguf_package.GGUFReader(model_path)
    assert list(gguf_file.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        ours = gguf_file.tensors[tensor.name]
        assert ours.type_name == tensor.tensor_type.name
        assert ours.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert ours.byte_count == tensor.n_bytes
        assert np.array_equal(ours.data, tensor.data.view(np.uint8).reshape(-1))
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert set(gguf_file.metadata) == set(fields)
    for name, field in fields.items():
        ours_value = gguf_file.metadata[name]
        assert (ours_value.tolist() if isinstance(ours_value, np.ndarray) else ours_value) == field.contents(), name


def test_default_model_opens_quickly(model_path: Path) -> None:
    def seconds() -> float:
        started = time.process_time()
        open_gguf(model_path).close()
        return time.process_time() - started

    assert min(seconds() for _ in range(5)) < 0.15


def test_values_of_every_type(small: GgufFile) -> None:
    assert small.version == 3
    assert small.alignment == 32
    assert small.string("general.architecture") == "llama"
    assert small.metadata["n.7"] is True
    for code in (0, 1, 2, 3, 4, 5, 10, 11):
        assert small.integer(f"n.{code}") == 1
        assert small.numbers(f"a.{code}").tolist() == [1, 0]
    assert small.real("n.6") == small.real("n.12") == 1.0
    assert small.numbers("a.7").dtype == np.bool_
    assert small.strings("a.empty") == []


def test_strings_lose_nothing(small: GgufFile) -> None:
    texts = small.strings("a.text")
    assert texts[:3] == ["a", "", "é"]
    assert texts[3].encode("utf-8", "surrogateescape") == b"\xff\xfe"


def test_tensors_are_read_only_views(small: GgufFile) -> None:
    assert small.tensors["f32"].shape == (2, 3)
    assert small.tensors["f32"].data[:4].tolist() == [0, 1, 2, 3]
    assert small.tensors["q8_0"].data.tolist() == [*range(224, 256), 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        small.tensors["f32"].data[0] = 1


def test_views_outlive_the_file_object(small: GgufFile) -> None:
    with small:
        data = small.tensors["q8_0"].data
    assert small.tensors == {}
    del small
    assert data.sum() == sum(range(224, 256)) + 3


def test_accessors_refuse_other_kinds(small: GgufFile) -> None:
    for read in (small.integer, small.real, small.boolean, small.strings, small.numbers):
        with pytest.raises(ModelFileError, match=r"general\.architecture"):
            read("general.architecture")
    with pytest.raises(ModelFileError, match=r"n\.4 is not a string"):
        small.string("n.4")
    with pytest.raises(ModelFileError, match="missing"):
        small.integer("absent")
    with pytest.raises(ModelFileError, match=r"outside 2\.\.3"):
        small.integer("n.4", minimum=2, maximum=3)
    assert small.integer("absent", 7) == 7
    with pytest.raises(ModelFileError, match="not an integer"):
        small.integer("n.7")


@pytest.mark.parametrize("kind", ["absent", "directory", "pipe", "nul"])
def test_no_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.gguf"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        import os

        os.mkfifo(path)
    elif kind == "nul":
        path = tmp_path / "a\0b"
    with pytest.raises(ModelNotFoundError) as caught:
        open_gguf(path)
    assert "\n" not in str(caught.value)
