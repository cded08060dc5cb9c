"""Architecture ``gemma2``: four norms a layer, a scaled embedding, gelu, soft caps, every other layer sliding."""

from __future__ import annotations

from dataclasses import replace

from ultrafast.models.architecture import FOUR_NORM_NAMES, Architecture
from ultrafast.models.configuration import ModelConfiguration
from ultrafast.models.decoder import activation, attention_biases, every_nth_full, plain_decoder, windowed
from ultrafast.models.facts import Facts, float32

_LAYERS_OF_27B = 46


def gemma_decoder(
    facts: Facts, *, widest_layer_count: int, rotary_base: float = 10_000.0, rotary_part: str = ""
) -> ModelConfiguration:
    """What the second and the third Gemma have in common.

    A GGUF file does not tell the scale of attention: it is that of a head, but for the widest model, of
    ``widest_layer_count`` layers, whose scale is that of the hidden size divided among the heads.
    """
    plain = plain_decoder(facts, rotary_base=rotary_base, rotary_part=rotary_part)
    if facts.is_gguf:
        widest = plain.layer_count == widest_layer_count
        scale_of = plain.hidden_size / plain.head_count if widest else plain.head_size
        attention_scale = facts.real("attention_scale", float32(scale_of**-0.5), minimum=1e-6, maximum=1e6)
    else:
        attention_scale = float32(facts.real("query_pre_attn_scalar", 256, minimum=1e-6, maximum=1e12) ** -0.5)
        if facts.boolean("use_bidirectional_attention", False):
            facts.unsupported("attention to later tokens is not supported")
    return replace(
        plain,
        attention_scale=attention_scale,
        activation=activation(facts, "hidden_activation", "gelu_pytorch_tanh"),
        biases=attention_biases(facts),
        norms_after=True,
        embedding_scale=float32(plain.hidden_size**0.5),
    )


def softcap(facts: Facts, name: str, usual: float) -> float:
    """The soft cap called ``name``; GGUF files leave out what is ``usual`` for the architecture."""
    return facts.real(name, usual if facts.is_gguf else 0.0, minimum=0.0, maximum=1e6)


def read(facts: Facts) -> ModelConfiguration:
    """The description of a Gemma 2."""
    gemma = gemma_decoder(facts, widest_layer_count=_LAYERS_OF_27B)
    return replace(
        gemma,
        layers=windowed(facts, gemma.layers, every_nth_full(facts, 2)),
        attention_softcap=softcap(facts, "attention_softcap", 50.0),
        logit_softcap=softcap(facts, "logit_softcap", 30.0),
    )


ARCHITECTURE = Architecture(
    "gemma2",
    ("gemma2",),
    read,
    defaults={
        "head_size": 256,
        "window": 4096,
        "attention_softcap": 50.0,
        "logit_softcap": 30.0,
        "tie_word_embeddings": True,
    },
    names=FOUR_NORM_NAMES,
    norm_offset=1.0,
)
