"""Models of the Hugging Face hub: names like ``hf:ORG/REPO``, what is here of them, and the pull that brings the rest.

Files come to ``models/hf/ORG/REPO`` in the cache. While they are fetched they lie in ``.partial`` near it, under names
made of their hash at the hub, so an interrupted pull goes on where it stopped and never mixes two versions; the file
that makes a model of the others moves last. What the hub says is untrusted: names are judged, sizes and hashes checked.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ultrafast.errors import DownloadError, ModelNotFoundError, UnsupportedModelError, storage_reason
from ultrafast.weights import choice
from ultrafast.weights.cache import ModelLocation, Progress, locked, models_directory
from ultrafast.weights.huggingface import CONFIGURATION_NAME, quantised
from ultrafast.weights.json_text import read_object
from ultrafast.weights.source import shown

if TYPE_CHECKING:
    from ultrafast.weights.transfer import Hub, RemoteFile

PREFIX: Final = "hf:"
HUB_FOLDER: Final = "hf"
PARTIAL_FOLDER: Final = ".partial"

_NAME: Final = re.compile(
    r"hf:(?P<repository>[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})"
    r"(?:/(?P<file>[^\x00-\x1f\\:]{1,400})|:(?P<quantisation>[A-Za-z0-9_]{1,32}))?"
)
_INNER: Final = re.compile(r"(?!\.)[A-Za-z0-9 ._+()=\[\]-]{1,200}(?:/(?!\.)[A-Za-z0-9 ._+()=\[\]-]{1,200}){0,4}")


@dataclass(frozen=True, slots=True)
class HubName:
    """``hf:ORG/REPO``, ``hf:ORG/REPO:QUANTISATION`` or ``hf:ORG/REPO/FILE``."""

    repository: str
    file: str | None
    quantisation: str | None

    @classmethod
    def parse(cls, text: str) -> HubName:
        """Raises ``ModelNotFoundError`` for anything of another form."""
        match = _NAME.fullmatch(text.removesuffix("/"))
        if match is None or (match["file"] and not is_inner_name(match["file"])):
            raise ModelNotFoundError("a model of the hub is named hf:ORG/REPO, hf:ORG/REPO:Q4_K_M or hf:ORG/REPO/FILE")
        return cls(match["repository"], match["file"], match["quantisation"])

    @property
    def directory(self) -> Path:
        """Where its files lie, once they are here."""
        return models_directory() / HUB_FOLDER / self.repository

    @property
    def staging(self) -> Path:
        """Where its files grow."""
        return models_directory() / HUB_FOLDER / PARTIAL_FOLDER / self.repository


def is_inner_name(name: str) -> bool:
    """Whether a name from outside may become a path below a repository's directory."""
    return _INNER.fullmatch(name) is not None


def local_sizes(directory: Path) -> dict[str, int]:
    """The files below a repository's directory, by relative name, with their sizes."""
    sizes = {}
    for parent, _, names in os.walk(directory):
        for name in names:
            path = Path(parent, name)
            relative = path.relative_to(directory).as_posix()
            if is_inner_name(relative) and path.is_file():
                sizes[relative] = path.stat().st_size
    return sizes


def find_local(name: HubName) -> ModelLocation | None:
    """The model of that name, if it is here."""
    sizes = local_sizes(name.directory)
    found = choice.candidates(sizes)
    if not found:
        return None
    try:
        if name.file or name.quantisation:
            chosen = choice.named(found, name.repository, file=name.file, quantisation=name.quantisation)
        else:
            chosen, _ = choice.best(found, sizes, name.repository, memory=None)
    except ModelNotFoundError:
        return None
    return location(name, chosen)


def location(name: HubName, chosen: choice.Candidate) -> ModelLocation:
    """A candidate that is here, ready to be opened."""
    if chosen.is_directory:
        return ModelLocation(name.directory.name, name.directory, chosen.byte_count)
    path = name.directory / chosen.entry
    return ModelLocation(path.stem, path, chosen.byte_count)


def pull(name: HubName, progress: Progress | None) -> ModelLocation:
    """Fetch the model of that name, or what of it is not here or has changed.

    Raises ``ModelNotFoundError``, ``UnsupportedModelError`` or ``DownloadError``; what has arrived is kept for the next
    try, also after an interrupt.
    """
    from ultrafast.weights.transfer import Hub

    models = models_directory()
    try:
        models.mkdir(parents=True, exist_ok=True)
        with locked(models, progress), Hub(name.repository, progress) as hub:
            return _pull(name, hub, progress)
    except OSError as error:
        raise DownloadError(f"cannot store the model in {shown(models)}: {storage_reason(error)}") from error


def _pull(name: HubName, hub: Hub, progress: Progress | None) -> ModelLocation:
    sizes = {file: size for file, size in hub.sizes.items() if is_inner_name(file)}
    found = choice.candidates(sizes)
    if name.file or name.quantisation:
        chosen = choice.named(found, name.repository, file=name.file, quantisation=name.quantisation)
        reason = "as named" if choice.runs(chosen.label) else "as named, though this version cannot run it"
    else:
        chosen, reason = choice.best(found, hub.sizes, name.repository, memory=choice.memory_bytes())
    if chosen.is_directory:
        _judge_configuration(name, hub)
    files = [hub.file(file) for file in chosen.files]
    missing = [file for file in files if not file.is_at(name.directory / file.name)]
    if missing:
        if progress:
            label = chosen.label or ("the directory" if chosen.is_directory else chosen.entry)
            licence = f", {hub.license}" if hub.license else ""
            progress.message(
                f"fetching {label} of {name.repository} ({reason}; {chosen.byte_count / 1e6:.1f} MB{licence}) "
                f"into {name.directory}"
            )
        _fetch(name, hub, missing)
    return location(name, chosen)


def _judge_configuration(name: HubName, hub: Hub) -> None:
    """Refuse what the configuration tells cannot be run, before the weights are fetched."""
    file = hub.file(CONFIGURATION_NAME)
    path = name.directory / CONFIGURATION_NAME
    if not file.is_at(path):
        path = hub.fetch(file, name.staging)
    if scheme := quantised(read_object(path)):
        path.unlink()
        raise UnsupportedModelError(
            f"{name.repository}: its weights are quantised ({scheme}), which is not supported: take a GGUF repository"
        )


def _fetch(name: HubName, hub: Hub, missing: list[RemoteFile]) -> None:
    staging = name.staging
    staging.mkdir(parents=True, exist_ok=True)
    kept = {file.partial_name for file in missing}
    for stale in staging.iterdir():  # of another version, or of another choice
        if stale.name not in kept:
            stale.unlink()
    there = sum(path.stat().st_size for path in staging.iterdir())
    needed, free = sum(file.byte_count for file in missing) - there, shutil.disk_usage(staging).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed >> 20:,} MiB are needed and {free >> 20:,} are free")
    hub.expect(sum(file.byte_count for file in missing))
    arrived = [(hub.fetch(file, staging), file) for file in missing]
    for path, file in arrived:
        target = name.directory / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
    shutil.rmtree(staging, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class HubEntry:
    """What is here of the hub: a model, or what an interrupted pull has left."""

    name: str  # as it is named to `--model` or `models remove`
    byte_count: int
    path: Path
    whole: bool


def list_local() -> list[HubEntry]:
    """What is here of the hub."""
    entries = []
    for directory in sorted((models_directory() / HUB_FOLDER).glob("[!.]*/[!.]*")):
        name = HubName(f"{directory.parent.name}/{directory.name}", None, None)
        for one in choice.candidates(local_sizes(directory)):
            file, place = "" if one.is_directory else f"/{one.entry}", location(name, one)
            entries.append(HubEntry(f"{PREFIX}{name.repository}{file}", place.size_bytes, place.path, True))
    for staging in sorted((models_directory() / HUB_FOLDER / PARTIAL_FOLDER).glob("*/*")):
        size = sum(path.stat().st_size for path in staging.iterdir())
        entries.append(HubEntry(f"{PREFIX}{staging.parent.name}/{staging.name}", size, staging, False))
    return entries


def local_files(name: HubName) -> list[Path]:
    """All files here that belong to that name: a repository's, or only those of one file or quantisation."""
    directory = name.directory
    sizes = local_sizes(directory)
    if name.file or name.quantisation:
        try:
            chosen = choice.named(
                choice.candidates(sizes), name.repository, file=name.file, quantisation=name.quantisation
            )
        except ModelNotFoundError:
            return []
        return [directory / file for file in chosen.files]
    return [path for root in (directory, name.staging) for path in root.rglob("*") if path.is_file()]


def remove_local(name: HubName) -> None:
    """Delete the files of that name, and the folders that this leaves empty."""
    for path in local_files(name):
        path.unlink(missing_ok=True)
    for root in (name.directory, name.staging):
        for folder in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
            _remove_if_empty(folder)
        _remove_if_empty(root)
        _remove_if_empty(root.parent)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
