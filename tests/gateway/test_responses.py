"""Streamed chunks: spliced bytes must be the JSON that a library would have written."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ultrafast.backends.base import Summary, TokenLogprob, TopToken
from ultrafast.errors import EngineUnavailableError, RequestError
from ultrafast.gateway.responses import ChunkWriter, Heading, error_event

SUMMARY = Summary(3, 1, 5, 0.1, 0.2, 0.3, 0.3, 5)


def writer(*, model: str = "m", include_usage: bool = False) -> ChunkWriter:
    return ChunkWriter(Heading("chatcmpl-1", 7, model, "default", "fp_1"), seed=11, include_usage=include_usage)


def parsed(event: bytes) -> dict[str, Any]:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    value = json.loads(event[6:])
    assert isinstance(value, dict)
    return value


@given(text=st.text(min_size=1), model=st.text())
def test_any_text_survives(text: str, model: str) -> None:
    chunk = parsed(writer(model=model).event(0, text, None, None, None))
    assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": text}
    assert chunk["model"] == model
    assert "usage" not in chunk


def test_the_events_of_a_choice() -> None:
    out = writer()
    first = parsed(out.event(2, "a", None, None, None))
    assert first == {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": "m",
        "service_tier": "default",
        "system_fingerprint": "fp_1",
        "choices": [
            {"index": 2, "delta": {"role": "assistant", "content": "a"}, "logprobs": None, "finish_reason": None}
        ],
        "seed": 11,
    }
    assert parsed(out.event(2, "b", None, None, None))["choices"][0]["delta"] == {"content": "b"}
    assert out.event(2, "", None, None, None) == b""
    last = parsed(out.event(2, "", None, "stop", SUMMARY))
    assert last["choices"][0] == {"index": 2, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert last["time_info"] == {"queue_time": 0.1, "prompt_time": 0.2, "completion_time": 0.3, "total_time": 0.6}
    assert parsed(out.event(0, "", None, "length", None))["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_usage_is_null_until_the_last_event() -> None:
    out = writer(include_usage=True)
    assert parsed(out.event(0, "a", None, None, None))["usage"] is None
    assert parsed(out.event(0, "", None, "stop", SUMMARY))["usage"] is None
    last = parsed(out.usage(SUMMARY))
    assert last["choices"] == []
    usage = last["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 5, 8)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 1
    assert usage["completion_tokens_details"]["accepted_prediction_tokens"] == 0


def test_logprobs_show_half_a_character_as_bytes() -> None:
    entry = TokenLogprob(5, b"\xc3", -0.25, [TopToken(5, b"\xc3", -0.25), TopToken(6, b"a", -3.0)])
    chunk = parsed(writer().event(0, "", [entry], None, None))
    content = chunk["choices"][0]["logprobs"]["content"]
    assert content == [
        {
            "token": "\ufffd",
            "logprob": -0.25,
            "bytes": [0xC3],
            "top_logprobs": [
                {"token": "\ufffd", "logprob": -0.25, "bytes": [0xC3]},
                {"token": "a", "logprob": -3.0, "bytes": [97]},
            ],
        }
    ]


def test_error_events() -> None:
    assert parsed(error_event(RequestError("wrong", param="n", code="invalid_value"))) == {
        "error": {"message": "wrong", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}
    }
    error = parsed(error_event(EngineUnavailableError("later")))["error"]
    assert (error["type"], error["code"]) == ("service_unavailable_error", "server_is_overloaded")
