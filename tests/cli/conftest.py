"""The real command in a process of its own, as a person or a script runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.data_directories import fresh_data_directory

COMMAND = [sys.executable, "-m", "ultrafast.cli"]
TIMEOUT_SECONDS = 120

# Runs "$@" with redirections of the shell, such as `>&-`, in the place of {}.
REDIRECTED = 'exec "$@" {}'

Ultrafast = Callable[..., "subprocess.CompletedProcess[str]"]


def environment(**variables: str) -> dict[str, str]:
    """This process's environment with one width, no settings of the developer's own, and ``variables``."""
    kept = {name: value for name, value in os.environ.items() if name == "ULTRAFAST_CACHE" or "ULTRAFAST" not in name}
    settings = {"COLUMNS": "80", "PYTHONUNBUFFERED": "", "ULTRAFAST_DATA": fresh_data_directory()}
    return {**kept, **settings, **variables}


@pytest.fixture(scope="session")
def ultrafast() -> Ultrafast:
    """Run ``ultrafast ARGUMENTS`` to its end and return what it wrote and its exit code."""

    def run(
        *arguments: str, stdin: bytes = b"", redirect: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        shell = ["sh", "-c", REDIRECTED.format(redirect), "sh"] if redirect else []
        done = subprocess.run(
            [*shell, *COMMAND, *arguments],
            input=stdin,
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            env=environment(**variables),
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8")
        )

    return run
