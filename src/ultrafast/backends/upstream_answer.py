"""From the chunks of another server's stream to generation events and a summary."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from ultrafast.backends.base import Call, GenerationEvent, Summary
from ultrafast.backends.upstream_messages import Chunk, ChunkChoice, read_times, read_usage, token_logprobs

_MOST_COMPLETION_TOKENS: Final = 1 << 24  # beyond, it is no count
# Of a prompt, which has no more tokens than bytes: what a template and a system prompt there may add.
_MOST_ADDED_TOKENS: Final = 1 << 15
_MOST_ADDED_TOKENS_PER_MESSAGE: Final = 32
_LETTERS_PER_TOKEN: Final = 4  # a usual estimate, where no one counts
_MOST_LETTERS_PER_TOKEN: Final = 256  # beyond, the other server does not keep to ``max_tokens``
_SPARE_LETTERS: Final = 4096
_FAILED_REASONS: Final = frozenset({"error", "abort"})  # vLLM's words for an answer that was not finished
_KNOWN_REASONS: Final = frozenset({"stop", "length", "content_filter"})


class AnswerError(ValueError):
    """What came is no answer to the call."""


class Answer:
    """One answer as it comes. The end of its last choice is held back until the account is there."""

    def __init__(self, call: Call, *, limits_tokens: bool = True) -> None:
        """``limits_tokens``: the call's ``max_tokens`` were sent."""
        self._call = call
        self._limits_tokens = limits_tokens
        self._finished: set[int] = set()
        self._last: tuple[int, str] | None = None
        self._pieces = 0
        self._letters = 0
        self._usage: object = None  # as reported last
        self._times: tuple[float, float, float] | None = None
        self._started = time.perf_counter()
        self._first: float | None = None
        self.tier_word: str | None = None  # as reported last
        self.alive = False  # something was generated, be it words of reasoning
        self.held_seconds = 0.0  # for which nothing was read, as whoever reads us was behind
        self.estimated = True  # the tokens of the summary
        self.implausible = False  # the tokens that were reported

    @property
    def begun(self) -> bool:
        """Whether an event was given."""
        return self._first is not None

    @property
    def complete(self) -> bool:
        """Whether every choice has ended: what may still come is the account."""
        return self._last is not None

    def add(self, chunk: Chunk) -> list[GenerationEvent]:
        """The events of ``chunk``. Raises AnswerError."""
        self.tier_word = chunk.service_tier_used or chunk.service_tier or self.tier_word
        usage = chunk.reported_usage
        if usage is not None:
            self._usage = usage
        for times in (usage, chunk.time_info):
            if times is not None:
                self._times = read_times(times) or self._times
        self.alive = False
        events = [event for choice in chunk.choices or () for event in self._of_choice(choice)]
        if events or self._last is not None:
            self._first = self._first or time.perf_counter()
        return events

    def end(self) -> GenerationEvent:
        """The last event, with the summary. Raises AnswerError where the answer was cut before it was complete."""
        if self._last is None:
            raise AnswerError("it ended before the answer was complete")
        choice, reason = self._last
        return GenerationEvent(choice, [], "", None, reason, self._summary())

    def _of_choice(self, choice: ChunkChoice) -> Iterator[GenerationEvent]:
        delta = choice.delta
        text = (delta.content or "") if delta is not None else ""
        logprobs = token_logprobs(choice.logprobs) if self._call.chat.logprobs else None
        reason = choice.finish_reason
        self.alive |= bool(delta is not None and (delta.reasoning_content or delta.reasoning))
        if not text and logprobs is None and reason is None:
            return
        if not 0 <= choice.index < self._call.chat.choices or choice.index in self._finished:
            raise AnswerError("it sent a choice that was not asked for")
        if reason in _FAILED_REASONS:
            raise AnswerError("it gave the answer up")
        self.alive = True
        self._letters += len(text)
        if self._letters > self._call.max_tokens * self._call.chat.choices * _MOST_LETTERS_PER_TOKEN + _SPARE_LETTERS:
            raise AnswerError("it sent far more than was asked for")
        self._pieces += len(logprobs) if logprobs is not None else bool(text)
        if reason is not None:
            reason = reason if reason in _KNOWN_REASONS else "stop"
            self._finished.add(choice.index)
            if len(self._finished) == self._call.chat.choices:
                self._last, reason = (choice.index, reason), None
        if text or logprobs is not None or reason is not None:
            yield GenerationEvent(choice.index, [], text, logprobs, reason)

    def _summary(self) -> Summary:
        ended, first = time.perf_counter(), self._first or time.perf_counter()
        prompt, cached, completion = self._tokens()
        seconds = self._times or (0.0, first - self._started, ended - first - self.held_seconds)
        return Summary(prompt, cached, completion, *seconds, first - self._started, completion)

    def _tokens(self) -> tuple[int, int, int]:
        """Of the prompt, cached ones among them, and of the answer: as reported, if that can be, else as relayed."""
        call = self._call
        messages = call.chat.messages
        sent_bytes = sum(len(text.encode()) for message in messages for text in message.values())
        most_prompt = sent_bytes + _MOST_ADDED_TOKENS + len(messages) * _MOST_ADDED_TOKENS_PER_MESSAGE
        usage = read_usage(self._usage, most_prompt=most_prompt, most_completion=_MOST_COMPLETION_TOKENS)
        if usage is not None and self._pieces and not (usage.prompt and usage.completion):
            usage = None  # text takes tokens of both
        self.estimated = usage is None
        self.implausible = self.estimated and self._usage is not None
        prompt, cached, completion = usage or (self._estimated_prompt(), 0, self._pieces)
        most = call.max_tokens * call.chat.choices
        if self._limits_tokens and completion > most:
            self.implausible |= not self.estimated
            completion = most
        return prompt, cached, completion

    def _estimated_prompt(self) -> int:
        if self._call.prompt_tokens is not None:
            return len(self._call.prompt_tokens)
        letters = sum(len(text) for message in self._call.chat.messages for text in message.values())
        return -(-letters // _LETTERS_PER_TOKEN)
