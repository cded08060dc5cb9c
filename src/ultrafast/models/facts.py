"""What a model file says of its model, under one set of names for GGUF and Hugging Face, every value checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from ultrafast.errors import ModelFileError, UnsupportedModelError
from ultrafast.weights import ModelSource
from ultrafast.weights.gguf import GgufFile
from ultrafast.weights.source import Tensor, shown

Float32Array = NDArray[np.float32]

# Our name: (key of a GGUF file after its architecture, key of config.json).
_KEYS: Final[dict[str, tuple[str, str]]] = {
    "context_length": ("context_length", "max_position_embeddings"),
    "layer_count": ("block_count", "num_hidden_layers"),
    "hidden_size": ("embedding_length", "hidden_size"),
    "feed_forward_size": ("feed_forward_length", "intermediate_size"),
    "head_count": ("attention.head_count", "num_attention_heads"),
    "kv_head_count": ("attention.head_count_kv", "num_key_value_heads"),
    "head_size": ("attention.key_length", "head_dim"),
    "norm_epsilon": ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    "window": ("attention.sliding_window", "sliding_window"),
    "attention_scale": ("attention.scale", "attention_multiplier"),
    "embedding_scale": ("embedding_scale", "embedding_multiplier"),
    "residual_scale": ("residual_scale", "residual_multiplier"),
    "logit_divisor": ("logit_scale", "logits_scaling"),
    "attention_softcap": ("attn_logit_softcapping", "attn_logit_softcapping"),
    "logit_softcap": ("final_logit_softcapping", "final_logit_softcapping"),
    "expert_count": ("expert_count", "num_experts"),
    "experts_used": ("expert_used_count", "num_experts_per_tok"),
    "expert_feed_forward_size": ("expert_feed_forward_length", "moe_intermediate_size"),
    "experts_normalised": ("expert_weights_norm", "norm_topk_prob"),
}


class Facts:
    """The metadata of an open model. Accessors take our names, or the format's own keys behind ``key=``.

    ``defaults`` are what an architecture's own default is where a config.json leaves a key out (``null`` does not leave
    it out: it says that there is none); a GGUF file has no such omissions. Numbers are rounded to float32, as GGUF
    stores them, so that both formats of one model give the same bits.
    """

    def __init__(
        self, source: ModelSource, architecture: str, defaults: Mapping[str, int | float | bool] | None = None
    ) -> None:
        self.source = source
        self.architecture = architecture
        self.is_gguf = isinstance(source, GgufFile)
        self.taken: set[str] = set()  # tensors that belong to the description, not to the weights
        self._prefix = f"{architecture}." if self.is_gguf else ""
        self._defaults: dict[str, int | float | bool] = {}
        if not self.is_gguf:
            keys = source.metadata
            if isinstance(keys.get("text_config"), dict):
                self._prefix, keys = "text_config.", keys["text_config"]
            self._defaults = {
                name: value
                for name, value in (defaults or {}).items()
                if (_KEYS[name][1] if name in _KEYS else name) not in keys
            }

    def key(self, name: str) -> str:
        """The file's key for one of our names."""
        return self._prefix + _KEYS[name][0 if self.is_gguf else 1]

    def own(self, name: str) -> str:
        """The file's key for a name of its format."""
        return self._prefix + name

    def find(self, name: str) -> Any:
        """The value at a key of the format, unchecked, or None."""
        return self.source.find(self.own(name))

    def has(self, name: str) -> bool:
        """Whether the file tells this, one of our names."""
        return self.source.find(self.key(name)) is not None

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int = 2**31 - 1) -> int:
        """The integer called ``name``, one of our names or a key of the format."""
        return self.source.integer(self._key(name), self._default(name, default), minimum=minimum, maximum=maximum)

    def real(self, name: str, default: float | None = None, *, minimum: float, maximum: float) -> float:
        """The number called ``name``, within ``minimum..maximum``, rounded to float32."""
        value = self.source.real(self._key(name), self._default(name, default))
        if not minimum <= value <= maximum:
            self.damaged(f"metadata {self._key(name)} is outside {minimum:g}..{maximum:g}")
        return float32(value)

    def boolean(self, name: str, default: bool | None = None) -> bool:
        """The truth value called ``name``."""
        return self.source.boolean(self._key(name), self._default(name, default))

    def string(self, name: str, default: str | None = None) -> str:
        """The string called ``name``."""
        return self.source.string(self._key(name), default)

    def numbers(self, name: str, length: int) -> Float32Array:
        """The array of ``length`` positive numbers called ``name``."""
        values = self.source.numbers(self._key(name))
        if values.shape != (length,):
            self.damaged(f"metadata {self._key(name)} does not hold {length} numbers")
        return self._positive(values.astype(np.float32), f"metadata {self._key(name)}")

    def factors(self, name: str, length: int) -> Float32Array | None:
        """The positive numbers of a tensor that describes the model, or None where there is none."""
        tensor = self.source.tensors.get(name)
        if tensor is None:
            return None
        if tensor.shape != (length,):
            self.damaged(f"tensor {name} does not hold {length} numbers")
        self.taken.add(name)
        return self._positive(float_values(tensor, self.source), f"tensor {name}")

    def damaged(self, what: str) -> NoReturn:
        """The file contradicts itself."""
        raise ModelFileError(f"{shown(self.source.path)}: {what}")

    def unsupported(self, what: str) -> NoReturn:
        """The file is sound, and asks for what this version cannot do."""
        raise UnsupportedModelError(f"{shown(self.source.path)}: {what}")

    def _key(self, name: str) -> str:
        return self.key(name) if name in _KEYS else self.own(name)

    def _default(self, name: str, default: Any) -> Any:
        return self._defaults.get(name, default)

    def _positive(self, values: Float32Array, what: str) -> Float32Array:
        if not (np.isfinite(values).all() and (values > 0).all()):
            self.damaged(f"{what} must be positive and finite")
        return values


def float_values(tensor: Tensor, source: ModelSource) -> Float32Array:
    """A small float tensor as float32, in its shape."""
    if tensor.type_name == "F32":
        values = tensor.data.view("<f4").astype(np.float32)
    elif tensor.type_name == "F16":
        values = tensor.data.view("<f2").astype(np.float32)
    elif tensor.type_name == "BF16":
        values = (tensor.data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        raise UnsupportedModelError(f"{shown(source.path)}: tensor {tensor.name} must be a float type")
    return values.reshape(tensor.shape)


def float32(value: float) -> float:
    """The nearest float32, as a Python number."""
    return float(np.float32(value))
