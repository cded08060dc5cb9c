"""The data directory: where it is, who may use it, and the lock that keeps a second server out."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import Final

from ultrafast.directories import user_directory
from ultrafast.errors import ConfigurationError, storage_reason

DATA_VARIABLE: Final = "ULTRAFAST_DATA"
DATABASE_FILE: Final = "ultrafast.db"
SOCKET_FILE: Final = "admin.sock"
_LOCK_FILE: Final = "ultrafast.lock"
_ELSEWHERE: Final = f"choose another with --data-directory, {DATA_VARIABLE} or data_directory in the configuration"


class DirectoryInUseError(ConfigurationError):
    """Another process holds the data directory."""


def data_directory(configured: str | None = None) -> Path:
    """The data directory: ``configured``, else ``$ULTRAFAST_DATA``, else the user's data directory of this platform.

    Raises ConfigurationError where there is none of these.
    """
    return user_directory(
        configured or os.environ.get(DATA_VARIABLE),
        variable=DATA_VARIABLE,
        shared="XDG_DATA_HOME",
        home=".local/share",
        apple="Library/Application Support",
    )


def is_used(directory: Path) -> bool:
    """Whether a server or a command has kept anything there, or is about to."""
    return any((directory / name).exists() for name in (DATABASE_FILE, _LOCK_FILE))


def unusable(path: Path, reason: str) -> ConfigurationError:
    """The error for a file of the data directory, or the directory itself, that cannot be used."""
    return ConfigurationError(f"{path} cannot be used: {reason}; mend the data directory, or {_ELSEWHERE}")


class DirectoryLock:
    """Holds a data directory, which it makes where it is missing, for this process alone until ``close``."""

    def __init__(self, directory: Path) -> None:
        """Raises DirectoryInUseError where another process holds it, ConfigurationError where it cannot be used."""
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            directory.mkdir(mode=0o700, exist_ok=True)
            _check_directory(directory)
            self._descriptor = own_file(directory / _LOCK_FILE)
        except OSError as error:
            raise unusable(directory, storage_reason(error)) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            if isinstance(error, BlockingIOError):
                raise DirectoryInUseError(
                    f"another ultrafast server or command is using the data directory {directory}: stop it, or "
                    f"{_ELSEWHERE}"
                ) from None
            raise unusable(directory, storage_reason(error)) from None

    def close(self) -> None:
        """Let others have it; safe twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)  # which releases the lock
            self._descriptor = -1


def _check_directory(directory: Path) -> None:
    status = directory.stat()
    if status.st_uid != os.geteuid():
        raise unusable(directory, "it belongs to another user")
    if status.st_mode & 0o022:
        raise unusable(directory, "others may write to it (chmod 700 ends that)")


def own_file(path: Path) -> int:
    """A descriptor of the file, made where it is missing and readable by its owner alone from its first instant.

    Raises OSError, or ConfigurationError for what is no regular file or belongs to another user.
    """
    # Without blocking: whoever put a pipe here would otherwise hold us for ever.
    flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise unusable(path, "it is no regular file of this user's")
    os.fchmod(descriptor, 0o600)
    return descriptor
