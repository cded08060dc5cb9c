"""How far one set of next-token distributions lies from another, position by position."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
_ROWS = 32  # positions worked on at once: 32 rows of 50,000 float64 are 13 MB


@dataclass
class Divergence:
    """Per-position results, gathered sequence by sequence. Entropies are in nats."""

    kl: list[Float64] = field(default_factory=list)
    top: list[NDArray[np.int64]] = field(default_factory=list)
    reference_top: list[NDArray[np.int64]] = field(default_factory=list)
    reference_margin: list[Float32] = field(default_factory=list)
    margin_error: list[Float32] = field(default_factory=list)
    negative_log_likelihood: list[Float64] = field(default_factory=list)
    reference_negative_log_likelihood: list[Float64] = field(default_factory=list)

    def add(self, reference: Float32, other: Float32, tokens: list[int]) -> None:
        """Compare the logits ``[positions, vocabulary]`` of one sequence; the row of a token predicts the next one.

        Divergence counts at every position, likelihood at every one that has a next token.
        """
        if reference.shape != other.shape or reference.shape[0] != len(tokens):
            raise ValueError("logits and tokens do not belong together")
        for first in range(0, len(tokens), _ROWS):
            rows = slice(first, first + _ROWS)
            log_p, log_q = log_softmax(reference[rows]), log_softmax(other[rows])
            self.kl.append(kl_divergence(log_p, log_q))
            self._compare_tops(reference[rows], other[rows])
            targets = np.asarray(tokens[first + 1 : first + 1 + _ROWS], dtype=np.int64)
            index = np.arange(len(targets))
            self.negative_log_likelihood.append(-log_q[index, targets])
            self.reference_negative_log_likelihood.append(-log_p[index, targets])

    def perplexity(self) -> float:
        """Of the other distributions on the text."""
        return float(np.exp(np.concatenate(self.negative_log_likelihood).mean()))

    def reference_perplexity(self) -> float:
        """Of the reference's distributions on the same text."""
        return float(np.exp(np.concatenate(self.reference_negative_log_likelihood).mean()))

    def all_kl(self) -> Float64:
        """KL(reference ‖ other) of every position, in order."""
        return np.concatenate(self.kl)

    def top1_agreement(self) -> float:
        """Share of positions where both find the same token most likely (the lowest id among equals)."""
        return float((self.tops() == self.reference_tops()).mean())

    def tops(self) -> NDArray[np.int64]:
        """The most likely token of the other distribution at every position."""
        return np.concatenate(self.top)

    def reference_tops(self) -> NDArray[np.int64]:
        """The most likely token of the reference's distribution at every position."""
        return np.concatenate(self.reference_top)

    def clear(self, margin: float) -> NDArray[np.bool_]:
        """Where the reference's most likely token leads the second by more than ``margin``, in logits."""
        return np.concatenate(self.reference_margin) > margin

    def margin_noise(self) -> float:
        """The root mean square of what the other adds to the reference's lead, in logits, over all positions."""
        return float(np.sqrt(np.square(np.concatenate(self.margin_error), dtype=np.float64).mean()))

    def _compare_tops(self, reference: Float32, other: Float32) -> None:
        rows = np.arange(len(reference))
        first = reference.argmax(axis=1)
        rest = reference.copy()
        rest[rows, first] = -np.inf
        second = rest.argmax(axis=1)
        margin = reference[rows, first] - reference[rows, second]
        self.top.append(other.argmax(axis=1))
        self.reference_top.append(first)
        self.reference_margin.append(margin)
        self.margin_error.append(other[rows, first] - other[rows, second] - margin)


def log_softmax(logits: Float32 | Float64) -> Float64:
    """Log-probabilities of each row ``[positions, vocabulary]``, in double precision."""
    shifted: Float64 = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def kl_divergence(log_p: Float64, log_q: Float64) -> Float64:
    """KL(p ‖ q) of each row, in nats, from log-probabilities."""
    divergence: Float64 = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
    return divergence.clip(min=0.0)  # it cannot be negative: what is below zero is rounding
