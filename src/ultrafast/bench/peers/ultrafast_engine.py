"""Worker for our own engine, in this package's environment: the engine's whole loop, not the bare native step."""

from __future__ import annotations

import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import numpy as np

from ultrafast.engine.engine import Engine
from ultrafast.engine.messages import GenerationRequest
from ultrafast.models import WANT_LOGITS, WANT_TOKEN, load_model
from ultrafast.models.loaded import LoadedModel, StepResult
from ultrafast.models.sampling import SamplingParameters
from ultrafast.models.text import open_tokenizer

from .protocol import LoadOptions, LoadReport, Timing, serve

_GREEDY = SamplingParameters(temperature=0.0)


class UltrafastEngine:
    """One engine, one request at a time, its tokens detokenised as for a reader."""

    def __init__(self, model: LoadedModel, engine: Engine) -> None:
        self._model = model
        self._engine = engine

    def decode(self, prompt: list[int], count: int) -> Timing:
        """See :class:`Runtime`."""
        _, first, last, tokens = self._generate(prompt, count + 1)
        return Timing(last - first, tokens)

    def prefill(self, prompt: list[int]) -> Timing:
        """See :class:`Runtime`."""
        start, first, _, tokens = self._generate(prompt, 1)
        return Timing(first - start, tokens)

    def score(self, tokens: list[int], path: str) -> None:
        """See :class:`Runtime`. The native step is called directly: the engine has no use for all logits."""
        self._bind(len(tokens), prompt_length=len(tokens))
        with Path(path).open("wb") as file:
            for first in range(0, len(tokens), self._model.max_rows):
                self._pass(tokens[first : first + self._model.max_rows], first, WANT_LOGITS).logits.tofile(file)
        self._model.release(0)

    def decode_together(self, prompts: list[list[int]], count: int) -> Timing:
        """See :class:`Batching`."""
        engine = self._engine
        engine.forget_prefixes()
        for index, prompt in enumerate(prompts):
            engine.add(GenerationRequest(str(index), prompt, _GREEDY, count + 1, ignore_end=True))
        received: Counter[str] = Counter()
        tokens: list[int] = []
        start = last = time.perf_counter()
        while engine.has_work:
            events = engine.step()
            last = time.perf_counter()
            if len(received) == len(prompts):  # before this step already
                tokens += [token for _, event in events for token in event.token_ids]
            for name, event in events:
                received[name] += len(event.token_ids)
            if len(received) == len(prompts) and not tokens:
                start = last
        if failures := engine.take_failures():
            raise failures[0][1]
        return Timing(last - start, tokens)

    def verify(self, prompt: list[int], drafts: list[int], count: int) -> Timing:
        """See :class:`Batching`. The native step is called directly: nothing in the engine's loop asks for this yet."""
        model = self._model
        self._engine.forget_prefixes()
        self._bind(len(prompt) + len(drafts), prompt_length=len(prompt))
        for first in range(0, len(prompt), model.max_rows):
            self._pass(prompt[first : first + model.max_rows], first, WANT_TOKEN)
        start = time.perf_counter()
        for _ in range(count):
            result = self._pass(drafts, len(prompt), WANT_TOKEN)
            model.truncate(0, len(prompt))
        seconds = time.perf_counter() - start
        model.release(0)
        return Timing(seconds, result.tokens.tolist())

    def close(self) -> None:
        """Free the model."""
        self._model.close()

    def _bind(self, length: int, *, prompt_length: int) -> None:
        blocks = np.arange(-(-length // self._model.block_tokens), dtype=np.int32)
        self._model.bind(0, blocks, _GREEDY, prompt_length, 0)

    def _pass(self, tokens: list[int], first: int, want: int) -> StepResult:
        """One step over tokens that follow one another, the first at position ``first``, on the sequence bound."""
        rows = np.arange(len(tokens), dtype=np.int32)
        wants = np.full(len(tokens), want, dtype=np.uint8)
        return self._model.step(np.asarray(tokens, np.int32), first + rows, np.zeros_like(rows), rows - 1, wants)

    def _generate(self, prompt: list[int], count: int) -> tuple[float, float, float, list[int]]:
        """Times of the request, of its first and of its last token, and the tokens."""
        engine = self._engine
        tokens: list[int] = []
        engine.forget_prefixes()  # every prompt is new, whatever an earlier one began with
        start = first = last = time.perf_counter()
        engine.add(GenerationRequest("benchmark", prompt, _GREEDY, count, ignore_end=True))
        while engine.has_work:
            for _, event in engine.step():
                last = time.perf_counter()
                if not tokens:
                    first = last
                tokens += event.token_ids
        if failures := engine.take_failures():
            raise failures[0][1]
        if len(tokens) != count:
            raise RuntimeError("the answer ended early")
        return start, first, last, tokens


def load(options: LoadOptions) -> tuple[UltrafastEngine, LoadReport]:
    """Load the file as the engine process does, its warm-up included."""
    start = time.perf_counter()
    path = Path(options.model_path)
    tokenizer = open_tokenizer(path)
    model = load_model(path, threads=options.threads, instruction_set=None, context=options.context)
    engine = Engine(model, tokenizer)
    engine.warm_up()
    return UltrafastEngine(model, engine), LoadReport(
        load_seconds=time.perf_counter() - start,
        versions={"ultrafast": version("ultrafast")},
        threads=model.threads,
        detail=model.instruction_set,
        weight_bytes_per_token=model.weight_bytes_per_token,
    )


def main() -> None:
    """Run the worker."""
    serve(load)


if __name__ == "__main__":
    main()
