"""Small, valid llama files for the fuzzer to damage, made with the gguf package: every tensor type, two shapes."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

from tests.quantised import FLOATS, KINDS, QUANTISED, random_weights

HEADS, KV_HEADS, LAYERS, CONTEXT = 4, 2, 1, 64
TEMPLATE = "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
TYPES = FLOATS + QUANTISED


def _add_byte_level(writer: gguf.GGUFWriter) -> int:
    tokens = [*sorted(ByteLevel.alphabet()), "th", "the", "Ġa", "<|start|>", "<|end|>", "<tool>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 3) + [3, 3, 4])
    writer.add_token_merges(["t h", "th e", "Ġ a"])
    return len(tokens)


def _add_pieces(writer: gguf.GGUFWriter) -> int:
    pieces = ["\u2581", "t", "h", "e", "th", "the", "\u2581the", "\u2581t"]
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "<|start|>", "<|end|>", "  "]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types([2, *[6] * 256, *[1] * 7, 5, 3, 3, 4])
    writer.add_token_scores([0.0] * 257 + [-float(index) for index in range(len(pieces))] + [0.0] * 3)
    writer.add_unk_token_id(0)
    writer.add_add_space_prefix(True)
    return len(tokens)


def write_llama(path: Path, type_name: str, *, tied: bool, pieces: bool = False) -> None:
    """A llama of one layer with random weights stored as ``type_name``; norms are F32. ``pieces``: its vocabulary is
    one of SentencePiece, else byte-level.
    """
    writer = gguf.GGUFWriter(path, "llama")
    hidden, inner = (64, 96) if KINDS[type_name].block_elements <= 32 else (256, 256)
    random = np.random.default_rng(5)
    vocabulary = (_add_pieces if pieces else _add_byte_level)(writer)
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(hidden // HEADS)
    writer.add_vocab_size(vocabulary)
    writer.add_custom_alignment(32)
    writer.add_bos_token_id(vocabulary - 3)
    writer.add_eos_token_id(vocabulary - 2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    writer.add_array("general.languages", ["en"])

    def matrix(name: str, rows: int, columns: int) -> None:
        data = random_weights(random, rows, columns, type_name, 0.1)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=gguf.GGMLQuantizationType[type_name])

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(hidden, np.float32))

    head = hidden // HEADS
    matrix("token_embd", vocabulary, hidden)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm")
        matrix(f"{block}.attn_q", HEADS * head, hidden)
        matrix(f"{block}.attn_k", KV_HEADS * head, hidden)
        matrix(f"{block}.attn_v", KV_HEADS * head, hidden)
        matrix(f"{block}.attn_output", hidden, HEADS * head)
        norm(f"{block}.ffn_norm")
        matrix(f"{block}.ffn_gate", inner, hidden)
        matrix(f"{block}.ffn_up", inner, hidden)
        matrix(f"{block}.ffn_down", hidden, inner)
    norm("output_norm")
    if not tied:
        matrix("output", vocabulary, hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_all(directory: Path) -> list[Path]:
    """One file of each tensor type; ``F32``, ``Q8_0`` and ``Q4_1`` with tied output, ``F16``, ``Q4_0`` with pieces."""
    paths = []
    for type_name in TYPES:
        path = directory / f"{type_name}.gguf"
        write_llama(path, type_name, tied=type_name in ("F32", "Q8_0", "Q4_1"), pieces=type_name in ("F16", "Q4_0"))
        paths.append(path)
    return paths
