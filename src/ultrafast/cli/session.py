"""One model for one person: the engine process and the prompt's tokens, behind a blocking interface."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from ultrafast.backends.base import (
    GenerationEvent,
    GenerationRequest,
    GenerationStream,
    ModelDescription,
    SamplingParameters,
    Summary,
)
from ultrafast.backends.local import LocalBackend
from ultrafast.backends.prompt import ChatPrompt
from ultrafast.cli import options
from ultrafast.cli.progress import download_progress, loading
from ultrafast.errors import ContextLengthError
from ultrafast.weights.store import resolve_model

__all__ = ["Session", "statistics_line", "timings"]

CANCEL_SECONDS = 5.0

T = TypeVar("T")


class Session:
    """A loaded model. Entering starts its process and may first download it; leaving stops the process.

    The event loop runs in a thread of its own, so that the main thread can wait for a person at a prompt while the
    engine is watched, and so that an interrupt (Ctrl-C) always reaches the main thread as ``KeyboardInterrupt``.
    """

    def __init__(
        self,
        model: str | None,
        *,
        threads: int | None,
        context: int | None,
        chat_template: Path | None = None,
        quantize: str | None = None,
    ) -> None:
        self._model = model
        self._threads = threads
        self._context = context
        self._chat_template = chat_template
        self._quantize = quantize
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ultrafast-session", daemon=True)
        self._backend: LocalBackend | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def _start(self) -> None:
        with download_progress() as progress:
            location = resolve_model(self._model, progress=progress)
        with loading(f"loading {location.name}") as show_stage:
            self._backend = LocalBackend(
                location,
                threads=self._threads,
                context=self._context,
                instruction_set=options.forced_instruction_set(),
                quantize=self._quantize,
                progress=show_stage,
            )
            starting = _Work(self._loop, self._backend.start())
            try:
                self._prompt = ChatPrompt.from_file(location.path, self._chat_template)  # meanwhile, in this process
                starting.result()
            except BaseException:
                starting.cancel()
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engine process and the loop; safe to call twice."""
        if self._loop.is_closed():
            return
        try:
            if self._backend is not None:
                self._wait(self._backend.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @property
    def model(self) -> ModelDescription:
        """What the engine says of the model it has loaded."""
        assert self._backend is not None
        return self._backend.model

    def prompt_tokens(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of a conversation, ready for the assistant's answer.

        Raises:
            RequestError: the conversation cannot be rendered.
            ContextLengthError: it leaves no room for an answer.
        """
        return self._checked(self._prompt.tokens(messages))

    def text_tokens(self, text: str) -> list[int]:
        """Tokens of a text to be continued. Raises ``ContextLengthError`` where it leaves no room."""
        return self._checked(self._prompt.text_tokens(text))

    @property
    def can_chat(self) -> bool:
        """Whether there is a chat template; without one the model continues texts."""
        return self._prompt.can_chat

    def _checked(self, tokens: list[int]) -> list[int]:
        if len(tokens) >= self.model.context:
            raise ContextLengthError(
                f"the prompt has {len(tokens)} tokens and the context holds {self.model.context}, answer included"
            )
        return tokens

    def generate(
        self, prompt_tokens: list[int], *, sampling: SamplingParameters, max_tokens: int, ignore_end: bool = False
    ) -> Generator[GenerationEvent]:
        """Events of one answer, as they come. Closing the iterator, or an interrupt, stops the work."""
        request = GenerationRequest(
            request_id=uuid.uuid4().hex,
            prompt_tokens=prompt_tokens,
            sampling=sampling,
            max_tokens=min(max_tokens, self.model.context - len(prompt_tokens)),
            ignore_end=ignore_end,
        )
        events = self._wait(self._submit(request))
        try:
            while (event := self._wait(_next(events))) is not None:
                yield event
        finally:
            self._wait(events.aclose())

    def cut(self, last: GenerationEvent, max_tokens: int) -> str | None:
        """What cut an answer short, told from its last event; None where it came to its end."""
        if last.finish_reason != "length" or last.summary is None:
            return None
        if last.summary.completion_tokens == max_tokens:
            return f"cut at --max-tokens {max_tokens}"
        return f"cut at the context of {self.model.context} tokens"

    async def _submit(self, request: GenerationRequest) -> GenerationStream:
        assert self._backend is not None
        return self._backend.generate(request)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return _Work(self._loop, work).result()


class _Work(Generic[T]):
    """A coroutine that runs in the session's loop, as the main thread sees it.

    Unlike the future of ``run_coroutine_threadsafe``, which is cancelled the moment one asks, this one ends when the
    coroutine has: nothing is asked of the backend while it still cleans up.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._outcome: Future[T] = Future()
        self._task: asyncio.Task[T] | None = None
        loop.call_soon_threadsafe(self._start, work)

    def result(self) -> T:
        """Wait for the end. An interrupt cancels the work, waits for it to be over and goes on."""
        try:
            return self._outcome.result()
        except KeyboardInterrupt:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Cancel the work and wait for it to be over."""
        self._loop.call_soon_threadsafe(self._cancel)
        wait([self._outcome], timeout=CANCEL_SECONDS)

    def _start(self, work: Coroutine[Any, Any, T]) -> None:
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._end)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._outcome.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(task.result())


async def _next(events: GenerationStream) -> GenerationEvent | None:
    return await anext(events, None)


def timings(summary: Summary) -> dict[str, float]:
    """The record of one answer: seconds, and tokens per second (0 where there was nothing to measure)."""
    return {
        "queue_seconds": summary.queue_seconds,
        "ttft_seconds": summary.ttft_seconds,
        "prefill_seconds": summary.prefill_seconds,
        "decode_seconds": summary.decode_seconds,
        "prefill_tokens_per_second": _rate(summary.prompt_tokens - summary.cached_tokens, summary.prefill_seconds),
        # The first token comes out of the prefill.
        "decode_tokens_per_second": _rate(summary.completion_tokens - 1, summary.decode_seconds),
    }


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if tokens > 0 and seconds > 0 else 0.0


def statistics_line(
    summary: Summary, *, seed: int | None = None, notes: Sequence[str] = (), cut: str | None = None
) -> str:
    """One line about an answer: tokens, time to first token, tokens per second, the seed that counted, what cut it."""
    parts = [
        f"{summary.completion_tokens} token{'' if summary.completion_tokens == 1 else 's'}",
        f"TTFT {summary.ttft_seconds * 1000:.0f} ms",
    ]
    if rate := timings(summary)["decode_tokens_per_second"]:
        parts.append(f"{rate:.1f} tokens/s")
    if seed is not None:
        parts.append(f"seed {seed}")
    parts += notes
    if cut is not None:
        parts.append(cut)
    return ", ".join(parts)
