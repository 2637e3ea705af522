"""Cut an endless stream of bytes into lines, in bounded memory.

Bytes in, lines out: no I/O here. A CSV record may hold line ends inside quotes; `CsvLines` joins
such lines again, so that each line it returns is one whole record.
"""

from __future__ import annotations

from typing import NamedTuple

LINE_BYTES_MAX = 16 * 1024 * 1024


class Line(NamedTuple):
    """A line without its end, and the number (from 1) of the physical line it starts on."""

    number: int
    data: bytes


class BadLineError(ValueError):
    """A line that cannot become a record."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"line {number}: {reason}")
        self.number = number
        self.reason = reason


class Lines(NamedTuple):
    """Consecutive lines as plain bytes, because millions go by, and the first one's number."""

    first_number: int
    lines: list[bytes]


class LineSplitter:
    """Splits at line feeds. The last line needs none."""

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        self._carry: list[bytes] = []
        self._carry_bytes = 0
        self._next_number = 1

    def feed(self, chunk: bytes) -> Lines:
        """The lines that end in this chunk. BadLineError if the unfinished one grew too long.

        It is raised by the call after, so that no whole line is lost with it.
        """
        self._check_length()
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._carry:
            self._carry.append(lines[0])
            lines[0] = b"".join(self._carry)
            self._carry.clear()
            self._carry_bytes = 0
        if rest:
            self._carry.append(rest)
            self._carry_bytes += len(rest)
        first_number = self._next_number
        self._next_number += len(lines)
        return Lines(first_number, lines)

    def finish(self) -> Lines:
        """The last line, if the stream did not end with a line end. BadLineError as in `feed`."""
        self._check_length()
        line = b"".join(self._carry)
        self._carry.clear()
        self._carry_bytes = 0
        return Lines(self._next_number, [line] if line else [])

    def _check_length(self) -> None:
        if self._carry_bytes > self._line_bytes_max:
            reason = f"longer than {self._line_bytes_max} bytes; is this text?"
            raise BadLineError(self._next_number, reason)


class CsvLines:
    """Joins physical lines to whole CSV records (RFC 4180).

    Inside a quoted field a quote is doubled, so a record is complete exactly when it holds an even
    number of quotes.
    """

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._open_number = 0

    def feed(self, lines: Lines) -> list[Line]:
        """The records that end in these lines. BadLineError as in `LineSplitter.feed`."""
        if self._open and self._open_bytes > self._line_bytes_max:
            raise BadLineError(self._open_number, "a quoted field is never closed")
        records: list[Line] = []
        for number, line in enumerate(lines.lines, lines.first_number):
            is_odd = line.count(b'"') & 1
            if not self._open:
                if not is_odd:
                    records.append(Line(number, line))
                    continue
                self._open_number, self._open_bytes = number, 0
            self._open.append(line)
            self._open_bytes += len(line) + 1
            if is_odd and len(self._open) > 1:
                records.append(self._close())
        return records

    def finish(self) -> None:
        """Raise BadLineError if the input ends inside quotes."""
        if self._open:
            raise BadLineError(self._open_number, "the input ends inside a quoted field")

    def _close(self) -> Line:
        record = Line(self._open_number, b"\n".join(self._open))
        self._open.clear()
        return record
