"""The API key: where it comes from, and how a request's is compared with it."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from ultrafast.backends.key_file import check_key, read_key_file
from ultrafast.errors import ConfigurationError
from ultrafast.gateway.failures import Headers, HttpError
from ultrafast.gateway.records.projects import Identity
from ultrafast.gateway.records.store import Records

KEY_VARIABLE = "ULTRAFAST_API_KEY"
KEY_FILE = "api-key"
_KEY_BYTES = 32
_SCHEME = b"bearer "
IDENTITY = "ultrafast.identity"  # where a scope holds whose request it is
NO_KEY = ""  # the key's id where none was asked for


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
        check_key(value, KEY_VARIABLE)
        return ApiKey(value)
    if terminal:
        return ApiKey(_new_key(), generated=True)
    return _kept_key(directory / KEY_FILE)


def _new_key() -> str:
    return "uf-" + secrets.token_urlsafe(_KEY_BYTES)


def _kept_key(path: Path) -> ApiKey:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # The mode is given at creation: the key is never readable by others, not for an instant.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return ApiKey(read_key_file(path), path)
        value = _new_key()
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(value + "\n")
    except OSError as error:
        raise ConfigurationError(f"the key file {path} cannot be used: {error.strerror}; set {KEY_VARIABLE}") from error
    return ApiKey(value, path, generated=True)


class KeyCheck:
    """Admits requests that present the one key. Only its digest is kept, and compared in constant time."""

    def __init__(self, key: str | None) -> None:
        self._digest = None if key is None else hashlib.sha256(key.encode()).digest()

    def check(self, headers: Headers) -> None:
        """Raise HttpError 401 unless the key is presented; without one, nothing is asked for."""
        if self._digest is None:
            return
        if not hmac.compare_digest(hashlib.sha256(_presented_key(headers)).digest(), self._digest):
            raise _unauthorised("the API key is not valid")


class IdentityCheck:
    """Whose request it is, by the key it presents; ``required`` False: everybody's is the first project's."""

    def __init__(self, records: Records, *, required: bool) -> None:
        self._records = records
        self._required = required

    def check(self, headers: Headers) -> Identity:
        """The owner of the key. Raises HttpError 401 for a key that is missing, unknown or revoked."""
        if not self._required:  # the operator asked for no key, on a loopback address
            return Identity(self._records.projects()[0], NO_KEY)
        identity = self._records.identify(_presented_key(headers))
        if identity is None:
            raise _unauthorised("the API key is not valid")
        return identity


def _presented_key(headers: Headers) -> bytes:
    """The key of the one ``Authorization: Bearer`` header."""
    values = [value for name, value in headers if name == b"authorization"]
    if not values:
        raise _unauthorised("no API key was given: send it as 'Authorization: Bearer …'")
    if len(values) != 1 or values[0][: len(_SCHEME)].lower() != _SCHEME:
        raise _unauthorised("the API key is not valid")
    return values[0][len(_SCHEME) :].strip()


def _unauthorised(message: str) -> HttpError:
    return HttpError(
        HTTPStatus.UNAUTHORIZED,
        message,
        code="invalid_api_key",
        headers=[(b"www-authenticate", b"Bearer"), (b"x-should-retry", b"false")],
    )
