"""Summaries of repeated runs. Machines drift, so runs alternate and ratios are formed inside one round."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence


class Summary(msgspec.Struct, frozen=True):
    """All samples in the order they were taken, and what they come to."""

    samples: list[float]
    minimum: float
    median: float
    maximum: float


def summarise(samples: Sequence[float]) -> Summary:
    """Sum up at least one sample."""
    if not samples:
        raise ValueError("a summary needs at least one sample")
    return Summary(list(samples), min(samples), statistics.median(samples), max(samples))


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least ``share`` of all do not exceed: one that was measured, not interpolated."""
    if not samples:
        raise ValueError("a percentile needs at least one sample")
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]


def paired_speedup(ours: Sequence[float], theirs: Sequence[float], *, higher_is_better: bool) -> Summary:
    """How many times better ours was, round by round: above 1 where ours won, whichever way the metric points."""
    if higher_is_better:
        return summarise([our / their for our, their in zip(ours, theirs, strict=True)])
    return summarise([their / our for our, their in zip(ours, theirs, strict=True)])


def rotation(count: int, round_index: int) -> list[int]:
    """The order of ``count`` contestants in a round: over ``count`` rounds each goes first once and last once."""
    return [(first + round_index) % count for first in range(count)]
