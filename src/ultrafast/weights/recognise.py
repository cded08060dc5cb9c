"""What a file is that is no model of ours, told from its first bytes and its name, and what its owner can do."""

from __future__ import annotations

import codecs
import mmap
from pathlib import Path
from typing import Final

_SNIFFED_BYTES: Final = 512

_PICKLE: Final = (
    "PyTorch weights as a pickle, which may run any program when it is read, and so is never read: "
    "fetch the model's safetensors or GGUF files"
)
_ARCHIVE: Final = "an archive or a compressed file: unpack it and name the model inside"
_OLD_GGML: Final = "a GGML file of the time before GGUF: fetch the model as GGUF"
_PROGRAM: Final = "a program, not a model: fetch the model as GGUF"
_WEB_PAGE: Final = "a web page saved in place of the model (a login or error page?): download it again"

_BEGINNINGS: Final[tuple[tuple[bytes, str], ...]] = (
    (b"version https://git-lfs.github.com/spec/", "a Git LFS pointer, not the model: run 'git lfs pull' in its folder"),
    (b"FUGG", "a big-endian GGUF file; only little-endian files are supported"),
    (b"tjgg", _OLD_GGML),
    (b"fmgg", _OLD_GGML),
    (b"lmgg", _OLD_GGML),
    (b"algg", "a LoRA adapter of the time before GGUF, not a model: name a model's GGUF file"),
    (b"\x1f\x8b", _ARCHIVE),
    (b"BZh", _ARCHIVE),
    (b"\xfd7zXZ\x00", _ARCHIVE),
    (b"7z\xbc\xaf\x27\x1c", _ARCHIVE),
    (b"\x28\xb5\x2f\xfd", _ARCHIVE),
    (b"Rar!", _ARCHIVE),
    (b"\x7fELF", _PROGRAM),
    (b"MZ", _PROGRAM),
    (b"\x89HDF\r\n", "HDF5 weights (Keras, TensorFlow): fetch the model's safetensors or GGUF files"),
    (b"\x93NUMPY", "a NumPy array, not a model: fetch the model's safetensors or GGUF files"),
    (b"%PDF", "a PDF document, not a model"),
    (b"\x89PNG", "a picture, not a model"),
    (b"\xff\xd8\xff", "a picture, not a model"),
)
_PICKLE_ENDINGS: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_ENDINGS: Final[tuple[tuple[str | tuple[str, ...], str], ...]] = (
    ((".onnx", ".onnx_data"), "an ONNX model, which is not supported: fetch the model's safetensors or GGUF files"),
    (_PICKLE_ENDINGS, _PICKLE),
    ((".h5", ".tflite", ".npz"), "of another format: fetch the model's safetensors or GGUF files"),
    (".msgpack", "Flax weights, which are not supported: fetch the model's safetensors or GGUF files"),
    ((".imatrix", "imatrix.dat"), "an importance matrix, used when a model is quantised: name the model's own file"),
    (
        (".part", ".partial", ".incomplete", ".crdownload", ".download", ".aria2", ".tmp"),
        "an unfinished download: let it finish or fetch it again",
    ),
)


def other_kind(path: Path, content: bytes | mmap.mmap) -> str | None:
    """What ``content`` is, said with the way out, or None where nothing is known of it."""
    head = content[:_SNIFFED_BYTES]
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return (
        next((kind for beginning, kind in _BEGINNINGS if head.startswith(beginning)), None)
        or _container_kind(path, head)
        or (_WEB_PAGE if text.startswith((b"<!doctype html", b"<html", b"<head")) else None)
        or next((kind for ending, kind in _ENDINGS if path.name.lower().endswith(ending)), None)
        or _text_kind(path, text)
    )


def _container_kind(path: Path, head: bytes) -> str | None:
    if head.startswith(b"PK\x03\x04"):
        # torch.save writes a zip archive with the pickle as its first member.
        return _PICKLE if b"data.pkl" in head or path.name.lower().endswith(_PICKLE_ENDINGS) else _ARCHIVE
    if head[257:262] == b"ustar":
        return _ARCHIVE
    if len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5:  # the PROTO opcode and its version
        return _PICKLE
    if len(head) == _SNIFFED_BYTES and not any(head):
        return "begins with zeros: an unfinished or damaged download; fetch it again"
    return None


def _text_kind(path: Path, text: bytes) -> str | None:
    if text.startswith((b"{", b"[")):
        if path.name in ("config.json", "model.safetensors.index.json"):
            return "describes a model: name the folder it lies in"
        return "a JSON file, not a model: name a .gguf file, or a folder with config.json and model.safetensors"
    if text.startswith(b"<?xml"):
        return "an XML file (an OpenVINO model?), which is not supported: fetch the model's safetensors or GGUF files"
    try:
        # Not final: the sniffed bytes may end in the middle of a character.
        whole = codecs.getincrementaldecoder("utf-8")().decode(text)
    except UnicodeDecodeError:
        return None
    printable = whole.translate({9: None, 10: None, 13: None}).isprintable()
    return "a text file, not a model: name a .gguf file" if whole and printable else None
