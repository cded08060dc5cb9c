"""Fixtures that every part of the tests shares: the real default model, opened once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ultrafast.tokens.tokenizer import Tokenizer
from ultrafast.weights.gguf import GgufFile, open_gguf
from ultrafast.weights.store import resolve_model


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model's file; pulled first where the cache does not hold it."""
    return resolve_model(None).path


@pytest.fixture(scope="session")
def gguf_file(model_path: Path) -> Iterator[GgufFile]:
    with open_gguf(model_path) as file:
        yield file


@pytest.fixture(scope="session")
def tokenizer(gguf_file: GgufFile) -> Tokenizer:
    return Tokenizer.from_gguf(gguf_file)
