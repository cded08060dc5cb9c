"""`ultrafast serve` as an operator meets it; the API itself is tested in tests/gateway."""

from __future__ import annotations

import re
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

from ultrafast.weights.store import resolve_model

from .conftest import COMMAND, Ultrafast, environment

START_SECONDS = 60


class Server:
    """A running server and what it has written up to the line that says where it listens."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        assert process.stderr is not None
        for line in process.stderr:
            self.lines.append(line.rstrip("\n"))
            if found := re.search(r"Listening on (http://\S+)", line):
                self.url = found[1]
                return
        raise AssertionError("the server did not start: " + "\n".join(self.lines))


@contextmanager
def serving(*arguments: str, **variables: str) -> Iterator[Server]:
    process = subprocess.Popen(
        [*COMMAND, "serve", "--port", "0", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**variables),
    )
    try:
        yield Server(process)
    finally:
        process.kill()
        process.communicate()


def test_the_official_client_gets_an_answer_by_the_real_name_and_by_the_alias() -> None:
    with serving(ULTRAFAST_API_KEY="a-key-of-the-test") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="a-key-of-the-test", max_retries=0)
        for name in ("smollm2-135m", "gpt-5.6-sol"):
            completion = client.chat.completions.create(
                model=name,
                messages=[{"role": "user", "content": "Name the capital of France in one short sentence."}],
                temperature=0,
                max_tokens=24,
            )
            assert completion.model == "smollm2-135m"
            assert "Paris" in (completion.choices[0].message.content or "")
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="another").models.list()
    shown = "\n".join(server.lines)
    assert "Alias gpt-5.6-sol: answered by smollm2-135m, not that vendor's model" in shown
    assert "a-key-of-the-test" not in shown


def test_other_aliases_replace_the_default_one() -> None:
    with serving("--alias", "one", "--alias", "two", "--no-auth") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)
        assert {client.models.retrieve(name).id for name in ("one", "two", "smollm2-135m")} == {"smollm2-135m"}
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("gpt-5.6-sol")


@pytest.mark.parametrize(
    "alias", ["", " ", "two words", "tab\t", "line\nend", "\x1b[2J", "\u00a0", "\u202e", "x" * 257]
)
def test_an_alias_that_no_line_can_show_is_refused(ultrafast: Ultrafast, alias: str) -> None:
    done = ultrafast("serve", "--port", "0", "--no-auth", "--alias", "fine", "--alias", alias)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: an alias (--alias) must have 1 to 256 printable characters")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_exit_code_0(number: signal.Signals) -> None:
    with serving("--no-auth") as server:
        server.process.send_signal(number)
        stdout, stderr = server.process.communicate(timeout=20)
    assert server.process.returncode == 0
    assert stdout == ""
    assert "Traceback" not in stderr


def test_a_taken_port_is_one_line(ultrafast: Ultrafast) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        # Of two faults it is the port that is told: it is noticed before a model is looked at.
        done = ultrafast("serve", "--port", str(port), "--model", "no-such-model")
    assert done.returncode == 2
    assert re.fullmatch(
        rf"error: port {port} on 127\.0\.0\.1 cannot be used: .*; choose another with --port\n", done.stderr
    )


def test_the_configuration_is_shown_and_looked_into_without_its_secrets(ultrafast: Ultrafast, tmp_path: Path) -> None:
    file = tmp_path / "ultrafast.toml"
    server = 'kind = "upstream"\nurl = "http://x/v1"\nmodel = "m"\nkey_variable = "NOT_SET"\n'
    file.write_text(f'data_directory = "data"\n[backends.far]\n{server}', encoding="utf-8")
    shown = ultrafast("serve", "--config", str(file), "--show-config")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert 'key_variable = "NOT_SET"  # gives no key: the environment variable NOT_SET is not set\n' in shown.stdout
    refused = ultrafast("serve", "--config", str(file))
    assert (refused.returncode, refused.stderr.startswith(f"error: {file}:6: ")) == (2, True)
    # Nor does a command that needs nothing of the file but the directory, which is beside it.
    done = ultrafast("projects", "create", "team", ULTRAFAST_CONFIG=str(file), ULTRAFAST_DATA="")
    assert done.returncode == 0
    assert (tmp_path / "data" / "ultrafast.db").exists()


def test_a_missing_model_is_named_with_its_line(ultrafast: Ultrafast, tmp_path: Path) -> None:
    file = tmp_path / "ultrafast.toml"
    file.write_text('[backends.local]\nkind = "engine"\nmodel = "absent.gguf"\n', encoding="utf-8")
    done = ultrafast("serve", "--port", "0", "--no-auth", "--config", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        f"error: {file}:3: backends.local.model: {tmp_path}/absent.gguf: there is no such file"
    )
    done = ultrafast("serve", "--port", "0", "--no-auth", "--config", str(file), "--model", "other.gguf")
    assert done.stderr.startswith("error: other.gguf: there is no such file")


def test_a_price_of_a_model_that_is_not_served_is_one_line(ultrafast: Ultrafast, tmp_path: Path) -> None:
    file = tmp_path / "ultrafast.toml"
    file.write_text("[prices.models.smollm]\ninput = 1\ncached_input = 1\noutput = 1\n", encoding="utf-8")
    done = ultrafast("serve", "--port", "0", "--no-auth", "--config", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (f"error: {file}:1: prices.models.smollm is no model that is served (known: smollm2-135m)\n")


def test_without_a_terminal_the_key_is_kept_in_a_file_of_the_owner(tmp_path: Path) -> None:
    model = str(resolve_model().path)
    keys = []
    for _ in range(2):
        with serving("--model", model, ULTRAFAST_DATA=str(tmp_path)) as server:
            (line,) = [line for line in server.lines if "API key" in line]
            path = Path(line.rpartition(" ")[2])
            assert path.parent == tmp_path
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            keys.append(path.read_text(encoding="ascii").strip())
            assert keys[-1] not in "\n".join(server.lines)
            client = openai.OpenAI(base_url=server.url + "/v1", api_key=keys[-1], max_retries=0)
            assert [model.id for model in client.models.list()] == [resolve_model().path.stem]
    assert keys[0] == keys[1]
    assert len(keys[0]) >= 32
