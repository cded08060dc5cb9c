"""What another server's refusals mean, by the status, the headers and the words of those that people have."""

from __future__ import annotations

import email.utils
import json
import time
from typing import Any

import pytest

from tests.backends.test_upstream import KEY
from ultrafast.backends.upstream_failures import refusal_of
from ultrafast.errors import EngineUnavailableError, RequestError, UpstreamError


@pytest.mark.parametrize(
    ("status", "body", "is_model"),
    [
        # OpenAI's words, vLLM's and Ollama's; then those of the same three for an address that is wrong.
        (404, {"error": {"message": "it does not exist", "param": None, "code": "model_not_found"}}, True),
        (400, {"error": {"message": "invalid model ID", "param": "model", "code": None}}, True),
        (404, {"object": "error", "message": "The model `x` does not exist.", "param": None, "code": 404}, True),
        (404, {"error": {"message": 'model "x" not found, try pulling it first', "code": None}}, True),
        (404, {"error": {"message": "Invalid URL (POST /chat/completions)", "param": None, "code": None}}, False),
        (404, {"detail": "Not Found"}, False),
        (404, [], False),
    ],
)
def test_a_model_that_is_not_known_there_is_told_from_a_wrong_address(
    status: int, body: object, is_model: bool
) -> None:
    refusal = refusal_of(status, {}, json.dumps(body).encode(), secret=None)
    assert isinstance(refusal.error, UpstreamError)
    assert refusal.note == f"status {status}: " + (
        'it knows no model by the name that "model" of this backend says in the configuration'
        if is_model
        else "is its url right?"
    )


@pytest.mark.parametrize(
    ("body", "message", "param", "code"),
    [
        ({"error": {"message": "bad 'x'", "param": "x", "code": "c_1"}}, "bad 'x'", "x", "c_1"),
        ({"message": "old vLLM", "code": 400, "param": None}, "old vLLM", None, "invalid_value"),
        ({"error": {"message": "a\n b\x1b[2J", "param": "<b>", "code": ["x"]}}, "a b[2J", None, "invalid_value"),
        ({"error": {"message": "y" * 5000}}, "y" * 500 + "…", None, "invalid_value"),
        ({"error": {"message": f"wrong key {KEY}"}}, "the server behind this model refuses the request", None, None),
        ({"error": "text"}, "the server behind this model refuses the request", None, None),
        ([], "the server behind this model refuses the request", None, None),
    ],
)
def test_a_refusal_of_the_clients_request(body: Any, message: str, param: str | None, code: str | None) -> None:
    refusal = refusal_of(400, {"x-secret": KEY}, json.dumps(body).encode(), secret=KEY)
    assert refusal.healthy
    error = refusal.error
    assert isinstance(error, RequestError)
    assert (error.message, error.param, error.code) == (message, param, code or "invalid_value")
    assert KEY not in refusal.note


@pytest.mark.parametrize("param", ["model", "service_tier", "stream_options"])
def test_a_refusal_of_what_the_operator_configured(param: str) -> None:
    body = json.dumps({"error": {"message": "no such thing as theirs", "param": param}}).encode()
    refusal = refusal_of(400, {}, body, secret=None)
    assert isinstance(refusal.error, UpstreamError)
    assert not refusal.healthy
    assert "theirs" not in str(refusal.error) + refusal.note


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": "7", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "-7"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({}, None),
    ],
    ids=str,
)
def test_when_to_come_again(headers: dict[str, str], seconds: float | None) -> None:
    refusal = refusal_of(429, headers, b"", secret=None)
    assert isinstance(refusal.error, EngineUnavailableError)
    assert refusal.error.retry_after_seconds == refusal.retry_after_seconds == seconds


def test_a_date_to_come_again() -> None:
    headers = {"retry-after": email.utils.formatdate(time.time() + 30, usegmt=True)}
    assert refusal_of(429, headers, b"", secret=None).retry_after_seconds == pytest.approx(30, abs=2)
