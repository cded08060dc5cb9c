"""A model without a chat template continues texts; whoever wants to chat with it brings a template."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.cli.conftest import Ultrafast
from tests.cli.test_serve import serving
from tests.gateway.running_server import KEY, RunningServer
from ultrafast.tokens.tokenizer import Tokenizer
from ultrafast.weights.gguf import GgufFile

KEY_OF_TEMPLATE = b"tokenizer.chat_template"
GREEDY = ("--temperature", "0", "--max-tokens", "12", "--json")


@pytest.fixture(scope="module")
def base_model(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The default model, its template under a key that means nothing."""
    path = tmp_path_factory.mktemp("base") / "base.gguf"
    shutil.copyfile(model_path, path)
    with path.open("r+b") as file:
        at = file.read(16 << 20).index(KEY_OF_TEMPLATE)
        file.seek(at)
        file.write(KEY_OF_TEMPLATE[:-1] + b"X")
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def template(gguf_file: GgufFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "template.jinja"
    path.write_text(gguf_file.string("tokenizer.chat_template"), encoding="utf-8")
    return path


def test_run_continues_the_text_as_it_stands(ultrafast: Ultrafast, base_model: Path, tokenizer: Tokenizer) -> None:
    text = "The capital of France is"
    record = json.loads(ultrafast("run", "--model", str(base_model), text, *GREEDY).stdout)
    assert record["usage"]["prompt_tokens"] == len(tokenizer.encode_prompt(text))
    assert "Paris" in record["text"]


def test_a_template_of_ones_own_gives_the_same_answer_as_the_models(
    ultrafast: Ultrafast, base_model: Path, template: Path
) -> None:
    question = "Name a river."
    own = json.loads(ultrafast("run", question, *GREEDY).stdout)
    given = json.loads(
        ultrafast("run", "--model", str(base_model), "--chat-template", str(template), question, *GREEDY).stdout
    )
    assert (given["token_ids"], given["usage"]) == (own["token_ids"], own["usage"])


@pytest.mark.parametrize(
    ("arguments", "stdin", "says"),
    [
        (("chat",), b"hello\n", "no chat template; give one with --chat-template FILE"),
        (("run", "--system", "Be brief.", "hello"), b"", "no place for --system; give one with --chat-template FILE"),
        (("run", "--chat-template", "/nonexistent", "hello"), b"", "--chat-template: there is no such file"),
    ],
)
def test_what_needs_a_template_says_so_in_one_line(
    ultrafast: Ultrafast, base_model: Path, arguments: tuple[str, ...], stdin: bytes, says: str
) -> None:
    done = ultrafast(*arguments, "--model", str(base_model), stdin=stdin)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_server_says_at_its_start_that_it_will_refuse(base_model: Path, template: Path) -> None:
    line = "Warning: base has no chat template, so chat requests to it are refused; give one with --chat-template FILE"
    with serving("--model", str(base_model), "--no-auth") as server:
        assert line in server.lines
    with serving("--model", str(base_model), "--no-auth", "--chat-template", str(template)) as server:
        assert "Warning" not in "\n".join(server.lines)


def test_the_chat_endpoint_refuses(base_model: Path) -> None:
    server = RunningServer("--model", str(base_model))
    try:
        client = openai.OpenAI(base_url=server.base_url, api_key=KEY, max_retries=0)
        with pytest.raises(openai.BadRequestError, match="--chat-template FILE") as caught:
            client.chat.completions.create(model="base", messages=[{"role": "user", "content": "hello"}])
        assert caught.value.code == "chat_template_missing"
    finally:
        server.stop()
