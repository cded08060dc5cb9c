"""One benchmark at a time on a machine: two would measure each other."""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ultrafast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the lock in ``folder``, or raise ``ConfigurationError`` where another benchmark holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise ConfigurationError(f"the cache directory cannot be used: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigurationError("another benchmark is running on this machine") from None
        yield
