"""The worker process: what becomes of one that dies, hangs, is absent or refuses, and what ours answers."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ultrafast.bench import worker as worker_module
from ultrafast.bench.text import text_tokens
from ultrafast.bench.worker import Worker
from ultrafast.errors import EngineError


def load(worker: Worker, path: Path) -> None:
    worker.load(path, threads=1, context=64)


def test_a_peer_that_is_not_installed_is_one_line(model_path: Path) -> None:
    # This package's own environment holds no peer.
    with (
        Worker.of_peer("a-peer", "openvino_genai", Path(sys.executable)) as worker,
        pytest.raises(EngineError, match=r"^a-peer: ModuleNotFoundError: No module named 'openvino"),
    ):
        load(worker, model_path)


def test_a_worker_that_dies_says_its_last_line(model_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; input(); sys.exit('illegal instruction')"]
    with Worker("a-peer", command) as worker, pytest.raises(EngineError, match=r"^a-peer: illegal instruction$"):
        load(worker, model_path)


def test_what_a_library_prints_is_no_answer(model_path: Path) -> None:
    answer = '{"load_seconds": 1.5, "versions": {}, "threads": 1, "detail": ""}'
    command = [sys.executable, "-c", f"print('Welcome!', flush=True); input(); print({answer!r}, flush=True); input()"]
    with Worker("a-peer", command) as worker:
        assert worker.load(model_path, threads=1, context=64).load_seconds == 1.5


def test_a_worker_that_hangs_is_ended(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "LOAD_TIMEOUT_SECONDS", 0.5)
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with Worker("a-peer", command) as worker, pytest.raises(EngineError, match=r"^a-peer: no answer within 0\.5 s$"):
        load(worker, model_path)


def test_our_engine_answers_times_scores_and_rests(model_path: Path, tmp_path: Path) -> None:
    text = text_tokens(model_path)
    with Worker.of_engine() as worker:
        report = worker.load(model_path, threads=2, context=256)
        assert report.threads == 2
        assert set(report.versions) == {"ultrafast"}

        prompt = text.prompt(128, 1)
        decoded = worker.decode(prompt, 8)
        assert len(decoded.tokens) == 9
        assert decoded.seconds > 0
        prefilled = worker.prefill(prompt)
        assert prefilled.tokens == decoded.tokens[:1]
        # Nothing is kept between commands: the same question has the same answer, and the clock starts anew.
        assert worker.decode(prompt, 8).tokens == decoded.tokens

        worker.score(prompt, tmp_path / "logits")
        logits = np.fromfile(tmp_path / "logits", dtype=np.float32).reshape(128, -1)
        assert logits[-1].argmax() == decoded.tokens[0]

        # A pass over drafts finds the tokens that decoding finds one by one, and every time the same.
        answer = worker.decode(prompt, 4).tokens
        verified = worker.verify(prompt, answer[:4], 3)
        assert verified.tokens == answer[1:]
        assert verified.seconds > 0

        others = [text.prompt(8, index) for index in range(3)]
        together = worker.decode_together(others, 6)
        assert sorted(together.tokens) == sorted(t for other in others for t in worker.decode(other, 6).tokens[1:])
        assert worker.decode_together(others[:1], 6).tokens == worker.decode(others[0], 6).tokens[1:]

        with pytest.raises(EngineError, match=r"^ultrafast: "):
            worker.decode(text.prompt(256, 1), 8)  # beyond the context
        time.sleep(1.0)  # long against what answering costs, so that the share is that of waiting
        assert worker.prefill(prompt).tokens == prefilled.tokens
        assert worker.idle_cpu_share < 0.5  # threads that spin while they wait would take all of a processor and more


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(100))
    with Worker.of_engine() as worker, pytest.raises(EngineError, match=r"^ultrafast: \w+Error: ") as error:
        load(worker, tmp_path / "model.gguf")
    assert "\n" not in str(error.value)
