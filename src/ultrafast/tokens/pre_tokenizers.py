"""How each family of byte-level vocabularies cuts text into words before merging bytes.

A GGUF file names its family in ``tokenizer.ggml.pre``; the rules themselves are those of the tokenizers their authors
published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tokenizers import Regex
from tokenizers.normalizers import NFC, Normalizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

_CONTRACTION: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _words(digits: str) -> str:
    """Contractions, words with one leading mark, digit runs, punctuation, line ends, other white space."""
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _cased_words(digits: str, suffix: str) -> str:
    """As ``_words``, but a word also ends where lower case turns to upper, and a contraction belongs to its word."""
    mark = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{mark}{_UPPER}*{_LOWER}+{suffix}|{mark}{_UPPER}+{_LOWER}*{suffix}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


# The letters that had an upper and a lower case when DeepSeek's first models were made: hexadecimal, inclusive.
_CASED_LETTERS: Final = (
    "41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c 38e-3a1 "
    "3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 "
    "1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe "
    "1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 "
    "2126 2128 212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 "
    "a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a "
    "10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943"
)
_CASED: Final = "".join(
    "-".join(rf"\x{{{bound}}}" for bound in letters.split("-")) for letters in _CASED_LETTERS.split()
)
_CJK: Final = r"[\x{4e00}-\x{9fa5}\x{0800}-\x{4e00}\x{ac00}-\x{d7ff}]+"
_DEEPSEEK_3_WORDS: Final = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)


@dataclass(frozen=True, slots=True)
class PreTokenizerFamily:
    """``patterns`` cut in turn, each what the ones before left whole; a match and what lies between are both words.

    ``ignore_merges``: a word that is itself a token is taken whole, whatever the merges would make of it.
    """

    patterns: tuple[str, ...]
    single_digits: bool = False  # cut before the patterns
    composes: bool = False  # to the normal form NFC
    ignore_merges: bool = False
    adds_beginning_of_sequence: bool = False  # where the file does not say

    def make(self) -> PreTokenizer:
        steps: list[PreTokenizer] = [Digits(individual_digits=True)] if self.single_digits else []
        steps += [Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        return Sequence([*steps, ByteLevel(add_prefix_space=False, use_regex=False)])

    def normalizer(self) -> Normalizer | None:
        return NFC() if self.composes else None


_GPT_2: Final = PreTokenizerFamily((_GPT2,))
_GPT_2_DIGITS: Final = PreTokenizerFamily((_GPT2,), single_digits=True)
_LLAMA_3: Final = PreTokenizerFamily((_words(r"\p{N}{1,3}"),), ignore_merges=True, adds_beginning_of_sequence=True)
_CL100K: Final = PreTokenizerFamily((_words(r"\p{N}{1,3}"),))
_QWEN_2: Final = PreTokenizerFamily((_words(r"\p{N}"),), composes=True)
_O200K: Final = PreTokenizerFamily((_cased_words(r"\p{N}{1,3}", _CONTRACTION + "?"),))

PRE_TOKENIZERS: Final[dict[str, PreTokenizerFamily]] = {
    "gpt-2": _GPT_2,
    "phi-2": _GPT_2,
    "exaone4": _GPT_2,
    "olmo": PreTokenizerFamily((_GPT2,), composes=True),
    "smollm": _GPT_2_DIGITS,
    "starcoder": _GPT_2_DIGITS,
    "refact": _GPT_2_DIGITS,  # Granite 3 too
    "codeshell": _GPT_2_DIGITS,
    "command-r": PreTokenizerFamily((_GPT2,), single_digits=True, composes=True),
    "llama-bpe": _LLAMA_3,  # SmolLM 3 too
    "llama3": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "falcon3": _LLAMA_3,
    "lfm2": _LLAMA_3,
    "dbrx": _CL100K,  # OLMo 2 and Phi 4 too
    "smaug-bpe": _CL100K,
    "chatglm-bpe": _CL100K,
    "glm4": _CL100K,
    "qwen2": _QWEN_2,  # Qwen 2.5 and 3 too
    "deepseek-r1-qwen": _QWEN_2,
    "megrez": _QWEN_2,
    "qwen35": PreTokenizerFamily(
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
        ),
        composes=True,
    ),
    "gpt-4o": _O200K,  # gpt-oss and Phi 4 mini too
    "llama4": _O200K,
    "tekken": PreTokenizerFamily((_cased_words(r"\p{N}", ""),), ignore_merges=True, adds_beginning_of_sequence=True),
    "deepseek-llm": PreTokenizerFamily(
        (
            r"[\r\n]",
            rf"\s?[{_CASED}]+",
            r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+",
            r"\s+$",
            _CJK,
            r"\p{N}",
        )
    ),
    "deepseek-coder": PreTokenizerFamily((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    "deepseek-v3": PreTokenizerFamily(
        (r"\p{N}{1,3}", r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+", _DEEPSEEK_3_WORDS)
    ),
    # What converters write for a vocabulary they do not know, and what its absence means.
    "default": PreTokenizerFamily((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}
