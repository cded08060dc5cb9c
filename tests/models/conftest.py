"""Models for the exactness tests, each loaded once per session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.models.checkpoints import write_directory, write_gguf
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
            loaded[key] = load_model(path, threads=threads, instruction_set=instruction_set)
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


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """checkpoint(case, "directory" or "gguf", weight_type, **changes): the path of a checkpoint, written once."""
    folder = tmp_path_factory.mktemp("checkpoints")
    written: dict[str, Path] = {}

    def get(case: str, form: str, weight_type: str = "F32", **changes: int) -> Path:
        key = f"{case}-{form}-{weight_type}-{sorted(changes.items())}"
        if key not in written:
            path = folder / f"{case}-{weight_type}-{len(written)}{'.gguf' if form == 'gguf' else ''}"
            written[key] = (write_gguf if form == "gguf" else write_directory)(path, case, weight_type, **changes)
        return written[key]

    return get
