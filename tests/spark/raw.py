"""Raw batches for the tests of the codec, and their content according to raftlog.record."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from aiokafka.record.default_records import (  # type: ignore[import-untyped]
    DefaultRecordBatchBuilder,
)
from hypothesis import strategies as st
from raftlog_spark.codec import records as parsing
from raftlog_spark.codec.decode import decode

from raftlog.record.batch import RecordBatch, iterate_batches
from raftlog.record.codec import RecordTuple
from raftlog.record.codec import decode as decode_batch
from raftlog.record.compression import Compression
from raftlog.record.header import (
    CONTROL_BIT,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    parse_header,
)
from tests.record.batches import DECOMPRESSED_BYTES_MAX, resealed

YEAR_10000_MS = 253_402_300_800_000
"""The end of Spark's timestamps."""
ALL = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
EVERYTHING = 2**62
TIMESTAMP_MS_MAX = 2**53
Row = dict[str, Any]

rows = st.lists(
    st.tuples(
        st.integers(1_700_000_000_000, 1_700_000_100_000) | st.integers(0, TIMESTAMP_MS_MAX),
        st.none() | st.binary(max_size=40),
        st.none() | st.binary(max_size=300) | st.binary(max_size=9).map(lambda part: part * 1500),
        st.lists(
            st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=70)), max_size=4
        ).map(lambda headers: headers or None),
    ),
    min_size=1,
    max_size=30,
)


class Kind(NamedTuple):
    """The fields of a batch besides its records."""

    compression: Compression
    gaps: tuple[int, ...]
    """Offsets missing before each record, and after the last; over and over."""
    attributes: int


kinds = st.builds(
    Kind,
    st.sampled_from(list(Compression)),
    st.just((0,)) | st.lists(st.integers(0, 100), min_size=1, max_size=9).map(tuple),
    st.sampled_from(
        [
            0,
            LOG_APPEND_TIME_BIT,
            TRANSACTIONAL_BIT,
            CONTROL_BIT | TRANSACTIONAL_BIT,
            LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT,
        ]
    ),
)
# A first batch, a last batch and a batch in between.
logs = st.lists(st.tuples(rows, kinds), min_size=1, max_size=3)


def raw_batch(records: list[RecordTuple], kind: Kind, base_offset: int) -> bytes:
    """A batch as stored by a node, perhaps after compaction, by aiokafka's builder."""
    builder = DefaultRecordBatchBuilder(2, int(kind.compression), False, 7, 0, 0, 2**30)
    offset = kind.gaps[0]
    for number, (timestamp, key, value, headers) in enumerate(records):
        builder.append(offset, timestamp, key, value, headers or [])
        offset += 1 + kind.gaps[(number + 1) % len(kind.gaps)]
    data = bytearray(builder.build())
    header = parse_header(data)
    struct.pack_into(">q", data, 0, base_offset)
    struct.pack_into(">h", data, 21, header.attributes | kind.attributes)
    struct.pack_into(">i", data, 23, offset - 1)
    return resealed(data)


def raw_log(log: list[tuple[list[RecordTuple], Kind]], base_offset: int = 1000) -> bytes:
    """Batches one after the other."""
    data = b""
    for records, kind in log:
        batch = raw_batch(records, kind, base_offset)
        base_offset = parse_header(batch).next_offset
        data += batch
    return data


def reference(data: bytes) -> list[Row]:
    """The rows according to raftlog.record."""
    return [row for batch in iterate_batches(data) for row in _reference_rows(batch)]


def _reference_rows(batch: RecordBatch) -> Iterator[Row]:
    for record in decode_batch(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
        yield {
            "key": record.key,
            "value": record.value,
            "topic": "t",
            "partition": 3,
            "offset": record.offset,
            "timestamp": record.timestamp * 1000 if record.timestamp < YEAR_10000_MS else None,
            "timestampType": record.timestamp_type,
            "headers": [{"key": k, "value": v} for k, v in record.headers] or None,
        }


def read(
    data: bytes,
    columns: tuple[str, ...] = ALL,
    start: int = 0,
    end: int = EVERYTHING,
    **options: Any,
) -> list[Row]:
    """The rows according to `decode`, with timestamps in microseconds."""
    found: list[Row] = []
    batches = decode(data, topic="t", partition=3, start=start, end=end, columns=columns, **options)
    for batch in batches:
        batch.validate(full=True)
        assert batch.num_rows
        arrays = {
            name: batch.column(name).cast(pa.int64()) if name == "timestamp" else batch.column(name)
            for name in batch.schema.names
        }
        lists = {name: array.to_pylist() for name, array in arrays.items()}
        found += [
            dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)
        ]
    return found


@contextmanager
def lanes_everywhere() -> Iterator[None]:
    """Small batches, too, are walked in lanes, of few records, and with bad guesses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "RECORDS_FEW", 0)
        patch.setattr(parsing, "RECORDS_PER_LANE", 2)
        patch.setattr(parsing, "GUESS_BYTES_MIN", 16)
        patch.setattr(parsing, "RECORD_BYTES_LARGE", 2**30)
        yield
