"""A secret in a file or a variable: read only where nobody else could have read or written it, never shown."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from ultrafast.errors import ConfigurationError

MAXIMUM_KEY_LETTERS: Final = 4096


def check_key(value: str, origin: str) -> None:
    """Raise ConfigurationError, which names ``origin`` and not the value, unless it can stand in a header."""
    if len(value) > MAXIMUM_KEY_LETTERS or not value.isascii() or not value.isprintable() or " " in value:
        raise ConfigurationError(
            f"{origin} must hold at most {MAXIMUM_KEY_LETTERS:,} letters of printable ASCII without spaces"
        )


def read_key_file(path: Path) -> str:
    """The key in a file that is checked before a byte of it is read.

    Raises OSError where it cannot be opened, ConfigurationError where it is not the owner's alone or holds no key.
    """
    try:
        # Without blocking: whoever put a pipe here would otherwise hold us for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ConfigurationError(f"{path} is a symbolic link: replace it with the file itself") from None
        raise
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigurationError(f"{path} is not a regular file: remove it")
        if status.st_uid != os.geteuid():
            raise ConfigurationError(f"{path} belongs to another user: remove it")
        if status.st_mode & 0o077:
            raise ConfigurationError(f"{path} can be read by others: chmod 600 or remove it")
        content = file.read(MAXIMUM_KEY_LETTERS + 2)  # with its line end, and one byte that is too many
    value = content.decode("latin-1").strip("\r\n")
    if not value:
        raise ConfigurationError(f"{path} is empty: remove it")
    check_key(value, str(path))
    return value
