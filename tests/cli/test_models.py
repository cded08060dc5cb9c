"""`ultrafast models`; fetching itself is tested in tests/weights."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.weights.gguf_bytes import STRING, UINT32, entry, gguf, scalar, string, tensor
from tests.weights.hub_server import Hub, Repository
from tests.weights.safetensors_bytes import write_directory
from tests.weights.test_recognise import FILES
from ultrafast.weights.store import resolve_model

from .conftest import Ultrafast
from .terminal import Terminal


def test_list_names_the_default_model_and_its_file(ultrafast: Ultrafast) -> None:
    path = resolve_model().path
    done = ultrafast("models", "list")
    assert done.returncode == 0
    assert done.stdout.startswith("smollm2-135m (default)  98.4 MB  SmolLM2 135M Instruct, Q4_1, Apache-2.0\n")
    assert str(path) in done.stdout


def test_list_says_what_is_not_here(ultrafast: Ultrafast, tmp_path: Path) -> None:
    done = ultrafast("models", "list", ULTRAFAST_CACHE=str(tmp_path))
    assert done.returncode == 0
    assert "not downloaded" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_pull_of_a_model_that_is_here_says_where(ultrafast: Ultrafast) -> None:
    path = resolve_model().path
    for arguments in (("models", "pull"), ("models", "pull", "smollm2-135m")):
        done = ultrafast(*arguments)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"smollm2-135m  98.4 MB  {path}\n", "")


def test_pull_of_an_unknown_name_is_one_line(ultrafast: Ultrafast) -> None:
    done = ultrafast("models", "pull", "gpt-99")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "smollm2-135m" in done.stderr


def test_inspect_tells_what_is_in_a_model(ultrafast: Ultrafast) -> None:
    done = ultrafast("models", "inspect", "smollm2-135m")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["architecture", "llama"] in rows
    assert ["parameters", "134.5", "million"] in rows
    assert ["context", "8,192", "tokens"] in rows
    assert ["Q4_1", "210", "66.4", "MB"] in rows
    assert ["tokenizer", "gpt2", "(smollm)"] in rows
    assert ["template", "yes"] in rows
    assert ["supported", "all", "of", "it"] in rows
    record = json.loads(ultrafast("models", "inspect", str(resolve_model().path), "--json").stdout)
    assert record["parameters"] == 134_515_008
    assert record["unsupported"] == []
    assert sum(share["byte_count"] for share in record["types"]) < record["files"][0]["byte_count"] == 98_362_432
    # The embedding is the output layer too, so every matrix is read.
    matrices = sum(share["byte_count"] for share in record["types"] if share["name"] != "F32")
    assert record["bytes_per_token"] == matrices


def test_inspect_works_on_what_cannot_be_loaded(ultrafast: Ultrafast, tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    entries = [
        entry("general.architecture", STRING, string("mamba")),
        entry("mamba.expert_count", UINT32, scalar(UINT32, 4)),
        entry("mamba.expert_used_count", UINT32, scalar(UINT32, 1)),
    ]
    tensors = [
        tensor("token_embd.weight", [256], 15, 0),
        tensor("blk.0.ffn_up_exps.weight", [4, 4], 0, 320),
        tensor("output.weight", [256, 1], 29, 384),  # IQ1_M: 56 bytes here, 114 in memory
    ]
    path.write_bytes(gguf(entries, tensors, bytes(448)))
    done = ultrafast("models", "inspect", str(path), "--json")
    assert done.returncode == 1
    record = json.loads(done.stdout)
    assert record["architecture"] == "mamba"
    assert record["bytes_per_token"] == 64 / 4 + 114
    kind, architecture, tokenizer = record["unsupported"]
    assert kind == "tensor type Q8_K"
    assert architecture.startswith("architecture 'mamba' is not supported")
    assert tokenizer == "metadata tokenizer.ggml.model is missing"
    # A verb that would load it says as much.
    for arguments in (("run", "hi", "--model", str(path)), ("serve", "--port", "0", "--no-auth", "--model", str(path))):
        done = ultrafast(*arguments)
        assert done.returncode == 1
        assert done.stderr == f"error: {path}: {kind}; also: {architecture}; also: {tokenizer}\n"


def test_inspect_of_a_directory(ultrafast: Ultrafast, tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "My-Model", sharded=True)
    (directory / "tokenizer_config.json").write_text('{"chat_template": "{{ x }}"}')
    (directory / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    record = json.loads(ultrafast("models", "inspect", str(directory), "--json").stdout)
    assert (record["model"], record["format"], record["architecture"]) == ("My-Model", "safetensors", "llama")
    assert record["tokenizer"] == "BPE (tokenizer.json)"
    assert record["chat_template"] is True
    assert len(record["files"]) == 3
    assert {share["name"]: share["tensors"] for share in record["types"]} == {"F32": 2, "F16": 1}


def test_inspect_of_a_folder_of_unknown_files(ultrafast: Ultrafast, tmp_path: Path) -> None:
    """Done when: broken, unsupported, huge, not a model, a directory, a LoRA: each gets one helpful line."""
    for name, (content, _) in FILES.items():
        (tmp_path / name).write_bytes(content)
    write_directory(tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter" / "model.safetensors").unlink()
    with (tmp_path / "sparse.gguf").open("wb") as sparse:
        sparse.truncate(1 << 40)
    paths = sorted(tmp_path.iterdir())
    done = ultrafast("models", "inspect", *map(str, paths), "--json")
    assert done.returncode == 1
    assert done.stderr == ""
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(records) == len(paths)
    for path, record in zip(paths, records, strict=True):
        line = record["error"] if "error" in record else " ".join(record["unsupported"])
        assert line, path
        if "error" in record:
            assert str(path) in line
    done = ultrafast("models", "inspect", *map(str, paths))
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert len(lines) == len(paths)
    for path, line in zip(paths, lines, strict=True):
        assert re.fullmatch(rf"unsupported  {re.escape(str(path))}: \S.+", line)
        assert line.count(str(path)) == 1


def test_inspect_of_several_is_one_line_each(ultrafast: Ultrafast, tmp_path: Path) -> None:
    model = resolve_model().path
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / ".hidden").write_text("hello")
    (tmp_path / "model.gguf").symlink_to(model)
    (tmp_path / "other.gguf").symlink_to(model)
    facts = "llama, 134.5 million parameters, Q4_1, 98.4 MB"
    good = [f"supported    {tmp_path / name}: {facts}" for name in ("model.gguf", "other.gguf")]
    bad = f"unsupported  {tmp_path / 'notes.txt'}: a text file, not a model: name a .gguf file"
    done = ultrafast("models", "inspect", str(tmp_path))
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (1, [good[0], bad, good[1]], "")
    done = ultrafast("models", "inspect", str(tmp_path / "model.gguf"), "smollm2-135m")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [good[0], f"supported    smollm2-135m: {facts}"]
    done = ultrafast("models", "inspect", "gpt-99", "smollm2-135m")
    assert done.returncode == 1
    assert done.stdout.startswith("unsupported  gpt-99: no model of that name")


def test_inspect_says_the_verdict_first(ultrafast: Ultrafast, tmp_path: Path) -> None:
    done = ultrafast("models", "inspect", "smollm2-135m")
    assert done.stdout.startswith("supported     all of it\n")
    path = tmp_path / "odd.gguf"
    path.write_bytes(gguf([entry("general.architecture", STRING, string("mamba"))]))
    assert ultrafast("models", "inspect", str(path)).stdout.startswith("unsupported   ")


def test_inspect_of_what_is_not_here_fetches_nothing(ultrafast: Ultrafast, tmp_path: Path) -> None:
    for name in ("gemma3-270m", "hf:some/model"):
        done = ultrafast("models", "inspect", name, ULTRAFAST_CACHE=str(tmp_path))
        assert (done.returncode, done.stdout) == (1, "")
        assert f"'ultrafast models pull {name}' fetches it" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_remove_asks_or_is_told(ultrafast: Ultrafast, tmp_path: Path) -> None:
    directory = tmp_path / "models"
    directory.mkdir()
    file = directory / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.write_bytes(bytes(1_000_000))
    done = ultrafast("models", "remove", "smollm2-135m", ULTRAFAST_CACHE=str(tmp_path))
    assert done.returncode == 2
    assert "1 file of 1.0 MB would be deleted; --yes does it without asking" in done.stderr
    assert file.exists()
    for name in ("gpt-99", str(file), "hf:some/model"):
        done = ultrafast("models", "remove", name, "--yes", ULTRAFAST_CACHE=str(tmp_path))
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
    assert file.exists()
    done = ultrafast("models", "remove", "smollm2-135m", "--yes", ULTRAFAST_CACHE=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "removed 1 file, 1.0 MB\n")
    assert not file.exists()


@pytest.mark.parametrize(("answer", "code"), [("n", 130), ("y", 0)])
def test_remove_asks_a_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int) -> None:
    monkeypatch.setenv("ULTRAFAST_CACHE", str(tmp_path))
    file = tmp_path / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.parent.mkdir()
    file.write_bytes(bytes(1_000_000))
    with Terminal("models", "remove", "smollm2-135m") as terminal:
        terminal.wait_for("Delete 1 file of 1.0 MB")
        terminal.press(f"{answer}\n".encode())
        assert terminal.exit_code() == code
    assert file.exists() == (answer == "n")


def test_run_of_a_hub_s_model_pulls_it(ultrafast: Ultrafast, tmp_path: Path) -> None:
    with Hub() as hub:
        content = resolve_model().path.read_bytes()
        hub.repositories["some/model-GGUF"] = Repository({"model-Q4_1.gguf": content})
        settings = {"HF_ENDPOINT": hub.url, "ULTRAFAST_CACHE": str(tmp_path)}
        arguments = ("run", "--model", "hf:some/model-GGUF", "--temperature", "0", "--max-tokens", "4", "Hi")
        done = ultrafast(*arguments, **settings)
        assert done.returncode == 0, done.stderr
        assert "fetching Q4_1 of some/model-GGUF" in done.stderr
        assert "unauthenticated" not in done.stderr  # what the hub says to the library is not for the screen
        count = len(hub.requests)
        again = ultrafast(*arguments, **settings)
        assert again.stdout == done.stdout
        assert len(hub.requests) == count
        listed = ultrafast("models", "list", **settings).stdout
        assert "hf:some/model-GGUF/model-Q4_1.gguf  98.4 MB" in listed
        done = ultrafast("models", "pull", "hf:some/model-GGUF", HF_HUB_OFFLINE="1", **settings)
        assert (done.returncode, done.stdout) == (1, "")
        assert "HF_HUB_OFFLINE forbids to ask the hub" in done.stderr
        done = ultrafast("models", "pull", "hf:some/absent", **settings)
        assert done.returncode == 1
        assert done.stderr.startswith("error: 127.0.0.1 has no repository some/absent")
        assert done.stderr.count("\n") == 1


def test_an_unusable_cache_is_one_line(ultrafast: Ultrafast, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder", encoding="utf-8")
    done = ultrafast("run", "hi", ULTRAFAST_CACHE=str(blocked))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
