from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ultrafast.bench.divergence import Divergence, Float32, kl_divergence, log_softmax

VOCABULARY = 7
logits = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 70), st.just(VOCABULARY)), elements=st.floats(-60, 60, width=32)
)


def compared(reference: Float32, other: Float32) -> Divergence:
    divergence = Divergence()
    divergence.add(reference, other, [row % VOCABULARY for row in range(len(reference))])
    return divergence


@given(logits)
def test_log_softmax_is_normalised_and_ignores_a_shift(values: Float32) -> None:
    result = log_softmax(values)
    np.testing.assert_allclose(np.exp(result).sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(result, log_softmax(values.astype(np.float64) + 123), atol=1e-9)


@given(logits)
def test_a_distribution_does_not_diverge_from_itself(values: Float32) -> None:
    divergence = compared(values, values)
    assert divergence.all_kl().max() == 0
    assert divergence.top1_agreement() == 1
    if len(values) > 1:
        assert divergence.perplexity() == divergence.reference_perplexity()


@given(logits, st.randoms(use_true_random=False))
def test_divergence_is_the_textbook_sum_at_every_position(reference: Float32, random: object) -> None:
    other = reference[:, ::-1].copy()
    divergence = compared(reference, other)
    for row, measured in enumerate(divergence.all_kl()):
        log_p = [float(x) - math.log(sum(math.exp(float(y)) for y in reference[row])) for x in reference[row]]
        log_q = [float(x) - math.log(sum(math.exp(float(y)) for y in other[row])) for x in other[row]]
        expected = sum(math.exp(p) * (p - q) for p, q in zip(log_p, log_q, strict=True))
        assert math.isclose(measured, expected, rel_tol=1e-6, abs_tol=1e-9)


def test_divergence_is_measured_from_the_reference() -> None:
    certain, even = log_softmax(np.array([[30.0, 0.0]])), log_softmax(np.array([[0.0, 0.0]]))
    assert kl_divergence(certain, even)[0] == pytest.approx(math.log(2), rel=1e-6)
    assert kl_divergence(even, certain)[0] > 10


def test_perplexity_of_even_odds_is_the_vocabulary_and_sees_the_next_token() -> None:
    even = np.zeros((40, VOCABULARY), dtype=np.float32)
    knowing = even.copy()
    knowing[np.arange(39), [(row + 1) % VOCABULARY for row in range(39)]] = 50  # of the token that comes next
    divergence = compared(even, knowing)
    assert divergence.reference_perplexity() == pytest.approx(VOCABULARY)
    assert divergence.perplexity() == pytest.approx(1)
    assert len(divergence.all_kl()) == 40


@given(logits)
def test_a_lead_is_that_of_the_first_over_the_second(values: Float32) -> None:
    other = values.copy()
    other[:, 0] += 1
    divergence = compared(values, other)
    ordered = np.sort(values, axis=1)
    np.testing.assert_array_equal(divergence.clear(0.5), ordered[:, -1] - ordered[:, -2] > 0.5)
    np.testing.assert_array_equal(divergence.reference_tops(), values.argmax(axis=1))
    np.testing.assert_array_equal(divergence.tops(), other.argmax(axis=1))
    assert 0 <= divergence.margin_noise() <= 1 + 1e-5  # one of the two may have moved by 1


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(ValueError, match="belong together"):
        Divergence().add(np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32), [0, 1])
    with pytest.raises(ValueError, match="belong together"):
        Divergence().add(np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32), [0, 1, 2])
