"""The real default model in this process, shared by the tests of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ultrafast.models import LoadedModel, load_model


@pytest.fixture(scope="session")
def model(model_path: Path) -> Iterator[LoadedModel]:
    loaded = load_model(model_path, context=512)
    yield loaded
    loaded.close()
