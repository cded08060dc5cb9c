"""What a decoder is made of, whatever file it came from: all that the native program and the reference follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

MAX_LAYERS: Final = 1024
MAX_WIDTH: Final = 1 << 20  # hidden size, feed-forward size, all heads together
MAX_HEADS: Final = 4096
MAX_CONTEXT: Final = 1 << 24
MAX_EXPERTS: Final = 4096

Activation = Literal["silu", "gelu"]  # gelu in its tanh form
HeadNorm = Literal["none", "head", "whole"]


@dataclass(frozen=True, slots=True)
class Rotary:
    """How positions turn the first ``size`` values of a query or key head: value i with value i + size / 2.

    The angle of pair i is position × base^(−2i / size) ÷ factor i; cosine and sine are multiplied by ``magnitude``.
    """

    size: int
    base: float
    factors: tuple[float, ...] = ()  # float32 [size / 2]; empty for all 1
    magnitude: float = 1.0
    # What a model loaded with a context longer than ``short_context`` uses in place of ``factors``, if not empty.
    long_factors: tuple[float, ...] = ()
    short_context: int = 0

    def factors_for(self, context: int) -> tuple[float, ...]:
        """The factors of a model that is loaded to hold ``context`` tokens.

        One choice for all positions, made at load: keys that are cached must suit every query still to come.
        """
        return self.long_factors if self.long_factors and context > self.short_context else self.factors


@dataclass(frozen=True, slots=True)
class Layer:
    """What distinguishes one layer's attention from another's."""

    window: int = 0  # the last so many positions are attended to, the token's own included; 0 for all
    rotary: int = 0  # index into the configuration's rotaries; −1 for none


@dataclass(frozen=True, slots=True)
class Experts:
    """A feed-forward part of ``count`` alternatives, of which a router picks ``used`` for each token."""

    count: int
    used: int
    normalise: bool  # whether the weights of the picked ones are scaled to a sum of 1


@dataclass(frozen=True, slots=True)
class ModelConfiguration:
    """Sizes and constants of a decoder; every size is positive and consistent with the others.

    Defaults are the plainest decoder (llama); an architecture's file states what it does otherwise.
    """

    architecture: str
    vocabulary_size: int
    context_length: int
    hidden_size: int
    feed_forward_size: int  # of one expert, where there are experts
    head_count: int
    kv_head_count: int
    head_size: int
    norm_epsilon: float
    attention_scale: float  # of query · key
    layers: tuple[Layer, ...]
    rotaries: tuple[Rotary, ...]
    tied: bool  # the output layer is the embedding
    biases: frozenset[str] = frozenset()  # matrices with a bias, by the names of GGUF within a layer
    interleaved: bool = False  # the file keeps pair i of a rotary at rows 2i, 2i + 1 of a head, not i, i + size / 2
    norms_before: bool = True  # a norm at the entry of attention and feed-forward
    norms_after: bool = False  # and one on what they give, before it is added
    head_norm: HeadNorm = "none"  # of queries and keys, before rotation: per head, or across all heads
    activation: Activation = "silu"
    experts: Experts | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # of what attention and feed-forward add
    logit_scale: float = 1.0
    attention_softcap: float = 0.0  # c · tanh(score / c); 0 for none
    logit_softcap: float = 0.0

    @property
    def layer_count(self) -> int:
        """Layers from embedding to output."""
        return len(self.layers)

    @property
    def query_size(self) -> int:
        """Values of all query heads of a token."""
        return self.head_count * self.head_size

    @property
    def kv_size(self) -> int:
        """Values of all key heads of a token; as many of all value heads."""
        return self.kv_head_count * self.head_size

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that the KV cache keeps for one token, all layers, keys and values, heads padded to 16."""
        return self.layer_count * self.kv_head_count * 2 * (-(-self.head_size // 16) * 16)

    @property
    def rotary_table_values_per_token(self) -> int:
        """Numbers that all rotary tables hold for a position: a cosine and a sine per pair."""
        return sum(rotary.size for rotary in self.rotaries)
