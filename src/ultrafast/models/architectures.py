"""Every architecture we run, and what to say of the others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ultrafast.errors import UnsupportedModelError
from ultrafast.models import gemma2, gemma3, granite, llama, mistral, olmo2, phi3, qwen2, qwen3, qwen3moe, smollm3
from ultrafast.models.architecture import Architecture
from ultrafast.weights import ModelSource
from ultrafast.weights.gguf import GgufFile
from ultrafast.weights.source import quoted, shown

ARCHITECTURES: Final[tuple[Architecture, ...]] = tuple(
    module.ARCHITECTURE
    for module in (gemma2, gemma3, granite, llama, mistral, olmo2, phi3, qwen2, qwen3, qwen3moe, smollm3)
)
SUPPORTED_NAMES: Final = tuple(sorted({kind.name or kind.model_types[0] for kind in ARCHITECTURES}))

# What tensors of these names, in either format, are part of.
_PARTS: Final[tuple[tuple[str, str], ...]] = (
    (r"ssm_|\.mamba\.|\.mixer\.(A_log|conv1d)|linear_attn\.", "state-space or linear-attention layers"),
    (r"time_mix|\.rwkv|channel_mix", "recurrent layers"),
    (r"shortconv|\.conv\.conv", "convolution layers"),
    (r"attn_kv_a|attn_q_a|kv_a_proj|q_a_proj", "latent attention"),
    (r"attn_sinks|self_attn\.sinks", "attention sinks"),
    (r"shexp|shared_expert|shared_mlp", "shared experts"),
    (r"exp_probs_b|e_score_correction_bias", "a corrected choice of experts"),
    (r"_exps\.|\.experts\.|block_sparse_moe", "a mixture of experts"),
    (r"^position_embd|embed_positions|\.wpe\.", "learned positions"),
    (r"^(enc|dec)\.|encoder\.|cross_attn", "an encoder beside the decoder"),
    (r"norm\d?\.bias$|layernorm\.bias$|\.ln_\w+\.bias$", "norms that subtract a mean (LayerNorm)"),
    (r"altup|laurel|per_layer", "embeddings per layer"),
    (r"vision|visual|audio|^v\.|multi_modal|mm_projector", "images or sound"),
    (r"\.bias$", "biases"),
)


def architecture_of(source: ModelSource) -> Architecture:
    """The architecture of an open model; ``UnsupportedModelError``, saying what it takes, where it is none of ours."""
    if isinstance(source, GgufFile):
        name = source.string("general.architecture")
        found = [kind for kind in ARCHITECTURES if kind.name and kind.name == name]
    else:
        name = source.string("model_type")
        found = [kind for kind in ARCHITECTURES if name in kind.model_types]
    if found:
        return found[0]
    parts = parts_of(source.tensors)
    raise UnsupportedModelError(
        f"{shown(source.path)}: architecture {quoted(name)} is not supported"
        + (f"; what is missing for it: {parts}" if parts else "")
        + f"; supported are {', '.join(SUPPORTED_NAMES)}"
    )


def parts_of(tensor_names: Iterable[str]) -> str:
    """What tensors of these names belong to beyond a plain decoder, in words; empty where nothing is known."""
    names = list(tensor_names)
    return ", ".join(part for pattern, part in _PARTS if any(re.search(pattern, name) for name in names))
