"""What the process asks of the system's scheduler."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

GET_ATTRIBUTES = {"x86_64": 315, "aarch64": 275}.get(platform.machine())
SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}.get(platform.machine())
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or GET_ATTRIBUTES is None, reason="only Linux on x86-64 and ARM64 is asked"
)

# Prints the policy and the slice, before and after and of a thread started then; or why this system cannot be asked.
PROGRAM = f"""
import ctypes, os, struct, sys, threading
from ultrafast.models import resources

libc = ctypes.CDLL(None)
buffer = ctypes.create_string_buffer(48)

def look():
    assert libc.syscall({GET_ATTRIBUTES}, 0, buffer, 48, 0) == 0
    return struct.unpack("=IIQiIQQQ", buffer.raw)[5]

if libc.syscall({GET_ATTRIBUTES}, 0, buffer, 48, 0) or libc.syscall({SET_ATTRIBUTES}, 0, buffer, 0):
    sys.exit("forbidden")
if len(sys.argv) > 1:
    os.sched_setscheduler(0, int(sys.argv[1]), os.sched_param(0))
found = [look()]
resources.compute_in_long_slices()
found.append(look())
thread = threading.Thread(target=lambda: found.append(look()))
thread.start()
thread.join()
print(os.sched_getscheduler(0), *found)
"""


def run(*arguments: str) -> tuple[int, int, int, int]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.stderr.strip() == "forbidden":
        pytest.skip("this system forbids to ask its scheduler")
    assert done.returncode == 0, done.stderr
    policy, before, after, inherited = map(int, done.stdout.split())
    return policy, before, after, inherited


def test_threads_of_an_engine_ask_for_long_slices() -> None:
    policy, before, after, inherited = run()
    assert policy == os.SCHED_OTHER
    if before == 0:
        assert after == inherited == 0
        pytest.skip("this system tells no slices (Linux before 6.12)")
    assert before < after == inherited == 20_000_000


def test_another_policy_is_left_as_it_is() -> None:
    policy, before, after, inherited = run(str(os.SCHED_BATCH))
    assert policy == os.SCHED_BATCH
    assert before == after == inherited
