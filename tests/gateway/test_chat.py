"""Chat completions through the official client, against a real server with the real default model."""

from __future__ import annotations

import json
import math
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.gateway.conftest import MODEL
from tests.gateway.running_server import KEY, RunningServer

QUESTION = [{"role": "user", "content": "What is the capital of Japan?"}]


def ask(client: OpenAI, **values: Any) -> ChatCompletion:
    defaults: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "max_tokens": 24, "temperature": 0}
    answer = client.chat.completions.create(**defaults | values)
    assert isinstance(answer, ChatCompletion)
    return answer


def ask_streamed(client: OpenAI, **values: Any) -> list[ChatCompletionChunk]:
    defaults: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "max_tokens": 24, "temperature": 0}
    return list(client.chat.completions.create(**defaults | values, stream=True))


def text_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def content_of(answer: ChatCompletion, index: int = 0) -> str:
    content = answer.choices[index].message.content
    assert content is not None
    return content


def test_an_answer(client: OpenAI) -> None:
    answer = ask(client)
    assert "Tokyo" in content_of(answer)
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.service_tier == "default"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.role == "assistant"
    usage = answer.usage
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 5 < usage.completion_tokens <= 24
    assert usage.prompt_tokens_details is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.accepted_prediction_tokens == 0
    extra = answer.model_extra
    assert extra is not None
    times = extra["time_info"]
    assert all(times[name] >= 0 for name in ("queue_time", "prompt_time", "completion_time"))
    assert times["total_time"] == pytest.approx(sum(times.values()) - times["total_time"], abs=1e-5)


def test_the_next_turn_reuses_the_conversation(client: OpenAI) -> None:
    messages: list[dict[str, str]] = [{"role": "user", "content": "Name three rivers of Africa, please."}]
    first = ask(client, messages=messages)
    messages += [
        {"role": "assistant", "content": content_of(first)},
        {"role": "user", "content": "Which of them is the longest?"},
    ]
    second = ask(client, messages=messages)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert first.usage.prompt_tokens <= cached < second.usage.prompt_tokens
    again = ask(client, messages=messages)
    assert content_of(again) == content_of(second)
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == second.usage.prompt_tokens - 1


def test_a_stream_is_the_same_answer(client: OpenAI) -> None:
    whole = ask(client)
    chunks = ask_streamed(client)
    assert text_of(chunks) == content_of(whole)
    assert len({chunk.id for chunk in chunks}) == 1
    assert len({chunk.created for chunk in chunks}) == 1
    assert {chunk.model for chunk in chunks} == {MODEL}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk.system_fingerprint for chunk in chunks} == {whole.system_fingerprint}
    assert all(len(chunk.choices) == 1 for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[-1].model_extra is not None
    assert chunks[-1].model_extra["time_info"]["total_time"] > 0


def test_usage_in_a_stream(client: OpenAI) -> None:
    chunks = ask_streamed(client, stream_options={"include_usage": True})
    assert chunks[-1].choices == []
    assert chunks[-1].usage == ask(client).usage
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_max_tokens_ends_with_length(client: OpenAI) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        answer = ask(client, **{"max_tokens": None, name: 3})
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 3
    assert ask(client, max_tokens=1).choices[0].finish_reason == "length"


def test_stop_strings(client: OpenAI) -> None:
    whole = content_of(ask(client))
    assert "capital of" in whole
    for stop in ("capital of", ["zzz", "capital of"], ["l of", "tal o"]):
        answer = ask(client, stop=stop)
        assert answer.choices[0].finish_reason == "stop"
        words = [stop] if isinstance(stop, str) else stop
        ends = [whole.find(word) + len(word) for word in words if word in whole]
        first = min(ends)
        expected = next(whole[: first - len(word)] for word in words if whole[:first].endswith(word))
        assert content_of(answer) == expected
        assert text_of(ask_streamed(client, stop=stop)) == expected


def test_a_seed_repeats_an_answer_and_is_reported(client: OpenAI) -> None:
    sampled = {"temperature": 1.2, "top_p": 0.95, "top_k": 50, "max_tokens": 20}
    extra = {"top_k": sampled.pop("top_k")}
    first = ask(client, seed=7, extra_body=extra, **sampled)
    assert content_of(first) == content_of(ask(client, seed=7, extra_body=extra, **sampled))
    assert content_of(first) == text_of(ask_streamed(client, seed=7, extra_body=extra, **sampled))
    drawn = ask(client, extra_body=extra, **sampled)
    assert drawn.model_extra is not None
    seed = drawn.model_extra["seed"]
    assert content_of(drawn) == content_of(ask(client, seed=seed, extra_body=extra, **sampled))
    others = {content_of(ask(client, seed=seed, extra_body=extra, **sampled)) for seed in range(6)}
    assert len(others) > 1
    for seed in (-(2**63), 2**63 - 1, -1):
        ask(client, seed=seed, max_tokens=1)


def test_several_choices(client: OpenAI) -> None:
    sampled = {"n": 3, "temperature": 1.0, "seed": 3, "max_tokens": 16}
    answer = ask(client, **sampled)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    texts = [content_of(answer, index) for index in range(3)]
    assert len(set(texts)) > 1
    assert answer.usage is not None
    chunks = ask_streamed(client, **sampled, stream_options={"include_usage": True})
    assert [text_of(chunks, index) for index in range(3)] == texts
    assert chunks[-1].usage == answer.usage
    ends = [choice for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert sorted(choice.index for choice in ends) == [0, 1, 2]
    # The first choice is what a single one would have been.
    assert content_of(ask(client, **sampled | {"n": 1})) == texts[0]
    greedy = ask(client, n=2)
    assert content_of(greedy, 0) == content_of(greedy, 1) == content_of(ask(client))


def test_logprobs(client: OpenAI) -> None:
    answer = ask(client, logprobs=True, top_logprobs=4)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(entry.token for entry in logprobs.content) == content_of(answer)
    for entry in logprobs.content:
        assert entry.bytes == list(entry.token.encode())
        tops = [top.logprob for top in entry.top_logprobs]
        assert len(tops) == 4
        assert tops == sorted(tops, reverse=True)
        assert all(value <= 0 and math.isfinite(value) for value in tops)
        assert (entry.token, entry.logprob) == (entry.top_logprobs[0].token, tops[0])  # greedy
    plain = ask(client, logprobs=True)
    assert plain.choices[0].logprobs is not None
    assert plain.choices[0].logprobs.content is not None
    assert [entry.logprob for entry in plain.choices[0].logprobs.content] == [
        entry.logprob for entry in logprobs.content
    ]
    chunks = ask_streamed(client, logprobs=True, top_logprobs=4)
    streamed = [
        entry
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs and choice.logprobs.content
        for entry in choice.logprobs.content
    ]
    assert streamed == logprobs.content
    assert ask(client).choices[0].logprobs is None


def test_logit_bias(client: OpenAI) -> None:
    forced = ask(client, logit_bias={"500": 100}, max_tokens=3, logprobs=True)
    logprobs = forced.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len({entry.token for entry in logprobs.content}) == 1


def test_penalties_change_an_answer(client: OpenAI) -> None:
    story = [{"role": "user", "content": "What is the capital of Italy?"}]
    plain = content_of(ask(client, messages=story, max_tokens=40))
    for values in ({"frequency_penalty": 2}, {"presence_penalty": 2}, {"extra_body": {"repetition_penalty": 1.5}}):
        assert content_of(ask(client, messages=story, max_tokens=40, **values)) != plain


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        ({}, "default"),
        ({"service_tier": "auto"}, "default"),
        ({"service_tier": "standard"}, "default"),
        ({"service_tier": "flex"}, "flex"),
        ({"service_tier": "priority"}, "priority"),
        ({"service_tier": "fast"}, "fast"),
        ({"service_tier": "ultrafast"}, "ultrafast"),
        ({"reasoning_effort": "ultrafast"}, "ultrafast"),
        ({"reasoning_effort": "ultrafast", "service_tier": "ultrafast"}, "ultrafast"),
        ({"reasoning_effort": "low", "service_tier": "flex"}, "flex"),
    ],
)
def test_the_tier_served_is_reported(client: OpenAI, asked: dict[str, str], served: str) -> None:
    assert ask(client, max_tokens=1, **asked).service_tier == served
    assert {chunk.service_tier for chunk in ask_streamed(client, max_tokens=1, **asked)} == {served}


def test_the_alias_runs_the_real_model_and_says_so(client: OpenAI, server: RunningServer) -> None:
    assert ask(client, model="gpt-5.6-sol", max_tokens=1).model == MODEL
    assert f"Alias gpt-5.6-sol: answered by {MODEL}, not that vendor's model" in server.output


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    assert client.models.retrieve("gpt-5.6-sol").id == MODEL
    for name in ("gpt-4", "a/b", "..%2f..", "é"):
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve(name)
        assert caught.value.code == "model_not_found"
        assert f"'{MODEL}' or 'gpt-5.6-sol'" in caught.value.message
        assert f"'{name}'" not in caught.value.message
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, model="gpt-4")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_message_forms(client: OpenAI) -> None:
    parts = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "What is the capital "}, {"type": "text", "text": "of Japan?"}],
        }
    ]
    assert content_of(ask(client, messages=parts)) == content_of(ask(client))
    system = [{"role": "system", "content": "Answer in one word."}, *QUESTION]
    developer = [{"role": "developer", "content": "Answer in one word."}, *QUESTION]
    assert content_of(ask(client, messages=system)) == content_of(ask(client, messages=developer))
    answer = ask(client)
    again = [*QUESTION, answer.choices[0].message.model_dump(), {"role": "user", "content": "And of Italy?"}]
    assert ask(client, messages=again).usage is not None


def test_a_prediction_never_changes_an_answer(client: OpenAI) -> None:
    prediction = {"type": "content", "content": "The capital of Japan is London."}
    assert content_of(ask(client, prediction=prediction)) == content_of(ask(client))


def test_headers(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=1
    )
    assert raw.headers["x-request-id"].startswith("req_")
    assert int(raw.headers["openai-processing-ms"]) >= 0
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, temperature=3)
    assert caught.value.request_id is not None
    assert caught.value.request_id.startswith("req_")


def test_a_stream_over_http_1_0(server: RunningServer) -> None:
    body = json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "stream": True}
    ).encode()
    head = "POST /v1/chat/completions HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"authorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
    answer = server.exchange(head.encode() + body).decode()
    headers, _, events = answer.partition("\r\n\r\n")
    assert "transfer-encoding" not in headers
    lines = events.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert len(chunks) > 2
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")


def test_the_record_of_a_request_has_no_word_of_it(client: OpenAI, server: RunningServer) -> None:
    seen = len(server.lines)
    ask(client, messages=[{"role": "user", "content": "canary-prompt-5d1f"}], max_tokens=4, user="canary-user-77")
    line = server.wait_for(r"req_\w+ ok", 5, after=seen)
    assert line is not None
    assert "tokens/s" in line
    assert "completion=4 tokens" in line
    assert f" tier=default backend=local model={MODEL} project=default " in line
    assert "canary" not in server.output


def test_the_end_of_the_context(small_client: OpenAI) -> None:
    story = [{"role": "user", "content": "Tell me a very long story about the sea."}]
    for limit in (None, 4096):
        answer = ask(small_client, messages=story, max_tokens=limit, logit_bias={"2": -100, "0": -100})
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.total_tokens == 128
    with pytest.raises(openai.BadRequestError) as caught:
        ask(small_client, messages=[{"role": "user", "content": "sea " * 200}])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert "Tokyo" in content_of(ask(small_client))
