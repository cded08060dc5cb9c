"""Every refusal and failure in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import random
from http import HTTPStatus

import msgspec

from ultrafast.errors import EngineError, EngineUnavailableError, RequestError, UltrafastError

# Where many clients are refused at once, the spread keeps them from all coming back at once.
RETRY_MILLISECONDS = (500, 1500)

_SHOULD_RETRY = b"x-should-retry"
SHOULD_NOT_RETRY = (_SHOULD_RETRY, b"false")

Headers = list[tuple[bytes, bytes]]


class HttpError(RequestError):
    """A refusal of the HTTP layer, with its own status."""

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Headers | None = None,
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status
        self.headers = headers or []
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            self.type = "rate_limit_error"


class ErrorDetail(msgspec.Struct, frozen=True):
    """The inner object."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The outer object."""

    error: ErrorDetail


def status_of(error: UltrafastError) -> int:
    """The HTTP status of ``error``."""
    if isinstance(error, RequestError | EngineError):
        return int(error.status)
    return HTTPStatus.INTERNAL_SERVER_ERROR


def code_of(error: UltrafastError) -> str:
    """What happened in one word, for logs and the ledger."""
    return error.code if isinstance(error, RequestError | EngineError) else EngineError.code


def body_of(error: UltrafastError) -> bytes:
    """The JSON body of ``error``."""
    if isinstance(error, RequestError):
        detail = ErrorDetail(error.message, error.type, error.param, error.code)
    elif isinstance(error, EngineError):
        kind = "service_unavailable_error" if error.status == HTTPStatus.SERVICE_UNAVAILABLE else "server_error"
        detail = ErrorDetail(str(error), kind, None, error.code)
    else:
        detail = ErrorDetail(str(error), "server_error", None, None)
    return msgspec.json.encode(ErrorBody(detail))


def headers_of(error: UltrafastError) -> Headers:
    """Extra headers of ``error``: how and whether to retry."""
    own = error.headers if isinstance(error, HttpError) else []
    if any(name == _SHOULD_RETRY for name, _ in own):
        return own
    status = status_of(error)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        known = error.retry_after_seconds if isinstance(error, EngineUnavailableError) else None
        return own + retry_headers(known or 0.0)
    is_passing = status == HTTPStatus.REQUEST_TIMEOUT or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return [*own, (_SHOULD_RETRY, b"true" if is_passing else b"false")]


def retry_headers(seconds: float = 0.0) -> Headers:
    """That a retry is worth while, not before ``seconds``."""
    milliseconds = int(seconds * 1000) + random.randint(*RETRY_MILLISECONDS)  # noqa: S311 - jitter, no secret
    return [
        (b"retry-after-ms", str(milliseconds).encode()),
        (b"retry-after", str(-(-milliseconds // 1000)).encode()),
        (_SHOULD_RETRY, b"true"),
    ]
