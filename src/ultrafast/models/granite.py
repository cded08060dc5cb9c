"""Architecture ``granite``: llama with four multipliers, of embedding, attention, residuals and logits."""

from __future__ import annotations

from dataclasses import replace

from ultrafast.models.architecture import Architecture
from ultrafast.models.configuration import ModelConfiguration
from ultrafast.models.decoder import attention_biases, plain_decoder
from ultrafast.models.facts import Facts, float32


def read(facts: Facts) -> ModelConfiguration:
    """The description of a Granite 3 without experts; GGUF files keep query and key rows interleaved."""
    if not facts.is_gguf and facts.boolean("mlp_bias", False):
        facts.unsupported("biases in the feed-forward part are not supported")
    plain = plain_decoder(facts, interleaved_gguf=True)

    def multiplier(name: str, usual: float = 1.0) -> float:
        return facts.real(name, usual, minimum=1e-6, maximum=1e6)

    return replace(
        plain,
        biases=attention_biases(facts),
        attention_scale=multiplier("attention_scale", plain.attention_scale if facts.is_gguf else 1.0),
        embedding_scale=multiplier("embedding_scale"),
        residual_scale=multiplier("residual_scale"),
        logit_scale=float32(1 / multiplier("logit_divisor")),
    )


ARCHITECTURE = Architecture("granite", ("granite",), read)
