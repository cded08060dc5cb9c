"""What one architecture's file states: how its description is read, and what its tensors are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from ultrafast.models.configuration import ModelConfiguration
from ultrafast.models.facts import Facts

# Names of GGUF within a layer, without .weight or .bias: those of a Hugging Face directory within a layer.
LAYER_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "ffn_gate_inp": "mlp.gate",
        # Of every expert in turn; its number stands in for the braces.
        "ffn_gate_exps": "mlp.experts.{}.gate_proj",
        "ffn_up_exps": "mlp.experts.{}.up_proj",
        "ffn_down_exps": "mlp.experts.{}.down_proj",
    }
)
# A norm before and one after each sub-layer; what is called post_attention is then on attention's own output.
FOUR_NORM_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
)


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture; every one is an instance of this, in the file that bears its name."""

    name: str  # of ``general.architecture`` in GGUF files; empty for one they do not know
    model_types: tuple[str, ...]  # of ``model_type`` in config.json
    read: Callable[[Facts], ModelConfiguration]
    defaults: Mapping[str, int | float | bool] = field(default_factory=dict)  # see ``Facts``
    names: Mapping[str, str] = field(default_factory=dict)  # where they differ from LAYER_NAMES
    # Matrices that the file stacks into one, by the name of the whole.
    fused: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    norm_offset: float = 0.0  # added to the norms of a directory; GGUF files have it added already
    skipped: tuple[str, ...] = ()  # beginnings of tensor names of other parts of the model, such as an image encoder
