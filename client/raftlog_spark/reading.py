"""A range of one partition as raw bytes, with the next fetch under way while the caller decodes."""

from __future__ import annotations

from collections.abc import Iterator

from raftlog_client.errors import RaftlogClientError
from raftlog_client.raw_reader import RawReader

from raftlog_spark.background import Background, outcome
from raftlog_spark.translation import translated

FETCH_BYTES_DEFAULT = 8 * 1024 * 1024
"""Measured (DESIGN.md): larger chunks gain little, and two of them are held."""


def chunks(
    background: Background, reader: RawReader, *, topic: str, end: int
) -> Iterator[memoryview]:
    """What the reader gives, chunk by chunk; never an empty one.

    Holds the chunk that the caller works on, and the next. Raises RaftlogSparkError.
    """
    pending = background.submit(reader.next())
    try:
        while True:
            try:
                chunk = outcome(pending)
            except RaftlogClientError as error:
                raise translated(error, what=f"reading {topic!r}", topic=topic) from error
            if chunk is None:
                return
            is_last = chunk.next_offset >= end
            if not is_last:
                pending = background.submit(reader.next())
            if chunk.data:
                yield chunk.data
            if is_last:
                return
            # Not held while the next one is waited for.
            del chunk
    finally:
        pending.cancel()
