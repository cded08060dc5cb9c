"""FAULTS row 16 by the thousand: see tests/fuzz/fuzz_gguf.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.fuzz import fuzz_gguf
from tests.fuzz.models import TYPES, write_all
from ultrafast.reference.decoder import ReferenceModel
from ultrafast.weights.gguf import open_gguf


def test_the_files_to_be_damaged_are_sound(tmp_path: Path) -> None:
    for path, type_name in zip(write_all(tmp_path), TYPES, strict=True):
        assert fuzz_gguf.run_case(path) == "ran, texts sound", type_name
        with open_gguf(path) as file:
            assert np.isfinite(ReferenceModel.from_source(file).logits([1, 2, 3])).all()


def test_row_16_some_damaged_files() -> None:
    assert fuzz_gguf.main(["--cases", "500", "--seed", "2"]) == 0


def test_a_finding_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A case over its time is one: so a finding does fail the run."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert fuzz_gguf.main(["--cases", "20", "--seconds", "0"]) == 1
    assert list(tmp_path.glob("*.gguf"))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 6))
def test_row_16_half_a_million_damaged_files(seed: int) -> None:
    assert fuzz_gguf.main(["--cases", "100000", "--seed", str(seed)]) == 0
