"""The small vocabularies of tests/golden/vocabularies.json.gz, as model files would carry them.

One byte-level vocabulary serves every family: it was trained without cutting text into words, so its tokens reach
across every boundary that a family draws, and each family makes other tokens of the same text.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.data import GOLDEN_DIRECTORY
from tests.tokens.strings import KINDS
from ultrafast.weights.gguf import GgufFile

VOCABULARIES_PATH = GOLDEN_DIRECTORY / "vocabularies.json.gz"
FAMILIES_PATH = GOLDEN_DIRECTORY / "families.json"

# One name of each rule in the table; the others are the same rule under another name.
BYTE_LEVEL_FAMILIES = [
    "gpt-2", "olmo", "smollm", "command-r", "llama-bpe", "dbrx", "qwen2", "qwen35", "gpt-4o", "tekken", "deepseek-llm",
    "deepseek-coder", "deepseek-v3",
]  # fmt: skip
PIECE_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"pieces": "prefixed"},
    "gemma": {"pieces": "plain", "add_space_prefix": False},
    "mistral-v3": {"pieces": "instruct"},
    "unused": {"pieces": "unused"},
}
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4


@cache
def vocabularies() -> dict[str, dict[str, Any]]:
    read: dict[str, dict[str, Any]] = json.loads(gzip.decompress(VOCABULARIES_PATH.read_bytes()))
    return read


def in_memory(**metadata: Any) -> GgufFile:
    entries = {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}
    return GgufFile(Path("made.gguf"), 3, 32, entries, {})


def family_file(family: str) -> GgufFile:
    """The vocabulary of a family as a GGUF file's metadata."""
    if family in PIECE_FAMILIES:
        made = vocabularies()[PIECE_FAMILIES[family]["pieces"]]
        texts = [
            text.replace("\u2581", " ") if kind == _USER_DEFINED else text
            for text, kind in zip(made["tokens"], made["types"], strict=True)
        ]
        return in_memory(
            model="llama",
            tokens=texts,
            scores=np.array(made["scores"], np.float32),
            token_type=np.array(made["types"], np.int32),
            bos_token_id=1,
            eos_token_id=2,
            unknown_token_id=0,
            add_space_prefix=PIECE_FAMILIES[family].get("add_space_prefix"),
        )
    made = vocabularies()["bytes"]
    return in_memory(
        model="gpt2",
        pre=family,
        tokens=made["tokens"],
        token_type=np.array(made["types"], np.int32),
        merges=made["merges"],
        bos_token_id=made["tokens"].index("<s>"),
        eos_token_id=made["tokens"].index("</s>"),
    )


def by_kind(values: list[Any]) -> list[list[Any]]:
    """What belongs to each kind of ``varied_strings``, whose kinds take turns."""
    return [values[index :: len(KINDS)] for index in range(len(KINDS))]
