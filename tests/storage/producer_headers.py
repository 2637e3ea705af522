"""Headers of idempotent producers' batches."""

from __future__ import annotations

from raftlog.record.header import BatchHeader
from raftlog.record.types import LeaderEpoch, Offset, ProducerEpoch, ProducerId


def header(
    producer: int,
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    base_offset: int = 0,
    attributes: int = 0,
    max_timestamp_ms: int = 0,
) -> BatchHeader:
    return BatchHeader(
        Offset(base_offset),
        49,
        LeaderEpoch(0),
        2,
        0,
        attributes,
        count - 1,
        0,
        max_timestamp_ms,
        ProducerId(producer),
        ProducerEpoch(epoch),
        sequence,
        count,
    )
