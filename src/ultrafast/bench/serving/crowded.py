"""Parts with a crowd: what an ultrafast stream keeps beside it, how fast a full server refuses, what overload costs."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ultrafast.bench.serving.loads import Crowd, arrivals, goodput, longest_wait, tokens_between
from ultrafast.bench.serving.stage import ULTRAFAST, Measurements
from ultrafast.errors import EngineError

if TYPE_CHECKING:
    from ultrafast.bench.serving.client import Reply
    from ultrafast.bench.serving.stage import Stage

LOWER_TIERS: Final = ("priority", "default", "flex")
_PROMPT_TOKENS = 32  # of excerpt; the instruction and the template come to it
_PROBE_PROMPT_TOKENS = 100
_PROBE_TOKENS = 4
_FLOOD_TOKENS = 96
_LONG_TOKENS = 600
_HOLDING_TOKENS = 1500
_TAIL_SECONDS = 1.2  # after the measured span, so that a wait which began in it is seen whole
_PAUSE_SECONDS = (0.02, 0.12)  # between probes, at random: they meet the crowd's steps anywhere

# What `default` promises in the overload, as its configuration has it, and a second to the first and every next token.
_QUEUE_SECONDS: Final = 1.0
_WAIT_SECONDS: Final = 1.0
_TTFT_SECONDS: Final = _QUEUE_SECONDS + _WAIT_SECONDS
_OVERLOAD: Final = 5
_OVERLOAD_TOKENS: Final = (32, 96)
OVERLOAD_TIERS: Final = f"[tiers.default]\nslots = 16\nqueue_milliseconds = {_QUEUE_SECONDS * 1000:.0f}\n"


def beside_load(stage: Stage) -> str:
    """What ``beside`` asks."""
    sizes = stage.sizes
    return (
        f"per round: one {ULTRAFAST} stream of {sizes.stream_tokens} tokens alone; {sizes.crowd} default streams alone "
        f"for {sizes.window_seconds:g} s; the same {sizes.crowd} going on, and one {ULTRAFAST} stream beside them; "
        "waits: between two tokens of an answer, from the ultrafast request to its end"
    )


async def beside(stage: Stage) -> Measurements:
    """One ultrafast stream alone and beside a crowd of default streams, and what the crowd keeps."""
    names = ("alone_tokens_per_second", "beside_tokens_per_second", "beside_over_alone", "crowd_tokens_per_second")
    found: Measurements = {name: [] for name in (*names, "kept_share", "longest_wait_seconds")}
    sizes = stage.sizes
    ours = partial(stage.prompts.body, _PROMPT_TOKENS, tier=ULTRAFAST, max_tokens=sizes.stream_tokens)
    theirs = partial(stage.prompts.body, _PROMPT_TOKENS, tier="default", max_tokens=_LONG_TOKENS)
    for index in range(1, sizes.rounds + 1):
        stage.progress(f"beside: round {index} of {sizes.rounds}")
        alone = await stage.ultrafast(ours())
        crowd = Crowd(stage.client, [theirs] * sizes.crowd)
        try:
            await crowd.begun()
            await stage.settle()
            start = time.perf_counter()
            await asyncio.sleep(sizes.window_seconds)
            end = time.perf_counter()
            reply = await stage.ultrafast(ours())
            await asyncio.sleep(_TAIL_SECONDS)
        finally:
            await crowd.stop()
        replies = crowd.replies()
        own = tokens_between(replies, start, end) / (end - start)
        first, last = reply.token_times[0], reply.token_times[-1]
        speeds = alone.output_tokens_per_second, reply.output_tokens_per_second
        found["alone_tokens_per_second"].append(speeds[0])
        found["beside_tokens_per_second"].append(speeds[1])
        found["beside_over_alone"].append(speeds[1] / speeds[0])
        found["crowd_tokens_per_second"].append(own)
        found["kept_share"].append(tokens_between(replies, first, last) / (last - first) / own)
        found["longest_wait_seconds"].append(longest_wait(replies, reply.started, last))
        await stage.settle()
    return found


def flood_load(stage: Stage) -> str:
    """What ``flood`` asks."""
    sizes = stage.sizes
    return (
        f"{sizes.blocks} times {sizes.probes_per_block} {ULTRAFAST} requests ({_PROBE_PROMPT_TOKENS} tokens of text, "
        f"instruction and template beside), one after another with random pauses, on an idle server, and as many "
        f"beside {len(LOWER_TIERS) * sizes.crowd} clients in a closed loop, {sizes.crowd} each at "
        f"{', '.join(LOWER_TIERS)}: 3 × the {sizes.crowd} sequences that run beside the reserved slots; their answers "
        f"are of {_FLOOD_TOKENS} tokens"
    )


async def flood(stage: Stage) -> Measurements:
    """TTFT of ultrafast requests, idle and with the lower tiers at three times their capacity, in blocks."""
    sizes = stage.sizes
    found: Measurements = {f"{state}_{name}": [] for state in ("idle", "loaded") for name in _PROBE_NAMES}
    bodies = [
        partial(stage.prompts.body, _PROMPT_TOKENS, tier=tier, max_tokens=_FLOOD_TOKENS)
        for tier in LOWER_TIERS
        for _ in range(sizes.crowd)
    ]
    for index in range(1, sizes.blocks + 1):
        stage.progress(f"flood: block {index} of {sizes.blocks}")
        await _probe(stage, "idle", found)
        crowd = Crowd(stage.client, bodies)
        try:
            await crowd.begun(sizes.crowd)
            await stage.settle()
            await _probe(stage, "loaded", found)
        finally:
            await crowd.stop()
        await stage.settle()
    return found


_PROBE_NAMES = ("ttft_seconds", "engine_queue_seconds", "engine_prompt_seconds")


async def _probe(stage: Stage, state: str, found: Measurements) -> None:
    for _ in range(stage.sizes.probes_per_block):
        await asyncio.sleep(stage.random.uniform(*_PAUSE_SECONDS))
        reply = await stage.ultrafast(
            stage.prompts.body(_PROBE_PROMPT_TOKENS, tier=ULTRAFAST, max_tokens=_PROBE_TOKENS)
        )
        _, times = reply.engine_account()
        for name, value in zip(_PROBE_NAMES, (reply.ttft_seconds, times.queue_time, times.prompt_time), strict=True):
            found[f"{state}_{name}"].append(value)


def refusal_load(stage: Stage) -> str:
    """What ``refusal`` asks."""
    sizes = stage.sizes
    return (
        f"both {ULTRAFAST} slots in use and {sizes.crowd} default streams beside them; {sizes.refusals} requests that "
        "would rather be refused than wait, one after another, over a kept connection; from the request to the "
        "whole answer"
    )


async def refusal(stage: Stage) -> Measurements:
    """How long a full server takes to say no."""
    sizes = stage.sizes
    holding = partial(stage.prompts.endless, _PROMPT_TOKENS, tier=ULTRAFAST, max_tokens=_HOLDING_TOKENS)
    theirs = partial(stage.prompts.body, _PROMPT_TOKENS, tier="default", max_tokens=_LONG_TOKENS)
    stage.progress("refusal")
    crowd = Crowd(stage.client, [holding] * 2 + [theirs] * sizes.crowd)
    seconds = []
    try:
        await crowd.begun()
        for _ in range(sizes.refusals):
            await asyncio.sleep(stage.random.uniform(0.0, 0.02))
            body = stage.prompts.body(_PROMPT_TOKENS, tier=ULTRAFAST, max_tokens=_PROBE_TOKENS)
            reply = await stage.client.ask(body, over_capacity="refuse")
            if reply.error_code != "tier_at_capacity" or reply.ended is None:
                raise EngineError(f"a full server did not refuse: status {reply.status}, {reply.error_code}")
            seconds.append(reply.ended - reply.started)
    finally:
        await crowd.stop()
    return {"refusal_seconds": seconds}


def overload_load(stage: Stage) -> str:
    """What ``overload`` asks."""
    shortest, longest = _OVERLOAD_TOKENS
    sizes = stage.sizes
    return (
        f"default requests of {shortest} to {longest} tokens; slots 16, a queue of {_QUEUE_SECONDS:g} s, then refusal. "
        f"Per round: {sizes.crowd} clients in a closed loop; Poisson arrivals at the rate they were served; "
        f"{_OVERLOAD} × that rate. Goodput: tokens a second, over {sizes.overload_seconds:g} s after "
        f"{sizes.lead_seconds:g} s, of complete answers whose first token came within {_TTFT_SECONDS:g} s and every "
        f"next one within {_WAIT_SECONDS:g} s; peak: the higher of the other two of the round"
    )


async def overload(stage: Stage) -> Measurements:
    """Goodput with as many clients as slots, at the rate these were served, and at five times that rate."""
    names = ("closed_loop_goodput", "full_load_goodput", "overload_goodput", "goodput_over_peak")
    found: Measurements = {name: [] for name in (*names, "full_load_requests_per_second", "overload_refused_share")}
    for index in range(1, stage.sizes.overload_rounds + 1):
        stage.progress(f"overload: round {index} of {stage.sizes.overload_rounds}")
        closed, rate = await _closed_loop(stage)
        full, _ = await _open_loop(stage, rate)
        over, refused = await _open_loop(stage, _OVERLOAD * rate)
        peak = max(closed, full)
        values = (closed, full, over, over / peak if peak else 0.0, rate, refused)
        for name, value in zip(found, values, strict=True):
            found[name].append(value)
    return found


async def _closed_loop(stage: Stage) -> tuple[float, float]:
    """Goodput of as many clients as slots, and requests served a second."""
    crowd = Crowd(stage.client, [partial(_overload_body, stage)] * stage.sizes.crowd)
    await crowd.begun()
    await asyncio.sleep(stage.sizes.lead_seconds)
    start = time.perf_counter()
    await asyncio.sleep(stage.sizes.overload_seconds)
    end = time.perf_counter()
    await crowd.finish()
    replies = crowd.replies()
    length = sum(len(reply.token_times) for reply in replies) / len(replies)
    return _goodput(replies, start, end), tokens_between(replies, start, end) / (end - start) / length


async def _open_loop(stage: Stage, rate: float) -> tuple[float, float]:
    """Goodput at a rate of arrivals, and the share of requests that was refused."""
    sizes = stage.sizes
    start = time.perf_counter() + sizes.lead_seconds
    seconds = sizes.lead_seconds + sizes.overload_seconds
    replies = await arrivals(
        stage.client, partial(_overload_body, stage), rate=rate, seconds=seconds, random=stage.random
    )
    refused = sum(reply.status != 200 for reply in replies) / max(1, len(replies))
    return _goodput(replies, start, start + sizes.overload_seconds), refused


def _overload_body(stage: Stage) -> dict[str, Any]:
    """Lengths differ, so that clients in a closed loop do not all come back at once."""
    length = stage.random.randint(*_OVERLOAD_TOKENS)
    return stage.prompts.body(_PROMPT_TOKENS, tier="default", max_tokens=length)


def _goodput(replies: list[Reply], start: float, end: float) -> float:
    return goodput(replies, start, end, ttft_seconds=_TTFT_SECONDS, wait_seconds=_WAIT_SECONDS)
