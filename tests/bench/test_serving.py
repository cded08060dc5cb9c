"""The benchmark of a server: its client on awkward bytes, its sums on made replies, and the whole of it, small, on the
real server. No test holds a server to a time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from ultrafast.bench.results import ServingResult
from ultrafast.bench.serving import PARTS, ServingOptions, Sizes, run, run_serving
from ultrafast.bench.serving.client import Client, Reply, Usage
from ultrafast.bench.serving.client import PromptDetails as Details
from ultrafast.bench.serving.loads import Crowd, arrivals, goodput, longest_wait, tokens_between
from ultrafast.bench.serving.prompts import Prompts
from ultrafast.bench.serving.server import Server
from ultrafast.bench.serving.stage import Stage
from ultrafast.bench.statistics import percentile, summarise
from ultrafast.errors import ConfigurationError, EngineError

SMALL = Sizes(
    rounds=1,
    stream_loads=1,
    stream_rounds=1,
    stream_tokens=12,
    crowd=2,
    history_tokens=80,
    short_samples=2,
    blocks=1,
    probes_per_block=2,
    refusals=3,
    window_seconds=0.3,
    lead_seconds=0.3,
    overload_seconds=0.5,
    overload_rounds=1,
)
EVENTS = (
    b'data: {"service_tier":"ultrafast","choices":[{"delta":{"role":"assistant","content":"data: \\n\\n"}}]}\n\n',
    b'data: {"service_tier":"ultrafast","choices":[{"delta":{"content":"\xc3\xa9"}}]}\n\n',
    b': keep-alive\n\ndata: {"choices":[{"delta":{}}],"time_info":{"queue_time":0.25,"prompt_time":0.5}}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":2}}}\n\ndata: [DONE]\n\n',
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM = HEAD + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS) + b"0\r\n\r\n"
REFUSAL_BODY = b'{"error":{"message":"full","type":"x","param":null,"code":"tier_at_capacity"}}'
REFUSAL = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: %d\r\n\r\n" % len(REFUSAL_BODY) + REFUSAL_BODY


@asynccontextmanager
async def answering(pieces: Callable[[], list[bytes]]) -> AsyncIterator[tuple[Client, list[int]]]:
    """A client of a server that answers every request with ``pieces``; and the connections it took."""
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(len(connections))
        with suppress(ConnectionError):
            while await reader.read(65536):
                for piece in pieces():
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if not b"".join(pieces()).endswith((b"0\r\n\r\n", b"}")):
                    break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        client = Client(server.sockets[0].getsockname()[1], "key")
        try:
            yield client, connections
        finally:
            client.close()  # since Python 3.12 the server waits for whoever is still connected


@pytest.mark.parametrize("size", [len(STREAM), 1, 7, 100])
async def test_an_answer_is_read_however_it_is_cut(size: int) -> None:
    cut = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    async with answering(lambda: cut) as (client, connections):
        for _ in range(2):
            reply = await client.ask({})
            assert (reply.status, reply.text, reply.service_tier) == (200, "data: \n\né", "ultrafast")
            usage, times = reply.engine_account()
            assert (usage.completion_tokens, usage.prompt_tokens_details.cached_tokens) == (3, 2)
            assert (times.queue_time, times.prompt_time) == (0.25, 0.5)
            assert len(reply.token_times) == 2
            assert reply.ended is not None
            assert reply.started < reply.token_times[0] <= reply.token_times[1] <= reply.ended
        assert connections == [0]  # kept and used again


@pytest.mark.parametrize("size", [len(REFUSAL), 1, 50])
async def test_a_refusal_is_read_to_its_end(size: int) -> None:
    cut = [REFUSAL[start : start + size] for start in range(0, len(REFUSAL), size)]
    async with answering(lambda: cut) as (client, _):
        reply = await client.ask({}, over_capacity="refuse")
    assert (reply.status, reply.error_code) == (429, "tier_at_capacity")
    assert reply.ended is not None
    with pytest.raises(EngineError, match="did not finish an answer: status 429, tier_at_capacity"):
        reply.engine_account()


async def test_a_cut_answer_and_one_that_was_left_are_not_whole() -> None:
    async with answering(lambda: [STREAM[:300]]) as (client, connections):
        reply = await client.ask({})
        assert reply.usage is None
        exchange = await client.start({})
        await exchange.begun
        exchange.cancel()
        await exchange.done
        assert exchange.reply().usage is None
        assert len(connections) == 2  # a closed one is not used again


async def test_a_crowd_that_stops_has_left() -> None:
    """What is measured next would be measured beside it."""
    left = asyncio.Semaphore(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(STREAM[:-5])  # and no end
        with suppress(ConnectionError):
            await reader.read()
        left.release()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        crowd = Crowd(Client(server.sockets[0].getsockname()[1], "key"), [dict, dict])
        await crowd.begun()
        await crowd.stop()
        async with asyncio.timeout(5):
            for _ in range(2):
                await left.acquire()


async def test_a_server_that_is_gone_is_one_line() -> None:
    async with answering(lambda: [STREAM]) as (client, _):
        pass
    with pytest.raises(EngineError, match="took no connection"):
        await client.ask({})


async def test_arrivals_do_not_wait_for_answers() -> None:
    class Slow:
        asked = 0

        async def ask(self, body: dict[str, object]) -> Reply:
            self.asked += 1
            await asyncio.sleep(0.5)
            return reply([])

    class Even:
        def expovariate(self, rate: float) -> float:
            return 1 / rate

    slow = Slow()
    replies = await arrivals(slow, dict, rate=100, seconds=0.2, random=Even())  # type: ignore[arg-type]
    assert slow.asked == len(replies)
    assert 18 <= len(replies) <= 20


def reply(times: list[float], *, started: float = 0.0, finished: bool = True) -> Reply:
    usage = Usage(1, len(times), Details(0)) if finished else None
    return Reply(200, started, times[-1] if times and finished else None, times, usage=usage)


def test_tokens_waits_and_goodput_of_a_span() -> None:
    even, late, halting = reply([1, 2, 3, 4]), reply([3, 4]), reply([1, 3.5, 4])
    unfinished, refused = reply([1, 2], finished=False), reply([])
    everyone = [even, late, halting, unfinished, refused]
    assert tokens_between(everyone, 1, 3) == 2 + 1 + 0 + 1
    assert longest_wait(everyone, 1.5, 2.0) == 2.5
    assert longest_wait(everyone, 3.5, 4.0) == 1.0
    assert longest_wait([refused], 0, 9) == 0.0
    assert goodput(everyone, 0, 4, ttft_seconds=2, wait_seconds=1) == 4 / 4
    assert goodput(everyone, 0, 4, ttft_seconds=3, wait_seconds=1) == 6 / 4
    assert goodput(everyone, 2, 4, ttft_seconds=3, wait_seconds=3) == (2 + 2 + 2) / 2
    assert even.output_tokens_per_second == 1.0


def test_a_percentile_was_measured() -> None:
    samples = [float(value) for value in range(100, 0, -1)]
    assert percentile(samples, 0.99) == 99
    assert percentile(samples[:10], 0.99) == 100
    assert percentile(samples, 0.01) == 1
    with pytest.raises(ValueError, match="at least one"):
        percentile([], 0.5)


@pytest.mark.parametrize(
    ("part", "kept", "missed"),
    [
        ("stream", {"http_over_in_process": [0.5, 0.95, 0.99]}, {"http_over_in_process": [0.99, 0.94, 0.94]}),
        ("gateway", {"added_seconds": [0.003, 0.002, 9]}, {"added_seconds": [0.004, 0.0031, 0.001]}),
        ("turn", {"next_over_empty": [0.2, 0.25, 0.9]}, {"next_over_empty": [0.26]}),
        ("flood", {"idle": 1.0, "loaded": 1.2}, {"idle": 1.0, "loaded": 1.3}),
        ("refusal", {"refusal_seconds": [0.01] * 99 + [1.0]}, {"refusal_seconds": [0.01] * 98 + [0.02] * 2}),
        ("overload", {"goodput_over_peak": [0.9, 1.1, 0.1]}, {"goodput_over_peak": [0.8, 1.1, 0.1]}),
    ],
)
def test_a_promise_is_kept_or_missed(part: str, kept: dict[str, object], missed: dict[str, object]) -> None:
    def met(found: dict[str, object]) -> list[bool]:
        if part == "flood":  # the second highest of a hundred counts
            found = {f"{name}_ttft_seconds": [0.1] * 98 + [value, 50.0] for name, value in found.items()}
        return [bar.met for bar in PARTS[part].bars({name: summarise(samples) for name, samples in found.items()})]  # type: ignore[arg-type]

    assert met(kept) == [True]
    assert met(missed) == [False]


def test_the_promises_of_a_stream_beside_a_crowd() -> None:
    def met(ratio: float, share: float, wait: float) -> list[bool]:
        found = {"beside_over_alone": ratio, "kept_share": share, "longest_wait_seconds": wait}
        return [bar.met for bar in PARTS["beside"].bars({name: summarise([value]) for name, value in found.items()})]

    assert met(0.8, 0.15, 1.0) == [True, True, True]
    assert met(0.79, 0.14, 1.01) == [False, False, False]


def test_every_request_begins_differently_and_has_the_length_asked_for(model_path: Path) -> None:
    prompts = Prompts(model_path)
    bodies = [prompts.body(40, tier="flex", max_tokens=5) for _ in range(200)]
    beginnings = {body["messages"][0]["content"][:24] for body in bodies}
    assert len(beginnings) == 200
    assert {(body["service_tier"], body["max_tokens"]) for body in bodies} == {("flex", 5)}
    assert set(prompts.endless(40, tier="flex", max_tokens=5)["logit_bias"].values()) == {-100}


def test_a_small_benchmark_of_every_part(model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "cache_directory", lambda: tmp_path)  # another test's benchmark does not stop this one
    stages: list[str] = []
    result = run_serving(ServingOptions(str(model_path), threads=2, sizes=SMALL), progress=stages.append)
    assert [part.name for part in result.parts] == list(PARTS)
    assert {stage.partition(":")[0] for stage in stages} >= set(PARTS)
    assert len(result.bars) == len(PARTS) + 2
    assert all(math.isfinite(bar.measured) and bar.measured >= 0 for bar in result.bars)
    found = {part.name: part.measurements for part in result.parts}
    assert len(found["stream"]["http_over_in_process"].samples) == 1
    assert len(found["refusal"]["refusal_seconds"].samples) == 3
    assert found["flood"]["loaded_ttft_seconds"].minimum > 0
    assert found["beside"]["crowd_tokens_per_second"].minimum > 0
    assert found["turn"]["next_turn_cached_tokens"].minimum > 80
    assert found["turn"]["empty_cache_cached_tokens"].maximum < 40  # what every prompt has in common, at most
    assert 0 < found["gateway"]["added_seconds"].minimum < found["gateway"]["ttft_seconds"].maximum
    assert all(0 < part.client_cpu_share < 2 for part in result.parts)
    assert str(model_path.parent) not in str(result)
    assert isinstance(result, ServingResult)


def test_what_cannot_be_measured_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="a part is one of stream, gateway, turn, beside, flood, refusal"):
        run_serving(ServingOptions(parts=("stream", "\x1b[31mhostile")), progress=lambda _: None)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with (
        pytest.raises(EngineError, match=r"^the server did not start: error: [^\n]+$"),
        Server(broken, threads=1, context=64),
    ):
        pass


async def test_an_answer_of_another_tier_ends_the_benchmark() -> None:
    stream = STREAM.replace(b"ultrafast", b"downgrade")  # of the same length
    async with answering(lambda: [stream]) as (client, _):
        server = SimpleNamespace(port=client.port, key="key")
        stage = Stage(Path(), 1, SMALL, server, None, lambda _: None)  # type: ignore[arg-type]
        with pytest.raises(EngineError, match="answered at the tier downgrade"):
            await stage.ultrafast({})
        stage.client.close()
