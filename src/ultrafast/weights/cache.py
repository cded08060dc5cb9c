"""The user's cache of model files: where it is, who may write to it now, and what is found in it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ultrafast.directories import user_directory


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """A model file ready to be opened: the name it goes by, and where it is."""

    name: str
    path: Path
    size_bytes: int


class Progress(Protocol):
    """Hears how a pull goes; called from the thread that pulls."""

    def message(self, text: str) -> None:
        """One line for a person."""

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        """``done_bytes`` of about ``total_bytes`` have arrived."""


def cache_directory() -> Path:
    """The directory of pulled models: ``$ULTRAFAST_CACHE``, else the user's cache directory of this platform."""
    return user_directory(
        os.environ.get("ULTRAFAST_CACHE"),
        variable="ULTRAFAST_CACHE",
        shared="XDG_CACHE_HOME",
        home=".cache",
        apple="Library/Caches",
    )


def models_directory() -> Path:
    """Where model files lie in the cache."""
    return cache_directory() / "models"


@contextmanager
def locked(directory: Path, progress: Progress | None) -> Iterator[None]:
    """Hold the cache alone; says so where another process has to be waited for."""
    with (directory / ".lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress:
                progress.message("waiting for another process that is fetching a model")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file releases the lock
