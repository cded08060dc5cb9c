"""Architecture ``llama``: Llama 1 to 3, and the many models of its make (SmolLM 2, TinyLlama, Yi, ...)."""

from __future__ import annotations

from dataclasses import replace

from ultrafast.models.architecture import Architecture
from ultrafast.models.configuration import ModelConfiguration
from ultrafast.models.decoder import attention_biases, plain_decoder, windowed
from ultrafast.models.facts import Facts


def read(facts: Facts) -> ModelConfiguration:
    """The description of a llama; GGUF files keep its query and key rows interleaved."""
    if facts.is_gguf and facts.integer("expert_count", 0, minimum=0) > 0:
        facts.unsupported("a mixture of experts of the llama architecture (Mixtral) is not supported")
    if not facts.is_gguf and facts.boolean("mlp_bias", False):
        facts.unsupported("biases in the feed-forward part are not supported")
    plain = plain_decoder(facts, interleaved_gguf=True)
    return replace(
        plain,
        biases=attention_biases(facts),
        # Mistral's models are of this architecture in GGUF files.
        layers=windowed(facts, plain.layers) if facts.is_gguf else plain.layers,
    )


ARCHITECTURE = Architecture("llama", ("llama",), read)
