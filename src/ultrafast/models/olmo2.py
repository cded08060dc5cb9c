"""Architecture ``olmo2``: norms after attention and feed-forward instead of before, and across all heads at once."""

from __future__ import annotations

from dataclasses import replace

from ultrafast.models.architecture import Architecture
from ultrafast.models.configuration import ModelConfiguration
from ultrafast.models.decoder import attention_biases, plain_decoder
from ultrafast.models.facts import Facts


def read(facts: Facts) -> ModelConfiguration:
    """The description of an OLMo 2."""
    if facts.is_gguf and facts.integer("window", 0, minimum=0) > 0:
        facts.unsupported("OLMo 3, which GGUF files call by the same name, is not supported")
    return replace(
        plain_decoder(facts),
        norms_before=False,
        norms_after=True,
        head_norm="whole",
        biases=attention_biases(facts),
    )


ARCHITECTURE = Architecture(
    "olmo2",
    ("olmo2",),
    read,
    names={"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"},
)
