"""`ultrafast run` on the default model."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from .conftest import COMMAND, Ultrafast, environment

QUESTION = "Name the capital of France in one short sentence."
LONG_ANSWER = "Write a long story about a lighthouse keeper and the sea."
GREEDY = ("--temperature", "0", "--max-tokens", "24")


def test_the_answer_goes_to_stdout_and_one_line_about_it_to_stderr(ultrafast: Ultrafast) -> None:
    done = ultrafast("run", QUESTION, *GREEDY)
    assert done.returncode == 0
    assert "Paris" in done.stdout
    assert done.stdout.endswith("\n")
    assert "\x1b" not in done.stdout + done.stderr
    assert re.fullmatch(r"\d+ tokens, TTFT \d+ ms, \d+\.\d tokens/s\n", done.stderr)


def test_json_is_one_object_with_the_promised_fields(ultrafast: Ultrafast) -> None:
    done = ultrafast("run", QUESTION, *GREEDY, "--json")
    assert done.stderr == ""
    record = json.loads(done.stdout)
    assert set(record) == {
        "model", "quantised_at_load", "text", "token_ids", "finish_reason", "seed", "usage", "timings"
    }  # fmt: skip
    assert record["model"] == "smollm2-135m"
    assert "Paris" in record["text"]
    usage = record["usage"]
    assert usage["completion_tokens"] == len(record["token_ids"]) <= 24
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    timings = record["timings"]
    assert 0 < timings["ttft_seconds"] < 60
    assert timings["prefill_tokens_per_second"] > 0
    assert timings["decode_tokens_per_second"] > 0
    plain = ultrafast("run", QUESTION, *GREEDY)
    assert plain.stdout.rstrip("\n") == record["text"].rstrip("\n")


def test_the_limit_of_tokens_is_the_reason_to_finish(ultrafast: Ultrafast) -> None:
    record = json.loads(ultrafast("run", "Count from one to ten.", *GREEDY[:2], "--max-tokens", "5", "--json").stdout)
    assert record["finish_reason"] == "length"
    assert len(record["token_ids"]) == 5


def test_an_answer_that_was_cut_says_by_what(ultrafast: Ultrafast) -> None:
    counting = ("run", LONG_ANSWER, "--temperature", "0")
    done = ultrafast(*counting, "--max-tokens", "5")
    assert re.fullmatch(r"5 tokens, .* tokens/s, cut at --max-tokens 5\n", done.stderr)
    done = ultrafast(*counting, "--context", "64")
    assert re.fullmatch(r"\d+ tokens, .* tokens/s, cut at the context of 64 tokens\n", done.stderr)


def test_a_drawn_seed_is_reported_and_gives_the_same_answer_again(ultrafast: Ultrafast) -> None:
    arguments = ("run", "Invent a name for a ship.", "--max-tokens", "16", "--json")
    first = json.loads(ultrafast(*arguments).stdout)
    again = json.loads(ultrafast(*arguments, "--seed", str(first["seed"])).stdout)
    assert again["token_ids"] == first["token_ids"]
    others = [json.loads(ultrafast(*arguments, "--seed", str(seed)).stdout)["token_ids"] for seed in (1, 2, 2**64 - 1)]
    assert any(tokens != first["token_ids"] for tokens in others)


def test_threads_do_not_change_the_answer(ultrafast: Ultrafast) -> None:
    arguments = ("run", QUESTION, "--seed", "7", "--max-tokens", "16", "--json")
    one, two = (json.loads(ultrafast(*arguments, "--threads", count).stdout) for count in "12")
    assert one["token_ids"] == two["token_ids"]


def test_the_prompt_comes_from_standard_input(ultrafast: Ultrafast) -> None:
    piped = ultrafast("run", "-", *GREEDY, stdin=QUESTION.encode())
    assert piped.stdout == ultrafast("run", QUESTION, *GREEDY).stdout


@pytest.mark.parametrize(
    ("stdin", "offset"), [(b"What is \xff\xfe this?", 8), ("héllo ".encode() + b"\xf0\x9f\x98", 7)]
)
def test_bytes_that_are_no_text_are_refused(ultrafast: Ultrafast, stdin: bytes, offset: int) -> None:
    done = ultrafast("run", "-", *GREEDY, stdin=stdin)
    assert done.stderr.startswith(f"error: standard input is not UTF-8 text: byte {offset} ")
    assert done.stderr.count("\n") == 1
    assert (done.returncode, done.stdout) == (2, "")


def test_text_of_any_characters_is_taken(ultrafast: Ultrafast) -> None:
    done = ultrafast("run", "-", *GREEDY, stdin="What is \ufffd\x00\u2028 this? 😀".encode())
    assert (done.returncode, done.stdout != "") == (0, True)


def test_a_prompt_beyond_the_limit_is_one_line(ultrafast: Ultrafast) -> None:
    for verb in (("run", "-"), ("chat",)):
        done = ultrafast(*verb, stdin=b"a" * 16_000_001)
        assert (done.returncode, done.stderr) == (2, "error: a prompt on standard input holds more than 16 MB\n")


def test_the_system_message_counts(ultrafast: Ultrafast) -> None:
    plain = json.loads(ultrafast("run", QUESTION, *GREEDY, "--json").stdout)
    pirate = json.loads(
        ultrafast("run", QUESTION, "--system", "You are a pirate of few words.", *GREEDY, "--json").stdout
    )
    assert pirate["usage"]["prompt_tokens"] != plain["usage"]["prompt_tokens"]


def test_a_prompt_beyond_the_context_is_one_line(ultrafast: Ultrafast) -> None:
    done = ultrafast("run", "-", "--context", "64", stdin=b"word " * 100)
    assert re.fullmatch(r"error: the prompt has \d+ tokens and the context holds 64, answer included\n", done.stderr)
    assert (done.returncode, done.stdout) == (1, "")


def test_the_answer_ends_where_the_context_ends(ultrafast: Ultrafast) -> None:
    done = ultrafast("run", LONG_ANSWER, "--context", "64", "--temperature", "0", "--json")
    record = json.loads(done.stdout)
    assert record["finish_reason"] == "length"
    assert record["usage"]["total_tokens"] == 64


def test_a_context_beyond_the_model_is_refused(ultrafast: Ultrafast) -> None:
    done = ultrafast("run", "hi", "--context", "9000000")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert done.returncode in (1, 2)


def test_the_portable_build_gives_the_same_tokens(ultrafast: Ultrafast) -> None:
    arguments = ("run", QUESTION, "--temperature", "0", "--max-tokens", "4", "--json")
    best = json.loads(ultrafast(*arguments).stdout)
    portable = json.loads(ultrafast(*arguments, ULTRAFAST_INSTRUCTION_SET="Portable").stdout)
    assert portable["token_ids"] == best["token_ids"]


def test_an_instruction_set_that_is_not_there_is_refused(ultrafast: Ultrafast) -> None:
    done = ultrafast("run", "hi", ULTRAFAST_INSTRUCTION_SET="sve9000")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert done.returncode == 2


def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    process = subprocess.Popen(
        [*COMMAND, "run", LONG_ANSWER, "--temperature", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize("streams", ["plain", "json"])
def test_unicode_survives_a_locale_without_it(ultrafast: Ultrafast, streams: str) -> None:
    extra = ("--json",) if streams == "json" else ()
    done = ultrafast("run", "Repeat: héllo 你好", *GREEDY, *extra, PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert done.returncode == 0
    assert done.stdout.isascii()
