"""Small llama models with random weights, written as GGUF files: every weight type and odd sizes, in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.quantised import FLOATS, KINDS, QUANTISED, random_weights
from ultrafast.weights.gguf import GgufFile

WEIGHT_TYPES = FLOATS + QUANTISED


@dataclass(frozen=True)
class TinyShape:
    """Sizes of a made-up model; none is a multiple of what the kernels prefer."""

    vocabulary_size: int = 77
    hidden_size: int = 96
    feed_forward_size: int = 160
    head_count: int = 4
    kv_head_count: int = 2
    head_size: int = 24
    layer_count: int = 2
    context_length: int = 512
    tied: bool = False


_ADD: dict[type, Callable[[gguf.GGUFWriter, str, Any], None]] = {
    bool: gguf.GGUFWriter.add_bool,
    int: gguf.GGUFWriter.add_uint32,
    str: gguf.GGUFWriter.add_string,
    list: gguf.GGUFWriter.add_array,
    np.ndarray: lambda writer, key, value: writer.add_array(key, value.tolist()),
}
# Rows of whole blocks of 256.
LONG_BLOCKS = TinyShape(hidden_size=256, feed_forward_size=512, head_count=8, kv_head_count=4, head_size=32)


def write_tiny_model(
    path: Path, weight_type: str, shape: TinyShape | None = None, seed: int = 0, tokenizer: GgufFile | None = None
) -> Path:
    """Write a model whose matrices are of ``weight_type``, as far as their rows fit, and whose norms are float32.

    With the tokenizer and the chat template of another model, all of the command line can use it.
    """
    s = shape or (LONG_BLOCKS if KINDS[weight_type].block_elements > 32 else TinyShape())
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(s.context_length)
    writer.add_embedding_length(s.hidden_size)
    writer.add_block_count(s.layer_count)
    writer.add_feed_forward_length(s.feed_forward_size)
    writer.add_head_count(s.head_count)
    writer.add_head_count_kv(s.kv_head_count)
    writer.add_key_length(s.head_size)
    writer.add_value_length(s.head_size)
    writer.add_rope_dimension_count(s.head_size)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in {} if tokenizer is None else tokenizer.metadata.items():
        if key.startswith("tokenizer."):
            _ADD[type(value)](writer, key, value)

    def matrix(name: str, rows: int, columns: int, deviation: float) -> None:
        # As llama.cpp's own tool does: rows that are not whole blocks of the type take a type of shorter blocks.
        fits = columns % KINDS[weight_type].block_elements == 0
        stored = weight_type if fits else "Q5_0"
        data = random_weights(random, rows, columns, stored, deviation)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[stored])

    def norm(name: str) -> None:
        writer.add_tensor(name, random.uniform(0.5, 1.5, s.hidden_size).astype(np.float32))

    query, key = s.head_count * s.head_size, s.kv_head_count * s.head_size
    matrix("token_embd.weight", s.vocabulary_size, s.hidden_size, 1.0)
    for layer in range(s.layer_count):
        prefix = f"blk.{layer}."
        norm(prefix + "attn_norm.weight")
        norm(prefix + "ffn_norm.weight")
        matrix(prefix + "attn_q.weight", query, s.hidden_size, 0.2)
        matrix(prefix + "attn_k.weight", key, s.hidden_size, 0.2)
        matrix(prefix + "attn_v.weight", key, s.hidden_size, 0.2)
        matrix(prefix + "attn_output.weight", s.hidden_size, query, 0.2)
        matrix(prefix + "ffn_gate.weight", s.feed_forward_size, s.hidden_size, 0.2)
        matrix(prefix + "ffn_up.weight", s.feed_forward_size, s.hidden_size, 0.2)
        matrix(prefix + "ffn_down.weight", s.hidden_size, s.feed_forward_size, 0.2)
    norm("output_norm.weight")
    if not s.tied:
        matrix("output.weight", s.vocabulary_size, s.hidden_size, 0.3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
