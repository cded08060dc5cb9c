"""Architecture ``qwen2``: Qwen 1.5, 2 and 2.5; llama with biases on queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

from ultrafast.models.architecture import Architecture
from ultrafast.models.configuration import ModelConfiguration
from ultrafast.models.decoder import last_layers_windowed, plain_decoder
from ultrafast.models.facts import Facts


def read(facts: Facts) -> ModelConfiguration:
    """The description of a Qwen 2."""
    plain = plain_decoder(facts)
    return replace(
        plain, biases=frozenset(("attn_q", "attn_k", "attn_v")), layers=last_layers_windowed(facts, plain.layers)
    )


ARCHITECTURE = Architecture("qwen2", ("qwen2",), read, defaults={"window": 4096})
