"""A model's folder, as it comes from the hub: whatever a command does with a file, it does with a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from tests.models.checkpoints import write_directory

from .conftest import Ultrafast
from .test_serve import serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, and a vocabulary of the 256 bytes."""
    directory = write_directory(tmp_path_factory.mktemp("models") / "My-Model", "llama", "F16", vocab_size=300)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    backend.add_special_tokens(["<end>"])
    backend.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": "<end>", "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


@pytest.mark.parametrize("ending", ["", "/"])
def test_run(ultrafast: Ultrafast, folder: Path, ending: str) -> None:
    done = ultrafast("run", "Hi", "--model", f"{folder}{ending}", "--max-tokens", "4", "--seed", "1", "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["model"] == "My-Model"
    assert len(record["token_ids"]) >= 1


def test_inspect_says_that_it_runs(ultrafast: Ultrafast, folder: Path) -> None:
    done = ultrafast("models", "inspect", str(folder))
    assert done.returncode == 0
    assert "supported     all of it" in done.stdout


def test_serve(folder: Path) -> None:
    with serving("--model", str(folder), "--no-auth") as server:
        assert any(line.startswith("Model My-Model: ") for line in server.lines)


def test_inspect_sees_a_missing_tensor(ultrafast: Ultrafast, folder: Path, tmp_path: Path) -> None:
    """What `run` would refuse, `inspect` says before."""
    copy = write_directory(tmp_path / "damaged", "llama", "F16", vocab_size=300, num_hidden_layers=3)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (copy / name).write_bytes((folder / name).read_bytes())
    settings = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(settings | {"num_hidden_layers": 4}))
    done = ultrafast("models", "inspect", str(copy), "--json")
    assert done.returncode == 1
    (reason,) = json.loads(done.stdout)["unsupported"]
    assert "missing" in reason or "lacks" in reason or "no tensor" in reason
    refused = ultrafast("run", "Hi", "--model", str(copy))
    assert refused.returncode == 1
    assert reason in refused.stderr


def test_a_name_that_is_not_utf_8(ultrafast: Ultrafast) -> None:
    for verb in (("models", "inspect"), ("run", "Hi", "--model")):
        done = ultrafast(*verb, "latin-\udce9.gguf")
        assert done.returncode == 1
        assert done.stderr == "error: the name of the file is not UTF-8: rename it\n"
