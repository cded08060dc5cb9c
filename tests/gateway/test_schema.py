"""Validation of chat requests: every field, its bounds, and errors that name it and show nothing else."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ultrafast.backends.base import ChatRequest
from ultrafast.errors import RequestError
from ultrafast.gateway.schema import parse_chat_request

VOCABULARY = 1000
MESSAGES = [{"role": "user", "content": "Hello"}]
HOSTILE = "<script>canary-7f3a</script>"


def parse(**values: Any) -> ChatRequest:
    return parse_chat_request({"model": "m", "messages": MESSAGES, **values}, VOCABULARY)


def refusal(**values: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(**values)
    assert caught.value.status == 400
    return caught.value


def test_the_defaults_are_those_of_openai() -> None:
    request = parse()
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, 0, 0.0)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.0, 0.0, 1.0)
    assert (request.choices, request.max_tokens, request.stop, request.stream) == (1, None, [], False)
    assert request.tier is None  # the project's own
    assert request.sampling.seed == request.seed < 2**53


def test_null_is_absence() -> None:
    names = ["temperature", "n", "stop", "logit_bias", "tools", "seed", "metadata", "stream_options", "response_format"]
    assert parse(**dict.fromkeys(names), seed=1) == parse(seed=1) if "seed" not in names else True
    request = parse(**dict.fromkeys(names))
    assert request.sampling.temperature == 1.0
    assert request.choices == 1


NUMBERS = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.01, 10),
}
WRONG_NUMBERS = [math.nan, math.inf, -math.inf, "1", HOSTILE, True, [], {}, [1], 10**30, -(10**30)]


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str) -> None:
    low, high = NUMBERS[name]
    for value in (low, high, (low + high) / 2):
        assert getattr(parse(**{name: value}).sampling, name) == value
    for value in [*WRONG_NUMBERS, low - 0.001, high + 0.001]:
        error = refusal(**{name: value})
        assert error.param == name
        assert name in error.message
        assert "canary" not in error.message


INTEGERS = {
    "n": (1, 16),
    "max_tokens": (1, 1 << 24),
    "max_completion_tokens": (1, 1 << 24),
    "seed": (-(2**63), 2**64 - 1),
    "top_k": (-1, VOCABULARY),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name: str) -> None:
    low, high = INTEGERS[name]
    parse(**{name: low})
    parse(**{name: high})
    for value in [*WRONG_NUMBERS, low - 1, high + 1, 1.5]:
        assert refusal(**{name: value}).param == name


def test_seeds_are_taken_modulo_two_to_the_64() -> None:
    assert parse(seed=-1).sampling.seed == 2**64 - 1
    assert parse(seed=-1).seed == -1


def test_top_k_can_be_switched_off_either_way() -> None:
    assert parse(top_k=-1).sampling.top_k == parse(top_k=0).sampling.top_k == 0
    assert parse(top_k=7).sampling.top_k == 7


@pytest.mark.parametrize(
    "value",
    [
        {str(VOCABULARY): 1},
        {"-1": 1},
        {"1.0": 1},
        {"x": 1},
        {"": 1},
        {" 1": 1},
        {"٣": 1},
        {"1": 101},
        {"1": -101},
        {"1": math.nan},
        {"1": "5"},
        {"1": True},
        {"1": None},
        {"1": 1, "01": 2},
        {"9" * 5000: 1},
        {str(index): 0 for index in range(1025)},
        [1],
        "x",
        5,
    ],
)
def test_wrong_logit_bias(value: Any) -> None:
    assert refusal(logit_bias=value).param == "logit_bias"


def test_logit_bias() -> None:
    bias = parse(logit_bias={"0": -100, str(VOCABULARY - 1): 100, "7": 0.5}).sampling.logit_bias
    assert bias == {0: -100.0, VOCABULARY - 1: 100.0, 7: 0.5}


@pytest.mark.parametrize("value", ["", [""], ["a", ""], [1], ["a"] * 17, "x" * 257, 5, {}, [["a"]], True])
def test_wrong_stop(value: Any) -> None:
    assert refusal(stop=value).param == "stop"


def test_stop() -> None:
    assert parse(stop="a").stop == ["a"]
    assert parse(stop=["a"] * 16).stop == ["a"] * 16
    assert parse(stop=[]).stop == []


def test_max_tokens_has_two_names() -> None:
    assert parse(max_tokens=5).max_tokens == parse(max_completion_tokens=5).max_tokens == 5
    assert parse(max_tokens=5, max_completion_tokens=5).max_tokens == 5
    assert refusal(max_tokens=5, max_completion_tokens=6).param == "max_tokens"
    assert refusal(max_tokens=0).param == "max_tokens"


def test_top_logprobs() -> None:
    assert parse(logprobs=True).sampling.top_logprobs == 0
    assert parse(logprobs=True, top_logprobs=20).sampling.top_logprobs == 20
    assert refusal(logprobs=True, top_logprobs=21).param == "top_logprobs"
    assert refusal(top_logprobs=5).param == "top_logprobs"


def test_stream_options_need_a_stream() -> None:
    assert parse(stream=True, stream_options={"include_usage": True}).include_usage
    assert refusal(stream_options={"include_usage": True}).param == "stream_options"
    assert refusal(stream=True, stream_options={"x": 1}).param == "stream_options.x"
    assert refusal(stream=True, stream_options={"include_usage": 1}).param == "stream_options.include_usage"


@pytest.mark.parametrize(
    "name", ["tools", "tool_choice", "functions", "audio", "web_search_options", "chat_template", "verbosity"]
)
def test_what_is_not_served_is_refused_by_name(name: str) -> None:
    error = refusal(**{name: HOSTILE})
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert "canary" not in error.message


def test_other_response_formats_and_modalities_are_refused() -> None:
    parse(response_format={"type": "text"}, modalities=["text"])
    assert refusal(response_format={"type": "json_object"}).param == "response_format"
    assert refusal(response_format="text").param == "response_format"
    assert refusal(modalities=["text", "audio"]).param == "modalities"


def test_unknown_parameters_are_refused() -> None:
    error = refusal(best_of=1000)
    assert (error.param, error.code) == ("best_of", "unknown_parameter")
    for name in (HOSTILE, "", "x" * 65, "é", "a\nb"):
        error = refusal(**{name: 1})
        assert error.param is None
        assert not name or name not in error.message


def test_fields_without_effect_are_still_checked() -> None:
    parse(user="u", metadata={"k": "v"}, store=True, safety_identifier="s", prompt_cache_key="p")
    parse(prediction={"type": "content", "content": [{"type": "text", "text": "x"}]})
    assert refusal(user=5).param == "user"
    assert refusal(store="yes").param == "store"
    assert refusal(metadata={"k": 5}).param == "metadata"
    assert refusal(metadata={str(index): "" for index in range(17)}).param == "metadata"
    assert refusal(prediction={"type": "content"}).param == "prediction.content"
    assert refusal(prediction={"type": "other", "content": "x"}).param == "prediction.type"


@pytest.mark.parametrize(
    "messages", [None, [], "Hello", {}, [None], ["Hello"], [[]], [{}], [{"role": "user"}], [{"content": "x"}]]
)
def test_wrong_messages(messages: Any) -> None:
    error = refusal(messages=messages)
    assert error.param is not None
    assert error.param.startswith("messages")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "content": "x", "tool_call_id": "1"}, "role"),
        ({"role": "oracle", "content": "x"}, "role"),
        ({"role": 5, "content": "x"}, "role"),
        ({"role": ["user"], "content": "x"}, "role"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "user", "content": []}, "content"),
        ({"role": "user", "content": ["x"]}, "content[0]"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "content[0].text"),
        ({"role": "user", "content": "x", "extra": 1}, "extra"),
        ({"role": "user", "content": "x", "name": 5}, "name"),
        ({"role": "user", "content": "x", "tool_calls": []}, "tool_calls"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "tool_calls"),
        ({"role": "assistant", "content": None}, "content"),
    ],
)
def test_errors_in_messages_name_the_place(message: Any, param: str) -> None:
    assert refusal(messages=[*MESSAGES, message]).param == f"messages[1].{param}"


def test_messages() -> None:
    request = parse(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "name": "eve", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c", "refusal": None, "annotations": [], "tool_calls": None},
        ]
    )
    assert request.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "ab", "name": "eve"},
        {"role": "assistant", "content": "c"},
    ]


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [*MESSAGES, {"role": "assistant"}]}, "messages[1].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"prediction": {"type": "content"}}, "prediction.content"),
        ({"prediction": {"content": "x"}}, "prediction.type"),
        ({"response_format": {}}, "response_format.type"),
    ],
)
def test_what_is_missing_is_called_missing(values: dict[str, Any], param: str) -> None:
    error = refusal(**values)
    assert (error.code, error.param) == ("missing_required_parameter", param)
    assert error.message == f"'{param}' is required"


def test_the_model_is_required() -> None:
    for values in ({}, {"model": None}, {"model": ""}, {"model": 5}, {"model": "x" * 1000}):
        with pytest.raises(RequestError) as caught:
            parse_chat_request({"messages": MESSAGES, **values}, VOCABULARY)
        assert caught.value.param == "model"


TIERS = {None: None, "auto": None, "default": "default", "standard": "default", "flex": "flex"}
TIERS |= {"priority": "priority", "fast": "fast", "ultrafast": "ultrafast"}


@pytest.mark.parametrize("word", TIERS)
def test_service_tiers(word: str | None) -> None:
    assert parse(service_tier=word).tier == TIERS[word]
    assert parse(service_tier=word, reasoning_effort="high").tier == TIERS[word]
    if word in (None, "auto", "ultrafast"):
        assert parse(service_tier=word, reasoning_effort="ultrafast").tier == "ultrafast"
    else:
        assert refusal(service_tier=word, reasoning_effort="ultrafast").param == "service_tier"


def test_unknown_tiers_and_efforts_are_refused() -> None:
    for value in ("scale", "Ultrafast", "", HOSTILE, 5, ["default"]):
        error = refusal(service_tier=value)
        assert error.param == "service_tier"
        assert "canary" not in error.message
        assert refusal(reasoning_effort=value).param == "reasoning_effort"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELD_NAMES = [*NUMBERS, *INTEGERS, "messages", "stop", "logit_bias", "stream", "stream_options", "logprobs", "model"]
FIELD_NAMES += ["service_tier", "reasoning_effort", "metadata", "prediction", "response_format", "user", "tools", "x"]


@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(FIELD_NAMES), anything, max_size=4))
def test_wrong_types_everywhere_are_a_request_error_or_a_request(values: dict[str, Any]) -> None:
    try:
        request = parse(**values)
    except RequestError as error:
        assert error.message
    else:
        assert 0 <= request.sampling.temperature <= 2
