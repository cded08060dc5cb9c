"""The bounds of what an operator names and sets; apart from what enforces them, so that commands need not load that."""

from __future__ import annotations

from typing import Final

MAXIMUM_NAME_LETTERS: Final = 64
MAXIMUM_SLOTS: Final = 100_000
ALREADY_EXISTS: Final = "already_exists"  # the code of the error for a name that is taken
