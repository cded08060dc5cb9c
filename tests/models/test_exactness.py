"""Exactness, bit for bit: logits and samples depend on nothing but weights, tokens and request.

Not on threads, chunks, neighbours, lines or trees, where keys are kept, or the instruction set (DESIGN: Exactness).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.checkpoints import CASES, VOCABULARY
from tests.models.rows import Driver, examples, logits_of, same_bits, samplings
from tests.models.tiny import WEIGHT_TYPES, TinyShape
from ultrafast import _native
from ultrafast.models import WANT_LOGITS, WANT_TOKEN, LoadedModel, SamplingParameters
from ultrafast.reference.decoder import ReferenceModel
from ultrafast.weights.gguf import open_gguf

Load = Callable[..., LoadedModel]
Tiny = Callable[..., Path]
Checkpoint = Callable[..., Path]

THREADS = (1, 2, 3, 4)
SHAPES = (
    TinyShape(),
    TinyShape(vocabulary_size=33, hidden_size=32, feed_forward_size=64, head_count=16, kv_head_count=2, head_size=18),
    TinyShape(hidden_size=64, head_count=6, kv_head_count=6, head_size=16, tied=True, layer_count=1),
)


def tokens_for(vocabulary_size: int, most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, vocabulary_size - 1), min_size=1, max_size=most)


@pytest.mark.parametrize("weight_type", WEIGHT_TYPES)
@pytest.mark.parametrize("shape", SHAPES)
@examples(8)
@given(data=st.data())
def test_threads_chunks_and_instruction_sets(
    load: Load, tiny: Tiny, weight_type: str, shape: TinyShape, data: st.DataObject
) -> None:
    path = tiny(weight_type, shape)
    tokens = data.draw(tokens_for(shape.vocabulary_size, 200))
    chunks = data.draw(st.lists(st.integers(0, len(tokens)), max_size=6))
    sampling = data.draw(samplings)
    expected = logits_of(load(path, threads=1, instruction_set="portable"), tokens, sampling=sampling)
    for instruction_set in _native.instruction_sets():
        threads = data.draw(st.sampled_from(THREADS))
        found = logits_of(load(path, threads=threads, instruction_set=instruction_set), tokens, chunks, sampling)
        assert same_bits(expected[0], found[0])
        assert expected[1].tolist() == found[1].tolist()


@pytest.mark.parametrize("weight_type", WEIGHT_TYPES)
def test_engine_follows_the_reference(load: Load, tiny: Tiny, weight_type: str) -> None:
    """Float weights differ from the float32 reference by float16 keys, quantised ones by int8 activations too."""
    path = tiny(weight_type)
    tokens = np.random.default_rng(1).integers(0, 77, 150).tolist()
    with open_gguf(path) as gguf:
        expected = ReferenceModel.from_source(gguf).logits(tokens)
    found, _ = logits_of(load(path), tokens)
    error = np.sqrt(np.mean((found - expected) ** 2)) / expected.std()
    assert error < (0.002 if weight_type in {"F32", "F16", "BF16"} else 0.1)


@pytest.mark.parametrize("case", CASES)
@examples(4)
@given(data=st.data())
def test_every_architecture_in_any_way(load: Load, checkpoint: Checkpoint, case: str, data: st.DataObject) -> None:
    """Threads, chunks, instruction sets, neighbours and trees, of weights in either format."""
    path = checkpoint(
        case, data.draw(st.sampled_from(("directory", "gguf"))), data.draw(st.sampled_from(("F32", "F16")))
    )
    tokens = data.draw(tokens_for(VOCABULARY, 60))
    chunks = data.draw(st.lists(st.integers(0, len(tokens)), max_size=6))
    sampling = data.draw(samplings)
    expected = logits_of(load(path, threads=1, instruction_set="portable"), tokens, sampling=sampling)
    for instruction_set in _native.instruction_sets():
        model = load(path, threads=data.draw(st.sampled_from((1, 2, 3))), instruction_set=instruction_set)
        found = logits_of(model, tokens, chunks, sampling)
        assert same_bits(expected[0], found[0])
        assert expected[1].tolist() == found[1].tolist()
    check_neighbours(load(path), data, VOCABULARY)
    check_tree(load(path), data, VOCABULARY, 30)


@examples(25)
@given(data=st.data())
def test_neighbours_change_nothing(load: Load, tiny: Tiny, data: st.DataObject) -> None:
    check_neighbours(load(tiny("Q4_1"), threads=data.draw(st.sampled_from(THREADS))), data, 77)


def check_neighbours(model: LoadedModel, data: st.DataObject, vocabulary_size: int) -> None:
    """Alone or beside up to eight other sequences, at any interleaving of their rows."""
    count = data.draw(st.integers(2, 9))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    sequences = [random.integers(0, vocabulary_size, random.integers(1, 41)).tolist() for _ in range(count)]
    kinds = data.draw(st.lists(samplings, min_size=1, max_size=3))
    sampling = [kinds[slot % len(kinds)] for slot in range(count)]
    expected = [logits_of(model, sequences[c], sampling=sampling[c], choice=c) for c in range(count)]
    driver = Driver(model)
    logits: list[list[np.ndarray]] = [[] for _ in range(count)]
    sampled: list[list[int]] = [[] for _ in range(count)]
    try:
        for slot in range(count):
            driver.bind(slot, len(sequences[slot]), sampling[slot], 1, slot)
        rest = list(sequences)
        while any(rest):
            rows = []
            last_row: dict[int, int] = {}
            for slot in random.integers(0, count, random.integers(1, 31)).tolist():
                if rest[slot]:
                    token, rest[slot] = rest[slot][0], rest[slot][1:]
                    position = len(sequences[slot]) - len(rest[slot]) - 1
                    rows.append((token, position, slot, last_row.get(slot, -1), WANT_LOGITS | WANT_TOKEN))
                    last_row[slot] = len(rows) - 1
            if not rows:
                continue
            result = driver.step(rows)
            for row, values, token in zip(rows, result.logits, result.tokens, strict=True):
                logits[row[2]].append(values)
                sampled[row[2]].append(int(token))
    finally:
        driver.release_all()
    for slot in range(count):
        assert same_bits(expected[slot][0], np.stack(logits[slot]))
        assert expected[slot][1].tolist() == sampled[slot]


@examples(40)
@given(data=st.data())
def test_trees_equal_lines(load: Load, tiny: Tiny, data: st.DataObject) -> None:
    check_tree(load(tiny("Q4_0"), threads=data.draw(st.sampled_from(THREADS))), data, 77, 150)


def check_tree(model: LoadedModel, data: st.DataObject, vocabulary_size: int, most: int) -> None:
    """Every row of a random tree gives what its own path gives as a line; a kept branch then goes on as that line."""
    sampling = data.draw(samplings)
    history = data.draw(tokens_for(vocabulary_size, most))
    node = st.tuples(st.integers(0, vocabulary_size - 1), st.integers(-1, 30))
    nodes = data.draw(st.lists(node, min_size=1, max_size=24))
    driver = Driver(model)
    driver.bind(0, len(history) + len(nodes) + 1, sampling, 1)
    try:
        driver.step(driver.line(0, history, 0))
        rows: list[tuple[int, int, int, int, int]] = []
        paths: list[list[int]] = []  # row indices from the root
        for i, (token, wished) in enumerate(nodes):
            parent = min(wished, i - 1)
            paths.append([*(paths[parent] if parent >= 0 else []), i])
            rows.append((token, len(history) + len(paths[i]) - 1, 0, parent, WANT_LOGITS | WANT_TOKEN))
        result = driver.step(rows)
        kept = data.draw(st.integers(0, len(nodes) - 1))
        lines = [[*history, *(nodes[r][0] for r in path)] for path in paths]
        for destination, row in enumerate(paths[kept], start=len(history)):
            model.move(0, len(history) + row, destination)
        model.truncate(0, len(lines[kept]))
        after = driver.step(driver.line(0, [7], WANT_LOGITS | WANT_TOKEN))
    finally:
        driver.release_all()
    for i, line in enumerate(lines):
        logits, tokens = logits_of(model, line, sampling=sampling)
        assert same_bits(logits[-1], result.logits[i])
        assert tokens[-1] == result.tokens[i]
    logits, tokens = logits_of(model, [*lines[kept], 7], sampling=sampling)
    assert same_bits(logits[-1], after.logits[0])
    assert tokens[-1] == after.tokens[0]


@pytest.mark.parametrize("case", CASES)
@examples(4)
@given(data=st.data())
def test_a_prefix_of_another_sequence(load: Load, checkpoint: Checkpoint, case: str, data: st.DataObject) -> None:
    """Whole blocks shared, the next one copied, the rest computed: the bits of a sequence run alone."""
    model = load(checkpoint(case, "gguf"))
    first = data.draw(tokens_for(VOCABULARY, 100))
    common = data.draw(st.integers(0, len(first)))
    tokens = first[:common] + data.draw(tokens_for(VOCABULARY, 20))
    sampling = data.draw(samplings)
    prompt_length = data.draw(st.integers(1, len(tokens)))
    expected = logits_of(model, tokens, sampling=sampling, prompt_length=prompt_length)
    blocks = np.arange(12, dtype=np.int32)[::-1].copy()  # six for each sequence
    model.bind(0, blocks[:6], sampling, 1)
    try:
        driver = Driver(model)
        driver.step(driver.line(0, first, 0))
        shared = common // model.block_tokens
        model.copy_block(blocks[shared], blocks[6])
        model.bind(
            1,
            np.concatenate([blocks[:shared], blocks[6 : 12 - shared]]),
            sampling,
            prompt_length,
            history=np.array(tokens[:common], np.int32),
        )
        assert model.length(1) == common
        found = driver.step([*driver.line(1, tokens[common:], WANT_LOGITS | WANT_TOKEN), *driver.line(0, [3], 0)])
    finally:
        for slot in (0, 1):
            model.release(slot)
    assert same_bits(expected[0][common:], found.logits)
    assert expected[1][common:].tolist() == found.tokens[: len(tokens) - common].tolist()


def test_a_history_that_cannot_be_is_refused(load: Load, tiny: Tiny) -> None:
    model = load(tiny("F32"))
    one_block = np.zeros(1, np.int32)
    for history in ([-1], [77], [5] * 33):
        with pytest.raises(ValueError, match=r"token|history"):
            model.bind(0, one_block, SamplingParameters(), 1, history=np.array(history, np.int32))
    for source, destination in ((-1, 0), (0, model.block_count)):
        with pytest.raises(ValueError, match="block"):
            model.copy_block(source, destination)


def test_members_that_come_late(load: Load, tiny: Tiny, checkpoint: Checkpoint) -> None:
    """More threads than processors, and busy neighbours: some are late for every stage, many for whole steps."""
    cases = (
        (tiny("Q4_1"), [(7 * i) % 77 for i in range(60)]),
        (checkpoint("qwen3moe", "gguf"), [(7 * i) % VOCABULARY for i in range(60)]),
        (checkpoint("gemma3", "gguf"), [(7 * i) % VOCABULARY for i in range(60)]),
    )
    sampling = SamplingParameters(temperature=1.0, seed=5)
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        for path, tokens in cases:
            expected = logits_of(load(path, threads=1), tokens, sampling=sampling)
            for chunks in (range(60), [3, 50, 52], []):
                found = logits_of(load(path, threads=6), tokens, list(chunks), sampling)
                assert same_bits(expected[0], found[0])
                assert expected[1].tolist() == found[1].tolist()
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()


@examples(6)
@given(data=st.data())
def test_default_model_threads_chunks_and_truncation(load: Load, model_path: Path, data: st.DataObject) -> None:
    tokens = data.draw(tokens_for(49_152, 60))
    sampling = data.draw(samplings)
    chunks = data.draw(st.lists(st.integers(0, len(tokens)), max_size=4))
    expected = logits_of(load(model_path, threads=1), tokens, sampling=sampling)
    for threads in THREADS[1:]:
        found = logits_of(load(model_path, threads=threads), tokens, chunks, sampling)
        assert same_bits(expected[0], found[0])
        assert expected[1].tolist() == found[1].tolist()
    driver = Driver(load(model_path, threads=2))
    driver.bind(0, len(tokens) + 8, sampling, 1)
    try:
        driver.step(driver.line(0, tokens[:1] * 5, 0))
        driver.model.truncate(0, 0)
        result = driver.step(driver.line(0, tokens, WANT_LOGITS | WANT_TOKEN))
    finally:
        driver.release_all()
    assert same_bits(expected[0], result.logits)


def test_default_model_portable_build(load: Load, model_path: Path) -> None:
    tokens = [1, 4093, 198, 49_151, 17, 900, 12_000, 3]
    sampling = SamplingParameters(temperature=0.9, top_p=0.95, seed=11)
    expected = logits_of(load(model_path, threads=2), tokens, sampling=sampling)
    found = logits_of(load(model_path, threads=2, instruction_set="portable"), tokens, sampling=sampling)
    assert same_bits(expected[0], found[0])
    assert expected[1].tolist() == found[1].tolist()
