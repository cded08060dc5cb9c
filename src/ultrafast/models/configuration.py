"""What a model file says of its model, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ultrafast.errors import ModelFileError, UnsupportedModelError
from ultrafast.weights.gguf import GgufFile

MAX_LAYERS: Final = 1024
MAX_WIDTH: Final = 1 << 20  # hidden size, feed-forward size, all heads together
MAX_HEADS: Final = 4096
MAX_CONTEXT: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class ModelConfiguration:
    """Sizes and constants of a decoder; every size is positive and consistent with the others."""

    architecture: str
    vocabulary_size: int
    context_length: int
    layer_count: int
    hidden_size: int
    feed_forward_size: int
    head_count: int
    kv_head_count: int
    head_size: int
    norm_epsilon: float
    rotary_size: int
    rotary_base: float
    rotary_scale: float  # every angle is divided by it (linear position scaling); 1 for none

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that the KV cache keeps for one token, all layers, keys and values, heads padded to 16."""
        return self.layer_count * self.kv_head_count * 2 * (-(-self.head_size // 16) * 16)

    @property
    def rotary_table_values_per_token(self) -> int:
        """Numbers that the rotary tables hold for a position, the same for all layers: a cosine and a sine per pair."""
        return 2 * (self.rotary_size // 2)


def llama_configuration(gguf: GgufFile) -> ModelConfiguration:
    """The configuration of a file whose ``general.architecture`` is ``llama``.

    Raises ``ModelFileError`` where a value is missing, of the wrong kind or out of range, and
    ``UnsupportedModelError`` for a variant this version cannot run.
    """
    prefix = "llama."
    if gguf.integer(prefix + "expert_count", 0) > 0:
        raise UnsupportedModelError(f"{gguf.path.name}: mixture-of-experts models are not supported")
    hidden_size = gguf.integer(prefix + "embedding_length", minimum=1, maximum=MAX_WIDTH)
    head_count = gguf.integer(prefix + "attention.head_count", minimum=1, maximum=MAX_HEADS)
    kv_head_count = gguf.integer(prefix + "attention.head_count_kv", head_count, minimum=1, maximum=MAX_HEADS)
    head_size = gguf.integer(prefix + "attention.key_length", hidden_size // head_count, minimum=1, maximum=MAX_WIDTH)
    if gguf.integer(prefix + "attention.value_length", head_size, minimum=1) != head_size:
        raise UnsupportedModelError(f"{gguf.path.name}: keys and values of different length are not supported")
    if head_count % kv_head_count != 0 or head_count * head_size > MAX_WIDTH:
        raise ModelFileError(f"{gguf.path.name}: attention head counts and sizes do not fit together")
    rotary_size = gguf.integer(prefix + "rope.dimension_count", head_size, minimum=2, maximum=head_size)
    if rotary_size % 2 != 0 or head_size % 2 != 0:
        raise ModelFileError(f"{gguf.path.name}: rotary and head sizes must be even")
    if rotary_size != head_size:
        # The file interleaves the rows of whole heads; what it does for a rotated part is not defined.
        raise UnsupportedModelError(f"{gguf.path.name}: partly rotated heads are not supported")
    epsilon = gguf.real(prefix + "attention.layer_norm_rms_epsilon")
    base = gguf.real(prefix + "rope.freq_base", 10_000.0)
    if not (0.0 < epsilon < 1.0 and 1.0 <= base <= 1e12):
        raise ModelFileError(f"{gguf.path.name}: norm epsilon or rotary base is out of range")
    return ModelConfiguration(
        architecture="llama",
        vocabulary_size=_vocabulary_size(gguf),
        context_length=gguf.integer(prefix + "context_length", minimum=1, maximum=MAX_CONTEXT),
        layer_count=gguf.integer(prefix + "block_count", minimum=1, maximum=MAX_LAYERS),
        hidden_size=hidden_size,
        feed_forward_size=gguf.integer(prefix + "feed_forward_length", minimum=1, maximum=MAX_WIDTH),
        head_count=head_count,
        kv_head_count=kv_head_count,
        head_size=head_size,
        norm_epsilon=epsilon,
        rotary_size=rotary_size,
        rotary_base=base,
        rotary_scale=_rotary_scale(gguf, prefix),
    )


def _vocabulary_size(gguf: GgufFile) -> int:
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFileError(f"{gguf.path.name}: tensor token_embd.weight is missing or not a matrix")
    rows = embedding.shape[0]
    # Every id the model can choose must be one the tokenizer knows.
    if "tokenizer.ggml.tokens" in gguf.metadata and len(gguf.strings("tokenizer.ggml.tokens")) != rows:
        raise ModelFileError(f"{gguf.path.name}: the vocabulary and the embedding differ in size")
    return rows


def _rotary_scale(gguf: GgufFile, prefix: str) -> float:
    kind = gguf.string(prefix + "rope.scaling.type", "none")
    if kind == "none":
        return 1.0
    if kind != "linear":
        raise UnsupportedModelError(f"{gguf.path.name}: only linear rotary scaling is supported")
    factor = gguf.real(prefix + "rope.scaling.factor")
    if not 1.0 <= factor <= 1e6:
        raise ModelFileError(f"{gguf.path.name}: the rotary scaling factor is out of range")
    return factor
