"""A folder of unknown files: each gets one helpful line, which says what it is and what to do."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import pickle
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.weights.gguf_bytes import F32, STRING, UINT32, array, entry, gguf, scalar, sound, string, tensor
from tests.weights.safetensors_bytes import write_directory
from ultrafast.errors import ModelError, ModelNotFoundError, UnsupportedModelError
from ultrafast.weights import open_model
from ultrafast.weights.store import resolve_model


def zipped(name: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(name, b"x" * 600)
    return content.getvalue()


def tarred() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.gguf"))
    return content.getvalue()


def text_entries(**texts: str) -> list[bytes]:
    return [entry(key.replace("_", "."), STRING, string(text)) for key, text in texts.items()]


def big_endian(content: bytes) -> bytes:
    return content[:4] + content[4:8][::-1] + content[8:]


HTML = b"\n<!DOCTYPE html>\n<html><head><title>Sign in</title>"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 98362432\n"
FILES: dict[str, tuple[bytes, str]] = {
    "empty.gguf": (b"", "an empty file.*Fetch it again"),
    "pointer.gguf": (POINTER, "Git LFS pointer.*git lfs pull"),
    "page.gguf": (HTML, "web page.*download it again"),
    "half.gguf": (sound()[:-100], "reaches beyond the end of the file.*Fetch it again"),
    "header.gguf": (sound()[:100], "the file ends inside"),
    "zeros.gguf": (bytes(4096), "begins with zeros: an unfinished"),
    "noise.gguf": (bytes(range(256)) * 8, "not a GGUF file"),
    "model.gguf.part": (bytes(range(256)), "unfinished download"),
    "model.gguf.crdownload": (bytes(range(9)), "unfinished download"),
    "big.gguf": (big_endian(sound()), "big-endian"),
    "old.gguf": (gguf(version=1), "GGUF version 1.*convert"),
    "future.gguf": (gguf(version=9), "GGUF version 9"),
    "ggml-model.bin": (b"tjgg" + bytes(64), "GGML file of the time before GGUF: fetch the model as GGUF"),
    "ggml.bin": (b"lmgg" + bytes(64), "GGML"),
    "lora.bin": (b"algg" + bytes(64), "LoRA"),
    "lora.gguf": (gguf(text_entries(general_type="adapter", general_architecture="llama")), "LoRA adapter.*merge"),
    "mmproj.gguf": (gguf(text_entries(general_type="mmproj", general_architecture="clip")), "encoder of a multimodal"),
    "clip.gguf": (gguf(text_entries(general_architecture="clip")), "encoder of a multimodal"),
    "imatrix.gguf": (gguf(text_entries(general_type="imatrix")), "importance matrix"),
    "wiki.imatrix": (bytes(range(64)), "importance matrix"),
    "vocabulary.gguf": (gguf(text_entries(tokenizer_ggml_model="gpt2")), "a vocabulary without weights"),
    "type.gguf": (gguf([], [tensor("t", [256], 15, 0)], bytes(512)), "type Q8_K, which .* another quantisation"),
    "huge.gguf": (gguf([], [tensor("t", [2**20, 2**20], F32, 0)], bytes(64)), "reaches beyond the end"),
    "nested.gguf": (gguf([entry("a", 9, array(9, [array(4, [])]))]), "array of arrays"),
    "part.gguf": (gguf([entry("split.count", UINT32, scalar(UINT32, 4))]), "one of 4 parts, but its name"),
    "pytorch_model.bin": (zipped("archive/data.pkl"), "pickle.*never read.*safetensors or GGUF"),
    "renamed": (zipped("archive/data.pkl"), "pickle.*never read"),
    "model.pt": (pickle.dumps({"weight": [1.0]}), "pickle.*never read"),
    "model.pth": (b"\x80\x02\x8a\nl\xfc\x9cF", "pickle.*never read"),
    "model.ckpt": (bytes(range(100)), "pickle.*never read"),
    "archive.zip": (zipped("model.gguf"), "archive.*unpack"),
    "archive.tar": (tarred(), "archive.*unpack"),
    "model.gguf.gz": (gzip.compress(sound()), "archive.*unpack"),
    "model.gguf.bz2": (bz2.compress(sound()), "archive.*unpack"),
    "model.onnx": (b"\x08\x07\x12\x07pytorch", "ONNX"),
    "model.h5": (b"\x89HDF\r\n\x1a\n" + bytes(64), "HDF5"),
    "flax_model.msgpack": (b"\xde\x00\x10", "Flax"),
    "array.npy": (b"\x93NUMPY\x01\x00", "NumPy"),
    "weights.npz": (zipped("a.npy"), "archive"),
    "llamafile": (b"MZqFpD='\n" + bytes(64), "a program"),
    "picture.png": (b"\x89PNG\r\n\x1a\n", "a picture"),
    "openvino.xml": (b'<?xml version="1.0"?><net>', "XML file"),
    "notes.txt": (("é" * 600).encode()[:999], "a text file"),
    "script": (b"#!/bin/sh\n\tls\n", "a text file"),
    "config.json": (b'{"model_type": "llama"}', "name the folder"),
    "tokenizer.json": (b'{"version": "1.0"}', "JSON file, not a model"),
    "model.safetensors": (bytes(8), "name the folder"),
    "adapter_model.safetensors": (bytes(8), "LoRA adapter"),
}  # fmt: skip


def one_line(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_model(path)
    message = str(caught.value)
    assert message.isprintable()
    assert str(path) in message
    assert len(message) < len(str(path)) + 200
    return message


@pytest.mark.parametrize("name", FILES)
def test_an_unknown_file_gets_one_helpful_line(tmp_path: Path, name: str) -> None:
    content, match = FILES[name]
    (tmp_path / name).write_bytes(content)
    one_line(tmp_path / name)
    with pytest.raises(ModelError, match=match):
        open_model(tmp_path / name)


def files(directory: Path, *names: str) -> Path:
    directory.mkdir()
    for name in names:
        (directory / name).write_bytes(b"{}")
    return directory


@pytest.mark.parametrize(
    ("names", "match"),
    [
        ((), "empty folder"),
        (("adapter_config.json", "adapter_model.safetensors"), "LoRA adapter.*merge"),
        (("config.json", "tokenizer.json", "pytorch_model.bin"), "pickle only"),
        (("config.json", "pytorch_model-00001-of-00002.bin"), "pickle only"),
        (("tokenizer.json", "tokenizer_config.json"), "has no weights"),
        (("config.json",), "has no weights"),
        (("a.gguf", "b.gguf"), r"a folder with 2 GGUF files: name one of them: a\.gguf, b\.gguf$"),
        (
            tuple(f"{letter}.gguf" for letter in "abcdefghij"),
            r"10 GGUF files: name one of them: a\.gguf, .*h\.gguf, …$",
        ),
        (("mmproj.gguf",), r"a folder with 1 GGUF file: name it: mmproj\.gguf$"),
        (("a\x1b.gguf", "b.gguf"), r": a\?\.gguf, b\.gguf$"),
        (("model.safetensors",), r"has weights but no config\.json"),
        (("config.json", "consolidated.safetensors"), r"none named model\.safetensors nor an index"),
        (("model.onnx", "config.json"), "ONNX"),
        (("weights.npz", "config.json"), "MLX"),
        (("README.md",), "a folder without a model"),
    ],
)
def test_an_unknown_folder_gets_one_helpful_line(tmp_path: Path, names: tuple[str, ...], match: str) -> None:
    directory = files(tmp_path / "folder", *names)
    one_line(directory)
    with pytest.raises(ModelError, match=match):
        open_model(directory)


def test_a_pointer_or_a_page_in_a_folder_of_weights(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "model")
    (directory / "model.safetensors").write_bytes(POINTER)
    with pytest.raises(ModelError, match=r"model\.safetensors: a Git LFS pointer"):
        open_model(directory)
    (directory / "model.safetensors").write_bytes(HTML)
    with pytest.raises(ModelError, match=r"model\.safetensors: a web page"):
        open_model(directory)


def test_things_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "broken.gguf").symlink_to("nowhere")
    for path in (tmp_path / "pipe.gguf", tmp_path / "broken.gguf", tmp_path / "absent", Path("/dev/zero")):
        one_line(path)
    for text in ("x" * 10_000, "a\0b"):
        with pytest.raises(ModelError):
            open_model(text)


def test_a_broken_link_is_called_that(tmp_path: Path) -> None:
    link, loop = tmp_path / "broken.gguf", tmp_path / "loop"
    link.symlink_to("nowhere\x1b")
    loop.symlink_to("loop")
    for path in (link, loop):
        for look in (open_model, lambda path: resolve_model(str(path))):
            with pytest.raises(ModelNotFoundError, match=r"a link to something that is missing \((nowhere\?|loop)\)$"):
                look(path)


@pytest.mark.parametrize("name", ["model.safetensors", "model-00002-of-00003.safetensors"])
def test_weights_beside_their_description_name_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_directory(tmp_path, sharded="-of-" in name)
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / name, Path(name)):
        with pytest.raises(UnsupportedModelError, match=f"name the folder, {re.escape(str(tmp_path))}$"):
            open_model(path)


def test_a_merged_model_beside_its_adapter_is_a_model(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "model")
    (directory / "adapter_config.json").write_text(json.dumps({}))
    open_model(directory).close()
