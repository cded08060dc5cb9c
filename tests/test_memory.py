"""What the server does to its own memory once everything is there."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from ultrafast import memory

MAPS = """\
55d0c0000000-55d0c0a00000 rw-p 00000000 00:00 0                          [heap]
7f0000100000-7f0000700000 rw-p 00000000 00:00 0
7f0001000000-7f0001400000 rw-p 00000000 fe:00 4242                       /usr/lib/lib with a space.so
7f0002000000-7f0002400000 r--p 00000000 00:00 0
7f0003000000-7f00031ff000 rw-p 00000000 00:00 0
7ffc00000000-7ffc00800000 rw-p 00000000 00:00 0                          [stack]
"""


def test_whole_huge_pages_of_anonymous_memory() -> None:
    assert list(memory._writable_regions(MAPS)) == [
        (0x55D0C0000000, 0x55D0C0A00000),
        (0x7F0000200000, 0x7F0000600000),
    ]


def test_memory_keeps_its_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [bytes([index % 251]) * 4096 for index in range(4096)]
    monkeypatch.setattr(gc, "freeze", lambda: None)  # of the tests' own process
    memory.settle()
    assert values == [bytes([index % 251]) * 4096 for index in range(4096)]


def test_a_system_without_the_list_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(memory, "_MAPS", tmp_path / "none")
    memory.settle()


def test_a_native_object_in_a_cycle_ends_with_its_process() -> None:
    """Frozen cycles are not collected at the interpreter's end, and nanobind then prints what it calls leaks."""
    script = """
import numpy
from ultrafast import _native, memory

class Holder:
    pass

holder = Holder()
holder.itself = holder
scores, types = numpy.zeros(2, numpy.float32), numpy.array([2, 1], numpy.int32)
holder.native = _native.SentencePiece(texts=["u", "a"], scores=scores, types=types, unknown=0)
memory.settle()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
