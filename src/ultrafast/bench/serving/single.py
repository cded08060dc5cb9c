"""Parts with one request at a time: what HTTP costs a stream, what the gateway adds, what a next turn saves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ultrafast.backends.prompt import ChatPrompt
from ultrafast.bench.serving.stage import ULTRAFAST, Measurements
from ultrafast.bench.worker import Worker

if TYPE_CHECKING:
    from ultrafast.bench.serving.stage import Stage

_PROMPT_TOKENS = 32  # of excerpt; the instruction and the template come to it
_SHORT_TOKENS = 16
_FEW_TOKENS = 4


def stream_load(stage: Stage) -> str:
    """What ``stream`` asks."""
    sizes = stage.sizes
    return (
        f"{sizes.stream_loads} times: a server and the engine's own loop in another process, both fresh, so that where "
        f"a model comes to lie in memory is no single chance; then, {sizes.stream_rounds} times, in turns, one stream "
        f"of {sizes.stream_tokens} tokens at {ULTRAFAST} over HTTP, and the same prompt in process"
    )


async def stream(stage: Stage) -> Measurements:
    """Output speed of one stream over HTTP, and of the same tokens in process, in alternation."""
    found: Measurements = {"http_tokens_per_second": [], "in_process_tokens_per_second": [], "http_over_in_process": []}
    prompt = ChatPrompt.from_file(stage.model_path)
    for load in range(stage.sizes.stream_loads):
        stage.progress(f"stream: load {load + 1} of {stage.sizes.stream_loads}")
        with stage.server.another() as server, Worker.of_engine() as worker:
            worker.load(stage.model_path, threads=stage.threads, context=stage.sizes.context)
            fresh = replace(stage, server=server)
            try:
                for index in range(stage.sizes.stream_rounds + 1):
                    http, in_process = await _stream_round(fresh, worker, prompt, http_first=(load + index) % 2 == 0)
                    if index:  # the first one opens the connection
                        found["http_tokens_per_second"].append(http)
                        found["in_process_tokens_per_second"].append(in_process)
                        found["http_over_in_process"].append(http / in_process)
            finally:
                fresh.client.close()
    return found


async def _stream_round(stage: Stage, worker: Worker, prompt: ChatPrompt, *, http_first: bool) -> tuple[float, float]:
    """Tokens a second over HTTP and in process, of one prompt."""
    count = stage.sizes.stream_tokens
    body = stage.prompts.body(_PROMPT_TOKENS, tier=ULTRAFAST, max_tokens=count)
    tokens = prompt.tokens(body["messages"])
    http = in_process = 0.0
    for over_http in (http_first, not http_first):
        if over_http:
            http = (await stage.ultrafast(body)).output_tokens_per_second
        else:
            in_process = (count - 1) / worker.decode(tokens, count - 1).seconds
    return http, in_process


def gateway_load(stage: Stage) -> str:
    """What ``gateway`` asks."""
    return (
        f"{stage.sizes.short_samples} short prompts ({_SHORT_TOKENS} tokens of text, instruction and template beside), "
        f"one after another, at {ULTRAFAST}, over a kept connection; added: first text seen by the client, less the "
        "prompt's time in the engine"
    )


async def gateway(stage: Stage) -> Measurements:
    """TTFT of short prompts as the client sees it, and what of it is not the engine's."""
    found: Measurements = {"ttft_seconds": [], "added_seconds": []}
    stage.progress("gateway")
    for index in range(stage.sizes.short_samples + 2):
        reply = await stage.ultrafast(stage.prompts.body(_SHORT_TOKENS, tier=ULTRAFAST, max_tokens=_FEW_TOKENS))
        _, times = reply.engine_account()
        if index >= 2:  # the first ones open the connection
            found["ttft_seconds"].append(reply.ttft_seconds)
            found["added_seconds"].append(reply.ttft_seconds - times.prompt_time)
    return found


def turn_load(stage: Stage) -> str:
    """What ``turn`` asks."""
    return (
        f"the second turn of a conversation of {stage.sizes.history_tokens:,} tokens at {ULTRAFAST}, by the project "
        "that held its first turn, and the same request by another project, whose cache has nothing of it; who goes "
        "first alternates, every conversation is new"
    )


async def turn(stage: Stage) -> Measurements:
    """TTFT of a next turn, with its history in the cache and with an empty one."""
    found: Measurements = {
        "next_turn_ttft_seconds": [],
        "empty_cache_ttft_seconds": [],
        "next_over_empty": [],
        "prompt_tokens": [],
        "next_turn_cached_tokens": [],
        "empty_cache_cached_tokens": [],
    }
    other = stage.server.create_project("another")
    for index in range(1, stage.sizes.rounds + 1):
        stage.progress(f"turn: round {index} of {stage.sizes.rounds}")
        first = stage.prompts.body(stage.sizes.history_tokens, tier=ULTRAFAST, max_tokens=16)
        answer = await stage.ultrafast(first)
        question = [{"role": "assistant", "content": answer.text}, {"role": "user", "content": "What happens then?"}]
        body = first | {"messages": [*first["messages"], *question], "max_tokens": _FEW_TOKENS}
        ttft = {}
        for name, key in (("next_turn", None), ("empty_cache", other))[:: 1 if index % 2 else -1]:
            reply = await stage.ultrafast(body, key=key)
            usage, _ = reply.engine_account()
            ttft[name] = reply.ttft_seconds
            found[f"{name}_ttft_seconds"].append(reply.ttft_seconds)
            found[f"{name}_cached_tokens"].append(usage.prompt_tokens_details.cached_tokens)
        found["prompt_tokens"].append(usage.prompt_tokens)
        found["next_over_empty"].append(ttft["next_turn"] / ttft["empty_cache"])
    return found
