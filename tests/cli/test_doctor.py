"""`ultrafast doctor` on this machine and the default model."""

from __future__ import annotations

import json
import os

import pytest

from ultrafast import _native

from .conftest import Ultrafast


def test_json_has_what_is_promised_and_adds_up(ultrafast: Ultrafast) -> None:
    done = ultrafast("doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    assert set(record) == {"machine", "instruction_set", "read_bandwidth", "model", "speed"}
    assert record["machine"]["cpu_model"]
    assert record["instruction_set"]["chosen"] in record["instruction_set"]["available"]
    assert "portable" in record["instruction_set"]["available"]
    model, speed, bandwidth = record["model"], record["speed"], record["read_bandwidth"]
    assert 1 <= model["threads"] <= (os.cpu_count() or 1)
    # Any machine that runs this reads memory faster than a disk and slower than a thousand DIMMs.
    assert 1e8 < bandwidth["memory_bytes_per_second"] < 1e13
    assert model["weight_bytes_per_token"] == pytest.approx(96.5e6, rel=0.01)
    assert model["weight_bytes_per_token"] < speed["bytes_per_token"] < 1.1 * model["weight_bytes_per_token"]
    predicted = bandwidth["model_bytes_per_second"] / speed["bytes_per_token"]
    assert speed["predicted_tokens_per_second"] == pytest.approx(predicted)
    assert speed["share_of_limit"] == pytest.approx(speed["measured_tokens_per_second"] / predicted)
    assert speed["measured_tokens_per_second"] > 0


def test_the_page_fits_a_terminal_and_names_each_finding(ultrafast: Ultrafast) -> None:
    best = _native.instruction_sets()[0]
    done = ultrafast("doctor", "--threads", "1", ULTRAFAST_INSTRUCTION_SET=best)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    names = [line[:18].strip() for line in lines]
    for name in (
        "CPU",
        "Caches",
        "Instruction set",
        "Threads",
        "Huge pages",
        "Read bandwidth",
        "Predicted",
        "Measured",
    ):
        assert name in names
    assert "iB" not in done.stdout, "sizes are decimal, as everywhere else"
    assert f"{best}: forced by ULTRAFAST_INSTRUCTION_SET" in done.stdout
