"""Help, errors and exit codes: what every verb has in common."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from .conftest import Ultrafast

VERBS = (
    "run",
    "chat",
    "serve",
    "projects",
    "keys",
    "preview",
    "capacity",
    "backends",
    "usage",
    "models",
    "doctor",
    "bench",
)


def assert_one_error_line(stderr: str) -> None:
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    assert "Traceback" not in stderr
    assert "\x1b" not in stderr


def test_help_names_every_verb(ultrafast: Ultrafast) -> None:
    done = ultrafast("--help")
    assert done.returncode == 0
    for verb in VERBS:
        assert f"\n  {verb} " in done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_each_verb_fits_80_columns(ultrafast: Ultrafast, verb: str) -> None:
    done = ultrafast(verb, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: ultrafast " + verb)
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_version(ultrafast: Ultrafast) -> None:
    done = ultrafast("--version")
    assert (done.returncode, done.stdout) == (0, f"ultrafast {version('ultrafast')}\n")


def test_without_a_verb_the_help_is_shown_and_the_usage_is_wrong(ultrafast: Ultrafast) -> None:
    done = ultrafast()
    assert done.returncode == 2
    assert "Usage: ultrafast" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("fly",),
        ("run",),
        ("run", "hi", "--no-such-option"),
        ("run", "hi", "--temperature", "nan"),
        ("run", "hi", "--temperature", "inf"),
        ("run", "hi", "--temperature", "-1"),
        ("run", "hi", "--temperature", "hot"),
        ("run", "hi", "--top-p", "0"),
        ("run", "hi", "--top-p", "nan"),
        ("run", "hi", "--top-p", "1.5"),
        ("run", "hi", "--max-tokens", "0"),
        ("run", "hi", "--max-tokens", "-5"),
        ("run", "hi", "--max-tokens", "1" + "0" * 30),
        ("run", "hi", "--seed", "-1"),
        ("run", "hi", "--seed", str(2**64)),
        ("run", "hi", "--threads", "0"),
        ("run", "hi", "--context", "0"),
        ("run", ""),
        ("run", " \n "),
        ("run", "-"),
        ("serve", "--port", "65536"),
        ("serve", "--port", "-1"),
        ("serve", "--host", "0.0.0.0", "--no-auth"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(ultrafast: Ultrafast, arguments: tuple[str, ...]) -> None:
    done = ultrafast(*arguments)
    assert_one_error_line(done.stderr)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("run", "hi", "--max-tokens", "abc"), "'--max-tokens': must be a whole number from 1 to 10000000"),
        (("run", "hi", "--max-tokens", "1.5"), "'--max-tokens': must be a whole number from 1 to 10000000"),
        (("run", "hi", "--seed", "x"), "'--seed': must be a whole number from 0 to 2**64 - 1"),
        (("chat", "--threads", ""), "'--threads': must be a whole number from 1 to 256"),
        (("chat", "--context", "9" * 5000), "'--context': must be a whole number from 1 to 10000000"),
        (("run", "hi", "--temperature", "hot"), "'--temperature': must be a number from 0 to 2"),
        (("run", "hi", "--top-p", "all"), "'--top-p': must be a number above 0 and at most 1"),
        (("serve", "--port", "http"), "'--port': must be a whole number from 0 to 65535"),
        (("serve", "--port", "70000"), "'--port': must be a whole number from 0 to 65535"),
        (("bench", "speed", "--rounds", "0"), "'--rounds': must be a whole number from 1 to 10000"),
        (("bench", "fidelity", "--tokens", "few"), "'--tokens': must be a whole number from 1 to 10000000"),
        (
            ("serve", "--host", "banana.invalid"),
            "'--host': no such address; name one of this machine's, such as 127.0.0.1, or 0.0.0.0 for all",
        ),
    ],
)
def test_a_wrong_value_is_told_in_plain_words(ultrafast: Ultrafast, arguments: tuple[str, ...], line: str) -> None:
    done = ultrafast(*arguments)
    assert (done.returncode, done.stderr) == (2, f"error: Invalid value for {line}\n")


def test_a_prompt_without_quotes_is_told_to_have_them(ultrafast: Ultrafast) -> None:
    done = ultrafast("run", "tell", "me", "a", "joke", "--max-tokens", "5")
    assert_one_error_line(done.stderr)
    assert 'put it in quotes, as in: ultrafast run "tell me a joke"' in done.stderr
    assert done.returncode == 2


def test_a_model_where_none_is_taken_is_told_where_to_go(ultrafast: Ultrafast, tmp_path: Path) -> None:
    file, folder = tmp_path / "my model.gguf", tmp_path / "folder"
    folder.mkdir()
    for path in (file, folder / "config.json"):
        path.write_bytes(b"")
    for named, shown in ((file, f"'{file}'"), (folder, str(folder))):
        for words in ((), ("tell", "me")):
            done = ultrafast("run", str(named), *words)
            assert_one_error_line(done.stderr)
            assert done.stderr.endswith(f"as in: ultrafast run --model {shown} PROMPT\n")
            assert (done.returncode, done.stdout) == (2, "")
        for verb in ("serve", "chat"):
            done = ultrafast(verb, str(named))
            assert_one_error_line(done.stderr)
            assert done.stderr.endswith(f"a model is named by --model, as in: ultrafast {verb} --model {shown}\n")
            assert done.returncode == 2
    assert ultrafast("chat", "hello").stderr.endswith("as in: ultrafast chat --model NAME|PATH\n")
    assert "--model" not in ultrafast("models", "list", str(file)).stderr
    # Another model is named: then this is a prompt.
    done = ultrafast("run", str(file), "--model", "no-such-model")
    assert done.stderr.startswith("error: no model of that name")


@pytest.mark.parametrize("prompt", ["-5 plus 3?", "- hello", "--hello there"])
def test_a_prompt_that_looks_like_an_option_is_told_where_to_go(ultrafast: Ultrafast, prompt: str) -> None:
    done = ultrafast("run", prompt)
    assert_one_error_line(done.stderr)
    assert "a prompt that begins with - goes in quotes after --" in done.stderr
    assert done.returncode == 2
    assert ultrafast("run", "--max-tokens", "1", "--", prompt).returncode == 0
    assert "in quotes" not in ultrafast("run", "hi", "--temprature", "1").stderr


@pytest.mark.parametrize("verb", [("run", "hi"), ("serve",), ("doctor",)])
def test_unknown_model_is_one_line_and_exit_code_1(ultrafast: Ultrafast, verb: tuple[str, ...]) -> None:
    done = ultrafast(*verb, "--model", "no-such-model")
    assert_one_error_line(done.stderr)
    assert done.returncode == 1
    assert "smollm2-135m" in done.stderr


def test_damaged_model_file_is_one_line_and_exit_code_1(ultrafast: Ultrafast, tmp_path: Path) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(b"GGUF" + b"\xff" * 100)
    done = ultrafast("run", "hi", "--model", str(path))
    assert_one_error_line(done.stderr)
    assert done.returncode == 1
    assert "damaged.gguf" in done.stderr


def test_control_characters_of_an_argument_do_not_reach_the_terminal(ultrafast: Ultrafast) -> None:
    done = ultrafast("run", "hi", "--\x1b[31mred")
    assert_one_error_line(done.stderr)
    assert done.returncode == 2
