"""What the rest of the program takes out of a model, whatever files hold it: tensors by name, and metadata by key."""

from __future__ import annotations

import math
import mmap
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from ultrafast.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError

MAX_TENSORS: Final = 65_536
MAX_TENSOR_NAME_BYTES: Final = 255
MAX_TENSOR_ELEMENTS: Final = 1 << 40

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,80}")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of an open model.

    ``shape`` is in NumPy order, rows first, so the last axis is contiguous. ``data`` is a read-only
    ``uint8[byte_count]`` view into the mapped file: no copy, valid for as long as it is referenced, even after the
    model is closed. In a safetensors file it may begin at any byte.
    """

    name: str
    type_name: str
    shape: tuple[int, ...]
    byte_count: int
    data: NDArray[np.uint8]


class ModelSource:
    """An open, validated model: a GGUF file (``open_gguf``) or a Hugging Face directory (``open_directory``).

    The names of tensors and keys are those of the format. The typed accessors raise ``ModelFileError`` where a key is
    absent without default, or holds another kind of value.
    """

    def __init__(
        self, path: Path, metadata: dict[str, Any], tensors: dict[str, Tensor], files: tuple[Path, ...]
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self.files = files  # that hold the tensors, in order

    def close(self) -> None:
        """Let go of the mappings; each is unmapped when the last tensor view taken from it dies."""
        self.tensors = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def integer(self, key: str, default: int | None = None, *, minimum: int = 0, maximum: int = 2**31 - 1) -> int:
        """The integer at ``key``, checked to lie in ``minimum..maximum``."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self._wrong(key, "an integer")
        if not minimum <= value <= maximum:
            raise ModelFileError(f"{shown(self.path)}: metadata {key} is outside {minimum}..{maximum}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """The finite number at ``key``."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._wrong(key, "a finite number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            self._wrong(key, "a finite number")
        return number

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """The truth value at ``key``."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            self._wrong(key, "a boolean")
        return value

    def string(self, key: str, default: str | None = None) -> str:
        """The string at ``key``."""
        value = self._value(key, default)
        if not isinstance(value, str):
            self._wrong(key, "a string")
        return value

    def strings(self, key: str, default: list[str] | None = None) -> list[str]:
        """The array of strings at ``key``."""
        value = self._value(key, default)
        if not isinstance(value, list):
            self._wrong(key, "an array of strings")
        return value

    def numbers(self, key: str, default: NDArray[Any] | None = None) -> NDArray[Any]:
        """The one-dimensional array of numbers at ``key``."""
        value = self._value(key, default)
        if not isinstance(value, np.ndarray):
            self._wrong(key, "an array of numbers")
        return value

    def find(self, key: str) -> Any:
        """The value at ``key``, or None where there is none."""
        return self.metadata.get(key)

    def _value(self, key: str, default: Any) -> Any:
        value = self.find(key)
        if value is None:
            value = default
        if value is None:
            raise ModelFileError(f"{shown(self.path)}: metadata {key} is missing")
        return value

    def _wrong(self, key: str, expected: str) -> NoReturn:
        raise ModelFileError(f"{shown(self.path)}: metadata {key} is not {expected}")


class Complaints:
    """The two ways to refuse a file while it is read, each naming it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def damaged(self, what: str) -> NoReturn:
        """The file breaks its format."""
        raise ModelFileError(f"{shown(self.path)}: {what}")

    def unsupported(self, what: str) -> NoReturn:
        """The file is sound, and of a kind that is not supported."""
        raise UnsupportedModelError(f"{shown(self.path)}: {what}")


def map_file(path: Path) -> mmap.mmap:
    """The file's bytes, read as they are used.

    Raises ``ModelNotFoundError`` where there is no readable regular file, ``ModelFileError`` where it is empty.
    """
    try:
        # Asked before opening: opening a pipe would wait for its writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModelNotFoundError(f"{shown(path)}: not a regular file")
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size == 0:
                raise ModelFileError(f"{shown(path)}: an empty file: did its download fail? Fetch it again")
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
        raise ModelNotFoundError(f"{shown(path)}: {broken_link(path) or reason}") from error


def broken_link(path: Path) -> str | None:
    """What to say of a symbolic link that leads to nothing; None for anything else."""
    try:
        if not path.is_symlink() or path.exists():
            return None
        return f"a link to something that is missing ({shown(path.readlink())})"
    except (OSError, ValueError):
        return None


def shown(path: Path | str) -> str:
    """The path on one line, whatever characters it holds."""
    text = str(path)
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)


def quoted(name: str) -> str:
    """A name from a file, where it is short and plain enough to print."""
    return f"'{name}'" if _PLAIN_NAME.fullmatch(name) else "with an unprintable name"
