"""Writers and readers of partitions, and their ledger: promises 1, 2, 5 and 6."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from raftlog.record.batch import split_batches
from raftlog.record.codec import BatchBuilder, decode
from raftlog.record.compression import Compression
from raftlog.record.errors import LogError
from raftlog.replication.partition import Acks, Partition

RECORDS_MAX: Final = 4
VALUE_BYTES_MAX: Final = 200
READ_BYTES_MAX: Final = 500
BATCH_BYTES_MAX: Final = 1 << 16
MESSAGE_BYTES_MAX: Final = 1 << 20
TIMEOUT_S: Final = 30.0
TIME_MS: Final = 1_700_000_000_000
"""Timestamp of all records: the start of simulated clocks, so that none expires."""


@dataclass
class Ledger:
    """Records sent to one partition, and the responses."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)
    """By offset, with acks=all."""
    sent: set[bytes] = field(default_factory=set)
    refused: set[bytes] = field(default_factory=set)
    """Values with a definite failure response."""

    async def append(self, partition: Partition, acks: Acks, chance: random.Random) -> None:
        """Append a few unique records. Raises LogError."""
        builder = BatchBuilder(Compression.NONE, BATCH_BYTES_MAX)
        values = []
        for _ in range(chance.randint(1, RECORDS_MAX)):
            number = len(self.sent) + 1
            values.append(b"%d-" % number + b"x" * chance.randint(0, VALUE_BYTES_MAX))
            assert builder.append(TIME_MS, None, values[-1], [])
            self.sent.add(values[-1])
        batches = split_batches(bytes(builder.build()), max_message_bytes=MESSAGE_BYTES_MAX)
        try:
            (result,) = await partition.append(batches, acks=acks, timeout_s=TIMEOUT_S)
        except LogError as error:
            if not error.entry.outcome_unknown:
                self.refused.update(values)
            raise
        if acks is Acks.ALL:
            for position, value in enumerate(values):
                offset = result.base_offset + position
                assert offset not in self.acknowledged, f"offset {offset} was given out twice"
                self.acknowledged[offset] = value

    async def check(self, partition: Partition, *, lost_from: int | None = None) -> None:
        """Check that all acknowledged records are at their offsets, and no unknown ones.

        `lost_from`: offset from which the partition has reported a possible loss.
        """
        stored = await everything(partition)
        name = f"{partition.topic}-{partition.partition}"
        start = partition.log_start_offset
        assert sorted(stored) == list(range(start, start + len(stored))), (
            f"{name}: {sorted(stored)} has gaps"
        )
        values = set(stored.values())
        assert values <= self.sent, f"{name}: nobody wrote {values - self.sent}"
        assert len(values) == len(stored), f"{name}: a record is there twice"
        assert not values & self.refused, f"{name}: {values & self.refused} were refused"
        for offset, value in sorted(self.acknowledged.items()):
            if stored.get(offset) == value:
                continue
            assert lost_from is not None and offset >= lost_from, (
                f"{name} lost {offset} ({value[:8]!r}), and said so from {lost_from} on"
            )
            # New records may have the offsets of lost ones.
            del self.acknowledged[offset]


async def everything(partition: Partition) -> dict[int, bytes]:
    """All committed values by their offsets, read as a consumer does."""
    stored: dict[int, bytes] = {}
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        fetched = await partition.read(offset, max_bytes=READ_BYTES_MAX)
        for batch in split_batches(bytes(fetched.data), max_message_bytes=MESSAGE_BYTES_MAX):
            for record in decode(batch, decompressed_bytes_max=MESSAGE_BYTES_MAX):
                assert record.value is not None
                stored[record.offset] = record.value
        assert fetched.next_offset > offset
        offset = fetched.next_offset
    return stored
