"""Tiny random checkpoints of every architecture, as a Hugging Face directory and as llama.cpp's converter would lay
them out in GGUF. Never kept as files: weights are drawn anew, the same on every machine and NumPy.

Every weight has at most eight significant bits, so that it is exact in float32, float16 and bfloat16 alike, and one set
of golden logits serves all three. Sizes are odd on purpose: no multiple of what the kernels prefer.
"""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.quantised import FLOATS, random_weights
from tests.weights.safetensors_bytes import entry, safetensors

Array = NDArray[np.float32]
Config = dict[str, Any]

VOCABULARY: Final = 61
TOKENS: Final = 48  # beyond every window and every original context below
SHORT_TOKENS: Final = 16  # within the original context of longrope

_BASE: Final[Config] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 72,
    "intermediate_size": 104,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_GEMMA: Final[Config] = {
    "num_hidden_layers": 7,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 8,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
_LLAMA3: Final[Config] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_LONGROPE: Final[Config] = {
    "type": "longrope",
    "short_factor": [1.0, 1.02, 1.05, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0],
    "long_factor": [1.1, 1.3, 1.9, 2.5, 4.0, 6.0, 9.0, 13.0, 20.0],
}
_MIXTURE: Final[Config] = {"head_dim": 20, "moe_intermediate_size": 40, "num_experts": 5, "num_experts_per_tok": 2}

# Of each case: model_type, architecture in GGUF, and what differs from _BASE.
CASES: Final[dict[str, tuple[str, str, Config]]] = {
    "llama": ("llama", "llama", {"head_dim": 20}),
    "llama-biased": ("llama", "llama", {"attention_bias": True, "tie_word_embeddings": True, "rope_theta": 1e5}),
    "llama3": ("llama", "llama", {"head_dim": 20, "rope_theta": 500_000.0, "rope_scaling": _LLAMA3}),
    "llama-linear": (
        "llama",
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}},
    ),
    "mistral": ("mistral", "llama", {"head_dim": 20, "sliding_window": 9}),
    "qwen2": ("qwen2", "qwen2", {"tie_word_embeddings": True, "rope_theta": 1e6}),
    "qwen2-sliding": (
        "qwen2",
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1, "num_hidden_layers": 3},
    ),
    "qwen3": ("qwen3", "qwen3", {"head_dim": 20, "rope_theta": 1e6}),
    "qwen3moe": ("qwen3_moe", "qwen3moe", {**_MIXTURE, "norm_topk_prob": True}),
    "qwen3moe-raw": ("qwen3_moe", "qwen3moe", {**_MIXTURE, "norm_topk_prob": False}),
    "gemma2": (
        "gemma2",
        "gemma2",
        {**_GEMMA, "num_hidden_layers": 3, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": ("gemma3_text", "gemma3", {**_GEMMA, "rope_theta": 1e6, "rope_local_base_freq": 1e4}),
    "gemma3-stretched": (
        "gemma3_text",
        "gemma3",
        {
            **_GEMMA,
            "query_pre_attn_scalar": 100,
            "final_logit_softcapping": 3.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
            },
        },
    ),
    "phi3": (
        "phi3",
        "phi3",
        {
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "sliding_window": 9,
            "original_max_position_embeddings": 64,
        },
    ),
    "phi3-longrope": (
        "phi3",
        "phi3",
        {
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 16,
            "rope_scaling": _LONGROPE,
            "sliding_window": None,
        },
    ),
    "smollm3": ("smollm3", "smollm3", {"num_hidden_layers": 5, "rope_theta": 2e6, "tie_word_embeddings": True}),
    "granite": (
        "granite",
        "granite",
        {
            "embedding_multiplier": 6.0,
            "attention_multiplier": 0.125,
            "residual_multiplier": 0.22,
            "logits_scaling": 3.0,
            "tie_word_embeddings": True,
        },
    ),
    "olmo2": ("olmo2", "olmo2", {"rms_norm_eps": 1e-6, "rope_theta": 500_000.0}),
}  # fmt: skip


def configuration(case: str, **changes: Any) -> Config:
    """The config.json of a case; a change to None drops nothing, it is written as null."""
    model_type, _, differing = CASES[case]
    return {"model_type": model_type, **_BASE, **differing, **changes}


def tokens(count: int = TOKENS) -> list[int]:
    """The sequence that golden logits are of."""
    return (np.random.PCG64(7).random_raw(TOKENS)[:count] % VOCABULARY).tolist()  # type: ignore[union-attr]


def weights(case: str, config: Config) -> dict[str, Array]:
    """The weights of a case by their names in a directory."""
    arrays = {}
    for name, shape in _shapes(config).items():
        if name.endswith("norm.weight"):
            arrays[name] = _norm(f"{case}/{name}", shape, 0.0 if "gemma" in case else 1.0)
        else:
            # An embedding that is the output too is kept small, lest every token mostly predict itself.
            plain = 0.3 if name.endswith(".bias") else shape[-1] ** -0.5
            untied = "embed_tokens" in name and not config["tie_word_embeddings"]
            arrays[name] = _matrix(f"{case}/{name}", shape, 1.0 if untied else plain)
    return arrays


def _shapes(c: Config) -> dict[str, tuple[int, ...]]:
    kind, hidden = c["model_type"], c["hidden_size"]
    head = c.get("head_dim") or hidden // c["num_attention_heads"]
    query, key = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    inner = c["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c["vocab_size"], hidden)}
    for layer in range(c["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        norms = ["post_attention_layernorm"] + ([] if kind == "olmo2" else ["input_layernorm"])
        norms += ["post_feedforward_layernorm"] if kind in {"olmo2", "gemma2", "gemma3_text"} else []
        norms += ["pre_feedforward_layernorm"] if kind in {"gemma2", "gemma3_text"} else []
        shapes |= {f"{prefix}{norm}.weight": (hidden,) for norm in norms}
        projections = {"q_proj": (query, hidden), "k_proj": (key, hidden), "v_proj": (key, hidden)}
        if kind == "phi3":
            projections = {"qkv_proj": (query + 2 * key, hidden)}
        projections["o_proj"] = (hidden, query)
        for name, shape in projections.items():
            shapes[f"{prefix}self_attn.{name}.weight"] = shape
            if c.get("attention_bias") or (kind == "qwen2" and name != "o_proj"):
                shapes[f"{prefix}self_attn.{name}.bias"] = shape[:1]
        if kind in {"qwen3", "qwen3_moe", "gemma3_text", "olmo2"}:
            whole = kind == "olmo2"
            shapes[f"{prefix}self_attn.q_norm.weight"] = (query if whole else head,)
            shapes[f"{prefix}self_attn.k_norm.weight"] = (key if whole else head,)
        if kind == "phi3":
            shapes[f"{prefix}mlp.gate_up_proj.weight"] = (2 * inner, hidden)
            shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, inner)
        elif kind == "qwen3_moe":
            shapes[f"{prefix}mlp.gate.weight"] = (c["num_experts"], hidden)
            for expert in range(c["num_experts"]):
                shapes |= _feed_forward(f"{prefix}mlp.experts.{expert}.", hidden, c["moe_intermediate_size"])
        else:
            shapes |= _feed_forward(f"{prefix}mlp.", hidden, inner)
    shapes["model.norm.weight"] = (hidden,)
    return shapes if c["tie_word_embeddings"] else shapes | {"lm_head.weight": (c["vocab_size"], hidden)}


def _feed_forward(prefix: str, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    shapes = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    return {f"{prefix}{name}.weight": shape for name, shape in shapes.items()}


def _raw(seed: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Random bits that no release of NumPy will change: 32 of each word of the generator."""
    words = np.random.PCG64(zlib.crc32(seed.encode())).random_raw(math.prod(shape))
    return (np.asarray(words) >> np.uint64(32)).astype(np.int64).reshape(shape)


def _matrix(seed: str, shape: tuple[int, ...], deviation: float) -> Array:
    """Uniform, of about that deviation: −127…127 times a power of two."""
    scale = 2.0 ** round(math.log2(deviation * math.sqrt(3) / 127))
    return ((_raw(seed, shape) % 255 - 127) * scale).astype(np.float32)


def _norm(seed: str, shape: tuple[int, ...], middle: float) -> Array:
    return (middle + (_raw(seed, shape) % 129 - 64) / 128).astype(np.float32)


def write_directory(directory: Path, case: str, type_name: str = "F32", **changes: Any) -> Path:
    """A case as a Hugging Face directory without a tokenizer."""
    config = configuration(case, **changes)
    return write_weights(directory, config, weights(case, config), type_name)


def write_weights(directory: Path, config: Config, arrays: dict[str, Array], type_name: str = "F32") -> Path:
    """A directory of this config.json and these tensors."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    header, data = {"__metadata__": {"format": "pt"}}, bytearray()
    for name, array in arrays.items():
        start = len(data)
        data += _packed(array, type_name)
        header[name] = entry(type_name, [*array.shape], start, len(data))
    (directory / "model.safetensors").write_bytes(safetensors(header, bytes(data)))
    return directory


def _packed(array: Array, type_name: str) -> bytes:
    if type_name == "BF16":
        return (array.view(np.uint32) >> 16).astype("<u2").tobytes()
    return array.astype({"F32": "<f4", "F16": "<f2"}[type_name]).tobytes()


def write_gguf(path: Path, case: str, type_name: str = "F32", **changes: Any) -> Path:
    """A case as a GGUF file, its matrices of ``type_name``; "mixed" is the mixture of a Q4_K_M file.

    Quantised matrices are random anew, not the case's own weights: no golden logits are theirs. But "q8_0" and "q4_1"
    are the case's weights as ``--quantize`` makes them, quantised by the gguf package.
    """
    config = configuration(case, **changes)
    name = CASES[case][1]
    writer = gguf.GGUFWriter(path, name)
    for key, value in _metadata(case, config).items():
        if isinstance(value, list):
            writer.add_array(f"{name}.{key}", value)
        elif isinstance(value, bool):
            writer.add_bool(f"{name}.{key}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"{name}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{name}.{key}", value)
        else:
            writer.add_string(f"{name}.{key}", value)
    for tensor_name, array in _gguf_tensors(name, config, weights(case, config)).items():
        if array.ndim == 1 or "ffn_gate_inp" in tensor_name:
            writer.add_tensor(tensor_name, array)
            continue
        if type_name in _AT_LOAD:
            table = tensor_name in {"token_embd.weight", "output.weight"}
            kind_name = "F32" if array.shape[-1] % 32 else _AT_LOAD[type_name][table]
            packed = gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind_name])
        else:
            kind_name = _mixed(tensor_name) if type_name == "mixed" else type_name
            packed = _packed_rows(array, kind_name, zlib.crc32(tensor_name.encode()))
        writer.add_tensor(tensor_name, packed, raw_dtype=gguf.GGMLQuantizationType[kind_name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# What --quantize makes of matrices, and of the embedding and the output layer.
_AT_LOAD: Final = {"q8_0": ("Q8_0", "Q8_0"), "q4_1": ("Q4_1", "Q8_0")}


def _mixed(tensor_name: str) -> str:
    kinds = {"token_embd": "Q8_0", "attn_q.": "Q5_0", "attn_v": "Q6_K", "ffn_down": "Q6_K", "attn_output": "Q5_K"}
    return next((kind for part, kind in kinds.items() if part in tensor_name), "Q4_K")


def _packed_rows(array: Array, type_name: str, seed: int) -> NDArray[Any]:
    if type_name in FLOATS:
        packed: NDArray[Any] = gguf.quants.quantize(array, gguf.GGMLQuantizationType[type_name])
        return packed
    rows, columns = math.prod(array.shape[:-1]), array.shape[-1]
    random = np.random.default_rng(seed)
    return random_weights(random, rows, columns, type_name, float(array.std())).reshape(*array.shape[:-1], -1)


def _metadata(case: str, c: Config) -> Config:
    """What the converter writes of a config.json; where it writes nothing of a window or scale, so does this."""
    keys: Config = {
        "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"],
        "block_count": c["num_hidden_layers"],
        "feed_forward_length": c["intermediate_size"],
        "attention.head_count": c["num_attention_heads"],
        "attention.head_count_kv": c["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": c["rms_norm_eps"],
    }
    if "head_dim" in c:
        keys |= {"attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"]}
    rotary = c.get("rope_parameters", c)
    scaling = c.get("rope_scaling") or rotary
    if "full_attention" in rotary:
        scaling = rotary["full_attention"]
        keys |= {"rope.freq_base": scaling["rope_theta"]}
        keys |= {"rope.freq_base_swa": rotary["sliding_attention"]["rope_theta"]}
    else:
        keys |= {"rope.freq_base": rotary.get("rope_theta", 10_000.0)}
    if scaling.get("rope_type") == "linear":
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": scaling["factor"]}
    if "partial_rotary_factor" in c:
        head = c["hidden_size"] // c["num_attention_heads"]
        keys |= {"rope.dimension_count": int(head * c["partial_rotary_factor"])}
    if scaling.get("type") == "longrope":
        original = c["original_max_position_embeddings"]
        stretch = c["max_position_embeddings"] / original
        keys |= {"rope.scaling.original_context_length": original}
        keys |= {"rope.scaling.attn_factor": math.sqrt(1 + math.log(stretch) / math.log(original))}
    if c.get("sliding_window"):
        keys |= {"attention.sliding_window": c["sliding_window"]}
    if case == "qwen2-sliding":
        keys |= {"attention.sliding_window_pattern": [False, True, True]}
    if c.get("query_pre_attn_scalar", c.get("head_dim")) != c.get("head_dim"):
        keys |= {"attention.scale": c["query_pre_attn_scalar"] ** -0.5}
    for ours, theirs in (
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
        ("embedding_scale", "embedding_multiplier"),
        ("attention.scale", "attention_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
    ):
        if theirs in c:
            keys[ours] = c[theirs]
    if case == "qwen3moe-raw":
        keys |= {"expert_weights_norm": False}
    return keys


def _gguf_tensors(name: str, c: Config, arrays: dict[str, Array]) -> dict[str, Array]:
    architecture = next(code for code, text in gguf.MODEL_ARCH_NAMES.items() if text == name)
    names = gguf.get_tensor_name_map(architecture, c["num_hidden_layers"])
    result: dict[str, Array] = {}
    experts: dict[str, list[Array]] = {}
    for key, array in arrays.items():
        if ".experts." in key:
            before, _, after = key.partition(".experts.")
            experts.setdefault(f"{before}.experts.{after.partition('.')[2]}", []).append(array)
        else:
            result[_mapped(names, key)] = _converted(name, c, key, array)
    for key, stack in experts.items():
        result[_mapped(names, key)] = np.stack(stack)
    scaling = c.get("rope_scaling", {})
    if scaling.get("rope_type") == "llama3":
        result["rope_freqs.weight"] = _llama3_factors(c, scaling)
    if scaling.get("type") == "longrope":
        result["rope_factors_long.weight"] = np.array(scaling["long_factor"], np.float32)
        result["rope_factors_short.weight"] = np.array(scaling["short_factor"], np.float32)
    return result


def _converted(name: str, c: Config, key: str, array: Array) -> Array:
    if name in {"llama", "smollm3", "granite"} and (".q_proj." in key or ".k_proj." in key):
        heads = c["num_attention_heads" if ".q_proj." in key else "num_key_value_heads"]
        swapped = array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2)
        return np.ascontiguousarray(swapped.reshape(array.shape))
    return array + 1 if name.startswith("gemma") and key.endswith("norm.weight") else array


def _mapped(names: gguf.TensorNameMap, key: str) -> str:
    found = names.get_name(key, try_suffixes=(".weight", ".bias"))
    assert found is not None, key
    return found


def _llama3_factors(c: Config, scaling: Config) -> Array:
    """Frequency by frequency in float32, as the converter does."""
    size = c["head_dim"]
    factors = []
    for index in range(0, size, 2):
        frequency = np.float32(1) / np.float32(c["rope_theta"] ** float(np.float32(index / size)))
        wavelength = np.float32(2 * math.pi) / frequency
        old, low, high = (
            np.float32(scaling[key])
            for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        smooth = (old / wavelength - low) / (high - low)
        if wavelength < old / high:
            factors.append(np.float32(1))
        elif wavelength > old / low:
            factors.append(np.float32(scaling["factor"]))
        else:
            factors.append(np.float32(1) / ((np.float32(1) - smooth) / np.float32(scaling["factor"]) + smooth))
    return np.array(factors, np.float32)
