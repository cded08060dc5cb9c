"""Varied strings, id sequences and conversations, the same on every machine: shared by the token tests and the script
that asks transformers what they are.

Only ``Random.random`` is used, whose sequence Python keeps between versions.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.data import ENGLISH

COUNT = 6_000
SEED = 20_261
ID_SEQUENCES = 600

WORDS = [
    "the",
    "of",
    "and",
    "model",
    "token",
    "Straße",
    "naïve",
    "façade",
    "can't",
    "I'll",
    "WE'VE",
    "they'd",
    "it's",
    "'tis",
    "o'clock",
    "don’t",
    "über",
    "Ωmega",
]
NAMES = [
    "x",
    "index",
    "self",
    "value_of",
    "HTTPServer",
    "αβγ",
    "_private",
    "__init__",
    "camelCase",
    "i18n",
    "π",
    "user_id",
]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u2003", "\u200b", "\u3000", "\v", "\f", "\u2028", "\x85"]
EMOJI = ["😀", "👩‍💻", "👍🏽", "🇫🇷", "❤️", "🏳️‍🌈", "👨‍👩‍👧‍👦", "⌛", "🪿", "1️⃣", "☃"]
SPECIALS = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<file_sep>", "<jupyter_code>", "<empty_output>",
    "<|im_start|", "|im_end|>", "<|im_", "< |im_end|>", "<|IM_END|>", "<|im_end|><|im_end|>", "<repo_name",
    "<<|im_end|>>", "<|im_<|im_end|>end|>", "<reponame><filename>", "[INST]", "<s>", "</s>", "<think>",
]  # fmt: skip
NUMBERS = [
    "0",
    "42",
    "3.14159",
    "1e-9",
    "2026-11-30",
    "½",
    "²³",
    "Ⅷ",
    "٣٤٥",
    "४२",
    "一二三",
    "₀₁",
    "①②",
    "1,000,000",
    "0xFF",
    "๔๕",
]
SCRIPTS = [
    (0x4E00, 0x9FA5), (0x3041, 0x3096), (0x30A1, 0x30FA), (0xAC00, 0xD7A3), (0x0621, 0x064A), (0x05D0, 0x05EA),
    (0x0904, 0x0939), (0x0E01, 0x0E30), (0x0410, 0x044F), (0x03B1, 0x03C9), (0x10D0, 0x10F0), (0x1200, 0x1248),
]  # fmt: skip
CODE = [
    "def {0}({1}):\n    return {1} + {2}\n",
    "for (int {0} = 0; {0} < {2}; ++{0}) {{\n\t{1}[{0}] *= {2};\n}}\n",
    'let {0}: Vec<u8> = vec![{2}; {2}]; // {1}\r\nprintln!("{{}}", {0});',
    "SELECT {0}, COUNT(*) FROM {1} WHERE id >= {2} GROUP BY 1;",
    '{{"{0}": [{2}, null, true], "{1}": "\\u00e9\\n"}}',
    "https://example.org/{0}?{1}={2}#top",
    "<div class='{0}'>\n        {1} &amp; {2}\n</div>",
    "$ {0} --{1}={2} | grep -v '^#' >> /dev/null 2>&1",
    "\\frac{{{0}}}{{{1}^{{{2}}}}} \\leq \\sum_{{i=1}}^n",
]


class Source:
    """A seeded source of choices."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, count: int) -> int:
        return int(self._random.random() * count)

    def pick(self, choices: Any) -> Any:
        return choices[self.below(len(choices))]

    def several(self, most: int, make: Callable[[], str], between: str = "") -> str:
        return between.join(make() for _ in range(1 + self.below(most)))


def varied_strings(count: int = COUNT, seed: int = SEED) -> list[str]:
    """``count`` strings, every kind in turn."""
    source = Source(seed)
    return [KINDS[index % len(KINDS)](source) for index in range(count)]


def id_sequences(vocabulary: int, count: int = ID_SEQUENCES, seed: int = SEED) -> list[list[int]]:
    """Random token ids: bytes of characters torn apart, control tokens in between."""
    source = Source(seed + 1)
    return [
        [source.below(vocabulary if source.below(4) else 300) for _ in range(1 + source.below(40))]
        for _ in range(count)
    ]


def _english(source: Source) -> str:
    start = source.below(len(ENGLISH) - 400)
    return ENGLISH[start : start + 1 + source.below(400)]


def _code(source: Source) -> str:
    return source.several(
        4, lambda: source.pick(CODE).format(source.pick(NAMES), source.pick(NAMES), source.below(10_000))
    )


def _script(source: Source) -> str:
    def run() -> str:
        low, high = source.pick(SCRIPTS)
        return source.several(12, lambda: chr(low + source.below(high - low + 1)))

    return source.several(6, run, source.pick(["", " ", "、", ". "]))


def _emoji(source: Source) -> str:
    return source.several(10, lambda: source.pick(EMOJI) + source.pick(["", "", " ", "ok", "!"]))


def _control(source: Source) -> str:
    return source.several(20, lambda: chr(source.below(33)) if source.below(3) else source.pick(["\x7f", "\x9b", "a"]))


def _spaces(source: Source) -> str:
    return source.several(
        8, lambda: source.pick(SPACES) * (1 + source.below(9)) + source.pick(["", "word", "1", ".", "é", "'s"])
    )


def _unicode(source: Source) -> str:
    def letter() -> str:
        code = source.below(source.pick([0x250, 0x3000, 0xFFFE, 0x1FAFF]))
        return "\ufffd" if 0xD800 <= code <= 0xDFFF else chr(code)

    return source.several(40, letter)


def _broken_utf8(source: Source) -> str:
    raw = bytearray(_english(source).encode() + _script(source).encode() + _emoji(source).encode())
    for _ in range(1 + source.below(8)):
        raw[source.below(len(raw))] = source.below(256)
    start = source.below(len(raw))
    return bytes(raw[start : start + 200]).decode("utf-8", "replace")


def _specials(source: Source) -> str:
    return source.several(6, lambda: source.pick(SPECIALS) + source.pick(["", " ", "\n", "user\n", "text", "  "]))


def _numbers(source: Source) -> str:
    return source.several(8, lambda: source.pick(["", " ", "  ", "$", "-", "x"]) + source.pick(NUMBERS))


def _words(source: Source) -> str:
    return source.several(20, lambda: source.pick([" ", "", "\n", ", ", "-"]) + source.pick(WORDS))


def _marks(source: Source) -> str:
    return source.several(10, lambda: source.pick(["e", "a", "Å", "한", " "]) + chr(0x300 + source.below(0x70)))


def _runs(source: Source) -> str:
    return source.several(
        4, lambda: source.pick(["a", "=", "-", "é", "的", "9", "!", "\\", "ab", "Ġ"]) * source.below(60)
    )


def _short(source: Source) -> str:
    return source.several(3, lambda: chr(source.below(0x180)))


KINDS: list[Callable[[Source], str]] = [
    _english, _code, _script, _emoji, _control, _spaces, _unicode, _broken_utf8, _specials, _numbers, _words, _marks,
    _runs, _short,
]  # fmt: skip

CONVERSATIONS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Hello"}],
    [
        {"role": "user", "content": "Count: 1, 2"},
        {"role": "assistant", "content": "3, 4"},
        {"role": "user", "content": "And then?\n\n  indented\t"},
    ],
    [
        {"role": "system", "content": "  Antworte auf Deutsch. \n"},
        {"role": "user", "content": "Größe? 你好 👩‍💻 \u200b \x07"},
        {"role": "assistant", "content": "Ça va… ½"},
        {"role": "user", "content": ""},
    ],
    [{"role": "user", "content": "{{ 7 * 7 }} {% raw %} &lt;b&gt; ' \" \\n"}],
    [{"role": "user", "content": "line\r\n" * 30}, {"role": "assistant", "content": "ok"}],
    [{"role": "user", "content": ENGLISH[:3000]}],
    [{"role": "user", "content": "a" * 200 + " " * 50 + "<|im_en d|>"}],
]
