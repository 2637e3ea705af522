"""The same batches through other projects' codecs, in both directions.

kafka-python is pure Python, with compressions from python-snappy, lz4 and zstandard: nothing in
common with raftlog's codecs but the specifications. kio knows uncompressed batches only.
confluent-kafka offers no codec without a broker.
"""

from __future__ import annotations

import datetime
import io
import warnings
from types import ModuleType
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.record.batch import split_batches
from raftlog.record.codec import Record, RecordTuple, decode
from raftlog.record.compression import Compression
from tests.examples import examples
from tests.record.batches import (
    BATCH_BYTES_MAX,
    COMPRESSIONS,
    DECOMPRESSED_BYTES_MAX,
    SAMPLE,
    encoded,
    records,
    validate_records,
)

with warnings.catch_warnings():
    # kafka-python reads its schemas by a deprecated call.
    warnings.filterwarnings("ignore", "read_text is deprecated", DeprecationWarning)
    warnings.filterwarnings("ignore", "open_text is deprecated", DeprecationWarning)
    import kafka.record.default_records as kafka_records

    kafka_python: ModuleType = kafka_records

IDENTITY = (77, 3, 1000)
"""Producer id, epoch, base sequence."""

whole_seconds = st.lists(
    st.tuples(
        # kio's reader drops the milliseconds, and its timestamps are Python's.
        st.integers(1_600_000_000, 1_900_000_000).map(lambda seconds: seconds * 1000),
        st.none() | st.binary(max_size=40),
        st.none() | st.binary(max_size=200),
        st.none(),
    ),
    min_size=1,
    max_size=20,
)


def ours(data: bytes) -> list[Record]:
    """Records of a foreign batch, after all of the node's checks."""
    [only] = split_batches(data, max_message_bytes=BATCH_BYTES_MAX)
    validate_records(only, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    return list(decode(only, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX))


def rows_of(found: Any) -> list[RecordTuple]:
    return [(each.timestamp, each.key, each.value, list(each.headers) or None) for each in found]


def with_identity(rows: list[RecordTuple], compression: Compression) -> bytes:
    producer_id, producer_epoch, base_sequence = IDENTITY
    return encoded(
        rows,
        compression,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def build(builder_class: Any, rows: list[RecordTuple], compression: Compression) -> bytes:
    """A batch by kafka-python's or aiokafka's builder, which have one shape."""
    builder = builder_class(2, int(compression), False, *IDENTITY, 10**7)
    for offset, (timestamp, key, value, headers) in enumerate(rows):
        assert builder.append(offset, timestamp, key, value, headers or []) is not None
    return bytes(builder.build())


class TestKafkaPython:
    @pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda codec: codec.label)
    @settings(max_examples=examples(40))
    @given(rows=records)
    def test_reads_what_we_write(self, compression: Compression, rows: list[RecordTuple]) -> None:
        batch = kafka_python.DefaultRecordBatch(with_identity(rows, compression))
        assert batch.validate_crc()
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == IDENTITY
        assert rows_of(batch) == rows

    @pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda codec: codec.label)
    @settings(max_examples=examples(40))
    @given(rows=records)
    def test_writes_what_we_read(self, compression: Compression, rows: list[RecordTuple]) -> None:
        data = build(kafka_python.DefaultRecordBatchBuilder, rows, compression)
        assert rows_of(ours(data)) == rows

    def test_writes_the_same_bytes(self) -> None:
        theirs = build(kafka_python.DefaultRecordBatchBuilder, SAMPLE, Compression.NONE)
        data = with_identity(SAMPLE, Compression.NONE)
        # The leader epoch is the leader's to set; kafka-python leaves 0 there, Java and we -1.
        assert (theirs[:12], theirs[16:]) == (data[:12], data[16:])


class TestAiokafka:
    @pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda codec: codec.label)
    @settings(max_examples=examples(30))
    @given(rows=records)
    def test_reads_what_we_write(self, compression: Compression, rows: list[RecordTuple]) -> None:
        batch = DefaultRecordBatch(with_identity(rows, compression))
        assert batch.validate_crc()
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == IDENTITY
        assert rows_of(batch) == rows

    @pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda codec: codec.label)
    @settings(max_examples=examples(30))
    @given(rows=records)
    def test_writes_what_we_read(self, compression: Compression, rows: list[RecordTuple]) -> None:
        data = build(DefaultRecordBatchBuilder, rows, compression)
        assert rows_of(ours(data)) == rows


class TestKio:
    @settings(max_examples=examples(30))
    @given(rows=whole_seconds)
    def test_reads_what_we_write(self, rows: list[RecordTuple]) -> None:
        from kio.records.readers import read_batch

        data = with_identity(rows, Compression.NONE)
        batch, size = read_batch(data, 0)
        assert size == len(data)
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == IDENTITY
        assert [
            (int(each.timestamp.timestamp()) * 1000, each.key, each.value, None)
            for each in batch.records
        ] == rows

    @settings(max_examples=examples(30))
    @given(rows=whole_seconds)
    def test_writes_what_we_read(self, rows: list[RecordTuple]) -> None:
        from kio.records.schema import NewRecordBatch, RecordHeader
        from kio.records.schema import Record as KioRecord
        from kio.records.writers import write_new_batch
        from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

        producer_id, producer_epoch, base_sequence = IDENTITY
        batch = NewRecordBatch(
            producer_id=i64(producer_id),
            producer_epoch=i16(producer_epoch),
            base_sequence=i32(base_sequence),
            attributes=i16(0),
            records=tuple(
                KioRecord(
                    attributes=i8(0),
                    timestamp=TZAwareMicros.parse(
                        datetime.datetime.fromtimestamp((timestamp or 0) // 1000, datetime.UTC)
                    ),
                    offset=i64(offset),
                    key=key,
                    value=value,
                    headers=(RecordHeader(key=b"name", value=b"kio"),),
                )
                for offset, (timestamp, key, value, _) in enumerate(rows)
            ),
        )
        buffer = io.BytesIO()
        write_new_batch(buffer, batch)
        assert rows_of(ours(buffer.getvalue())) == [
            (timestamp, key, value, [("name", b"kio")]) for timestamp, key, value, _ in rows
        ]
