"""Quantising and measuring, with a stand-in for llama.cpp's library: the real one takes minutes to compile."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from ultrafast.bench import machine, quantisations
from ultrafast.bench.quantisations import QuantisationOptions, run_quantisations
from ultrafast.bench.quantiser import Outcome, Quantiser
from ultrafast.bench.results import Workload
from ultrafast.bench.speed import SpeedOptions, run_speed
from ultrafast.bench.speed_measures import Sizes
from ultrafast.errors import ConfigurationError, EngineError

# What the quantiser's worker uses of the library. Type 0 copies; 1 wants importances, all of them equal and as many as
# columns; 2 is refused; 3 ends the process; 4 writes what is no model.
LIBRARY = """
import ctypes, os, shutil

LLAMA_FTYPE_ALL_F32, LLAMA_FTYPE_MOSTLY_IQ1_S, LLAMA_FTYPE_MOSTLY_NVFP4 = 0, 1, 2
LLAMA_FTYPE_MOSTLY_Q1_0, LLAMA_FTYPE_MOSTLY_Q2_0, LLAMA_FTYPE_GUESSED = 3, 4, 1024
llama_log_callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class llama_model_imatrix_data(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.POINTER(ctypes.c_float)), ("size", ctypes.c_size_t)]


class Parameters(ctypes.Structure):
    _fields_ = [
        ("nthread", ctypes.c_int32),
        ("ftype", ctypes.c_int),
        ("allow_requantize", ctypes.c_bool),
        ("imatrix", ctypes.POINTER(llama_model_imatrix_data)),
    ]


def llama_model_quantize_default_params():
    return Parameters()


def llama_log_set(callback, _):
    global log
    log = callback


def llama_model_quantize(source, destination, reference):
    parameters = reference._obj
    print("progress that is no answer")
    assert parameters.allow_requantize and parameters.nthread == 2
    if parameters.ftype == 1:
        if not parameters.imatrix:
            log(4, b"llama_model_quantize: failed to quantize: this quantization requires an imatrix!\\n", None)
            return 1
        sizes = {}
        for entry in parameters.imatrix:
            if entry.name is None:
                break
            assert entry.data[: entry.size] == [1.0] * entry.size
            sizes[entry.name] = entry.size
        assert sizes[b"blk.0.ffn_down.weight"] == 1536 and sizes[b"blk.0.attn_q.weight"] == 576
        assert b"output_norm.weight" not in sizes
    if parameters.ftype == 2:
        log(2, b"something harmless\\n", None)
        log(4, b"llama_model_quantize: failed to quantize: invalid output file type 2\\n", None)
        return 1
    if parameters.ftype == 3:
        os.abort()
    if parameters.ftype == 4:
        open(destination, "wb").write(b"GGUF" + bytes(100))
        return 0
    shutil.copyfile(source, destination)
    return 0
"""


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python that has the stand-in installed, named as the peer's."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "llama_cpp.py").write_text(LIBRARY)
    python = tmp_path / "python"
    library, executable = shlex.quote(str(tmp_path / "library")), shlex.quote(sys.executable)
    python.write_text(f'#!/bin/sh\nPYTHONPATH={library} exec {executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("ULTRAFAST_BENCH_PEER_LLAMA_CPP", str(python))
    return python


def test_file_types_are_those_of_the_library(interpreter: Path, model_path: Path) -> None:
    quantiser = Quantiser(interpreter, model_path, 2)
    assert quantiser.file_types() == {"F32": 0, "IQ1_S": 1, "NVFP4": 2, "Q1_0": 3, "Q2_0": 4}


def test_each_outcome_has_its_reason(interpreter: Path, model_path: Path, tmp_path: Path) -> None:
    quantiser = Quantiser(interpreter, model_path, 2)
    file = tmp_path / "model.gguf"
    assert quantiser.write(0, file) == Outcome(None, importances=False)
    assert file.stat().st_size == model_path.stat().st_size
    assert quantiser.write(1, file) == Outcome(None, importances=True)
    assert quantiser.write(2, file) == Outcome("invalid output file type 2", importances=False)
    aborted = quantiser.write(3, file)
    assert aborted.refusal
    assert "\n" not in aborted.refusal
    with pytest.raises(EngineError, match="No module named 'llama_cpp'"):
        Quantiser(Path(sys.executable), model_path, 2).file_types()


def test_every_type_is_measured_or_named_with_its_reason(interpreter: Path, model_path: Path) -> None:
    heard: list[str] = []
    options = QuantisationOptions(str(model_path), ("F32", "NVFP4", "Q2_0"), threads=2, rounds=1)
    result = run_quantisations(options, progress=heard.append)
    ran, refused, broken = result.quantisations
    assert [runtime.name for runtime in ran.runtimes] == ["ultrafast"]
    assert [skipped.name for skipped in ran.skipped] == ["llama-cpp"]  # the stand-in cannot run a model
    assert ran.tensor_types == {"Q4_1": 210, "Q8_0": 1}
    assert ran.decode_ratio is None
    assert refused.refusal == "invalid output file type 2"
    assert broken.failure is not None
    assert broken.failure.startswith("ultrafast: ")
    assert [(bar.measured, bar.met) for bar in result.bars] == [(1, False)]
    assert any(line.startswith("NVFP4 (2 of 3): ") for line in heard)


def test_what_cannot_be_asked_for_is_one_line(
    interpreter: Path, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = QuantisationOptions(str(model_path), ("F32", "\x1b[31mhostile"), threads=2)
    with pytest.raises(ConfigurationError, match=r"^1 unknown file type\(s\); known are: F32, IQ1_S"):
        run_quantisations(options, progress=lambda _: None)
    monkeypatch.setattr(quantisations, "check_disk", lambda folder, _: machine.check_disk(folder, 1 << 60))
    with pytest.raises(ConfigurationError, match=r"GB free, .* GB are needed: make room"):
        run_quantisations(options, progress=lambda _: None)


def test_our_file_is_measured_beside_llama_cpps_own_type(
    interpreter: Path, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Quantiser, "file_types", lambda _: {"Q4_0": 0})
    sizes = Sizes(standard=Workload(decode_tokens=8, prefill_tokens=32, context=128))
    options = SpeedOptions(str(model_path), parts=("q4_0",), threads=2, rounds=1, sizes=sizes)
    result = run_speed(options, progress=lambda _: None)
    found = result.parts[0].measurements
    assert found["ultrafast_file_bytes"].samples == found["llama-cpp_file_bytes"].samples == [model_path.stat().st_size]
    assert len(found["ultrafast_prefill_tokens_per_second"].samples) == 1
    assert [skipped.name for skipped in result.skipped] == ["llama-cpp"]  # the stand-in cannot run a model
    monkeypatch.setattr(Quantiser, "file_types", lambda _: {"Q4_0": 2})
    with pytest.raises(EngineError, match=r"llama\.cpp's quantiser: invalid output file type 2"):
        run_speed(options, progress=lambda _: None)
