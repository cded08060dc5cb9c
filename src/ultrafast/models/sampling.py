"""How one token is chosen from the logits of a position."""

from __future__ import annotations

import msgspec


class SamplingParameters(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The sampling part of a request; the same values and seed always give the same tokens.

    A field at its default switches its rule off. The order of the rules is fixed: logit bias, penalties, temperature,
    top-k, top-p, min-p. Values are taken as validated: ranges are the caller's duty.
    """

    temperature: float = 1.0  # 0 is greedy, ties to the lowest id
    top_k: int = 0  # 0 keeps every token
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}  # msgspec copies the default for each instance
    seed: int = 0  # unsigned, 64 bits
    top_logprobs: int = 0  # alternatives reported beside a sampled token
