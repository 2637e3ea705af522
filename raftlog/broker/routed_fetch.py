"""Fetch partitions of any leaders through this node, for clients that know no leaders.

A fetch waits at all leaders for the first record, then reads with one call per leader. Rounds go on
until there are `min_bytes`, or the time is up. Nothing is repeated after an error: it is the
partition's own, and the client comes again. The answer holds `max_bytes`, and one batch more for
each call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raftlog.broker.authorize import Operation, Principal, topic_resource
from raftlog.record.errors import LogError
from raftlog.record.types import Offset, PartitionId
from raftlog.replication.partition import Fetched, Isolation
from raftlog.routing.handle import PartitionHandle
from raftlog.routing.reads import ReadWant, read_many
from raftlog.world import Clock

if TYPE_CHECKING:
    from raftlog.broker.fetch import FetchService

NO_OFFSET: Final = Offset(-1)
NOTHING: Final = Fetched(
    data=b"",
    next_offset=NO_OFFSET,
    high_watermark=NO_OFFSET,
    log_start_offset=NO_OFFSET,
    last_stable_offset=NO_OFFSET,
)
"""Of a partition with an error."""


@dataclass(slots=True)
class RoutedRead:
    """Progress of a fetch in one partition."""

    topic: str
    number: PartitionId
    offset: Offset
    """Offset to read next."""
    bytes_left: int
    handle: PartitionHandle | None = None
    error: LogError | None = None


class RoutedFetch:
    """One fetch: `add` each partition, `wait`, then iterate over `chunks`."""

    def __init__(
        self, service: FetchService, principal: Principal, clock: Clock, isolation: Isolation
    ) -> None:
        self._service = service
        self._principal = principal
        self._clock = clock
        self._isolation = isolation
        self._refusals: dict[str, LogError | None] = {}
        self._reads: list[RoutedRead] = []
        self._may_have_data = False
        """`wait` has found something, or has no time to look."""
        self._min_bytes = 0
        self._deadline = 0.0

    def add(self, topic: str, number: PartitionId, offset: Offset, *, max_bytes: int) -> None:
        """Read a partition from `offset` on. An error is the partition's own, and no exception."""
        one = RoutedRead(topic, number, offset, max_bytes)
        self._reads.append(one)
        if topic not in self._refusals:
            self._refusals[topic] = self._refusal(topic)
        one.error = self._refusals[topic]
        if one.error is None:
            try:
                one.handle = self._service.router.find(topic, number)
            except LogError as error:
                one.error = error.as_outcome()
            else:
                self._service.topics.topic(topic).fetch_requests += 1

    def _refusal(self, topic: str) -> LogError | None:
        try:
            self._service.authorize(self._principal, Operation.READ, topic_resource(topic))
        except LogError as error:
            return error.as_outcome()
        return None

    def is_at_end(self) -> bool:
        """Whether no partition is known to have anything to read: then `wait`."""
        return not self._may_have_data

    async def wait(self, *, min_bytes: int, timeout_s: float) -> None:
        """Wait for the first record of any partition, unless one has an error.

        `chunks` waits for the rest of `min_bytes`.
        """
        timeout_s = min(timeout_s, self._service.settings.long_poll_s_max)
        if any(one.error is not None for one in self._reads):
            timeout_s = 0.0
        self._min_bytes, self._deadline = min_bytes, self._clock.monotonic() + timeout_s
        self._may_have_data = await self._wait(self._reads)

    async def chunks(self, max_bytes: int) -> AsyncIterator[tuple[RoutedRead, Fetched]]:
        """Batches of the partitions, each at least once with its error or marks.

        Until there are the `min_bytes` of `wait`, all partitions together, or one has an error.
        With `max_bytes` 0 there are marks and errors, and no data.
        """
        settings = self._service.settings
        bytes_left = min(max_bytes, settings.response_bytes_max)
        size = 0
        is_first = True
        for one in self._reads:
            if one.error is not None:
                yield one, NOTHING
        pending = [one for one in self._reads if one.error is None]
        while pending and (is_first or self._clock.monotonic() < self._deadline):
            may_have_data = await self._wait(pending)
            if not (may_have_data or is_first):
                return
            has_moved = False
            rows = await self._read(pending, bytes_left if may_have_data else 0)
            for one, row in zip(pending, rows, strict=True):
                topic = self._service.topics.topic(one.topic)
                if isinstance(row, LogError):
                    one.error = row
                    topic.failed_fetch_requests += 1
                    yield one, NOTHING
                    continue
                count = len(row.data)
                has_moved = has_moved or row.next_offset > one.offset
                one.offset = max(one.offset, row.next_offset)
                one.bytes_left -= count
                bytes_left -= count
                size += count
                topic.bytes_out += count
                if count or is_first:
                    yield one, row
            is_first = False
            is_over = bytes_left <= 0 or size >= max(self._min_bytes, 1) or not has_moved
            if is_over or any(one.error is not None for one in pending):
                return
            pending = [one for one in pending if one.bytes_left > 0]

    async def _wait(self, reads: list[RoutedRead]) -> bool:
        """Wait for a record of any partition; False if none has come in time."""
        remaining_s = self._deadline - self._clock.monotonic()
        if remaining_s <= 0:
            return True
        positions = [(one.handle, one.offset) for one in reads if one.handle is not None]
        try:
            await self._service.wait(positions, timeout_s=remaining_s, isolation=self._isolation)
        except LogError:
            # The read has the reason, by partition; or no leader had room for one more wait.
            return True
        return self._clock.monotonic() < self._deadline

    async def _read(self, reads: list[RoutedRead], max_bytes: int) -> list[Fetched | LogError]:
        wants = [
            ReadWant(one.handle, one.offset, one.bytes_left)
            for one in reads
            if one.handle is not None
        ]
        return await read_many(
            self._service.router, wants, max_bytes=max_bytes, isolation=self._isolation
        )
