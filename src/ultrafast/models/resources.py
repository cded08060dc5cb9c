"""What this process may use: processors and memory, as the system and its control groups allow."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import sys
from collections.abc import Collection
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
# Many times the usual slice, and little enough for neighbours that compute, too: they take turns with us by slices.
_SLICE_NANOSECONDS = 20_000_000
_SCHEDULE_CALLS = {"x86_64": 314, "aarch64": 274}  # sched_setattr, for which Python has no name


def allowed_cpus() -> list[int]:
    """The processors this process may run on, one per physical core, in ascending order."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    allowed = sorted(os.sched_getaffinity(0))
    seen: set[str] = set()
    cores = []
    for cpu in allowed:
        siblings = _read(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")) or str(cpu)
        if siblings not in seen:
            seen.add(siblings)
            cores.append(cpu)
    return cores


def default_threads() -> int:
    """One thread per allowed core, no more than the control group's quota of processor time pays for."""
    cores = len(allowed_cpus())
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def pinned_cpus(threads: int) -> list[int]:
    """A processor per thread, or none where there are more threads than cores: then the system places them."""
    cpus = allowed_cpus()
    return cpus[:threads] if threads <= len(cpus) and sys.platform == "linux" else []


def run_on(cpus: Collection[int]) -> None:
    """Keep the calling thread on these processors, where the system lets it: they may be taken away, or it forbid."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cpus)


def compute_in_long_slices() -> None:
    """Have the calling thread, and those it starts, give way to whoever wakes for a moment.

    Linux (from 6.12 on) lets a thread that asks for short slices of time take the processor from one that asks for
    longer ones as soon as it wakes, and all that do not ask have short ones. Otherwise an event of the last step, and
    the client who is to have it, would wait for milliseconds until the next step lets the processor go. Where the
    system knows or allows no such thing, or the operator has chosen another way to schedule this process, nothing
    happens.
    """
    call = _SCHEDULE_CALLS.get(platform.machine())
    if sys.platform != "linux" or call is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    # struct sched_attr: size, policy (the normal one), flags, nice, priority, runtime, deadline, period.
    attributes = struct.pack("=IIQiIQQQ", 48, 0, 0, nice, 0, _SLICE_NANOSECONDS, 0, 0)
    ctypes.CDLL(None).syscall(call, 0, attributes, 0)


def available_memory_bytes() -> int:
    """Memory that can be taken without swapping, within the control group's limit."""
    available = _memory_available()
    limit = _read(_CGROUP / "memory.max") or _read(_CGROUP / "memory/memory.limit_in_bytes")
    used = _read(_CGROUP / "memory.current") or _read(_CGROUP / "memory/memory.usage_in_bytes")
    if limit is not None and used is not None and limit.isdigit() and used.isdigit():
        available = min(available, max(0, int(limit) - int(used)))
    return available


def _memory_available() -> int:
    for line in (_read(Path("/proc/meminfo")) or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def cpu_quota() -> float | None:
    """Processors' worth of time a control group grants, or None without a limit."""
    version_two = (_read(_CGROUP / "cpu.max") or "").split()
    if len(version_two) == 2 and version_two[0].isdigit():
        return int(version_two[0]) / int(version_two[1])
    quota = _read(_CGROUP / "cpu/cpu.cfs_quota_us")
    period = _read(_CGROUP / "cpu/cpu.cfs_period_us")
    if quota is not None and period is not None and int(quota) > 0:
        return int(quota) / int(period)
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
