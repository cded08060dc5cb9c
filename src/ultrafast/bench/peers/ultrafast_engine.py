"""Worker for our own engine, in this package's environment: the engine's whole loop, not the bare native step."""

from __future__ import annotations

import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

from ultrafast.engine.engine import Engine
from ultrafast.engine.messages import GenerationRequest
from ultrafast.models import WANT_LOGITS, load_model
from ultrafast.models.loaded import LoadedModel
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
        model = self._model
        blocks = np.arange(-(-len(tokens) // model.block_tokens), dtype=np.int32)
        model.bind(0, blocks, _GREEDY, len(tokens), 0)
        with Path(path).open("wb") as file:
            for first in range(0, len(tokens), model.max_rows):
                chunk = np.asarray(tokens[first : first + model.max_rows], dtype=np.int32)
                rows = np.arange(len(chunk), dtype=np.int32)
                want = np.full(len(chunk), WANT_LOGITS, dtype=np.uint8)
                model.step(chunk, first + rows, np.zeros_like(rows), rows - 1, want).logits.tofile(file)
        model.release(0)

    def close(self) -> None:
        """Free the model."""
        self._model.close()

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
    )


def main() -> None:
    """Run the worker."""
    serve(load)


if __name__ == "__main__":
    main()
