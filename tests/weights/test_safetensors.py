"""Hugging Face directories: what a sound one gives, and FAULTS row 17 for those that are not."""

from __future__ import annotations

import json
import os
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.weights.safetensors_bytes import (
    CONFIGURATION,
    entry,
    safetensors,
    small,
    sound,
    write_directory,
    write_index,
)
from ultrafast.errors import ModelError, ModelFileError, UnsupportedModelError
from ultrafast.weights import open_model
from ultrafast.weights import safetensors as reader
from ultrafast.weights.huggingface import HuggingFaceDirectory, open_directory

MAX_SECONDS = 2.0
MAX_BYTES = 4 << 20  # for files of a few hundred bytes
F32 = entry("F32", [4], 0, 16)


@pytest.mark.parametrize("sharded", [False, True])
def test_tensors_and_configuration(tmp_path: Path, sharded: bool) -> None:
    with open_model(write_directory(tmp_path, sharded=sharded)) as model:
        assert isinstance(model, HuggingFaceDirectory)
        for name, array in small().items():
            tensor = model.tensors[name]
            assert tensor.shape == array.shape
            assert tensor.byte_count == array.nbytes
            assert tensor.data.tobytes() == array.tobytes()
            assert not tensor.data.flags.writeable
        assert [path.name for path in model.files][-1] == (
            "model-00003-of-00003.safetensors" if sharded else "model.safetensors"
        )
        assert model.string("model_type") == "llama"
        assert model.integer("hidden_size") == 4
        assert model.real("rope_scaling.factor") == 8.0
        assert model.integer("x", 7) == 7  # null is absent
        assert model.find("hidden_size.x") is None


def test_what_the_format_s_own_writer_writes(tmp_path: Path) -> None:
    arrays = {"b": np.ones((3, 5), np.float16), "a": np.zeros((0, 2), np.float32), "c": np.float32([1.5])}
    write_directory(tmp_path)
    save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with open_directory(tmp_path) as model:
        assert {name: tensor.data.tobytes() for name, tensor in model.tensors.items()} == {
            name: array.tobytes() for name, array in arrays.items()
        }


def test_lists_of_the_configuration(tmp_path: Path) -> None:
    write_directory(tmp_path)
    lists = {"texts": ["a", "b"], "whole": [1, 2], "real": [1, 2.5, 10**400], "mixed": [1, "a"], "flags": [True]}
    (tmp_path / "config.json").write_text(json.dumps(CONFIGURATION | lists))
    with open_directory(tmp_path) as model:
        assert model.strings("texts") == ["a", "b"]
        assert model.numbers("whole").dtype == np.int64
        assert model.numbers("real").tolist() == [1.0, 2.5, float("inf")]
        for key in ("mixed", "flags"):
            with pytest.raises(ModelFileError, match=f"metadata {key} is not an array of numbers"):
                model.numbers(key)
            with pytest.raises(ModelFileError, match="not an array of strings"):
                model.strings(key)


DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "a byte": b"\1",
    "length only": struct.pack("<Q", 2),
    "length of all": safetensors({"t": F32}, bytes(16), length=2**64 - 1),
    "header over 100 MB": safetensors({"t": F32}, bytes(16), length=100_000_001),
    "header beyond the file": safetensors({"t": F32}, length=4096),
    "header cut": safetensors({"t": F32}, bytes(16), length=20),
    "header into the data": safetensors({"t": F32}, bytes(16), length=100),
    "no JSON": safetensors(b"{]"),
    "not UTF-8": safetensors(b'{"\xff": 1}'),
    "an array": safetensors(b"{}[]"),
    "spaces before": safetensors(b"   " + json.dumps({"t": F32}).encode(), bytes(16)),
    "nested deeply": safetensors(b'{"a":' * 100_000),
    "nested too deeply": safetensors(b'{"a":' * 40 + b"1" + b"}" * 40),
    "many values": safetensors(b'{"a":[' + b"1," * 1_000_000 + b"1]}"),
    "repeated tensor": safetensors(b'{"t":' + json.dumps(F32).encode() + b',"t":' + json.dumps(F32).encode() + b"}"),
    "repeated key": safetensors(
        b'{"t":{"dtype":"F32","dtype":"F16","shape":[4],"data_offsets":[0,16]}}', bytes(16)
    ),
    "empty name": safetensors({"": F32}, bytes(16)),
    "long name": safetensors({"t" * 256: F32}, bytes(16)),
    "entry a list": safetensors({"t": [1]}, bytes(16)),
    "key missing": safetensors({"t": {"dtype": "F32", "shape": [4]}}, bytes(16)),
    "key too many": safetensors({"t": {**F32, "more": 1}}, bytes(16)),
    "dtype a number": safetensors({"t": {**F32, "dtype": 3}}, bytes(16)),
    "shape a number": safetensors({"t": {**F32, "shape": 4}}, bytes(16)),
    "shape of text": safetensors({"t": {**F32, "shape": ["4"]}}, bytes(16)),
    "shape of truth": safetensors({"t": {**F32, "shape": [True, 4]}}, bytes(16)),
    "shape real": safetensors({"t": {**F32, "shape": [4.0]}}, bytes(16)),
    "shape negative": safetensors({"t": {**F32, "shape": [-2, -2]}}, bytes(16)),
    "shape wraps": safetensors({"t": entry("F32", [2**62, 4], 0, 0)}),
    "shape huge": safetensors({"t": entry("F32", [2**40, 2**40], 0, 16)}, bytes(16)),
    "shape of many": safetensors({"t": {**F32, "shape": [1] * 8 + [4]}}, bytes(16)),
    "5,000 digits": safetensors(b'{"t":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,1]}}'),
    "NaN": safetensors(b'{"t":{"dtype":"F32","shape":[NaN],"data_offsets":[0,16]}}', bytes(16)),
    "one offset": safetensors({"t": {**F32, "data_offsets": [16]}}, bytes(16)),
    "offsets reversed": safetensors({"t": {**F32, "data_offsets": [16, 0]}}, bytes(16)),
    "offsets negative": safetensors({"t": {**F32, "data_offsets": [-16, 0]}}, bytes(16)),
    "offsets huge": safetensors({"t": {**F32, "data_offsets": [2**63, 2**63 + 16]}}, bytes(16)),
    "another extent": safetensors({"t": {**F32, "data_offsets": [0, 12]}}, bytes(12)),
    "beyond the file": safetensors({"t": F32}, bytes(15)),
    "no data": safetensors({"t": F32}),
    "overlap": safetensors({"t": F32, "u": entry("F32", [4], 8, 24)}, bytes(24)),
    "the same extent": safetensors({"t": F32, "u": F32}, bytes(16)),
    "gap": safetensors({"t": F32, "u": entry("F32", [4], 20, 36)}, bytes(36)),
    "gap at the start": safetensors({"t": entry("F32", [4], 4, 20)}, bytes(20)),
    "bytes at the end": safetensors({"t": F32}, bytes(17)),
}  # fmt: skip


def fails(directory: Path, kind: type[ModelError] = ModelFileError, match: str | None = None) -> str:
    """Opening fails with ``kind``, on one printable line that names the directory, cheaply."""
    started = time.process_time()
    with pytest.raises(kind, match=match) as caught:
        open_model(directory)
    seconds = time.process_time() - started
    assert type(caught.value) is kind
    message = str(caught.value)
    assert message.isprintable()
    assert str(directory) in message
    assert len(message) < 400
    assert seconds < MAX_SECONDS
    return message


@pytest.mark.parametrize("name", DAMAGED)
def test_row_17_damaged(tmp_path: Path, name: str) -> None:
    write_directory(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(DAMAGED[name])
    fails(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError):
            open_model(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES + 2 * len(DAMAGED[name])
    finally:
        tracemalloc.stop()


def test_row_17_wrong_types(tmp_path: Path) -> None:
    write_directory(tmp_path)
    path = tmp_path / "model.safetensors"
    for dtype, size in (("F64", 8), ("I64", 8), ("F8_E4M3", 1), ("BOOL", 1), ("U32", 4)):
        path.write_bytes(safetensors({"t": entry(dtype, [4], 0, 4 * size)}, bytes(4 * size)))
        fails(tmp_path, UnsupportedModelError, rf"'t'\) is of type {dtype}; supported types are BF16, F16, F32")
        with open_model(tmp_path, any_type=True) as model:
            assert model.tensors["t"].byte_count == 4 * size
    path.write_bytes(safetensors({"t": entry("\x1b[2J", [4], 0, 16)}, bytes(16)))
    fails(tmp_path, UnsupportedModelError, "an unknown type")


def test_row_17_messages_say_what_is_wrong(tmp_path: Path) -> None:
    write_directory(tmp_path)
    for name, match in {
        "overlap": "'u' overlaps another tensor",
        "gap": "gap in the data before tensor 'u'",
        "beyond the file": "tells of 16 bytes of data and 15 are there: was its download cut",
        "header beyond the file": "ends inside its header",
        "repeated key": "repeats the key 'dtype'",
        "header over 100 MB": "claims a header of more than 16,777,216 bytes",
    }.items():
        (tmp_path / "model.safetensors").write_bytes(DAMAGED[name])
        fails(tmp_path, match=match)


def test_row_17_every_truncation_and_every_byte_changed(tmp_path: Path) -> None:
    write_directory(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.unlink()  # an earlier mapping keeps its own file
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=str(tmp_path)):
            open_model(tmp_path)
    for position in range(len(whole)):
        for value in (0, 0xFF, whole[position] ^ 1):
            path.unlink()
            path.write_bytes(whole[:position] + bytes([value]) + whole[position + 1 :])
            try:
                model = open_model(tmp_path)
            except ModelError:
                continue
            assert all(tensor.data.size == tensor.byte_count for tensor in model.tensors.values())


@pytest.mark.parametrize(
    "file_name",
    ["../out.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", "", "a\0b", "..\\x", "link.safetensors", 3],
)
def test_row_17_an_index_leads_nowhere_else(tmp_path: Path, file_name: object) -> None:
    directory = write_directory(tmp_path / "model", sharded=True)
    (tmp_path / "out.safetensors").write_bytes(sound(t=np.ones(4, np.float32)))
    (directory / "link.safetensors").symlink_to(tmp_path / "out.safetensors")
    write_index(directory, {"t": file_name})
    fails(directory)


def test_row_17_links_of_weights_and_configuration(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text(json.dumps(CONFIGURATION))
    directory = write_directory(tmp_path / "model")
    (directory / "config.json").unlink()
    (directory / "config.json").symlink_to(tmp_path / "out.json")
    fails(directory, match="link to outside its folder")
    (directory / "config.json").unlink()
    (directory / "config.json").symlink_to("config.json")
    fails(directory)


def test_the_hub_s_own_cache_is_a_directory_of_links(tmp_path: Path) -> None:
    blobs = tmp_path / "models--a--b" / "blobs"
    write_directory(blobs)
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).symlink_to(os.path.relpath(blobs / name, snapshot))
    with open_model(snapshot) as model:
        assert set(model.tensors) == set(small())


def test_row_17_an_index_that_does_not_fit(tmp_path: Path) -> None:
    directory = write_directory(tmp_path, sharded=True)
    first = "model-00001-of-00003.safetensors"
    for places in ({}, [], None, {"absent": first}, {"model.a.weight": "model-00002-of-00003.safetensors"}):
        write_index(directory, places)
        fails(directory)
    write_directory(tmp_path, sharded=True)
    (directory / first).unlink()
    fails(directory, match=r"'model-00001-of-00003\.safetensors' that it names is missing")
    (directory / "model.safetensors.index.json").write_text('{"weight_map":' * 50_000)
    fails(directory)


def test_row_17_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_directory(tmp_path, sharded=True)
    monkeypatch.setattr(reader, "MAX_SHARDS", 2)
    fails(directory, match="more than 2 files")
    monkeypatch.setattr(reader, "MAX_TENSORS", 2)
    fails(directory, match="more than 2 tensors")
    monkeypatch.setattr(reader, "MAX_INDEX_BYTES", 20)
    fails(directory, match="longer than 20 bytes")


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{", '{"model_type": 3}', "{}", '{"model_type": "a", "model_type": "b"}', '{"a": 1e999, "b": NaN}'),
        *('{"a":' * 40 + "1" + "}" * 40, " " * (4 << 20) + " {}"),
    ],
)
def test_row_17_configuration(tmp_path: Path, content: str) -> None:
    write_directory(tmp_path)
    (tmp_path / "config.json").write_text(content)
    fails(tmp_path)


@pytest.mark.parametrize(
    ("change", "scheme"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "bitsandbytes"),
        ({"quantization_config": {"quant_method": "\x1b[2J"}}, "an unknown method"),
        ({"quantization_config": [4]}, "an unknown method"),
        ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "fp8"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "mlx"),
    ],
)
def test_quantised_directories_are_named(tmp_path: Path, change: dict[str, object], scheme: str) -> None:
    write_directory(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIGURATION | change))
    fails(tmp_path, UnsupportedModelError, rf"quantised \({scheme}\), which is not supported: fetch it as GGUF")
    open_model(tmp_path, any_type=True).close()
