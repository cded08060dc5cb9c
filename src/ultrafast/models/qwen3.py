"""Architecture ``qwen3``: llama whose query and key heads are each normalised before they are rotated."""

from __future__ import annotations

from dataclasses import replace

from ultrafast.models.architecture import Architecture
from ultrafast.models.configuration import ModelConfiguration
from ultrafast.models.decoder import attention_biases, last_layers_windowed, plain_decoder
from ultrafast.models.facts import Facts


def read(facts: Facts) -> ModelConfiguration:
    """The description of a Qwen 3 without experts."""
    plain = plain_decoder(facts)
    return replace(
        plain,
        head_norm="head",
        biases=attention_biases(facts),
        layers=last_layers_windowed(facts, plain.layers),
    )


ARCHITECTURE = Architecture("qwen3", ("qwen3",), read, defaults={"head_size": 128, "window": 4096})
