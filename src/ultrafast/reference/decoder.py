"""The forward pass of every architecture in plain NumPy float32: slow, short, and the oracle of the tests.

It follows the same description as the native program, with mathematics of its own. Nothing is cached or quantised:
weights are dequantised once, and every call computes all positions from the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from ultrafast.errors import ContextLengthError, RequestError
from ultrafast.models.configuration import Layer, ModelConfiguration, Rotary
from ultrafast.models.description import describe
from ultrafast.models.tensors import TensorSource
from ultrafast.reference.dequantise import Float32Array, dequantise
from ultrafast.weights import ModelSource

_QUERY_ROWS: Final = 256  # queries handled together in attention: bounds its memory
_GELU_SCALE: Final = np.float32(np.sqrt(2 / np.pi))


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of one layer: matrices ``float32[outputs, inputs]`` and vectors, by the names of GGUF."""

    matrices: dict[str, Float32Array]
    norms: dict[str, Float32Array]
    biases: dict[str, Float32Array]
    experts: list[tuple[Float32Array, Float32Array, Float32Array]]  # (gate, up, down)


class ReferenceModel:
    """Logits of whole sequences; made by ``from_source``."""

    def __init__(
        self,
        configuration: ModelConfiguration,
        tensors: TensorSource,
        context: int | None = None,
        cache_type: type[np.float16 | np.float32] = np.float32,
    ) -> None:
        self.configuration = c = configuration
        self.cache_type = cache_type
        self.context_length = c.context_length if context is None else context
        self.embedding = dequantise(tensors.matrix("token_embd", c.vocabulary_size, c.hidden_size))
        self.layers = [_weights(c, tensors, index) for index in range(c.layer_count)]
        self.output_norm = tensors.norm("output_norm", c.hidden_size)
        output = None if c.tied else tensors.matrix("output", c.vocabulary_size, c.hidden_size)
        self.output_weight = self.embedding if output is None else dequantise(output)
        tensors.refuse_rest(tied=c.tied)

    @classmethod
    def from_source(
        cls,
        source: ModelSource,
        *,
        context: int | None = None,
        cache_type: type[np.float16 | np.float32] = np.float32,
    ) -> Self:
        """Dequantise every weight of an open model (four bytes each), for a context as the engine is loaded with.

        Keys and values are rounded to ``cache_type`` before use: float16 is what the engine keeps them in.
        Raises ``UnsupportedModelError`` for what this version cannot run, and ``ModelFileError`` where metadata and
        tensors contradict each other.
        """
        return cls(*describe(source), context, cache_type)

    def logits(self, tokens: Sequence[int]) -> Float32Array:
        """``float32[positions, vocabulary]``: after each token, the scores of the next.

        Raises ``RequestError`` for an empty sequence or an id outside the vocabulary, ``ContextLengthError`` for too
        many tokens.
        """
        scores = self.hidden(tokens) @ self.output_weight.T * np.float32(self.configuration.logit_scale)
        return _capped(scores, self.configuration.logit_softcap)

    def hidden(self, tokens: Sequence[int]) -> Float32Array:
        """``float32[positions, hidden]``: the final states, normalised, that the output layer is applied to."""
        c = self.configuration
        ids = np.asarray(tokens, dtype=np.int64)
        if ids.ndim != 1 or not ids.size or ids.min() < 0 or ids.max() >= len(self.embedding):
            raise RequestError("the token ids are none, or not all inside the vocabulary")
        if ids.size > self.context_length:
            raise ContextLengthError(f"{ids.size} tokens exceed the model's context of {self.context_length}")
        turns = [_turns(rotary, ids.size, self.context_length) for rotary in c.rotaries]
        states = self.embedding[ids] * np.float32(c.embedding_scale)
        for layer, weights in zip(c.layers, self.layers, strict=True):
            turn = None if layer.rotary < 0 else turns[layer.rotary]
            given = self._attention(layer, weights, self._norm(states, weights.norms.get("attn_norm")), turn)
            given = self._norm(given, weights.norms.get("post_attention_norm"))
            states = states + given * np.float32(c.residual_scale)
            given = self._feed_forward(weights, self._norm(states, weights.norms.get("ffn_norm")))
            given = self._norm(given, weights.norms.get("post_ffw_norm"))
            states = states + given * np.float32(c.residual_scale)
        return self._norm(states, self.output_norm)

    def _norm(self, states: Float32Array, weight: Float32Array | None) -> Float32Array:
        """Root-mean-square norm over the last axis; no weight, no norm."""
        if weight is None:
            return states
        mean_square: Float32Array = np.mean(states * states, axis=-1, keepdims=True, dtype=np.float32)
        root = np.sqrt(mean_square + np.float32(self.configuration.norm_epsilon))
        return np.asarray(states / root * weight, np.float32)

    def _attention(
        self, layer: Layer, weights: Weights, states: Float32Array, turns: tuple[Float32Array, Float32Array] | None
    ) -> Float32Array:
        c, positions = self.configuration, len(states)
        query, key, value = (_linear(weights, name, states) for name in ("attn_q", "attn_k", "attn_v"))
        if c.head_norm == "whole":
            query = self._norm(query, weights.norms["attn_q_norm"])
            key = self._norm(key, weights.norms["attn_k_norm"])
        query = query.reshape(positions, c.head_count, c.head_size)
        key, value = (part.reshape(positions, c.kv_head_count, c.head_size) for part in (key, value))
        if c.head_norm == "head":
            query = self._norm(query, weights.norms["attn_q_norm"])
            key = self._norm(key, weights.norms["attn_k_norm"])
        if turns is not None:
            query, key = (_rotated(part, *turns, interleaved=c.interleaved) for part in (query, key))
        key, value = (part.astype(self.cache_type).astype(np.float32) for part in (key, value))
        shared = c.head_count // c.kv_head_count  # query heads per key head
        key = np.repeat(key, shared, axis=1).transpose(1, 2, 0)  # [heads, head_size, positions]
        value = np.repeat(value, shared, axis=1).transpose(1, 0, 2)  # [heads, positions, head_size]
        query = query.transpose(1, 0, 2) * np.float32(c.attention_scale)
        mixed = np.empty((positions, c.head_count, c.head_size), np.float32)
        for start in range(0, positions, _QUERY_ROWS):
            end = min(start + _QUERY_ROWS, positions)
            scores = _capped(query[:, start:end] @ key[:, :, :end], c.attention_softcap)  # [heads, rows, keys]
            distance = np.arange(start, end)[:, None] - np.arange(end)
            scores[:, (distance < 0) | (distance >= (layer.window or positions))] = -np.inf
            mixed[start:end] = (_softmax(scores) @ value[:, :end]).transpose(1, 0, 2)
        return _linear(weights, "attn_output", mixed.reshape(positions, -1))

    def _feed_forward(self, weights: Weights, states: Float32Array) -> Float32Array:
        experts = self.configuration.experts
        if experts is None:
            matrices = weights.matrices
            return self._gated(states, matrices["ffn_gate"], matrices["ffn_up"], matrices["ffn_down"])
        shares = _softmax(states @ weights.matrices["ffn_gate_inp"].T)
        best = np.argsort(-shares, axis=-1, kind="stable")[:, : experts.used]
        kept = np.zeros_like(shares)
        np.put_along_axis(kept, best, np.take_along_axis(shares, best, axis=-1), axis=-1)
        if experts.normalise:
            kept /= kept.sum(axis=-1, keepdims=True)
        total = np.zeros_like(states)
        for share, expert in zip(kept.T, weights.experts, strict=True):
            total += share[:, None] * self._gated(states, *expert)
        return total

    def _gated(self, states: Float32Array, gate: Float32Array, up: Float32Array, down: Float32Array) -> Float32Array:
        opened: Float32Array = states @ gate.T
        if self.configuration.activation == "gelu":
            cubic = opened + np.float32(0.044715) * opened**3
            opened = np.float32(0.5) * opened * (1 + np.tanh(_GELU_SCALE * cubic))
        else:
            with np.errstate(over="ignore"):  # exp(-x) may reach infinity, where the quotient is rightly 0
                opened = opened / (1 + np.exp(-opened))
        inner: Float32Array = opened * (states @ up.T)
        return inner @ down.T


def _weights(c: ModelConfiguration, tensors: TensorSource, index: int) -> Weights:
    """The weights of a layer that the description asks for."""
    sizes = {"attn_q": c.query_size, "attn_k": c.kv_size, "attn_v": c.kv_size, "attn_output": c.hidden_size}
    names = ("attn_q", "attn_k", "attn_v")
    stored = tensors.matrices(names, [sizes[name] for name in names], c.hidden_size, layer=index)
    matrices = dict(zip(names, stored, strict=True))
    matrices["attn_output"] = tensors.matrix("attn_output", c.hidden_size, c.query_size, layer=index)
    experts: list[tuple[Float32Array, Float32Array, Float32Array]] = []
    inner = c.feed_forward_size
    if c.experts is not None:
        matrices["ffn_gate_inp"] = tensors.matrix("ffn_gate_inp", c.experts.count, c.hidden_size, layer=index)
        kinds = tensors.experts(inner, c.hidden_size, c.experts.count, layer=index)
        experts = [(dequantise(gate), dequantise(up), dequantise(down)) for gate, up, down in zip(*kinds, strict=True)]
    else:
        gate, up = tensors.matrices(("ffn_gate", "ffn_up"), (inner, inner), c.hidden_size, layer=index)
        matrices |= {"ffn_gate": gate, "ffn_up": up}
        matrices["ffn_down"] = tensors.matrix("ffn_down", c.hidden_size, inner, layer=index)
    lengths = dict.fromkeys(("attn_norm", "ffn_norm") if c.norms_before else (), c.hidden_size)
    if c.norms_after:
        lengths |= {"post_attention_norm": c.hidden_size, "post_ffw_norm": c.hidden_size}
    if c.head_norm != "none":
        whole = c.head_norm == "whole"
        lengths["attn_q_norm"] = c.query_size if whole else c.head_size
        lengths["attn_k_norm"] = c.kv_size if whole else c.head_size
    return Weights(
        matrices={name: dequantise(tensor) for name, tensor in matrices.items()},
        norms={name: tensors.norm(name, length, layer=index) for name, length in lengths.items()},
        biases={name: tensors.vector(name, sizes[name], layer=index, kind="bias") for name in c.biases},
        experts=experts,
    )


def _linear(weights: Weights, name: str, states: Float32Array) -> Float32Array:
    product: Float32Array = states @ weights.matrices[name].T
    return product + weights.biases[name] if name in weights.biases else product


def _softmax(scores: Float32Array) -> Float32Array:
    powers: Float32Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    powers /= powers.sum(axis=-1, keepdims=True)
    return powers


def _capped(scores: Float32Array, cap: float) -> Float32Array:
    if not cap:
        return scores
    return np.asarray(np.float32(cap) * np.tanh(scores / np.float32(cap)), np.float32)


def _turns(rotary: Rotary, positions: int, context: int) -> tuple[Float32Array, Float32Array]:
    """(cosines, sines), each ``float32[positions, size / 2]``."""
    frequencies: NDArray[np.float64] = rotary.base ** (-np.arange(0, rotary.size, 2, dtype=np.float64) / rotary.size)
    if factors := rotary.factors_for(context):
        frequencies = frequencies / np.array(factors)
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies
    return (np.cos(angles) * rotary.magnitude).astype(np.float32), (np.sin(angles) * rotary.magnitude).astype(
        np.float32
    )


def _rotated(heads: Float32Array, cosine: Float32Array, sine: Float32Array, *, interleaved: bool) -> Float32Array:
    """Rotary positions on ``float32[positions, heads, head_size]``, whose first part is turned pair by pair.

    A pair is two neighbours where the file interleaves the rows, else value i and value i + size / 2.
    """
    half = cosine.shape[-1]
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    )
    cosine, sine = cosine[:, None], sine[:, None]
    turned = heads.copy()
    turned[..., first] = heads[..., first] * cosine - heads[..., second] * sine
    turned[..., second] = heads[..., first] * sine + heads[..., second] * cosine
    return turned
