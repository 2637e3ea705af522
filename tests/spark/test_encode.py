from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raftlog_spark.codec import encode as encoding
from raftlog_spark.codec.decode import TIMESTAMP_MS_MAX
from raftlog_spark.codec.encode import EncodedBatch, EncodeError, encode
from raftlog_spark.codec.records import TYPES

from raftlog.record.batch import split_batches
from raftlog.record.codec import RecordTuple
from raftlog.record.header import parse_header
from tests.examples import examples
from tests.record.batches import DECOMPRESSED_BYTES_MAX, SAMPLE, validate_records
from tests.record.wire import encode_batches
from tests.spark.raw import read, reference, rows

NOW_MS = 1_700_000_000_000

spark_rows = rows.map(
    lambda records: [(min(time_ms, TIMESTAMP_MS_MAX), *rest) for time_ms, *rest in records]
)
"""Records as Spark may have them, within its years."""


def table(records: list[RecordTuple], **types: pa.DataType) -> pa.RecordBatch:
    """Rows with all four columns."""
    times, keys, values, headers = zip(*records, strict=True) if records else ((), (), (), ())
    columns = {
        "key": pa.array(keys, types.get("key", pa.binary())),
        "value": pa.array(values, types.get("value", pa.binary())),
        "timestamp": pa.array(times, pa.timestamp("ms")),
        "headers": pa.array(
            [
                None if each is None else [{"key": key, "value": value} for key, value in each]
                for each in headers
            ],
            TYPES["headers"],
        ),
    }
    return pa.RecordBatch.from_pydict(columns)


def encoded(batch: pa.RecordBatch, batch_bytes: int = 2**20) -> list[EncodedBatch]:
    return list(encode(batch, batch_bytes=batch_bytes, now_ms=NOW_MS))


def rows_of(batches: list[EncodedBatch]) -> list[RecordTuple]:
    """The records in batches that a node would accept, according to raftlog.record."""
    found: list[RecordTuple] = []
    for data, count in batches:
        [batch] = split_batches(data, max_message_bytes=2**31, allow_transactional=True)
        validate_records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
        assert batch.header.record_count == count
        for row in reference(bytes(data)):
            headers = row["headers"] and [(each["key"], each["value"]) for each in row["headers"]]
            found.append((row["timestamp"] // 1000, row["key"], row["value"], headers))
    return found


class TestRoundTrip:
    @settings(max_examples=examples(60))
    @given(records=spark_rows, batch_bytes=st.integers(100, 5000))
    def test_raftlog_record_reads_what_went_in(
        self, records: list[RecordTuple], batch_bytes: int
    ) -> None:
        assert rows_of(encoded(table(records), batch_bytes)) == records

    @settings(max_examples=examples(60))
    @given(records=spark_rows)
    def test_what_is_encoded_is_decoded(self, records: list[RecordTuple]) -> None:
        [(data, _)] = encoded(table(records))
        found = [
            (
                row["timestamp"] // 1000,
                row["key"],
                row["value"],
                row["headers"] and [(each["key"], each["value"]) for each in row["headers"]],
            )
            for row in read(bytes(data))
        ]
        assert found == records

    @settings(max_examples=examples(100))
    @given(records=spark_rows)
    def test_one_batch_has_the_bytes_of_raftlog_records(self, records: list[RecordTuple]) -> None:
        [theirs] = encode_batches(records)
        assert encoded(table(records)) == [EncodedBatch(bytearray(theirs.data), len(records))]

    def test_many_records_of_many_sizes(self) -> None:
        chance = random.Random(3)
        records: list[RecordTuple] = [
            (
                NOW_MS + chance.randrange(100_000),
                chance.choice([None, b"", chance.randbytes(9), chance.randbytes(90)]),
                chance.choice([None, bytes(30), chance.randbytes(chance.randrange(9000))]),
                chance.choice([None, None, [("a", None), ("b", chance.randbytes(70))]]),
            )
            for _ in range(20_000)
        ]
        batches = encoded(table(records), 100_000)
        assert rows_of(batches) == records
        assert all(len(batch.data) <= 100_000 for batch in batches)
        assert min(len(batch.data) for batch in batches[:-1]) > 85_000

    @given(records=spark_rows, first=st.integers(0, 30), count=st.integers(0, 30))
    def test_slices_of_arrow_arrays_are_their_own_rows(
        self, records: list[RecordTuple], first: int, count: int
    ) -> None:
        part = table(records).slice(first, count)
        assert rows_of(encoded(part)) == records[first : first + count]


class TestColumns:
    def test_value_alone(self) -> None:
        batch = pa.RecordBatch.from_pydict({"value": pa.array([b"a", None, b""], pa.binary())})
        assert rows_of(encoded(batch)) == [
            (NOW_MS, None, b"a", None),
            (NOW_MS, None, None, None),
            (NOW_MS, None, b"", None),
        ]

    @pytest.mark.parametrize(
        "kind",
        [pa.string(), pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view()],
        ids=str,
    )
    def test_strings_and_other_layouts(self, kind: pa.DataType) -> None:
        batch = pa.RecordBatch.from_pydict(
            {"key": pa.array(["é", None], kind), "value": pa.array([None, "long enough"], kind)}
        )
        found = [(key, value) for _, key, value, _ in rows_of(encoded(batch))]
        assert found == [("é".encode(), None), (None, b"long enough")]

    def test_rows_without_a_timestamp_have_the_time_given(self) -> None:
        times = pa.array([5_999, None], pa.timestamp("us"))
        batch = pa.RecordBatch.from_pydict({"value": pa.array([b"a", b"b"]), "timestamp": times})
        assert [row[0] for row in rows_of(encoded(batch))] == [5, NOW_MS]

    def test_bytes_behind_a_null_are_not_sent(self) -> None:
        full = pa.array([b"secret", b"open"])
        hidden = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), *full.buffers()[1:]])
        [(data, _)] = encoded(pa.RecordBatch.from_pydict({"key": hidden, "value": hidden}))
        assert b"secret" not in data
        assert [row[1:3] for row in rows_of([EncodedBatch(data, 2)])] == [
            (None, None),
            (b"open", b"open"),
        ]

    def test_no_rows_give_no_batch(self) -> None:
        assert encoded(table([])) == []

    @pytest.mark.parametrize(
        ("columns", "why"),
        [
            ({"key": pa.array([b"a"])}, "no column `value`"),
            ({"value": pa.array([1])}, "int64"),
            ({"value": pa.array([b"a"]), "headers": pa.array(["a"])}, "headers"),
            ({"value": pa.array([b"a"]), "headers": pa.array([[{"k": "a"}]])}, "headers"),
            (
                {"value": pa.array([b"a"]), "headers": pa.array([[(None, b"")]], TYPES["headers"])},
                "no key",
            ),
            ({"value": pa.array([b"a"]), "timestamp": pa.array([-1], pa.timestamp("ms"))}, "1970"),
        ],
    )
    def test_what_cannot_be_records_is_refused(self, columns: dict[str, Any], why: str) -> None:
        with pytest.raises(EncodeError, match=why):
            encoded(pa.RecordBatch.from_pydict(columns))


class TestBatches:
    def test_a_record_larger_than_a_batch_may_be_has_its_own(self) -> None:
        records: list[RecordTuple] = [
            (1, None, b"a", None), (1, None, bytes(5000), None), (1, None, b"b", None),
        ]  # fmt: skip
        batches = encoded(table(records), 200)
        assert [batch.records for batch in batches] == [1, 1, 1]

    def test_groups_of_batches_change_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        records: list[RecordTuple] = [(n, None, bytes(n % 50), None) for n in range(1000)]
        whole = encoded(table(records), 500)
        monkeypatch.setattr(encoding, "GROUP_BYTES", 1200)
        assert encoded(table(records), 500) == whole

    def test_without_a_producer_there_is_no_sequence(self) -> None:
        header = parse_header(encoded(table(SAMPLE))[0].data)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
