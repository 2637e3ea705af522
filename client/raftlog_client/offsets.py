"""Offsets of partitions, from their leaders or any node, and deletion of records.

A partition's leader knows its offsets, so consumer and admin query the leaders. A planner of work
over whole topics keeps no connections to all nodes. It calls any node, which queries each leader
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from raftlog.api.records import (
    DeletedPartition,
    DeletedRecords,
    DeleteRecords,
    FoundOffset,
    OffsetsRequest,
    OffsetsResponse,
    ReadableOffsets,
    TimesRequest,
    TimesResponse,
    TopicOffsets,
)
from raftlog.record.errors import STORAGE_FAILED
from raftlog_client.errors import RaftlogClientError, ServerError, TopicNotFoundError, server_error
from raftlog_client.metadata import METADATA_PATIENCE_S, UNKNOWN_TOPIC_ATTEMPTS, ClusterMetadata
from raftlog_client.routing import LeaderCalls, LeaderQuery, all_answers
from raftlog_client.transport import NodeAddress
from raftlog_client.types import OffsetAndTimestamp, PartitionOffsets, TopicPartition

PARTITIONS_PER_CALL_MAX: Final = 10_000
"""Most partitions of a call, the default limit of a node. More partitions take several calls."""
ANY_NODE_PATIENCE_S: Final = 4.0
"""Seconds of silence after which another node is called. A node gives its peers 2 s and has the
rest in memory."""

T = TypeVar("T")
R = TypeVar("R")


class PartitionBounds(NamedTuple):
    """Readable offsets of a partition, from `log_start_offset` up to the exclusive
    `high_watermark`.

    Readers of committed transactions stop at the `last_stable_offset`.
    """

    topic_id: str
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int


class TimedOffset(NamedTuple):
    """The first record at or after a time. `found` is None without a record."""

    topic_id: str
    found: OffsetAndTimestamp | None


# By the leaders


async def topic_offsets(
    metadata: ClusterMetadata, topics: Iterable[str], *, at_hand_after_s: float | None = None
) -> dict[TopicPartition, PartitionOffsets]:
    """Return readable offsets of all partitions of some topics.

    With `at_hand_after_s`, return those known after that many seconds and leave out the others.
    Raises TopicNotFoundError if a topic does not exist, and the last error of a partition without a
    response.
    """
    names = sorted(set(topics))
    if not names:
        return {}
    await metadata.refresh(names)
    partitions = [
        TopicPartition(name, info.partition)
        for name in names
        for info in (await metadata.topic(name)).partitions
    ]
    if at_hand_after_s is None:
        return await partition_offsets(metadata, partitions)
    return all_answers(
        await LeaderCalls(metadata).query(
            offsets_query(metadata), partitions, timeout_s=at_hand_after_s, must_settle=False
        )
    )


async def partition_offsets(
    metadata: ClusterMetadata, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, PartitionOffsets]:
    """Return readable offsets of some partitions. Raises the first failed partition's error."""
    return await _by_leaders(metadata, offsets_query(metadata), partitions)


async def offsets_for_times(
    metadata: ClusterMetadata, timestamps: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Return each partition's first record at or after a timestamp (ms), or None."""

    async def query(
        address: NodeAddress, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, OffsetAndTimestamp | RaftlogClientError | None]:
        body = TimesRequest(
            _keyed_by_text({partition: timestamps[partition] for partition in partitions})
        )
        answer = await metadata.call_node(
            address, "POST", "/v1/offsets-for-times", TimesResponse, body, timeout_s=timeout_s
        )
        return _each(
            partitions,
            lambda partition: _found(answer.offsets[partition.topic][str(partition.partition)]),
        )

    return await _by_leaders(metadata, query, timestamps)


async def delete_records(
    metadata: ClusterMetadata, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Delete each partition's records below an offset (-1 for all). Returns log start offsets.

    Raises the first partition's error, if any, once all were tried.
    """

    async def query(
        address: NodeAddress, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, int | RaftlogClientError]:
        body = DeleteRecords(_by_topic({partition: offsets[partition] for partition in partitions}))
        answer = await metadata.call_node(
            address, "POST", "/v1/delete-records", DeletedRecords, body, timeout_s=timeout_s
        )
        found = {TopicPartition(row.topic, row.partition): row for row in answer.results}
        return _each(partitions, lambda partition: _deleted(found[partition]))

    # A repeat is harmless, because deleted records are not deleted twice.
    return await _by_leaders(metadata, query, offsets)


def offsets_query(metadata: ClusterMetadata) -> LeaderQuery[PartitionOffsets]:
    """Return the query for readable offsets."""

    async def query(
        address: NodeAddress, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, PartitionOffsets | RaftlogClientError]:
        # A node has these in memory.
        patience_s = min(timeout_s, METADATA_PATIENCE_S)
        body = OffsetsRequest(_numbers_by_topic(partitions))
        answer = await metadata.call_node(
            address, "POST", "/v1/offsets", OffsetsResponse, body, timeout_s=patience_s
        )
        return _each(
            partitions,
            lambda partition: _offsets(answer.topics[partition.topic], str(partition.partition)),
        )

    return query


async def _by_leaders(
    metadata: ClusterMetadata, query: LeaderQuery[T], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, T]:
    timeout_s = metadata.request_timeout_s
    return all_answers(await LeaderCalls(metadata).query(query, partitions, timeout_s=timeout_s))


def _each(
    partitions: Iterable[TopicPartition], answer: Callable[[TopicPartition], T]
) -> dict[TopicPartition, T]:
    """Return the result for each partition. Raises RaftlogClientError if any has none."""
    try:
        return {partition: answer(partition) for partition in partitions}
    except KeyError as error:
        raise _malformed(error) from error


# By any node


async def bounds_of_topics(
    metadata: ClusterMetadata, topics: Iterable[str]
) -> dict[TopicPartition, PartitionBounds]:
    """Return readable offsets of all partitions of these topics, by calls to any node.

    Raises TopicNotFoundError for an unknown topic, and the last error of a partition without a
    response after the request timeout.
    """
    names = sorted(set(topics))
    if unknown := set(names) - metadata.view.topics.keys():
        # The number of their partitions gives the number of calls, usually a single call.
        await metadata.refresh(unknown)
    bounds: dict[TopicPartition, PartitionBounds] = {}
    for page in _pages({name: _partition_count(metadata, name) for name in names}):
        whole: list[str] | dict[str, list[int]] = page

        def body(
            left: dict[str, list[int]], page: list[str] | dict[str, list[int]] = whole
        ) -> OffsetsRequest:
            return OffsetsRequest(left or page, any_node=True)

        def rows(
            reply: OffsetsResponse,
        ) -> Iterator[tuple[TopicPartition, PartitionBounds | ServerError]]:
            for name, topic in reply.topics.items():
                for number, row in topic.partitions.items():
                    partition = TopicPartition(name, int(number))
                    yield partition, _refusal(partition, row) or _bounds(topic.topic_id, row)

        bounds.update(await _by_any_node(metadata, "/v1/offsets", OffsetsResponse, body, rows))
    return bounds


async def offsets_of_times(
    metadata: ClusterMetadata, times_ms: Mapping[TopicPartition, int]
) -> dict[TopicPartition, TimedOffset]:
    """Return the first record since each partition's time (ms), by calls to any node.

    Raises as `bounds_of_topics`.
    """
    partitions = sorted(times_ms)
    offsets: dict[TopicPartition, TimedOffset] = {}
    for start in range(0, len(partitions), PARTITIONS_PER_CALL_MAX):
        some = _numbers_by_topic(partitions[start : start + PARTITIONS_PER_CALL_MAX])

        def body(left: dict[str, list[int]], some: dict[str, list[int]] = some) -> TimesRequest:
            return TimesRequest(
                {
                    name: {str(n): times_ms[TopicPartition(name, n)] for n in numbers}
                    for name, numbers in (left or some).items()
                },
                any_node=True,
            )

        def rows(
            reply: TimesResponse,
        ) -> Iterator[tuple[TopicPartition, TimedOffset | ServerError]]:
            for name, found in reply.offsets.items():
                topic_id = reply.topic_ids[name]
                for number, row in found.items():
                    partition = TopicPartition(name, int(number))
                    yield partition, _refusal(partition, row) or TimedOffset(topic_id, _found(row))

        offsets.update(
            await _by_any_node(
                metadata,
                "/v1/offsets-for-times",
                TimesResponse,
                body,
                rows,
                patience_s=metadata.request_timeout_s,
            )
        )
    return offsets


async def _by_any_node(
    metadata: ClusterMetadata,
    path: str,
    kind: type[R],
    body: Callable[[dict[str, list[int]]], msgspec.Struct],
    rows: Callable[[R], Iterator[tuple[TopicPartition, T | ServerError]]],
    *,
    patience_s: float = ANY_NODE_PATIENCE_S,
) -> dict[TopicPartition, T]:
    """Call nodes until all partitions have a result.

    `body` makes the request for the remaining partitions, or for all if none are named.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + metadata.request_timeout_s
    answers: dict[TopicPartition, T] = {}
    left: list[TopicPartition] = []
    attempt = 0
    while True:
        error: ServerError | None = None
        try:
            reply = await metadata.call_any(
                "POST", path, kind, body(_numbers_by_topic(left)), patience_s=patience_s
            )
        except TopicNotFoundError as refusal:
            # The node may not have applied the topic's creation yet.
            if attempt + 1 >= UNKNOWN_TOPIC_ATTEMPTS:
                raise
            error = refusal
        else:
            left = []
            try:
                for partition, row in rows(reply):
                    if isinstance(row, ServerError):
                        left.append(partition)
                        error = row
                    else:
                        answers[partition] = row
            except (KeyError, ValueError) as fault:
                raise _malformed(fault) from fault
        if error is None:
            return answers
        delay_s = metadata.backoff.delay_s(attempt)
        attempt += 1
        if not _may_pass(error) or loop.time() + delay_s >= deadline:
            raise error
        await asyncio.sleep(delay_s)


def _may_pass(error: ServerError) -> bool:
    # After a storage failure another replica is elected, if any.
    return error.retriable or error.entry.refresh_metadata or error.entry is STORAGE_FAILED


def _pages(counts: Mapping[str, int]) -> Iterator[list[str] | dict[str, list[int]]]:
    """Split topics into calls within the limit of partitions."""
    names: list[str] = []
    size = 0
    for name, count in counts.items():
        if count > PARTITIONS_PER_CALL_MAX:
            for start in range(0, count, PARTITIONS_PER_CALL_MAX):
                yield {name: list(range(start, min(start + PARTITIONS_PER_CALL_MAX, count)))}
            continue
        if names and size + count > PARTITIONS_PER_CALL_MAX:
            yield names
            names, size = [], 0
        names.append(name)
        size += count
    if names:
        yield names


def _partition_count(metadata: ClusterMetadata, name: str) -> int:
    known = metadata.view.topics.get(name)
    return 0 if known is None else len(known.partitions)


# Rows


def _by_topic(values: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    topics: dict[str, dict[int, int]] = {}
    for partition, value in values.items():
        topics.setdefault(partition.topic, {})[int(partition.partition)] = value
    return topics


def _keyed_by_text(values: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = {}
    for partition, value in values.items():
        topics.setdefault(partition.topic, {})[str(partition.partition)] = value
    return topics


def _numbers_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(int(partition.partition))
    return topics


def _refusal(
    partition: TopicPartition, row: ReadableOffsets | FoundOffset | None
) -> ServerError | None:
    if row is None or not isinstance(row.error_code, int) or not row.error_code:
        return None
    name, message = f"{partition.topic}-{partition.partition}", str(row.message)
    return server_error(row.error_code, message if name in message else f"{name}: {message}")


def _offsets(topic: TopicOffsets, partition: str) -> PartitionOffsets:
    row = topic.partitions[partition]
    return PartitionOffsets(
        beginning_offset=row.beginning_offset,
        end_offset=row.end_offset,
        high_watermark=row.high_watermark,
        topic_id=topic.topic_id,
        last_stable_offset=row.last_stable_offset,
    )


def _bounds(topic_id: str, row: ReadableOffsets) -> PartitionBounds:
    return PartitionBounds(
        topic_id, row.beginning_offset, row.high_watermark, row.last_stable_offset
    )


def _found(row: FoundOffset | None) -> OffsetAndTimestamp | None:
    return None if row is None else OffsetAndTimestamp(row.offset, row.timestamp)


def _deleted(row: DeletedPartition) -> int | RaftlogClientError:
    if row.error_code:
        return server_error(row.error_code, f"{row.topic}-{row.partition}: {row.message}")
    return row.log_start_offset


def _malformed(error: Exception) -> RaftlogClientError:
    return RaftlogClientError(f"A node's answer about offsets is malformed: {error!r}")
