"""Files that several tests share."""

from __future__ import annotations

from pathlib import Path

import ultrafast

ENGLISH_PATH = Path(ultrafast.__path__[0]) / "bench" / "data" / "english.txt"
ENGLISH = ENGLISH_PATH.read_text("ascii")
GOLDEN_DIRECTORY = Path(__file__).parent / "golden"
