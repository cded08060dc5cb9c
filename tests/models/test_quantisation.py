"""Quantising at load: the bytes of the gguf package, and the answers of a file that was quantised before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.models.checkpoints import configuration, tokens, weights, write_weights
from tests.models.rows import examples, logits_of, same_bits
from ultrafast import _native
from ultrafast.errors import ConfigurationError, ModelFileError
from ultrafast.models import load_model
from ultrafast.models.quantisation import QUANTISATIONS

Checkpoint = Callable[..., Path]

FLOATS = ("F32", "F16", "BF16")
TYPES = ("Q8_0", "Q4_1")
SETS = _native.instruction_sets()
BLOCK = 32
# Columns of 96, 104, 120 and 40: some are whole blocks, some are not; heads interleaved or not, tied or not.
CASES = ("llama", "llama-biased", "qwen2", "qwen3moe", "gemma3", "phi3", "granite")


def stored(values: NDArray[np.float32], type_name: str) -> NDArray[np.uint8]:
    # No −0: which of two zeros is a block's minimum is not defined in the package.
    if type_name == "BF16":
        return ((values + np.float32(0)).view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    kind = np.dtype({"F32": "<f4", "F16": "<f2"}[type_name])
    return (values.astype(kind) + kind.type(0)).view(np.uint8)


def widened(data: NDArray[np.uint8], type_name: str) -> NDArray[np.float32]:
    if type_name == "BF16":
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return data.view({"F32": "<f4", "F16": "<f2"}[type_name]).astype(np.float32)


def assert_as_gguf(values: NDArray[np.float32], source: str, layout: str) -> None:
    data = stored(values, source)
    expected = gguf.quants.quantize(widened(data, source), gguf.GGMLQuantizationType[layout])
    assert _native.kernels.quantise_weights(source, data, layout).tobytes() == expected.tobytes()


@pytest.mark.parametrize("layout", TYPES)
@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("deviation", [1e-30, 1e-6, 0.02, 1.0, 9000.0])
def test_bytes_are_those_of_the_gguf_package(source: str, layout: str, deviation: float) -> None:
    random = np.random.default_rng(5)
    values = (random.normal(0.0, 1.0, 2000 * BLOCK) * deviation).astype(np.float32)
    assert_as_gguf(values, source, layout)
    # Integers and halves: sums that lie between two codes.
    assert_as_gguf((random.integers(-254, 255, 500 * BLOCK) / 2).astype(np.float32), source, layout)


@pytest.mark.parametrize("layout", TYPES)
@pytest.mark.parametrize("source", FLOATS)
@given(
    values=st.lists(
        st.one_of(
            st.integers(-8, 8).map(float),
            st.floats(-60_000, 60_000, width=16),
            # Below, the reciprocal of a scale may be beyond float32, where the package's own bytes are undefined.
            st.floats(-(2.0**14), 2.0**14, width=32, allow_subnormal=False).filter(lambda x: abs(x) >= 1e-30 or x == 0),
        ),
        min_size=BLOCK,
        max_size=BLOCK,
    )
)
@examples(150)
def test_any_block(source: str, layout: str, values: list[float]) -> None:
    assert_as_gguf(np.array(values, np.float32), source, layout)


@pytest.mark.parametrize("layout", TYPES)
def test_equal_and_tiny_values_have_defined_bytes(layout: str) -> None:
    for value in (0.0, 0.75, -3.0):
        assert_as_gguf(np.full(BLOCK, value, np.float32), "F32", layout)
    tiny = np.linspace(0, 2e-39, BLOCK).astype(np.float32)  # no float32 is the reciprocal of its scale
    assert not _native.kernels.quantise_weights("F32", tiny.view(np.uint8), layout).any()


@pytest.mark.parametrize("layout", TYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e38, -1e7])
def test_what_no_block_can_hold_is_refused(layout: str, bad: float) -> None:
    values = np.ones(3 * BLOCK, np.float32)
    values[70] = bad
    with pytest.raises(ValueError, match="not finite or too large"):
        _native.kernels.quantise_weights("F32", values.view(np.uint8), layout)


def test_only_float_weights_in_whole_blocks_are_taken() -> None:
    data = np.zeros(34 * BLOCK, np.uint8)
    for source, layout in (("Q8_0", "Q4_1"), ("F32", "F16"), ("F32", "Q4_K")):
        with pytest.raises(ValueError, match="cannot be quantised"):
            _native.kernels.quantise_weights(source, data, layout)
    with pytest.raises(ValueError, match="whole blocks"):
        _native.kernels.quantise_weights("F32", data[:124], "Q8_0")


@pytest.mark.parametrize("quantize", QUANTISATIONS)
@pytest.mark.parametrize("case", CASES)
def test_a_model_equals_its_quantised_file(checkpoint: Checkpoint, case: str, quantize: str) -> None:
    """Bit for bit, from every float type and both formats; threads and instruction sets do not matter."""
    sizes = {"hidden_size": 96}
    twin = load_model(checkpoint(case, "gguf", quantize, **sizes), threads=1)
    expected, drawn = logits_of(twin, tokens())
    plain = load_model(checkpoint(case, "gguf", "F32", **sizes), threads=1)
    assert plain.quantised_at_load is None
    assert not same_bits(logits_of(plain, tokens())[0], expected)
    sources = [("gguf", "F32"), *(("directory", name) for name in FLOATS)]
    for threads, (form, type_name) in enumerate(sources, start=1):
        model = load_model(
            checkpoint(case, form, type_name, **sizes),
            threads=threads,
            instruction_set=SETS[threads % len(SETS)],
            quantize=quantize,
        )
        found, picked = logits_of(model, tokens())
        assert same_bits(found, expected)
        assert np.array_equal(picked, drawn)
        assert model.quantised_at_load == quantize
        assert model.weight_bytes_per_token < plain.weight_bytes_per_token
        if type_name == "F32":  # as what the twin leaves float
            assert model.weight_bytes_per_token == twin.weight_bytes_per_token
            assert model.weight_bytes == twin.weight_bytes
        model.close()
    twin.close()
    plain.close()


def test_matrices_that_stay_float_are_counted(checkpoint: Checkpoint) -> None:
    """Of llama's two layers, projections of 120 columns and the feed-forward's way back of 104."""
    with_rest = load_model(checkpoint("llama", "gguf", hidden_size=96), threads=1, quantize="q8_0")
    assert with_rest.matrices_kept_float == 4
    with_rest.close()


def test_what_cannot_be_quantised_is_one_line(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"quantised already \(token_embd.weight is Q8_0\)"):
        load_model(checkpoint("llama", "gguf", "q8_0", hidden_size=96), threads=1, quantize="q8_0")
    with pytest.raises(ConfigurationError, match="no row of this model is whole blocks"):
        load_model(checkpoint("llama", "gguf"), threads=1, quantize="q4_1")
    with pytest.raises(ConfigurationError, match="q8_0 or q4_1 only"):
        load_model(checkpoint("llama", "gguf"), threads=1, quantize="q2_k")
    config = configuration("llama", hidden_size=96)
    arrays = weights("llama", config)
    arrays["model.layers.1.mlp.up_proj.weight"][103, 95] = np.nan
    with pytest.raises(ModelFileError, match="not finite or too large to be quantised"):
        load_model(write_weights(tmp_path / "model", config, arrays), threads=2, quantize="q8_0")
