"""What is sent to another server of OpenAI's API, and what is understood of its answer."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from ultrafast.backends.base import Call, SamplingParameters, TokenLogprob, TopToken

UNKNOWN_TOKEN: Final = -1  # the id of a token that another server generated

# Fields that some servers refuse although OpenAI has them, and what is sent instead once one has said so. vLLM,
# llama.cpp's server, Cerebras and today's Groq take ``stream_options``; Mistral and some of Azure's do not. The older
# ``max_tokens`` is known everywhere but to OpenAI's models that reason.
ALTERNATIVES: Final[dict[str, str | None]] = {"stream_options": None, "max_tokens": "max_completion_tokens"}

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


class PromptDetails(msgspec.Struct):
    """A part of the usage."""

    cached_tokens: int | None = None


class Times(msgspec.Struct):
    """Seconds, as Cerebras reports them in ``time_info`` and Groq in its usage."""

    queue_time: float | None = None
    prompt_time: float | None = None
    completion_time: float | None = None


class ChunkUsage(Times):
    """The token counts of the whole request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class GroqExtension(msgspec.Struct):
    """Groq's own field, which had the usage before ``stream_options`` was known there."""

    usage: ChunkUsage | None = None


class Chunk(msgspec.Struct):
    """One event of the stream, as far as it matters here."""

    choices: list[ChunkChoice] | None = None
    usage: ChunkUsage | None = None
    service_tier: str | None = None
    service_tier_used: str | None = None  # Cerebras
    time_info: Times | None = None  # Cerebras, and we
    x_groq: GroqExtension | None = None
    error: Any = None


_decoder: Final = msgspec.json.Decoder(Chunk)


def read_chunk(data: bytes) -> Chunk:
    """One event's data. Raises ``ValueError`` (msgspec's errors are) where it is no chunk."""
    return _decoder.decode(data)


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
