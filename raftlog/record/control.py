"""Transaction markers, the control batches that commit or abort a transaction (KIP-98).

Pure. A marker is a batch with the attributes TRANSACTIONAL and CONTROL, the producer's id and
epoch, no sequence, and one record, after Kafka's ControlRecordType and EndTransactionMarker:

    key    int16 version 0, int16 type: 0 abort, 1 commit
    value  int16 version 0, int32 epoch of the coordinator

Only the partition's leader writes markers, and never compressed. Each has 78 bytes, so a marker is
read without the record codec.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from raftlog.record.batch import RecordBatch, sealed
from raftlog.record.header import (
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from raftlog.record.types import (
    NO_SEQUENCE,
    Buffer,
    LeaderEpoch,
    Offset,
    PartitionId,
    ProducerEpoch,
    ProducerId,
)

_RECORD: Final = struct.Struct(">bbbbbhhbhib")
"""Length, attributes, timestamp delta, offset delta, key length, key (int16, int16), value length,
value (int16, int32), headers. The lengths are zigzag varints of one byte."""
_VERSION: Final = 0
_ABORT: Final = 0
_COMMIT: Final = 1
_PRELUDE: Final = (2 * (_RECORD.size - 1), 0, 0, 0, 2 * 4)
MARKER_SIZE: Final = HEADER_SIZE + _RECORD.size
"""Bytes of a marker."""


class Marker(NamedTuple):
    """The content of a marker. Producer id and epoch are in the header."""

    commit: bool
    """Whether the transaction is committed. Otherwise it is aborted."""
    coordinator_epoch: int
    """Leader epoch of the coordinator that decided. An older epoch is fenced."""
    is_epoch_next: bool = False
    """Whether its producer epoch is above that of all batches of its transaction (KIP-1228). Not
    stored: only a marker to be written has it."""
    coordinator: PartitionId | None = None
    """Partition of `__transaction_state` whose leader decided. None for an operator's marker, and
    for a coordinator of an older release. Not stored."""


def build_marker(
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    marker: Marker,
    *,
    timestamp_ms: int,
) -> RecordBatch:
    """A marker ready to be stamped by a leader."""
    data = bytearray(HEADER_SIZE)
    kind = _COMMIT if marker.commit else _ABORT
    data += _RECORD.pack(*_PRELUDE, _VERSION, kind, 2 * 6, _VERSION, marker.coordinator_epoch, 0)
    header = BatchHeader(
        base_offset=Offset(0),
        batch_length=len(data) - LENGTH_END,
        partition_leader_epoch=LeaderEpoch(-1),
        magic=MAGIC,
        crc=0,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        last_offset_delta=0,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        record_count=1,
    )
    return RecordBatch(sealed(data, header), memoryview(data).toreadonly())


def parse_marker(header: BatchHeader, data: Buffer) -> Marker | None:
    """Parse the marker in `data`, one whole batch with a checked CRC.

    Returns None for any other control batch, emptied by compaction or of an unknown kind.
    """
    if not header.is_control or header.size_bytes != MARKER_SIZE or header.record_count != 1:
        return None
    *prelude, key_version, kind, value_length, value_version, epoch, headers = _RECORD.unpack_from(
        data, HEADER_SIZE
    )
    if (*prelude, key_version, value_length, value_version, headers) != (
        *_PRELUDE,
        _VERSION,
        2 * 6,
        _VERSION,
        0,
    ) or kind not in {_ABORT, _COMMIT}:
        return None
    return Marker(kind == _COMMIT, epoch)
