"""The ``llama`` architecture as a flat program over the native runtime."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ultrafast import _native
from ultrafast.errors import ModelFileError, UnsupportedModelError
from ultrafast.models.configuration import ModelConfiguration
from ultrafast.weights.gguf import GgufFile, GgufTensor


class TensorSource:
    """Takes tensors out of a file by name and shape, and remembers which were taken."""

    def __init__(self, gguf: GgufFile) -> None:
        self._gguf = gguf
        self._taken: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the file holds this tensor."""
        return name in self._gguf.tensors

    def take(self, name: str, shape: tuple[int, ...]) -> GgufTensor:
        """The tensor ``name``. Raises ``ModelFileError`` where it is missing or has another shape."""
        tensor = self._gguf.tensors.get(name)
        if tensor is None:
            raise ModelFileError(f"{self._gguf.path.name}: tensor {name} is missing")
        if tensor.shape != shape:
            raise ModelFileError(f"{self._gguf.path.name}: tensor {name} has shape {tensor.shape}, expected {shape}")
        self._taken.add(name)
        return tensor

    def vector(self, name: str, length: int) -> NDArray[np.float32]:
        """A small float tensor as float32."""
        tensor = self.take(name, (length,))
        if tensor.type_name == "F32":
            return tensor.data.view("<f4").astype(np.float32)
        if tensor.type_name == "F16":
            return tensor.data.view("<f2").astype(np.float32)
        if tensor.type_name == "BF16":
            return (tensor.data.view("<u2").astype(np.uint32) << 16).view(np.float32)
        raise UnsupportedModelError(f"{self._gguf.path.name}: tensor {name} must be a float type")

    def refuse_rest(self) -> None:
        """Raise ``UnsupportedModelError`` if a tensor was not taken: to ignore it would change answers."""
        rest = sorted(set(self._gguf.tensors) - self._taken)
        if rest:
            raise UnsupportedModelError(
                f"{self._gguf.path.name}: {len(rest)} tensors are of no use to the {self._architecture} architecture "
                "as supported here (biases, adapters or experts are not)"
            )

    @property
    def _architecture(self) -> str:
        return self._gguf.string("general.architecture")


def rotary_factors(configuration: ModelConfiguration, tensors: TensorSource) -> NDArray[np.float32]:
    """Divisors of the rotary frequencies, float32 [rotary_size / 2]: from ``rope_freqs.weight`` and linear scaling."""
    half = configuration.rotary_size // 2
    factors = np.full(half, configuration.rotary_scale, np.float32)
    if tensors.has("rope_freqs.weight"):
        factors *= tensors.vector("rope_freqs.weight", half)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise ModelFileError("rotary frequency factors must be positive and finite")
    return factors


def build_program(model: _native.Model, configuration: ModelConfiguration, tensors: TensorSource) -> int:
    """Declare weights and operations on ``model``; returns the bytes one token reads (all products, in file form).

    A residual stream ``hidden`` runs through each layer: norm, q k v, attention, output projection; norm, gated
    feed-forward; and at the end norm and output layer, tied to the embedding where the file has none of its own.
    """
    c = configuration
    query_size, kv_size = c.head_count * c.head_size, c.kv_head_count * c.head_size
    bytes_read = 0

    def matrix(name: str, rows: int, columns: int, *, interleaved_head_size: int = 0) -> int:
        nonlocal bytes_read
        tensor = tensors.take(name, (rows, columns))
        bytes_read += tensor.byte_count
        return model.add_matrix(tensor.type_name, tensor.data, rows, columns, interleaved_head_size)

    def norm(name: str) -> int:
        return model.add_vector(tensors.vector(name, c.hidden_size))

    padded = -(-query_size // 32) * 32 + 2 * (-(-kv_size // 32) * 32)
    hidden, query_key_value = model.add_buffer(c.hidden_size), model.add_buffer(padded)
    attended, feed_forward = model.add_buffer(query_size), model.add_buffer(c.feed_forward_size)

    embedding = matrix("token_embd.weight", c.vocabulary_size, c.hidden_size)
    if tensors.has("output.weight"):
        bytes_read = 0  # the embedding is looked up, not read through
    rotary = model.add_rotary(c.rotary_size, c.rotary_base, rotary_factors(c, tensors), 1.0)
    model.embed(embedding, hidden, 1.0)
    for layer in range(c.layer_count):
        prefix = f"blk.{layer}."
        query = matrix(prefix + "attn_q.weight", query_size, c.hidden_size, interleaved_head_size=c.head_size)
        key = matrix(prefix + "attn_k.weight", kv_size, c.hidden_size, interleaved_head_size=c.head_size)
        value = matrix(prefix + "attn_v.weight", kv_size, c.hidden_size)
        projection = matrix(prefix + "attn_output.weight", c.hidden_size, query_size)
        gate = matrix(prefix + "ffn_gate.weight", c.feed_forward_size, c.hidden_size)
        up = matrix(prefix + "ffn_up.weight", c.feed_forward_size, c.hidden_size)
        down = matrix(prefix + "ffn_down.weight", c.hidden_size, c.feed_forward_size)
        attention_norm, feed_forward_norm = norm(prefix + "attn_norm.weight"), norm(prefix + "ffn_norm.weight")
        model.linear(hidden, attention_norm, c.norm_epsilon, [query, key, value], query_key_value, False, [], 1.0)
        model.attention(layer, query_key_value, attended, rotary, 0, -1, -1, 0.0, 0.0)
        model.linear(attended, -1, 0.0, [projection], hidden, True, [], 1.0)
        model.gated(hidden, feed_forward_norm, c.norm_epsilon, gate, up, feed_forward, "silu")
        model.linear(feed_forward, -1, 0.0, [down], hidden, True, [], 1.0)
    output = embedding
    if tensors.has("output.weight"):
        output = matrix("output.weight", c.vocabulary_size, c.hidden_size)
    model.output(hidden, norm("output_norm.weight"), c.norm_epsilon, output, 1.0, 0.0)
    tensors.refuse_rest()
    return bytes_read
