"""What is sent to another server of OpenAI's API, and what is understood of its answer."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import msgspec

from ultrafast.backends.base import Call, SamplingParameters, TokenLogprob, TopToken

UNKNOWN_TOKEN: Final = -1  # the id of a token that another server generated

# Fields that some servers refuse although OpenAI has them, and what is sent instead once one has said so. vLLM,
# llama.cpp's server, Cerebras and today's Groq take ``stream_options``; Mistral and some of Azure's do not. The older
# ``max_tokens`` is known everywhere but to OpenAI's models that reason.
ALTERNATIVES: Final[dict[str, str | None]] = {"stream_options": None, "max_tokens": "max_completion_tokens"}

_MAXIMUM_SECONDS: Final = 1e9

_DEFAULTS: Final = SamplingParameters()
_NUMBERS: Final = (
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    # Not OpenAI's, yet common: vLLM and its kin have all three, llama.cpp's server the first two.
    "top_k",
    "min_p",
    "repetition_penalty",
)


def request_body(call: Call, *, model: str, service_tier: str | None) -> dict[str, Any]:
    """The request in OpenAI's terms: nothing that the client left at its default, and no word of ours.

    The seed is sent also where it was drawn here, for it is reported to the client as the one used.
    """
    chat, sampling = call.chat, call.chat.sampling
    body: dict[str, Any] = {
        "model": model,
        "messages": chat.messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": call.max_tokens,
        "seed": chat.seed,
    }
    for name in _NUMBERS:
        value = getattr(sampling, name)
        if value != getattr(_DEFAULTS, name):
            body[name] = value
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if chat.choices > 1:
        body["n"] = chat.choices
    if chat.stop:
        body["stop"] = chat.stop
    if chat.logprobs:
        body["logprobs"] = True
        body["top_logprobs"] = sampling.top_logprobs
    if service_tier is not None:
        body["service_tier"] = service_tier
    return body


class TopLogprob(msgspec.Struct):
    """An alternative at a position."""

    token: str = ""
    logprob: float = -math.inf
    bytes: list[int] | None = None


class Logprob(TopLogprob):
    """A generated token."""

    top_logprobs: list[TopLogprob] | None = None


class Logprobs(msgspec.Struct):
    """The log probabilities of a choice's new tokens."""

    content: list[Logprob] | None = None


class Delta(msgspec.Struct):
    """What is new of a choice. Words of reasoning are no answer, but a sign of life."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ChunkChoice(msgspec.Struct):
    """A choice's part of a chunk."""

    index: int = 0
    delta: Delta | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    """One event of the stream, as far as it matters here. Nothing in its account may end an answer: of any type."""

    choices: list[ChunkChoice] | None = None
    service_tier: str | None = None
    service_tier_used: str | None = None  # Cerebras
    usage: Any = None
    x_groq: Any = None  # Groq's own, which had the usage before ``stream_options`` was known there
    time_info: Any = None  # Cerebras, and we
    error: Any = None

    @property
    def reported_usage(self) -> object:
        """The token counts of the whole request, whatever they are; None where there are none."""
        return self.usage or _object(self.x_groq).get("usage")


_decoder: Final = msgspec.json.Decoder(Chunk)


def read_chunk(data: bytes) -> Chunk:
    """One event's data. Raises ``ValueError`` (msgspec's errors are) where it is no chunk."""
    return _decoder.decode(data)


class Usage(NamedTuple):
    """The token counts of a request that can be believed."""

    prompt: int
    cached: int
    completion: int


def read_usage(usage: object, *, most_prompt: int, most_completion: int) -> Usage | None:
    """What another server counted; None where that cannot be."""
    counts = _object(usage)
    prompt = _count(counts.get("prompt_tokens"), most_prompt)
    completion = _count(counts.get("completion_tokens"), most_completion)
    if prompt is None or completion is None:
        return None
    cached = _count(_object(counts.get("prompt_tokens_details")).get("cached_tokens"), most_prompt)
    return Usage(prompt, min(cached or 0, prompt), completion)


def read_times(times: object) -> tuple[float, float, float] | None:
    """Seconds of waiting, prompt and answer, as Cerebras tells them in ``time_info`` and Groq in its usage."""
    given = _object(times)
    if given.get("completion_time") is None:
        return None
    seconds = [given.get(name) or 0.0 for name in ("queue_time", "prompt_time", "completion_time")]
    if not all(isinstance(value, int | float) and 0 <= value <= _MAXIMUM_SECONDS for value in seconds):
        return None
    queue, prompt, completion = seconds
    return queue, prompt, completion


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object, most: int) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= most else None


def token_logprobs(logprobs: Logprobs | None) -> list[TokenLogprob] | None:
    """Log probabilities as our engine gives them, without ids."""
    if logprobs is None or not logprobs.content:
        return None
    return [
        TokenLogprob(UNKNOWN_TOKEN, _bytes(entry), entry.logprob, [_top(top) for top in entry.top_logprobs or []])
        for entry in logprobs.content
    ]


def _top(entry: TopLogprob) -> TopToken:
    return TopToken(UNKNOWN_TOKEN, _bytes(entry), entry.logprob)


def _bytes(entry: TopLogprob) -> bytes:
    if entry.bytes is None:
        return entry.token.encode()
    return bytes(entry.bytes)  # a ValueError where one is no byte
