"""FAULTS row 17 by the thousand: see tests/fuzz/fuzz_safetensors.py."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz import fuzz_safetensors


class Undamaged(random.Random):
    """Decides for the case in which nothing is damaged."""

    def choice(self, options):  # type: ignore[no-untyped-def]
        return "nothing" if "nothing" in options else super().choice(options)


def test_the_directories_to_be_damaged_are_sound(tmp_path: Path) -> None:
    target = fuzz_safetensors.SafetensorsTarget()
    target.prepare(tmp_path)
    for seed in range(8):
        path = tmp_path / str(seed)
        target.write_case(path, Undamaged(seed))
        assert target.run_case(path) in ("opened", "ran")


def test_row_17_some_damaged_directories() -> None:
    assert fuzz_safetensors.main(["--cases", "500", "--seed", "2"]) == 0


def test_a_finding_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A case over its time is one: so a finding does fail the run."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert fuzz_safetensors.main(["--cases", "20", "--seconds", "0"]) == 1
    assert list(tmp_path.glob("*case-model"))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 6))
def test_row_17_half_a_million_damaged_directories(seed: int) -> None:
    assert fuzz_safetensors.main(["--cases", "100000", "--seed", str(seed)]) == 0
