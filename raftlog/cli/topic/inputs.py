"""Read stdin and files as chunks of bytes, promptly and in bounded memory.

The event loop waits for pipes and terminals, so that Ctrl-C works without input. Regular files are
simply read, which never waits long.

Open inputs become an endless stream of records, and the error at its end.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EISDIR
from pathlib import Path

from raftlog.cli.common.output import Transfer
from raftlog.cli.topic.records import (
    BadLineError,
    BytesRecord,
    Lines,
    LineSplitter,
    Parsed,
    RecordReader,
)

CHUNK_BYTES = 256 * 1024
STDIN = "-"


@dataclass(frozen=True, slots=True)
class Source:
    """One input, open."""

    name: str
    file_descriptor: int
    size_bytes: int | None
    """Bytes of a regular file, or None for other inputs."""

    @property
    def is_terminal(self) -> bool:
        """Whether the input is a terminal."""
        return os.isatty(self.file_descriptor)


@contextmanager
def closing_source(path: str) -> Iterator[Source]:
    """Open a file, or stdin for `-`, for the block. Raises OSError."""
    if path == STDIN:
        # The stream belongs to the process, and stays open.
        descriptor = sys.stdin.fileno()
        yield Source("stdin", descriptor, _size(descriptor))
        return
    descriptor = os.open(Path(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR), path)
        yield Source(path, descriptor, _size(descriptor))
    finally:
        os.close(descriptor)


class ChunkReader:
    """Reads sources, until `stop`."""

    def __init__(self) -> None:
        self.is_stopped = False
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """End after the present chunk, even if more could come.

        Safe at any time in the loop's thread, also in a signal handler.
        """
        self.is_stopped = True
        self._loop.call_soon_threadsafe(self._wake.set)

    async def chunks(self, source: Source) -> AsyncIterator[bytes]:
        """The chunks as they arrive, at most CHUNK_BYTES at a time."""
        try:
            while await self._wait_until_readable(source.file_descriptor):
                chunk = os.read(source.file_descriptor, CHUNK_BYTES)
                if not chunk:
                    return
                yield chunk
        except PermissionError:
            # It is a regular file (or /dev/null), since epoll rejects always readable files.
            async for chunk in self._read_without_waiting(source.file_descriptor):
                yield chunk

    async def _wait_until_readable(self, file_descriptor: int) -> bool:
        """True if a read returns data or the end at once. False after `stop`.

        The file is watched again for each read. A watch across reads could report consumed bytes,
        and the next read would then block the loop.
        """
        if self.is_stopped:
            return False
        self._wake.clear()
        self._loop.add_reader(file_descriptor, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            self._loop.remove_reader(file_descriptor)
        return not self.is_stopped

    async def _read_without_waiting(self, file_descriptor: int) -> AsyncIterator[bytes]:
        while not self.is_stopped and (chunk := os.read(file_descriptor, CHUNK_BYTES)):
            yield chunk
            # Sending continues in the same loop, and must not wait for the end of a long file.
            await asyncio.sleep(0)


def _size(file_descriptor: int) -> int | None:
    status = os.fstat(file_descriptor)
    return status.st_size if stat.S_ISREG(status.st_mode) else None


class InputError(BadLineError):
    """A bad line, with the name of its input."""

    def __init__(self, source: Source, error: BadLineError) -> None:
        super().__init__(error.number, error.reason)
        self.source = source

    def __str__(self) -> str:
        return f"{self.source.name}, {super().__str__()}"


class Feed:
    """Reads sources in sequence, each with its record reader.

    After the first bad line that may not be skipped, or after `stop`, `records` ends. Then `error`
    and `is_stopped` give the reason. So the written records are always a known prefix of the input.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        reader: Callable[[], RecordReader],
        transfer: Transfer,
        *,
        on_skipped: Callable[[BadLineError, int], None],
    ) -> None:
        self.error: InputError | None = None
        self.skipped = 0
        self.transfer = transfer
        self._sources = sources
        self._reader = reader
        self._on_skipped = on_skipped
        self._chunk_reader = ChunkReader()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._chunk_reader.is_stopped

    def stop(self) -> None:
        """End the stream after the lines read so far."""
        self._chunk_reader.stop()

    async def records(self) -> AsyncIterator[BytesRecord]:
        """The records, as soon as each is readable."""
        for source in self._sources:
            reader = self._reader()
            reader.on_skipped = self._skipped_in(source)
            async for parsed, size_bytes in self._parsed(source, reader):
                for record in parsed.records:
                    yield record
                self.transfer.advance(records=len(parsed.records), size_bytes=size_bytes)
                if parsed.error is not None:
                    self.error = InputError(source, parsed.error)
                    return
            if self.is_stopped:
                return

    async def _parsed(
        self, source: Source, reader: RecordReader
    ) -> AsyncIterator[tuple[Parsed, int]]:
        splitter = LineSplitter()
        async for chunk in self._chunk_reader.chunks(source):
            yield _read(reader, splitter.feed, chunk), len(chunk)
        if not self.is_stopped:
            yield _read(reader, lambda _: splitter.finish(), b""), 0
            yield reader.finish(), 0

    def _skipped_in(self, source: Source) -> Callable[[BadLineError], None]:
        def skipped(error: BadLineError) -> None:
            self.skipped += 1
            self._on_skipped(InputError(source, error), self.skipped)

        return skipped


def _read(reader: RecordReader, split: Callable[[bytes], Lines], chunk: bytes) -> Parsed:
    try:
        return reader.read(split(chunk))
    except BadLineError as error:
        return Parsed([], error)
