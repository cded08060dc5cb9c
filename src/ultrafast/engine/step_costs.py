"""What steps cost on this machine, learnt from those that ran: the measure of how much a step may hold."""

from __future__ import annotations

# How long a step may take because of prefill. Alone, a step is what a cancellation or a new request waits for; beside
# decoding sequences it is the pause their readers see between two tokens.
PREFILL_SECONDS_ALONE = 0.4
PREFILL_SECONDS_BESIDE_DECODE = 0.05
MINIMUM_PREFILL_ROWS = 8
PREFILL_RATE_WEIGHT = 0.25  # of the newest measurement: a machine may be busy for a while
DECODE_WEIGHT = 0.1


class StepCosts:
    """Seconds of a decode step by its rows, and rows a second of prefill."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.prefill_rows_alone = max_rows  # of a step in which nothing decodes
        self.prefill_rows_beside_decode = max_rows
        self._prefill_rate = 0.0  # rows a second, decode rows beside them included; 0 before the first measurement
        self._decode_seconds = [0.0] * (max_rows + 1)  # by rows; 0 before the first measurement

    def decode_seconds(self, rows: int) -> float:
        """What a step of so many decode rows and nothing else takes; 0 where none was measured yet."""
        return self._decode_seconds[rows]

    def learn_decode(self, rows: int, seconds: float) -> None:
        """A step of ``rows`` decode rows took so long."""
        known = self._decode_seconds[rows]
        self._decode_seconds[rows] = known + (seconds - known) * DECODE_WEIGHT if known else seconds

    def learn_prefill(self, rows: int, seconds: float) -> None:
        """A step of ``rows``, most of them prefill, took so long."""
        measured = rows / max(seconds, 1e-6)
        rate = self._prefill_rate
        self._prefill_rate = rate = measured if rate == 0.0 else rate + (measured - rate) * PREFILL_RATE_WEIGHT
        self.prefill_rows_alone = self._chunk(rate * PREFILL_SECONDS_ALONE)
        self.prefill_rows_beside_decode = self._chunk(rate * PREFILL_SECONDS_BESIDE_DECODE)

    def rows_within(self, seconds: float) -> float:
        """Rows of prefill that take so long; 0 before the first measurement."""
        return self._prefill_rate * seconds

    def prefill_rows_within(self, seconds: float, decode_rows: int) -> int:
        """Rows of prefill with which a step of ``decode_rows`` stays within ``seconds``, or the fewest worth a step."""
        return self._chunk(self.rows_within(seconds) - decode_rows)

    def _chunk(self, rows: float) -> int:
        return min(self.max_rows, max(MINIMUM_PREFILL_ROWS, int(rows)))
