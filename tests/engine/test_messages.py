"""Frames and messages between the processes."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast import errors
from ultrafast.engine import messages
from ultrafast.engine.messages import (
    Cancel,
    Events,
    GenerationEvent,
    GenerationRequest,
    Submit,
    Summary,
    TokenLogprob,
    TopToken,
)
from ultrafast.models.sampling import SamplingParameters

REQUEST = GenerationRequest(
    "req_1", [1, 2, 3], SamplingParameters(seed=2**64 - 1, logit_bias={5: -100.0}), 7, 2, ["\n"], True
)
EVENTS = Events(
    [
        ("a", GenerationEvent(0, [9], "é", [TokenLogprob(9, b"\xc3", -0.5, [TopToken(9, b"\xc3", -0.5)])])),
        ("b", GenerationEvent(1, [], "", None, "stop", Summary(1, 0, 2, 0.1, 0.2, 0.3, 0.3, 2))),
    ]
)


@given(cuts=st.lists(st.integers(0, 400), max_size=10))
def test_messages_survive_any_division_of_the_stream(cuts: list[int]) -> None:
    stream = messages.encode_frame(Submit(REQUEST, 1.5)) + messages.encode_frame(Cancel("req_1"))
    reader = messages.engine_side_reader()
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    received = [message for start, end in itertools.pairwise(places) for message in reader.feed(stream[start:end])]
    assert received == [Submit(REQUEST, 1.5), Cancel("req_1")]


def test_events_survive() -> None:
    assert list(messages.backend_side_reader().feed(messages.encode_frame(EVENTS))) == [EVENTS]


def test_an_oversized_length_is_refused_before_anything_is_buffered() -> None:
    with pytest.raises(messages.ProtocolError):
        list(messages.backend_side_reader().feed(b"\xff\xff\xff\xff"))


@given(st.binary(min_size=1, max_size=64))
def test_noise_is_an_error_or_a_message(noise: bytes) -> None:
    reader = messages.backend_side_reader()
    frame = len(noise).to_bytes(4, "big") + noise
    try:
        received = list(reader.feed(frame))
    except messages.ProtocolError:
        return
    assert all(isinstance(message, msgspec.Struct) for message in received)


def test_a_message_of_the_other_direction_is_an_error() -> None:
    with pytest.raises(messages.ProtocolError):
        list(messages.engine_side_reader().feed(messages.encode_frame(EVENTS)))


@pytest.mark.parametrize(
    "error",
    [
        errors.ContextLengthError("too long", param="messages"),
        errors.RequestError("wrong", param="n", code="invalid_value"),
        errors.ModelFileError("damaged"),
        errors.EngineUnavailableError("full"),
        errors.NonFiniteError("not finite"),
    ],
)
def test_errors_keep_their_kind_across_the_border(error: errors.UltrafastError) -> None:
    received = messages.failure_error(messages.failure_message("id", error))
    assert type(received) is type(error)
    assert str(received) == str(error)
    if isinstance(error, errors.RequestError):
        assert isinstance(received, errors.RequestError)
        assert (received.param, received.code) == (error.param, error.code)


def test_an_error_of_an_unknown_kind_is_still_an_error_of_ours() -> None:
    received = messages.failure_error(messages.failure_message("", messages.ProtocolError("confused")))
    assert type(received) is errors.EngineError
    assert type(messages.failure_error(messages.Failed("", "NoSuchKind", "x"))) is errors.EngineError
