"""The records of one partition are written out as JSON while they are read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from raftlog.broker.fetch import Fetched, PartitionHandle, ReadProgress
from raftlog.broker.shared import ListenedService
from raftlog.http.request import Request, ServerContext
from raftlog.record.codec import Record
from raftlog.record.errors import LogError
from raftlog.record.types import Offset
from raftlog.rest.json.records import (
    GROUP_BYTES,
    BatchReader,
    RecordAnswer,
    RecordFormat,
    record_answer,
)

FRAME_BYTES: Final = 90
"""JSON of a record besides topic, key and value, as `is_exact` counts it."""

_encode = msgspec.json.Encoder().encode


class RecordsAnswer:
    """The records of one partition in a response.

    `FetchService.read` calls `take`, and reports to `progress`.
    """

    def __init__(
        self,
        request: Request,
        context: ServerContext,
        partition: PartitionHandle,
        progress: ReadProgress,
        record_format: RecordFormat,
        *,
        records_max: int,
        bytes_max: int,
        is_exact: bool = False,
        min_one: bool = True,
    ) -> None:
        """`is_exact` ends the response before the record that exceeds `bytes_max`.

        Otherwise the response ends after that record's group. With `is_exact`, `min_one` sets
        whether a first record is taken however large it is.
        """
        self.progress = progress
        self.size_bytes = 0
        """Bytes of the response so far. They may be many times the size of a compressed batch."""
        self.is_cut = False
        """Whether `is_exact` ended the response."""
        self._request = request
        self._context = context
        self._topic = partition.topic
        self._number = partition.partition
        self._reader = BatchReader(request, context)
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._format = record_format
        self._is_exact = is_exact
        self._min_one = min_one
        self._pieces: list[bytes] = []

    async def take(self, fetched: Fetched) -> bool:
        """Add the records of whole batches. Returns whether a bound is reached.

        The response counts as bytes in flight as it grows. Without room for more, the response ends
        with the records so far. A record that does not fit the format also ends the response. It
        raises an error only if it is the first record, which it is in the next poll.
        """
        progress = self.progress
        try:
            with self._reader.holding(fetched.data, progress.offset, fetched.aborted) as batches:
                for batch in batches:
                    if batch.header.next_offset <= progress.offset:
                        continue
                    async with aclosing(self._reader.groups(batch)) as groups:
                        async for group in groups:
                            if self._add(group):
                                return True
                    # Compaction may have removed the last records, but not their offsets.
                    progress.skip_to(batch.header.next_offset)
                # Markers and aborted records also have offsets.
                progress.skip_to(fetched.next_offset)
        except LogError:
            if progress.count:
                return True
            raise
        return self._is_full()

    def _add(self, group: Sequence[Record]) -> bool:
        """Write out a group of records. Returns whether a bound is reached."""
        progress, end_offset = self.progress, self.progress.end_offset
        count_max = self._records_max - progress.count
        answers: list[RecordAnswer] = []
        failure: LogError | None = None
        after: Offset = progress.offset
        is_full = False
        left_bytes = self._bytes_max - self.size_bytes
        for record in group:
            if record.offset < progress.offset:
                continue
            if end_offset is not None and record.offset >= end_offset:
                after, is_full = end_offset, True
                break
            if len(answers) >= count_max:
                is_full = True
                break
            if self._is_exact:
                left_bytes -= self._estimate(record)
                is_first = self._min_one and not answers and not progress.count
                if left_bytes < 0 and not is_first:
                    is_full = self.is_cut = True
                    break
            try:
                answer = record_answer(record, self._topic, self._number, self._format)
            except LogError as error:
                failure = error
                break
            answers.append(answer)
            after = Offset(record.offset + 1)
        if answers:
            # The records are written out at once, because bytes are small beside their objects.
            piece = _encode(answers)[1:-1]
            self._reader.hold(len(piece), progress.offset)
            self._pieces.append(piece)
            progress.count += len(answers)
            self.size_bytes += len(piece)
        progress.offset = max(progress.offset, after)
        if failure is not None:
            raise failure
        return is_full or self._is_full()

    def _estimate(self, record: Record) -> int:
        size_bytes = len(record.key or b"") + len(record.value or b"")
        if self._format is RecordFormat.BINARY:
            size_bytes += size_bytes // 3
        return size_bytes + len(self._topic) + FRAME_BYTES

    def _is_full(self) -> bool:
        progress = self.progress
        return (
            progress.count >= self._records_max
            or self.size_bytes >= self._bytes_max
            or (progress.end_offset is not None and progress.offset >= progress.end_offset)
        )

    async def body(self) -> bytes:
        """The JSON array of all records."""
        return await joined(self._context, self._pieces)

    @property
    def pieces(self) -> Sequence[bytes]:
        """JSON of records, without the brackets around all of them."""
        return self._pieces


async def joined(context: ServerContext[ListenedService], pieces: Sequence[bytes]) -> bytes:
    """The JSON array of all pieces."""
    if sum(map(len, pieces)) > GROUP_BYTES:
        await context.broker.turns.wait()
    return b"[%b]" % b",".join(pieces)
