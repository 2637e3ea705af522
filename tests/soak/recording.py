"""Histories on disk: a directory for each partition, in it a file for each client.

A history of any length is checked one partition at a time, so memory holds only one of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.verification.history_file import HistoryWriter, load
from tests.verification.log_history import DECODER, Operation

FINAL: Final = "final"
"""File name of the final reads, beside the files of the clients."""


def partition_name(topic: str, partition: int) -> str:
    """A partition's name in histories."""
    return f"{topic}-{partition}"


class Steps:
    """Steps: growing monotonic nanoseconds, comparable between processes of this machine."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> int:
        """Return a step later than every step returned before."""
        self._last = max(self._last + 1, time.monotonic_ns())
        return self._last


class Recorder:
    """Writes the operations of one client."""

    def __init__(self, directory: Path, client: str) -> None:
        self._directory = directory
        self._client = client
        self._files: dict[str, HistoryWriter] = {}
        self.step = Steps()

    def add(self, operation: Operation) -> None:
        """Append an operation to the history of its partition."""
        file = self._files.get(operation.partition)
        if file is None:
            directory = self._directory / operation.partition
            directory.mkdir(parents=True, exist_ok=True)
            file = HistoryWriter(directory / f"{self._client}.jsonl")
            self._files[operation.partition] = file
        file.add(operation)

    def flush(self) -> None:
        """Let what was added outlive a kill of this process."""
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()


def partitions_in(directory: Path) -> list[str]:
    """The partitions with a history in this directory."""
    return sorted(path.name for path in directory.iterdir() if path.is_dir())


def operations(directory: Path, partition: str) -> Iterator[Operation]:
    """The operations of one partition, client by client."""
    for path in sorted((directory / partition).glob("*.jsonl")):
        yield from load(path, DECODER)
