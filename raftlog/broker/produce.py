"""Produce records, or clients' batches, and report every partition's outcome.

`write` takes records of one topic. It plans the whole request before it appends, and appends
nothing if the plan fails. Records of one partition become one batch (more, if the batch would
exceed max.message.bytes), in the request's order, and are appended whole or not at all. Small
requests share batches with others that arrive at the same time (batcher.py).

`append_batches` takes batches that the client built, for partitions that this node leads. With
`any_node` it forwards the others.

Different partitions are appended at the same time. Their outcomes are values, offsets or LogError,
and may differ.

Calls of `append_batches` take their places in a partition's log in the order in which they started,
however long each waits before its append (for a new topic, for a turn of a frame with more than
BATCHES_PER_STEP_MAX batches, for a new producer id). The same holds for calls of `write` with one
producer id. A listener that handles several requests of one connection at a time relies on this
order. It starts them in order and responds in order. Concurrent calls of `write` without a producer
id have no order.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, NoReturn, TypeAlias

from raftlog.broker.authorize import (
    CLUSTER,
    Authorize,
    Operation,
    Principal,
    topic_resource,
    transactional_id_resource,
)
from raftlog.broker.batcher import RECORD_OVERHEAD_BYTES, REQUEST_BYTES_MAX, SmallRequestBatcher
from raftlog.broker.first_sequences import FirstSequences
from raftlog.broker.limits import BrokerSettings, WorkTurns
from raftlog.broker.metrics import TopicMetrics
from raftlog.broker.node import NodeServices
from raftlog.metadata.configs.topic import TopicConfig
from raftlog.metadata.image import BrokerImage, TopicImage
from raftlog.record.batch import RecordBatch, has_more_batches, split_batches
from raftlog.record.codec import BatchBuilder, Headers, RecordTuple
from raftlog.record.compression import Compression
from raftlog.record.errors import INVALID_BODY, RECORD_TOO_LARGE, TOPIC_EXISTS, LogError
from raftlog.record.frames import ProduceFrame
from raftlog.record.header import HEADER_SIZE, BatchHeader, parse_header
from raftlog.record.partitioner import partition_for_key
from raftlog.record.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Buffer,
    LeaderEpoch,
    Offset,
    PartitionId,
    ProducerEpoch,
    ProducerId,
    TopicId,
)
from raftlog.replication.leader.arrival_order import ArrivalOrder, Place
from raftlog.replication.partition import Acks, Partition
from raftlog.routing.handle import PartitionHandle
from raftlog.routing.leader_gate import Write
from raftlog.storage.types import AppendResult

__all__ = ["Acks", "ProduceOptions", "ProduceService"]

TOPICS_REMEMBERED_MAX: Final = 10_000
"""Topics with a remembered next partition in the round robin."""
RECORDS_PER_TURN: Final = 8_192
"""Records of a long request that get their partitions in one turn of 10 ms."""
RECORDS_CHECKED_PER_TURN: Final = 1_024
"""Records checked singly in one turn of 10 ms, if each has to be encoded."""
FRAMES_PER_TURN: Final = 128
"""Appends of a long request that begin in one turn."""
BATCHES_PER_STEP_MAX: Final = 16
"""Batches of a frame that needs no separate turn. Each batch takes 10 to 20 us. Idempotent
producers have at most five in flight."""
PACKED_BYTES_PER_TURN: Final = 1 << 20
"""Bytes of batches packed in one turn, unless a batch has more."""
PACKED_BATCH_COST_BYTES: Final = 4_096
"""Work of a batch besides its bytes, in bytes."""
NO_OFFSET: Final = Offset(-1)
SEQUENCE_MASK: Final = 2**31 - 1
"""Largest sequence number. The next sequence number after 2^31 - 1 is 0."""

_WRITE: Final = Operation.WRITE
"""Local name. The lookup of an enum's member costs as much as the rest of an authorization."""

_FrameKey: TypeAlias = tuple[str, PartitionId]
"""Topic and partition of a frame."""

StoredRecord: TypeAlias = tuple[int, bytes | None, bytes | None, Headers | None]
"""Timestamp (ms), key, value, headers of a record to write."""


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    """Acknowledgement, timeout and producer identity of a produce request."""

    acks: Acks
    timeout_s: float
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    sequence: int = NO_SEQUENCE
    transactional_id: str | None = None
    """Id of the transaction that the records join."""
    adds_partition: bool = True
    """Whether a transaction's first records add their partition to it (version 2, KIP-890). A
    client of version 1 has added it before."""
    any_node: bool = False
    """Whether `append_batches` forwards batches to the leaders of their partitions."""
    may_start_anywhere: bool = False
    """Whether a producer that a partition does not know may start with any sequence. Kafka's
    clients may, because not all of them can start again."""

    @property
    def is_idempotent(self) -> bool:
        """Whether the records carry a producer id and sequence numbers."""
        return self.producer_id != NO_PRODUCER_ID


@dataclass(slots=True)
class PartitionWrite:
    """A request's records for one partition, and their outcome."""

    number: int
    partition: PartitionHandle | None
    """None if the partition cannot be found, with the error in `outcome`."""
    indexes: Sequence[int]
    """The records' places in the request."""
    records: Sequence[StoredRecord] = ()
    batches: Sequence[RecordBatch] | None = None
    """The records' batches, or None if they share a batch with other requests' records."""
    outcome: Sequence[int] | LogError = ()
    """The records' offsets, or the error. With an error nothing was appended, or
    `entry.outcome_unknown` is set."""
    log_append_time_ms: int = -1


@dataclass(slots=True)
class BatchesAppended:
    """The place of one partition's batches in its log."""

    base_offset: Offset
    """Offset of the first record. A repeated batch has its offset of the first append."""
    last_offset: Offset
    log_append_time_ms: int
    log_start_offset: Offset
    """NO_OFFSET: unknown, as another node leads."""


class RoundRobin:
    """Partitions in turn. A request's records without key or partition go to one partition."""

    def __init__(self) -> None:
        self._next: dict[TopicId, int] = {}

    def take(self, topic: TopicImage) -> int:
        """The next partition of the topic."""
        turn = self._next.get(topic.topic_id, 0)
        if turn == 0 and len(self._next) >= TOPICS_REMEMBERED_MAX:
            self._next.clear()
        self._next[topic.topic_id] = turn + 1
        return turn % len(topic.partitions)


class ProduceService:
    """The produce path of one node."""

    def __init__(
        self,
        services: NodeServices,
        settings: BrokerSettings,
        topics: TopicMetrics,
        authorize: Authorize,
        turns: WorkTurns,
    ) -> None:
        self._metadata = services.metadata
        self._replicas = services.replicas
        self._partitions = services.partitions
        self._auto_create = settings.auto_create_topics
        self._check_partition_count = settings.check_partition_count
        self._topics = topics
        self._authorize = authorize
        self._round_robin = RoundRobin()
        self._turns = turns
        self._clock = services.clock
        self._firsts = FirstSequences()
        self._batcher = SmallRequestBatcher(_pack_shared)
        self._frames: ArrivalOrder[_FrameKey] = ArrivalOrder()
        """Partitions with frames that wait before their append."""
        self._planned: ArrivalOrder[ProducerId] = ArrivalOrder()
        """Producers of idempotent writes that are not appended yet."""

    async def topic(self, principal: Principal, name: str) -> TopicImage:
        """The topic to write to, created now if the settings allow it.

        Called before `write`, because it authorizes the principal. Raises LogError UNKNOWN_TOPIC or
        FORBIDDEN.
        """
        self._authorize(principal, _WRITE, topic_resource(name))
        topic = self._metadata.image.topics_by_name.get(name)
        if topic is not None:
            return topic
        return await self._missing_topic(principal, name)

    def authorize_transaction(self, principal: Principal, transactional_id: str) -> None:
        """Raise LogError FORBIDDEN unless the principal may write in the id's transactions."""
        self._authorize(principal, _WRITE, transactional_id_resource(transactional_id))

    async def topics(
        self, principal: Principal, names: Sequence[str]
    ) -> list[TopicImage | LogError]:
        """The topics to write to, each as `topic`, or the error of each.

        Clients that must know the partitions of a topic before they write use it. Raises LogError
        INVALID_BODY for too many.
        """
        self._check_partition_count(len(names))
        found: list[TopicImage | LogError] = []
        for name in names:
            try:
                found.append(await self.topic(principal, name))
            except LogError as error:
                found.append(error.as_outcome())
        return found

    async def allocate_producer_id(self, principal: Principal) -> tuple[ProducerId, ProducerEpoch]:
        """A producer id that was never given out before, and its first epoch."""
        self._authorize(principal, Operation.IDEMPOTENT_WRITE, CLUSTER)
        return await self._metadata.allocate_producer_id()

    async def write(
        self,
        topic: TopicImage,
        records: Sequence[StoredRecord],
        partitions: Sequence[int | None] | None,
        options: ProduceOptions,
        *,
        size_bytes: int,
        partition: PartitionId | None = None,
    ) -> list[PartitionWrite]:
        """Append records to a topic that `topic` returned. Returns each partition's outcome.

        A record goes to its entry in `partitions` (None if no record has an entry), else to its
        key's partition, else to the round robin's. With `partition`, all records go there.
        `size_bytes` is at least the sum of all keys, values and headers. Raises LogError, with
        nothing appended: UNKNOWN_PARTITION, RECORD_TOO_LARGE, or INVALID_BODY for an idempotent
        request that does not name exactly one partition.
        """
        place = self._planned.enter([options.producer_id] if options.is_idempotent else ())
        try:
            await place.reached()
            if partition is None:
                groups = await self._assign(topic, records, partitions, options)
            else:
                groups = {partition: range(len(records))}
            writes = await self._plan(topic, records, groups, options, size_bytes)
        finally:
            # The producer's next write runs in a later step of the loop than the append.
            place.leave()
        if len(writes) == 1:
            await self._append(writes[0], options)
        else:
            await asyncio.gather(*(self._append(write, options) for write in writes))
        self._count(topic.name, writes, size_bytes)
        return writes

    async def unfit(
        self,
        topic: TopicImage,
        records: Sequence[StoredRecord],
        partitions: Sequence[int | None],
    ) -> dict[int, LogError]:
        """Errors by index of the records that the topic cannot take. `write` takes the others.

        For requests with an outcome for each record, where one bad record must not prevent the
        others. The errors are an unknown partition, more than max.message.bytes, and no key in a
        compacted topic.
        """
        config = self._metadata.settings.topic_config(topic)
        errors: dict[int, LogError] = {}
        for index, (record, number) in enumerate(zip(records, partitions, strict=True)):
            if index % RECORDS_CHECKED_PER_TURN == RECORDS_CHECKED_PER_TURN - 1:
                await self._turns.wait()
            try:
                if number is not None and number >= len(topic.partitions):
                    _raise_unknown_partition(topic, number)
                _check_record(record, config)
            except LogError as error:
                errors[index] = error.as_outcome()
        return errors

    async def append_batches(
        self, principal: Principal, frames: Sequence[ProduceFrame], options: ProduceOptions
    ) -> Sequence[BatchesAppended | LogError]:
        """Append clients' batches to all partitions at once. Returns an outcome for each frame.

        Partitions of other leaders have NO_LEADER, unless the options have `any_node`. Raises
        LogError, with nothing appended: INVALID_BODY if two frames are of one partition, or
        FORBIDDEN for the transactional id.
        """
        if options.transactional_id is not None:
            self.authorize_transaction(principal, options.transactional_id)
        if len(frames) == 1:
            return (await self._append_frame(principal, frames[0], options, None),)
        if len({frame[:2] for frame in frames}) != len(frames):
            # Two frames would be two appends at the same time, in no certain order.
            raise LogError(
                INVALID_BODY, "Two frames are of one partition; put its batches into one."
            )
        appends: list[asyncio.Task[BatchesAppended | LogError]] = []
        # Tasks begin later than the next request may.
        places = [self._frames.enter([frame[:2]]) for frame in frames]
        try:
            for frame, place in zip(frames, places, strict=True):
                if len(appends) % FRAMES_PER_TURN == FRAMES_PER_TURN - 1:
                    await self._turns.wait()
                work = self._append_frame(principal, frame, options, place)
                appends.append(asyncio.create_task(work))
            return await asyncio.gather(*appends)
        finally:
            for place in places:
                place.leave()

    def note_rejected(self, topic: str, partition: PartitionId, data: Buffer) -> None:
        """Remember the rejection of a frame, whose topic is a name or an unknown id.

        A later batch of its producer must not start in front of it.
        """
        try:
            header = parse_header(data)
        except LogError:
            return
        if header.producer_id != NO_PRODUCER_ID:
            place = (header.producer_id, topic, partition)
            known = self._metadata.image.topics_by_name.get(topic)
            topic_id = topic if known is None else known.topic_id
            self._firsts.reject(place, topic_id, header.base_sequence, self._clock.monotonic())

    def current_leader(
        self, topic: str, partition: PartitionId
    ) -> tuple[LeaderEpoch, BrokerImage | None]:
        """The leader epoch and leader that a NO_LEADER answer names (KIP-951).

        The leader is None when unknown to the applied metadata.
        """
        image = self._metadata.image
        row = image.partition(topic, partition)
        return row.leader_epoch, image.brokers.get(row.leader)

    def log_start_offset(self, topic: str, partition: PartitionId) -> Offset:
        """The log start offset that an UNKNOWN_PRODUCER_ID answer names. Raises LogError."""
        return self._replicas.partition(topic, partition).log_start_offset

    async def _missing_topic(self, principal: Principal, name: str) -> TopicImage:
        """Create an unknown topic if the settings allow it. Raises LogError UNKNOWN_TOPIC."""
        if self._auto_create:
            self._authorize(principal, Operation.CREATE, topic_resource(name))
            try:
                return await self._metadata.create_topic(name)
            except LogError as error:
                # Another request may have created it during this call.
                if error.entry is not TOPIC_EXISTS:
                    raise
        return self._metadata.image.topic(name)

    # Records

    async def _assign(
        self,
        topic: TopicImage,
        records: Sequence[StoredRecord],
        partitions: Sequence[int | None] | None,
        options: ProduceOptions,
    ) -> Mapping[int, Sequence[int]]:
        """Indexes of the records by partition, each in the request's order."""
        count = len(topic.partitions)
        if count == 1 and partitions is None:
            return {0: range(len(records))}
        groups: defaultdict[int, list[int]] = defaultdict(list)
        turn: int | None = None
        for index, record in enumerate(records):
            if index % RECORDS_PER_TURN == RECORDS_PER_TURN - 1:
                await self._turns.wait()
            number = None if partitions is None else partitions[index]
            key = record[1]
            if number is not None:
                if number >= count:
                    _raise_unknown_partition(topic, number)
            elif key is not None:
                number = partition_for_key(key, count)
            elif count == 1:
                number = 0
            elif options.is_idempotent:
                raise LogError(
                    INVALID_BODY,
                    f"Record {index} has neither key nor partition: repeated, it would go to "
                    "another partition, where its sequence number is not known. Name a partition.",
                )
            else:
                number = turn = self._round_robin.take(topic) if turn is None else turn
            groups[number].append(index)
        if options.is_idempotent and len(groups) > 1:
            raise LogError(
                INVALID_BODY,
                "A sequence number counts the records of one partition, but these go to partitions "
                f"{', '.join(map(str, sorted(groups)))}: send one request for each.",
            )
        return groups

    async def _plan(
        self,
        topic: TopicImage,
        records: Sequence[StoredRecord],
        groups: Mapping[int, Sequence[int]],
        options: ProduceOptions,
        size_bytes: int,
    ) -> list[PartitionWrite]:
        """Give every partition its records, in batches unless they are to share one."""
        writes: list[PartitionWrite] = []
        size_bytes += RECORD_OVERHEAD_BYTES * len(records)
        is_small = size_bytes <= REQUEST_BYTES_MAX and not options.is_idempotent
        for number, indexes in groups.items():
            try:
                partition = self._partitions.find(topic.name, number)
            except LogError as error:
                writes.append(PartitionWrite(number, None, indexes, outcome=error.as_outcome()))
                continue
            own = records if len(indexes) == len(records) else [records[index] for index in indexes]
            size_max = partition.max_message_bytes
            batches = None
            if not is_small or size_bytes > size_max:
                batches = []
                packed_bytes = PACKED_BYTES_PER_TURN if size_bytes > PACKED_BYTES_PER_TURN else 0
                for batch in packed(own, indexes, size_max, options):
                    batches.append(batch)
                    packed_bytes += len(batch.data) + PACKED_BATCH_COST_BYTES
                    if packed_bytes >= PACKED_BYTES_PER_TURN:
                        packed_bytes = 0
                        await self._turns.wait()
            writes.append(
                PartitionWrite(
                    number=number,
                    partition=partition,
                    indexes=indexes,
                    records=own,
                    batches=batches,
                )
            )
        return writes

    async def _append(self, write: PartitionWrite, options: ProduceOptions) -> None:
        partition = write.partition
        if partition is None:
            return
        acks, timeout_s = options.acks, options.timeout_s
        try:
            if write.batches is None:
                placed = await self._batcher.append(
                    partition, write.records, acks=acks, timeout_s=timeout_s
                )
                write.outcome = range(placed.base_offset, placed.base_offset + len(write.records))
                write.log_append_time_ms = placed.log_append_time_ms
                return
            results = await partition.append(
                write.batches,
                acks=acks,
                timeout_s=timeout_s,
                transactional_id=options.transactional_id,
            )
        except LogError as error:
            write.outcome = error.as_outcome()
            return
        write.log_append_time_ms = results[0].log_append_time_ms
        write.outcome = list(
            chain.from_iterable(
                range(result.base_offset, result.last_offset + 1) for result in results
            )
        )

    def _count(self, topic: str, writes: Sequence[PartitionWrite], size_bytes: int) -> None:
        counters = self._topics.topic(topic)
        counters.produce_requests += 1
        has_failed = False
        for write in writes:
            if isinstance(write.outcome, LogError):
                has_failed = True
            else:
                counters.messages_in += len(write.indexes)
        if has_failed:
            counters.failed_produce_requests += 1
        else:
            counters.bytes_in += size_bytes

    # Batches

    async def _append_frame(
        self,
        principal: Principal,
        frame: ProduceFrame,
        options: ProduceOptions,
        place: Place[_FrameKey] | None,
    ) -> BatchesAppended | LogError:
        topic, number, data = frame
        is_known = False
        try:
            self._authorize(principal, _WRITE, topic_resource(topic))
            is_known = topic in self._metadata.image.topics_by_name
            is_long = has_more_batches(data, BATCHES_PER_STEP_MAX)
            waits = is_long or not is_known or (self._frames and self._frames.is_held([frame[:2]]))
            if waits and place is None:
                place = self._frames.enter([frame[:2]])
            if not is_known:
                await self._missing_topic(principal, topic)
                is_known = True
            if place is not None:
                await place.reached()
            if is_long:
                await self._turns.wait()
            if place is not None:
                # The next frame of the partition runs in a later step of the loop than the append.
                place.leave()
            # From here to the place in the log, or in the line for it, nothing suspends.
            led: Partition | None = None
            if options.any_node:
                handle = self._partitions.find(topic, number)
                open_write, size_max = handle.open, handle.max_message_bytes
            else:
                led = self._replicas.partition(topic, number)
                open_write = partial(self._partitions.gate.open, led)
                size_max = led.log.config.max_message_bytes
            transactional_id = options.transactional_id
            is_transactional = transactional_id is not None
            batches = split_batches(
                data, max_message_bytes=size_max, allow_transactional=is_transactional
            )
            if options.may_start_anywhere and batches[0].header.producer_id != NO_PRODUCER_ID:
                open_write = partial(self._open_first, open_write, frame, batches[0].header)
            write = open_write(transactional_id, adds_partition=options.adds_partition)
            appended = await write(batches, acks=options.acks, timeout_s=options.timeout_s)
        except LogError as error:
            self.note_rejected(topic, number, data)
            if is_known:
                counters = self._topics.topic(topic)
                counters.produce_requests += 1
                counters.failed_produce_requests += 1
            return error.as_outcome()
        finally:
            if place is not None:
                place.leave()
        counters = self._topics.topic(topic)
        counters.produce_requests += 1
        counters.bytes_in += len(data)
        counters.messages_in += sum(batch.header.record_count for batch in batches)
        first = appended[0]
        return BatchesAppended(
            first.base_offset,
            appended[-1].last_offset,
            first.log_append_time_ms,
            NO_OFFSET if led is None else led.log_start_offset,
        )

    def _open_first(
        self,
        open_write: Callable[..., Write],
        frame: ProduceFrame,
        header: BatchHeader,
        transactional_id: str | None,
        *,
        adds_partition: bool,
    ) -> Write:
        """Open the partition for a batch whose producer may be unknown there, as `LeaderGate.open`.

        A transaction of version 2 starts each epoch with 0, so its rule stays strict, as in Kafka.
        """
        place = (header.producer_id, frame.topic, frame.partition)
        topic_id = self._metadata.image.topic(frame.topic).topic_id
        sequence = header.base_sequence

        async def write(
            batches: Sequence[RecordBatch], *, acks: Acks, timeout_s: float
        ) -> list[AppendResult]:
            may_start = self._firsts.begin(place, topic_id, sequence, self._clock.monotonic())
            is_written = False
            try:
                append = open_write(
                    transactional_id,
                    adds_partition=adds_partition,
                    may_start_anywhere=may_start
                    and not (transactional_id is not None and adds_partition),
                )
                appended = await append(batches, acks=acks, timeout_s=timeout_s)
                is_written = True
                return appended
            finally:
                self._firsts.end(place, topic_id, sequence, is_written=is_written)

        return write


def content_bytes(record: StoredRecord) -> int:
    """Bytes of a record's key and value, with an upper bound for its headers."""
    headers = record[3]
    return _least_bytes(record) + RECORD_OVERHEAD_BYTES * len(headers or ())


def _least_bytes(record: StoredRecord) -> int:
    """The bytes that any encoding of a record has."""
    _, key, value, headers = record
    size = len(key or b"") + len(value or b"")
    for name, content in headers or ():
        size += len(name.encode()) + len(content or b"")
    return size


def _check_record(record: StoredRecord, config: TopicConfig) -> None:
    """Raise the LogError with which a log of the config rejects the record."""
    if record[1] is None and "compact" in config.cleanup_policy:
        raise LogError(
            INVALID_BODY,
            "The record has no key; a topic with cleanup.policy=compact takes only records with "
            "one.",
        )
    size_max = config.max_message_bytes
    least = _least_bytes(record) + HEADER_SIZE
    if least > size_max:
        # A batch of it need not be built, and may be large.
        raise _too_large("The record", least, size_max)
    if content_bytes(record) + RECORD_OVERHEAD_BYTES + HEADER_SIZE > size_max:
        builder = BatchBuilder(Compression.NONE, size_max)
        builder.append(*record)
        size = len(builder.build())
        if size > size_max:
            raise _too_large("The record", size, size_max)


def _too_large(record: str, size_bytes: int, size_bytes_max: int) -> LogError:
    return LogError(
        RECORD_TOO_LARGE,
        f"{record} makes a batch of {size_bytes} bytes; the topic's max.message.bytes is "
        f"{size_bytes_max}.",
    )


def packed(
    records: Sequence[RecordTuple],
    indexes: Sequence[int],
    size_bytes_max: int,
    options: ProduceOptions,
) -> Iterator[RecordBatch]:
    """Pack records into as few batches as the size allows, numbered on from the sequence.

    Raises LogError RECORD_TOO_LARGE, naming the record by its index in the request.
    """
    iterator = iter(records)
    rest: RecordTuple | None = None
    sequence = options.sequence
    done = 0
    while True:
        builder = BatchBuilder(
            Compression.NONE,
            size_bytes_max,
            producer_id=options.producer_id,
            producer_epoch=options.producer_epoch,
            base_sequence=sequence,
            transactional=options.transactional_id is not None,
        )
        if rest is not None:
            builder.append(*rest)
        rest = builder.append_many(iterator)
        data = builder.build()
        if len(data) > size_bytes_max:
            raise _too_large(f"Record {indexes[done]}", len(data), size_bytes_max)
        yield RecordBatch(parse_header(data), memoryview(data))
        done += builder.record_count
        if options.is_idempotent:
            sequence = (sequence + builder.record_count) & SEQUENCE_MASK
        if rest is None:
            return


_SHARED: Final = ProduceOptions(Acks.ALL, 0)
"""Options of a shared batch, which has no producer id."""


def _pack_shared(records: Sequence[RecordTuple], size_bytes_max: int) -> list[RecordBatch]:
    return list(packed(records, range(len(records)), size_bytes_max, _SHARED))


def _raise_unknown_partition(topic: TopicImage, number: int) -> NoReturn:
    topic.partition(number)
    raise AssertionError(f"{topic.name} has partition {number}")
