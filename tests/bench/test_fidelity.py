"""Fidelity on a short stretch of text; the whole text is ``ultrafast bench fidelity``."""

from __future__ import annotations

from pathlib import Path

import pytest

from ultrafast.bench.fidelity import SEQUENCE_TOKENS, FidelityOptions, run_fidelity
from ultrafast.bench.text import EnglishTokens, english_tokens


def test_our_engine_stays_close_to_the_reference(model_path: Path) -> None:
    result = run_fidelity(FidelityOptions(str(model_path), (), threads=2, tokens=512), progress=lambda _: None)
    assert result.text.predicted_tokens == SEQUENCE_TOKENS - 1
    assert 5 < result.reference_perplexity < 60  # English, read by a model that knows English
    (ours,) = result.runtimes
    # A single sequence scatters more than the whole text does; a wrong scale or a lost block is far outside.
    assert abs(ours.perplexity_ratio - 1) < 0.03
    assert 0 < ours.mean_kl < 0.01
    assert ours.top1_agreement > 0.92
    assert [bar.name for bar in result.bars] == ["perplexity against the reference's"]


def test_the_shipped_text_is_long_enough(model_path: Path) -> None:
    text = english_tokens(model_path)
    assert (SEQUENCE_TOKENS - 1) * len(text.sequences(SEQUENCE_TOKENS)) >= 20_000


@pytest.mark.parametrize("beginning", [None, 1])
def test_sequences_cut_the_text_without_gap_or_overlap(beginning: int | None) -> None:
    text = EnglishTokens(list(range(100, 200)), beginning, "")
    sequences = text.sequences(8)
    assert all(len(sequence) == 8 for sequence in sequences)
    opening = [] if beginning is None else [beginning]
    assert all(sequence[: len(opening)] == opening for sequence in sequences)
    joined = [token for sequence in sequences for token in sequence[len(opening) :]]
    assert joined == text.tokens[: len(joined)]
    assert len(text.tokens) - len(joined) < 8


def test_prompts_of_different_rounds_begin_differently(model_path: Path) -> None:
    text = english_tokens(model_path)
    prompts = [text.prompt(16, index) for index in range(8)]
    assert all(len(prompt) == 16 for prompt in prompts)
    assert len({tuple(prompt) for prompt in prompts}) == 8
