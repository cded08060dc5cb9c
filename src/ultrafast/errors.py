"""The one tree of errors.

UltrafastError
├── RequestError                 the caller's request is at fault (HTTP 4xx)
│   ├── ContextLengthError       prompt, or prompt plus answer, beyond the context
│   └── NotFoundError            an unknown model or route
├── ModelError                   a model cannot be had or used
│   ├── ModelNotFoundError       no such name or file
│   ├── ModelFileError           the file is damaged, hostile or truncated
│   ├── UnsupportedModelError    a sound file of a kind this version cannot run
│   └── DownloadError            fetching failed; nothing half-written is left
├── ConfigurationError           an option, variable or environment is wrong
└── EngineError                  the engine could not finish a request (HTTP 5xx)
    ├── EngineUnavailableError   starting, restarting or draining; worth a retry
    ├── UpstreamError            another server, to which the request was sent on, failed (HTTP 502)
    ├── CacheFullError           the KV cache has no room
    └── NonFiniteError           the model produced NaN or infinity
"""

from __future__ import annotations

import errno
from http import HTTPStatus


class UltrafastError(Exception):
    """Base of every error this package raises on purpose; its text is one line for a person."""

    exit_code = 1


class RequestError(UltrafastError):
    """A request that cannot be served as asked.

    ``param`` names the offending field and ``code`` is OpenAI's machine-readable code. The message never
    repeats a hostile value.
    """

    status: int = HTTPStatus.BAD_REQUEST
    type = "invalid_request_error"
    default_code = "invalid_value"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code


class ContextLengthError(RequestError):
    """The prompt, or the prompt with the requested answer, does not fit the context."""

    default_code = "context_length_exceeded"


class NotFoundError(RequestError):
    """An unknown model or route."""

    status = HTTPStatus.NOT_FOUND
    default_code = "not_found"


class ModelError(UltrafastError):
    """A model cannot be had or used."""


class ModelNotFoundError(ModelError):
    """No known model has this name and no file has this path."""


class ModelFileError(ModelError):
    """The file is damaged, hostile or truncated."""


class UnsupportedModelError(ModelError):
    """A sound file whose architecture or tensor types this version cannot run."""


class DownloadError(ModelError):
    """Fetching a model failed."""


class ConfigurationError(UltrafastError):
    """An option, an environment variable or the environment itself is wrong."""

    exit_code = 2


class EngineError(UltrafastError):
    """The engine could not finish a request."""

    status: int = HTTPStatus.INTERNAL_SERVER_ERROR
    code = "engine_error"


class EngineUnavailableError(EngineError):
    """The engine is starting, restarting or draining; a retry is worth while.

    ``retry_after_seconds`` is set where it is known when: another server said so. ``note`` is the reason in words for
    the operator, where a client is told less.
    """

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "server_is_overloaded"

    def __init__(self, message: str, *, retry_after_seconds: float | None = None, note: str | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.note = note


class UpstreamError(EngineError):
    """Another server, to which the request was sent on, failed."""

    status = HTTPStatus.BAD_GATEWAY
    code = "upstream_error"


class CacheFullError(EngineError):
    """The KV cache has no room for this sequence."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "server_is_overloaded"


class NonFiniteError(EngineError):
    """The model produced NaN or infinity; only the sequence concerned is ended."""

    code = "non_finite_activation"


def storage_reason(error: OSError) -> str:
    """Why storing failed, in words for a person."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full" + (f" ({error.strerror})" if "needed" in (error.strerror or "") else "")
    return error.strerror or type(error).__name__
