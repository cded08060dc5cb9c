"""JSON that came from outside: bounded in size and depth, without repeated keys, in plain UTF-8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NoReturn

from ultrafast.weights.source import Complaints, map_file, quoted

MAX_DEPTH: Final = 32
MAX_CONFIGURATION_BYTES: Final = 4 << 20


class _RefusalError(ValueError):
    """A reason to refuse, in words for a person."""


def read_object(path: Path, *, max_bytes: int = MAX_CONFIGURATION_BYTES) -> dict[str, Any]:
    """The JSON object that is the whole of the file.

    Raises ``ModelNotFoundError`` where there is no file, ``ModelFileError`` where it holds anything else.
    """
    content = map_file(path)
    if len(content) > max_bytes:
        Complaints(path).damaged(f"longer than {max_bytes:,} bytes")
    return parse_object(content[:], Complaints(path))


def parse_object(content: bytes, complaints: Complaints, what: str = "the file") -> dict[str, Any]:
    """The JSON object that ``content`` is; its size is the caller's to bound."""
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_constant)
    except UnicodeDecodeError:
        complaints.damaged(f"{what} is not UTF-8")
    except RecursionError:
        complaints.damaged(f"{what} is nested more than {MAX_DEPTH} deep")
    except _RefusalError as reason:
        complaints.damaged(f"{what} {reason}")
    except ValueError:
        complaints.damaged(f"{what} is not JSON")
    if not isinstance(value, dict):
        complaints.damaged(f"{what} is not a JSON object")
    if _deeper_than(value, MAX_DEPTH):
        complaints.damaged(f"{what} is nested more than {MAX_DEPTH} deep")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RefusalError(f"repeats the key {quoted(key)}")
            seen.add(key)
    return result


def _constant(name: str) -> NoReturn:
    raise _RefusalError("holds a number that is not finite")


def _deeper_than(value: Any, limit: int) -> bool:
    level: list[Any] = [value]
    for _ in range(limit):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
