"""How each family of byte-level vocabularies cuts text into words before merging bytes.

A GGUF file names its family in ``tokenizer.ggml.pre``; the rules themselves are the family's published ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tokenizers import Regex
from tokenizers.normalizers import NFC, Normalizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split


@dataclass(frozen=True, slots=True)
class PreTokenizerFamily:
    """``ignore_merges``: a word that is itself a token is taken whole, whatever the merges would make of it."""

    make: Callable[[], PreTokenizer]
    normalizer: Callable[[], Normalizer] | None = None
    ignore_merges: bool = False
    adds_beginning_of_sequence: bool = False  # where the file does not say


def _words_then_bytes(longest_digit_run: str) -> PreTokenizer:
    """Contractions, words with one leading mark, digit runs, punctuation, line ends, other white space."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
        r"|[^\r\n\p{L}\p{N}]?\p{L}+"
        rf"|\p{{N}}{longest_digit_run}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+"
        r"|\s+(?!\S)"
        r"|\s+"
    )
    split = Split(Regex(pattern), behavior="isolated")
    return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])


PRE_TOKENIZERS: Final[dict[str, PreTokenizerFamily]] = {
    "gpt-2": PreTokenizerFamily(lambda: ByteLevel(add_prefix_space=False)),
    "smollm": PreTokenizerFamily(
        lambda: Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]),
    ),
    "llama-bpe": PreTokenizerFamily(
        lambda: _words_then_bytes("{1,3}"), ignore_merges=True, adds_beginning_of_sequence=True
    ),
    "qwen2": PreTokenizerFamily(lambda: _words_then_bytes(""), normalizer=NFC),
}
