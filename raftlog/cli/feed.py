"""From open inputs to an endless stream of records, and what went wrong on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from raftlog.cli.inputs import ChunkReader, Source
from raftlog.cli.lines import BadLineError, Lines, LineSplitter
from raftlog.cli.progress import Transfer
from raftlog.cli.records import BytesRecord, Parsed, RecordReader


class InputError(BadLineError):
    """A bad line, with the name of the input it stands in."""

    def __init__(self, source: Source, error: BadLineError) -> None:
        super().__init__(error.number, error.reason)
        self.source = source

    def __str__(self) -> str:
        return f"{self.source.name}, {super().__str__()}"


class Feed:
    """Reads sources one after the other, each with a record reader of its own.

    After the first bad line that may not be skipped, or after `stop`, `records` ends; `error` and
    `is_stopped` then say why. So whoever writes the records has always written a prefix of the
    input, and knows which.
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
        """End the stream after what has been read."""
        self._chunk_reader.stop()

    async def records(self) -> AsyncIterator[BytesRecord]:
        """The records, as soon as they can be read."""
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
