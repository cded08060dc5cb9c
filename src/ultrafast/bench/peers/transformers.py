"""Worker for PyTorch with transformers: ``generate``, as its users call it. The variant is the data type."""

from __future__ import annotations

import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers

from .protocol import LoadOptions, LoadReport, Timing, serve

if TYPE_CHECKING:
    from collections.abc import Sequence


class _TokenClock:
    """A streamer that notes when the first token after the prompt arrived."""

    def __init__(self) -> None:
        self.first: float | None = None
        self._seen_prompt = False

    def put(self, _value: Any) -> None:
        if self._seen_prompt and self.first is None:
            self.first = time.perf_counter()
        self._seen_prompt = True

    def end(self) -> None:
        """Nothing to flush."""


class Transformers:
    """A causal language model with dequantised weights."""

    def __init__(self, options: LoadOptions) -> None:
        torch.set_num_threads(options.threads)
        path = Path(options.model_path)
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=getattr(torch, options.variant or "float32")
        )
        self._model.eval()

    def decode(self, prompt: list[int], count: int) -> Timing:
        """See :class:`Runtime`."""
        clock = _TokenClock()
        tokens = self._generate(prompt, count + 1, clock)
        end = time.perf_counter()
        assert clock.first is not None
        return Timing(end - clock.first, tokens)

    def prefill(self, prompt: list[int]) -> Timing:
        """See :class:`Runtime`."""
        start = time.perf_counter()
        tokens = self._generate(prompt, 1, None)
        return Timing(time.perf_counter() - start, tokens)

    def score(self, tokens: list[int], path: str) -> None:
        """See :class:`Runtime`."""
        with torch.inference_mode():
            logits = self._model(torch.tensor([tokens])).logits[0]
        np.ascontiguousarray(logits.float().numpy()).tofile(path)

    def close(self) -> None:
        """Drop the model."""
        self._model = None

    def _generate(self, prompt: Sequence[int], count: int, streamer: _TokenClock | None) -> list[int]:
        inputs = torch.tensor([list(prompt)])
        with torch.inference_mode():
            output = self._model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                do_sample=False,
                min_new_tokens=count,
                max_new_tokens=count,
                streamer=streamer,
            )
        return [int(token) for token in output[0, len(prompt) :]]


def load(options: LoadOptions) -> tuple[Transformers, LoadReport]:
    """Load and dequantise the file."""
    transformers.utils.logging.set_verbosity_error()
    start = time.perf_counter()
    runtime = Transformers(options)
    return runtime, LoadReport(
        load_seconds=time.perf_counter() - start,
        versions={"transformers": version("transformers"), "torch": version("torch")},
        threads=torch.get_num_threads(),
        detail=f"{options.variant or 'float32'}, {torch.backends.cpu.get_cpu_capability()}",
    )


def main() -> None:
    """Run the worker."""
    serve(load)
