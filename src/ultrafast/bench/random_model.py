"""A model file of random weights, of the size of a real one: for measuring what does not depend on their values."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ultrafast.errors import ConfigurationError
from ultrafast.weights.gguf import DEFAULT_ALIGNMENT_BYTES, MAGIC, TENSOR_TYPES

if TYPE_CHECKING:
    from ultrafast.bench.contest import Progress
    from ultrafast.weights.gguf import GgufFile

WEIGHT_TYPES: Final = ("q4_0", "q8_0", "f16")
_SEED: Final = 20_261_130

# The shape of TinyLlama 1.1B.
VOCABULARY_SIZE: Final = 32_000
CONTEXT: Final = 2_048
_LAYERS, _WIDTH, _FEED_FORWARD, _HEADS, _KV_HEADS = 22, 2_048, 5_632, 32, 4
_KV_WIDTH = _WIDTH // _HEADS * _KV_HEADS

_CODES: Final = {kind.name.lower(): code for code, kind in TENSOR_TYPES.items()}
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_CHUNK_BLOCKS: Final = 1 << 20

# Scales that make the deviation of a weight about 0.02, as in a trained model of this width.
_Q4_0_SCALE: Final = np.float16(0.02 / 4.6)
_Q8_0_SCALE: Final = np.float16(0.02 / 73.6)


def parameter_count() -> int:
    """Weights of the model."""
    return sum(math.prod(shape) for _, shape in _tensors())


def file_bytes(weight_type: str) -> int:
    """What the tensors take on disk, without the metadata before them."""
    return sum(_padded(_tensor_bytes(shape, weight_type)) for _, shape in _tensors())


def write_random_model(path: Path, weight_type: str, vocabulary: GgufFile, progress: Progress) -> None:
    """Write the file; the same bytes every time for a ``weight_type`` and a ``vocabulary``.

    The tokenizer is that of ``vocabulary``, a byte-level one, cut to its first 32,000 tokens: merges are ordered, so
    the first ones are a tokenizer of their own.
    """
    metadata = _metadata(vocabulary)
    tensors = list(_tensors())
    header = bytearray(struct.pack("<4sIQQ", MAGIC, 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        header += _text(key) + _value(value)
    offset = 0
    for name, shape in tensors:
        header += _text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        header += struct.pack("<IQ", _CODES[_stored_as(shape, weight_type)], offset)
        offset += _padded(_tensor_bytes(shape, weight_type))
    random = np.random.Generator(np.random.SFC64(_SEED))
    with path.open("wb") as file:
        file.write(header.ljust(_padded(len(header)), b"\0"))
        for number, (_, shape) in enumerate(tensors, start=1):
            progress(f"writing a model of random weights: tensor {number} of {len(tensors)}")
            for data in _weights(random, shape, weight_type):
                file.write(data)
            file.write(bytes(_padded(file.tell()) - file.tell()))
        file.flush()
        os.fsync(file.fileno())  # or the disk would still be busy with it while loading is measured


def _tensors() -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape, rows first) in the order of the file."""
    yield "token_embd.weight", (VOCABULARY_SIZE, _WIDTH)
    for layer in range(_LAYERS):
        for name, shape in {
            "attn_norm": (_WIDTH,),
            "attn_q": (_WIDTH, _WIDTH),
            "attn_k": (_KV_WIDTH, _WIDTH),
            "attn_v": (_KV_WIDTH, _WIDTH),
            "attn_output": (_WIDTH, _WIDTH),
            "ffn_norm": (_WIDTH,),
            "ffn_gate": (_FEED_FORWARD, _WIDTH),
            "ffn_up": (_FEED_FORWARD, _WIDTH),
            "ffn_down": (_WIDTH, _FEED_FORWARD),
        }.items():
            yield f"blk.{layer}.{name}.weight", shape
    yield "output_norm.weight", (_WIDTH,)
    yield "output.weight", (VOCABULARY_SIZE, _WIDTH)


def _stored_as(shape: tuple[int, ...], weight_type: str) -> str:
    return weight_type if len(shape) > 1 else "f32"


def _tensor_bytes(shape: tuple[int, ...], weight_type: str) -> int:
    kind = TENSOR_TYPES[_CODES[_stored_as(shape, weight_type)]]
    return math.prod(shape) // kind.block_elements * kind.block_bytes


def _padded(size: int) -> int:
    return -(-size // DEFAULT_ALIGNMENT_BYTES) * DEFAULT_ALIGNMENT_BYTES


def _weights(random: np.random.Generator, shape: tuple[int, ...], weight_type: str) -> Iterator[bytes]:
    """A tensor's bytes, some at a time; norms are ones."""
    kind = _stored_as(shape, weight_type)
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


_BLOCKS: Final[dict[str, Callable[[np.random.Generator, int], NDArray[Any]]]] = {
    "f16": _f16,
    "q4_0": _q4_0,
    "q8_0": _q8_0,
}


def _metadata(vocabulary: GgufFile) -> dict[str, Any]:
    """What a reader needs to know of the model. Integers become uint32, reals float32."""
    texts = vocabulary.strings("tokenizer.ggml.tokens")[:VOCABULARY_SIZE]
    if vocabulary.string("tokenizer.ggml.model") != "gpt2" or len(texts) < VOCABULARY_SIZE:
        raise ConfigurationError(
            f"the tokenizer is borrowed from a byte-level one of {VOCABULARY_SIZE:,} tokens or more"
        )
    known = set(texts)
    merges = []
    for merge in vocabulary.strings("tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        if {left, right, left + right} <= known:
            merges.append(merge)
    return {
        "general.architecture": "llama",
        "general.name": "Random 1.1B",
        "llama.block_count": _LAYERS,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": _WIDTH,
        "llama.feed_forward_length": _FEED_FORWARD,
        "llama.attention.head_count": _HEADS,
        "llama.attention.head_count_kv": _KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10_000.0,
        "llama.rope.dimension_count": _WIDTH // _HEADS,
        "llama.vocab_size": VOCABULARY_SIZE,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": vocabulary.string("tokenizer.ggml.pre", "default"),
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": vocabulary.numbers("tokenizer.ggml.token_type")[:VOCABULARY_SIZE],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": vocabulary.integer("tokenizer.ggml.bos_token_id", maximum=VOCABULARY_SIZE - 1),
        "tokenizer.ggml.eos_token_id": vocabulary.integer("tokenizer.ggml.eos_token_id", maximum=VOCABULARY_SIZE - 1),
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
