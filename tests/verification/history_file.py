"""Histories on disk: JSON lines, one operation a line, in the order of `add`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import msgspec

_T = TypeVar("_T")
_ENCODER: Final = msgspec.json.Encoder()


class HistoryWriter:
    """Appends operations to a file during a run. Close the writer: its last lines are buffered."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("ab")

    def add(self, operation: msgspec.Struct) -> None:
        """Append one operation."""
        self._file.write(_ENCODER.encode(operation) + b"\n")

    def flush(self) -> None:
        """Pass buffered lines to the operating system: they outlive a kill of this process."""
        self._file.flush()

    def close(self) -> None:
        """Write buffered lines, and close the file."""
        self._file.close()


def save(path: Path, operations: Iterable[msgspec.Struct]) -> None:
    """Append a whole history to a file."""
    writer = HistoryWriter(path)
    try:
        for operation in operations:
            writer.add(operation)
    finally:
        writer.close()


def load(path: Path, decoder: msgspec.json.Decoder[_T]) -> Iterator[_T]:
    """Decode the operations of a file; skip a last line that a kill cut short.

    Raises msgspec.DecodeError for any other line that is no operation.
    """
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield decoder.decode(line)
