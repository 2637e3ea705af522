"""How far a long transfer has come: a bar for a person, nothing for anyone else."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

from raftlog.cli import output

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress, TaskID

MEGABYTE = 1_000_000


class Transfer:
    """Counts records and bytes, and shows them on stderr if a person looks there."""

    def __init__(self, label: str, *, total_bytes: int | None, is_shown: bool) -> None:
        self.records = 0
        self.bytes = 0
        self._label = label
        self._total_bytes = total_bytes
        self._is_shown = is_shown and output.for_person(sys.stderr)
        self._started_s = time.monotonic()
        self._bar: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        if self._is_shown:
            self._bar = _open_bar(self._label, self._total_bytes)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    @property
    def seconds(self) -> float:
        """Since the transfer was made."""
        return time.monotonic() - self._started_s

    def advance(self, *, records: int, size_bytes: int) -> None:
        """Count what has been handed over."""
        self.records += records
        self.bytes += size_bytes
        if self._bar is not None:
            progress, task = self._bar
            rate = self.bytes / MEGABYTE / max(self.seconds, 0.001)
            progress.update(
                task, completed=self.bytes, counts=f"{self.records:,} records  {rate:.1f} MB/s"
            )


def _open_bar(label: str, total_bytes: int | None) -> tuple[Progress, TaskID]:
    from rich.console import Console  # noqa: PLC0415 - only a person's terminal pays for rich
    from rich.progress import (  # noqa: PLC0415 - only a person's terminal pays for rich
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn() if total_bytes is None else TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = progress.add_task(label, total=total_bytes, counts="")
    progress.start()
    return progress, task
