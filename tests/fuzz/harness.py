"""Damaged models by the thousand: whatever they hold, they are refused with a typed error or they run.

Anything but a result or an ``UltrafastError`` is a finding: another exception, a case slower than ``--seconds``, or the
death of the process (as under a sanitizer). What a finding was made of is kept, the seed and case are printed, and the
exit code is 1. ``--first`` resumes or replays at a case.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Protocol

import numpy as np

from ultrafast.errors import UltrafastError
from ultrafast.models import WANT_LOGITS, WANT_TOKEN, load_model
from ultrafast.models.sampling import SamplingParameters
from ultrafast.weights.source import ModelSource

PROJECT = Path(__file__).parents[2]
REPORT_EVERY = 2_000
STALL_SECONDS = 120.0
INTERESTING = (
    *(0, 1, 2, 3, 7, 31, 32, 33, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**32),
    *(2**62, 2**63, 2**64 - 1),
)
NON_FINITE = (b"\x00\x00\x80\x7f", b"\x00\x00\xc0\x7f", b"\x00\x7c\x00\xfc", b"\x00\x7e\xff\x7f", b"\xff\xff\x7f\x7f")


class Target(Protocol):
    """One format. ``case_name`` is the file or folder, in the run's directory, that a case is written to."""

    module: str  # to be run with -m
    case_name: str

    def prepare(self, directory: Path) -> None:
        """Make the sound models that the cases damage."""

    def write_case(self, path: Path, source: random.Random) -> None:
        """Write a damaged one, as ``source`` decides; nothing of an earlier case is at ``path``."""

    def run_case(self, path: Path) -> str:
        """Do all that a model is used for; returns how far it came."""


def damage(whole: bytes, source: random.Random, header_bytes: int) -> bytes:
    """``whole`` with one to four mutations, mostly in its header."""
    content = bytearray(whole)
    for _ in range(source.choice((1, 1, 1, 2, 2, 4))):
        in_header = source.random() < 0.85
        place = source.randrange(max(1, min(header_bytes, len(content)) if in_header else len(content)))
        kind = source.randrange(10)
        if kind < 2:
            content[place : place + 1] = bytes([source.randrange(256)])
        elif kind == 2 and place < len(content):
            content[place] ^= 1 << source.randrange(8)
        elif kind < 6:
            value = source.choice(INTERESTING) + source.choice((0, 0, 0, -1, 1))
            size = source.choice((4, 4, 8))
            packed = struct.pack("<Q", value % 2**64)[:size]
            content[place : place + size] = packed
        elif kind == 6:
            del content[source.choice((place, place, len(content) // 2)) :]
        elif kind == 7:
            start = source.randrange(max(1, len(content)))
            content[place:place] = content[start : start + source.randrange(64)]
        elif kind == 8:
            del content[place : place + source.randrange(1, 64)]
        else:
            place = source.randrange(min(header_bytes, len(content)), len(content) + 1)
            content[place : place + 4] = source.choice(NON_FINITE)
    return bytes(content)


def check_views(model: ModelSource) -> None:
    """Each tensor's view is of its size, and all of it can be read."""
    for tensor in model.tensors.values():
        if tensor.data.size != tensor.byte_count:
            raise AssertionError("a tensor's view is not of its size")
        int(tensor.data.sum(dtype=np.uint64))


def load_and_step(path: Path) -> None:
    """Load the model and run one step of three rows."""
    model = load_model(path, threads=1, context=32, memory_budget_bytes=1 << 20)
    try:
        model.bind(0, np.zeros(1, np.int32), SamplingParameters(seed=1), 3, 0)
        rows = np.arange(3, dtype=np.int32)
        tokens = (rows * 7) % model.configuration.vocabulary_size
        want = np.array([0, 0, WANT_TOKEN | WANT_LOGITS], np.uint8)
        result = model.step(tokens.astype(np.int32), rows, np.zeros(3, np.int32), rows - 1, want)
        if not len(result.failed_sequences) and not np.isfinite(result.logits).all():
            raise AssertionError("non-finite logits of a sequence that did not fail")
    finally:
        model.close()


def clear(path: Path) -> None:
    """Remove an earlier case; its mappings keep their own files."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def work(target: Target, options: argparse.Namespace, directory: Path) -> int:
    """The cases, in this process; the number of the one under way is always in the file ``case``."""
    target.prepare(directory)
    path = directory / target.case_name
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    with (directory / "case").open("wb", buffering=0) as current:
        for case in range(options.first, options.cases):
            clear(path)
            target.write_case(path, random.Random(f"{options.seed}/{case}"))
            current.seek(0)
            current.write(b"%12d" % case)
            started = time.process_time()
            try:
                outcome = target.run_case(path)
            except UltrafastError as error:
                outcome = type(error).__name__
                if not str(error).isprintable():
                    print(f"finding: an unprintable message in case {case}", flush=True)
                    return 1
            except BaseException:
                traceback.print_exc()
                return 1
            slowest = max(slowest, time.process_time() - started)
            if slowest > options.seconds:
                print(f"finding: case {case} took {slowest:.1f} s of processor time", flush=True)
                return 1
            outcomes[outcome] += 1
            if (case + 1) % REPORT_EVERY == 0:
                print(f"{case + 1:,} cases, slowest {slowest:.2f} s", flush=True)
    for outcome, count in outcomes.most_common():
        print(f"{count:10,} {outcome}")
    print(f"{sum(outcomes.values()):10,} cases, no finding; slowest {slowest:.2f} s of processor time", flush=True)
    return 0


def supervise(target: Target, options: argparse.Namespace, directory: Path) -> int:
    """Run ``work`` in a process of its own, so that its death or standstill is a finding and not the end."""
    arguments = [f"--{name}={getattr(options, name)}" for name in ("cases", "seed", "first", "seconds")]
    command = [sys.executable, "-m", target.module, *arguments, "--worker", str(directory)]
    # Small objects of Python are not what is tested, and with its own allocator a case under a sanitizer takes half the
    # time. Arrays and larger bytes come from malloc all the same.
    worker = subprocess.Popen(command, cwd=PROJECT, env=os.environ | {"PYTHONMALLOC": "pymalloc"})
    case_file = directory / "case"
    last, since = b"", time.monotonic()
    stalled = False
    try:
        while worker.poll() is None:
            time.sleep(0.2)
            now = case_file.read_bytes() if case_file.exists() else b""
            if now != last:
                last, since = now, time.monotonic()
            stalled = time.monotonic() - since > STALL_SECONDS
            if stalled:
                worker.kill()
                worker.wait()
    finally:
        worker.kill()
        worker.wait()
    if worker.returncode == 0:
        return 0
    case = int(case_file.read_bytes() or b"0")
    kept = Path(tempfile.gettempdir()) / f"ultrafast-fuzz-{options.seed}-{case}-{target.case_name}"
    clear(kept)
    shutil.move(directory / target.case_name, kept)
    death = signal.Signals(-worker.returncode).name if worker.returncode < 0 else f"exit code {worker.returncode}"
    print(f"FINDING: seed {options.seed}, case {case} ({'standstill' if stalled else death}); it is kept as {kept}")
    print(f"replay: python -m {target.module} --seed {options.seed} --first {case} --cases {case + 1}")
    return 1


def main(target: Target, arguments: list[str] | None = None) -> int:
    """The command line of a target."""
    parser = argparse.ArgumentParser(description="Fuzz the reading of models.")
    parser.add_argument("--cases", type=int, default=100_000, help="where to end")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="case to begin with")
    parser.add_argument("--seconds", type=float, default=30.0, help="processor time one case may take")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        return work(target, options, options.worker)
    with tempfile.TemporaryDirectory(prefix="ultrafast-fuzz-") as directory:
        return supervise(target, options, Path(directory))
