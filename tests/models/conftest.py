"""Models for the exactness tests, each loaded once per session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.models.tiny import TinyShape, write_tiny_model
from ultrafast.models import LoadedModel, load_model

Load = Callable[..., LoadedModel]


@pytest.fixture(scope="session")
def load() -> Iterator[Load]:
    """load(path, threads=…, instruction_set=…): loads once per combination, closes all at the end."""
    loaded: dict[tuple[Path, int, str | None], LoadedModel] = {}

    def get(path: Path, *, threads: int = 2, instruction_set: str | None = None) -> LoadedModel:
        key = (path, threads, instruction_set)
        if key not in loaded:
            loaded[key] = load_model(path, threads=threads, instruction_set=instruction_set, context=512)
        return loaded[key]

    yield get
    for model in loaded.values():
        model.close()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """tiny(weight_type, shape): the path of a small model file, written once."""
    folder = tmp_path_factory.mktemp("tiny")
    written: dict[tuple[str, TinyShape], Path] = {}

    def get(weight_type: str, shape: TinyShape | None = None) -> Path:
        key = (weight_type, shape or TinyShape())
        if key not in written:
            written[key] = write_tiny_model(folder / f"{weight_type}-{len(written)}.gguf", *key)
        return written[key]

    return get
