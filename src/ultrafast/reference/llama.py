"""The forward pass of architecture ``llama`` in plain NumPy float32: slow, short, and the oracle of the tests.

Nothing is cached or quantised: weights are dequantised once, and every call computes all positions from the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from ultrafast.errors import ContextLengthError, ModelFileError, RequestError, UnsupportedModelError
from ultrafast.reference.dequantise import Float32Array, dequantise
from ultrafast.weights.gguf import GgufFile

_QUERY_ROWS: Final = 256  # queries handled together in attention: bounds its memory


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer, each ``float32[outputs, inputs]``; norms are ``float32[hidden]``."""

    attention_norm: Float32Array
    query: Float32Array
    key: Float32Array
    value: Float32Array
    attention_output: Float32Array
    feed_forward_norm: Float32Array
    gate: Float32Array
    up: Float32Array
    down: Float32Array


class ReferenceModel:
    """Logits of whole sequences; made by ``from_gguf``."""

    def __init__(
        self,
        *,
        layers: list[Layer],
        embedding: Float32Array,
        output: Float32Array,
        output_norm: Float32Array,
        head_count: int,
        kv_head_count: int,
        epsilon: float,
        inverse_frequencies: np.ndarray[tuple[int], np.dtype[np.float64]],
        context_length: int,
    ) -> None:
        self.layers = layers
        self.embedding = embedding  # [vocabulary, hidden]
        self.output_weight = output  # [vocabulary, hidden]; the embedding itself where the file ties them
        self.output_norm = output_norm
        self.head_count = head_count
        self.kv_head_count = kv_head_count
        self.epsilon = np.float32(epsilon)
        self.inverse_frequencies = inverse_frequencies  # [head_size / 2]
        self.context_length = context_length

    @classmethod
    def from_gguf(cls, gguf: GgufFile) -> Self:
        """Dequantise every weight of an open file (four bytes each).

        Raises ``UnsupportedModelError`` for another architecture or another use of rotary positions, and
        ``ModelFileError`` where metadata and tensors contradict each other.
        """
        if gguf.string("general.architecture") != "llama":
            raise UnsupportedModelError("the reference runs architecture llama only")
        hidden = gguf.integer("llama.embedding_length", minimum=1)
        inner = gguf.integer("llama.feed_forward_length", minimum=1)
        heads = gguf.integer("llama.attention.head_count", minimum=1)
        kv_heads = gguf.integer("llama.attention.head_count_kv", heads, minimum=1, maximum=heads)
        head = gguf.integer("llama.attention.key_length", hidden // heads, minimum=2)
        if heads % kv_heads or head % 2:
            raise ModelFileError("the attention heads do not divide evenly")
        if gguf.integer("llama.rope.dimension_count", head) != head:
            raise UnsupportedModelError("rotary positions over a part of a head are not supported")
        if gguf.string("llama.rope.scaling.type", "none") != "none":
            raise UnsupportedModelError("scaled rotary positions are not supported")

        def weight(name: str, *shape: int) -> Float32Array:
            tensor = gguf.tensors.get(f"{name}.weight")
            if tensor is None or tensor.shape != shape:
                raise ModelFileError(f"tensor {name}.weight is missing or not of the shape the metadata asks for")
            return dequantise(tensor)

        table = gguf.tensors.get("token_embd.weight")
        vocabulary = 0 if table is None else table.shape[0]
        embedding = weight("token_embd", vocabulary, hidden)
        base = gguf.real("llama.rope.freq_base", 10_000.0)
        if base <= 0:
            raise ModelFileError("the base of the rotary positions is not positive")
        frequencies = base ** (-np.arange(0, head, 2, dtype=np.float64) / head)
        if "rope_freqs.weight" in gguf.tensors:
            frequencies = frequencies / weight("rope_freqs", head // 2)
        return cls(
            layers=[
                Layer(
                    attention_norm=weight(f"blk.{index}.attn_norm", hidden),
                    query=weight(f"blk.{index}.attn_q", heads * head, hidden),
                    key=weight(f"blk.{index}.attn_k", kv_heads * head, hidden),
                    value=weight(f"blk.{index}.attn_v", kv_heads * head, hidden),
                    attention_output=weight(f"blk.{index}.attn_output", hidden, heads * head),
                    feed_forward_norm=weight(f"blk.{index}.ffn_norm", hidden),
                    gate=weight(f"blk.{index}.ffn_gate", inner, hidden),
                    up=weight(f"blk.{index}.ffn_up", inner, hidden),
                    down=weight(f"blk.{index}.ffn_down", hidden, inner),
                )
                for index in range(gguf.integer("llama.block_count", minimum=1))
            ],
            embedding=embedding,
            output=weight("output", vocabulary, hidden) if "output.weight" in gguf.tensors else embedding,
            output_norm=weight("output_norm", hidden),
            head_count=heads,
            kv_head_count=kv_heads,
            epsilon=gguf.real("llama.attention.layer_norm_rms_epsilon"),
            inverse_frequencies=frequencies,
            context_length=gguf.integer("llama.context_length", minimum=1),
        )

    def logits(self, tokens: Sequence[int]) -> Float32Array:
        """``float32[positions, vocabulary]``: after each token, the scores of the next.

        Raises ``RequestError`` for an empty sequence or an id outside the vocabulary, ``ContextLengthError`` for too
        many tokens.
        """
        return self.hidden(tokens) @ self.output_weight.T

    def hidden(self, tokens: Sequence[int]) -> Float32Array:
        """``float32[positions, hidden]``: the final states, normalised, that the output layer is applied to."""
        ids = np.asarray(tokens, dtype=np.int64)
        if ids.ndim != 1 or not ids.size or ids.min() < 0 or ids.max() >= len(self.embedding):
            raise RequestError("the token ids are none, or not all inside the vocabulary")
        if ids.size > self.context_length:
            raise ContextLengthError(f"{ids.size} tokens exceed the model's context of {self.context_length}")
        angles = np.arange(ids.size, dtype=np.float64)[:, None] * self.inverse_frequencies
        cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        states = self.embedding[ids]
        for layer in self.layers:
            states = states + self._attention(layer, self._normalised(states, layer.attention_norm), cosine, sine)
            states = states + self._feed_forward(layer, self._normalised(states, layer.feed_forward_norm))
        return self._normalised(states, self.output_norm)

    def _normalised(self, states: Float32Array, weight: Float32Array) -> Float32Array:
        """Root-mean-square norm over the last axis."""
        mean_square: Float32Array = np.mean(states * states, axis=-1, keepdims=True, dtype=np.float32)
        return np.asarray(states / np.sqrt(mean_square + self.epsilon) * weight, np.float32)

    def _attention(self, layer: Layer, states: Float32Array, cosine: Float32Array, sine: Float32Array) -> Float32Array:
        positions = len(states)
        query = _rotated((states @ layer.query.T).reshape(positions, self.head_count, -1), cosine, sine)
        key = _rotated((states @ layer.key.T).reshape(positions, self.kv_head_count, -1), cosine, sine)
        value = (states @ layer.value.T).reshape(positions, self.kv_head_count, -1)
        shared = self.head_count // self.kv_head_count  # query heads per key head
        key = np.repeat(key, shared, axis=1).transpose(1, 2, 0)  # [heads, head_size, positions]
        value = np.repeat(value, shared, axis=1).transpose(1, 0, 2)  # [heads, positions, head_size]
        query = query.transpose(1, 0, 2) / np.sqrt(np.float32(query.shape[-1]))
        mixed = np.empty((positions, self.head_count, value.shape[-1]), np.float32)
        for start in range(0, positions, _QUERY_ROWS):
            end = min(start + _QUERY_ROWS, positions)
            scores = query[:, start:end] @ key[:, :, :end]  # [heads, rows, keys]
            future = np.arange(end) > np.arange(start, end)[:, None]
            scores[:, future] = -np.inf
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            scores /= scores.sum(axis=-1, keepdims=True)
            mixed[start:end] = (scores @ value[:, :end]).transpose(1, 0, 2)
        return mixed.reshape(positions, -1) @ layer.attention_output.T

    def _feed_forward(self, layer: Layer, states: Float32Array) -> Float32Array:
        gate: Float32Array = states @ layer.gate.T
        with np.errstate(over="ignore"):  # exp(-x) may reach infinity, where the quotient is rightly 0
            gate = gate / (1 + np.exp(-gate))
        inner: Float32Array = gate * (states @ layer.up.T)
        return inner @ layer.down.T


def _rotated(heads: Float32Array, cosine: Float32Array, sine: Float32Array) -> Float32Array:
    """Rotary positions on ``float32[positions, heads, head_size]``: neighbours are turned as a pair."""
    even, odd = heads[..., 0::2], heads[..., 1::2]
    cosine, sine = cosine[:, None], sine[:, None]
    turned = np.empty_like(heads)
    turned[..., 0::2] = even * cosine - odd * sine
    turned[..., 1::2] = even * sine + odd * cosine
    return turned
