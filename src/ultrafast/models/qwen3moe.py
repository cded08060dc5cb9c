"""Architecture ``qwen3moe`` (``qwen3_moe`` in config.json): Qwen 3 with a mixture of experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from ultrafast.models.architecture import Architecture
from ultrafast.models.configuration import MAX_EXPERTS, MAX_WIDTH, Experts, ModelConfiguration
from ultrafast.models.decoder import attention_biases, plain_decoder, windowed
from ultrafast.models.facts import Facts


def read(facts: Facts) -> ModelConfiguration:
    """The description of a Qwen 3 with experts."""
    if not facts.is_gguf and (
        facts.integer("decoder_sparse_step", 1) != 1 or _names_layers(facts.find("mlp_only_layers"))
    ):
        facts.unsupported("layers without experts among layers with experts are not supported")
    plain = plain_decoder(facts)
    count = facts.integer("expert_count", maximum=MAX_EXPERTS)
    slides = facts.is_gguf or facts.boolean("use_sliding_window", False)
    return replace(
        plain,
        head_norm="head",
        biases=attention_biases(facts),
        feed_forward_size=facts.integer("expert_feed_forward_size", maximum=MAX_WIDTH),
        experts=Experts(
            count=count,
            used=facts.integer("experts_used", maximum=count),
            # A GGUF file need not say it: all published models of this architecture do.
            normalise=facts.boolean("experts_normalised", facts.is_gguf),
        ),
        layers=windowed(facts, plain.layers) if slides else plain.layers,
    )


def _names_layers(layers: object) -> bool:
    return not (layers is None or (isinstance(layers, list) and not layers))


ARCHITECTURE = Architecture("qwen3moe", ("qwen3_moe",), read, defaults={"window": 4096})
