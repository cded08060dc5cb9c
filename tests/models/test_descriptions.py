"""What files say of a model, refused in one line wherever it is missing, wrong, contradictory or beyond us."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.checkpoints import CASES, configuration, weights, write_gguf, write_weights
from ultrafast.errors import ModelError, ModelFileError, UnsupportedModelError
from ultrafast.models import check_model, load_model
from ultrafast.models.configuration import Layer, ModelConfiguration, Rotary
from ultrafast.models.description import describe
from ultrafast.weights import open_model
from ultrafast.weights.gguf import GgufFile, open_gguf

Checkpoint = Callable[..., Path]

MISSING = object()


def described(path: Path) -> ModelConfiguration:
    with open_model(path) as source:
        return describe(source)[0]


def refusal(path: Path, kind: type[ModelError] = ModelError) -> str:
    """The one line with which a model is refused."""
    with pytest.raises(kind) as caught:
        load_model(path, threads=1)
    message = str(caught.value)
    assert "\n" not in message
    return message


def directory(folder: Path, case: str, **changes: Any) -> Path:
    """A directory whose config.json is changed, and whose tensors are not."""
    config = configuration(case)
    arrays = weights(case, config)
    config |= changes
    return write_weights(
        folder / "model", {key: value for key, value in config.items() if value is not MISSING}, arrays
    )


def gguf_with(path: Path, metadata: dict[str, Any], dropped: tuple[str, ...] = ()) -> GgufFile:
    """An open GGUF file with other metadata."""
    file = open_gguf(path)
    kept = {key: value for key, value in file.metadata.items() if key not in dropped}
    return GgufFile(file.path, 3, 32, kept | metadata, file.tensors)


@pytest.mark.parametrize(
    ("case", "changes", "kind"),
    [
        ("llama", {"hidden_size": MISSING}, ModelFileError),
        ("llama", {"hidden_size": "72"}, ModelFileError),
        ("llama", {"hidden_size": 0}, ModelFileError),
        ("llama", {"hidden_size": 1 << 30}, ModelFileError),
        ("llama", {"hidden_size": 73}, ModelFileError),
        ("llama", {"num_attention_heads": 5}, ModelFileError),
        ("llama", {"num_hidden_layers": 3}, ModelFileError),
        ("llama", {"num_hidden_layers": 1}, UnsupportedModelError),
        ("llama", {"vocab_size": 60}, ModelFileError),
        ("llama", {"head_dim": 21}, ModelFileError),
        ("llama", {"rms_norm_eps": 0.0}, ModelFileError),
        ("llama", {"rms_norm_eps": True}, ModelFileError),
        ("llama", {"hidden_act": "relu2"}, UnsupportedModelError),
        ("llama", {"mlp_bias": True}, UnsupportedModelError),
        ("llama", {"attention_bias": True}, ModelFileError),
        ("llama", {"attention_bias": "yes"}, ModelFileError),
        ("llama", {"rope_theta": 0.0}, ModelFileError),
        ("llama", {"rope_theta": 1e300}, ModelFileError),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, UnsupportedModelError),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, UnsupportedModelError),
        ("llama", {"rope_scaling": {"type": "linear"}}, ModelFileError),
        ("llama", {"rope_scaling": {"type": "linear", "factor": -1.0}}, ModelFileError),
        ("llama3", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ModelFileError),
        ("llama-biased", {"attention_bias": False}, UnsupportedModelError),
        ("qwen2-sliding", {"layer_types": ["chunked_attention"] * 3}, UnsupportedModelError),
        ("qwen2-sliding", {"layer_types": ["full_attention"]}, ModelFileError),
        ("qwen3moe", {"num_experts_per_tok": 6}, ModelFileError),
        ("qwen3moe", {"num_experts": 4}, ModelFileError),
        ("qwen3moe", {"num_experts": 6}, ModelFileError),
        ("qwen3moe", {"mlp_only_layers": [0]}, UnsupportedModelError),
        ("qwen3moe", {"decoder_sparse_step": 2}, UnsupportedModelError),
        ("gemma3", {"attn_logit_softcapping": 50.0}, UnsupportedModelError),
        ("gemma3", {"use_bidirectional_attention": True}, UnsupportedModelError),
        ("gemma3", {"hidden_activation": "gelu"}, UnsupportedModelError),
        ("phi3-longrope", {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, ModelFileError),
        ("phi3-longrope", {"partial_rotary_factor": 0.6, "rope_scaling": None}, None),
        ("phi3-longrope", {"partial_rotary_factor": 0.56, "rope_scaling": None}, ModelFileError),
        ("phi3-longrope", {"partial_rotary_factor": 1.5}, ModelFileError),
        ("smollm3", {"no_rope_layers": [1, 0]}, ModelFileError),
        ("granite", {"residual_multiplier": 0.0}, ModelFileError),
    ],
)
def test_a_changed_config_json(
    tmp_path: Path, case: str, changes: dict[str, Any], kind: type[ModelError] | None
) -> None:
    path = directory(tmp_path, case, **changes)
    if kind is None:
        load_model(path, threads=1).close()
    else:
        refusal(path, kind)


@pytest.mark.parametrize(
    ("case", "metadata", "kind"),
    [
        ("llama", {"llama.expert_count": 8}, UnsupportedModelError),
        ("llama", {"llama.rope.scaling.type": "yarn"}, UnsupportedModelError),
        ("llama", {"llama.rope.dimension_count": 10}, UnsupportedModelError),
        ("llama", {"llama.rope.dimension_count": 21}, ModelFileError),
        ("llama", {"llama.attention.value_length": 10}, UnsupportedModelError),
        ("llama3", {"llama.rope.dimension_count": 18}, ModelFileError),
        ("olmo2", {"olmo2.attention.sliding_window": 8}, UnsupportedModelError),
        ("gemma2", {"gemma2.attn_logit_softcapping": float("nan")}, ModelFileError),
        ("qwen2-sliding", {"qwen2.attention.sliding_window_pattern": np.array([True])}, ModelFileError),
        ("phi3-longrope", {"phi3.rope.scaling.original_context_length": 0}, ModelFileError),
        ("phi3", {"phi3.rope.scaling.type": "longrope"}, ModelFileError),
    ],
)
def test_changed_metadata(checkpoint: Checkpoint, case: str, metadata: dict[str, Any], kind: type[ModelError]) -> None:
    with gguf_with(checkpoint(case, "gguf"), metadata) as file, pytest.raises(kind):
        describe(file)


@pytest.mark.parametrize("values", [[0.0] * 10, [-1.0] * 10, [float("nan")] * 10, [1.0] * 9])
def test_rotary_factors_must_be_sound(checkpoint: Checkpoint, values: list[float]) -> None:
    with open_gguf(checkpoint("llama3", "gguf")) as file:
        data = np.array(values, "<f4").view(np.uint8)
        tensor = file.tensors["rope_freqs.weight"]
        changed = type(tensor)(tensor.name, "F32", (len(values),), data.nbytes, data)
        file.tensors = file.tensors | {tensor.name: changed}
        with pytest.raises(ModelFileError):
            describe(file)


@pytest.mark.parametrize("case", ["llama-biased", "qwen2", "gemma3", "olmo2", "phi3", "qwen3moe"])
def test_every_tensor_is_needed(tmp_path: Path, case: str) -> None:
    """Each kind of tensor, left out of a directory, is named."""
    config = configuration(case)
    arrays = weights(case, config)
    for name in [name for name in arrays if ".layers." not in name or ".layers.1." in name]:
        if name == "lm_head.weight" or ".experts." not in name or ".experts.3." in name:
            path = write_weights(tmp_path / name, config, {key: arrays[key] for key in arrays if key != name})
            assert f"tensor {name} is missing" in refusal(path, ModelFileError)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["self_attn.q_proj.bias", "input_layernorm.weight"])
def test_a_norm_or_bias_that_is_not_finite_is_named(tmp_path: Path, name: str, bad: float) -> None:
    """A training that failed, or a damaged file: said before the first answer fails."""
    config = configuration("qwen2")
    arrays = weights("qwen2", config)
    name = f"model.layers.1.{name}"
    arrays[name] = arrays[name].copy()
    arrays[name][-1] = bad
    path = write_weights(tmp_path / "model", config, arrays)
    message = refusal(path, ModelFileError)
    assert f"tensor {name} holds values that are not finite" in message
    with open_model(path) as source, pytest.raises(ModelFileError, match="not finite"):
        check_model(source)


@pytest.mark.parametrize("case", CASES)
def test_a_tensor_of_another_shape_or_of_no_use(tmp_path: Path, case: str) -> None:
    config = configuration(case)
    arrays = weights(case, config)
    name = "model.layers.1.self_attn.o_proj.weight"
    message = refusal(write_weights(tmp_path / "shape", config, arrays | {name: arrays[name][1:]}), ModelFileError)
    assert f"tensor {name} has shape" in message
    stray = "model.layers.0.self_attn.sinks"
    message = refusal(write_weights(tmp_path / "stray", config, arrays | {stray: arrays[name][0]}))
    assert "have no place in this architecture" in message
    assert "attention sinks" in message


@pytest.mark.parametrize(
    ("model_type", "tensor", "missing"),
    [
        ("mamba2", "backbone.layers.0.mixer.A_log", "state-space"),
        ("deepseek_v2", "model.layers.0.self_attn.kv_a_proj_with_mqa.weight", "latent attention"),
        ("gpt_oss", "model.layers.0.self_attn.sinks", "attention sinks"),
        ("gpt2", "transformer.wpe.weight", "learned positions"),
        ("qwen2_moe", "model.layers.0.mlp.shared_expert.up_proj.weight", "shared experts"),
        ("mixtral", "model.layers.0.block_sparse_moe.gate.weight", "a mixture of experts"),
        ("new_one", "model.layers.0.self_attn.q_proj.weight", "supported are"),
    ],
)
def test_an_unknown_architecture_says_what_is_missing(
    tmp_path: Path, model_type: str, tensor: str, missing: str
) -> None:
    config = configuration("llama") | {"model_type": model_type}
    message = refusal(write_weights(tmp_path / "model", config, {tensor: np.zeros((4, 4), np.float32)}))
    assert f"'{model_type}'" in message
    assert missing in message
    assert "gemma3, granite, llama" in message


def test_an_unknown_architecture_of_a_gguf_file(checkpoint: Checkpoint) -> None:
    with gguf_with(checkpoint("llama", "gguf"), {"general.architecture": "a\nb\x1b" * 30}) as file:
        with pytest.raises(UnsupportedModelError) as caught:
            describe(file)
        assert str(caught.value).isprintable()


def test_a_tied_directory_may_hold_its_embedding_twice(tmp_path: Path) -> None:
    """As transformers, which then does not look at the second."""
    config = configuration("qwen2")
    arrays = weights("qwen2", config)
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"] * 2
    arrays["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(6, np.float32)
    load_model(write_weights(tmp_path / "model", config, arrays), threads=1).close()


def test_the_text_part_of_a_model_that_also_sees(tmp_path: Path) -> None:
    """Its configuration lies inside, leaves out what is usual, and its other tensors are passed over."""
    text = configuration("gemma3")
    arrays = {f"language_model.{name}": array for name, array in weights("gemma3", text).items()}
    arrays["vision_tower.encoder.weight"] = np.zeros((2, 2), np.float32)
    del text["max_position_embeddings"], text["tie_word_embeddings"], text["rms_norm_eps"], text["head_dim"]
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {}}
    path = write_weights(tmp_path / "model", config, arrays)
    found = described(path)
    assert (found.context_length, found.tied, found.head_size) == (131_072, True, 256)
    assert found.layers == described(write_gguf(tmp_path / "model.gguf", "gemma3")).layers
    load_model(path, threads=1, context=64).close()


def test_windows_and_rotaries_of_layers(checkpoint: Checkpoint) -> None:
    local, everywhere = Layer(8, 1), Layer(0, 0)
    assert described(checkpoint("gemma3", "gguf")).layers == (*(local,) * 5, everywhere, local)
    assert described(checkpoint("gemma2", "gguf")).layers == (Layer(8), Layer(), Layer(8))
    assert described(checkpoint("smollm3", "gguf")).layers == (*(Layer(),) * 3, Layer(rotary=-1), Layer())
    assert described(checkpoint("qwen2-sliding", "directory")).layers == (Layer(), Layer(7), Layer(7))
    assert described(checkpoint("mistral", "gguf")).layers == (Layer(9),) * 2


def test_an_absent_window_is_the_usual_one_and_null_is_none(tmp_path: Path) -> None:
    assert described(directory(tmp_path, "mistral", sliding_window=None)).layers == (Layer(),) * 2
    assert described(directory(tmp_path, "mistral", sliding_window=MISSING)).layers == (Layer(4096),) * 2


@pytest.mark.parametrize(("layer_count", "expected"), [(7, 256**-0.5), (62, (72 / 2) ** -0.5)])
def test_attention_scale_of_gemma_3_in_gguf(checkpoint: Checkpoint, layer_count: int, expected: float) -> None:
    """The file leaves it out; the widest model's is another."""
    with gguf_with(checkpoint("gemma3", "gguf"), {"gemma3.block_count": layer_count}) as file:
        assert describe(file)[0].attention_scale == pytest.approx(expected, rel=1e-6)


def test_soft_caps_of_gemma_2_that_a_file_leaves_out(checkpoint: Checkpoint, tmp_path: Path) -> None:
    keys = ("gemma2.attn_logit_softcapping", "gemma2.final_logit_softcapping")
    with gguf_with(checkpoint("gemma2", "gguf"), {}, keys) as file:
        found = describe(file)[0]
    assert (found.attention_softcap, found.logit_softcap) == (50.0, 30.0)
    found = described(directory(tmp_path, "gemma2", attn_logit_softcapping=None, final_logit_softcapping=MISSING))
    assert (found.attention_softcap, found.logit_softcap) == (0.0, 30.0)


def test_factors_by_context() -> None:
    rotary = Rotary(4, 1e4, (1.0, 2.0), long_factors=(3.0, 4.0), short_context=16)
    assert rotary.factors_for(16) == (1.0, 2.0)
    assert rotary.factors_for(17) == (3.0, 4.0)
    assert Rotary(4, 1e4, (1.0, 2.0)).factors_for(1 << 20) == (1.0, 2.0)


JUNK = (
    None,
    True,
    -1,
    0,
    1,
    7,
    2**31,
    10**400,
    0.5,
    -1e308,
    "",
    "x\n",
    [],
    [1],
    [0.5, "a"],
    ["sliding_attention"],
    {},
    {"a": {}},
)


@pytest.mark.parametrize("case", CASES)
def test_no_value_of_config_json_is_trusted(tmp_path: Path, case: str) -> None:
    """Any value at any key: a description, or one line that refuses it."""
    with open_model(directory(tmp_path, case)) as source:
        metadata = dict(source.metadata)
        for key in metadata.keys() - {"model_type"} | {
            "rope_parameters",
            "layer_types",
            "no_rope_layers",
            "text_config",
        }:
            for junk in JUNK:
                source.metadata = metadata | {key: junk}
                try:
                    describe(source)
                except ModelError as error:
                    assert str(error).isprintable()


@pytest.mark.parametrize("case", CASES)
def test_no_value_of_gguf_metadata_is_trusted(checkpoint: Checkpoint, case: str) -> None:
    junk = (True, -1, 0, 1, 7, 2**63, float("nan"), float("inf"), -1e308, "", "x\n", ["a"], np.zeros(0), np.arange(3))
    path = checkpoint(case, "gguf")
    with open_gguf(path) as file:
        keys = [key for key in file.metadata if key.startswith(CASES[case][1])]
    for key in keys:
        for value in junk:
            try:
                with gguf_with(path, {key: value}) as file:
                    describe(file)
            except ModelError as error:
                assert str(error).isprintable()
