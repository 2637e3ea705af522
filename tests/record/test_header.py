from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.record.compression import Compression
from raftlog.record.errors import MALFORMED_BATCH, LogError
from raftlog.record.header import HEADER, HEADER_SIZE, BatchHeader, parse_header
from raftlog.record.types import LeaderEpoch, Offset, ProducerEpoch, ProducerId

SAMPLE = BatchHeader(
    base_offset=Offset(1000),
    batch_length=500,
    partition_leader_epoch=LeaderEpoch(7),
    magic=2,
    crc=0xDEADBEEF,
    attributes=0,
    last_offset_delta=9,
    base_timestamp_ms=1_700_000_000_000,
    max_timestamp_ms=1_700_000_000_500,
    producer_id=ProducerId(42),
    producer_epoch=ProducerEpoch(3),
    base_sequence=17,
    record_count=10,
)


def test_layout_is_kafkas() -> None:
    packed = HEADER.pack(*SAMPLE)
    assert packed.hex(" ", -2) == (
        "0000 0000 0000 03e8 0000 01f4 0000 0007 02de adbe ef00 0000 0000 0900 0001 8bcf e568 "
        "0000 0001 8bcf e569 f400 0000 0000 0000 2a00 0300 0000 1100 0000 0a"
    )
    assert parse_header(packed) == SAMPLE


def test_derived_fields() -> None:
    assert SAMPLE.size_bytes == 512
    assert SAMPLE.last_offset == 1009
    assert SAMPLE.next_offset == 1010
    assert SAMPLE.is_idempotent
    assert not SAMPLE._replace(producer_id=ProducerId(-1)).is_idempotent


@pytest.mark.parametrize(
    ("attributes", "compression", "log_append_time", "transactional", "control"),
    [
        (0x00, Compression.NONE, False, False, False),
        (0x01, Compression.GZIP, False, False, False),
        (0x0A, Compression.SNAPPY, True, False, False),
        (0x13, Compression.LZ4, False, True, False),
        (0x34, Compression.ZSTD, False, True, True),
        (0x40, Compression.NONE, False, False, False),
    ],
)
def test_attribute_bits(
    attributes: int,
    compression: Compression,
    log_append_time: bool,
    transactional: bool,
    control: bool,
) -> None:
    header = parse_header(HEADER.pack(*SAMPLE._replace(attributes=attributes)))
    assert header.compression is compression
    assert header.is_log_append_time is log_append_time
    assert header.is_transactional is transactional
    assert header.is_control is control


def test_unknown_codec_is_refused_where_it_is_asked_for() -> None:
    with pytest.raises(LogError, match="no compression codec 5") as raised:
        _ = SAMPLE._replace(attributes=5).compression
    assert raised.value.entry is MALFORMED_BATCH


@pytest.mark.parametrize("size", [0, 1, HEADER_SIZE - 1])
def test_short_buffer_is_refused(size: int) -> None:
    packed = HEADER.pack(*SAMPLE)
    for buffer, position in ((packed[:size], 0), (b"ab" + packed[:size], 2), (b"", 5)):
        with pytest.raises(LogError, match="bytes left") as raised:
            parse_header(buffer, position)
        assert raised.value.entry is MALFORMED_BATCH


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"magic": 1}, "magic 1"),
        ({"magic": -2}, "magic -2"),
        ({"batch_length": 48}, "length of 48"),
        ({"batch_length": -1}, "length of -1"),
        ({"base_offset": -1}, "base offset -1"),
        ({"last_offset_delta": -1}, "last offset delta -1"),
        ({"record_count": -1}, "-1 records"),
        ({"attributes": 0x80}, "unknown attributes 0x0080"),
        ({"attributes": -0x8000}, "unknown attributes 0x8000"),
    ],
)
def test_impossible_header_is_refused(changes: dict[str, int], reason: str) -> None:
    with pytest.raises(LogError, match=reason) as raised:
        parse_header(HEADER.pack(*SAMPLE._replace(**changes)))
    assert raised.value.entry is MALFORMED_BATCH


def test_smallest_length_is_an_empty_batch() -> None:
    # Compaction leaves such: the header alone keeps the producer's last sequence.
    header = parse_header(HEADER.pack(*SAMPLE._replace(batch_length=49, record_count=0)))
    assert header.size_bytes == HEADER_SIZE


def test_parses_at_a_position_of_any_buffer() -> None:
    packed = b"xyz" + HEADER.pack(*SAMPLE) + b"rest"
    for buffer in (packed, bytearray(packed), memoryview(packed)):
        assert parse_header(buffer, 3) == SAMPLE


@given(st.binary(min_size=HEADER_SIZE, max_size=HEADER_SIZE))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    try:
        header = parse_header(data)
    except LogError as error:
        assert error.entry is MALFORMED_BATCH
    else:
        assert HEADER.pack(*header) == data
