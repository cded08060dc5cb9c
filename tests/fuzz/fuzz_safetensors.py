"""Damaged Hugging Face directories: headers, indices and configurations, as bytes and as the JSON they are.

    python -m tests.fuzz.fuzz_safetensors --cases 100000 --seed 1

A case opens the directory, touches every tensor, asks the configuration for every kind of value, looks the model over
and loads it where this version can.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz import harness
from tests.weights.safetensors_bytes import entry, write_index
from ultrafast.errors import ModelFileError, UnsupportedModelError
from ultrafast.weights import ModelSource, open_model
from ultrafast.weights.inspection import inspect_source

HIDDEN, INNER, VOCABULARY = 32, 64, 96
CONFIGURATION: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1, "vocab_size": VOCABULARY,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0, "short_factor": [1.0, 2], "mixed": [1, "a", None]},
    "bos_token_id": 1, "eos_token_id": [2, 3], "torch_dtype": "float16", "quantization_config": None,
}  # fmt: skip
SHAPES: dict[str, list[int]] = {
    "model.embed_tokens.weight": [VOCABULARY, HIDDEN],
    "model.layers.0.input_layernorm.weight": [HIDDEN],
    "model.layers.0.self_attn.q_proj.weight": [HIDDEN, HIDDEN],
    "model.layers.0.self_attn.k_proj.weight": [HIDDEN // 2, HIDDEN],
    "model.layers.0.self_attn.v_proj.weight": [HIDDEN // 2, HIDDEN],
    "model.layers.0.self_attn.o_proj.weight": [HIDDEN, HIDDEN],
    "model.layers.0.post_attention_layernorm.weight": [HIDDEN],
    "model.layers.0.mlp.gate_proj.weight": [INNER, HIDDEN],
    "model.layers.0.mlp.up_proj.weight": [INNER, HIDDEN],
    "model.layers.0.mlp.down_proj.weight": [HIDDEN, INNER],
    "model.norm.weight": [HIDDEN],
}
SIZES = {"F32": 4, "F16": 2, "BF16": 2}
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**400, 0.5, 1e308, "", "F32", "I64", "F8_E4M3"),
    *("../x", "/etc/passwd", "model.safetensors", "..", "\x00", "\x1b[2J", "\ud800", [], {}, [[]], [0], {"": {}}),
    *("__metadata__", "dtype", "shape", "data_offsets", "weight_map", "model_type", "gptq"),
)


def damage_json(document: Any, source: random.Random) -> Any:
    """A copy of ``document`` with one place of it changed."""
    copy = json.loads(json.dumps(document))
    places: list[tuple[Any, Any]] = []
    waiting = [copy]
    while waiting:
        node = waiting.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            places.append((node, key))
            if isinstance(node[key], dict | list):
                waiting.append(node[key])
    if not places:
        return source.choice(VALUES)
    node, key = source.choice(places)
    kind = source.randrange(7)
    if kind == 0:
        del node[key]
    elif kind == 1 and isinstance(node, dict):
        node[str(source.choice(VALUES))] = node.pop(key)
    elif kind == 2 and isinstance(node[key], int):
        node[key] += source.choice((-1, 1, 2, -2, 16, 2**32, -(2**32)))
    elif kind == 3:
        other, other_key = source.choice(places)
        node[key] = json.loads(json.dumps(other[other_key]))
    elif kind == 4 and isinstance(node, list):
        node.insert(key, source.choice(VALUES))
    else:
        node[key] = source.choice(VALUES)
    return copy


def written(document: Any, source: random.Random) -> bytes:
    """``document`` as JSON, sometimes with a fault that only text has."""
    text = json.dumps(document, ensure_ascii=source.random() < 0.5).encode("utf-8", "surrogatepass")
    kind = source.randrange(12)
    if kind == 0:  # a key twice
        start = text.find(b'{"')
        end = text.find(b":", start)
        if end > start >= 0:
            text = text[: start + 1] + text[start + 1 : end] + b":1," + text[start + 1 :]
    elif kind == 1:
        text = text.replace(b"0", source.choice((b"NaN", b"Infinity", b"1e999", b"00", b"9" * 5000)), 1)
    elif kind == 2:
        depth = source.choice((10, 33, 1_000, 100_000))
        text = text.replace(b"0", source.choice((b'{"a":', b"[")) * depth, 1)
    elif kind == 3:
        text = harness.damage(text, source, len(text))
    elif kind == 4:
        text += source.choice((b" " * 9, b"\n", b"\x00", b"{}", b" " * 70_000))
    return text


class SafetensorsTarget:
    """A small model in one file or three, in each float type."""

    module = "tests.fuzz.fuzz_safetensors"
    case_name = "case-model"

    def prepare(self, directory: Path) -> None:
        self._outside = directory / "outside.safetensors"
        self._outside.write_bytes(b"".join(self._pack(["model.norm.weight"], "F32")))

    def _pack(self, names: list[str], type_name: str) -> tuple[bytes, bytes, bytes]:
        header, data = self._parts(names, type_name)
        packed = json.dumps(header).encode()
        return struct.pack("<Q", len(packed)), packed, data

    def _parts(self, names: list[str], type_name: str) -> tuple[dict[str, Any], bytes]:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        data = b""
        for name in names:
            shape = SHAPES[name]
            size = int(np.prod(shape)) * SIZES[type_name]
            header[name] = entry(type_name, shape, len(data), len(data) + size)
            data += (bytes(range(64)) * (size // 64 + 1))[:size]
        return header, data

    def write_case(self, path: Path, source: random.Random) -> None:
        path.mkdir()
        names = list(SHAPES)
        groups = [names] if source.random() < 0.6 else [names[:4], names[4:8], names[8:]]
        files = {
            "model.safetensors" if len(groups) == 1 else f"model-{number:05}-of-00003.safetensors": group
            for number, group in enumerate(groups, 1)
        }
        victim = source.choice(("header", "header", "header", "index", "configuration", "whole", "nothing"))
        for name, group in files.items():
            header, data = self._parts(group, source.choice(list(SIZES)))
            packed = json.dumps(header).encode()
            if victim == "header":
                for _ in range(source.choice((1, 1, 2, 3))):
                    header = damage_json(header, source) if isinstance(header, dict) else header
                packed = written(header, source)
            length = len(packed)
            if source.random() < 0.05 and victim != "nothing":
                length = source.choice((0, 1, length - 1, length + 1, length + len(data), *harness.INTERESTING))
            whole = struct.pack("<Q", length % 2**64) + packed + data
            if victim == "whole":
                whole = harness.damage(whole, source, len(packed) + 8)
            (path / name).write_bytes(whole)
        configuration: Any = CONFIGURATION
        if victim == "configuration":
            configuration = damage_json(configuration, source)
        text = written(configuration, source) if victim == "configuration" else json.dumps(configuration).encode()
        (path / "config.json").write_bytes(text)
        if len(groups) > 1:
            self._write_index(path, files, victim, source)

    def _write_index(self, path: Path, files: dict[str, list[str]], victim: str, source: random.Random) -> None:
        places = {name: file for file, names in files.items() for name in names}
        write_index(path, places)
        if victim == "index":
            index = damage_json({"metadata": {"total_size": 1}, "weight_map": places}, source)
            (path / "model.safetensors.index.json").write_bytes(written(index, source))
            kind = source.randrange(8)
            if kind == 0:
                source.choice([path / name for name in files]).unlink()
            elif kind == 1:
                name = source.choice(list(files))
                (path / name).unlink()
                (path / name).symlink_to(source.choice((self._outside, path / name, Path("/dev/zero"), path)))

    def run_case(self, path: Path) -> str:
        with open_model(path, any_type=True) as anything:
            harness.check_views(anything)
            inspect_source(anything)
        with open_model(path) as model:
            harness.check_views(model)
            if any(file.resolve().parent != path.resolve() for file in model.files):
                raise AssertionError("a file outside the directory was opened")
            _ask(model, model.metadata, "")
        try:
            harness.load_and_step(path)
        except UnsupportedModelError:
            return "opened"
        return "ran"


def _ask(model: ModelSource, metadata: dict[str, Any], prefix: str) -> None:
    accessors = (model.integer, model.real, model.boolean, model.string, model.strings, model.numbers)
    for key, value in metadata.items():
        for ask in accessors:
            try:
                ask(prefix + key)
            except ModelFileError:
                continue
        if isinstance(value, dict):
            _ask(model, value, f"{prefix}{key}.")


def main(arguments: list[str] | None = None) -> int:
    return harness.main(SafetensorsTarget(), arguments)


if __name__ == "__main__":
    sys.exit(main())
