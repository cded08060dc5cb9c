"""What other servers send and refuse, as the facts of each have it, and what is made of it here."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from tests.fault_proxy import Fault, FaultProxy, events, response
from ultrafast.backends import upstream
from ultrafast.backends.base import Call, ChatRequest, GenerationEvent, SamplingParameters, as_relayed
from ultrafast.backends.settings import UpstreamSettings
from ultrafast.backends.upstream import UpstreamBackend, UpstreamStream
from ultrafast.errors import EngineUnavailableError, RequestError, UpstreamError

KEY = "sk-canary-of-the-upstream-51ab"


def call_of(sampling: SamplingParameters | None = None, *, tier: str = "default", **values: Any) -> Call:
    chat = ChatRequest(
        model="chat",
        messages=[{"role": "user", "content": "Hi there"}],
        sampling=sampling or SamplingParameters(),
        seed=7,
        choices=1,
        max_tokens=None,
        stop=[],
        logprobs=False,
        stream=False,
        include_usage=False,
        tier=None,
    )
    return Call("req_test", msgspec.structs.replace(chat, **values), "model", tier, "project", 16)


@pytest_asyncio.fixture
async def proxy() -> AsyncIterator[FaultProxy]:
    async with FaultProxy() as running:
        running.fault = Fault.SCRIPT
        yield running


def backend_of(proxy: FaultProxy, **values: Any) -> UpstreamBackend:
    settings = UpstreamSettings(url=proxy.url + "/", model="theirs", key_variable="KEY", **values)
    return UpstreamBackend("other", settings, environment={"KEY": KEY}, clock=lambda: 100.0)


def chunk(text: str | None = None, finish: str | None = None, index: int = 0, **values: Any) -> str:
    delta = {} if text is None else {"content": text}
    return json.dumps({"choices": [{"index": index, "delta": delta, "finish_reason": finish}]} | values)


def usage(prompt: int = 11, completion: int = 2, **values: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion} | values


async def read(stream: UpstreamStream) -> list[GenerationEvent]:
    return [event async for event in stream]


async def answer_of(
    proxy: FaultProxy, *data: str, call: Call | None = None, **values: Any
) -> tuple[list[GenerationEvent], UpstreamStream]:
    proxy.script = events(*data)
    backend = backend_of(proxy, **values)
    stream = backend.answer(call or call_of())
    assert as_relayed(stream) is stream
    found = await read(stream)
    assert backend.in_flight == 0
    await backend.retire()
    return found, stream


async def failure_of(proxy: FaultProxy, *data: str) -> tuple[list[GenerationEvent], Exception]:
    """The events before the failure, and it."""
    proxy.script = events(*data)
    backend = backend_of(proxy)
    stream = backend.answer(call_of())
    found = []
    with pytest.raises((UpstreamError, RequestError)) as caught:
        async for event in stream:
            found.append(event)  # noqa: PERF401 - those before the failure are wanted
    assert backend.in_flight == 0
    await backend.retire()
    return found, caught.value


async def test_a_stream_of_openai_s(proxy: FaultProxy) -> None:
    found, stream = await answer_of(
        proxy,
        json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "usage": None}),
        chunk("Hello"),
        chunk(" you"),
        chunk(None, "length"),
        json.dumps({"choices": [], "usage": usage(prompt_tokens_details={"cached_tokens": 5})}),
        "[DONE]",
    )
    assert [(event.text, event.token_ids, event.finish_reason) for event in found] == [
        ("Hello", [], None),
        (" you", [], None),
        ("", [], "length"),
    ]
    summary = found[-1].summary
    assert summary is not None
    assert (summary.prompt_tokens, summary.cached_tokens, summary.completion_tokens) == (11, 5, 2)
    assert (summary.queue_seconds, stream.estimated, stream.served_tier) == (0, False, None)


async def test_without_usage_tokens_are_estimated_and_that_is_said(proxy: FaultProxy) -> None:
    """As llama-cpp-python's server answers, which does not know ``stream_options``."""
    found, stream = await answer_of(proxy, chunk("One"), chunk(" two"), chunk(" three", "stop"), "[DONE]")
    summary = found[-1].summary
    assert summary is not None
    assert (summary.prompt_tokens, summary.completion_tokens, stream.estimated) == (3, 3, True)


@pytest.mark.parametrize(
    ("reported", "counted"),
    [
        (usage(prompt=-1), None),
        (usage(completion=-5), None),
        (usage(prompt=10**12), None),
        (usage(prompt=50_000), None),  # a prompt of eight letters, and the most that a template could add
        (usage(completion=10**9), None),
        (usage(prompt=10**30), None),
        (usage(prompt=2.5), None),
        (usage() | {"prompt_tokens": "11"}, None),
        (usage() | {"completion_tokens": None}, None),
        (usage() | {"completion_tokens": True}, None),
        (usage(prompt=0), None),
        (usage(completion=0), None),
        ({"total_tokens": 13}, None),
        ([11, 2], None),
        ("many", None),
        (usage(completion=17), (11, 0, 16)),  # more than was asked for
        (usage(prompt_tokens_details={"cached_tokens": 12}), (11, 11, 2)),
        (usage(prompt_tokens_details={"cached_tokens": -1}), (11, 0, 2)),
        (usage(prompt_tokens_details="all"), (11, 0, 2)),
        (usage(prompt=11.0, prompt_tokens_details={"cached_tokens": 4.0}), (11, 4, 2)),
        (usage(queue_time="long", completion_time=-1), (11, 0, 2)),
    ],
    ids=str,
)
async def test_no_more_is_billed_than_can_be(
    proxy: FaultProxy, caplog: pytest.LogCaptureFixture, reported: Any, counted: tuple[int, int, int] | None
) -> None:
    ending = json.dumps({"choices": [], "usage": reported, "time_info": "short", "x_groq": 5})
    found, stream = await answer_of(proxy, chunk("One"), chunk(" two"), chunk(" three", "stop"), ending, "[DONE]")
    summary = found[-1].summary
    assert summary is not None
    assert stream.estimated == (counted is None)
    assert (summary.prompt_tokens, summary.cached_tokens, summary.completion_tokens) == (counted or (3, 0, 3))
    warnings = [record.getMessage() for record in caplog.records]
    if counted is None or counted[2] == 16:
        assert len(warnings) == 1
        assert warnings[0].startswith("backend other: the token counts that it reports cannot be right")
    else:
        assert warnings == []


async def test_choices_bound_the_tokens_and_no_bound_was_sent_where_it_is_omitted(proxy: FaultProxy) -> None:
    last = [chunk("Hi", "stop", index=1), chunk("Hi", "stop", usage=usage(completion=33)), "[DONE]"]
    found, _ = await answer_of(proxy, *last, call=call_of(choices=2))
    assert found[-1].summary is not None
    assert found[-1].summary.completion_tokens == 2 * 16
    found, _ = await answer_of(proxy, *last, call=call_of(choices=2), omit=("max_tokens",))
    assert found[-1].summary is not None
    assert found[-1].summary.completion_tokens == 33


async def test_the_times_of_those_who_tell_them(proxy: FaultProxy) -> None:
    cerebras = {"queue_time": 0.25, "prompt_time": 0.5, "completion_time": 1.5, "total_time": 2.25}
    groq = usage(**cerebras)
    for last in (
        chunk(None, "stop", usage=usage(), time_info=cerebras),
        chunk(None, "stop", x_groq={"id": "x", "usage": groq}),
        chunk(None, "stop", usage=groq),
    ):
        found, stream = await answer_of(proxy, chunk("Hi"), last, "[DONE]")
        summary = found[-1].summary
        assert summary is not None
        assert (summary.queue_seconds, summary.prefill_seconds, summary.decode_seconds) == (0.25, 0.5, 1.5)
        assert not stream.estimated


@pytest.mark.parametrize(
    ("asked", "reported", "served"),
    [
        ("ultrafast", {"service_tier": "priority"}, None),  # the word that was sent
        ("ultrafast", {"service_tier": "default"}, "default"),
        ("ultrafast", {"service_tier": "on_demand"}, "default"),
        ("ultrafast", {"service_tier": "auto", "service_tier_used": "flex"}, "flex"),
        ("ultrafast", {}, None),
        ("ultrafast", {"service_tier": None}, None),
        ("priority", {"service_tier": "default"}, None),  # no word was sent: theirs are about tiers of their own
    ],
)
async def test_the_tier_served(proxy: FaultProxy, asked: str, reported: dict[str, Any], served: str | None) -> None:
    _, stream = await answer_of(
        proxy,
        chunk("Hi", **reported),
        chunk(None, "stop"),
        "[DONE]",
        call=call_of(tier=asked),
        tiers={"ultrafast": "priority", "default": "on_demand"},
    )
    assert stream.served_tier == served


async def test_several_choices_end_once(proxy: FaultProxy) -> None:
    found, _ = await answer_of(
        proxy,
        chunk("a", index=1),
        chunk("b", index=0),
        chunk(None, "stop", index=1),
        chunk("c", "length", index=0),
        "[DONE]",
        call=call_of(choices=2),
    )
    assert [(event.choice, event.text, event.finish_reason) for event in found] == [
        (1, "a", None),
        (0, "b", None),
        (1, "", "stop"),
        (0, "c", None),
        (0, "", "length"),
    ]
    assert [event.summary is not None for event in found] == [False] * 4 + [True]


async def test_log_probabilities(proxy: FaultProxy) -> None:
    entries = [
        {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": [{"token": "e", "logprob": -2.0}]},
        {"token": "!", "logprob": -1.0, "bytes": None, "top_logprobs": []},
    ]
    data = json.dumps({"choices": [{"index": 0, "delta": {"content": "é!"}, "logprobs": {"content": entries}}]})
    asking = call_of(SamplingParameters(top_logprobs=1), logprobs=True)
    found, _ = await answer_of(proxy, data, chunk(None, "stop"), "[DONE]", call=asking)
    logprobs = found[0].logprobs
    assert logprobs is not None
    assert [(entry.token_bytes, entry.logprob) for entry in logprobs] == [("é".encode(), -0.5), (b"!", -1.0)]
    assert [(top.token_bytes, top.logprob) for top in logprobs[0].top] == [(b"e", -2.0)]
    body = json.loads(proxy.requests[-1].partition(b"\r\n\r\n")[2])
    assert (body["logprobs"], body["top_logprobs"]) == (True, 1)
    found, _ = await answer_of(proxy, data, chunk(None, "stop"), "[DONE]")
    assert found[0].logprobs is None, "nobody asked for them"


async def test_words_of_reasoning_are_no_answer_but_a_sign_of_life(proxy: FaultProxy) -> None:
    thought = json.dumps({"choices": [{"index": 0, "delta": {"reasoning_content": "hm", "content": None}}]})
    found, _ = await answer_of(proxy, thought, thought, chunk("Yes"), chunk(None, "content_filter"), "[DONE]")
    assert [event.text for event in found] == ["Yes", ""]
    assert found[-1].finish_reason == "content_filter"


@pytest.mark.parametrize(
    "data",
    [
        ["[DONE]"],
        [chunk("x", index=1)],
        [chunk("x", index=-1)],
        [chunk("x" * 9000)],
        [chunk(None, "abort")],
        ["null"],
        ["[]"],
        ['{"choices": 5}'],
        ["[" * 100_000],
        [json.dumps({"choices": [{"index": 0, "delta": {"content": 7}}]})],
        ['{"choices": [{"index": 0, "delta": {"content": "\\ud800"}}]}'],
        [json.dumps({"error": {"message": "oops", "code": 500}})],
        [],
    ],
    ids=str,
)
async def test_what_is_no_answer(proxy: FaultProxy, data: list[str]) -> None:
    found, error = await failure_of(proxy, *data)
    assert found == []
    assert isinstance(error, UpstreamError)
    found, error = await failure_of(proxy, chunk("Hello"), *data)
    assert [event.text for event in found] == ["Hello"], "what came before the fault is told first"
    assert isinstance(error, UpstreamError)


async def test_text_after_the_end_is_no_answer(proxy: FaultProxy) -> None:
    found, error = await failure_of(proxy, chunk("Hello", "stop"), chunk("again"), "[DONE]")
    assert [event.finish_reason for event in found] == [None]
    assert isinstance(error, UpstreamError)


async def test_a_complete_answer_needs_no_account(proxy: FaultProxy) -> None:
    found, stream = await answer_of(proxy, chunk("Hello"), chunk(None, "stop"))  # then the connection closes
    assert (found[-1].finish_reason, stream.estimated) == ("stop", True)
    assert found[-1].summary is not None


@pytest.mark.parametrize("apart", [False, True])
async def test_a_complete_answer_waits_for_its_account_only_so_long(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    monkeypatch.setattr(upstream, "_ACCOUNT_SECONDS", 0.3)
    proxy.fault = Fault.SCRIPT_AND_STALL
    text = [chunk("Hello"), chunk(None, "stop")] if apart else [chunk("Hello", "stop")]
    started = time.monotonic()
    found, stream = await answer_of(proxy, *text, idle_seconds=0.05)
    assert [(event.text, event.finish_reason) for event in found] == [("Hello", None), ("", "stop")]
    assert stream.estimated
    assert 0.2 < time.monotonic() - started < 2
    await asyncio.wait_for(proxy.left.wait(), 1)


async def test_so_much_is_read_ahead_and_no_more(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for a slow reader is neither the other server's silence nor its time."""
    monkeypatch.setattr(upstream, "READ_AHEAD_BYTES", 50_000)
    words = [f"{index:<1000}" for index in range(10_000)]  # more than the sockets between take
    proxy.script = events(*map(chunk, words), chunk(None, "stop"), "[DONE]")
    backend = backend_of(proxy, idle_seconds=0.3)
    stream = backend.answer(msgspec.structs.replace(call_of(), max_tokens=100_000))
    began = time.perf_counter()
    first = await anext(stream)
    await asyncio.sleep(2)
    waiting = sum(len(event.text) for event in stream._events)
    assert 20_000 < waiting < 200_000  # and what came in the piece that filled it
    assert backend.in_flight == 1
    found = [first, *await read(stream)]
    assert [event.text for event in found] == [*words, ""]
    assert found[-1].summary is not None
    assert found[-1].summary.decode_seconds < time.perf_counter() - began - 1
    await backend.retire()


async def test_errors_in_the_stream_that_are_the_clients(proxy: FaultProxy) -> None:
    detail = {"object": "error", "message": "too long by 7", "type": "BadRequestError", "param": None, "code": 400}
    _, error = await failure_of(proxy, json.dumps({"error": detail}))
    assert isinstance(error, RequestError)
    assert (error.message, error.code) == ("too long by 7", "invalid_value")


async def test_what_is_asked_is_sent_and_nothing_else(proxy: FaultProxy) -> None:
    everything = SamplingParameters(
        temperature=0.5,
        top_k=9,
        top_p=0.8,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.3,
        frequency_penalty=0.4,
        logit_bias={5: -1.0},
    )
    ending = (chunk(None, "stop"), "[DONE]")
    await answer_of(proxy, *ending, call=call_of(everything, stop=["\n"], choices=1), omit=("seed",))
    await answer_of(proxy, *ending)
    first, second = (json.loads(request.partition(b"\r\n\r\n")[2]) for request in proxy.requests)
    always = {
        "model": "theirs",
        "messages": [{"role": "user", "content": "Hi there"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 16,
    }
    assert second == always | {"seed": 7}
    assert first == always | {
        "temperature": 0.5,
        "top_k": 9,
        "top_p": 0.8,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "logit_bias": {"5": -1.0},
        "stop": ["\n"],
    }
    head = proxy.requests[0].partition(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"post /v1/chat/completions http/1.1")
    assert b"authorization: bearer " + KEY.encode() in head
    assert b"accept-encoding: identity" in head
    assert b"cookie" not in head


@pytest.mark.parametrize(
    ("status", "body", "gone", "instead"),
    [
        # Mistral's words, Groq's of 2024, and OpenAI's for its models that reason.
        (422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"]}]}, "stream_options", None),
        (400, {"error": {"message": "property 'stream_options' is unsupported"}}, "stream_options", None),
        (
            400,
            {
                "error": {
                    "message": "Unsupported parameter: use 'max_completion_tokens' instead.",
                    "param": "max_tokens",
                }
            },
            "max_tokens",
            "max_completion_tokens",
        ),
    ],
)
async def test_a_refused_field_is_sent_otherwise_and_remembered(
    proxy: FaultProxy, status: int, body: dict[str, Any], gone: str, instead: str | None
) -> None:
    backend = backend_of(proxy)
    proxy.scripts = [response(status, json.dumps(body))]
    proxy.script = events(chunk("Hi"), chunk(None, "stop"), "[DONE]")
    for _ in range(2):
        assert [event.text for event in await read(backend.answer(call_of()))] == ["Hi", ""]
    bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in proxy.requests]
    assert len(bodies) == 3
    assert gone in bodies[0]
    for sent in bodies[1:]:
        assert gone not in sent
        assert instead is None or sent[instead] == 16
    await backend.retire()


async def test_a_full_tier_says_nothing_about_the_others(proxy: FaultProxy) -> None:
    backend = backend_of(proxy, tiers={"flex": "flex"})
    proxy.script = response(498, "{}", "retry-after: 60")
    with pytest.raises(EngineUnavailableError):
        await read(backend.answer(call_of(tier="flex")))
    with pytest.raises(EngineUnavailableError) as caught:
        backend.answer(call_of(tier="flex"))
    assert caught.value.retry_after_seconds == 60
    assert "60" not in str(caught.value)
    assert caught.value.note == "left alone after a failure, for 60.0 s more"
    proxy.script = events(chunk("Hi", "stop"), "[DONE]")
    assert [event.text for event in await read(backend.answer(call_of(tier="default")))] == ["Hi", ""]
    assert backend.ready
    state = backend.state
    assert (state.state, state.tiers, state.running) == ("backing off", ("flex",), 0)
    assert state.retry_seconds == pytest.approx(60, abs=1)
    assert state.last_error is not None
    assert state.last_error.reason == "status 498: at capacity"
    await backend.retire()


async def test_so_many_at_once_and_no_more(proxy: FaultProxy) -> None:
    proxy.fault = Fault.SILENCE
    backend = backend_of(proxy, concurrent=2)
    streams = [backend.answer(call_of()) for _ in range(2)]
    assert not backend.ready
    assert (backend.state.state, backend.state.running) == ("full", 2)
    with pytest.raises(EngineUnavailableError) as caught:
        backend.answer(call_of())
    assert caught.value.note == "it answers 2 requests already"
    await streams[0].aclose()  # never read from
    await streams[0].aclose()
    assert backend.ready
    assert backend.in_flight == 1
    retiring = asyncio.create_task(backend.retire())
    await asyncio.sleep(0)
    assert not backend.ready
    assert not retiring.done()
    with pytest.raises(EngineUnavailableError) as caught:
        backend.answer(call_of())
    assert caught.value.note == "no longer in the configuration"
    await streams[1].aclose()
    await asyncio.wait_for(retiring, 1)


async def test_a_kept_connection_that_the_other_side_closed() -> None:
    """It closes the moment a second request comes: the client could not have known."""
    body = "".join(f"data: {each}\n\n" for each in (chunk("Hi", "stop"), "[DONE]")).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body)
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for number in range(2):
            request = await reader.readuntil(b"\r\n\r\n")
            length = int(request.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
            if number == 0:
                writer.write(head + body)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        settings = UpstreamSettings(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", model="m")
        backend = UpstreamBackend("other", settings, environment={})
        for expected in (1, 2, 3):
            assert [event.text for event in await read(backend.answer(call_of()))] == ["Hi", ""]
            assert connections == expected
        await backend.retire()
