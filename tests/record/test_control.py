"""Transaction markers: bytes that Kafka's tools read, and nothing else taken for one."""

from __future__ import annotations

import pytest
from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER, ControlRecord
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from raftlog.record.batch import (
    RecordBatch,
    check_batch,
    sealed,
    split_batches,
    with_log_append_time,
)
from raftlog.record.codec import decode
from raftlog.record.control import MARKER_SIZE, Marker, build_marker, parse_marker
from raftlog.record.errors import LogError
from raftlog.record.header import CONTROL_BIT, HEADER_SIZE, LENGTH_END, parse_header
from raftlog.record.types import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from tests.record.batches import stamped

NOW = 1_700_000_000_000


def built(*, commit: bool = True, coordinator_epoch: int = 3) -> RecordBatch:
    marker = Marker(commit, coordinator_epoch)
    return build_marker(ProducerId(7), ProducerEpoch(2), marker, timestamp_ms=NOW)


@given(
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.booleans(),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**62),
)
def test_a_marker_is_read_as_built(
    producer_id: int, epoch: int, commit: bool, coordinator_epoch: int, time_ms: int
) -> None:
    marker = Marker(commit, coordinator_epoch)
    batch = build_marker(
        ProducerId(producer_id), ProducerEpoch(epoch), marker, timestamp_ms=time_ms
    )
    header = parse_header(batch.data)
    assert header == batch.header
    assert check_batch(batch.data, 0, header)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch) == (producer_id, epoch)
    assert header.base_sequence == -1
    assert parse_marker(header, batch.data) == marker


@pytest.mark.parametrize(("commit", "kind"), [(True, COMMIT_MARKER), (False, ABORT_MARKER)])
def test_other_clients_read_the_record(commit: bool, kind: ControlRecord) -> None:
    batch = built(commit=commit)
    assert not list(decode(batch, decompressed_bytes_max=1000)), "no record for users"
    (record,) = DefaultRecordBatch(bytes(batch.data))
    assert ControlRecord.parse(record.key) == kind
    assert record.timestamp == NOW
    assert record.value == bytes.fromhex("0000 00000003".replace(" ", ""))


def test_a_stamped_marker_keeps_its_content() -> None:
    batch = with_log_append_time(built(), NOW + 5)
    data = b"".join(stamped(batch, Offset(70), LeaderEpoch(4)))
    header = parse_header(data)
    assert check_batch(data, 0, header)
    assert (header.base_offset, header.max_timestamp_ms) == (70, NOW + 5)
    assert parse_marker(header, data) == Marker(True, 3)


def test_producers_may_send_no_marker() -> None:
    with pytest.raises(LogError, match="written by the node only"):
        split_batches(built().data, max_message_bytes=1000, allow_transactional=True)


def test_a_control_batch_of_another_kind_is_no_marker() -> None:
    for position in range(HEADER_SIZE, MARKER_SIZE):
        data = bytearray(built(coordinator_epoch=0).data)
        data[position] ^= 0x40
        header = sealed(data, parse_header(data))
        found = parse_marker(header, data)
        assert found is None or found.coordinator_epoch != 0
    emptied = bytearray(HEADER_SIZE)
    bare = built().header._replace(batch_length=HEADER_SIZE - LENGTH_END, record_count=0)
    assert parse_marker(sealed(emptied, bare), emptied) is None
    batch = built()
    data_header = batch.header._replace(attributes=batch.header.attributes & ~CONTROL_BIT)
    assert parse_marker(data_header, batch.data) is None
