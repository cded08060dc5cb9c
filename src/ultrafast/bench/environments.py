"""Peer environments, made on demand in the user's cache: one virtual environment each, with pinned packages."""

from __future__ import annotations

import collections
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ultrafast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ultrafast.bench.catalogue import Environment

    Progress = Callable[[str], None]

_COMPLETE = "complete"  # a file written last: an environment without it is taken up where it was left


def interpreter(environment: Environment, root: Path, progress: Progress) -> Path:
    """The Python of this environment, made first if need be; ``progress`` receives one line of what is going on.

    An interrupted installation is continued: pip keeps what is installed, its cache what was downloaded or built.

    Raises:
        ConfigurationError: the environment cannot be made, or the variable that overrides it names no file.
    """
    chosen = os.environ.get(environment.override_variable)
    if chosen:
        if not os.access(chosen, os.X_OK):
            raise ConfigurationError(f"{environment.override_variable} names no program that can be run")
        return Path(chosen)
    folder = root / folder_name(environment)
    python = folder / "bin" / "python"
    if not (folder / _COMPLETE).exists():
        _make(environment, folder, python, progress)
    return python


def folder_name(environment: Environment) -> str:
    """A name that changes with the pinned versions, the way they are built, and the Python they are installed for."""
    recipe = (environment.requirements, environment.pip_options, sorted(environment.variables.items()))
    recipe_digest = hashlib.sha256(repr((recipe, sys.version_info[:2], sys.base_prefix)).encode()).hexdigest()
    return f"{environment.name}-{recipe_digest[:12]}"


def _make(environment: Environment, folder: Path, python: Path, progress: Progress) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log_path = folder / "install.log"
        with log_path.open("a", encoding="utf-8") as log:
            # Safe over a half-made environment: it completes what is missing and keeps what is installed.
            _run([sys.executable, "-m", "venv", str(folder)], {}, log.fileno(), progress, "making an environment")
            command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
            command += ["--progress-bar", "off", *environment.pip_options, *environment.requirements]
            _run(command, environment.variables, log.fileno(), progress, environment.remark)
        (folder / _COMPLETE).touch()
    except OSError as error:
        raise ConfigurationError(f"{environment.name} cannot be installed: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        reason = f"{_last_line(error)} (log: {log_path})"
        raise ConfigurationError(f"{environment.name} cannot be installed: {reason}") from None


def _run(command: list[str], variables: Mapping[str, str], log: int, progress: Progress, remark: str) -> None:
    """Run a command to its end, its output to the log, its latest line to ``progress``."""
    tail: collections.deque[str] = collections.deque(maxlen=20)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **variables},
    )
    with process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                os.write(log, line.encode())
                if text := line.strip():
                    tail.append(text)
                    progress(f"{remark}: {text}")
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command, output="\n".join(tail))


def _last_line(error: subprocess.CalledProcessError) -> str:
    lines = str(error.output or "").splitlines()
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or [f"exit code {error.returncode}"])[-1][:200]
