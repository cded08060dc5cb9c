"""The API key: where it comes from, and how a request's is compared with it."""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import secrets
import stat
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from ultrafast.errors import ConfigurationError
from ultrafast.gateway.failures import Headers, HttpError

KEY_VARIABLE = "ULTRAFAST_API_KEY"
KEY_FILE = "api-key"
_KEY_BYTES = 32
_MAXIMUM_KEY_LETTERS = 4096  # what a request's header has room for is far more
_SCHEME = b"bearer "


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key and its origin: ``path`` is the file it is kept in, ``generated`` that nobody has seen it yet."""

    value: str
    path: Path | None = None
    generated: bool = False


def obtain_key(directory: Path, *, terminal: bool) -> ApiKey:
    """The key of ``ULTRAFAST_API_KEY``; else a new one where a terminal shows it; else the one kept in ``directory``.

    The file is readable by its owner only. Raises ConfigurationError for an unusable variable, file or directory.
    """
    value = os.environ.get(KEY_VARIABLE, "")
    if value:
        _check_key(value, KEY_VARIABLE)
        return ApiKey(value)
    if terminal:
        return ApiKey(_new_key(), generated=True)
    return _kept_key(directory / KEY_FILE)


def _new_key() -> str:
    return "uf-" + secrets.token_urlsafe(_KEY_BYTES)


def _check_key(value: str, origin: str) -> None:
    if len(value) > _MAXIMUM_KEY_LETTERS or not value.isascii() or not value.isprintable() or " " in value:
        raise ConfigurationError(
            f"{origin} must hold at most {_MAXIMUM_KEY_LETTERS:,} letters of printable ASCII without spaces"
        )


def _kept_key(path: Path) -> ApiKey:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # The mode is given at creation: the key is never readable by others, not for an instant.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return ApiKey(_read_key(path), path)
        value = _new_key()
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(value + "\n")
    except OSError as error:
        raise ConfigurationError(f"the key file {path} cannot be used: {error.strerror}; set {KEY_VARIABLE}") from error
    return ApiKey(value, path, generated=True)


def _read_key(path: Path) -> str:
    """The key in a file that is checked before a byte of it is read."""
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
        content = file.read(_MAXIMUM_KEY_LETTERS + 2)  # with its line end, and one byte that is too many
    value = content.decode("latin-1").strip("\r\n")
    if not value:
        raise ConfigurationError(f"{path} is empty: remove it")
    _check_key(value, str(path))
    return value


class KeyCheck:
    """Admits requests that present the key. Only its digest is kept, and compared in constant time."""

    def __init__(self, key: str | None) -> None:
        self._digest = None if key is None else hashlib.sha256(key.encode()).digest()

    def check(self, headers: Headers) -> None:
        """Raise HttpError 401 unless exactly one ``Authorization: Bearer`` header has the key."""
        if self._digest is None:  # the operator asked for no key, on a loopback address
            return
        values = [value for name, value in headers if name == b"authorization"]
        if not values:
            raise _unauthorised("no API key was given: send it as 'Authorization: Bearer …'")
        value = values[0]
        presented = value[len(_SCHEME) :].strip() if value[: len(_SCHEME)].lower() == _SCHEME else b""
        if len(values) != 1 or not hmac.compare_digest(hashlib.sha256(presented).digest(), self._digest):
            raise _unauthorised("the API key is not valid")


def _unauthorised(message: str) -> HttpError:
    return HttpError(
        HTTPStatus.UNAUTHORIZED,
        message,
        code="invalid_api_key",
        headers=[(b"www-authenticate", b"Bearer"), (b"x-should-retry", b"false")],
    )
