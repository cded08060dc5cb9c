"""Small llama models with random weights, written as GGUF files: every weight type and odd sizes, in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

WEIGHT_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")


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


def write_tiny_model(path: Path, weight_type: str, shape: TinyShape | None = None, seed: int = 0) -> Path:
    """Write a model whose matrices are of ``weight_type`` and whose norms are float32."""
    s = shape or TinyShape()
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
    kind = gguf.GGMLQuantizationType[weight_type]

    def matrix(name: str, rows: int, columns: int, deviation: float) -> None:
        values = random.normal(0.0, deviation, (rows, columns)).astype(np.float32)
        packed: NDArray[Any] = gguf.quants.quantize(values, kind)
        writer.add_tensor(name, packed, raw_dtype=kind)

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
