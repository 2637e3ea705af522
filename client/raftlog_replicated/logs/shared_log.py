"""The log of a state in one partition, read by all replicas."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias, TypeVar

from raftlog_client import (
    Admin,
    Consumer,
    GroupLease,
    LeaseListener,
    OffsetOutOfRangeError,
    Producer,
    Record,
    ServerError,
    TopicPartition,
)
from raftlog_client.groups.lease import elapsed_s

from raftlog_replicated.errors import ReplicaEndedError, UnknownEntryError
from raftlog_replicated.logs.topics import Clients, StateTopics, TopicSnapshots
from raftlog_replicated.ports import LeaseMember, LogRecord, LogTrimmedError, Writer

T = TypeVar("T")
Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]

POLL_MS: Final = 500
ENTRIES: Final = 0
LEASE_PARTITION: Final = 0
"""Partition whose owner in the group is the primary, in both layouts."""
CLOSE_MS: Final = 50
"""Milliseconds for a writer's pending work, whose outcome is the log's."""


class SharedLog:
    """`StateLog` over one partition. The offset of a record is its entry's number."""

    def __init__(
        self,
        topics: StateTopics,
        servers: str | Sequence[str],
        *,
        replica_id: str,
        endpoint: str | None,
        lease_ms: int,
    ) -> None:
        self._topics = topics
        self._servers = servers
        self._replica_id = replica_id
        self._endpoint = endpoint
        self._lease_ms = lease_ms
        self._clients = Clients(
            Admin(bootstrap_servers=servers), Producer(bootstrap_servers=servers)
        )
        self.snapshots = TopicSnapshots(topics.snapshots, servers, *self._clients)
        self._source = TopicPartition(topics.log, ENTRIES)
        self._consumer: Consumer[bytes, bytes] | None = None
        self._questions: Consumer[bytes, bytes] | None = None
        """Consumer for the log's end, beside long polls."""

    @property
    def group_id(self) -> str:
        """The group of the replicas."""
        return self._topics.log

    async def start(self) -> None:
        """Find or make the topics, and connect. Raises LayoutError, RaftlogClientError."""
        try:
            await self._clients.admin.start()
            await self._clients.producer.start()
            await self._topics.find_or_make(self._clients)
            await self._connect()
        except BaseException:
            await self.close()
            raise

    async def _connect(self) -> None:
        """Open both consumers."""
        self._consumer = await self._open("read_uncommitted")
        self._questions = await self._open("read_uncommitted")

    async def _open(self, isolation: Isolation) -> Consumer[bytes, bytes]:
        """A consumer of the partition that is read, paused."""
        consumer: Consumer[bytes, bytes] = Consumer(
            bootstrap_servers=self._servers,
            auto_offset_reset="none",
            isolation=isolation,
            fetch_max_wait_ms=POLL_MS,
        )
        consumer.assign([self._source])
        consumer.seek(self._source, 0)
        consumer.pause(self._source)
        await consumer.start()
        return consumer

    async def close(self) -> None:
        """End all that was started. Closing twice is allowed."""
        consumers = (self._consumer, self._questions)
        self._consumer = self._questions = None
        for consumer in consumers:
            if consumer is not None:
                await consumer.close()
        await self.snapshots.close()
        await self._clients.producer.close()
        await self._clients.admin.close()

    async def run(self, call: Callable[[], None]) -> None:
        """Run a long call in a thread."""
        await asyncio.to_thread(call)

    def now_ms(self) -> int:
        """The wall clock."""
        return int(time.time() * 1000)

    def clock(self) -> float:
        """The system's monotonic clock, with the time of a suspended machine where it is known."""
        return elapsed_s()

    async def end(self) -> int:
        """The committed end, for which the leader confirms its lead with the quorum."""
        questions = self._started(self._questions)
        return (await questions.end_offsets([self._source]))[self._source]

    def seek(self, offset: int) -> None:
        """Read from there on."""
        if self._consumer is not None:
            self._consumer.seek(self._source, offset)
            self._consumer.resume(self._source)

    def pause(self) -> None:
        """Fetch nothing until the next `seek`."""
        if self._consumer is not None:
            self._consumer.pause(self._source)

    async def read(self) -> list[LogRecord]:
        """The next committed records."""
        while True:
            try:
                taken = await self._started(self._consumer).getmany(timeout_ms=POLL_MS)
            except OffsetOutOfRangeError as error:
                raise LogTrimmedError(str(error)) from error
            if records := taken.get(self._source):
                return [_log_record(record) for record in records]

    async def open_writer(self) -> Writer:
        """A new writer. Its first append fences all writers before."""
        producer: Producer[bytes, bytes] = Producer(
            bootstrap_servers=self._servers, fencing_id=self._topics.log
        )
        await producer.start()
        return _FencedWriter(producer, self._source)

    async def trim(self, offset: int) -> None:
        """Delete the records below an offset."""
        await self._clients.admin.delete_records({self._source: offset})

    def lease(self, listener: LeaseListener) -> GroupLease:
        """A membership that is not started."""
        return GroupLease(
            self.group_id,
            self._topics.log,
            self._replica_id,
            listener=listener,
            endpoint=self._endpoint,
            bootstrap_servers=self._servers,
            session_timeout_ms=self._lease_ms,
        )

    async def members(self) -> list[LeaseMember]:
        """The replicas of the state."""
        try:
            group = await self._clients.admin.describe_group(self.group_id)
        except ServerError as error:
            if error.entry.name == "UNKNOWN_GROUP":
                return []
            raise
        return [
            LeaseMember(
                member.instance_id,
                member.endpoint,
                member.position or 0,
                any(
                    part.topic == self._topics.log and LEASE_PARTITION in part.partitions
                    for part in member.assignment
                ),
            )
            for member in group.members
            if member.instance_id is not None
        ]

    def _started(self, client: T | None) -> T:
        if client is None:
            raise ReplicaEndedError("The replica's connections are closed.")
        return client


class _FencedWriter:
    """Appends under one epoch of the state's producer id."""

    def __init__(self, producer: Producer[bytes, bytes], source: TopicPartition) -> None:
        self._producer = producer
        self._source = source

    async def append(self, values: Sequence[bytes], timestamp_ms: int) -> Sequence[int]:
        topic, partition = self._source
        sent = [
            await self._producer.send(topic, value, None, partition, timestamp_ms)
            for value in values
        ]
        if len(sent) == 1:
            return ((await sent[0]).offset,)
        return [result.offset for result in await asyncio.gather(*sent)]

    async def close(self) -> None:
        await self._producer.close(timeout_ms=CLOSE_MS)


def _log_record(record: Record[bytes, bytes]) -> LogRecord:
    if record.value is None:
        raise UnknownEntryError(f"The record at offset {record.offset} has no value.")
    return LogRecord(record.offset, record.timestamp, record.value)
