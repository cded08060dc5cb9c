"""The worker's side of the protocol: one JSON object a line, a command in, its answer out.

Commands: ``load``, ``decode``, ``prefill``, ``score``, ``close``; of a runtime that is :class:`Batching` also
``decode_together`` and ``verify``. Every answer also says how much
processor time the process used since the answer before, so that the harness can show that an idle worker did not spin
while another was being measured.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol, TextIO, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class LoadOptions:
    """What to load: a GGUF file, the worker threads, tokens of context, and the runtime's own variant (a data type)."""

    model_path: str
    threads: int
    context: int
    variant: str | None


@dataclass(frozen=True)
class LoadReport:
    """What was loaded; ``versions`` maps a component to its version or build."""

    load_seconds: float
    versions: dict[str, str]
    threads: int
    detail: str
    weight_bytes_per_token: int = 0  # where the runtime says so


@dataclass(frozen=True)
class Timing:
    """One timed run: the seconds of the part asked for, and the tokens generated."""

    seconds: float
    tokens: list[int]


class Runtime(Protocol):
    """A loaded model. Every command starts from an empty cache, is greedy and ignores end tokens."""

    def decode(self, prompt: list[int], count: int) -> Timing:
        """Time ``count`` tokens generated one after another, from the moment the first token after the prompt is known.

        The prompt's own pass, which yields that first token, is not timed. ``tokens`` holds all ``count + 1``.
        """

    def prefill(self, prompt: list[int]) -> Timing:
        """Time the prompt's pass up to the first token."""

    def score(self, tokens: list[int], path: str) -> None:
        """Write logits of every position, float32 ``[positions, vocabulary]`` in C order, to ``path`` as raw bytes."""

    def close(self) -> None:
        """Free the model."""


@runtime_checkable
class Batching(Protocol):
    """A runtime whose passes over several rows are measured, too: our own."""

    def decode_together(self, prompts: list[list[int]], count: int) -> Timing:
        """Time the decoding of all prompts at once, from when each has its first token; ``count`` more of each.

        ``tokens`` holds all that came in that time.
        """

    def verify(self, prompt: list[int], drafts: list[int], count: int) -> Timing:
        """Time ``count`` passes over ``drafts`` after the prompt, each of which finds the best token after every row.

        ``tokens`` are those of one pass.
        """


def serve(load: Callable[[LoadOptions], tuple[Runtime, LoadReport]]) -> None:
    """Answer commands from standard input until ``close`` or its end."""
    answers = claim_standard_output()
    runtime: Runtime | None = None
    idle_since, idle_cpu = time.perf_counter(), time.process_time()
    for line in sys.stdin:
        command = json.loads(line)
        idle = {
            "idle_seconds": time.perf_counter() - idle_since,
            "idle_cpu_seconds": time.process_time() - idle_cpu,
        }
        name = command.pop("command")
        if name == "close":
            break
        try:
            if name == "load":
                runtime, report = load(LoadOptions(**command))
                answer = asdict(report)
            elif runtime is None:
                raise RuntimeError("no model is loaded")
            else:
                answer = _perform(runtime, name, command)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        answers.write(json.dumps(answer | idle) + "\n")
        answers.flush()
        idle_since, idle_cpu = time.perf_counter(), time.process_time()
    if runtime is not None:
        runtime.close()


def _perform(runtime: Runtime, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if name == "decode":
        return asdict(runtime.decode(arguments["prompt"], arguments["count"]))
    if name == "prefill":
        return asdict(runtime.prefill(arguments["prompt"]))
    if name == "score":
        runtime.score(arguments["tokens"], arguments["path"])
        return {}
    if name == "decode_together" and isinstance(runtime, Batching):
        return asdict(runtime.decode_together(arguments["prompts"], arguments["count"]))
    if name == "verify" and isinstance(runtime, Batching):
        return asdict(runtime.verify(arguments["prompt"], arguments["drafts"], arguments["count"]))
    raise ValueError("unknown command")


def claim_standard_output() -> TextIO:
    """Keep descriptor 1 for answers alone: what a runtime prints goes to standard error instead."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers
