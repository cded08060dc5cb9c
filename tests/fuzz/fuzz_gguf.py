"""Damaged GGUF files: each case damages one of the small files of models.py.

    python -m tests.fuzz.fuzz_gguf --cases 100000 --seed 1

A case opens the file, touches every tensor, builds the tokenizer and chat template, loads the model and runs one step.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np

from tests.fuzz import harness
from tests.fuzz.models import write_all
from ultrafast.errors import UltrafastError
from ultrafast.reference.dequantise import dequantise
from ultrafast.tokens.chat_template import ChatTemplate
from ultrafast.tokens.tokenizer import Tokenizer
from ultrafast.weights.gguf import GgufFile, open_gguf
from ultrafast.weights.inspection import inspect_source

MAX_ELEMENTS = 1 << 22  # larger tensors, which a small file cannot hold, are not dequantised


class GgufTarget:
    """The files of models.py, damaged mostly in their headers."""

    module = "tests.fuzz.fuzz_gguf"
    case_name = "case.gguf"

    def prepare(self, directory: Path) -> None:
        self._seeds = [path.read_bytes() for path in write_all(directory)]
        self._header_bytes = [content.index(b"output_norm.weight") + 64 for content in self._seeds]

    def write_case(self, path: Path, source: random.Random) -> None:
        chosen = source.randrange(len(self._seeds))
        path.write_bytes(harness.damage(self._seeds[chosen], source, self._header_bytes[chosen]))

    def run_case(self, path: Path) -> str:
        return run_case(path)


def run_case(path: Path) -> str:
    """Do all that a model file is used for; returns how far it came, ``UltrafastError`` where it was refused."""
    with open_gguf(path, any_type=True) as anything:
        harness.check_views(anything)
        inspect_source(anything)
    with open_gguf(path) as file:
        for tensor in file.tensors.values():
            if tensor.byte_count < MAX_ELEMENTS:
                with np.errstate(all="ignore"):
                    dequantise(tensor).sum()
        text_result = _use_texts(file)
    harness.load_and_step(path)
    return f"ran, texts {text_result}"


def _use_texts(file: GgufFile) -> str:
    try:
        tokenizer = Tokenizer.from_gguf(file)
        ids = tokenizer.encode("the <|end|> é\n", special=True)
        tokenizer.decode(ids)
        template = ChatTemplate.from_gguf(file, tokenizer)
        if template is not None:
            template.render_tokens([{"role": "user", "content": "the <|end|>"}])
    except UltrafastError:
        return "refused"
    return "sound"


def main(arguments: list[str] | None = None) -> int:
    return harness.main(GgufTarget(), arguments)


if __name__ == "__main__":
    sys.exit(main())
