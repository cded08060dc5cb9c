"""Loading a model of random weights, made small here; the whole one is ``ultrafast bench load``."""

from __future__ import annotations

import hashlib
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from ultrafast.bench import load, random_model
from ultrafast.bench.load import LoadOptions, process_memory, run_load
from ultrafast.errors import ConfigurationError
from ultrafast.models.text import open_tokenizer
from ultrafast.reference.decoder import ReferenceModel
from ultrafast.weights.gguf import GgufFile, open_gguf


def test_the_whole_model_has_the_size_it_is_named_after() -> None:
    shape = random_model.SHAPES["1.1b"]
    assert shape.parameter_count() == 1_100_048_384
    assert {kind: shape.file_bytes(kind) for kind in random_model.WEIGHT_TYPES} == {
        "q4_0": 619_094_016,
        "q8_0": 1_169_072_128,
        "f16": 2_200_281_088,
        "q4_k_m": 670_187_520,
    }
    assert random_model.SHAPES["8b"].parameter_count() == 8_030_261_248


SMALL = random_model.Shape(
    "Small", vocabulary_size=32_100, context=2_048, layers=2, width=256, feed_forward=512, heads=4, kv_heads=2
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(random_model.SHAPES, "1.1b", SMALL)


@pytest.mark.parametrize("weight_type", random_model.WEIGHT_TYPES)
def test_the_file_is_a_model_and_the_same_every_time(weight_type: str, gguf_file: GgufFile, tmp_path: Path) -> None:
    digests = set()
    for name in ("first.gguf", "second.gguf"):
        random_model.write_random_model(tmp_path / name, SMALL, weight_type, gguf_file, lambda _: None)
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1
    with open_gguf(tmp_path / "first.gguf") as file:
        assert sum(np.prod(tensor.shape) for tensor in file.tensors.values()) == SMALL.parameter_count()
        kinds = {"q4_k", "q6_k"} if weight_type == "q4_k_m" else {weight_type}
        assert {tensor.type_name.lower() for tensor in file.tensors.values()} == {*kinds, "f32"}
        logits = ReferenceModel.from_source(file).logits([1, 2, 3])
    assert logits.shape == (3, SMALL.vocabulary_size)
    assert 0 < logits.std() < 10
    tokenizer = open_tokenizer(tmp_path / "first.gguf")
    tokens = tokenizer.encode("Once upon a time, naïve 模型.", special=False)
    assert max(tokens) < random_model.BORROWED_TOKENS
    assert tokenizer.decode(tokens) == "Once upon a time, naïve 模型."


@pytest.mark.usefixtures("small")
def test_loading_is_timed_and_weighed_in_fresh_processes() -> None:
    result = run_load(LoadOptions("q8_0", threads=2, rounds=2), progress=lambda _: None)
    assert len(result.load_seconds.samples) == 2
    assert result.load_seconds.minimum > 0
    assert 20e6 < result.memory_bytes.median <= result.peak_memory_bytes.median < 2e9
    assert result.provenance.model.name == "random-1.1b-q8_0"
    assert [bar.name for bar in result.bars] == ["seconds to load", "memory after loading ÷ file"]


def test_memory_is_that_of_the_process() -> None:
    # Mapped by itself: what malloc gives may come from memory freed earlier, which freeing does not return.
    with mmap.mmap(-1, 64 << 20) as ballast:
        ballast.write(bytes(len(ballast)))
        now, peak = process_memory(os.getpid())
        assert len(ballast) < now <= peak
    assert process_memory(os.getpid())[0] < now - (32 << 20)


def test_what_cannot_be_measured_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="a type is one of q4_0, q8_0, f16, q4_k_m"):
        run_load(LoadOptions("q4_k"), progress=lambda _: None)
    monkeypatch.setattr(random_model.Shape, "file_bytes", lambda *_: 1 << 60)
    with pytest.raises(ConfigurationError, match="GB are needed"):
        load.run_load(LoadOptions(), progress=lambda _: None)
