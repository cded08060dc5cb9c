"""Standard streams that are closed, full or gone, as a shell makes them."""

from __future__ import annotations

import pytest

from .conftest import Ultrafast

RUN = ("run", "Name the capital of France in one short sentence.", "--temperature", "0", "--max-tokens", "24")


@pytest.mark.parametrize("arguments", [RUN, ("--help",), ("models", "list")])
def test_a_closed_standard_output_is_one_line_and_exit_code_2(ultrafast: Ultrafast, arguments: tuple[str, ...]) -> None:
    done = ultrafast(*arguments, redirect=">&-")
    assert done.stderr == "error: standard output is closed; to throw an answer away, send it to /dev/null\n"
    assert done.returncode == 2


@pytest.mark.parametrize("arguments", [RUN, (*RUN, "--json"), ("--help",), ("models", "list")])
def test_a_full_disk_is_one_line_and_exit_code_1(ultrafast: Ultrafast, arguments: tuple[str, ...]) -> None:
    done = ultrafast(*arguments, redirect=">/dev/full")
    assert done.stderr == "error: cannot write to standard output: no space left on device\n"
    assert done.returncode == 1


def test_what_is_said_about_an_answer_is_never_part_of_it(ultrafast: Ultrafast) -> None:
    done = ultrafast(*RUN, redirect="2>&-")
    assert done.returncode == 0
    assert done.stdout == ultrafast(*RUN).stdout
    assert "TTFT" not in done.stdout
