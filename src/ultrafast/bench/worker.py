"""The harness's side of the protocol: one long-lived process per runtime, so that runs alternate with models loaded."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from ultrafast.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

LOAD_TIMEOUT_SECONDS = 600.0
RUN_TIMEOUT_SECONDS = 600.0
_CLOSE_TIMEOUT_SECONDS = 10.0
LAUNCHER = Path(__file__).parent / "peers" / "launch.py"


class LoadReport(msgspec.Struct, frozen=True):
    """What a worker says of the model it loaded."""

    load_seconds: float
    versions: dict[str, str]
    threads: int
    detail: str
    weight_bytes_per_token: int = 0  # where the runtime says so


class Timing(msgspec.Struct, frozen=True):
    """One timed run as the worker measured it."""

    seconds: float
    tokens: list[int]


class Worker:
    """A runtime in a process of its own. Use as a context manager: leaving it ends the process.

    Every method raises ``EngineError``, with one line, when the runtime fails, dies or does not answer in time.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.idle_seconds = 0.0
        self.idle_cpu_seconds = 0.0
        self._errors = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed by close
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    @classmethod
    def of_peer(cls, name: str, module: str, python: Path) -> Self:
        """Start a peer's worker with the Python of its environment."""
        return cls(name, [str(python), "-P", str(LAUNCHER), module])

    @classmethod
    def of_engine(cls) -> Self:
        """Start our own engine's worker with this Python."""
        return cls("ultrafast", [sys.executable, "-P", "-m", "ultrafast.bench.peers.ultrafast_engine"])

    def load(self, model_path: Path, *, threads: int, context: int, variant: str | None = None) -> LoadReport:
        """Load the model; ``threads`` of 0 lets our own engine choose."""
        answer = self._request(
            "load", LOAD_TIMEOUT_SECONDS, model_path=str(model_path), threads=threads, context=context, variant=variant
        )
        return msgspec.convert(answer, LoadReport)

    def decode(self, prompt: Sequence[int], count: int) -> Timing:
        """Time ``count`` tokens generated after the first one that follows the prompt."""
        return msgspec.convert(self._request("decode", RUN_TIMEOUT_SECONDS, prompt=list(prompt), count=count), Timing)

    def prefill(self, prompt: Sequence[int]) -> Timing:
        """Time the prompt's pass up to the first token."""
        return msgspec.convert(self._request("prefill", RUN_TIMEOUT_SECONDS, prompt=list(prompt)), Timing)

    def decode_together(self, prompts: Sequence[Sequence[int]], count: int) -> Timing:
        """Time all prompts decoded at once, ``count`` tokens each after the first; ours alone."""
        lists = [list(prompt) for prompt in prompts]
        return msgspec.convert(
            self._request("decode_together", RUN_TIMEOUT_SECONDS, prompts=lists, count=count), Timing
        )

    def verify(self, prompt: Sequence[int], drafts: Sequence[int], count: int) -> Timing:
        """Time ``count`` passes over ``drafts`` after the prompt, the best token found after each row; ours alone."""
        answer = self._request("verify", RUN_TIMEOUT_SECONDS, prompt=list(prompt), drafts=list(drafts), count=count)
        return msgspec.convert(answer, Timing)

    def score(self, tokens: Sequence[int], path: Path) -> None:
        """Have the logits of every position written to ``path``: raw float32, ``[positions, vocabulary]``."""
        self._request("score", RUN_TIMEOUT_SECONDS, tokens=list(tokens), path=str(path))

    @property
    def process_id(self) -> int:
        """The operating system's number of the process."""
        return self._process.pid

    @property
    def idle_cpu_share(self) -> float:
        """Processor seconds used per second between commands, since the model was loaded."""
        return self.idle_cpu_seconds / self.idle_seconds if self.idle_seconds else 0.0

    def close(self) -> None:
        """End the process, by force if it does not end by itself."""
        try:
            self._process.communicate('{"command": "close"}\n', timeout=_CLOSE_TIMEOUT_SECONDS)
        except (subprocess.TimeoutExpired, OSError, ValueError):
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self.close()

    def _request(self, name: str, timeout_seconds: float, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        expired = threading.Event()
        guard = threading.Timer(timeout_seconds, self._expire, [expired])
        guard.start()
        try:
            self._process.stdin.write(json.dumps({"command": name, **arguments}) + "\n")
            self._process.stdin.flush()
            # A library may have printed something while it was being imported: an answer is an object.
            while (line := self._process.stdout.readline()) and not line.startswith("{"):
                pass
        except BrokenPipeError:
            line = ""
        finally:
            guard.cancel()
        if not line:
            reason = f"no answer within {timeout_seconds:g} s" if expired.is_set() else self._death()
            raise EngineError(f"{self.name}: {reason}")
        answer: dict[str, Any] = json.loads(line)
        if error := answer.get("error"):
            raise EngineError(f"{self.name}: {error}")
        if name != "load":
            self.idle_seconds += answer["idle_seconds"]
            self.idle_cpu_seconds += answer["idle_cpu_seconds"]
        return answer

    def _expire(self, expired: threading.Event) -> None:
        expired.set()
        self._process.kill()

    def _death(self) -> str:
        try:
            code = self._process.wait(_CLOSE_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:  # it closed its output and lives on: of no use
            self._process.kill()
            code = self._process.wait()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        return lines[-1][:300] if lines else f"ended with code {code}"
