"""Architecture ``smollm3``: llama whose every fourth layer has no rotary positions."""

from __future__ import annotations

from dataclasses import replace

from ultrafast.models.architecture import Architecture
from ultrafast.models.configuration import Layer, ModelConfiguration
from ultrafast.models.decoder import attention_biases, plain_decoder, windowed
from ultrafast.models.facts import Facts

_PERIOD = 4


def read(facts: Facts) -> ModelConfiguration:
    """The description of a SmolLM 3; GGUF files keep query and key rows interleaved, and leave the period unsaid."""
    if not facts.is_gguf and facts.boolean("mlp_bias", False):
        facts.unsupported("biases in the feed-forward part are not supported")
    plain = plain_decoder(facts, interleaved_gguf=True, rotary_base=2e6)
    rotated = _rotated(facts, plain.layer_count)
    layers = tuple(Layer(rotary=0 if turns else -1) for turns in rotated)
    slides = facts.is_gguf or facts.boolean("use_sliding_window", False)
    return replace(
        plain,
        biases=attention_biases(facts),
        layers=windowed(facts, layers, [not turns for turns in rotated]) if slides else layers,
    )


def _rotated(facts: Facts, layer_count: int) -> list[bool]:
    period = _PERIOD
    if not facts.is_gguf:
        # Its name notwithstanding, the list holds 1 for a layer with rotary positions.
        if facts.find("no_rope_layers") is not None:
            values = facts.source.numbers(facts.own("no_rope_layers"))
            if len(values) < layer_count:
                facts.damaged("no_rope_layers is shorter than the number of layers")
            return [bool(value) for value in values[:layer_count]]
        period = facts.integer("no_rope_layer_interval", _PERIOD)
    return [(index + 1) % period != 0 for index in range(layer_count)]


ARCHITECTURE = Architecture("smollm3", ("smollm3",), read, defaults={"kv_head_count": 4, "tie_word_embeddings": True})
