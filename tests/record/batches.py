"""Batches for the tests of this package."""

from __future__ import annotations

import struct
from typing import Any

from crc32c import crc32c
from hypothesis import strategies as st

from raftlog.record.batch import RecordBatch, split_batches, stamp
from raftlog.record.codec import BatchBuilder, RecordTuple, decode
from raftlog.record.compression import Compression
from raftlog.record.header import PREFIX_SIZE
from raftlog.record.types import LeaderEpoch, Offset

BATCH_BYTES_MAX = 64 * 1024 * 1024
DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024

COMPRESSIONS = list(Compression)
SAMPLE: list[RecordTuple] = [
    (1_700_000_000_000, b"key-1", b"value one, value one, value one, value one", [("a", b"b")]),
    (1_700_000_000_007, None, b"", None),
    (1_699_999_999_000, b"", None, [("é", None), ("a", b""), ("a", b"again")]),
    (1_700_000_000_001, b"key-2", b"value one, value one, value one, value one", None),
]

records = st.lists(
    st.tuples(
        # Near each other as in life, and anywhere.
        st.integers(1_700_000_000_000, 1_700_000_100_000) | st.integers(0, 2**63 - 1),
        st.none() | st.binary(max_size=40),
        st.none() | st.binary(max_size=300) | st.binary(max_size=9).map(lambda part: part * 200),
        st.lists(
            st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=50)), max_size=4
        ).map(lambda headers: headers or None),
    ),
    min_size=1,
    max_size=30,
)


def encoded(
    rows: list[RecordTuple] | None = None,
    compression: Compression = Compression.NONE,
    **identity: Any,
) -> bytes:
    """One batch of all `rows`, as sent by a producer."""
    builder = BatchBuilder(compression, BATCH_BYTES_MAX, **identity)
    assert builder.append_many(SAMPLE if rows is None else rows) is None
    return bytes(builder.build())


def batch(
    rows: list[RecordTuple] | None = None, compression: Compression = Compression.NONE
) -> RecordBatch:
    """The same, split from the sent bytes."""
    [only] = split_batches(encoded(rows, compression), max_message_bytes=BATCH_BYTES_MAX)
    return only


def with_field(data: bytes, position: int, layout: str, value: int) -> bytes:
    """`data` with one header field set, and length and CRC made to fit: a liar, not an accident."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, position, value)
    return resealed(changed)


def with_body(data: bytes, body: bytes) -> bytes:
    """`data` with other bytes for its records, and length and CRC made to fit."""
    changed = bytearray(data[:61] + body)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    return resealed(changed)


def resealed(changed: bytearray) -> bytes:
    """The CRC made to fit."""
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def validate_records(batch: RecordBatch, *, decompressed_bytes_max: int) -> None:
    """Decode a batch, and check that offsets count up by one. Raises LogError as `decode` does."""
    records = decode(batch, decompressed_bytes_max=decompressed_bytes_max, include_control=True)
    base = batch.header.base_offset
    assert [record.offset for record in records] == list(range(base, base + len(records)))


def stamped(
    batch: RecordBatch, base_offset: Offset, leader_epoch: LeaderEpoch
) -> tuple[bytes, memoryview]:
    """The batch as a leader writes it: a new prefix, and a view of the unchanged rest."""
    prefix = stamp(batch.header, base_offset, leader_epoch)
    return prefix, memoryview(batch.data)[PREFIX_SIZE:]
