"""All records of a topic, for the Python parts of scripts/demo."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

from raftlog_client import Consumer, Record, TopicPartition

POLL_TIMEOUT_MS = 1_000


async def records_of(topic: str) -> AsyncIterator[Record[bytes, bytes]]:
    """The current records, each partition's in order; fewer after the timeout."""
    async with Consumer[bytes, bytes](
        bootstrap_servers=os.environ["RAFTLOG_SERVERS"], auto_offset_reset="none"
    ) as consumer:
        numbers = await consumer.partitions_for_topic(topic) or set()
        partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        left = sum((await consumer.end_offsets(partitions)).values())
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        while left > 0:
            fetched = await consumer.getmany(timeout_ms=POLL_TIMEOUT_MS)
            if not fetched:
                return
            for records in fetched.values():
                left -= len(records)
                for record in records:
                    yield record
