"""The reference's logits against those of transformers, float32 (tests/golden/make_reference_golden.py)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.data import GOLDEN_DIRECTORY
from ultrafast.errors import ContextLengthError, ModelFileError, RequestError, UnsupportedModelError
from ultrafast.reference.decoder import ReferenceModel
from ultrafast.weights.gguf import GgufFile, MetadataValue

TOLERANCE = 1e-3  # of the largest logit of the position


@pytest.fixture(scope="module")
def model(gguf_file: GgufFile) -> ReferenceModel:
    return ReferenceModel.from_source(gguf_file)


def test_logits_agree_with_transformers(model: ReferenceModel) -> None:
    """Every kept logit is within TOLERANCE of its position's logit scale, the largest absolute logit there."""
    golden = np.load(GOLDEN_DIRECTORY / "reference.npz")
    lengths = golden["lengths"]
    assert lengths.sum() >= 500
    assert lengths.max() > 256
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        start += int(length)
        logits = model.logits(golden["tokens"][rows].tolist())
        assert logits.dtype == np.float32
        assert logits.shape == (length, 49_152)
        scale = np.abs(golden["top_logits"][rows]).max(axis=1, keepdims=True)
        kept = np.take_along_axis(logits, golden["top_ids"][rows], axis=1)
        assert np.max(np.abs(kept - golden["top_logits"][rows]) / scale) < TOLERANCE
        assert np.max(np.abs(logits[:, golden["sample_ids"]] - golden["sample_logits"][rows]) / scale) < TOLERANCE
        peak = logits.max(axis=1, keepdims=True).astype(np.float64)
        log_sum_exp = np.log(np.exp(logits - peak).sum(axis=1)) + peak[:, 0]
        assert np.max(np.abs(log_sum_exp - golden["log_sum_exp"][rows]) / scale[:, 0]) < TOLERANCE
        assert np.array_equal(logits.argmax(axis=1), golden["top_ids"][rows, 0])


def test_a_position_depends_on_the_past_alone(model: ReferenceModel) -> None:
    long = model.logits([5, 700, 12, 9000, 77])
    short = model.logits([5, 700, 12])
    # BLAS sums other shapes in another order: that much of the largest logit, not more.
    assert np.max(np.abs(long[:3] - short)) < 1e-5 * np.max(np.abs(short))
    assert not np.allclose(model.logits([700, 5, 12])[2], short[2], atol=1e-2)


def test_attention_in_pieces_is_attention_at_once(model: ReferenceModel, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [(index * 37) % 1000 for index in range(20)]
    whole = model.hidden(tokens)
    monkeypatch.setattr("ultrafast.reference.decoder._QUERY_ROWS", 7)
    assert np.allclose(model.hidden(tokens), whole, atol=1e-4)


@pytest.mark.parametrize("tokens", [[], [-1], [49_152], [[1, 2]]])
def test_tokens_outside_are_refused(model: ReferenceModel, tokens: list[int]) -> None:
    with pytest.raises(RequestError):
        model.logits(tokens)


def test_row_6_beyond_the_context(model: ReferenceModel) -> None:
    with pytest.raises(ContextLengthError):
        model.logits([1] * (model.context_length + 1))


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("general.architecture", "qwen2", ModelFileError),
        ("general.architecture", "gpt2", UnsupportedModelError),
        ("llama.rope.scaling.type", "yarn", UnsupportedModelError),
        ("llama.rope.dimension_count", 32, UnsupportedModelError),
        ("llama.rope.freq_base", 0.0, ModelFileError),
        ("llama.rope.freq_base", float("nan"), ModelFileError),
        ("llama.attention.head_count_kv", 2, ModelFileError),
        ("llama.attention.head_count", 0, ModelFileError),
        ("llama.feed_forward_length", 2**31 - 1, ModelFileError),
        ("llama.block_count", 31, ModelFileError),
        ("llama.context_length", -1, ModelFileError),
    ],
)
def test_contradictions_are_refused(gguf_file: GgufFile, key: str, value: MetadataValue, kind: type[Exception]) -> None:
    changed = GgufFile(gguf_file.path, 3, 32, gguf_file.metadata | {key: value}, gguf_file.tensors)
    with pytest.raises(kind):
        ReferenceModel.from_source(changed)
