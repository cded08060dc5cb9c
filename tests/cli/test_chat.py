"""`ultrafast chat` on the default model, from a pipe and in a terminal."""

from __future__ import annotations

from .conftest import Ultrafast
from .terminal import CTRL_C, CTRL_D, Terminal

GREEDY = ("--temperature", "0", "--max-tokens", "24")
LONG = "Write a long story about a ship at sea."


def test_lines_of_a_pipe_are_answered_in_turn(ultrafast: Ultrafast) -> None:
    questions = (f"Name the capital of {country} in one short sentence." for country in ("France", "Italy"))
    done = ultrafast("chat", *GREEDY, stdin="\n\n".join(questions).encode())
    assert done.returncode == 0
    assert "Paris" in done.stdout
    assert "Rome" in done.stdout
    assert done.stdout.index("Paris") < done.stdout.index("Rome")
    assert "\x1b" not in done.stdout + done.stderr
    assert ">>>" not in done.stdout


def test_an_answer_that_was_cut_says_by_what(ultrafast: Ultrafast) -> None:
    done = ultrafast("chat", "--temperature", "0", "--max-tokens", "5", stdin=LONG.encode())
    assert done.stderr == "the answer was cut at --max-tokens 5\n"
    with Terminal("chat", "--temperature", "0", "--max-tokens", "5") as terminal:
        position = terminal.wait_for(">>> ")
        terminal.press(LONG.encode() + b"\n")
        position = terminal.wait_for("tokens/s, cut at --max-tokens 5\r\n", after=position)
        terminal.wait_for(">>> ", after=position)
        terminal.press(CTRL_D)
        assert terminal.exit_code() == 0


def test_the_conversation_is_remembered_until_it_is_reset(ultrafast: Ultrafast) -> None:
    questions = "My name is Zanzibar.", "What is my name?"
    remembered = ultrafast("chat", *GREEDY, stdin="\n".join(questions).encode())
    reset = ultrafast("chat", *GREEDY, stdin="\n/reset\n".join(questions).encode())
    alone = ultrafast("chat", *GREEDY, stdin=questions[1].encode())
    assert "Zanzibar" in remembered.stdout
    assert reset.stdout.endswith(alone.stdout)
    assert not remembered.stdout.endswith(alone.stdout)


def test_exit_ends_before_the_rest_of_the_input(ultrafast: Ultrafast) -> None:
    done = ultrafast("chat", *GREEDY, stdin=b"/help\n/nonsense\n/exit\nHello\n")
    assert (done.returncode, done.stdout) == (0, "")
    assert "/reset" in done.stderr
    assert "No such command: /nonsense" in done.stderr


def test_a_conversation_beyond_the_context_is_one_line_and_goes_on(ultrafast: Ultrafast) -> None:
    stdin = b"word " * 200 + b"\nName the capital of France in one short sentence.\n"
    done = ultrafast("chat", "--context", "96", *GREEDY, stdin=stdin)
    assert done.returncode == 1, "a message that was not answered is a failure, though the rest was answered"
    assert done.stderr.startswith("error: the prompt has ")
    assert "/reset" in done.stderr
    assert "Paris" in done.stdout


def test_bytes_that_are_no_text_end_it_with_exit_code_2(ultrafast: Ultrafast) -> None:
    stdin = b"Name the capital of France in one short sentence.\nWhat is \xff?\nHello\n"
    done = ultrafast("chat", *GREEDY, stdin=stdin)
    assert done.stderr.startswith("error: standard input is not UTF-8 text: byte 58 ")
    assert done.stderr.count("\n") == 1
    assert done.returncode == 2
    assert "Paris" in done.stdout
    assert done.stdout.count("\n") == 1


def test_in_a_terminal_ctrl_c_stops_the_answer_and_ctrl_d_the_program() -> None:
    with Terminal("chat", "--temperature", "0") as terminal:
        position = terminal.wait_for(">>> ")
        terminal.press(LONG.encode() + b"\n")
        position = terminal.wait_for_more(20, after=terminal.wait_for(LONG + "\r\n", after=position))
        terminal.press(CTRL_C)
        position = terminal.wait_for(">>> ", seconds=5, after=position)
        position = terminal.press_until(CTRL_C, "Ctrl-D", after=position)  # at the prompt it only says how to leave
        position = terminal.wait_for(">>> ", after=position)
        terminal.press(b"Name the capital of France in one short sentence.\n")
        position = terminal.wait_for("Paris", after=position)
        position = terminal.wait_for(">>> ", after=position)
        terminal.press(CTRL_D)
        assert terminal.exit_code() == 0
        assert "Traceback" not in terminal.shown
