"""A data directory of its own for every server of the tests: two may not share one, nor use the developer's."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

_root = tempfile.TemporaryDirectory(prefix="ultrafast-tests-")
_numbers = itertools.count()


def fresh_data_directory() -> str:
    """A path that no other server uses; removed when the tests end."""
    return str(Path(_root.name) / str(next(_numbers)))
