"""Models: one file per architecture, and how a model file becomes a ``LoadedModel``."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ultrafast import _native
from ultrafast.errors import ConfigurationError, ModelFileError
from ultrafast.models import resources
from ultrafast.models.configuration import ModelConfiguration
from ultrafast.models.description import describe
from ultrafast.models.loaded import BLOCK_TOKENS, LoadedModel, StepResult
from ultrafast.models.program import build_program
from ultrafast.models.quantisation import QUANTISATIONS, Quantisation
from ultrafast.models.sampling import SamplingParameters
from ultrafast.models.tensors import TensorSource
from ultrafast.weights import open_model
from ultrafast.weights.inspection import bytes_in_memory
from ultrafast.weights.source import ModelSource

__all__ = [
    "MAX_SEQUENCES",
    "WANT_HIDDEN",
    "WANT_LOGITS",
    "WANT_TOKEN",
    "WANT_TOP",
    "LoadedModel",
    "ModelConfiguration",
    "SamplingParameters",
    "StepResult",
    "check_model",
    "load_model",
]

WANT_TOKEN: Final = 1  # the sampled token
WANT_TOP: Final = 2  # log-probabilities: of the sampled token, and of the best alternatives
WANT_LOGITS: Final = 4
WANT_HIDDEN: Final = 8

MAX_SEQUENCES: Final = 16  # that run at once, where nothing else is asked for
MAX_ROWS: Final = 512  # of one step
MAX_THREADS: Final = 256
# Beyond it a context must be asked for: a file may claim millions, and its tables are made at load.
MAX_DEFAULT_CONTEXT: Final = 1 << 17
# Share of the memory still available that the context may come to take. The KV cache's is taken as it is used, that of
# the rotary tables at once.
CONTEXT_MEMORY_SHARE: Final = 0.25


def load_model(
    path: str | Path,
    *,
    threads: int | None = None,
    instruction_set: str | None = None,
    context: int | None = None,
    memory_budget_bytes: int | None = None,
    quantize: str | None = None,
    max_sequences: int = MAX_SEQUENCES,
) -> LoadedModel:
    """Read a GGUF file or a Hugging Face directory and lay its weights out for this machine.

    ``threads`` defaults to the cores that affinity and control groups allow; ``instruction_set`` to
    ``$ULTRAFAST_INSTRUCTION_SET`` or else the fastest the processor has; ``context`` to the model's own, or what
    ``memory_budget_bytes`` of KV cache and rotary tables hold (by default a quarter of the available memory).
    ``quantize`` ("q8_0" or "q4_1") quantises the matrices of a float model while they are laid out. At most
    ``max_sequences`` run at once; the KV cache holds as many of the whole context, where the budget allows it.

    Raises the ``ModelError`` kinds for the file and ``ConfigurationError`` for the options.
    """
    started = time.perf_counter()
    chosen_set = _instruction_set(instruction_set)
    threads = _threads(threads)
    quantisation = Quantisation(quantize)
    cpus = resources.pinned_cpus(threads)
    with open_model(path) as source:
        configuration, tensors = describe(source)
        _check_memory(source, quantize)
        context, block_count = _cache_size(configuration, context, memory_budget_bytes, max_sequences)
        with _load_errors(source.path.name):
            native, weight_bytes_per_token = _declare(
                tensors,
                configuration,
                chosen_set,
                quantisation,
                threads=threads,
                cpus=cpus,
                context=context,
                block_count=block_count,
                max_sequences=max_sequences,
            )
            native.finish()
    return LoadedModel(
        native,
        configuration,
        path=Path(path),
        files=source.files,
        instruction_set=chosen_set,
        cpus=cpus,
        threads=threads,
        context=context,
        block_count=block_count,
        max_sequences=max_sequences,
        max_rows=MAX_ROWS,
        weight_bytes_per_token=weight_bytes_per_token,
        quantised_at_load=quantisation.name,
        matrices_kept_float=quantisation.kept_float,
        load_seconds=time.perf_counter() - started,
    )


def _declare(
    tensors: TensorSource,
    configuration: ModelConfiguration,
    instruction_set: str,
    quantisation: Quantisation,
    *,
    threads: int,
    cpus: list[int],
    context: int,
    block_count: int,
    max_sequences: int,
) -> tuple[_native.Model, int]:
    """The native model, its program declared and no weight read yet, and the bytes that one token reads."""
    native = _native.Model(
        instruction_set=instruction_set,
        threads=threads,
        cpus=cpus,
        vocabulary_size=configuration.vocabulary_size,
        hidden_size=configuration.hidden_size,
        layer_count=configuration.layer_count,
        head_count=configuration.head_count,
        kv_head_count=configuration.kv_head_count,
        head_size=configuration.head_size,
        attention_scale=configuration.attention_scale,
        context=context,
        block_count=block_count,
        max_sequences=max_sequences,
        max_rows=MAX_ROWS,
    )
    return native, build_program(native, configuration, tensors, context, quantisation)


def check_model(source: ModelSource) -> None:
    """Raise the ``ModelError`` that loading ``source`` would end with, as far as no weight has to be read for it."""
    configuration, tensors = describe(source)
    with _load_errors(source.path.name):
        _declare(
            tensors,
            configuration,
            _native.instruction_sets()[0],
            Quantisation(None),
            threads=1,
            cpus=[],
            context=1,
            block_count=1,
            max_sequences=1,
        )


@contextlib.contextmanager
def _load_errors(name: str) -> Iterator[None]:
    """What the native model raises, as errors that name the model."""
    try:
        yield
    except MemoryError:
        raise ConfigurationError(f"not enough memory to load {name}") from None
    except ValueError as error:
        raise ModelFileError(f"{name}: {error}") from None


def _check_memory(source: ModelSource, quantize: str | None) -> None:
    """Refuse at once what would drive the machine out of memory minutes later."""
    needed = sum(
        bytes_in_memory(tensor, QUANTISATIONS[quantize][0] if quantize else None) for tensor in source.tensors.values()
    )
    available = resources.available_memory_bytes()
    if needed > available:
        raise ConfigurationError(
            f"{source.path.name} needs {needed / 1e9:.1f} GB of memory and {available / 1e9:.1f} GB is available: "
            "take a smaller quantisation of it, or --quantize where it is not quantised"
        )


def _instruction_set(wanted: str | None) -> str:
    available = _native.instruction_sets()
    wanted = (wanted or os.environ.get("ULTRAFAST_INSTRUCTION_SET") or available[0]).lower()
    if wanted not in available:
        raise ConfigurationError(
            f"instruction set {wanted[:20]!r} is not one this processor runs; choose from {', '.join(available)}"
        )
    return wanted


def _threads(wanted: int | None) -> int:
    if wanted is None:
        return resources.default_threads()
    if not 1 <= wanted <= MAX_THREADS:
        raise ConfigurationError(f"threads must be 1 to {MAX_THREADS}")
    return wanted


def _cache_size(
    configuration: ModelConfiguration, wanted: int | None, budget_bytes: int | None, max_sequences: int
) -> tuple[int, int]:
    """(context, blocks in the pool) within the budget, which also pays for the rotary tables."""
    if budget_bytes is None:
        budget_bytes = int(resources.available_memory_bytes() * CONTEXT_MEMORY_SHARE)
    block_bytes = configuration.kv_values_per_token * 2 * BLOCK_TOKENS
    rotary_bytes = configuration.rotary_table_values_per_token * 4
    block_and_rotary_bytes = block_bytes + rotary_bytes * BLOCK_TOKENS
    affordable = budget_bytes // block_and_rotary_bytes * BLOCK_TOKENS
    if wanted is not None and not 1 <= wanted <= configuration.context_length:
        raise ConfigurationError(f"context must be 1 to {configuration.context_length}, the model's own")
    context = wanted or min(configuration.context_length, affordable, MAX_DEFAULT_CONTEXT)
    context_blocks = -(-max(context, 1) // BLOCK_TOKENS)
    if context > affordable or context < 1:
        needed_bytes = context_blocks * block_and_rotary_bytes
        raise ConfigurationError(
            f"a context of {max(context, 1)} tokens needs {needed_bytes / 1e6:.1f} MB of KV cache and rotary tables, "
            f"the memory budget is {budget_bytes / 1e6:.1f} MB; choose a smaller --context"
        )
    affordable_blocks = (budget_bytes - context * rotary_bytes) // block_bytes
    return context, min(affordable_blocks, max_sequences * context_blocks)
