from __future__ import annotations

import pickle
import random
import tracemalloc
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raftlog_spark.codec import decode as decoding
from raftlog_spark.codec.decode import CorruptBatchError, decode
from raftlog_spark.codec.records import arrow_schema

from raftlog.record.codec import RecordTuple
from raftlog.record.compression import Compression
from raftlog.record.header import LOG_APPEND_TIME_BIT, parse_header
from tests.examples import examples
from tests.record.batches import COMPRESSIONS, SAMPLE, encoded, resealed, with_body, with_field
from tests.spark.raw import (
    ALL,
    EVERYTHING,
    Kind,
    lanes_everywhere,
    logs,
    raw_batch,
    raw_log,
    read,
    reference,
)

WHOLE = Kind(Compression.NONE, (0,), 0)
DAMAGED_BYTES_MAX = 1024 * 1024
"""More than any undamaged batch of `logs`. A damaged batch is tried up to this size."""
walks = pytest.mark.parametrize("walk", [nullcontext, lanes_everywhere], ids=["steps", "lanes"])
names = st.lists(st.sampled_from(ALL), unique=True, min_size=1).map(tuple)


def refusal(data: bytes, columns: tuple[str, ...] = ALL, **options: Any) -> str:
    with pytest.raises(CorruptBatchError) as raised:
        read(data, columns, **options)
    return str(raised.value)


class TestLikeTheClient:
    @walks
    @settings(max_examples=examples(150))
    @given(log=logs)
    def test_all_columns_are_as_raftlog_record_reads_them(self, walk: Any, log: Any) -> None:
        data = raw_log(log)
        with walk():
            assert read(data) == reference(data)

    @walks
    @settings(max_examples=examples(150))
    @given(log=logs, asked=names, bounds=st.tuples(st.integers(-5, 700), st.integers(-5, 700)))
    def test_a_projection_of_a_range_is_that_part(
        self, walk: Any, log: Any, asked: tuple[str, ...], bounds: tuple[int, int]
    ) -> None:
        data = raw_log(log)
        start, end = 1000 + bounds[0], 1000 + bounds[1]
        expected = [
            {name: row[name] for name in asked}
            for row in reference(data)
            if start <= row["offset"] < end
        ]
        with walk():
            assert read(data, asked, start, end) == expected

    @given(log=logs, unit=st.integers(1, 3000), piece=st.integers(1, 3000), rows=st.integers(1, 40))
    def test_sizes_of_units_and_slices_change_nothing(
        self, log: Any, unit: int, piece: int, rows: int
    ) -> None:
        data = raw_log(log)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decoding, "UNIT_BYTES", unit)
            patch.setattr(decoding, "SLICE_BYTES", piece)
            patch.setattr(decoding, "HEADER_ROWS", rows)
            assert read(data) == reference(data)
            offsets = [{"offset": row["offset"]} for row in reference(data)]
            assert read(data, ("offset",)) == offsets

    @pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda codec: codec.label)
    def test_many_records_of_many_sizes(self, compression: Compression) -> None:
        chance = random.Random(7)
        log = []
        for _ in range(5):
            records: list[RecordTuple] = [
                (
                    1_700_000_000_000 + chance.randrange(100_000),
                    chance.choice([None, b"", chance.randbytes(9), chance.randbytes(90)]),
                    chance.choice([None, bytes(30), chance.randbytes(chance.randrange(300))]),
                    chance.choice([None, None, [("a", None), ("b", b"c")]]),
                )
                for _ in range(3000)
            ]
            log.append((records, WHOLE._replace(compression=compression)))
        data = raw_log(log)
        assert read(data) == reference(data)

    def test_memoryviews_and_bytearrays_are_read(self) -> None:
        data = encoded(SAMPLE)
        assert read(memoryview(data)) == read(bytearray(data)) == read(data)  # type: ignore[arg-type]


class TestRecordBatches:
    def test_they_have_sparks_schema_in_the_order_asked(self) -> None:
        columns = ("timestamp", "headers", "key")
        [batch] = decode(encoded(SAMPLE), topic="t", partition=0, start=0, end=9, columns=columns)
        assert batch.schema == arrow_schema(columns)

    def test_nothing_in_range_gives_none(self) -> None:
        assert read(encoded(SAMPLE), start=4) == []
        assert read(b"") == []

    def test_a_range_within_a_compacted_gap_gives_none(self) -> None:
        data = raw_batch(SAMPLE, Kind(Compression.NONE, (10,), 0), 0)
        assert read(data, start=11, end=20) == []

    def test_a_large_batch_is_given_out_in_slices(self) -> None:
        data = encoded([(1, None, bytes(1_000_000), None)] * 10)
        batches = list(decode(data, topic="t", partition=0, start=0, end=10, columns=("value",)))
        assert [batch.num_rows for batch in batches] == [4, 4, 2]

    def test_small_batches_are_put_together(self) -> None:
        data = raw_log([(SAMPLE, WHOLE)] * 500)
        batches = decode(data, topic="t", partition=0, start=0, end=EVERYTHING, columns=ALL)
        assert [batch.num_rows for batch in batches] == [2000]

    def test_log_append_time_is_every_records_time(self) -> None:
        kind = WHOLE._replace(attributes=LOG_APPEND_TIME_BIT)
        data = raw_batch([(5, None, b"a", None), (9, None, b"b", None)], kind, 0)
        found = read(data, ("timestamp", "timestampType"))
        assert found == [{"timestamp": 9000, "timestampType": 1}] * 2

    def test_no_headers_are_null(self) -> None:
        found = read(encoded(SAMPLE), ("headers",))
        assert [row["headers"] is None for row in found] == [False, True, False, True]


class TestProjectionSavesWork:
    def test_offsets_alone_leave_records_alone(self) -> None:
        data = with_body(encoded([(1, None, bytes(500), None)] * 3), b"\xff" * 200)
        assert [row["offset"] for row in read(data, ("offset",))] == [0, 1, 2]
        assert "does not end" in refusal(data, ("value",))

    def test_compacted_batches_are_looked_into(self) -> None:
        data = raw_batch(SAMPLE, Kind(Compression.ZSTD, (1,), 0), 50)
        assert [row["offset"] for row in read(data, ("offset",))] == [51, 53, 55, 57]

    def test_batches_outside_of_the_range_are_not_looked_into(self) -> None:
        damaged = bytearray(encoded(SAMPLE))
        damaged[-1] ^= 1
        good = raw_batch(SAMPLE, WHOLE, 4)
        assert len(read(bytes(damaged) + good, start=4)) == 4


class TestDamage:
    def test_a_flipped_bit_is_found(self) -> None:
        data = bytearray(encoded(SAMPLE))
        data[100] ^= 4
        assert "CRC" in refusal(bytes(data))

    def test_good_batches_before_it_are_given_out(self) -> None:
        first = encoded([(1, None, bytes(4_000_000), None)])
        batches = decode(
            first + raw_batch(SAMPLE, WHOLE, 1)[:-1],
            topic="t", partition=0, start=0, end=9, columns=ALL,
        )  # fmt: skip
        assert next(batches).num_rows == 1
        with pytest.raises(CorruptBatchError, match="cut off"):
            next(batches)

    @pytest.mark.parametrize("size", [1, 60, 61, 100])
    def test_a_batch_that_is_cut_off(self, size: int) -> None:
        refusal(encoded(SAMPLE)[:size])

    @pytest.mark.parametrize("field", [(57, ">i"), (23, ">i")])
    @pytest.mark.parametrize("value", [0, 1, 2, 5, 1000, 2**31 - 1])
    @pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda codec: codec.label)
    def test_counts_that_lie(
        self, field: tuple[int, str], value: int, compression: Compression
    ) -> None:
        data = with_field(encoded(SAMPLE, compression), *field, value)
        if field == (57, ">i") and value == 0:
            assert read(data) == []
        elif field == (23, ">i") and value >= 5:
            # As after a compaction that removed the last records.
            assert len(read(data)) == 4
        else:
            refusal(data)
            refusal(data, ("value",))

    def test_a_batch_that_holds_too_much(self) -> None:
        data = encoded([(1, None, bytes(100_000), None)], Compression.GZIP)
        assert "more than 1000 bytes" in refusal(data, decompressed_bytes_max=1000)
        plain = encoded([(1, None, bytes(100_000), None)])
        assert "more than 1000 bytes" in refusal(plain, decompressed_bytes_max=1000)

    def test_many_batches_that_hold_much_are_decompressed_one_by_one(self) -> None:
        data = raw_log(
            [([(1, None, bytes(5_000_000), None)], WHOLE._replace(compression=Compression.ZSTD))]
            * 40
        )
        tracemalloc.start()
        for batch in decode(
            data, topic="t", partition=0, start=0, end=EVERYTHING, columns=("value",)
        ):
            assert batch.num_rows == 1
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 60_000_000

    def test_a_timestamp_out_of_sparks_years_is_null(self) -> None:
        # Nanoseconds, a number that microseconds cannot express, and the ends of Spark's years.
        times = (1_700_000_000_000_000_000, 2**62, 253_402_300_800_000, 253_402_300_799_999, 7)
        data = encoded([(time_ms, None, b"v", None) for time_ms in times])
        found = [row["timestamp"] for row in read(data, ("timestamp", "value"))]
        assert found == [None, None, None, 253_402_300_799_999_000, 7000]
        absurd = with_field(encoded([(5, None, b"v", None)]), 27, ">q", -(2**62))
        assert read(absurd, ("timestamp",)) == [{"timestamp": None}]
        appended = with_field(encoded(), 35, ">q", 2**62)
        appended = with_field(appended, 21, ">h", LOG_APPEND_TIME_BIT)
        assert {row["timestamp"] for row in read(appended)} == {None}

    @pytest.mark.parametrize("column", ["key", "value"])
    def test_a_length_that_reaches_into_the_next_record(self, column: str) -> None:
        data = encoded([(1, b"kk", b"vvvv", None), (1, b"kk", b"vvvv", None)])
        size = {"key": b"\x04kk", "value": b"\x08vvvv"}[column]
        body = data[61:].replace(size, b"\x1e" + size[1:], 1)
        assert "longer than its record" in refusal(with_body(data, body), (column,))

    def test_header_keys_that_are_not_utf8(self) -> None:
        data = encoded([(1, None, b"v", [("abc", b"d")])])
        body = data[61:].replace(b"abc", b"a\xffc")
        assert "UTF-8" in refusal(with_body(data, body))

    def test_millions_of_empty_headers_are_refused_before_they_cost_memory(self) -> None:
        count = 4_000_000
        head = bytes([0, 0, 0, 1, 1]) + _varint(2 * count)
        body = head + bytes(2 * count)
        data = with_body(encoded([(1, None, None, None)]), _varint(2 * len(body)) + body)
        assert "more than 10000 headers" in refusal(data)

    @walks
    @settings(max_examples=examples(300))
    @given(log=logs, seed=st.integers(0, 2**32), count=st.integers(1, 6), asked=names)
    def test_any_bytes_give_rows_or_the_typed_error(
        self, walk: Any, log: Any, seed: int, count: int, asked: tuple[str, ...]
    ) -> None:
        chance = random.Random(seed)
        data = b""
        for batch in _batches(raw_log(log)):
            changed = bytearray(batch)
            for _ in range(count):
                # Not the length, or most examples would be refused for it.
                changed[chance.randrange(21, len(changed))] = chance.choice(
                    [0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)]
                )
            data += resealed(changed)
        with walk(), suppress(CorruptBatchError):
            read(data, asked, decompressed_bytes_max=DAMAGED_BYTES_MAX)

    @walks
    @settings(max_examples=examples(200))
    @given(body=st.binary(max_size=200), claimed=st.integers(1, 30), asked=names)
    def test_any_body_gives_rows_or_the_typed_error(
        self, walk: Any, body: bytes, claimed: int, asked: tuple[str, ...]
    ) -> None:
        data = with_field(with_body(encoded(SAMPLE), body), 57, ">i", claimed)
        data = with_field(data, 23, ">i", claimed - 1)
        with walk(), suppress(CorruptBatchError):
            read(data, asked)

    def test_errors_name_topic_partition_and_offsets(self) -> None:
        data = with_body(raw_batch(SAMPLE, WHOLE, 500), bytes(80))
        assert "t-3: " in refusal(data)
        assert "500 to 503" in refusal(data)

    def test_errors_pickle_to_the_driver(self) -> None:
        error = pickle.loads(pickle.dumps(CorruptBatchError("why")))
        assert isinstance(error, ValueError)
        assert str(error) == "why"


def _varint(payload: int) -> bytes:
    parts = bytearray()
    while payload >= 0x80:
        parts.append(payload & 0x7F | 0x80)
        payload >>= 7
    parts.append(payload)
    return bytes(parts)


def _batches(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = parse_header(data).size_bytes
        found.append(data[:size])
        data = data[size:]
    return found
