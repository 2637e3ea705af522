"""Output of commands, with data to stdout and messages to stderr.

Decoration is only for a terminal. Only a terminal imports rich, since the import costs start-up
time and memory, which pipes and servers should not pay.

Progress of a long transfer is a bar on a terminal, and nothing elsewhere.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self, TextIO

import click
import orjson

from raftlog.cli.common.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rich.progress import Progress, TaskID


def for_person(stream: TextIO) -> bool:
    """Whether a person looks at this stream."""
    return stream.isatty()


def message(text: str) -> None:
    """Show a message at the terminal, or in the log of the script."""
    click.echo(text, err=True)


def counted(number: int, noun: str) -> str:
    """`1 record`, `2,000 records`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def confirm(question: str, no_confirm: bool, *, danger: str) -> None:
    """Prompt before a change for good. Raises CommandError without a terminal, Abort for a no."""
    if no_confirm:
        return
    if not (for_person(sys.stdin) and for_person(sys.stderr)):
        raise CommandError(
            f"{danger}, and nobody is here to confirm it",
            hint="Say --no-confirm if it is meant.",
            code=ExitCode.USAGE,
        )
    click.confirm(question, abort=True, err=True)


def json_line(document: Any) -> bytes:
    """One line of JSON."""
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)


def write_json(document: Any) -> None:
    """Write one document as one line. Pipes read it, and `jq` formats it."""
    sys.stdout.buffer.write(json_line(document))


def write_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write rows under headings. Columns that hold only numbers are aligned on the right."""
    cells = [["-" if value is None else str(value) for value in row] for row in rows]
    numeric = [
        bool(rows) and all(isinstance(row[index], int | float | None) for row in rows)
        for index in range(len(columns))
    ]
    if for_person(sys.stdout):
        _write_rich_table(columns, cells, numeric)
        return
    headings = [column.upper().replace(" ", "-") for column in columns]
    widths = [max(len(row[index]) for row in [headings, *cells]) for index in range(len(columns))]
    for row in [headings, *cells]:
        line = "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        click.echo(line.rstrip())


def _write_rich_table(
    columns: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool]
) -> None:
    from rich import box  # noqa: PLC0415 - only a person's terminal pays for rich
    from rich.console import Console  # noqa: PLC0415 - only a person's terminal pays for rich
    from rich.table import Table  # noqa: PLC0415 - only a person's terminal pays for rich
    from rich.text import Text  # noqa: PLC0415 - only a person's terminal pays for rich

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column, right in zip(columns, numeric, strict=True):
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


MEGABYTE = 1_000_000


class ProgressBar:
    """A bar with figures on stderr, if that is a terminal."""

    def __init__(self, label: str, *, total: float | None, is_shown: bool = True) -> None:
        self._label = label
        self._total = total
        self._is_shown = is_shown and for_person(sys.stderr)
        self._bar: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        if self._is_shown:
            self._bar = _open_bar(self._label, self._total)
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
    def is_open(self) -> bool:
        """Whether it is shown."""
        return self._bar is not None

    def update(self, completed: float, figures: str) -> None:
        """Show the amount completed, with these figures beside."""
        if self._bar is not None:
            progress, task = self._bar
            progress.update(task, completed=completed, counts=figures)


class Transfer(ProgressBar):
    """Counts records and bytes, and shows the progress."""

    def __init__(self, label: str, *, total_bytes: int | None, is_shown: bool) -> None:
        super().__init__(label, total=total_bytes, is_shown=is_shown)
        self.records = 0
        self.bytes = 0
        self._started_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the transfer was made."""
        return time.monotonic() - self._started_s

    def advance(self, *, records: int, size_bytes: int) -> None:
        """Count records handed over."""
        self.records += records
        self.bytes += size_bytes
        if self.is_open:
            rate = self.bytes / MEGABYTE / max(self.seconds, 0.001)
            self.update(self.bytes, f"{self.records:,} records  {rate:.1f} MB/s")


def _open_bar(label: str, total: float | None) -> tuple[Progress, TaskID]:
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
        TimeElapsedColumn() if total is None else TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = progress.add_task(label, total=total, counts="")
    progress.start()
    return progress, task
