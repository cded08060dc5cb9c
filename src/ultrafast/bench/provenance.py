"""Where a figure comes from: enough to run it again, and nothing that names the machine's owner or their folders."""

from __future__ import annotations

import hashlib
import os
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

from ultrafast import _native
from ultrafast.bench.machine import Machine, describe_machine
from ultrafast.models import resources

BANDWIDTH_WORKING_SET_BYTES = 512 * 1024**2  # beyond the last-level cache of nearly every machine
BANDWIDTH_SECONDS = 1.0


class ModelFile(msgspec.Struct, frozen=True):
    """The one file that every runtime read."""

    name: str
    size_bytes: int
    sha256: str


class Provenance(msgspec.Struct, frozen=True):
    """The circumstances of one run."""

    started_at: str
    command: str
    ultrafast_version: str
    commit: str | None
    machine: Machine
    load_average: float | None
    read_bandwidth_bytes_per_second: float
    read_bandwidth_threads: int
    model: ModelFile


def gather(command: str, model_name: str, model_path: Path, threads: int) -> Provenance:
    """Describe this run; measures read bandwidth, so nothing else of the benchmark may be running yet."""
    return Provenance(
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        ultrafast_version=version("ultrafast"),
        commit=commit_of(Path(__file__).parent.parent, Path.cwd()),
        machine=describe_machine(),
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        read_bandwidth_bytes_per_second=measure_read_bandwidth(threads),
        read_bandwidth_threads=threads,
        model=ModelFile(model_name, model_path.stat().st_size, sha256_of(model_path)),
    )


def measure_read_bandwidth(threads: int) -> float:
    """Bytes per second that so many threads read from memory together, now."""
    return _native.measure_read_bandwidth(
        threads, resources.pinned_cpus(threads), BANDWIDTH_WORKING_SET_BYTES, BANDWIDTH_SECONDS
    )


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def commit_of(package: Path, working_directory: Path) -> str | None:
    """The commit that the package's code is of, with ``+changes`` where files of its checkout differ from it.

    The package may lie in its checkout, or be installed while the working directory is that checkout: then its Python
    sources must be those of the checkout, or the commit would be another's. ``None`` where neither is so.
    """
    for folder in (package, working_directory):
        top = _git(folder, "rev-parse", "--show-toplevel")
        source = Path(top, "src", package.name)
        if top and source.is_dir() and (source.samefile(package) or _same_sources(source, package)):
            head = _git(folder, "rev-parse", "HEAD")
            # Results are written while a run is under way: they do not make the measured code another one.
            tracked = [":/src", ":/native", ":/CMakeLists.txt", ":/pyproject.toml"]
            changed = _git(folder, "status", "--porcelain", "--", *tracked)
            return f"{head}+changes" if head and changed else head or None
    return None


def _same_sources(first: Path, second: Path) -> bool:
    def content(folder: Path) -> dict[Path, bytes]:
        return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.py")}

    return content(first) == content(second)


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
