"""What machine a figure was measured on, read from the operating system alone. Nothing here identifies its owner."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from ultrafast.errors import ConfigurationError
from ultrafast.models import resources

_CPU_FLAGS_WORTH_NAMING = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8", "asimddp", "i8mm")


class Cache(msgspec.Struct, frozen=True):
    """One cache as the first CPU sees it."""

    level: int
    kind: str
    size_bytes: int
    shared_by_cpus: int


class Machine(msgspec.Struct, frozen=True):
    """The hardware and system under a benchmark."""

    cpu_model: str
    architecture: str
    logical_cpus: int
    usable_cpus: float
    cpu_flags: list[str]
    caches: list[Cache]
    memory_bytes: int
    operating_system: str
    kernel: str
    python: str


def describe_machine() -> Machine:
    """Describe this machine; what cannot be found out is empty or 0, never guessed."""
    cpu_model, flags = _cpu()
    return Machine(
        cpu_model=cpu_model or platform.processor() or platform.machine(),
        architecture=platform.machine(),
        logical_cpus=os.cpu_count() or 0,
        usable_cpus=usable_cpus(),
        cpu_flags=[flag for flag in _CPU_FLAGS_WORTH_NAMING if flag in flags],
        caches=caches(),
        memory_bytes=_memory_bytes(),
        operating_system=_operating_system(),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def check_disk(folder: Path, needed_bytes: int) -> None:
    """Raise ``ConfigurationError`` where the file system of ``folder`` has less than that free."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise ConfigurationError(
            f"the folder for temporary files has {free_bytes / 1e9:.1f} GB free, "
            f"{needed_bytes / 1e9:.1f} GB are needed: make room, or choose another folder with TMPDIR"
        )


def check_memory(needed_bytes: int) -> None:
    """Raise ``ConfigurationError`` where less memory than that can be had."""
    available_bytes = resources.available_memory_bytes()
    if available_bytes < needed_bytes:
        raise ConfigurationError(
            f"{available_bytes / 1e9:.1f} GB of memory are free, {needed_bytes / 1e9:.1f} GB are needed: "
            "end other programs, or leave this part out"
        )


def usable_cpus() -> float:
    """CPUs this process may use: its affinity, or the control group's quota where that is lower."""
    allowed = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    quota = resources.cpu_quota()
    return allowed if quota is None else min(allowed, quota)


def caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> list[Cache]:
    """Data and unified caches of the first CPU, smallest level first (Linux; elsewhere none)."""
    found = []
    for index in sorted(folder.glob("index*")):
        kind = _read(index / "type").lower()
        if kind == "instruction" or not kind:
            continue
        size = _size_bytes(_read(index / "size"))
        shared = len(parse_cpu_list(_read(index / "shared_cpu_list")))
        found.append(Cache(int(_read(index / "level") or 0), kind, size, shared))
    return sorted(found, key=lambda cache: cache.level)


def parse_cpu_list(text: str) -> list[int]:
    """``"0-2,5"`` → ``[0, 1, 2, 5]``, as Linux writes sets of CPUs."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def _size_bytes(text: str) -> int:
    units = {"K": 1024, "M": 1024**2, "G": 1024**3}
    number = text.rstrip("KMG")
    return int(number) * units.get(text[len(number) :], 1) if number.isdigit() else 0


def _cpu() -> tuple[str, set[str]]:
    model, flags = "", set[str]()
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and not model:
            model = value.strip()
        elif key.strip() in {"flags", "Features"} and not flags:
            flags = set(value.split())
    if not model and sys.platform == "darwin":
        model = _output("sysctl", "-n", "machdep.cpu.brand_string")
    return model, flags


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def _operating_system() -> str:
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
