"""The rows of one step, in the arrays the native side reads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
UInt8 = NDArray[np.uint8]
Arrays = tuple[Int32, Int32, Int32, Int32, UInt8]


class Batch:
    """Arrays filled anew by every step, allocated once.

    Between two steps the weights have swept the processor's caches, so whatever is touched here comes from memory:
    single values are set through memory views, and slices kept from step to step; both touch far less than numpy's
    indexing.
    """

    def __init__(self, max_rows: int) -> None:
        self.rows = 0
        self._tokens = np.zeros(max_rows, np.int32)
        self._positions = np.zeros(max_rows, np.int32)
        self._sequences = np.zeros(max_rows, np.int32)
        self._parents = np.zeros(max_rows, np.int32)
        self._want = np.zeros(max_rows, np.uint8)
        self._views = (
            self._tokens.data,
            self._positions.data,
            self._sequences.data,
            self._parents.data,
            self._want.data,
        )
        self._ready = self._slices(0)
        self._ready_rows = 0

    def clear(self) -> None:
        """Begin a new step."""
        self.rows = 0

    def add_token(self, token: int, position: int, sequence: int, want: int) -> None:
        """Append one row that continues a sequence."""
        row = self.rows
        tokens, positions, sequences, parents, wants = self._views
        tokens[row] = token
        positions[row] = position
        sequences[row] = sequence
        parents[row] = -1
        wants[row] = want
        self.rows = row + 1

    def add_chunk(self, tokens: Int32, start: int, sequence: int, want: int) -> None:
        """Append ``tokens``, int32[n], from position ``start`` on; only the last row wants something."""
        row = self.rows
        end = row + len(tokens)
        self._tokens[row:end] = tokens
        self._positions[row:end] = np.arange(start, start + len(tokens), dtype=np.int32)
        self._sequences[row:end] = sequence
        self._parents[row:end] = np.arange(row - 1, end - 1, dtype=np.int32)
        self._parents[row] = -1
        self._want[row:end] = 0
        self._want[end - 1] = want
        self.rows = end

    def arrays(self) -> Arrays:
        """tokens, positions, sequences, parents, int32[rows] each, and want, uint8[rows]; valid until the next step."""
        if self.rows != self._ready_rows:
            self._ready_rows = self.rows
            self._ready = self._slices(self.rows)
        return self._ready

    def _slices(self, rows: int) -> Arrays:
        return (
            self._tokens[:rows],
            self._positions[:rows],
            self._sequences[:rows],
            self._parents[:rows],
            self._want[:rows],
        )
