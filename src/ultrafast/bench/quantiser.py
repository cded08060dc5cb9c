"""The harness's side of llama.cpp's quantiser: a process for each file, since the library may end its own."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ultrafast.bench.worker import LAUNCHER
from ultrafast.errors import EngineError
from ultrafast.weights.gguf import open_gguf

QUANTISE_TIMEOUT_SECONDS = 1800.0


@dataclass(frozen=True)
class Outcome:
    """What became of one file: written unless there is a ``refusal``; ``importances`` where the type wanted them."""

    refusal: str | None
    importances: bool


class Quantiser:
    """llama.cpp's quantiser on one model file, in the environment of the peer."""

    def __init__(self, python: Path, source: Path, threads: int) -> None:
        self._python = python
        self._source = source
        self._threads = threads
        with open_gguf(source, any_type=True) as file:
            # A row's columns, for each of the experts that a tensor of three axes holds.
            self._columns = {
                tensor.name: tensor.shape[-1] * (tensor.shape[0] if len(tensor.shape) == 3 else 1)
                for tensor in file.tensors.values()
                if len(tensor.shape) >= 2
            }

    def file_types(self) -> dict[str, int]:
        """The number of every file type by name.

        Raises:
            EngineError: the peer's environment does not work.
        """
        types: dict[str, int] = self._ask({})
        return types

    def write(self, file_type: int, destination: Path) -> Outcome:
        """Quantise the model to a file of this type; what the tool refuses or does not survive is a refusal."""
        command = {
            "source": str(self._source),
            "destination": str(destination),
            "file_type": file_type,
            "threads": self._threads,
            "columns": self._columns,
        }
        try:
            return Outcome(**self._ask(command))
        except EngineError as error:
            return Outcome(str(error), importances=False)

    def _ask(self, command: dict[str, Any]) -> Any:
        try:
            done = subprocess.run(
                [str(self._python), "-P", str(LAUNCHER), "llama_cpp_quantiser"],
                input=json.dumps(command),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=QUANTISE_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise EngineError(f"no answer within {QUANTISE_TIMEOUT_SECONDS:g} s") from None
        if done.returncode != 0:
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            raise EngineError(lines[-1][:300] if lines else f"ended with code {done.returncode}")
        return json.loads(done.stdout)
