"""Ctrl-C: exit code 130, nothing but silence, and no process left, wherever it strikes."""

from __future__ import annotations

import time

import pytest

from .terminal import CTRL_C, Terminal

SHOW_CURSOR = "\x1b[?25h"
LONG = "Write a long story about a ship at sea."


def assert_clean(terminal: Terminal) -> None:
    assert terminal.exit_code(seconds=10) == 130
    assert "Traceback" not in terminal.shown
    assert "KeyboardInterrupt" not in terminal.shown
    assert "Exception" not in terminal.shown


def test_while_it_imports() -> None:
    # The interpreter's own list of imports tells when the first of them are done.
    with Terminal("run", LONG, interpreter_options=("-X", "importtime")) as terminal:
        terminal.wait_for("ultrafast.cli.output")
        terminal.press(CTRL_C)
        assert terminal.exit_code(seconds=10) == 130
        assert "Traceback" not in terminal.shown


@pytest.mark.parametrize("delay_seconds", [0, 0.1, 0.2, 0.4, 0.7, 1.0])
def test_while_it_loads(delay_seconds: float) -> None:
    with Terminal("run", LONG, "--temperature", "0") as terminal:
        terminal.wait_for("loading")
        time.sleep(delay_seconds)
        terminal.press(CTRL_C)
        assert_clean(terminal)


def test_while_it_answers() -> None:
    with Terminal("run", LONG, "--temperature", "0") as terminal:
        # The moving line is wiped when the model is loaded; what follows is the answer.
        terminal.wait_for_more(20, after=terminal.wait_for(SHOW_CURSOR))
        terminal.press(CTRL_C)
        assert_clean(terminal)
