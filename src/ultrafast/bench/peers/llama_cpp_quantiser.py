"""llama.cpp's own quantiser, through the C interface of llama-cpp-python: one command, one process, one JSON answer.

``launch.py llama_cpp_quantiser`` reads one JSON object from standard input: ``{}`` asks which file types the library
knows; ``source``, ``destination``, ``file_type``, ``threads`` and ``columns`` ask for one file, where ``columns`` says
how many importances each matrix takes, should the type want them.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import TYPE_CHECKING, Any

import llama_cpp

from .protocol import claim_standard_output

if TYPE_CHECKING:
    from collections.abc import Iterable

_PREFIX = "LLAMA_FTYPE_"
_ERROR_LEVEL = 4


class Log:
    """What the library says: it gives the reason for a failure there and nowhere else."""

    def __init__(self) -> None:
        self._errors: list[str] = []
        self._callback = llama_cpp.llama_log_callback(self._receive)  # the library does not keep it alive
        llama_cpp.llama_log_set(self._callback, ctypes.c_void_p(0))

    def reason(self) -> str:
        """The latest error, without the name of the function that reported it."""
        text = self._errors[-1] if self._errors else "no reason given"
        return text.partition("failed to quantize: ")[2] or text

    def _receive(self, level: int, text: bytes, _: object) -> None:
        line = text.decode(errors="replace").strip()
        if level == _ERROR_LEVEL and line:
            self._errors.append(line)


def file_types() -> dict[str, int]:
    """Every file type the library has a number for, by the name people know: ``Q4_K_M``."""
    names = {name: getattr(llama_cpp, name) for name in dir(llama_cpp) if name.startswith(_PREFIX)}
    return {
        name.removeprefix(_PREFIX).removeprefix("ALL_").removeprefix("MOSTLY_"): number
        for name, number in sorted(names.items(), key=lambda item: item[1])
        if name != f"{_PREFIX}GUESSED"
    }


def quantise(
    source: str, destination: str, *, file_type: int, threads: int, columns: dict[str, int]
) -> dict[str, bool | str | None]:
    """Write one file. ``refusal`` is the tool's reason where it wrote none; a type that is refused without importances
    is tried again with all of them equal, and ``importances`` says so.
    """
    log = Log()
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = file_type
    parameters.nthread = threads
    parameters.allow_requantize = True

    def written() -> bool:
        return bool(
            llama_cpp.llama_model_quantize(source.encode(), destination.encode(), ctypes.byref(parameters)) == 0
        )

    if written():
        return {"refusal": None, "importances": False}
    if "imatrix" not in log.reason():
        return {"refusal": log.reason(), "importances": False}
    importances = _equal_importances(columns.items())
    parameters.imatrix = ctypes.cast(importances, ctypes.POINTER(llama_cpp.llama_model_imatrix_data))
    return {"refusal": None if written() else log.reason(), "importances": True}


def _equal_importances(columns: Iterable[tuple[str, int]]) -> ctypes.Array[Any]:
    """The importance matrix as the library takes it: an array that ends with an entry without name."""
    entries = []
    for name, count in columns:
        ones = (ctypes.c_float * count)(*[1.0] * count)
        entries.append(llama_cpp.llama_model_imatrix_data(name.encode(), ones, count))
    array: ctypes.Array[Any] = (llama_cpp.llama_model_imatrix_data * (len(entries) + 1))(*entries)
    return array


def main() -> None:
    """Answer the one command."""
    answers = claim_standard_output()
    command = json.load(sys.stdin)
    json.dump(quantise(**command) if command else file_types(), answers)
    answers.flush()
