"""The flat native program of any decoder, declared from its description."""

from __future__ import annotations

import numpy as np

from ultrafast import _native
from ultrafast.models.configuration import ModelConfiguration
from ultrafast.models.facts import Float32Array
from ultrafast.models.quantisation import Quantisation
from ultrafast.models.tensors import TensorSource
from ultrafast.weights.source import Tensor

_NONE = -1  # in place of an index: no norm, no bias, no rotary


def build_program(
    model: _native.Model,
    configuration: ModelConfiguration,
    tensors: TensorSource,
    context: int,
    quantisation: Quantisation,
) -> int:
    """Declare weights and operations on ``model``; returns the bytes one token reads (all products, as laid out).

    A residual stream ``hidden`` runs through the layers: queries, keys and values, attention, projection, added;
    gated feed-forward or experts, added; with norms before or after each, as the description has it. At the end norm
    and output layer.
    """
    return _Builder(model, configuration, tensors, context, quantisation).build()


class _Builder:
    def __init__(
        self,
        model: _native.Model,
        configuration: ModelConfiguration,
        tensors: TensorSource,
        context: int,
        quantisation: Quantisation,
    ) -> None:
        self.model = model
        self.configuration = c = configuration
        self.tensors = tensors
        self.quantisation = quantisation
        self.bytes_read = 0
        self.hidden = model.add_buffer(c.hidden_size)
        self.query_key_value = model.add_buffer(_padded(c.query_size) + 2 * _padded(c.kv_size))
        self.attended = model.add_buffer(c.query_size)
        self.inner = model.add_buffer(c.feed_forward_size)
        # What a sub-layer gives, where a norm comes between that and the residual stream.
        self.branch = model.add_buffer(c.hidden_size) if c.norms_after else self.hidden
        self.rotaries = [
            model.add_rotary(
                rotary.size, rotary.base, np.array(rotary.factors_for(context), np.float32), rotary.magnitude
            )
            for rotary in c.rotaries
        ]

    def build(self) -> int:
        c = self.configuration
        table = self.table("token_embd")
        if not c.tied:
            self.bytes_read = 0  # the embedding is looked up, not read through
        self.model.embed(table, self.hidden, c.embedding_scale)
        for index in range(c.layer_count):
            self.attention(index)
            self.feed_forward(index)
        if not c.tied:
            table = self.table("output")
        norm = self.model.add_vector(self.tensors.norm("output_norm", c.hidden_size))
        self.model.output(self.hidden, norm, c.norm_epsilon, table, c.logit_scale, c.logit_softcap)
        self.tensors.refuse_rest(tied=c.tied)
        self.quantisation.check()
        return self.bytes_read

    def attention(self, index: int) -> None:
        c, layer = self.configuration, self.configuration.layers[index]
        names, sizes = ("attn_q", "attn_k", "attn_v"), (c.query_size, c.kv_size, c.kv_size)
        stored = self.tensors.matrices(names, sizes, c.hidden_size, layer=index)
        swapped = (c.head_size, c.head_size, 0) if c.interleaved else (0, 0, 0)
        matrices = [self.matrix(one, head_size) for one, head_size in zip(stored, swapped, strict=True)]
        biases = [self.bias(*each, index) for each in zip(names, sizes, swapped, strict=True)]
        norm, epsilon = self.norm_before("attn_norm", index)
        self.model.linear(self.hidden, norm, epsilon, matrices, self.query_key_value, False, _given(biases), 1.0)
        whole = c.head_norm == "whole"
        query_norm = key_norm = _NONE
        if c.head_norm != "none":
            query_norm = self.norm("attn_q_norm", c.query_size if whole else c.head_size, index)
            key_norm = self.norm("attn_k_norm", c.kv_size if whole else c.head_size, index)
        self.model.attention(
            index,
            self.query_key_value,
            self.attended,
            _NONE if layer.rotary < 0 else self.rotaries[layer.rotary],
            layer.window,
            query_norm,
            key_norm,
            c.norm_epsilon,
            c.attention_softcap,
        )
        projection = self.matrix(self.tensors.matrix("attn_output", c.hidden_size, c.query_size, layer=index))
        bias = self.bias("attn_output", c.hidden_size, 0, index)
        self.add(self.attended, projection, _given([bias]), "post_attention_norm", index)

    def feed_forward(self, index: int) -> None:
        c = self.configuration
        if c.experts is not None:
            self.mixture(index)
            return
        norm, epsilon = self.norm_before("ffn_norm", index)
        size = c.feed_forward_size
        stored = self.tensors.matrices(("ffn_gate", "ffn_up"), (size, size), c.hidden_size, layer=index)
        gate, up = (self.matrix(one) for one in stored)
        self.model.gated(self.hidden, norm, epsilon, gate, up, self.inner, c.activation)
        down = self.matrix(self.tensors.matrix("ffn_down", c.hidden_size, size, layer=index))
        self.add(self.inner, down, [], "post_ffw_norm", index)

    def mixture(self, index: int) -> None:
        c, experts = self.configuration, self.configuration.experts
        assert experts is not None
        assert not c.norms_after  # no architecture of ours has both: the operation adds to the residual stream itself
        norm, epsilon = self.norm_before("ffn_norm", index)
        # As stored: few bytes, and which experts run hangs on small differences.
        tensor = self.tensors.matrix("ffn_gate_inp", experts.count, c.hidden_size, layer=index)
        router = self.lay_out(tensor, tensor.type_name)
        stored = self.tensors.experts(c.feed_forward_size, c.hidden_size, experts.count, layer=index)
        before = self.bytes_read
        gates, ups, downs = ([self.matrix(one) for one in kind] for kind in stored)
        self.bytes_read = before + (self.bytes_read - before) * experts.used // experts.count
        self.model.mixture(
            self.hidden,
            norm,
            epsilon,
            router,
            gates,
            ups,
            downs,
            experts.used,
            experts.normalise,
            self.hidden,
            c.activation,
            c.residual_scale,
        )

    def add(self, source: int, matrix: int, biases: list[int], norm_name: str, index: int) -> None:
        """Add a product to the residual stream, through the norm after the sub-layer where there is one."""
        c = self.configuration
        if not c.norms_after:
            self.model.linear(source, _NONE, 0.0, [matrix], self.hidden, True, biases, c.residual_scale)
            return
        self.model.linear(source, _NONE, 0.0, [matrix], self.branch, False, biases, 1.0)
        norm = self.norm(norm_name, c.hidden_size, index)
        self.model.norm(self.branch, norm, c.norm_epsilon, self.hidden, True, c.residual_scale)

    def matrix(self, tensor: Tensor, interleaved_head_size: int = 0) -> int:
        return self.lay_out(tensor, self.quantisation.layout(tensor, table=False), interleaved_head_size)

    def table(self, name: str) -> int:
        """The embedding or the output layer."""
        tensor = self.tensors.matrix(name, self.configuration.vocabulary_size, self.configuration.hidden_size)
        return self.lay_out(tensor, self.quantisation.layout(tensor, table=True))

    def lay_out(self, tensor: Tensor, layout: str, interleaved_head_size: int = 0) -> int:
        rows, columns = tensor.shape
        self.bytes_read += rows * _native.row_bytes(layout, columns)
        return self.model.add_matrix(tensor.type_name, tensor.data, rows, columns, interleaved_head_size, layout)

    def norm(self, name: str, length: int, index: int) -> int:
        return self.model.add_vector(self.tensors.norm(name, length, layer=index))

    def norm_before(self, name: str, index: int) -> tuple[int, float]:
        """(index, epsilon) of the norm at the entry of a sub-layer."""
        c = self.configuration
        return (self.norm(name, c.hidden_size, index), c.norm_epsilon) if c.norms_before else (_NONE, 0.0)

    def bias(self, name: str, length: int, interleaved_head_size: int, index: int) -> int:
        if name not in self.configuration.biases:
            return _NONE
        values = self.tensors.vector(name, length, layer=index, kind="bias")
        return self.model.add_vector(_halves(values, interleaved_head_size))


def _halves(values: Float32Array, interleaved_head_size: int) -> Float32Array:
    """Values of interleaved heads in the order in which the runtime keeps their rows: first halves, then second."""
    if not interleaved_head_size:
        return values
    pairs = values.reshape(-1, interleaved_head_size // 2, 2)
    return np.ascontiguousarray(pairs.transpose(0, 2, 1)).reshape(-1)


def _given(biases: list[int]) -> list[int]:
    return [] if all(bias == _NONE for bias in biases) else biases


def _padded(width: int) -> int:
    return -(-width // 32) * 32
