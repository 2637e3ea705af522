from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.record.batch import (
    BATCHES_MAX,
    check_batch,
    has_more_batches,
    iterate_batches,
    iterate_headers,
    split_batches,
    with_log_append_time,
)
from raftlog.record.codec import decode
from raftlog.record.compression import Compression
from raftlog.record.errors import (
    CORRUPT_BATCH,
    INVALID_BODY,
    MALFORMED_BATCH,
    RECORD_TOO_LARGE,
    LogError,
)
from raftlog.record.header import CRC_POSITION, PREFIX_SIZE, parse_header
from raftlog.record.types import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from tests.record.batches import (
    BATCH_BYTES_MAX,
    COMPRESSIONS,
    DECOMPRESSED_BYTES_MAX,
    SAMPLE,
    batch,
    encoded,
    stamped,
    with_body,
    with_field,
)

IDENTITY: dict[str, Any] = {
    "producer_id": ProducerId(9),
    "producer_epoch": ProducerEpoch(1),
    "base_sequence": 2**31 - 1,
}


def refusal(data: bytes, max_message_bytes: int = BATCH_BYTES_MAX) -> LogError:
    with pytest.raises(LogError) as raised:
        split_batches(data, max_message_bytes=max_message_bytes)
    return raised.value


class TestSplit:
    def test_gives_each_batch_as_a_view(self) -> None:
        first, second = encoded(), encoded(SAMPLE[:1], Compression.ZSTD, **IDENTITY)
        body = first + second
        batches = split_batches(body, max_message_bytes=BATCH_BYTES_MAX)
        assert [bytes(part.data) for part in batches] == [first, second]
        assert [part.header.record_count for part in batches] == [len(SAMPLE), 1]
        assert all(isinstance(part.data, memoryview) and part.data.obj is body for part in batches)

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_takes_any_buffer(self, kind: type) -> None:
        assert len(split_batches(kind(encoded() * 3), max_message_bytes=BATCH_BYTES_MAX)) == 3

    def test_refuses_more_batches_than_one_step_of_the_loop_may_take(self) -> None:
        least = encoded(SAMPLE[:1])
        assert len(split_batches(least * BATCHES_MAX, max_message_bytes=BATCH_BYTES_MAX)) > 1000
        assert refusal(least * (BATCHES_MAX + 1)).entry is INVALID_BODY

    @given(st.integers(0, 5), st.integers(1, 6))
    def test_the_number_of_batches_is_known_beforehand(self, more: int, count: int) -> None:
        body = encoded(SAMPLE[:1]) * count
        assert has_more_batches(body, more) is (count > more)

    @given(st.binary(max_size=300))
    def test_counting_the_batches_of_any_bytes_ends(self, data: bytes) -> None:
        has_more_batches(data, 3)

    def test_refuses_nothing_at_all(self) -> None:
        assert refusal(b"").entry is MALFORMED_BATCH

    def test_is_all_or_nothing(self) -> None:
        good = encoded()
        bad = bytearray(good)
        bad[-1] ^= 1
        error = refusal(good + good + bytes(bad))
        assert error.entry is CORRUPT_BATCH
        assert "batch 2" in error.message
        assert "CRC" in error.message

    def test_refuses_every_truncation(self) -> None:
        data = encoded()
        for size in range(1, len(data)):
            assert refusal(data[:size]).entry is MALFORMED_BATCH
            assert refusal(data + data[:size]).entry is MALFORMED_BATCH

    def test_limit_is_on_the_whole_batch(self) -> None:
        data = encoded()
        assert split_batches(data, max_message_bytes=len(data))
        error = refusal(data, len(data) - 1)
        assert error.entry is RECORD_TOO_LARGE
        assert str(len(data)) in error.message
        assert str(len(data) - 1) in error.message

    def test_limit_is_per_batch_not_per_request(self) -> None:
        data = encoded()
        assert len(split_batches(data * 5, max_message_bytes=len(data))) == 5

    @pytest.mark.parametrize(
        ("position", "layout", "value", "reason"),
        [
            (21, ">h", 5, "no compression codec 5"),
            (21, ">h", 7, "no compression codec 7"),
            (21, ">h", 0x08, "log append time"),
            (21, ">h", 0x40, "delete horizon"),
            (21, ">h", 0x20, "control"),
            (21, ">h", 0x30, "control"),
            (21, ">h", 0x10, "transactional"),
            (21, ">h", 0x100, "unknown attributes"),
            (57, ">i", 0, "no records"),
            (57, ">i", 3, "last offset delta"),
            (57, ">i", 5, "last offset delta"),
            (57, ">i", -1, "-1 records"),
            (23, ">i", 4, "last offset delta"),
            (23, ">i", -1, "last offset delta"),
            (27, ">q", -2, "timestamp"),
            (43, ">q", -2, "-2 is no producer id"),
            (43, ">q", 5, "producer epoch -1"),
            (16, ">b", 1, "magic 1"),
            (16, ">b", 0, "magic 0"),
        ],
    )
    def test_refuses_what_a_producer_may_not_say(
        self, position: int, layout: str, value: int, reason: str
    ) -> None:
        error = refusal(with_field(encoded(), position, layout, value))
        assert error.entry is MALFORMED_BATCH
        assert reason in error.message

    def test_refuses_an_idempotent_batch_without_sequence(self) -> None:
        data = encoded(**IDENTITY)
        assert split_batches(data, max_message_bytes=BATCH_BYTES_MAX)
        assert "sequence -1" in refusal(with_field(data, 53, ">i", -1)).message
        assert "epoch -1" in refusal(with_field(data, 51, ">h", -1)).message

    def test_ignores_epoch_and_sequence_without_a_producer_id(self) -> None:
        # Clients in the field leave zeros there.
        data = with_field(with_field(encoded(), 53, ">i", 0), 51, ">h", 0)
        assert split_batches(data, max_message_bytes=BATCH_BYTES_MAX)

    def test_refuses_a_count_that_cannot_be_true(self) -> None:
        data = with_field(with_field(encoded(), 57, ">i", 1000), 23, ">i", 999)
        assert "too short for the 1000 records" in refusal(data).message

    def test_takes_transactional_batches_only_where_they_are_expected(self) -> None:
        data = encoded(transactional=True, **IDENTITY)
        assert "transactional" in refusal(data).message
        [only] = split_batches(data, max_message_bytes=BATCH_BYTES_MAX, allow_transactional=True)
        assert only.header.is_transactional
        nobodys = with_field(encoded(), 21, ">h", 0x10)
        with pytest.raises(LogError, match="without a producer id"):
            split_batches(nobodys, max_message_bytes=BATCH_BYTES_MAX, allow_transactional=True)

    @given(st.binary(max_size=200))
    def test_never_takes_noise(self, data: bytes) -> None:
        assert refusal(data).entry in {MALFORMED_BATCH, RECORD_TOO_LARGE}


class TestFlippedBits:
    """The CRC covers all but the first 21 bytes. See DESIGN.md for their protection."""

    @pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda codec: codec.label)
    def test_every_flip_is_refused_or_in_a_field_that_the_leader_sets(
        self, compression: Compression
    ) -> None:
        data = encoded(SAMPLE * 3, compression)
        harmless = []
        for position in range(len(data)):
            for bit in range(8):
                flipped = bytearray(data)
                flipped[position] ^= 1 << bit
                try:
                    [only] = split_batches(flipped, max_message_bytes=BATCH_BYTES_MAX)
                except LogError as error:
                    # Kafka's clients send a batch again after CORRUPT_BATCH only.
                    assert error.entry in (
                        {CORRUPT_BATCH}
                        if position >= CRC_POSITION
                        else {MALFORMED_BATCH, RECORD_TOO_LARGE, CORRUPT_BATCH}
                    )
                else:
                    harmless.append(position)
                    prefix, rest = stamped(only, Offset(0), LeaderEpoch(-1))
                    assert prefix + rest == data, "the leader overwrites the flipped bit"
        assert set(harmless) == {0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15}

    def test_every_flip_outside_the_leaders_fields_is_found_in_a_log(self) -> None:
        data = encoded(**IDENTITY)
        for position in [*range(8, 12), *range(16, len(data))]:
            flipped = bytearray(data)
            flipped[position] ^= 0x10
            with pytest.raises(LogError):
                list(iterate_batches(flipped + data))


class TestStamp:
    def test_sets_offset_and_epoch_without_touching_the_records(self) -> None:
        original = batch()
        prefix, rest = stamped(original, Offset(2**40 + 5), LeaderEpoch(77))
        assert len(prefix) == PREFIX_SIZE
        assert isinstance(original.data, memoryview)
        assert rest.obj is original.data.obj, "a view, not a copy"
        written = prefix + rest
        header = parse_header(written)
        assert header == original.header._replace(base_offset=2**40 + 5, partition_leader_epoch=77)
        assert check_batch(written, 0, header), "both fields lie outside the CRC"

    @given(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1))
    def test_takes_any_offset_and_epoch(self, offset: int, epoch: int) -> None:
        prefix, rest = stamped(batch(), Offset(offset), LeaderEpoch(epoch))
        header = parse_header(prefix + rest)
        assert (header.base_offset, header.partition_leader_epoch) == (offset, epoch)

    @pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda codec: codec.label)
    def test_log_append_time_becomes_every_records_timestamp(
        self, compression: Compression
    ) -> None:
        original = batch(SAMPLE, compression)
        changed = with_log_append_time(original, 1_800_000_000_000)
        assert parse_header(changed.data) == changed.header
        assert check_batch(changed.data, 0, changed.header)
        assert check_batch(original.data, 0, original.header), "the original is as before"
        records = decode(changed, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
        assert {record.timestamp for record in records} == {1_800_000_000_000}
        assert {record.timestamp_type for record in records} == {1}
        assert [record.value for record in records] == [row[2] for row in SAMPLE]


class TestScan:
    def test_check_batch_says_no_to_a_batch_that_is_not_all_there(self) -> None:
        data = encoded()
        header = parse_header(data)
        assert check_batch(b"ab" + data, 2, header)
        assert not check_batch(data[:-1], 0, header)
        assert not check_batch(data, 1, header)

    def test_headers_are_found_without_reading_records(self) -> None:
        data = encoded()
        found = list(iterate_headers(data + data + data[:61]))
        assert [position for position, _ in found] == [0, len(data), 2 * len(data)]
        assert {header for _, header in found} == {parse_header(data)}
        assert [position for position, _ in iterate_headers(data * 3, len(data))] == [
            len(data),
            2 * len(data),
        ]
        with pytest.raises(LogError, match="bytes left"):
            list(iterate_headers(data + data[:60]))

    def test_batches_of_a_log_are_given_until_one_is_bad(self) -> None:
        data = encoded()
        assert [bytes(each.data) for each in iterate_batches(data * 2)] == [data, data]
        iterator = iterate_batches(data + data[:-1])
        assert bytes(next(iterator).data) == data
        with pytest.raises(LogError, match="cut off"):
            next(iterator)
        damaged = data[:-1] + bytes([data[-1] ^ 1])
        with pytest.raises(LogError, match="CRC"):
            list(iterate_batches(damaged))
        assert len(list(iterate_batches(damaged, check_crc=False))) == 1

    def test_a_log_may_hold_what_producers_may_not_send(self) -> None:
        # Compacted to nothing, and a transaction's marker.
        empty = with_body(with_field(encoded(), 57, ">i", 0), b"")
        control = with_field(encoded(**IDENTITY), 21, ">h", 0x30)
        assert len(list(iterate_batches(empty + control))) == 2
