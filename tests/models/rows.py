"""Ways to push the same tokens through a step: whole, in chunks, beside others, as a line or a tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from ultrafast.models import WANT_LOGITS, WANT_TOKEN, LoadedModel, SamplingParameters, StepResult
from ultrafast.models.loaded import Float32Array, Int32Array

GREEDY = SamplingParameters(temperature=0.0)
samplings = st.builds(
    SamplingParameters,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5, 2000]),
    top_p=st.sampled_from([1.0, 0.9, 0.2, 1e-6]),
    min_p=st.sampled_from([0.0, 0.05, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, -0.7]),
    logit_bias=st.dictionaries(st.integers(0, 32), st.floats(-100, 100, width=32), max_size=3),
    seed=st.integers(0, 2**64 - 1),
)


def examples(count: int) -> settings:
    """So many examples, however long each takes; the fixtures are shared on purpose."""
    return settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


class Driver:
    """One model and its bound sequences; blocks are handed out in a scattered order."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self._free = list(range(model.block_count))[::-2] + list(range(model.block_count))[-2::-2]
        self._held: dict[int, list[int]] = {}

    def bind(
        self, slot: int, capacity: int, sampling: SamplingParameters = GREEDY, prompt_length: int = 1, choice: int = 0
    ) -> None:
        blocks = [self._free.pop() for _ in range(-(-capacity // self.model.block_tokens))]
        self._held[slot] = blocks
        self.model.bind(slot, np.array(blocks, np.int32), sampling, prompt_length, choice)

    def release(self, slot: int) -> None:
        self.model.release(slot)
        self._free += self._held.pop(slot)

    def release_all(self) -> None:
        for slot in list(self._held):
            self.release(slot)

    def step(self, rows: Iterable[tuple[int, int, int, int, int]]) -> StepResult:
        """Rows are (token, position, slot, parent, want)."""
        table = np.array(list(rows), np.int64).reshape(-1, 5)
        columns = [np.ascontiguousarray(table[:, i], np.int32) for i in range(4)]
        return self.model.step(*columns, np.ascontiguousarray(table[:, 4], np.uint8))

    def line(self, slot: int, tokens: Sequence[int], want: int) -> list[tuple[int, int, int, int, int]]:
        """Rows that continue the slot's committed history."""
        start = self.model.length(slot)
        return [(token, start + i, slot, i - 1, want) for i, token in enumerate(tokens)]


def logits_of(
    model: LoadedModel,
    tokens: Sequence[int],
    chunks: Sequence[int] | None = None,
    sampling: SamplingParameters = GREEDY,
    prompt_length: int = 1,
    choice: int = 0,
) -> tuple[Float32Array, Int32Array]:
    """(logits [n, vocabulary], sampled tokens [n]) of a sequence run alone, cut after each of ``chunks``."""
    driver = Driver(model)
    driver.bind(0, len(tokens), sampling, prompt_length, choice)
    cuts = [0, *sorted(set(chunks or [])), len(tokens)]
    try:
        results = [
            driver.step(driver.line(0, tokens[start:end], WANT_LOGITS | WANT_TOKEN))
            for start, end in pairwise(cuts)
            if start < end
        ]
    finally:
        driver.release_all()
    assert all(len(result.failed_sequences) == 0 for result in results)
    return np.concatenate([r.logits for r in results]), np.concatenate([r.tokens for r in results])


def same_bits(left: Float32Array, right: Float32Array) -> bool:
    return left.shape == right.shape and left.tobytes() == right.tobytes()
