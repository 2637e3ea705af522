"""Fetches of committed batches from a partition or from many, with waits for new batches.

- `FetchService.fetch` starts a fetch of many partitions by a client that knows the leaders. Only
  replicas of this node respond. `MultiFetch` executes it, with bounds in bytes, a wait for
  `min_bytes`, and a chunk of each partition in turn.
- `FetchService.routed` starts the same for a client that knows no leaders (`RoutedFetch`).
- `FetchService.partition` gives a handle of a partition on any node, and `read` reads from it up to
  its bounds, waiting for the first record.

With `any_replica` this node's follower replica responds, up to the high watermark that it knows,
with less than the leader's records and never with others. At its end a reader waits as at the end
of the log. Only the leader serves offsets beyond or before the follower's log (KIP-392 describes
the same for Kafka).

A wait ends with the first committed record, at its deadline, when the listeners close, or when the
caller is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from raftlog.broker.authorize import Authorize, Operation, Principal, topic_resource
from raftlog.broker.limits import BrokerSettings
from raftlog.broker.metrics import TopicMetrics
from raftlog.broker.node import NodeServices
from raftlog.broker.shared import Closing
from raftlog.record.errors import UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID, LogError
from raftlog.record.types import Offset, PartitionId
from raftlog.replication.partition import Fetched, Isolation, Partition
from raftlog.routing.handle import PartitionHandle
from raftlog.routing.reads import ReadWant, read_many
from raftlog.world import Clock

__all__ = [
    "FetchService",
    "Fetched",
    "Isolation",
    "MultiFetch",
    "PartitionFetch",
    "PartitionHandle",
    "RoutedFetch",
    "RoutedRead",
]

FETCH_CHUNK_BYTES: Final = 256 * 1024
"""Batches to be decoded by the node are read in chunks of this size."""
FETCH_FRAME_BYTES: Final = 1024 * 1024
"""Bytes of a chunk of batches that are sent as stored. A slow reader makes a node hold about this
much. A quarter of it costs a node a fifth more processor time a byte."""
NO_OFFSET: Final = Offset(-1)
"""Marks of a partition that this node does not hold."""
NOTHING: Final = Fetched(
    data=b"",
    next_offset=NO_OFFSET,
    high_watermark=NO_OFFSET,
    log_start_offset=NO_OFFSET,
    last_stable_offset=NO_OFFSET,
)
"""Result of a fetch from a partition that has an error."""


@dataclass(slots=True)
class PartitionFetch:
    """Progress of a fetch in one partition."""

    topic: str
    number: PartitionId
    offset: Offset
    """Offset to read next."""
    bytes_left: int
    end_offset: Offset | None
    """End of the read. Batches that start at or after it are not read. A batch with records on both
    sides is read."""
    isolation: Isolation
    partition: Partition | None = None
    error: LogError | None = None
    chunks: int = 0
    is_follower_read: bool = False

    def is_done(self) -> bool:
        """Whether no requested record can follow."""
        return self.end_offset is not None and self.offset >= self.end_offset

    def is_at_end(self) -> bool:
        """Whether there is nothing to read now, so that a wait makes sense."""
        partition = self.partition
        return (
            partition is not None
            and not self.is_done()
            and partition.readable_end(self.isolation) <= self.offset <= partition.log_end_offset
        )


@dataclass(slots=True)
class ReadProgress:
    """Progress of a read of one partition, advanced by the caller's `take`."""

    offset: Offset
    """Offset to read next."""
    end_offset: Offset | None
    count: int = 0
    """Records taken."""

    def skip_to(self, offset: Offset) -> None:
        """Advance to `offset`, but not beyond the requested end."""
        end_offset = self.end_offset
        offset = offset if end_offset is None else min(offset, end_offset)
        self.offset = max(self.offset, offset)


class FetchService:
    """The fetch path of one node."""

    def __init__(
        self,
        services: NodeServices,
        settings: BrokerSettings,
        topics: TopicMetrics,
        authorize: Authorize,
        closing: Closing,
    ) -> None:
        self.metadata = services.metadata
        self.replicas = services.replicas
        self.settings = settings
        self.topics = topics
        self.authorize = authorize
        self.closing = closing
        self.router = services.partitions
        self._clock = services.clock

    def fetch(
        self,
        principal: Principal,
        count: int,
        *,
        any_replica: bool,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        chunk_bytes: int = FETCH_FRAME_BYTES,
    ) -> MultiFetch:
        """Begin a fetch of `count` partitions, from replicas of this node.

        `chunk_bytes`: a listener that holds its whole answer takes larger chunks. Raises LogError
        INVALID_BODY for too many.
        """
        self.settings.check_partition_count(count)
        return MultiFetch(
            self,
            principal,
            any_replica=any_replica,
            isolation=isolation,
            chunk_bytes=chunk_bytes,
        )

    def routed(self, principal: Principal, count: int, *, isolation: Isolation) -> RoutedFetch:
        """Begin a fetch of `count` partitions of any leaders. Raises LogError INVALID_BODY."""
        self.settings.check_partition_count(count)
        return RoutedFetch(self, principal, self._clock, isolation)

    def refusal(self, principal: Principal, topic: str) -> LogError | None:
        """The error for a principal that may not read the topic, otherwise None."""
        try:
            self.authorize(principal, Operation.READ, topic_resource(topic))
        except LogError as error:
            return error.as_outcome()
        return None

    def partition(
        self, principal: Principal, topic: str, number: int, *, any_replica: bool = False
    ) -> PartitionHandle:
        """One partition on any node, to read from. LogError UNKNOWN_TOPIC, UNKNOWN_PARTITION."""
        self.authorize(principal, Operation.READ, topic_resource(topic))
        return self.router.find(topic, number, any_replica=any_replica)

    def partitions(
        self, principal: Principal, topic: str, numbers: Sequence[int] | None
    ) -> list[PartitionHandle]:
        """Some partitions of a topic, or (None) all, to read from."""
        self.authorize(principal, Operation.READ, topic_resource(topic))
        found = self.metadata.image.topic(topic)
        if numbers is None:
            numbers = range(len(found.partitions))
        return [self.router.find(found.name, number) for number in numbers]

    async def read(
        self,
        partition: PartitionHandle,
        progress: ReadProgress,
        take: Callable[[Fetched], Awaitable[bool]],
        *,
        max_bytes: int,
        timeout_s: float,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> Fetched:
        """Read chunks until `take` returns True or `max_bytes` are read. Returns the last chunk.

        `take` gets each chunk of whole batches, advances `progress`, and returns whether it needs
        no more. It stops by itself at `max_bytes` of its response. Waits up to `timeout_s` for the
        first record. Raises LogError, unless records were taken before.
        """
        clock = self._clock
        deadline = clock.monotonic() + min(timeout_s, self.settings.long_poll_s_max)
        bytes_left = min(max_bytes, self.settings.response_bytes_max)
        fetched: Fetched | None = None
        while True:
            offset = progress.offset
            limit = min(FETCH_CHUNK_BYTES, bytes_left)
            try:
                fetched = await partition.read(
                    offset,
                    max_bytes=limit,
                    end_offset=progress.end_offset,
                    isolation=isolation,
                )
            except LogError:
                if fetched is None or not progress.count:
                    raise
                # Records before a damaged place are good. The next read meets the error first.
                return fetched
            if fetched.data:
                bytes_left -= len(fetched.data)
                is_done = await take(fetched)
                # A read gives at least one batch, so only a full chunk may be followed by another.
                if is_done or bytes_left <= 0 or limit < FETCH_CHUNK_BYTES:
                    return fetched
                await asyncio.sleep(0)
            elif fetched.next_offset > offset:
                # Compaction has removed the records there.
                progress.skip_to(fetched.next_offset)
            else:
                remaining_s = deadline - clock.monotonic()
                is_at_end = progress.end_offset is not None and offset >= progress.end_offset
                if progress.count or is_at_end or remaining_s <= 0 or self.closing.is_set():
                    return fetched
                await self.wait([(partition, offset)], timeout_s=remaining_s, isolation=isolation)

    async def wait(
        self,
        positions: Sequence[tuple[PartitionHandle, Offset]],
        *,
        timeout_s: float,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> None:
        """Return when any partition may have a record at its offset, or at the deadline.

        Raises LogError OVERLOADED.
        """
        if timeout_s <= 0 or self.closing.is_set() or not positions:
            return
        await self.closing.unless_set(self.router.wait_for_data(positions, timeout_s, isolation))


class MultiFetch:
    """A fetch from replicas of this node.

    Callers `add` each partition, `wait` if all are at their ends, and iterate over `chunks`.
    """

    def __init__(
        self,
        service: FetchService,
        principal: Principal,
        *,
        any_replica: bool,
        isolation: Isolation,
        chunk_bytes: int,
    ) -> None:
        self._service = service
        self._isolation = isolation
        self._chunk_bytes = chunk_bytes
        self._principal = principal
        self._any_replica = any_replica
        self._refusals: dict[str, LogError | None] = {}
        self._partitions: list[PartitionFetch] = []

    def add(
        self,
        topic: str,
        number: PartitionId,
        offset: Offset,
        *,
        max_bytes: int,
        end_offset: Offset | None = None,
        topic_id: str | None = None,
    ) -> None:
        """Read a partition from `offset`. An error is the partition's own and not raised.

        With `topic_id` the partition must be that topic's, because a name may later mean another
        topic.
        """
        fetch = PartitionFetch(
            topic=topic,
            number=number,
            offset=offset,
            bytes_left=max_bytes,
            end_offset=end_offset,
            isolation=self._isolation,
        )
        self._partitions.append(fetch)
        if topic not in self._refusals:
            self._refusals[topic] = self._service.refusal(self._principal, topic)
        refusal = self._refusals[topic]
        if refusal is not None:
            fetch.error = refusal
            return
        service = self._service
        try:
            if topic_id is not None:
                self._check_topic_id(topic, topic_id)
            fetch.partition = service.replicas.partition(topic, number)
        except LogError as error:
            if self._any_replica and error.entry is not UNKNOWN_TOPIC:
                fetch.partition = self._follower(fetch)
                fetch.is_follower_read = True
            if fetch.partition is None:
                fetch.error = error.as_outcome()
        else:
            service.topics.topic(topic).fetch_requests += 1

    def is_at_end(self) -> bool:
        """Whether no partition has anything to read now, so that the caller should `wait`."""
        return all(fetch.is_at_end() for fetch in self._partitions)

    async def wait(self, *, min_bytes: int, timeout_s: float) -> None:
        """Wait until about `min_bytes` are committed in all partitions together."""
        service = self._service
        timeout_s = min(timeout_s, service.settings.long_poll_s_max)
        if timeout_s > 0 and not service.closing.is_set():
            positions = [
                (fetch.partition, fetch.offset)
                for fetch in self._partitions
                if fetch.partition is not None
            ]
            await service.closing.unless_set(
                service.replicas.wait_for_data(
                    positions,
                    min_bytes=min_bytes,
                    timeout_s=timeout_s,
                    isolation=self._isolation,
                )
            )

    async def chunks(self, max_bytes: int | None) -> AsyncIterator[tuple[PartitionFetch, Fetched]]:
        """Chunks of each partition in turn, until every partition or the response is full.

        With `max_bytes` 0 they have marks and errors, and no data. None stands for the node's
        bound. Each partition yields at least once, with its error or marks if it has no data. Only
        the last chunk of a bound may exceed it, by a batch. Read `error` of the partition before
        the next step, because a later chunk may fail.
        """
        bytes_max = self._service.settings.response_bytes_max
        bytes_left = bytes_max if max_bytes is None else min(max_bytes, bytes_max)
        closing = self._service.closing
        turns = self._partitions
        while turns:
            unfinished: list[PartitionFetch] = []
            for fetch in turns:
                if fetch.chunks and min(bytes_left, fetch.bytes_left) <= 0:
                    continue
                limit = min(self._chunk_bytes, bytes_left, fetch.bytes_left)
                fetched = await self._next(fetch, limit)
                size = len(fetched.data)
                if size == 0 and fetch.chunks and fetch.error is None:
                    continue
                fetch.chunks += 1
                yield fetch, fetched
                if size and not closing.is_set():
                    bytes_left -= size
                    fetch.bytes_left -= size
                    # A read gives at least one batch, so only a full chunk may be followed by
                    # another.
                    if limit == self._chunk_bytes and fetch.offset < self._end(fetched):
                        unfinished.append(fetch)
            turns = unfinished

    def _end(self, fetched: Fetched) -> Offset:
        if self._isolation is Isolation.READ_COMMITTED:
            return fetched.last_stable_offset
        return fetched.high_watermark

    async def _next(self, fetch: PartitionFetch, max_bytes: int) -> Fetched:
        """The partition's next batches. Empty if `max_bytes` is 0 or there are none."""
        partition = fetch.partition
        if partition is None:
            return replace(NOTHING, next_offset=fetch.offset)
        if fetch.error is None and max_bytes > 0:
            try:
                fetched = await partition.read(
                    fetch.offset,
                    max_bytes=max_bytes,
                    end_offset=fetch.end_offset,
                    any_replica=fetch.is_follower_read,
                    isolation=self._isolation,
                )
            except LogError as error:
                fetch.error = error.as_outcome()
                self._service.topics.topic(partition.topic).failed_fetch_requests += 1
            else:
                fetch.offset = fetched.next_offset
                self._service.topics.topic(partition.topic).bytes_out += len(fetched.data)
                return fetched
        return Fetched(
            data=b"",
            next_offset=fetch.offset,
            high_watermark=partition.high_watermark,
            log_start_offset=partition.log_start_offset,
            last_stable_offset=partition.last_stable_offset,
        )

    def _check_topic_id(self, name: str, topic_id: str) -> None:
        """Raise LogError UNKNOWN_TOPIC_ID unless the topic of that name has that id."""
        present = self._service.metadata.image.topic(name).topic_id
        if present != topic_id:
            raise LogError(
                UNKNOWN_TOPIC_ID,
                f"Topic {name!r} is another one here: {present}, not {topic_id}.",
            )

    def _follower(self, fetch: PartitionFetch) -> Partition | None:
        """This node's follower replica if it reaches the offset, otherwise None."""
        topic = self._service.metadata.image.topics_by_name.get(fetch.topic)
        if topic is None:
            return None
        found = self._service.replicas.replica(topic.topic_id, fetch.number)
        if found is None or found.is_closed:
            return None
        is_there = found.log_start_offset <= fetch.offset <= found.log_end_offset
        return found if is_there else None


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
    """A fetch of partitions of any leaders, for a client that knows no leaders.

    Callers `add` each partition, `wait`, then iterate over `chunks`. A fetch waits at all leaders
    for the first record, then reads with one call per leader. Rounds repeat until there are
    `min_bytes`, or the time is up. Nothing is repeated after an error. The error is the partition's
    own, and the client retries. The response holds `max_bytes`, and one batch more for each call.
    """

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
        read = RoutedRead(topic, number, offset, max_bytes)
        self._reads.append(read)
        if topic not in self._refusals:
            self._refusals[topic] = self._service.refusal(self._principal, topic)
        read.error = self._refusals[topic]
        if read.error is None:
            try:
                read.handle = self._service.router.find(topic, number)
            except LogError as error:
                read.error = error.as_outcome()
            else:
                self._service.topics.topic(topic).fetch_requests += 1

    def is_at_end(self) -> bool:
        """Whether no partition is known to have data, so that the caller should `wait`."""
        return not self._may_have_data

    async def wait(self, *, min_bytes: int, timeout_s: float) -> None:
        """Wait for the first record of any partition, unless a partition has an error.

        `chunks` waits for the rest of `min_bytes`.
        """
        timeout_s = min(timeout_s, self._service.settings.long_poll_s_max)
        if any(read.error is not None for read in self._reads):
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
        for read in self._reads:
            if read.error is not None:
                yield read, NOTHING
        pending = [read for read in self._reads if read.error is None]
        while pending and (is_first or self._clock.monotonic() < self._deadline):
            may_have_data = await self._wait(pending)
            if not (may_have_data or is_first):
                return
            has_moved = False
            rows = await self._read(pending, bytes_left if may_have_data else 0)
            for read, row in zip(pending, rows, strict=True):
                topic = self._service.topics.topic(read.topic)
                if isinstance(row, LogError):
                    read.error = row
                    topic.failed_fetch_requests += 1
                    yield read, NOTHING
                    continue
                count = len(row.data)
                has_moved = has_moved or row.next_offset > read.offset
                read.offset = max(read.offset, row.next_offset)
                read.bytes_left -= count
                bytes_left -= count
                size += count
                topic.bytes_out += count
                if count or is_first:
                    yield read, row
            is_first = False
            is_over = bytes_left <= 0 or size >= max(self._min_bytes, 1) or not has_moved
            if is_over or any(read.error is not None for read in pending):
                return
            pending = [read for read in pending if read.bytes_left > 0]

    async def _wait(self, reads: list[RoutedRead]) -> bool:
        """Wait for a record of any partition. False if none has come in time."""
        remaining_s = self._deadline - self._clock.monotonic()
        if remaining_s <= 0:
            return True
        positions = [(read.handle, read.offset) for read in reads if read.handle is not None]
        try:
            await self._service.wait(positions, timeout_s=remaining_s, isolation=self._isolation)
        except LogError:
            # The read has the reason, by partition, or no leader had room for another wait.
            return True
        return self._clock.monotonic() < self._deadline

    async def _read(self, reads: list[RoutedRead], max_bytes: int) -> list[Fetched | LogError]:
        wants = [
            ReadWant(read.handle, read.offset, read.bytes_left)
            for read in reads
            if read.handle is not None
        ]
        return await read_many(
            self._service.router, wants, max_bytes=max_bytes, isolation=self._isolation
        )
