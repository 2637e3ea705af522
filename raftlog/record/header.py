"""The 61 bytes in front of every record batch (magic 2).

Layout, big endian, after KIP-98 and org.apache.kafka.common.record.DefaultRecordBatch:

    position  size  field
           0     8  base offset             set by the leader, outside the CRC
           8     4  batch length            bytes after this field
          12     4  partition leader epoch  set by the leader, outside the CRC
          16     1  magic                   2
          17     4  CRC                     CRC-32C of everything from `attributes` on
          21     2  attributes              0-2 compression, 3 timestamp type, 4 transactional,
                                            5 control, 6 delete horizon
          23     4  last offset delta       last offset minus base offset
          27     8  base timestamp          ms
          35     8  max timestamp           ms
          43     8  producer id             -1 = none
          51     2  producer epoch
          53     4  base sequence
          57     4  record count
          61     …  records, compressed as one block

The leader's two fields precede the CRC so that a leader can stamp a batch without reading the
records. So the CRC does not protect these fields. See DESIGN.md for their protection.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from raftlog.record.compression import Compression
from raftlog.record.errors import MALFORMED_BATCH, LogError
from raftlog.record.types import (
    NO_PRODUCER_ID,
    Buffer,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
)

HEADER_SIZE: Final = 61
PREFIX_SIZE: Final = 16
"""Bytes replaced by a leader (base offset, batch length, partition leader epoch)."""
LENGTH_END: Final = 12
"""Position of the first byte counted by `batch_length`."""
CRC_POSITION: Final = 17
CRC_START: Final = 21
"""Position of the first byte covered by the CRC."""
BATCH_LENGTH_MIN: Final = HEADER_SIZE - LENGTH_END
BATCH_LENGTH_MAX: Final = 2**31 - 1
MAGIC: Final = 2

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40
"""Attribute of KIP-534. The base timestamp is the time from which the batch's tombstones may go."""
KNOWN_ATTRIBUTES: Final = 0x7F

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
PREFIX: Final = struct.Struct(">qii")
assert HEADER.size == HEADER_SIZE
assert PREFIX.size == PREFIX_SIZE


class BatchHeader(NamedTuple):
    """The fields of a batch header, in their order on the wire."""

    base_offset: Offset
    batch_length: int
    partition_leader_epoch: LeaderEpoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, header included."""
        return LENGTH_END + self.batch_length

    @property
    def last_offset(self) -> Offset:
        """Offset of the last record. Compaction may have removed the record, never the offset."""
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        """The first offset after the batch."""
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def compression(self) -> Compression:
        """The codec of the records. Raises LogError(MALFORMED_BATCH) for an unknown codec."""
        return Compression.from_id(self.attributes & COMPRESSION_MASK)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the batch is a transaction's commit or abort marker, not data for users."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_log_append_time(self) -> bool:
        """Whether `max_timestamp_ms` is the leader's time and every record's timestamp."""
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def lacks_max_timestamp(self) -> bool:
        """Whether the max timestamp is no record's. Some producers leave it at -1."""
        return self.max_timestamp_ms < self.base_timestamp_ms

    @property
    def is_idempotent(self) -> bool:
        """Whether producer id, epoch and sequence identify the batch."""
        return self.producer_id != NO_PRODUCER_ID


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at `position`. The records need not be there, nor is the CRC checked.

    Raises LogError(MALFORMED_BATCH) for fewer than 61 bytes, or for an impossible header, which has
    another magic, a length under its own header's, negative counts or unknown bits.
    """
    if len(buffer) - position < HEADER_SIZE:
        raise LogError(
            MALFORMED_BATCH,
            f"Only {max(len(buffer) - position, 0)} bytes left where a record batch header "
            f"of {HEADER_SIZE} should be.",
        )
    header = BatchHeader._make(HEADER.unpack_from(buffer, position))
    # One test covers the healthy case, since this runs for every batch on every path.
    if (
        header.magic != MAGIC
        or header.batch_length < BATCH_LENGTH_MIN
        or header.base_offset < 0
        or header.last_offset_delta < 0
        or header.record_count < 0
        or header.attributes & ~KNOWN_ATTRIBUTES
    ):
        raise LogError(MALFORMED_BATCH, _absurdity(header))
    return header


def _absurdity(header: BatchHeader) -> str:
    """Return the reason why a header is impossible."""
    if header.magic != MAGIC:
        return f"Record batch has magic {header.magic}; only magic {MAGIC} is supported."
    if header.batch_length < BATCH_LENGTH_MIN:
        return f"Record batch claims a length of {header.batch_length}, less than its header."
    if header.base_offset < 0:
        return f"Record batch has base offset {header.base_offset}."
    if header.last_offset_delta < 0:
        return f"Record batch has last offset delta {header.last_offset_delta}."
    if header.record_count < 0:
        return f"Record batch claims {header.record_count} records."
    return f"Record batch has unknown attributes {header.attributes & 0xFFFF:#06x}."
