"""Histories on disk: a directory for each partition, in it a file for each client.

So a history of any length is judged partition by partition, and memory holds one of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.verification.log_history import HistoryWriter, Operation, load

FINAL: Final = "final"
"""The file of the final reads, beside those of the clients."""


def spelled(topic: str, partition: int) -> str:
    """A partition's name in histories."""
    return f"{topic}-{partition}"


class Steps:
    """Numbers that grow with time, the same for all processes of this machine."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> int:
        """Later than every number given here before."""
        self._last = max(self._last + 1, time.monotonic_ns())
        return self._last


class Recorder:
    """What one client did."""

    def __init__(self, directory: Path, client: str) -> None:
        self._directory = directory
        self._client = client
        self._files: dict[str, HistoryWriter] = {}
        self.step = Steps()

    def add(self, operation: Operation) -> None:
        """Note an operation."""
        file = self._files.get(operation.partition)
        if file is None:
            directory = self._directory / operation.partition
            directory.mkdir(parents=True, exist_ok=True)
            file = HistoryWriter(directory / f"{self._client}.jsonl")
            self._files[operation.partition] = file
        file.add(operation)

    def close(self) -> None:
        """No more operations."""
        for file in self._files.values():
            file.close()


def partitions_in(directory: Path) -> list[str]:
    """The partitions of which there is a history."""
    return sorted(path.name for path in directory.iterdir() if path.is_dir())


def operations(directory: Path, partition: str) -> Iterator[Operation]:
    """All that is known of one partition, client by client."""
    for path in sorted((directory / partition).glob("*.jsonl")):
        yield from load(path)
