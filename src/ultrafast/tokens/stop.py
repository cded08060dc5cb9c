"""Stop strings, found across any division of the text."""

from __future__ import annotations

from collections.abc import Sequence


class StopStringFilter:
    """Passes text on until a stop string is complete; the stop string and what follows it are dropped.

    The stop string that is complete first wins, and of those complete at the same letter the longest, so the result
    does not depend on how the text was divided. A suffix that may yet grow into a stop string is held back.
    """

    __slots__ = ("_held", "_longest", "_stopped", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._stopped = False

    def add(self, text: str) -> tuple[str, bool]:
        """The text that may be shown, and whether a stop string has ended the answer."""
        if self._stopped:
            return "", True
        if not self._stops:
            return text, False
        text = self._held + text
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self._held = ""
            self._stopped = True
            return text[: min(found)[1]], True
        keep = self._possible_start(text)
        self._held = text[keep:]
        return text[:keep], False

    def finish(self) -> str:
        """What was held back and turned out to be ordinary text."""
        rest, self._held = self._held, ""
        return rest

    def _possible_start(self, text: str) -> int:
        """Where the longest suffix begins that is the beginning of a stop string."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            suffix = text[start:]
            if any(stop.startswith(suffix) for stop in self._stops):
                return start
        return len(text)
