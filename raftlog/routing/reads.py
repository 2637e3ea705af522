"""Reads of many partitions for the fetches of a gateway, one call per leader.

As in `many`, every partition has its own outcome, and there are no retries, because a client that
fetches will fetch again. One read holds no more than its bound, and for each leader one batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from raftlog.metadata.image import NO_LEADER_ID
from raftlog.record.errors import UNSUPPORTED_FORMAT, LogError
from raftlog.record.types import BrokerId, Buffer, Offset
from raftlog.replication.partition import Fetched, Isolation, Partition
from raftlog.routing.forwarding_messages import (
    ABORTED_BYTES,
    BODY_BYTES_MAX,
    WANTS_MAX,
    Operation,
    Outcome,
    ReadMany,
    ReadsOfMany,
    split_aborted,
    with_aborted,
)
from raftlog.routing.handle import PartitionHandle
from raftlog.routing.many import call_leaders, coded, finder
from raftlog.routing.router import PartitionRouter

LEADER_BYTES_MAX: Final = 8 << 20
"""Bytes of one leader's response, or one batch. Several reads share the link to it."""
READS_S_MAX: Final = 3.0
"""Timeout of one leader's answer. A leader that hangs must not hold up the others' records."""


class ReadWant(NamedTuple):
    """A partition to read, from an offset on."""

    partition: PartitionHandle
    offset: Offset
    max_bytes: int


async def read_many(
    router: PartitionRouter,
    wanted: Sequence[ReadWant],
    *,
    max_bytes: int,
    isolation: Isolation,
) -> list[Fetched | LogError]:
    """The next batches of each partition, or its error. Never raises LogError.

    The leaders share `max_bytes`, where 0 requests only the marks. The partitions of one leader
    have its part in their order, and those behind it get their marks.
    """
    share = min(max_bytes // max(_calls(router, wanted), 1), LEADER_BYTES_MAX)
    if max_bytes > 0:
        share = max(share, 1)

    async def local(indexes: Sequence[int]) -> list[Fetched | LogError]:
        return await local_reads(
            [
                (finder(router, wanted[i].partition), wanted[i].offset, wanted[i].max_bytes)
                for i in indexes
            ],
            max_bytes=share,
            isolation=isolation,
        )

    def operation(some: Sequence[int]) -> Operation:
        return ReadMany(
            tuple(
                (
                    wanted[i].partition.topic_id,
                    wanted[i].partition.partition,
                    wanted[i].offset,
                    min(wanted[i].max_bytes, share),
                )
                for i in some
            ),
            share,
            int(isolation),
        )

    partitions = [want.partition for want in wanted]
    return await call_leaders(router, partitions, local, operation, _answer, timeout_s=READS_S_MAX)


async def local_reads(
    wanted: Sequence[tuple[Callable[[], Partition], Offset, int]],
    *,
    max_bytes: int,
    isolation: Isolation,
) -> list[Fetched | LogError]:
    """The next batches of partitions led here. Each callable raises LogError if its is not.

    The last batches may exceed `max_bytes` by one batch, but not a message's bound.
    """
    rows: list[Fetched | LogError] = []
    used = 0
    for find, offset, bytes_max in wanted:
        limit = min(bytes_max, max_bytes - used)
        try:
            partition = find()
            fetched = await partition.read(
                offset,
                max_bytes=max(limit, 0),
                end_offset=None if limit > 0 else offset,
                isolation=isolation,
            )
        except LogError as error:
            rows.append(error.as_outcome())
            continue
        size = len(fetched.data) + ABORTED_BYTES * len(fetched.aborted)
        if used + size <= BODY_BYTES_MAX:
            used += size
            rows.append(fetched)
        elif used:
            # The next read begins with it.
            rows.append(replace(fetched, data=b"", next_offset=offset, aborted=()))
        else:
            rows.append(
                LogError(
                    UNSUPPORTED_FORMAT,
                    f"{partition.name}: the next batch has {size} bytes, too many to be passed on.",
                )
            )
    return rows


def reads_answer(found: Sequence[Fetched | LogError]) -> tuple[ReadsOfMany, list[Buffer]]:
    """The outcomes on the wire, and the body."""
    rows: list[tuple[int, int, int, int, int, int] | int] = []
    body: list[Buffer] = []
    for fetched in found:
        row = coded(fetched)
        if isinstance(row, int):
            rows.append(row)
            continue
        rows.append(
            (
                row.next_offset,
                row.high_watermark,
                row.log_start_offset,
                row.last_stable_offset,
                len(row.aborted),
                len(row.data),
            )
        )
        body += with_aborted(row.aborted, row.data)
    return ReadsOfMany(tuple(rows)), body


def _answer(outcome: Outcome, body: memoryview) -> list[Fetched | int]:
    assert isinstance(outcome, ReadsOfMany)
    found: list[Fetched | int] = []
    position = 0
    for row in outcome.rows:
        if isinstance(row, int):
            found.append(row)
            continue
        following, high_watermark, start, stable, count, size = row
        end = position + count * ABORTED_BYTES + size
        aborted, data = split_aborted(count, body[position:end])
        position = end
        found.append(
            Fetched(
                data=data,
                next_offset=Offset(following),
                high_watermark=Offset(high_watermark),
                log_start_offset=Offset(start),
                last_stable_offset=Offset(stable),
                aborted=aborted,
            )
        )
    return found


def _calls(router: PartitionRouter, wanted: Sequence[ReadWant]) -> int:
    """The number of reads that `wanted` becomes, with WANTS_MAX partitions of a leader in each."""
    counts: Counter[BrokerId] = Counter()
    for want in wanted:
        try:
            leader = router.leadership(want.partition.topic_id, want.partition.partition).leader
        except LogError:
            continue
        counts[leader] += 1
    del counts[NO_LEADER_ID]
    return sum(-(-count // WANTS_MAX) for count in counts.values())
