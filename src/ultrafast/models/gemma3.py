"""Architecture ``gemma3``, its text part: normalised heads, and most layers local with a rotary of their own."""

from __future__ import annotations

from dataclasses import replace

from ultrafast.models.architecture import FOUR_NORM_NAMES, Architecture
from ultrafast.models.configuration import MAX_LAYERS, ModelConfiguration, Rotary
from ultrafast.models.decoder import every_nth_full, windowed
from ultrafast.models.facts import Facts
from ultrafast.models.gemma2 import gemma_decoder, softcap
from ultrafast.models.rotary import read_rotary

_LAYERS_OF_27B = 62
_PERIOD = 6  # five local layers, then a global one
_GLOBAL, _LOCAL = 0, 1  # rotaries


def read(facts: Facts) -> ModelConfiguration:
    """The description of a Gemma 3."""
    if softcap(facts, "attention_softcap", 0.0) > 0:
        # transformers and llama.cpp disregard it here, and no published model has it.
        facts.unsupported("soft caps of attention are not supported in this architecture")
    gemma = gemma_decoder(facts, widest_layer_count=_LAYERS_OF_27B, rotary_base=1e6, rotary_part="full_attention")
    key = "attention.sliding_window_pattern" if facts.is_gguf else "sliding_window_pattern"
    period = facts.integer(key, _PERIOD, maximum=MAX_LAYERS) if isinstance(facts.find(key), int) else _PERIOD
    return replace(
        gemma,
        head_norm="head",
        rotaries=(gemma.rotaries[_GLOBAL], _local_rotary(facts, gemma.head_size)),
        layers=windowed(facts, gemma.layers, every_nth_full(facts, period), rotary=_LOCAL),
        logit_softcap=softcap(facts, "logit_softcap", 0.0),
    )


def _local_rotary(facts: Facts, head_size: int) -> Rotary:
    """That of sliding layers; a stretched context does not stretch it."""
    if not facts.is_gguf and isinstance(facts.find("rope_parameters"), dict):
        return read_rotary(facts, head_size, part="sliding_attention")
    key = "rope.freq_base_swa" if facts.is_gguf else "rope_local_base_freq"
    return Rotary(head_size, facts.real(key, 10_000.0, minimum=1.0, maximum=1e12))


ARCHITECTURE = Architecture(
    "gemma3",
    ("gemma3_text", "gemma3"),
    read,
    # What the configurations of the models that also see leave out.
    defaults={
        "vocab_size": 262_208,
        "context_length": 131_072,
        "head_count": 8,
        "kv_head_count": 4,
        "head_size": 256,
        "norm_epsilon": 1e-6,
        "window": 4096,
        "tie_word_embeddings": True,
    },
    names=FOUR_NORM_NAMES,
    norm_offset=1.0,
    skipped=("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."),
)
