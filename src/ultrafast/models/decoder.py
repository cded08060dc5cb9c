"""The part of a description that all architectures share, read from either format and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ultrafast.models.configuration import (
    MAX_CONTEXT,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_WIDTH,
    Activation,
    Layer,
    ModelConfiguration,
)
from ultrafast.models.facts import Facts, float32
from ultrafast.models.rotary import read_rotary

_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu"}


def plain_decoder(
    facts: Facts, *, interleaved_gguf: bool = False, rotary_base: float = 10_000.0, rotary_part: str = ""
) -> ModelConfiguration:
    """A llama of the file's sizes: what an architecture's file starts from and replaces fields of.

    ``interleaved_gguf`` is for architectures whose GGUF files interleave the two halves of each query and key head.

    Raises ``ModelFileError`` where a value is missing, of the wrong kind or out of range, and
    ``UnsupportedModelError`` for a variant this version cannot run.
    """
    hidden_size = facts.integer("hidden_size", maximum=MAX_WIDTH)
    head_count = facts.integer("head_count", maximum=MAX_HEADS)
    kv_head_count = facts.integer("kv_head_count", head_count, maximum=MAX_HEADS)
    head_size = facts.integer("head_size", hidden_size // head_count, maximum=MAX_WIDTH)
    if facts.is_gguf and facts.integer("attention.value_length", head_size) != head_size:
        facts.unsupported("keys and values of different length are not supported")
    if head_count % kv_head_count != 0 or head_count * head_size > MAX_WIDTH:
        facts.damaged("attention head counts and sizes do not fit together")
    if head_size % 2 != 0:
        facts.damaged("rotary and head sizes must be even")
    rotary = read_rotary(facts, head_size, base=rotary_base, part=rotary_part)
    interleaved = interleaved_gguf and facts.is_gguf
    if interleaved and rotary.size != head_size:
        # The file interleaves the rows of whole heads; what it does for a rotated part is not defined.
        facts.unsupported("partly rotated heads are not supported in this architecture's GGUF files")
    return ModelConfiguration(
        architecture=facts.architecture,
        vocabulary_size=_vocabulary_size(facts),
        context_length=facts.integer("context_length", maximum=MAX_CONTEXT),
        hidden_size=hidden_size,
        feed_forward_size=facts.integer("feed_forward_size", maximum=MAX_WIDTH),
        head_count=head_count,
        kv_head_count=kv_head_count,
        head_size=head_size,
        norm_epsilon=facts.real("norm_epsilon", minimum=1e-30, maximum=0.999),
        attention_scale=float32(head_size**-0.5),
        layers=(Layer(),) * facts.integer("layer_count", maximum=MAX_LAYERS),
        rotaries=(rotary,),
        tied=_tied(facts),
        interleaved=interleaved,
        activation=activation(facts, "hidden_act", "silu"),
    )


def activation(facts: Facts, key: str, usual: str) -> Activation:
    """The activation that config.json names at ``key``; GGUF files leave it to the architecture."""
    name = usual if facts.is_gguf else facts.string(key, usual)
    if name not in _ACTIVATIONS:
        facts.unsupported(f"the activation named by {facts.own(key)} is not supported; silu and gelu_pytorch_tanh are")
    return _ACTIVATIONS[name]


def windowed(
    facts: Facts, layers: Sequence[Layer], sliding: Sequence[bool] | None = None, *, rotary: int | None = None
) -> tuple[Layer, ...]:
    """The layers, with the file's sliding window over those that ``sliding`` marks; by default, over all.

    A file that marks the layers itself prevails. ``rotary`` is the one of layers that slide, where they have their own.
    """
    window = facts.integer("window", 0, minimum=0, maximum=MAX_CONTEXT)
    if window == 0:
        return tuple(layers)
    marked = _marked(facts, len(layers)) or sliding or [True] * len(layers)
    return tuple(
        Layer(window, layer.rotary if rotary is None else rotary) if slides else layer
        for layer, slides in zip(layers, marked, strict=True)
    )


def every_nth_full(facts: Facts, period: int) -> list[bool]:
    """Which layers slide where each ``period``-th does not."""
    return [(index + 1) % period != 0 for index in range(facts.integer("layer_count", maximum=MAX_LAYERS))]


def last_layers_windowed(facts: Facts, layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """As Qwen has it: a switch, off by default, and a number of first layers that see everything."""
    if facts.is_gguf:
        return windowed(facts, layers)
    if not facts.boolean("use_sliding_window", False):
        return tuple(layers)
    first = facts.integer("max_window_layers", 28, minimum=0)
    return windowed(facts, layers, [index >= first for index in range(len(layers))])


def attention_biases(facts: Facts) -> frozenset[str]:
    """Which of attention's matrices have a bias: config.json says it, a GGUF file shows it."""
    names = ("attn_q", "attn_k", "attn_v", "attn_output")
    if facts.is_gguf:
        return frozenset(name for name in names if f"blk.0.{name}.bias" in facts.source.tensors)
    return frozenset(names if facts.boolean("attention_bias", False) else ())


def _marked(facts: Facts, layer_count: int) -> list[bool] | None:
    """Which layers slide, where the file lists them."""
    if facts.is_gguf:
        pattern = facts.find("attention.sliding_window_pattern")
        if not isinstance(pattern, np.ndarray):
            return None
        kinds: list[Any] = pattern.tolist()
    else:
        if facts.find("layer_types") is None:
            return None
        kinds = facts.source.strings(facts.own("layer_types"))
        if not {"sliding_attention", "full_attention"}.issuperset(kinds):
            facts.unsupported("only full and sliding-window attention are supported, and layer_types names another")
    if len(kinds) != layer_count:
        facts.damaged("the list of layers with a sliding window is not of the number of layers")
    return [kind in {True, "sliding_attention"} for kind in kinds]


def _tied(facts: Facts) -> bool:
    return "output.weight" not in facts.source.tensors if facts.is_gguf else facts.boolean("tie_word_embeddings", False)


def _vocabulary_size(facts: Facts) -> int:
    if not facts.is_gguf:
        return facts.integer("vocab_size", maximum=MAX_CONTEXT)
    embedding = facts.source.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        facts.damaged("tensor token_embd.weight is missing or not a matrix")
    rows = embedding.shape[0]
    # Every id the model can choose must be one the tokenizer knows.
    names = "tokenizer.ggml.tokens"
    if names in facts.source.metadata and len(facts.source.strings(names)) != rows:
        facts.damaged("the vocabulary and the embedding differ in size")
    return rows
