"""Architecture ``phi3``: Phi 3, 3.5 and 4; fused matrices, partly rotated heads, longrope, a sliding window."""

from __future__ import annotations

from dataclasses import replace

from ultrafast.models.architecture import Architecture
from ultrafast.models.configuration import ModelConfiguration
from ultrafast.models.decoder import plain_decoder, windowed
from ultrafast.models.facts import Facts


def read(facts: Facts) -> ModelConfiguration:
    """The description of a Phi 3 or 4."""
    plain = plain_decoder(facts)
    return replace(plain, layers=windowed(facts, plain.layers))


ARCHITECTURE = Architecture(
    "phi3",
    ("phi3",),
    read,
    names={"ffn_up": "mlp.gate_up_proj"},
    fused={("attn_q", "attn_k", "attn_v"): "attn_qkv", ("ffn_gate", "ffn_up"): "ffn_up"},
)
