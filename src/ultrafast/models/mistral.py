"""Architecture ``mistral``: llama with a sliding window over every layer. GGUF files call it ``llama``."""

from __future__ import annotations

from dataclasses import replace

from ultrafast.models.architecture import Architecture
from ultrafast.models.configuration import ModelConfiguration
from ultrafast.models.decoder import plain_decoder, windowed
from ultrafast.models.facts import Facts


def read(facts: Facts) -> ModelConfiguration:
    """The description of a Mistral model in a Hugging Face directory."""
    plain = plain_decoder(facts)
    return replace(plain, layers=windowed(facts, plain.layers))


ARCHITECTURE = Architecture("", ("mistral",), read, defaults={"kv_head_count": 8, "window": 4096})
