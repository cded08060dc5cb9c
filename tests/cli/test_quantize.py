"""`--quantize`: what is asked for is done, and named wherever a result is."""

from __future__ import annotations

import json
import urllib.request

import pytest

from tests.gateway.running_server import KEY, RunningServer
from tests.models.tiny import TinyShape, write_tiny_model
from ultrafast.weights.gguf import GgufFile

from .conftest import Ultrafast

# With hidden rows of whole blocks, and those of the feed-forward's way back not.
SHAPE = TinyShape(hidden_size=64, feed_forward_size=72, vocabulary_size=49_152, head_size=16)
QUESTION = ("run", "Say something.", "--temperature", "0", "--max-tokens", "12")


@pytest.fixture(scope="module")
def float_model(tmp_path_factory: pytest.TempPathFactory, gguf_file: GgufFile) -> str:
    path = tmp_path_factory.mktemp("float") / "tiny-f16.gguf"
    return str(write_tiny_model(path, "F16", SHAPE, tokenizer=gguf_file))


def test_run_names_it(ultrafast: Ultrafast, float_model: str) -> None:
    plain = json.loads(ultrafast(*QUESTION, "--model", float_model, "--json").stdout)
    assert plain["quantised_at_load"] is None
    asked = json.loads(ultrafast(*QUESTION, "--model", float_model, "--json", "--quantize", "q4_1").stdout)
    assert asked["quantised_at_load"] == "q4_1"
    done = ultrafast(*QUESTION, "--model", float_model, "--quantize", "Q8_0")
    assert ", quantised at load to q8_0, cut at --max-tokens 12\n" in done.stderr


def test_doctor_names_it_and_counts_the_bytes_that_are_read(ultrafast: Ultrafast, float_model: str) -> None:
    done = ultrafast("doctor", "--model", float_model, "--quantize", "q4_1")
    assert done.returncode == 0
    assert "quantised at load to q4_1, embedding and output layer to q8_0\n" in done.stdout
    assert "2 matrices kept as float: rows are not whole blocks of 32\n" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    record = json.loads(ultrafast("doctor", "--model", float_model, "--quantize", "q8_0", "--json").stdout)["model"]
    assert (record["quantised_at_load"], record["matrices_kept_float"]) == ("q8_0", 2)
    layer = (64 + 32 + 32 + 64 + 2 * 72) * 64 * 34 // 32 + 64 * 72 * 2
    assert record["weight_bytes_per_token"] == 2 * layer + 49_152 * 64 * 34 // 32


def test_serve_names_it_in_banner_and_list(float_model: str) -> None:
    server = RunningServer("--model", float_model, "--quantize", "q8_0")
    try:
        assert "Weights: quantised at load to q8_0" in server.lines
        request = urllib.request.Request(f"{server.base_url}/models", headers={"Authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(request) as response:
            assert json.load(response)["data"][0]["quantised_at_load"] == "q8_0"
    finally:
        server.stop()


@pytest.mark.parametrize("verb", [QUESTION, ("chat",), ("doctor",), ("serve", "--port", "0")])
def test_a_quantised_file_and_another_type_are_refused_in_one_line(ultrafast: Ultrafast, verb: tuple[str, ...]) -> None:
    done = ultrafast(*verb, "--quantize", "q8_0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == (
        "error: the model is quantised already (token_embd.weight is Q8_0): load it without --quantize"
    )
    done = ultrafast(*verb, "--quantize", "q4_k")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "must be q8_0 or q4_1" in done.stderr
