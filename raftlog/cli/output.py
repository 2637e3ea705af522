"""What commands write: data to stdout, messages to stderr, decoration only for a person.

A person looks when the stream is a terminal. Only then is rich imported: it costs start-up time
and memory that pipes and servers should not pay.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

import click
import orjson

if TYPE_CHECKING:
    from collections.abc import Sequence


def for_person(stream: TextIO) -> bool:
    """Whether a person looks at this stream."""
    return stream.isatty()


def message(text: str) -> None:
    """Tell the person at the terminal, or the log of the script."""
    click.echo(text, err=True)


def counted(number: int, noun: str) -> str:
    """`1 record`, `2,000 records`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def json_line(document: Any) -> bytes:
    """One line of JSON."""
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)


def write_json(document: Any) -> None:
    """Write one document as one line: pipes take it, `jq` lays it out."""
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
