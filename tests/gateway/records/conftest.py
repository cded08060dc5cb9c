"""Records in a directory of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ultrafast.gateway.records.store import Records


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def records(directory: Path) -> Iterator[Records]:
    with Records.open(directory) as opened:
        yield opened
