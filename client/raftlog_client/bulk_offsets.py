"""Offsets of many partitions by one call to any node, which asks each of their leaders once.

For who plans work over whole topics and keeps no connections to all nodes. What has no leader at
the moment is asked for again, alone, until the request timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from raftlog.record.errors import STORAGE_FAILED
from raftlog_client.errors import (
    RaftlogClientError,
    ServerError,
    TopicNotFoundError,
    server_error,
)
from raftlog_client.metadata import UNKNOWN_TOPIC_ATTEMPTS, ClusterMetadata
from raftlog_client.types import OffsetAndTimestamp, TopicPartition

PARTITIONS_PER_CALL_MAX: Final = 10_000
"""What a node takes by default; more are asked for by several calls."""
PATIENCE_S: Final = 4.0
"""A node gives its peers 2 s, and has the rest in memory: one that is silent for so long is in
trouble itself."""

T = TypeVar("T")


class PartitionBounds(NamedTuple):
    """What can be read of a partition: from `log_start_offset` up to, not including, the
    `high_watermark`; of committed transactions only, up to the `last_stable_offset`."""

    topic_id: str
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int


class TimedOffset(NamedTuple):
    """The first record at or after a time; `found` is None if there is none."""

    topic_id: str
    found: OffsetAndTimestamp | None


async def bounds_of_topics(
    metadata: ClusterMetadata, topics: Iterable[str]
) -> dict[TopicPartition, PartitionBounds]:
    """What can be read of all partitions of these topics, as a node knows them.

    Raises TopicNotFoundError if one does not exist; the last error of a partition without answer
    after the request timeout.
    """
    names = sorted(set(topics))
    if unknown := set(names) - metadata.view.topics.keys():
        # How many partitions they have says how many calls it takes: usually one.
        await metadata.refresh(unknown)
    answer: dict[TopicPartition, PartitionBounds] = {}
    for page in _pages({name: _partition_count(metadata, name) for name in names}):
        asked: list[str] | dict[str, list[int]] = page

        def body(left: Mapping[str, list[int]], page: Any = asked) -> Any:
            return {"topics": left or page, "any_node": True}

        def rows(reply: Any) -> Iterator[tuple[TopicPartition, PartitionBounds | ServerError]]:
            for name, topic in reply["topics"].items():
                for number, row in topic["partitions"].items():
                    one = TopicPartition(name, int(number))
                    yield one, _refusal(one, row) or _bounds(str(topic["topic_id"]), row)

        answer.update(await _ask(metadata, "/v1/offsets", body, rows))
    return answer


async def offsets_of_times(
    metadata: ClusterMetadata, times_ms: Mapping[TopicPartition, int]
) -> dict[TopicPartition, TimedOffset]:
    """The first record at or after each partition's own time (ms). Raises as `bounds_of_topics`."""
    partitions = sorted(times_ms)
    answer: dict[TopicPartition, TimedOffset] = {}
    for start in range(0, len(partitions), PARTITIONS_PER_CALL_MAX):
        some = _by_topic(partitions[start : start + PARTITIONS_PER_CALL_MAX])

        def body(left: Mapping[str, list[int]], some: Mapping[str, list[int]] = some) -> Any:
            return {
                "timestamps": {
                    name: {str(n): times_ms[TopicPartition(name, n)] for n in numbers}
                    for name, numbers in (left or some).items()
                },
                "any_node": True,
            }

        def rows(reply: Any) -> Iterator[tuple[TopicPartition, TimedOffset | ServerError]]:
            for name, found in reply["offsets"].items():
                topic_id = str(reply["topic_ids"][name])
                for number, row in found.items():
                    one = TopicPartition(name, int(number))
                    yield one, _refusal(one, row) or TimedOffset(topic_id, _found(row))

        answer.update(
            await _ask(
                metadata,
                "/v1/offsets-for-times",
                body,
                rows,
                patience_s=metadata.request_timeout_s,
            )
        )
    return answer


async def _ask(
    metadata: ClusterMetadata,
    path: str,
    body: Callable[[Mapping[str, list[int]]], Any],
    rows: Callable[[Any], Iterator[tuple[TopicPartition, T | ServerError]]],
    *,
    patience_s: float = PATIENCE_S,
) -> dict[TopicPartition, T]:
    """Ask until all partitions have an answer. `body` is given those that are left; none: all."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + metadata.request_timeout_s
    answers: dict[TopicPartition, T] = {}
    left: list[TopicPartition] = []
    attempt = 0
    while True:
        error: ServerError | None = None
        try:
            reply = await metadata.call_any(
                "POST", path, body(_by_topic(left)), patience_s=patience_s
            )
        except TopicNotFoundError as refusal:
            # The node that was asked may not have heard of the topic yet.
            if attempt + 1 >= UNKNOWN_TOPIC_ATTEMPTS:
                raise
            error = refusal
        else:
            left = []
            try:
                for one, row in rows(reply):
                    if isinstance(row, ServerError):
                        left.append(one)
                        error = row
                    else:
                        answers[one] = row
            except (KeyError, TypeError, ValueError, AttributeError) as fault:
                raise RaftlogClientError(
                    f"A node's answer about offsets is malformed: {fault!r}"
                ) from fault
        if error is None:
            return answers
        delay_s = metadata.backoff.delay_s(attempt)
        attempt += 1
        if not _may_pass(error) or loop.time() + delay_s >= deadline:
            raise error
        await asyncio.sleep(delay_s)


def _may_pass(error: ServerError) -> bool:
    # A leader whose storage failed is followed by another, if there is one.
    return error.retriable or error.entry.refresh_metadata or error.entry is STORAGE_FAILED


def _pages(counts: Mapping[str, int]) -> Iterator[list[str] | dict[str, list[int]]]:
    """Topics, together as long as they have no more partitions than one call may name."""
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


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for one in partitions:
        topics.setdefault(one.topic, []).append(int(one.partition))
    return topics


def _refusal(one: TopicPartition, row: Mapping[str, Any] | None) -> ServerError | None:
    if row is None or not row.get("error_code"):
        return None
    name, message = f"{one.topic}-{one.partition}", str(row.get("message"))
    return server_error(
        int(row["error_code"]), message if name in message else f"{name}: {message}"
    )


def _bounds(topic_id: str, row: Mapping[str, Any]) -> PartitionBounds:
    return PartitionBounds(
        topic_id,
        int(row["beginning_offset"]),
        int(row["high_watermark"]),
        int(row["last_stable_offset"]),
    )


def _found(row: Mapping[str, Any] | None) -> OffsetAndTimestamp | None:
    return None if row is None else OffsetAndTimestamp(int(row["offset"]), int(row["timestamp"]))
