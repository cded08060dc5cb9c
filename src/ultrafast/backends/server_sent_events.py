"""The data of server-sent events, cut out of a byte stream that is not trusted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MAXIMUM_EVENT_BYTES: Final = 1 << 20


class EventTooLargeError(ValueError):
    """An event without end."""


class EventReader:
    """Finds the data of every event; comments and other fields are dropped. Bytes may arrive in any pieces."""

    def __init__(self, maximum_bytes: int = MAXIMUM_EVENT_BYTES) -> None:
        self._maximum_bytes = maximum_bytes
        self._buffer = bytearray()
        self._scanned = 0  # of the buffer, without a line end: looked at once, however small the pieces
        self._after_return = False
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that ``piece`` completes. Raises EventTooLargeError."""
        events: list[bytes] = []
        buffer = self._buffer
        buffer += piece
        start = 0
        while (end := self._line_end(max(start, self._scanned))) is not None:
            line = bytes(buffer[start:end])
            # A line ends with LF, CR or CRLF, which may be cut in two.
            if not (self._after_return and buffer[end] == 0x0A and not line):
                events += self._line(line)
            self._after_return = buffer[end] == 0x0D
            start = self._scanned = end + 1
        del buffer[:start]
        self._scanned = len(buffer)
        if len(buffer) > self._maximum_bytes:
            raise EventTooLargeError
        return events

    def _line_end(self, start: int) -> int | None:
        feed, carriage_return = self._buffer.find(b"\n", start), self._buffer.find(b"\r", start)
        ends = [end for end in (feed, carriage_return) if end >= 0]
        return min(ends, default=None)

    def _line(self, line: bytes) -> Iterator[bytes]:
        if not line:
            if self._data:
                data, self._data, self._data_bytes = b"\n".join(self._data), [], 0
                yield data
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data_bytes += len(value)
            if self._data_bytes > self._maximum_bytes:
                raise EventTooLargeError
            self._data.append(value.removeprefix(b" "))
