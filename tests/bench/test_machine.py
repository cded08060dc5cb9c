from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.bench.machine import Cache, Machine, caches, describe_machine, parse_cpu_list, usable_cpus
from ultrafast.models import resources


def test_this_machine_is_described_and_survives_json() -> None:
    machine = describe_machine()
    assert machine.cpu_model
    assert machine.logical_cpus == os.cpu_count()
    assert 0 < machine.usable_cpus <= machine.logical_cpus
    assert machine.memory_bytes > 1 << 28
    assert machine.kernel
    assert msgspec.json.decode(msgspec.json.encode(machine), type=Machine) == machine


def test_nothing_of_the_owner_is_recorded() -> None:
    record = msgspec.json.encode(describe_machine()).decode()
    assert os.uname().nodename not in {word for value in record.split('"') for word in value.split()}
    assert str(Path.home()) not in record


@pytest.mark.parametrize(("quota", "expected"), [(None, 2), (0.5, 0.5), (64, 2)])
def test_the_quota_of_a_control_group_counts_only_where_it_is_lower(
    quota: float | None, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 7}, raising=False)
    monkeypatch.setattr(resources, "cpu_quota", lambda: quota)
    assert usable_cpus() == expected


def test_caches_are_read_as_linux_lists_them(tmp_path: Path) -> None:
    listing = [("1", "Data", "32K", "0"), ("1", "Instruction", "32K", "0"), ("3", "Unified", "32M", "0-3,8-11")]
    for index, (level, kind, size, shared) in enumerate(listing):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in [("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)]:
            (folder / name).write_text(text + "\n")
    assert caches(tmp_path) == [Cache(1, "data", 32 << 10, 1), Cache(3, "unified", 32 << 20, 8)]
    assert caches(tmp_path / "absent") == []


@given(st.sets(st.integers(0, 300), min_size=1))
def test_a_cpu_list_names_exactly_its_cpus(cpus: set[int]) -> None:
    ordered = sorted(cpus)
    ranges: list[tuple[int, int]] = []
    for cpu in ordered:
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1] = (ranges[-1][0], cpu)
        else:
            ranges.append((cpu, cpu))
    text = ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in ranges)
    assert parse_cpu_list(text + "\n") == ordered
