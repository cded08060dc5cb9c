"""Pulling from a hub: a small one on this machine, with the faults that networks and people bring."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.weights.gguf_bytes import sound
from tests.weights.hub_server import TOKEN, Hub, Repository
from tests.weights.safetensors_bytes import CONFIGURATION, write_directory
from tests.weights.test_store import Recorder, left_behind
from ultrafast.errors import ConfigurationError, DownloadError, ModelError, ModelNotFoundError, UnsupportedModelError
from ultrafast.weights import choice, open_model, store, transfer
from ultrafast.weights.store import files_to_remove, list_models, pull_model, remove_model, resolve_model

CONTENT = sound()
NAME = "hf:some-org/Some.Model-GGUF"
REPOSITORY = NAME.removeprefix("hf:")
FILE = "some-model-Q4_1.gguf"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with one repository of a small GGUF file, an empty cache, no token, and no patience."""
    for variable in ("HF_TOKEN", "HF_HUB_OFFLINE", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("ULTRAFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(transfer, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    with Hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url + "/")
        server.repositories[REPOSITORY] = Repository({FILE: CONTENT, "README.md": b"read me"})
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def fails(match: str, kind: type[ModelError] = DownloadError, name: str = NAME) -> str:
    with pytest.raises(kind, match=match) as caught:
        pull_model(name)
    assert type(caught.value) in (kind, transfer._CutError)
    message = str(caught.value)
    assert message.isprintable()
    assert "canary" not in message
    return message


def test_a_pull_stores_the_file_and_says_what_it_takes(hub: Hub, cache: Path) -> None:
    progress = Recorder()
    location = pull_model(NAME, progress=progress)
    assert location.path == cache / "models" / "hf" / "some-org" / "Some.Model-GGUF" / FILE
    assert location.path.read_bytes() == CONTENT
    assert (location.name, location.size_bytes) == ("some-model-Q4_1", len(CONTENT))
    assert left_behind(cache) == [FILE]
    assert len(progress.messages) == 1
    assert f"fetching Q4_1 of {REPOSITORY} (the only one there; 0.0 MB, apache-2.0) into" in progress.messages[0]
    assert progress.steps[-1] == (len(CONTENT), len(CONTENT))
    open_model(location.path).close()


def test_what_is_here_serves_without_a_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resolve_model(NAME)
    count = len(hub.requests)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    for name in (NAME, NAME + ":q4_1", f"{NAME}/{FILE}"):
        assert resolve_model(name) == first
    assert len(hub.requests) == count
    assert fails("cannot be reached") == (
        "the hub (127.0.0.1) cannot be reached: connect to the network and try again; what is in the cache still "
        "serves: 'ultrafast models list'"
    )
    assert resolve_model(NAME) == first


def test_a_second_pull_fetches_only_what_changed(hub: Hub) -> None:
    path = pull_model(NAME).path
    pull_model(NAME)
    assert len(hub.transfers(FILE)) == 2  # the address at the hub, and the store it leads to
    path.write_bytes(bytes(len(CONTENT)))
    assert pull_model(NAME).path.read_bytes() == CONTENT
    hub.repositories[REPOSITORY].files[FILE] = CONTENT + bytes(32)
    assert pull_model(NAME).path.read_bytes() == CONTENT + bytes(32)


def test_cut_transfers_go_on(hub: Hub, cache: Path) -> None:
    hub.faults.cuts[FILE] = [100, 0, 7, 300]
    assert pull_model(NAME).path.read_bytes() == CONTENT
    ranges = [one.range for one in hub.transfers(FILE) if one.host == "localhost"]
    assert ranges == [None, "bytes=100-", "bytes=100-", "bytes=107-", "bytes=407-"]
    assert left_behind(cache) == [FILE]


def test_a_pull_that_gives_up_is_taken_up_by_the_next(hub: Hub) -> None:
    hub.faults.cuts[FILE] = [123] + [0] * 20
    assert "the same command goes on from there" in fails("127.0.0.1")
    hub.faults.cuts.clear()
    hub.requests.clear()
    assert pull_model(NAME).path.read_bytes() == CONTENT
    assert hub.transfers(FILE)[-1].range == "bytes=123-"


def test_another_version_does_not_go_on_from_the_old(hub: Hub, cache: Path) -> None:
    hub.faults.cuts[FILE] = [123] + [0] * 20
    fails("127.0.0.1")
    hub.faults.cuts.clear()
    changed = CONTENT[::-1]
    hub.repositories[REPOSITORY].files[FILE] = changed
    assert pull_model(NAME).path.read_bytes() == changed
    assert left_behind(cache) == [FILE]


def test_a_server_without_ranges(hub: Hub) -> None:
    hub.faults.cuts[FILE] = [100]
    hub.faults.ignore_ranges = True
    assert pull_model(NAME).path.read_bytes() == CONTENT


def test_a_server_that_sends_another_range(hub: Hub) -> None:
    hub.faults.cuts[FILE] = [100]
    hub.faults.wrong_ranges = True
    fails("does not answer as a hub does")


def test_errors_that_pass(hub: Hub) -> None:
    hub.faults.statuses[FILE] = [503, 500, 429]
    assert pull_model(NAME).path.read_bytes() == CONTENT
    hub.repositories[REPOSITORY].files[FILE] = CONTENT[::-1]
    hub.faults.statuses[FILE] = [503] * 20
    fails(r"answers with an error \(503\)")


@pytest.mark.parametrize("content", [bytes(len(CONTENT)), CONTENT + b"\0", CONTENT[:-1]])
def test_a_file_that_is_not_what_the_hub_said(hub: Hub, cache: Path, content: bytes) -> None:
    hub.faults.contents[FILE] = content
    fails("another hash|longer than|too early")
    assert FILE not in left_behind(cache)
    hub.faults.contents.clear()
    assert pull_model(NAME).path.read_bytes() == CONTENT


def test_a_small_file_of_another_hash(hub: Hub) -> None:
    hub.repositories[REPOSITORY].files = {FILE: b"GGUF" + bytes(96)}
    hub.faults.contents[FILE] = b"GGUF" + bytes(95) + b"\1"
    fails("another hash")


def test_full_disk(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    fails(r"the disk is full \(0 MiB are needed and 0 are free\)")
    assert not hub.transfers(FILE)
    monkeypatch.undo()
    monkeypatch.setenv("ULTRAFAST_CACHE", str(cache))
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setattr(os, "fsync", no_room)
    fails("the disk is full")


def test_unwritable_cache(hub: Hub, cache: Path) -> None:
    cache.write_text("a file where the directory should be")
    fails("cannot store the model in")


def test_an_interrupt_keeps_what_has_arrived(hub: Hub) -> None:
    hub.faults.cuts[FILE] = [123] + [0] * 10_000

    def interrupt() -> None:
        while len(hub.transfers(FILE)) < 5:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    transfer_pauses, transfer.FIRST_PAUSE_SECONDS = transfer.FIRST_PAUSE_SECONDS, 0.2  # type: ignore[misc]
    try:
        with pytest.raises(KeyboardInterrupt):
            pull_model(NAME)
    finally:
        transfer.FIRST_PAUSE_SECONDS = transfer_pauses  # type: ignore[misc]
    hub.faults.cuts.clear()
    assert pull_model(NAME).path.read_bytes() == CONTENT
    assert hub.transfers(FILE)[-1].range == "bytes=123-"


def test_the_token_goes_to_the_hub_and_nowhere_else(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.repositories[REPOSITORY].access = "private"
    hub.faults.cuts[FILE] = [100]
    progress = Recorder()
    pull_model(NAME, progress=progress)
    assert {one.host for one in hub.requests} == {"127.0.0.1", "localhost"}
    for one in hub.requests:
        assert one.authorization == (f"Bearer {TOKEN}" if one.host == "127.0.0.1" else None)
    written = "".join(capfd.readouterr()) + str(progress.messages)
    assert "canary" not in written
    for path in cache.rglob("*"):
        assert not path.is_file() or b"canary" not in path.read_bytes()


def test_no_token_over_plain_http_to_another_machine(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(transfer, "_LOOPBACK", ())  # as if 127.0.0.1 were another machine
    progress = Recorder()
    pull_model(NAME, progress=progress)
    assert progress.messages[0] == "HF_ENDPOINT is not https, so no token is sent to it"
    assert all(one.authorization is None for one in hub.requests)


@pytest.mark.parametrize(
    ("access", "token", "kind", "match"),
    [
        ("private", None, ModelNotFoundError, "or it is private and HF_TOKEN is not set"),
        ("private", "hf_canary_wrong", DownloadError, "it refuses the token of HF_TOKEN"),
        ("gated", None, DownloadError, rf"accept its terms at http://127\.0\.0\.1:\d+/{REPOSITORY}, then set HF_TOK"),
        ("gated", TOKEN, DownloadError, "is gated: accept its terms"),
        ("disabled", None, DownloadError, "may not be read|answers with an error"),
    ],
)  # fmt: skip
def test_what_may_not_be_read(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, access: str, token: str | None, kind: type[ModelError], match: str
) -> None:
    hub.repositories[REPOSITORY].access = access
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    fails(match, kind)


def test_what_is_not_there(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    fails("has no repository some-org/absent", ModelNotFoundError, "hf:some-org/absent")
    fails("no GGUF file of that name; there are Q4_1", ModelNotFoundError, NAME + "/other.gguf")
    fails("no file of that quantisation; there are Q4_1", ModelNotFoundError, NAME + ":Q8_0")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    fails("has no repository some-org/absent", ModelNotFoundError, "hf:some-org/absent")


@pytest.mark.parametrize(
    "name",
    ["hf:", "hf:model", "hf:a/b/../c.gguf", "hf:../b", "hf:a/..", "hf:a/b:Q4:K", "hf:a/b/.x", "hf:a/b\nc", "hf:a b/c"],
)  # fmt: skip
def test_names_of_another_form(hub: Hub, name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="is named hf:ORG/REPO"):
        resolve_model(name)
    assert not hub.requests


def test_endpoints_that_are_none(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for endpoint in ("ftp://a", "localhost:80", "http://user:canary@127.0.0.1"):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        with pytest.raises(ConfigurationError, match="HF_ENDPOINT must be") as caught:
            pull_model(NAME)
        assert "canary" not in str(caught.value)


@pytest.mark.parametrize("listing", [b"", b"[]", b"<html>", b'{"sha": 3, "id": "x"}', b'{"id": "x", "siblings": 3}'])
def test_a_server_that_is_no_hub(hub: Hub, listing: bytes) -> None:
    hub.faults.listing = listing
    fails("does not answer as a hub does; is HF_ENDPOINT right")


def test_hostile_names_in_a_listing_are_no_files(hub: Hub, cache: Path) -> None:
    names = ["../up-Q4_1.gguf", "/root-Q4_1.gguf", "a/../../b-Q4_1.gguf", ".hidden-Q4_1.gguf", "x\x1b[2J-Q4_1.gguf"]
    hub.repositories[REPOSITORY].files = dict.fromkeys(names, CONTENT)
    with pytest.raises(UnsupportedModelError):
        pull_model(NAME)
    hub.repositories[REPOSITORY].files["sub/good-Q4_1.gguf"] = CONTENT
    assert pull_model(NAME).path == cache / "models/hf" / REPOSITORY / "sub" / "good-Q4_1.gguf"
    assert left_behind(cache) == ["good-Q4_1.gguf"]


def directory_files(tmp_path: Path, *, sharded: bool) -> dict[str, bytes]:
    write_directory(tmp_path / "made", sharded=sharded)
    files = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    extra = dict.fromkeys(("tokenizer.json", "tokenizer_config.json", "generation_config.json"), b"{}")
    unwanted = {"pytorch_model.bin": bytes(500), "model.onnx": b"x", "original/consolidated.00.pth": b"x"}
    return files | extra | unwanted | {"chat_template.jinja": b"{{ x }}"}


@pytest.mark.parametrize("sharded", [False, True])
def test_a_safetensors_repository_brings_what_is_read_of_it(
    hub: Hub, cache: Path, tmp_path: Path, sharded: bool
) -> None:
    files = directory_files(tmp_path, sharded=sharded)
    hub.repositories[REPOSITORY].files = files
    hub.faults.cuts["model.safetensors"] = [100]
    progress = Recorder()
    location = pull_model(NAME, progress=progress)
    assert location.path == cache / "models" / "hf" / REPOSITORY
    assert "fetching the directory of" in progress.messages[0]
    unwanted = {"pytorch_model.bin", "model.onnx", "original/consolidated.00.pth"}
    assert left_behind(cache) == sorted(set(files) - unwanted)
    with open_model(location.path) as model:
        assert model.string("model_type") == "llama"
    assert resolve_model(NAME) == location


def test_a_half_fetched_directory_is_not_yet_a_model(hub: Hub, tmp_path: Path) -> None:
    hub.repositories[REPOSITORY].files = directory_files(tmp_path, sharded=True)
    hub.faults.cuts["model-00003-of-00003.safetensors"] = [0] * 30
    hub.faults.statuses["model-00003-of-00003.safetensors"] = [503] * 30
    fails("503|too early")
    assert [(entry.name, entry.description) for entry in list_models() if entry.path] == [
        (NAME, "of an interrupted pull; the next goes on from there")
    ]
    hub.faults.statuses.clear()
    hub.faults.cuts.clear()
    hub.requests.clear()
    open_model(resolve_model(NAME).path).close()
    assert not hub.transfers("model-00001-of-00003.safetensors")  # it had arrived


def test_quantised_weights_are_refused_before_they_are_fetched(hub: Hub, cache: Path, tmp_path: Path) -> None:
    files = directory_files(tmp_path, sharded=False)
    files["config.json"] = json.dumps(CONFIGURATION | {"quantization_config": {"quant_method": "awq"}}).encode()
    hub.repositories[REPOSITORY].files = files
    fails(r"quantised \(awq\)", UnsupportedModelError)
    assert not hub.transfers("model.safetensors")
    assert left_behind(cache) == []


@pytest.mark.parametrize(
    ("files", "match"),
    [
        (("config.json", "pytorch_model.bin"), "pickle only"),
        (("adapter_config.json", "adapter_model.safetensors"), "LoRA"),
        (("README.md",), "without a model"),
        (("mmproj-F16.gguf",), "GGUF"),
    ],
)
def test_a_repository_without_a_model(hub: Hub, files: tuple[str, ...], match: str) -> None:
    hub.repositories[REPOSITORY].files = dict.fromkeys(files, b"{}")
    fails(match, UnsupportedModelError)


def test_the_parts_of_a_split_model_come_together(hub: Hub, cache: Path) -> None:
    names = [f"big-Q4_1-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    hub.repositories[REPOSITORY].files = {name: CONTENT + name.encode() for name in names}
    location = pull_model(f"{NAME}/{names[1]}")
    assert location.path.name == names[0]
    assert left_behind(cache) == names
    assert resolve_model(NAME) == location


def test_removing(hub: Hub, cache: Path) -> None:
    hub.repositories[REPOSITORY].files = {FILE: CONTENT, "some-model-Q8_0.gguf": CONTENT}
    pull_model(NAME + ":Q8_0")
    pull_model(NAME)
    assert [entry.name for entry in list_models() if entry.path] == [
        f"{NAME}/{FILE}",
        f"{NAME}/some-model-Q8_0.gguf",
    ]
    assert [path.name for path in files_to_remove(NAME + ":Q8_0")] == ["some-model-Q8_0.gguf"]
    remove_model(NAME + ":Q8_0")
    assert left_behind(cache) == [FILE]
    with pytest.raises(ModelNotFoundError, match="no file of that model is in the cache"):
        remove_model(NAME + ":Q8_0")
    remove_model(NAME)
    assert left_behind(cache) == []
    assert not (cache / "models" / "hf" / "some-org").exists()
    hub.faults.cuts[FILE] = [123] + [0] * 20
    fails("127.0.0.1")
    remove_model(NAME)  # also what an interrupted pull has left
    assert left_behind(cache) == []
    for name in ("unknown", "/etc/passwd", "../x", str(cache)):
        with pytest.raises(ModelNotFoundError):
            remove_model(name)


def test_choosing_among_quantisations(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(*labels: str, memory: int = 10**12, size: int = 1_000) -> str:
        sizes = {f"m-{label}.gguf": size for label in labels}
        return choice.best(choice.candidates(sizes), sizes, "a/b", memory=memory)[0].label

    everything = dict.fromkeys(choice.PREFERRED, True)
    monkeypatch.setattr(choice, "runs", lambda label: everything.get(label, False))
    assert chosen("Q8_0", "Q4_K_M", "Q2_K", "F16") == "Q4_K_M"
    assert chosen("Q8_0", "Q4_1", "Q5_K_M") == "Q4_1"
    assert chosen("F16", "Q2_K") == "Q2_K"
    assert chosen("IQ2_XXS", "IQ2_M", "IQ3_XXS", "IQ3_M") == "IQ3_M"
    assert chosen("F16", "IQ1_S") == "F16"
    assert chosen("IQ1_M", "IQ1_S") == "IQ1_M"
    everything["Q4_K_M"] = False
    assert chosen("Q8_0", "Q4_K_M") == "Q8_0"
    with pytest.raises(UnsupportedModelError, match=r"none of its quantisations can be run by this version \(Q3_0\)"):
        chosen("Q3_0")
    with pytest.raises(UnsupportedModelError, match=r"takes 20\.0 GB of memory and this machine has 16\.0 GB"):
        chosen("Q4_0", memory=16 * 10**9, size=20 * 10**9)
    sizes = {"m-Q4_1.gguf": 9_000, "m-Q2_K.gguf": 3_000, "m-Q8_0.gguf": 20_000}
    assert choice.best(choice.candidates(sizes), sizes, "a/b", memory=8_000)[0].label == "Q2_K"
    sizes = {"m-IQ1_M.gguf": 5_600, "m-IQ1_S.gguf": 5_000}  # in memory twice as much, and half as much again
    assert choice.best(choice.candidates(sizes), sizes, "a/b", memory=14_300)[0].label == "IQ1_M"
    assert choice.best(choice.candidates(sizes), sizes, "a/b", memory=14_200)[0].label == "IQ1_S"


def test_labels() -> None:
    for name, label in {
        "SmolLM2-135M-Instruct.Q4_1.gguf": "Q4_1",
        "gemma-3-270m-it-Q4_K_M.gguf": "Q4_K_M",
        "Llama-3.2-1B-Instruct-f16.gguf": "F16",
        "qwen2-0_5b-instruct-fp16.gguf": "F16",
        "Model-UD-Q4_K_XL.gguf": "Q4_K_XL",
        "Q8_0/model-Q8_0-00001-of-00002.gguf": "Q8_0",
        "gpt-oss-20b-MXFP4.gguf": "MXFP4",
        "Model-IQ4_XS.gguf": "IQ4_XS",
        "Model-UD-IQ2_XXS.gguf": "IQ2_XXS",
        "Model-UD-TQ1_0.gguf": "TQ1_0",
        "Model-NVFP4.gguf": "NVFP4",
        "model-bf16.gguf": "BF16",
        "model.gguf": "",
        "Q4_0-in-the-name-Q8_0.gguf": "Q8_0",
    }.items():
        assert choice.label_of(name) == label, name
    assert choice.runs("Q4_1")
    assert choice.runs("")
    assert all(map(choice.runs, choice.PREFERRED))
    assert not choice.runs("Q3_0")


def test_the_choice_is_of_models_only() -> None:
    sizes = dict.fromkeys(
        ("mmproj-model-f16.gguf", "model.imatrix.gguf", "lora-Q8_0.gguf", "m-Q8_0-00001-of-00002.gguf", "m-Q4_1.gguf"),
        5,
    )
    assert [one.label for one in choice.candidates(sizes)] == ["Q4_1"]
    assert store.DEFAULT_MODEL in store.KNOWN_MODELS
