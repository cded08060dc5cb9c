"""Sampling against a plain twin: the order of the rules, ties, log-probabilities, masks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.models.rows import GREEDY, Driver, examples, samplings
from ultrafast import _native
from ultrafast.models import WANT_HIDDEN, WANT_LOGITS, WANT_TOKEN, WANT_TOP, LoadedModel, SamplingParameters
from ultrafast.models.loaded import Float32Array


def plain_pick(
    logits: Float32Array, sampling: SamplingParameters, prompt: list[int], answer: list[int], choice: int = 0
) -> tuple[int, Float32Array]:
    """(token, adjusted logits) by the documented rules, in float32 as they are stated."""
    adjusted = logits.astype(np.float32).copy()
    for token, value in sampling.logit_bias.items():
        adjusted[token] += np.float32(value)
    repetition = np.float32(sampling.repetition_penalty)
    for token in set(prompt) | set(answer):
        adjusted[token] = adjusted[token] / repetition if adjusted[token] > 0 else adjusted[token] * repetition
        if count := answer.count(token):
            adjusted[token] -= np.float32(sampling.frequency_penalty) * np.float32(count)
            adjusted[token] -= np.float32(sampling.presence_penalty)
    if sampling.temperature == 0:
        return int(adjusted.argmax()), adjusted
    adjusted = (adjusted - adjusted.max()) / np.float32(sampling.temperature)
    order = sorted(range(len(adjusted)), key=lambda token: (-adjusted[token], token))
    if sampling.top_k:
        order = order[: sampling.top_k]
    if sampling.top_p < 1:
        weights = np.exp(adjusted[order].astype(np.float64))
        reached = np.cumsum(weights) >= sampling.top_p * weights.sum()
        order = order[: int(reached.argmax()) + 1]
    order = [token for token in order if np.exp(adjusted[token].astype(np.float64)) >= sampling.min_p]
    noise = _native.kernels.gumbel("portable", sampling.seed, choice, len(answer), len(logits), [])
    scores = adjusted + noise
    return min(order, key=lambda token: (-scores[token], token)), adjusted


@examples(150)
@given(
    sampling=samplings,
    prompt=st.lists(st.integers(0, 76), min_size=1, max_size=8),
    answer=st.lists(st.integers(0, 76), max_size=12),
    choice=st.integers(0, 5),
)
def test_pick_equals_the_plain_twin(
    load: Callable[..., LoadedModel],
    tiny: Callable[..., Path],
    sampling: SamplingParameters,
    prompt: list[int],
    answer: list[int],
    choice: int,
) -> None:
    model = load(tiny("F16"))
    driver = Driver(model)
    driver.bind(0, len(prompt) + len(answer), sampling, len(prompt), choice)
    try:
        rows = driver.line(0, prompt + answer, 0)
        rows[-1] = (*rows[-1][:4], WANT_LOGITS | WANT_TOKEN)
        result = driver.step(rows)
    finally:
        driver.release_all()
    expected, adjusted = plain_pick(result.logits[0], sampling, prompt, answer, choice)
    found = int(result.tokens[0])
    if found != expected:
        # float32 sums may cut top-p or min-p one candidate apart where the twin's float64 sums sit on the edge.
        weights = np.exp(adjusted.astype(np.float64))
        edge = np.abs(np.cumsum(np.sort(weights)[::-1]) / weights.sum() - sampling.top_p).min()
        assert sampling.top_p < 1 and edge < 1e-5


def test_logprobs_are_of_the_raw_logits(load: Callable[..., LoadedModel], tiny: Callable[..., Path]) -> None:
    model = load(tiny("Q8_0"))
    driver = Driver(model)
    sampling = SamplingParameters(temperature=1.5, logit_bias={3: 50.0}, top_logprobs=5, seed=3)
    driver.bind(0, 8, sampling)
    try:
        result = driver.step([(4, 0, 0, -1, WANT_TOKEN | WANT_TOP | WANT_LOGITS | WANT_HIDDEN)])
    finally:
        driver.release_all()
    logits = result.logits[0].astype(np.float64)
    expected = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    assert result.tokens.tolist() == [3]
    np.testing.assert_allclose(result.logprobs[0], expected[3], atol=2e-5)
    best = sorted(range(77), key=lambda token: (-result.logits[0][token], token))[:5]
    assert result.top_tokens[0].tolist() == best
    np.testing.assert_allclose(result.top_logprobs[0], expected[best], atol=2e-5)
    assert result.hidden.shape == (1, 96)


def test_a_mask_leaves_only_what_it_allows(load: Callable[..., LoadedModel], tiny: Callable[..., Path]) -> None:
    model = load(tiny("Q8_0"))
    driver = Driver(model)
    driver.bind(0, 8)
    allowed = np.zeros((1, 3), np.uint32)
    arrays = [np.array([value], np.int32) for value in (4, 0, 0, -1)]
    want = np.array([WANT_TOKEN | WANT_LOGITS], np.uint8)
    try:
        allowed[0, 2] = 1 << 3  # token 67 alone
        assert model.step(*arrays, want, allowed).tokens.tolist() == [67]
        model.truncate(0, 0)
        nothing = model.step(*arrays, want, np.zeros((1, 3), np.uint32))
        assert nothing.failed_sequences.tolist() == [0]
    finally:
        driver.release_all()


def test_samples_follow_the_distribution() -> None:
    """10,000 draws over eight tokens: with 7 degrees of freedom a chi-squared above 30 is far in the tail."""
    logits = np.array([2.0, 1.0, 0.5, 0.0, -0.5, 1.5, -1.0, 0.2], np.float32)
    expected = np.exp(logits) / np.exp(logits).sum() * 10_000
    counts = np.zeros(8)
    for index in range(10_000):
        noise = _native.kernels.gumbel(_native.instruction_sets()[0], 42, 0, index, 8, [])
        counts[int((logits + noise).argmax())] += 1
    assert ((counts - expected) ** 2 / expected).sum() < 30


def test_greedy_ties_go_to_the_lowest_token(load: Callable[..., LoadedModel], tiny: Callable[..., Path]) -> None:
    model = load(tiny("F32"), threads=4)
    driver = Driver(model)
    biased = SamplingParameters(temperature=0.0, logit_bias={60: 1e9, 20: 1e9, 76: 1e9})
    driver.bind(0, 8, biased)
    driver.bind(1, 8, GREEDY)
    try:
        result = driver.step([(4, 0, 0, -1, WANT_TOKEN), (4, 0, 1, -1, WANT_TOKEN | WANT_LOGITS)])
    finally:
        driver.release_all()
    assert result.tokens[0] == 20
    assert result.tokens[1] == result.logits[0].argmax()
