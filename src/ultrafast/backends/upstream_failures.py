"""What another server's refusals mean here: whose fault, whether to come again, and what may be told to whom."""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import msgspec

from ultrafast.errors import EngineUnavailableError, RequestError, UltrafastError, UpstreamError

MAXIMUM_ERROR_BYTES: Final = 1 << 16
_MAXIMUM_MESSAGE_LETTERS: Final = 500

# The client's own request is at fault; its words may be told to the client.
_CLIENT_STATUSES: Final = frozenset({400, 413, 422})
# Full, by its own account; 498 is Groq's for flex.
_CAPACITY_STATUSES: Final = frozenset({429, 498, 503, 529})
# What is in the configuration, not in a client's request.
_OUR_FIELDS: Final = frozenset({"model", "service_tier", "stream", "stream_options"})
_WORD: Final = re.compile(r"[A-Za-z0-9_.\[\]-]{1,100}")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A response that is no answer: the error for the caller, and what follows for the backend."""

    error: UltrafastError
    note: str  # for the operator: no word of the other server's
    healthy: bool = False  # the server did its duty: the request is at fault
    retry_after_seconds: float | None = None


def refusal_of(status: int, headers: Mapping[str, str], body: bytes, *, secret: str | None) -> Refusal:
    """What the response with ``status`` means. Nothing of its headers, and never ``secret``, is told to a client."""
    retry_after = _retry_after_seconds(headers)
    note = f"status {status}"
    detail = _inner(body)
    if status in _CLIENT_STATUSES:
        error = request_error(detail, secret=secret)
        if error is not None:
            return Refusal(error, note, healthy=True)
    if status in _CAPACITY_STATUSES:
        return Refusal(capacity_error(retry_after), note + ": at capacity", retry_after_seconds=retry_after)
    mistake = _mistake(status, detail)
    if mistake is not None:
        refused = UpstreamError("the server behind this model refuses this server: its operator must look at the log")
        return Refusal(refused, f"{note}: {mistake}", retry_after_seconds=retry_after)
    return Refusal(UpstreamError("the server behind this model failed"), note, retry_after_seconds=retry_after)


def capacity_error(retry_after_seconds: float | None = None, *, note: str | None = None) -> EngineUnavailableError:
    """The other server is full, or was so a moment ago."""
    return EngineUnavailableError(
        "the server behind this model is at capacity or not available",
        retry_after_seconds=retry_after_seconds,
        note=note,
    )


def _mistake(status: int, detail: dict[str, Any]) -> str | None:
    """What seems wrong in the configuration where the other server refuses what it says; None where nothing does."""
    if _is_model_unknown(status, detail):
        return 'it knows no model by the name that "model" of this backend says in the configuration'
    if status in _CLIENT_STATUSES:
        return "it refuses what the configuration sends (its words for tiers?)"
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PAYMENT_REQUIRED):
        return "it does not accept the key"
    if status < 500 and status not in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY):
        return "is its url right?"
    return None


def _is_model_unknown(status: int, detail: dict[str, Any]) -> bool:
    """By OpenAI's code or param, else, as of vLLM and Ollama, by the message of a 404."""
    if status not in (*_CLIENT_STATUSES, HTTPStatus.NOT_FOUND):
        return False
    if detail.get("code") == "model_not_found" or detail.get("param") == "model":
        return True
    message = detail.get("message")
    return status == HTTPStatus.NOT_FOUND and isinstance(message, str) and "model" in message.lower()


def request_error(detail: dict[str, Any], *, secret: str | None) -> RequestError | None:
    """The client's error with the other server's words, bounded; None where a field of ours is at fault."""
    param = _word(detail.get("param"))
    code = _word(detail.get("code"))
    if param in _OUR_FIELDS or code in ("model_not_found", "invalid_api_key"):
        return None
    message = detail.get("message")
    text = " ".join(message.split()) if isinstance(message, str) else ""
    text = "".join(letter for letter in text if letter.isprintable())
    if not text or (secret is not None and secret in text):
        text = "the server behind this model refuses the request"
    if len(text) > _MAXIMUM_MESSAGE_LETTERS:
        text = text[:_MAXIMUM_MESSAGE_LETTERS] + "…"
    return RequestError(text, param=param, code=code)


def stream_refusal(error: object, *, secret: str | None) -> Refusal:
    """What an error means that came as an event of the stream."""
    detail = _object(error)
    if detail.get("code") in (400, 413, 422) or detail.get("type") in ("invalid_request_error", "BadRequestError"):
        fault = request_error(detail, secret=secret)
        if fault is not None:
            return Refusal(fault, "an error in its stream", healthy=True)
    return Refusal(UpstreamError("the server behind this model failed"), "an error in its stream")


def _inner(body: bytes) -> dict[str, Any]:
    """The error object; some servers send it without its wrapper."""
    try:
        outer = _object(msgspec.json.decode(body))
    except (ValueError, RecursionError):
        return {}
    return _object(outer["error"]) if "error" in outer else outer


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and _WORD.fullmatch(value) else None


def _retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """OpenAI's ``retry-after-ms``, else ``retry-after`` in seconds or as a date."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name, "")
        if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", value):
            return float(value) / unit
    try:
        moment = email.utils.parsedate_to_datetime(headers.get("retry-after", "")).timestamp()
    except (ValueError, OverflowError, TypeError):
        return None
    return max(0.0, moment - time.time()) if math.isfinite(moment) else None
