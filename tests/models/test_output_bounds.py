"""A token found by bounds is that of all logits, with noise or without: any threads, any rows, ties, and what bounds
cannot say.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.conftest import Load
from tests.models.rows import GREEDY, Driver, examples
from tests.models.tiny import TinyShape, write_tiny_model
from ultrafast.models import WANT_HIDDEN, WANT_LOGITS, WANT_TOKEN
from ultrafast.models.loaded import LoadedModel
from ultrafast.models.sampling import SamplingParameters
from ultrafast.weights.gguf import open_gguf

VOCABULARY = 1000
ROW_BYTES = 96 // 32 * 34
Tiny = Callable[..., Path]


def steps(
    model: LoadedModel, tokens: list[int], cut: int, want: int, sampling: SamplingParameters = GREEDY
) -> tuple[list[int], list[int], bytes]:
    """Tokens picked after each token, sequences that failed, and hidden states; in two steps, cut after ``cut``."""
    driver = Driver(model)
    driver.bind(0, len(tokens), sampling, choice=3)
    picked: list[int] = []
    failed: list[int] = []
    hidden = b""
    try:
        for part in (tokens[:cut], tokens[cut:]):
            if part:
                result = driver.step(driver.line(0, part, want))
                if want & WANT_LOGITS and sampling is GREEDY and not len(result.failed_sequences):
                    assert result.tokens.tolist() == result.logits.argmax(axis=1).tolist()
                picked += result.tokens.tolist()
                failed += result.failed_sequences.tolist()
                hidden += result.hidden.tobytes()
    finally:
        driver.release_all()
    return picked, failed, hidden


def check(model: LoadedModel, tokens: list[int], cut: int, sampling: SamplingParameters = GREEDY) -> None:
    want = WANT_TOKEN | WANT_HIDDEN
    assert steps(model, tokens, cut, want, sampling) == steps(model, tokens, cut, want | WANT_LOGITS, sampling)


@pytest.mark.parametrize("tied", [False, True])
@examples(12)
@given(data=st.data())
def test_any_model_threads_and_rows(
    load: Load, tmp_path_factory: pytest.TempPathFactory, tied: bool, data: st.DataObject
) -> None:
    seed = data.draw(st.integers(0, 3))
    path = tmp_path_factory.getbasetemp() / f"bounds-{seed}-{tied}.gguf"
    if not path.exists():
        write_tiny_model(path, "Q8_0", TinyShape(vocabulary_size=VOCABULARY, tied=tied), seed)
    tokens = data.draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40))
    sampling = data.draw(
        st.just(GREEDY)
        | st.builds(
            SamplingParameters, temperature=st.sampled_from([1e-3, 0.7, 1.0, 9.0]), seed=st.integers(0, 2**64 - 1)
        )
    )
    for threads in (1, 2, 4):
        check(load(path, threads=threads), tokens, data.draw(st.integers(0, len(tokens))), sampling)


def test_the_lowest_of_equal_rows_wins(load: Load, tmp_path: Path) -> None:
    """Every row of the output layer stands in it four times, in parts of different threads."""
    path = write_tiny_model(tmp_path / "ties.gguf", "Q8_0", TinyShape(vocabulary_size=VOCABULARY))
    content = bytearray(path.read_bytes())
    rows = bytes(open_gguf(path).tensors["output.weight"].data)
    quarter = VOCABULARY // 4 * ROW_BYTES
    start = content.index(rows)
    content[start : start + len(rows)] = rows[:quarter] * 4
    path.write_bytes(content)
    for threads in (1, 2, 3):
        model = load(path, threads=threads)
        check(model, list(range(30)), 7)
        assert max(steps(model, list(range(30)), 7, WANT_TOKEN)[0]) < VOCABULARY // 4


@pytest.mark.parametrize("scale", [np.inf, 65504.0, 0.0])
def test_rows_that_bounds_cannot_or_need_not_tell_apart(load: Load, tmp_path: Path, scale: float) -> None:
    """A scale that is no number fails the sequence, as ever; the largest one and zeros only leave many rows."""
    path = write_tiny_model(tmp_path / "odd.gguf", "Q8_0", TinyShape(vocabulary_size=VOCABULARY))
    content = bytearray(path.read_bytes())
    rows = np.frombuffer(open_gguf(path).tensors["output.weight"].data, np.uint8).reshape(-1, 34).copy()
    start = content.index(rows.tobytes())
    rows[:, :2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    content[start : start + rows.size] = rows.tobytes()
    path.write_bytes(content)
    model = load(path)
    for seed in range(20):  # beyond where bounds are given up for a while
        check(model, list(range(30)), 7)
        check(model, list(range(30)), 7, SamplingParameters(temperature=1.0, seed=seed))
    assert bool(steps(model, [1, 2], 1, WANT_TOKEN)[1]) == np.isinf(scale)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_sequence_that_failed_has_no_token_whichever_way_it_was_looked_for(
    load: Load, tmp_path: Path, threads: int
) -> None:
    """One value that is no number, which not every way looks at."""
    path = write_tiny_model(tmp_path / "odd.gguf", "Q8_0", TinyShape(vocabulary_size=VOCABULARY))
    content = bytearray(path.read_bytes())
    rows = bytes(open_gguf(path).tensors["output.weight"].data)
    start = content.index(rows)
    content[start : start + 2] = np.float16(np.inf).tobytes()
    path.write_bytes(content)
    model = load(path, threads=threads)
    for sampling in (GREEDY, SamplingParameters(temperature=1.0, seed=3)):
        for want in (WANT_TOKEN, WANT_TOKEN | WANT_LOGITS):
            picked, failed, _ = steps(model, [1, 2, 3], 1, want, sampling)
            assert failed == [0, 0]
            assert picked == [-1, -1, -1]


def test_the_default_model(load: Load, model_path: Path) -> None:
    model = load(model_path)
    tokens = list(np.random.default_rng(7).integers(0, 49_152, 48))
    check(model, tokens, 40)
    answer = [int(tokens[0])]
    for _ in range(60):
        answer.append(steps(model, answer, len(answer) - 1, WANT_TOKEN)[0][-1])
    check(model, answer, 13)
    for seed in range(8):
        check(model, answer, 50, SamplingParameters(temperature=0.5 + seed / 8, seed=seed))


def test_rows_of_all_kinds_share_a_step(load: Load, tmp_path: Path) -> None:
    """Greedy and noisy rows go by bounds together; with one that needs all logits, none does."""
    path = write_tiny_model(tmp_path / "mixed.gguf", "Q8_0", TinyShape(vocabulary_size=VOCABULARY))
    kinds = [
        GREEDY,
        SamplingParameters(temperature=1.0, seed=4),
        SamplingParameters(temperature=1.0, top_p=0.9, seed=5),
    ]
    model = load(path)
    for count in (2, 3):
        driver = Driver(model)
        for slot in range(count):
            driver.bind(slot, 8, kinds[slot], choice=3)
        try:
            result = driver.step([(7, 0, slot, -1, WANT_TOKEN) for slot in range(count)])
        finally:
            driver.release_all()
        alone = [steps(model, [7], 0, WANT_TOKEN | WANT_LOGITS, kinds[slot])[0][0] for slot in range(count)]
        assert result.tokens.tolist() == alone
