"""Fidelity on a short stretch of text; the whole text is ``ultrafast bench fidelity``."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from ultrafast.bench.divergence import Divergence
from ultrafast.bench.fidelity import SEQUENCE_TOKENS, FidelityOptions, clear_margins, run_fidelity
from ultrafast.bench.text import TEXTS, TextTokens, text_tokens
from ultrafast.errors import ConfigurationError


def test_our_engine_stays_close_to_the_reference(model_path: Path) -> None:
    result = run_fidelity(
        FidelityOptions(model=str(model_path), peers=(), threads=2, tokens=512), progress=lambda _: None
    )
    assert result.text.predicted_tokens == SEQUENCE_TOKENS - 1
    assert 5 < result.reference_perplexity < 60  # English, read by a model that knows English
    (ours,) = result.runtimes
    # A single sequence scatters more than the whole text does; a wrong scale or a lost block is far outside.
    assert abs(ours.perplexity_ratio - 1) < 0.03
    assert 0 < ours.mean_kl < 0.01
    assert ours.top1_agreement > 0.92
    assert result.text.name == "english.txt"
    clear = result.clear
    assert clear is not None
    assert 100 < clear.positions < SEQUENCE_TOKENS
    assert clear.unlike_reference == clear.unlike_ours == {"ultrafast": 0}
    assert 0 < clear.margin_noise["ultrafast"] < clear.threshold / 4
    assert [bar.name for bar in result.bars] == [
        "perplexity against the reference's",
        "clear positions with another top token than the reference's",
    ]


def test_another_text_may_be_scored(model_path: Path) -> None:
    options = FidelityOptions("chinese", str(model_path), (), threads=2, tokens=512)
    result = run_fidelity(options, progress=lambda _: None)
    assert result.text.name == "chinese.txt"
    assert result.text.sha256 == text_tokens(model_path, "chinese").sha256
    assert abs(result.runtimes[0].perplexity_ratio - 1) < 0.03
    with pytest.raises(ConfigurationError, match="there are: english, chinese"):
        run_fidelity(FidelityOptions("\x1b[31mhostile", str(model_path), ()), progress=lambda _: None)


def test_clear_positions_are_counted_where_tokens_differ() -> None:
    reference = np.array([[5, 1, 0], [5, 4.5, 0], [0, 5, 1], [0, 1, 5]], np.float32)
    theirs = np.array([[1, 5, 0], [4, 5, 0], [0, 5, 1], [5, 1, 0]], np.float32)
    ours, peer = Divergence(), Divergence()
    ours.add(reference, reference, [0, 1, 2, 0])
    peer.add(reference, theirs, [0, 1, 2, 0])
    clear = clear_margins({"ultrafast": ours, "llama-cpp": peer})
    assert clear.positions == 3  # the second is a near tie
    assert clear.unlike_reference == clear.unlike_ours == {"ultrafast": 0, "llama-cpp": 2}
    assert clear.margin_noise["ultrafast"] == 0


@pytest.mark.parametrize("name", TEXTS)
def test_the_shipped_text_is_long_enough(name: str, model_path: Path) -> None:
    text = text_tokens(model_path, name)
    assert (SEQUENCE_TOKENS - 1) * len(text.sequences(SEQUENCE_TOKENS)) >= 20_000


@pytest.mark.parametrize("beginning", [None, 1])
def test_sequences_cut_the_text_without_gap_or_overlap(beginning: int | None) -> None:
    text = TextTokens("", list(range(100, 200)), beginning, "")
    sequences = text.sequences(8)
    assert all(len(sequence) == 8 for sequence in sequences)
    opening = [] if beginning is None else [beginning]
    assert all(sequence[: len(opening)] == opening for sequence in sequences)
    joined = [token for sequence in sequences for token in sequence[len(opening) :]]
    assert joined == text.tokens[: len(joined)]
    assert len(text.tokens) - len(joined) < 8


def test_prompts_of_different_rounds_begin_differently(model_path: Path) -> None:
    text = text_tokens(model_path)
    prompts = [text.prompt(16, index) for index in range(8)]
    assert all(len(prompt) == 16 for prompt in prompts)
    assert len({tuple(prompt) for prompt in prompts}) == 8


def test_the_chinese_text_is_clean() -> None:
    text = (resources.files("ultrafast.bench") / "data" / "chinese.txt").read_text("utf-8")
    assert 60_000 < len(text.encode()) < 120_000
    marks = set("，。；：？！“”‘’、…—《》（）□〇ＮＳ\n")
    assert all("\u4e00" <= letter <= "\u9fff" or letter in marks for letter in text)
    assert text.count("“") >= text.count("”")  # a speech of several paragraphs opens each and closes once
    paragraphs = text.strip().split("\n\n")
    assert all(paragraph and "\n" not in paragraph for paragraph in paragraphs)
