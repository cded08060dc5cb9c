"""Worker for llama.cpp, through the C interface of llama-cpp-python: the peer at its fastest."""

from __future__ import annotations

import ctypes
import time
from importlib.metadata import version

import llama_cpp
import numpy as np

from .protocol import LoadOptions, LoadReport, Timing, serve


class LlamaCpp:
    """One sequence, llama.cpp's own defaults: float16 cache, batches of up to 512 rows, flash attention ``auto``."""

    def __init__(self, options: LoadOptions) -> None:
        llama_cpp.llama_backend_init()
        model_parameters = llama_cpp.llama_model_default_params()
        model_parameters.n_gpu_layers = 0
        self._model = llama_cpp.llama_load_model_from_file(options.model_path.encode(), model_parameters)
        if not self._model:
            raise RuntimeError("llama.cpp cannot load this file")
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = options.context
        parameters.n_threads = parameters.n_threads_batch = options.threads
        self._context = llama_cpp.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise RuntimeError("llama.cpp cannot make a context of this size")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocabulary_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch_size = int(llama_cpp.llama_n_batch(self._context))
        self._batch = llama_cpp.llama_batch_init(self._batch_size, 0, 1)
        self._sampler = llama_cpp.llama_sampler_init_greedy()

    def decode(self, prompt: list[int], count: int) -> Timing:
        """See :class:`Runtime`."""
        self._forget()
        self._pass(prompt, 0, every_logit=False)
        token = self._sample()
        tokens = [token]
        start = time.perf_counter()
        for position in range(len(prompt), len(prompt) + count):
            self._pass([token], position, every_logit=False)
            token = self._sample()
            tokens.append(token)
        return Timing(time.perf_counter() - start, tokens)

    def prefill(self, prompt: list[int]) -> Timing:
        """See :class:`Runtime`."""
        self._forget()
        start = time.perf_counter()
        for first in range(0, len(prompt), self._batch_size):
            self._pass(prompt[first : first + self._batch_size], first, every_logit=False)
        token = self._sample()
        return Timing(time.perf_counter() - start, [token])

    def score(self, tokens: list[int], path: str) -> None:
        """See :class:`Runtime`."""
        self._forget()
        with open(path, "wb") as file:  # noqa: PTH123
            for first in range(0, len(tokens), self._batch_size):
                chunk = tokens[first : first + self._batch_size]
                self._pass(chunk, first, every_logit=True)
                logits = llama_cpp.llama_get_logits(self._context)
                shape = (len(chunk), self._vocabulary_size)
                np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), shape).tofile(file)

    def close(self) -> None:
        """Free the context and the model."""
        llama_cpp.llama_sampler_free(self._sampler)
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_free_model(self._model)

    def _forget(self) -> None:
        llama_cpp.llama_memory_clear(self._memory, True)

    def _pass(self, tokens: list[int], first_position: int, *, every_logit: bool) -> None:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for row, token in enumerate(tokens):
            batch.token[row] = token
            batch.pos[row] = first_position + row
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = 0
            batch.logits[row] = every_logit or row == len(tokens) - 1
        if llama_cpp.llama_decode(self._context, batch) != 0:
            raise RuntimeError("llama_decode failed")

    def _sample(self) -> int:
        return int(llama_cpp.llama_sampler_sample(self._sampler, self._context, -1))


def load(options: LoadOptions) -> tuple[LlamaCpp, LoadReport]:
    """Load the file; the detail is llama.cpp's own list of the instruction sets it was built for."""
    start = time.perf_counter()
    runtime = LlamaCpp(options)
    return runtime, LoadReport(
        load_seconds=time.perf_counter() - start,
        versions={"llama-cpp-python": version("llama-cpp-python")},
        threads=options.threads,
        detail=" ".join(llama_cpp.llama_print_system_info().decode(errors="replace").split()),
    )


def main() -> None:
    """Run the worker."""
    serve(load)
