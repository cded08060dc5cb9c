"""What the process asks of the system's scheduler."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_PROGRAM = """
import ctypes, struct, threading
from ultrafast.models import resources

def slice_of_this_thread():
    buffer = ctypes.create_string_buffer(48)
    if ctypes.CDLL(None).syscall(%d, 0, buffer, 48, 0):
        return -1
    return struct.unpack("=IIQiIQQQ", buffer.raw)[5]

found = [slice_of_this_thread()]
resources.compute_in_long_slices()
found.append(slice_of_this_thread())
thread = threading.Thread(target=lambda: found.append(slice_of_this_thread()))
thread.start()
thread.join()
print(*found)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_threads_of_an_engine_ask_for_long_slices() -> None:
    """Also those started later; a system that tells no slices (Linux before 6.12) has nothing to be asked."""
    get_attributes = 275 if platform.machine() == "aarch64" else 315
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM % get_attributes], capture_output=True, text=True, check=True, timeout=60
    )
    before, after, inherited = map(int, done.stdout.split())
    if before <= 0:
        pytest.skip("this system tells no slices")
    assert before < after == inherited == 20_000_000
