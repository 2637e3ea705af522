"""From checked records to offsets: choose partitions, batch, append in parallel, tell each outcome.

A request is planned whole before any of it is written: what cannot be planned is refused with
nothing written. Records of one partition become one batch (more, if one would be over
max.message.bytes), in the request's order, and are appended whole or not at all. Different
partitions are appended at the same time and may fare differently. Small requests share batches
with others that arrive at the same time (data_gather.py).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NoReturn

from raftlog.http.context import ServerContext
from raftlog.metadata.image import TopicImage
from raftlog.record.batch import RecordBatch
from raftlog.record.codec import BatchBuilder, RecordTuple
from raftlog.record.compression import Compression
from raftlog.record.errors import INVALID_BODY, RECORD_TOO_LARGE, TOPIC_EXISTS, LogError
from raftlog.record.header import parse_header
from raftlog.record.partitioner import partition_for_key
from raftlog.record.types import TopicId
from raftlog.replication.partition import Acks
from raftlog.rest.batcher import RECORD_OVERHEAD_BYTES, REQUEST_BYTES_MAX, SmallRequestBatcher
from raftlog.rest.json_records import StoredRecord
from raftlog.rest.produce_options import ProduceOptions
from raftlog.routing.handle import PartitionHandle

TURNS_REMEMBERED_MAX = 10_000
"""Topics whose turn of the round robin is remembered."""
SEQUENCE_MASK = 2**31 - 1
"""Sequence numbers go on from 0 after 2^31 - 1."""


@dataclass(slots=True)
class PartitionWrite:
    """A request's records for one partition."""

    number: int
    partition: PartitionHandle | None
    """None if there is none: `outcome` says why."""
    indexes: Sequence[int]
    """Where the records stood in the request."""
    records: Sequence[StoredRecord] = ()
    batches: Sequence[RecordBatch] | None = None
    """The records' batches; None if they are to share one with other requests' records."""
    outcome: Sequence[int] | LogError = ()
    """The records' offsets, or why there are none."""
    log_append_time_ms: int = -1


async def topic_for_produce(name: str, context: ServerContext) -> TopicImage:
    """The topic to write to, created now if the settings say so. LogError UNKNOWN_TOPIC."""
    metadata = context.services.metadata
    topic = metadata.image.topics_by_name.get(name)
    if topic is None and context.settings.auto_create_topics:
        try:
            topic = await metadata.create_topic(name)
        except LogError as error:
            # Another request may have created it while this one was at it.
            if error.entry is not TOPIC_EXISTS:
                raise
    return topic or metadata.image.topic(name)


class RoundRobin:
    """Whose turn it is: each request's records without key or partition go to one partition."""

    def __init__(self) -> None:
        self._next: dict[TopicId, int] = {}

    def take(self, topic: TopicImage) -> int:
        """The next partition of the topic."""
        turn = self._next.get(topic.topic_id, 0)
        if turn == 0 and len(self._next) >= TURNS_REMEMBERED_MAX:
            self._next.clear()
        self._next[topic.topic_id] = turn + 1
        return turn % len(topic.partitions)


_turns = RoundRobin()
_gatherer = SmallRequestBatcher()
_SHARED = ProduceOptions(Acks.ALL, 0)
"""What a shared batch is packed with: it has no producer id."""


def assign(
    topic: TopicImage,
    records: Sequence[StoredRecord],
    asked: Sequence[int | None] | None,
    options: ProduceOptions,
) -> Mapping[int, Sequence[int]]:
    """Indexes of the records by partition, each in the request's order.

    A record goes where it asks to (`asked`; None if no record does), else where its key belongs,
    else where the topic's turn is. Raises LogError: UNKNOWN_PARTITION; INVALID_BODY for an
    idempotent request that does not name one partition, now and whenever it is repeated.
    """
    count = len(topic.partitions)
    if count == 1 and asked is None:
        return {0: range(len(records))}
    groups: defaultdict[int, list[int]] = defaultdict(list)
    turn: int | None = None
    for index, record in enumerate(records):
        number = None if asked is None else asked[index]
        key = record[1]
        if number is not None:
            if number >= count:
                raise_unknown_partition(topic, number)
        elif key is not None:
            number = partition_for_key(key, count)
        elif count == 1:
            number = 0
        elif options.is_idempotent:
            raise LogError(
                INVALID_BODY,
                f"Record {index} has neither key nor partition: repeated, it would go to another "
                "partition, where its sequence number is not known. Name a partition.",
            )
        else:
            number = turn = _turns.take(topic) if turn is None else turn
        groups[number].append(index)
    if options.is_idempotent and len(groups) > 1:
        raise LogError(
            INVALID_BODY,
            "A sequence number counts the records of one partition, but these go to partitions "
            f"{', '.join(map(str, sorted(groups)))}: send one request for each.",
        )
    return groups


def raise_unknown_partition(topic: TopicImage, number: int) -> NoReturn:
    """Raise LogError UNKNOWN_PARTITION for a number that the topic does not have."""
    topic.partition(number)
    raise AssertionError(f"{topic.name} has partition {number}")


def plan(
    topic: TopicImage,
    records: Sequence[StoredRecord],
    groups: Mapping[int, Sequence[int]],
    options: ProduceOptions,
    context: ServerContext,
    *,
    size_bytes: int,
) -> list[PartitionWrite]:
    """Give every partition its records, in batches unless they are to share one.

    `size_bytes` is at least what all keys, values and headers have. Raises LogError
    RECORD_TOO_LARGE, INVALID_BODY.
    """
    writes: list[PartitionWrite] = []
    size_bytes += RECORD_OVERHEAD_BYTES * len(records)
    is_small = size_bytes <= REQUEST_BYTES_MAX and not options.is_idempotent
    for number, indexes in groups.items():
        try:
            partition = context.services.partitions.find(topic.name, number)
        except LogError as error:
            writes.append(PartitionWrite(number, None, indexes, outcome=error))
            continue
        own = records if len(indexes) == len(records) else [records[index] for index in indexes]
        size_max = partition.max_message_bytes
        batches = None
        if not is_small or size_bytes > size_max:
            batches = pack(own, indexes, size_max, options)
        writes.append(PartitionWrite(number, partition, indexes, own, batches))
    return writes


def pack(
    records: Sequence[StoredRecord],
    indexes: Sequence[int],
    size_bytes_max: int,
    options: ProduceOptions,
) -> list[RecordBatch]:
    """Pack records into as few batches as the size allows, numbered on from the sequence.

    Raises LogError RECORD_TOO_LARGE, naming the record by its index in the request.
    """
    batches: list[RecordBatch] = []
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
        )
        if rest is not None:
            builder.append(*rest)
        rest = builder.append_many(iterator)
        data = builder.build()
        if len(data) > size_bytes_max:
            raise LogError(
                RECORD_TOO_LARGE,
                f"Record {indexes[done]} makes a batch of {len(data)} bytes; the topic's "
                f"max.message.bytes is {size_bytes_max}.",
            )
        batches.append(RecordBatch(parse_header(data), memoryview(data)))
        done += builder.record_count
        if options.is_idempotent:
            sequence = (sequence + builder.record_count) & SEQUENCE_MASK
        if rest is None:
            return batches


async def write(writes: Sequence[PartitionWrite], options: ProduceOptions) -> None:
    """Append every partition's batches, at the same time, and note each outcome."""
    if len(writes) == 1:
        await _write_one(writes[0], options)
    else:
        await asyncio.gather(*(_write_one(one, options) for one in writes))


async def _write_one(one: PartitionWrite, options: ProduceOptions) -> None:
    partition = one.partition
    if partition is None:
        return
    acks, timeout_s = options.acks, options.timeout_s
    try:
        if one.batches is None:
            placed = await _gatherer.append(
                partition, one.records, acks=acks, timeout_s=timeout_s, pack=_pack_shared
            )
            one.outcome = range(placed.base_offset, placed.base_offset + len(one.records))
            one.log_append_time_ms = placed.log_append_time_ms
            return
        results = await partition.append(one.batches, acks=acks, timeout_s=timeout_s)
    except LogError as error:
        one.outcome = error
        return
    one.log_append_time_ms = results[0].log_append_time_ms
    one.outcome = list(
        chain.from_iterable(range(result.base_offset, result.last_offset + 1) for result in results)
    )


def _pack_shared(records: Sequence[StoredRecord], size_bytes_max: int) -> list[RecordBatch]:
    return pack(records, range(len(records)), size_bytes_max, _SHARED)


def raise_if_nothing_written(writes: Sequence[PartitionWrite]) -> None:
    """If every partition refused, raise one of their errors, the least certain of them.

    A caller that looks only at the HTTP status must not take a failed request for a written one.
    """
    worst: LogError | None = None
    for one in writes:
        if not isinstance(one.outcome, LogError):
            return
        if worst is None or (one.outcome.entry.outcome_unknown and not worst.entry.outcome_unknown):
            worst = one.outcome
    if worst is not None:
        raise worst


def count_produced(
    context: ServerContext, topic: str, writes: Sequence[PartitionWrite], size_bytes: int
) -> None:
    """Add a produce request to the topic's metrics."""
    counters = context.metrics.topic(topic)
    counters.produce_requests += 1
    failed = False
    for one in writes:
        if isinstance(one.outcome, LogError):
            failed = True
        else:
            counters.messages_in += len(one.indexes)
    if failed:
        counters.failed_produce_requests += 1
    else:
        counters.bytes_in += size_bytes
