"""A model file of random weights, of the size of a real one: for measuring what does not depend on their values."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ultrafast.errors import ConfigurationError
from ultrafast.weights.gguf import DEFAULT_ALIGNMENT_BYTES, MAGIC, TENSOR_TYPES

if TYPE_CHECKING:
    from ultrafast.bench.contest import Progress
    from ultrafast.weights.gguf import GgufFile

WEIGHT_TYPES: Final = ("q4_0", "q8_0", "f16", "q4_k_m")
METADATA_BYTES: Final = 8 << 20
"""More than a file has before its tensors."""
BORROWED_TOKENS: Final = 32_000
_SEED: Final = 20_261_130

_CODES: Final = {kind.name.lower(): code for code, kind in TENSOR_TYPES.items()}
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_UNUSED_TOKEN: Final = 5
_CHUNK_BLOCKS: Final = 1 << 20

# Scales that make the deviation of a weight about 0.02, as in a trained model of this width.
_Q4_0_SCALE: Final = np.float16(0.02 / 4.6)
_Q8_0_SCALE: Final = np.float16(0.02 / 73.6)
_Q4_K_SCALES: Final = np.array((0.02 / 258, 7.5 * 0.02 / 258), np.float16)
_Q6_K_SCALE: Final = np.float16(0.02 / 86)


@dataclass(frozen=True)
class Shape:
    """A model of the architecture ``llama``, its output layer no copy of the embedding."""

    title: str
    vocabulary_size: int
    context: int
    layers: int
    width: int
    feed_forward: int
    heads: int
    kv_heads: int

    @property
    def kv_width(self) -> int:
        """Values of a key, all heads."""
        return self.width // self.heads * self.kv_heads

    def parameter_count(self) -> int:
        """Weights of the model."""
        return sum(math.prod(shape) for _, shape in self.tensors())

    def file_bytes(self, weight_type: str) -> int:
        """What the tensors take on disk, without the metadata before them."""
        return sum(_padded(_tensor_bytes(shape, kind)) for _, shape, kind in self.stored_tensors(weight_type))

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """(name, shape, rows first) in the order of the file."""
        yield "token_embd.weight", (self.vocabulary_size, self.width)
        for layer in range(self.layers):
            for name, shape in {
                "attn_norm": (self.width,),
                "attn_q": (self.width, self.width),
                "attn_k": (self.kv_width, self.width),
                "attn_v": (self.kv_width, self.width),
                "attn_output": (self.width, self.width),
                "ffn_norm": (self.width,),
                "ffn_gate": (self.feed_forward, self.width),
                "ffn_up": (self.feed_forward, self.width),
                "ffn_down": (self.width, self.feed_forward),
            }.items():
                yield f"blk.{layer}.{name}.weight", shape
        yield "output_norm.weight", (self.width,)
        yield "output.weight", (self.vocabulary_size, self.width)

    def stored_tensors(self, weight_type: str) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """The same with the type of each. ``q4_k_m`` is a mix: the output layer and, in half of the layers, values and
        down projections are Q6_K.
        """
        for name, shape in self.tensors():
            if len(shape) == 1:
                yield name, shape, "f32"
            elif weight_type != "q4_k_m":
                yield name, shape, weight_type
            else:
                _, _, rest = name.partition("blk.")
                layer, _, role = rest.partition(".")
                precise = role in {"attn_v.weight", "ffn_down.weight"} and int(layer) % 2 == 0
                yield name, shape, "q6_k" if precise or name == "output.weight" else "q4_k"


SHAPES: Final = {
    "1.1b": Shape(  # of TinyLlama 1.1B
        "Random 1.1B",
        vocabulary_size=32_000,
        context=2_048,
        layers=22,
        width=2_048,
        feed_forward=5_632,
        heads=32,
        kv_heads=4,
    ),
    "8b": Shape(  # of Llama 3 8B
        "Random 8B",
        vocabulary_size=128_256,
        context=8_192,
        layers=32,
        width=4_096,
        feed_forward=14_336,
        heads=32,
        kv_heads=8,
    ),
}


def write_random_model(path: Path, shape: Shape, weight_type: str, vocabulary: GgufFile, progress: Progress) -> None:
    """Write the file; the same bytes every time for a shape, a ``weight_type`` and a ``vocabulary``.

    The tokenizer is that of ``vocabulary``, a byte-level one, cut to its first 32,000 tokens: merges are ordered, so
    the first ones are a tokenizer of their own. Tokens beyond those are never made of a text.
    """
    metadata = _metadata(vocabulary, shape)
    tensors = list(shape.stored_tensors(weight_type))
    header = bytearray(struct.pack("<4sIQQ", MAGIC, 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        header += _text(key) + _value(value)
    offset = 0
    for name, axes, kind in tensors:
        header += _text(name) + struct.pack("<I", len(axes)) + struct.pack(f"<{len(axes)}Q", *reversed(axes))
        header += struct.pack("<IQ", _CODES[kind], offset)
        offset += _padded(_tensor_bytes(axes, kind))
    random = np.random.Generator(np.random.SFC64(_SEED))
    with path.open("wb") as file:
        file.write(header.ljust(_padded(len(header)), b"\0"))
        for number, (_, axes, kind) in enumerate(tensors, start=1):
            progress(f"writing a model of random weights: tensor {number} of {len(tensors)}")
            for data in _weights(random, axes, kind):
                file.write(data)
            file.write(bytes(_padded(file.tell()) - file.tell()))
        file.flush()
        os.fsync(file.fileno())  # or the disk would still be busy with it while loading is measured


def _tensor_bytes(shape: tuple[int, ...], kind: str) -> int:
    stored = TENSOR_TYPES[_CODES[kind]]
    return math.prod(shape) // stored.block_elements * stored.block_bytes


def _padded(size: int) -> int:
    return -(-size // DEFAULT_ALIGNMENT_BYTES) * DEFAULT_ALIGNMENT_BYTES


def _weights(random: np.random.Generator, shape: tuple[int, ...], kind: str) -> Iterator[bytes]:
    """A tensor's bytes, some at a time; norms are ones."""
    if kind == "f32":
        yield np.ones(shape, np.float32).tobytes()
        return
    blocks = math.prod(shape) // TENSOR_TYPES[_CODES[kind]].block_elements
    for first in range(0, blocks, _CHUNK_BLOCKS):
        yield _BLOCKS[kind](random, min(_CHUNK_BLOCKS, blocks - first)).tobytes()


def _f16(random: np.random.Generator, count: int) -> NDArray[np.uint16]:
    """Either sign, magnitudes from 1/64 to 1/32."""
    bits = np.frombuffer(random.bytes(2 * count), np.uint16)
    return bits & np.uint16(0x83FF) | np.float16(1 / 64).view(np.uint16)


def _q4_0(random: np.random.Generator, count: int) -> NDArray[np.uint8]:
    blocks = np.frombuffer(random.bytes(18 * count), np.uint8).reshape(count, 18).copy()
    blocks[:, :2] = np.frombuffer(_Q4_0_SCALE.tobytes(), np.uint8)
    return blocks


def _q8_0(random: np.random.Generator, count: int) -> NDArray[np.uint8]:
    blocks = np.frombuffer(random.bytes(34 * count), np.uint8).reshape(count, 34).copy()
    blocks[blocks == 128] = 129  # as int8, −127 for −128: the format's own quantiser never writes that
    blocks[:, :2] = np.frombuffer(_Q8_0_SCALE.tobytes(), np.uint8)
    return blocks


def _q4_k(random: np.random.Generator, count: int) -> NDArray[np.uint8]:
    """Scale and scale of the minima first: what those make of an average block is centred on 0."""
    blocks = np.frombuffer(random.bytes(144 * count), np.uint8).reshape(count, 144).copy()
    blocks[:, :4] = _Q4_K_SCALES.view(np.uint8)
    return blocks


def _q6_k(random: np.random.Generator, count: int) -> NDArray[np.uint8]:
    """The sixteen scales of a block within −8 … 7, its own last."""
    blocks = np.frombuffer(random.bytes(210 * count), np.uint8).reshape(count, 210).copy()
    scales = blocks[:, 192:208].view(np.int8)
    scales >>= 4
    blocks[:, 208:] = np.frombuffer(_Q6_K_SCALE.tobytes(), np.uint8)
    return blocks


_BLOCKS: Final[dict[str, Callable[[np.random.Generator, int], NDArray[Any]]]] = {
    "f16": _f16,
    "q4_0": _q4_0,
    "q8_0": _q8_0,
    "q4_k": _q4_k,
    "q6_k": _q6_k,
}


def _metadata(vocabulary: GgufFile, shape: Shape) -> dict[str, Any]:
    """What a reader needs to know of the model. Integers become uint32, reals float32."""
    texts = vocabulary.strings("tokenizer.ggml.tokens")[:BORROWED_TOKENS]
    if vocabulary.string("tokenizer.ggml.model") != "gpt2" or len(texts) < BORROWED_TOKENS:
        raise ConfigurationError(
            f"the tokenizer is borrowed from a byte-level one of {BORROWED_TOKENS:,} tokens or more"
        )
    token_types = vocabulary.numbers("tokenizer.ggml.token_type")[:BORROWED_TOKENS]
    unused = range(shape.vocabulary_size - BORROWED_TOKENS)
    known = set(texts)
    merges = []
    for merge in vocabulary.strings("tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        if {left, right, left + right} <= known:
            merges.append(merge)
    return {
        "general.architecture": "llama",
        "general.name": shape.title,
        "llama.block_count": shape.layers,
        "llama.context_length": shape.context,
        "llama.embedding_length": shape.width,
        "llama.feed_forward_length": shape.feed_forward,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10_000.0,
        "llama.rope.dimension_count": shape.width // shape.heads,
        "llama.vocab_size": shape.vocabulary_size,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": vocabulary.string("tokenizer.ggml.pre", "default"),
        "tokenizer.ggml.tokens": [*texts, *(f"<unused{number}>" for number in unused)],
        "tokenizer.ggml.token_type": np.concatenate([token_types, np.full(len(unused), _UNUSED_TOKEN)]),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": vocabulary.integer("tokenizer.ggml.bos_token_id", maximum=BORROWED_TOKENS - 1),
        "tokenizer.ggml.eos_token_id": vocabulary.integer("tokenizer.ggml.eos_token_id", maximum=BORROWED_TOKENS - 1),
        "tokenizer.ggml.add_bos_token": False,
    }


def _text(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(encoded)) + encoded


def _value(value: Any) -> bytes:
    """A value behind its type's number."""
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_text, value))
    if isinstance(value, np.ndarray):
        return struct.pack("<IIQ", _ARRAY, _INT32, len(value)) + value.astype("<i4").tobytes()
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    return struct.pack("<II", _UINT32, value)
