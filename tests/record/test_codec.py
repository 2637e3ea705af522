from __future__ import annotations

import itertools
import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.record.batch import RecordBatch, iterate_batches, split_batches
from raftlog.record.codec import (
    BATCH_BYTES_MAX_DEFAULT,
    BatchBuilder,
    Record,
    RecordTuple,
    decode,
    decompress_batch,
    with_max_timestamp,
)
from raftlog.record.compression import Compression, compress
from raftlog.record.errors import (
    CORRUPT_BATCH,
    INVALID_BODY,
    MALFORMED_BATCH,
    RECORD_TOO_LARGE,
    LogError,
)
from raftlog.record.header import parse_header
from raftlog.record.types import Offset, ProducerEpoch, ProducerId
from tests.examples import examples
from tests.record.batches import (
    BATCH_BYTES_MAX,
    COMPRESSIONS,
    DECOMPRESSED_BYTES_MAX,
    SAMPLE,
    batch,
    encoded,
    records,
    resealed,
    validate_records,
    with_body,
    with_field,
)
from tests.record.wire import encode_batches

each_codec = pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda codec: codec.label)


def decoded(data: bytes | bytearray, **options: Any) -> list[Record]:
    [only] = iterate_batches(data)
    return list(decode(only, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX, **options))


def rows_of(found: list[Record]) -> list[RecordTuple]:
    return [(each.timestamp, each.key, each.value, each.headers or None) for each in found]


def refusal(data: bytes, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> LogError:
    [only] = iterate_batches(data)
    with pytest.raises(LogError) as raised:
        decode(only, decompressed_bytes_max=decompressed_bytes_max)
    return raised.value


class TestRoundTrip:
    @each_codec
    @settings(max_examples=examples(60))
    @given(rows=records)
    def test_records_come_back_as_they_went_in(
        self, compression: Compression, rows: list[RecordTuple]
    ) -> None:
        data = encoded(rows, compression)
        found = decoded(data, check_crc=True)
        assert rows_of(found) == rows
        assert [each.offset for each in found] == list(range(len(rows)))
        header = parse_header(data)
        assert header.record_count == len(rows)
        assert header.max_timestamp_ms == max(row[0] or 0 for row in rows)
        assert header.base_timestamp_ms == rows[0][0]

    @each_codec
    @settings(max_examples=examples(30))
    @given(rows=records)
    def test_what_is_built_passes_the_nodes_checks(
        self, compression: Compression, rows: list[RecordTuple]
    ) -> None:
        [only] = split_batches(encoded(rows, compression), max_message_bytes=BATCH_BYTES_MAX)
        validate_records(only, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)

    @each_codec
    def test_large_records_and_headers(self, compression: Compression) -> None:
        headers: list[tuple[str, bytes | None]] = [(f"h{i}", bytes(1000)) for i in range(500)]
        rows: list[RecordTuple] = [(5, b"k" * 100_000, bytes(3_000_000), headers)]
        assert rows_of(decoded(encoded(rows, compression))) == rows

    def test_null_is_not_empty(self) -> None:
        found = decoded(encoded([(1, None, b"", [("a", None), ("a", b"")]), (1, b"", None, None)]))
        assert [(each.key, each.value) for each in found] == [(None, b""), (b"", None)]
        assert found[0].headers == [("a", None), ("a", b"")]
        assert found[1].headers == []

    def test_timestamps_may_go_back_within_a_batch(self) -> None:
        times = [2**40, 0, 2**62, 5, 2**63 - 1]
        found = decoded(encoded([(each, None, None, None) for each in times]))
        assert [each.timestamp for each in found] == times
        assert {each.timestamp_type for each in found} == {0}

    def test_bytes_may_be_any_buffer(self) -> None:
        builder = BatchBuilder()
        assert builder.append(1, bytearray(b"k"), memoryview(b"value")[1:])
        assert rows_of(decoded(builder.build())) == [(1, b"k", b"alue", None)]

    def test_offsets_follow_the_stamped_header(self) -> None:
        sent = batch()
        stamped = RecordBatch(sent.header._replace(base_offset=Offset(2**40)), sent.data)
        found = decode(stamped, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
        assert [each.offset for each in found] == [2**40 + i for i in range(len(SAMPLE))]


class TestBuilder:
    def test_without_a_timestamp_the_client_says_now(self) -> None:
        before_ms = time.time_ns() // 1_000_000
        [found] = decoded(encoded([(None, None, b"v", None)]))
        assert found.timestamp is not None
        assert before_ms <= found.timestamp <= time.time_ns() // 1_000_000 + 1

    @pytest.mark.parametrize("timestamp_ms", [-1, -(2**63), -(2**70), 2**63, 2**70])
    def test_impossible_timestamps_are_refused(self, timestamp_ms: int) -> None:
        builder = BatchBuilder()
        builder.append(7, None, b"before")
        with pytest.raises(LogError, match=str(timestamp_ms)) as raised:
            builder.append(timestamp_ms, None, b"v")
        assert raised.value.entry is INVALID_BODY
        with pytest.raises(LogError, match=str(timestamp_ms)):
            builder.append_many([(timestamp_ms, None, b"v", None)])
        assert builder.append(8, None, b"after")
        assert rows_of(decoded(builder.build())) == [
            (7, None, b"before", None),
            (8, None, b"after", None),
        ]

    @pytest.mark.parametrize(
        ("key", "value", "headers"),
        [
            ("text", b"", None),
            (b"", "text", None),
            (1, None, None),
            (None, None, [(b"key", b"")]),
            (None, None, [("key", "text")]),
            (None, None, [("key",)]),
            (None, None, ["key"]),
            (None, None, [(None, b"")]),
            (None, None, (("key", b"v"),)),
            (None, None, [("\ud800", b"v")]),
        ],
    )
    def test_wrong_types_leave_the_batch_as_it_was(
        self, key: Any, value: Any, headers: Any
    ) -> None:
        builder = BatchBuilder()
        builder.append(1, b"k", b"before")
        size = builder.size_bytes
        with pytest.raises((TypeError, ValueError, AttributeError)):
            builder.append(1, key, value, headers)
        assert (builder.record_count, builder.size_bytes) == (1, size)
        assert builder.append(2, b"k", b"after")
        assert [each.value for each in decoded(builder.build())] == [b"before", b"after"]

    def test_limit_is_inclusive_and_exact(self) -> None:
        size = len(encoded(SAMPLE))
        exact = BatchBuilder(size_bytes_max=size)
        assert exact.append_many(SAMPLE) is None
        assert exact.size_bytes == size == len(exact.build())
        tight = BatchBuilder(size_bytes_max=size - 1)
        assert tight.append_many(SAMPLE) == SAMPLE[-1]
        assert not tight.append(*SAMPLE[-1]), "it still does not fit"
        assert tight.record_count == len(SAMPLE) - 1
        assert rows_of(decoded(tight.build())) == SAMPLE[:-1]

    def test_first_record_always_fits(self) -> None:
        builder = BatchBuilder(size_bytes_max=100)
        assert builder.append(1, None, bytes(1000))
        assert not builder.append(1, None, b"")
        with pytest.raises(LogError) as raised:
            split_batches(builder.build(), max_message_bytes=100)
        assert raised.value.entry is RECORD_TOO_LARGE

    def test_default_limit_is_what_a_topic_takes_by_default(self) -> None:
        builder = BatchBuilder()
        row: RecordTuple = (1, None, bytes(1000), None)
        assert builder.append_many(itertools.repeat(row)) is row
        data = builder.build()
        assert BATCH_BYTES_MAX_DEFAULT - 1100 < len(data) <= BATCH_BYTES_MAX_DEFAULT
        assert split_batches(data, max_message_bytes=BATCH_BYTES_MAX_DEFAULT)

    def test_append_many_takes_from_an_iterator_only_what_it_says(self) -> None:
        rows = iter([(1, None, bytes(60), None)] * 5)
        builder = BatchBuilder(size_bytes_max=250)
        assert builder.append_many(rows) is not None
        assert builder.record_count == 2
        assert len(list(rows)) == 2

    def test_producer_identity_is_in_the_header(self) -> None:
        builder = BatchBuilder(
            producer_id=ProducerId(2**40),
            producer_epoch=ProducerEpoch(7),
            base_sequence=9,
            transactional=True,
        )
        builder.append(1, None, b"v")
        header = parse_header(builder.build())
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 7, 9)
        assert header.is_transactional
        assert (header.base_offset, header.partition_leader_epoch) == (0, -1)

    def test_producer_identity_may_be_set_last(self) -> None:
        builder = BatchBuilder(Compression.ZSTD)
        builder.append(1, None, bytes(500))
        builder.set_producer_state(ProducerId(5), ProducerEpoch(0), 70)
        [only] = split_batches(builder.build(), max_message_bytes=BATCH_BYTES_MAX)
        assert only.header[9:12] == (5, 0, 70)

    @each_codec
    def test_building_twice_gives_the_same(self, compression: Compression) -> None:
        builder = BatchBuilder(compression)
        builder.append_many(SAMPLE * 10)
        assert builder.build() is builder.build()

    def test_a_built_batch_takes_no_more(self) -> None:
        builder = BatchBuilder()
        builder.append(*SAMPLE[0])
        data = bytes(builder.build())
        with pytest.raises(AssertionError):
            builder.append(*SAMPLE[1])
        with pytest.raises(AssertionError):
            builder.append_many(SAMPLE)
        with pytest.raises(AssertionError):
            builder.set_producer_state(ProducerId(1), ProducerEpoch(1), 1)
        assert builder.build() == data

    def test_an_empty_batch_cannot_be_built(self) -> None:
        with pytest.raises(AssertionError):
            BatchBuilder().build()

    @each_codec
    def test_compression_that_does_not_pay_is_left_out(self, compression: Compression) -> None:
        short = encoded([(1, None, b"x", None)], compression)
        assert parse_header(short).compression is Compression.NONE
        long = encoded([(1, None, b"x" * 1000, None)], compression)
        assert parse_header(long).compression is compression


class TestEncodeBatches:
    def test_none_for_none(self) -> None:
        assert list(encode_batches([])) == []

    @each_codec
    @settings(max_examples=examples(30))
    @given(rows=records, size_bytes_max=st.integers(62, 2000))
    def test_every_record_once_in_order_within_the_limit(
        self, compression: Compression, rows: list[RecordTuple], size_bytes_max: int
    ) -> None:
        batches = list(
            encode_batches(iter(rows), compression=compression, size_bytes_max=size_bytes_max)
        )
        found = [decoded(each.data) for each in batches]
        assert [row for part in found for row in rows_of(part)] == rows
        for each, part in zip(batches, found, strict=True):
            assert each.record_count == len(part)
            assert len(each.data) <= size_bytes_max or each.record_count == 1


class TestDecode:
    def test_control_batches_are_not_for_users(self) -> None:
        identity = {"producer_id": ProducerId(1), "producer_epoch": ProducerEpoch(0)}
        marker = with_field(encoded([(1, b"\0\0\0\1", b"", None)], **identity), 21, ">h", 0x30)
        assert decoded(marker) == []
        [found] = decoded(marker, include_control=True)
        assert found.key == b"\0\0\0\1"

    def test_log_append_time_overrides_the_records_own(self) -> None:
        data = with_field(with_field(encoded(), 21, ">h", 0x08), 35, ">q", 77)
        found = decoded(data)
        assert {each.timestamp for each in found} == {77}
        assert {each.timestamp_type for each in found} == {1}

    def test_producers_without_timestamps(self) -> None:
        data = with_field(with_field(encoded([(0, None, b"v", None)]), 27, ">q", -1), 35, ">q", -1)
        assert split_batches(data, max_message_bytes=BATCH_BYTES_MAX)
        assert decoded(data)[0].timestamp == -1

    def test_crc_is_checked_on_request(self) -> None:
        data = bytearray(encoded([(1, None, b"value", None)]))
        data[-2] ^= 1
        [damaged] = iterate_batches(data, check_crc=False)
        assert decode(damaged, decompressed_bytes_max=1000)[0].value != b"value"
        with pytest.raises(LogError, match="CRC") as raised:
            decode(damaged, decompressed_bytes_max=1000, check_crc=True)
        assert raised.value.entry is CORRUPT_BATCH

    @each_codec
    def test_decompressed_size_is_bounded(self, compression: Compression) -> None:
        data = encoded([(1, None, bytes(100_000), None)], compression)
        assert refusal(data, 99_999).entry is RECORD_TOO_LARGE

    @each_codec
    def test_a_body_cut_anywhere_is_refused(self, compression: Compression) -> None:
        data = encoded(SAMPLE, compression)
        plain = encoded(SAMPLE)[61:]
        for size in range(len(plain)):
            body = bytes(compress(compression, plain[:size])) if size else b""
            assert refusal(with_body(data, body)).entry is MALFORMED_BATCH

    def test_a_last_offset_that_disagrees_with_the_header_is_refused(self) -> None:
        data = bytearray(encoded([(0, None, b"v", None)] * 3))
        third = 61 + (len(data) - 61) // 3 * 2
        assert data[third + 3] == 4, "offset delta 2"
        data[third + 3] = 2
        assert "offsets 0 to 1, its header 0 to 2" in refusal(resealed(data)).message

    @each_codec
    @pytest.mark.parametrize("count", [1, 3, 5, 40, 2**31 - 1])
    def test_a_count_that_disagrees_with_the_body_is_refused(
        self, compression: Compression, count: int
    ) -> None:
        data = with_field(encoded(SAMPLE, compression), 57, ">i", count)
        assert refusal(data).entry is MALFORMED_BATCH
        # The same false count, consistently.
        data = with_field(data, 23, ">i", count - 1)
        assert refusal(data).entry is MALFORMED_BATCH

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            # length, attributes, timestamp delta, offset delta, key, value, header count …
            ("0c 00 00 00 01 01 02", "cut off in its header"),
            ("0e 00 00 00 01 01 00", "length one too many"),
            ("0a 00 00 00 01 01 00", "length one too few"),
            ("0c 00 00 02 01 01 00", "offset delta 1 in the first record"),
            ("0c 00 00 01 01 01 00", "offset delta -1"),
            ("0c 00 00 00 7e 01 00", "key over the end"),
            ("0c 00 00 00 01 7e 00", "value over the end"),
            ("0c 00 00 00 01 01 01", "header count -1"),
            ("10 00 00 00 01 01 02 01 01", "header key length -1"),
            ("12 00 00 00 01 01 02 02 ff 01", "header key not UTF-8"),
            ("80 80 80 80 80 80 80 80 80 80 80 80", "varint without end"),
            ("ff ff ff ff ff ff ff ff ff 01 00 00", "length of 63 bits"),
            ("1e 00 00 00 fe ff ff ff ff ff ff ff ff 01 01 00", "key of 63 bits"),
            ("1e 00 00 00 80 ff ff ff ff ff ff ff ff 01 01 00", "key of nearly 63 bits"),
            ("1e 00 00 00 01 01 fe ff ff ff ff ff ff ff ff 01", "63 bits of headers"),
        ],
        ids=lambda value: value if " " in value and not value[0].isdigit() else "",
    )
    @each_codec
    def test_malformed_records_are_refused(
        self, compression: Compression, body: str, reason: str
    ) -> None:
        data = encoded([(0, None, b"x" * 100, None)], compression)
        packed = bytes(compress(compression, bytes.fromhex(body)))
        error = refusal(with_body(data, packed))
        assert error.entry is MALFORMED_BATCH, reason
        assert "offset 0" in error.message

    def test_a_varint_at_the_very_end_does_not_read_what_follows(self) -> None:
        # The compiled decoder would read past the end of its buffer to finish the number. Here the
        # next bytes would finish the number well, so only a bound on the buffer detects the fault.
        whole = encoded([(0, None, b"x" * 70, None)])
        body = whole[61:]
        assert body[6] == 0x8C
        assert body[7] == 0x01, "the value's length takes two bytes"
        for cut in (2, 7):
            data = with_body(whole, body[:cut])
            [only] = iterate_batches(data)
            view = RecordBatch(only.header, memoryview(data + body[cut:])[: len(data)])
            with pytest.raises(LogError) as raised:
                decode(view, decompressed_bytes_max=1000)
            assert raised.value.entry is MALFORMED_BATCH

    @each_codec
    def test_the_decoder_has_room_behind_the_records(self, compression: Compression) -> None:
        # Reading past the end shows only as a crash, and only when memory ends there too.
        view = decompress_batch(
            batch(SAMPLE, compression), decompressed_bytes_max=DECOMPRESSED_BYTES_MAX
        )
        assert isinstance(view.obj, bytes)
        assert view.obj[view.nbytes :] == bytes(64)

    @each_codec
    @settings(max_examples=examples(150))
    @given(
        edits=st.lists(
            st.tuples(st.integers(0, 400), st.integers(0, 3), st.binary(min_size=1, max_size=12)),
            min_size=1,
            max_size=4,
        )
    )
    def test_mutated_bodies_raise_nothing_but_typed_errors(
        self, compression: Compression, edits: list[tuple[int, int, bytes]]
    ) -> None:
        plain = bytearray(encoded(SAMPLE)[61:])
        for position, removed, inserted in edits:
            at = position % (len(plain) + 1)
            plain[at : at + removed] = inserted
        data = with_body(encoded(SAMPLE, compression), bytes(compress(compression, plain)))
        try:
            found = decoded(data)
        except LogError as error:
            assert error.entry is MALFORMED_BATCH
        else:
            assert len(found) == len(SAMPLE)

    @settings(max_examples=examples(200))
    @given(body=st.binary(min_size=28, max_size=200))
    def test_noise_raises_nothing_but_typed_errors(self, body: bytes) -> None:
        try:
            decoded(with_body(encoded(SAMPLE), body))
        except LogError as error:
            assert error.entry is MALFORMED_BATCH


class TestCompactedBatches:
    """Compaction removes records, but never moves the others, nor the header's offsets."""

    @staticmethod
    def compacted(kept: range, *, first: int, last: int) -> bytes:
        """A batch of offsets 0 to `last`, with only `kept` left."""
        from aiokafka.record.default_records import DefaultRecordBatchBuilder

        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 10**6)
        for offset in kept:
            builder.append(offset, 5, None, b"v", [])
        return with_field(bytes(builder.build()), 23, ">i", last)

    def test_records_may_miss_anywhere(self) -> None:
        data = self.compacted(range(2, 9, 3), first=2, last=11)
        assert [each.offset for each in decoded(data)] == [2, 5, 8]

    def test_all_records_may_miss(self) -> None:
        data = with_body(with_field(encoded(SAMPLE), 57, ">i", 0), b"")
        assert decoded(data) == []

    def test_offsets_outside_the_header_are_refused(self) -> None:
        data = self.compacted(range(2, 9, 3), first=2, last=7)
        assert "offsets 2 to 8" in refusal(data).message


class TestValidateRecords:
    def test_finds_offsets_that_do_not_count_up(self) -> None:
        data = bytearray(encoded([(0, None, b"v", None)] * 3))
        # Record 1 claims offset delta 2 (zigzag 4), which first and last record do not betray.
        second = 61 + (len(data) - 61) // 3
        assert data[second + 3] == 2
        data[second + 3] = 4
        [only] = split_batches(resealed(data), max_message_bytes=BATCH_BYTES_MAX)
        assert len(decode(only, decompressed_bytes_max=1000)) == 3
        with pytest.raises(AssertionError):
            validate_records(only, decompressed_bytes_max=1000)


@each_codec
@pytest.mark.parametrize("stated_ms", [-1, 0, 999])
def test_a_missing_max_timestamp_is_that_of_the_newest_record(
    compression: Compression, stated_ms: int
) -> None:
    rows: list[RecordTuple] = [(time_ms, None, bytes(100), None) for time_ms in (1000, 1005, 900)]
    data = encoded(rows, compression)
    [lacking] = split_batches(
        with_field(data, 35, ">q", stated_ms), max_message_bytes=BATCH_BYTES_MAX
    )
    assert lacking.header.lacks_max_timestamp
    made = with_max_timestamp(lacking, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    assert bytes(made.data) == data
    assert made.header == parse_header(data)
    assert with_max_timestamp(made, decompressed_bytes_max=1) is made
    with pytest.raises(LogError) as raised:
        with_max_timestamp(lacking, decompressed_bytes_max=10)
    assert raised.value.entry is RECORD_TOO_LARGE


def test_a_missing_max_timestamp_of_records_that_cannot_be_read_is_refused() -> None:
    sent = with_body(with_field(encoded(), 35, ">q", -1), b"\xff" * 200)
    [lacking] = split_batches(sent, max_message_bytes=BATCH_BYTES_MAX)
    with pytest.raises(LogError) as raised:
        with_max_timestamp(lacking, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    assert raised.value.entry is MALFORMED_BATCH


def test_types_and_errors_do_not_load_the_codec() -> None:
    # Commands without records should start fast and stay small.
    code = (
        "import sys, raftlog.record.types, raftlog.record.errors, raftlog.record.frames\n"
        "assert not {'aiokafka', 'cramjam', 'crc32c'} & set(sys.modules)\n"
        "import raftlog.record.batch\n"
        "assert 'aiokafka' not in sys.modules\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert run.returncode == 0, run.stderr.decode()
