"""The bodies of chat completion responses, whole and in pieces."""

from __future__ import annotations

from typing import Final

import msgspec

from ultrafast.backends.base import Summary, TokenLogprob, TopToken
from ultrafast.errors import UltrafastError
from ultrafast.gateway.failures import body_of

KEEP_ALIVE: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"

_encode = msgspec.json.encode


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """See OpenAI's usage object."""

    cached_tokens: int
    audio_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """See OpenAI's usage object. A prediction is a hint that nothing is drafted from yet, so both counts are 0."""

    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a request over all choices; an end token counts as generated."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TimeInfo(msgspec.Struct, frozen=True):
    """Wall-clock seconds: waiting (slot, backends that failed, engine), to the first token, to the last."""

    queue_time: float
    prompt_time: float
    completion_time: float
    total_time: float


class TopLogprobEntry(msgspec.Struct, frozen=True):
    """An alternative token."""

    token: str
    logprob: float
    bytes: list[int]


class LogprobEntry(msgspec.Struct, frozen=True):
    """A generated token; ``bytes`` are exact where ``token`` can only show a part of a character as U+FFFD."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprobEntry]


class Logprobs(msgspec.Struct, frozen=True):
    """The log probabilities of a choice or of one event of it."""

    content: list[LogprobEntry]
    refusal: None = None


class Message(msgspec.Struct, frozen=True):
    """The answer of one choice."""

    role: str
    content: str
    refusal: None = None
    annotations: list[None] = []


class Choice(msgspec.Struct, frozen=True):
    """One choice of a whole response."""

    index: int
    message: Message
    logprobs: Logprobs | None
    finish_reason: str


class ChatCompletion(msgspec.Struct, frozen=True):
    """A whole response. ``seed`` and ``time_info`` are ours."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    service_tier: str
    system_fingerprint: str | None
    seed: int
    time_info: TimeInfo


class Heading(msgspec.Struct, frozen=True):
    """What is equal in every piece of a response; the tier, where another server tells it late, from then on."""

    id: str
    created: int
    model: str
    service_tier: str
    system_fingerprint: str | None


def usage_of(summary: Summary) -> Usage:
    """The usage object."""
    return Usage(
        summary.prompt_tokens,
        summary.completion_tokens,
        summary.prompt_tokens + summary.completion_tokens,
        PromptTokensDetails(summary.cached_tokens),
        CompletionTokensDetails(),
    )


def time_info_of(summary: Summary, gateway_queue_seconds: float) -> TimeInfo:
    """The times, to the microsecond."""
    queue = gateway_queue_seconds + summary.queue_seconds
    prompt, completion = summary.prefill_seconds, summary.decode_seconds
    return TimeInfo(round(queue, 6), round(prompt, 6), round(completion, 6), round(queue + prompt + completion, 6))


def logprobs_of(entries: list[TokenLogprob]) -> Logprobs:
    """The logprobs object."""
    return Logprobs([_entry(entry) for entry in entries])


def _entry(entry: TokenLogprob) -> LogprobEntry:
    token = entry.token_bytes
    return LogprobEntry(
        token.decode("utf-8", "replace"), entry.logprob, list(token), [_top_entry(top) for top in entry.top]
    )


def _top_entry(top: TopToken) -> TopLogprobEntry:
    return TopLogprobEntry(top.token_bytes.decode("utf-8", "replace"), top.logprob, list(top.token_bytes))


class ChunkWriter:
    """Server-sent events of one response, spliced from ready-made bytes: no JSON object is built per event."""

    def __init__(self, heading: Heading, *, seed: int, include_usage: bool, gateway_queue_seconds: float = 0.0) -> None:
        self._begin(heading)
        self._close = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._plain_end = b'},"logprobs":null,"finish_reason":null}]' + self._close
        self._seed = b',"seed":%d' % seed
        self._queue_seconds = gateway_queue_seconds
        self._started: set[int] = set()

    def _begin(self, heading: Heading) -> None:
        self._heading = heading
        self._head = (
            b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"service_tier":%b,'
            b'"system_fingerprint":%b,'
            % (
                _encode(heading.id),
                heading.created,
                _encode(heading.model),
                _encode(heading.service_tier),
                _encode(heading.system_fingerprint),
            )
        )
        self._open = self._head + b'"choices":[{"index":'

    def name_tier(self, tier: str) -> None:
        """Tell from the next event on that ``tier`` is served: some servers say so in the middle, or with the usage."""
        self._begin(msgspec.structs.replace(self._heading, service_tier=tier))

    def has_begun(self, choice: int) -> bool:
        """Whether an event of ``choice`` was made already: the first one says more than the others."""
        return choice in self._started

    def event(
        self,
        choice: int,
        text: str,
        logprobs: list[TokenLogprob] | None,
        finish_reason: str | None,
        summary: Summary | None,
    ) -> bytes:
        """One event for one step of one choice; empty where there is nothing to tell yet."""
        first = choice not in self._started
        if logprobs is None and finish_reason is None:
            if not text:
                return b""
            if not first:  # nearly every event, made while caches are cold: in as few steps as may be
                return b'%b%d,"delta":{"content":%b%b' % (self._open, choice, _encode(text), self._plain_end)
        parts = [self._open, b"%d" % choice]
        if first:
            self._started.add(choice)
            parts += (b',"delta":{"role":"assistant","content":', _encode(text), b"}")
        elif text:
            parts += (b',"delta":{"content":', _encode(text), b"}")
        else:
            parts.append(b',"delta":{}')
        parts += (b',"logprobs":', b"null" if logprobs is None else _encode(logprobs_of(logprobs)))
        parts += (b',"finish_reason":', _encode(finish_reason), b"}]")
        if first:
            parts.append(self._seed)
        if summary is not None:
            parts += (b',"time_info":', _encode(time_info_of(summary, self._queue_seconds)))
        parts.append(self._close)
        return b"".join(parts)

    def usage(self, summary: Summary) -> bytes:
        """The last event where ``stream_options.include_usage`` was asked for."""
        return b'%b"choices":[],"usage":%b}\n\n' % (self._head, _encode(usage_of(summary)))


def error_event(error: UltrafastError) -> bytes:
    """An error after the response began."""
    return b"data: " + body_of(error) + b"\n\n"
