"""A real ``ultrafast serve`` in a process of its own: its own data directory, configuration file and port."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ultrafast.errors import EngineError

if TYPE_CHECKING:
    from types import TracebackType

START_SECONDS = 180.0
STOP_SECONDS = 20.0
ULTRAFAST = (sys.executable, "-P", "-m", "ultrafast.cli")
_LISTENING = re.compile(r"^Listening on http://127\.0\.0\.1:(\d+)$", re.MULTILINE)
_KEPT_VARIABLES = ("ULTRAFAST_CACHE", "ULTRAFAST_INSTRUCTION_SET")


class Server:
    """Use as a context manager: entering waits until the model is loaded, leaving ends the process.

    ``tiers`` is TOML: what differs from the tiers' defaults. Raises ``EngineError``, with one line, where it does not
    start.
    """

    def __init__(self, model_path: Path, *, threads: int, context: int, tiers: str = "") -> None:
        self.key = "uf-" + secrets.token_urlsafe(24)
        self.port = 0
        self._model_path = model_path
        self._settings: dict[str, Any] = {"threads": threads, "context": context, "tiers": tiers}
        self._configuration = (
            f'port = 0\n[aliases]\nbenchmark = "*"\n[backends.local]\nkind = "engine"\n'
            f"model = {json.dumps(str(model_path))}\nthreads = {threads}\ncontext = {context}\n{tiers}"
        )

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="ultrafast-bench-")
        folder = Path(self._folder.name)
        self._log = folder / "log"
        (folder / "ultrafast.toml").write_text(self._configuration, encoding="utf-8")
        kept = {name: value for name, value in os.environ.items() if name in _KEPT_VARIABLES or "ULTRAFAST" not in name}
        self._environment = kept | {"ULTRAFAST_API_KEY": self.key, "ULTRAFAST_DATA": str(folder / "data")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*ULTRAFAST, "serve", "--config", str(folder / "ultrafast.toml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )
        try:
            self._await_port()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def another(self) -> Server:
        """A second server of the same settings, not yet entered."""
        return Server(self._model_path, **self._settings)

    def create_project(self, name: str) -> str:
        """Create a project in the preview, and return a key of it."""
        self._command("projects", "create", name)
        self._command("preview", "grant", name)
        return str(self._command("keys", "create", "--project", name)["secret"])

    def _command(self, *arguments: str) -> Any:
        done = subprocess.run(
            [*ULTRAFAST, *arguments, "--json"], capture_output=True, env=self._environment, check=False, timeout=60
        )
        if done.returncode:
            raise EngineError("the server's projects could not be prepared")
        return json.loads(done.stdout)

    def _await_port(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            ended = self._process.poll() is not None
            shown = self._log.read_text("utf-8", "replace")
            if found := _LISTENING.search(shown):
                self.port = int(found[1])
                return
            if ended:
                lines = [line.strip() for line in shown.splitlines() if line.strip()]
                raise EngineError(f"the server did not start: {lines[-1][:300] if lines else 'it said nothing'}")
            time.sleep(0.02)
        raise EngineError(f"the server did not start within {START_SECONDS:g} s")

    def _stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._folder.cleanup()
