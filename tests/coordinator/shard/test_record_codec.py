from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.coordinator.shard import record_codec, records
from raftlog.coordinator.shard.decision import CoordinatorRecord
from raftlog.coordinator.shard.record_codec import (
    UnknownRecord,
    decode_offsets_record,
    decode_transaction_record,
    encode_record,
)
from raftlog.coordinator.shard.records import (
    ClassicMember,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerInstanceKey,
    ConsumerInstancePositionKey,
    ConsumerInstancePositionValue,
    ConsumerInstanceValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    SinkEpochKey,
    SinkEpochValue,
    TopicPartitions,
    TransactionLogKey,
    TransactionLogValue,
    TransactionPartitions,
)
from raftlog.record.types import TopicId
from raftlog.schema.codec import ELEMENTS_MAX, codec_of
from raftlog.schema.errors import DecodeError, EncodeError
from tests.examples import examples
from tests.schema.judges import kafka_python_bytes
from tests.schema.strategies import messages

TOPIC_ID = TopicId("00112233445566778899aabbccddeeff")
G_M = "0001 67 0001 6d"
"""Group g, member m."""

OFFSET = OffsetCommitValue(100, 5, "meta", 1000)
TRANSACTION = TransactionLogValue(
    producer_id=7,
    previous_producer_id=-1,
    next_producer_id=-1,
    producer_epoch=3,
    next_producer_epoch=-1,
    transaction_timeout_ms=60_000,
    transaction_status=1,
    transaction_partitions=(TransactionPartitions("t", (0, 2)),),
    transaction_last_update_timestamp_ms=2000,
    transaction_start_timestamp_ms=1000,
    client_transaction_version=0,
)
TRANSACTION_BYTES = (
    "0001 0000000000000007 0003 0000ea60 01  02 02 74 03 00000000 00000002 00"
    "00000000000007d0 00000000000003e8"
)

GOLDEN: dict[str, tuple[CoordinatorRecord, str, str | None]] = {
    "offset": (
        CoordinatorRecord(OffsetCommitKey("g", "t", 2), OFFSET),
        "0001 0001 67 0001 74 00000002",
        "0003 0000000000000064 00000005 0004 6d657461 00000000000003e8",
    ),
    "offset of a topic id": (
        CoordinatorRecord(
            OffsetCommitKey("g", "t", 2), msgspec.structs.replace(OFFSET, topic_id=TOPIC_ID)
        ),
        "0001 0001 67 0001 74 00000002",
        f"0004 0000000000000064 00000005 05 6d657461 00000000000003e8 01 00 10 {TOPIC_ID}",
    ),
    "offset with an expire timestamp": (
        CoordinatorRecord(
            OffsetCommitKey("g", "t", 2),
            msgspec.structs.replace(OFFSET, leader_epoch=-1, expire_timestamp_ms=2000),
        ),
        "0001 0001 67 0001 74 00000002",
        "0001 0000000000000064 0004 6d657461 00000000000003e8 00000000000007d0",
    ),
    "tombstone": (
        CoordinatorRecord(OffsetCommitKey("g", "t", 2), None),
        "0001 0001 67 0001 74 00000002",
        None,
    ),
    "classic group": (
        CoordinatorRecord(
            GroupMetadataKey("g"),
            GroupMetadataValue(
                "consumer",
                4,
                "range",
                None,
                1000,
                (ClassicMember("m", None, "c", "h", 3, 2, b"s", b"a"),),
            ),
        ),
        "0002 0001 67",
        "0003 0008 636f6e73756d6572 00000004 0005 72616e6765 ffff 00000000000003e8 00000001"
        "0001 6d ffff 0001 63 0001 68 00000003 00000002 00000001 73 00000001 61",
    ),
    "group": (
        CoordinatorRecord(ConsumerGroupMetadataKey("g"), ConsumerGroupMetadataValue(9, 258)),
        "0003 0001 67",
        "0000 00000009 01 00 08 0000000000000102",
    ),
    "member": (
        CoordinatorRecord(
            ConsumerGroupMemberMetadataKey("g", "m"),
            ConsumerGroupMemberMetadataValue(None, "r", "c", "h", ("t",), None, 5000, "uniform"),
        ),
        f"0005 {G_M}",
        "0000 00 02 72 02 63 02 68 02 02 74 00 00001388 08 756e69666f726d 00",
    ),
    "consumer instance": (
        CoordinatorRecord(
            ConsumerInstanceKey("g", "i"),
            ConsumerInstanceValue(
                "m", "json", "latest", 5000, -1, 1000, (), "t.*", (TopicPartitions(TOPIC_ID, (1,)),)
            ),
        ),
        "0065 0001 67 0001 69",
        "0000 02 6d 05 6a736f6e 07 6c6174657374 00001388 ffffffff 000003e8 01 04 742e2a"
        f"02 {TOPIC_ID} 02 00000001 00 00",
    ),
    "start of a consumer instance": (
        CoordinatorRecord(
            ConsumerInstancePositionKey("g", "i", TOPIC_ID, 2), ConsumerInstancePositionValue(7)
        ),
        f"0066 0001 67 0001 69 {TOPIC_ID} 00000002",
        "0000 0000000000000007 00",
    ),
    "target": (
        CoordinatorRecord(
            ConsumerGroupTargetAssignmentMetadataKey("g"),
            ConsumerGroupTargetAssignmentMetadataValue(9),
        ),
        "0006 0001 67",
        "0000 00000009 00",
    ),
    "target of a member": (
        CoordinatorRecord(
            ConsumerGroupTargetAssignmentMemberKey("g", "m"),
            ConsumerGroupTargetAssignmentMemberValue((TopicPartitions(TOPIC_ID, (0, 1)),)),
        ),
        f"0007 {G_M}",
        f"0000 02 {TOPIC_ID} 03 00000000 00000001 00 00",
    ),
    "assignment": (
        CoordinatorRecord(
            ConsumerGroupCurrentMemberAssignmentKey("g", "m"),
            ConsumerGroupCurrentMemberAssignmentValue(
                9, 8, 1, (TopicPartitions(TOPIC_ID, (0,)),), ()
            ),
        ),
        f"0008 {G_M}",
        f"0000 00000009 00000008 01 02 {TOPIC_ID} 02 00000000 00 01 00",
    ),
    "pattern": (
        CoordinatorRecord(
            ConsumerGroupRegularExpressionKey("g", "t.*"),
            ConsumerGroupRegularExpressionValue(("t", "tt"), 5, 1000),
        ),
        "0010 0001 67 0003 742e2a",
        "0000 03 02 74 03 7474 0000000000000005 00000000000003e8 00",
    ),
    "transaction": (
        CoordinatorRecord(TransactionLogKey("app"), TRANSACTION),
        "0000 0003 617070",
        TRANSACTION_BYTES + "00",
    ),
    "transaction with tags": (
        CoordinatorRecord(
            TransactionLogKey("app"),
            msgspec.structs.replace(
                TRANSACTION,
                previous_producer_id=6,
                next_producer_id=8,
                next_producer_epoch=4,
                client_transaction_version=2,
            ),
        ),
        "0000 0003 617070",
        TRANSACTION_BYTES
        + "04 00 08 0000000000000006 01 08 0000000000000008 02 02 0002 03 02 0004",
    ),
    "transaction without partitions": (
        CoordinatorRecord(
            TransactionLogKey("app"),
            msgspec.structs.replace(TRANSACTION, transaction_partitions=None),
        ),
        "0000 0003 617070",
        "0001 0000000000000007 0003 0000ea60 01 00 00000000000007d0 00000000000003e8 00",
    ),
    "sink epoch": (
        CoordinatorRecord(SinkEpochKey("s"), SinkEpochValue(7, 1000)),
        "0064 0001 73",
        "0000 0000000000000007 00000000000003e8 00",
    ),
}

KEYS = [
    one for one in vars(records).values() if isinstance(one, type) and one.__name__.endswith("Key")
]
VALUES = [
    (one, version)
    for one in vars(records).values()
    if isinstance(one, type) and hasattr(one, "VERSIONS") and one.__name__.endswith("Value")
    for version in range(one.VERSIONS.first, one.VERSIONS.last + 1)
]


def decode(key: bytes, value: bytes | None) -> CoordinatorRecord | UnknownRecord:
    if key[:2] in {b"\0\0", b"\0\x64"}:
        return decode_transaction_record(key, value)
    return decode_offsets_record(key, value)


@pytest.mark.parametrize("name", GOLDEN)
def test_bytes_of_a_record(name: str) -> None:
    record, key_hex, value_hex = GOLDEN[name]
    key = bytes.fromhex(key_hex)
    value = None if value_hex is None else bytes.fromhex(value_hex)
    assert encode_record(record) == (key, value)
    assert decode(key, value) == record


def test_every_type_of_record_has_golden_bytes() -> None:
    assert {type(record.key) for record, _, _ in GOLDEN.values()} == set(KEYS) - {records._Key}


@pytest.mark.parametrize(("value_type", "version"), VALUES)
@given(data=st.data())
@settings(max_examples=examples(40))
def test_every_version_comes_back_and_equals_kafka_pythons_bytes(
    value_type: type[msgspec.Struct], version: int, data: st.DataObject
) -> None:
    value = data.draw(messages(value_type, version))
    codec = codec_of(value_type, version)
    encoded = codec.encode(value)
    assert codec.decode(encoded, 0, ELEMENTS_MAX) == value
    assert encoded == kafka_python_bytes(value, version)


@pytest.mark.parametrize("version", range(4))
def test_older_offsets_are_read(version: int) -> None:
    lacking: dict[str, Any] = {"leader_epoch": -1} if version < 3 else {}
    if version == 1:
        lacking["expire_timestamp_ms"] = 2000
    value = msgspec.structs.replace(OFFSET, **lacking)
    encoded = version.to_bytes(2) + codec_of(OffsetCommitValue, version).encode(value)
    key = OffsetCommitKey("g", "t", 2)
    assert decode(encode_record(CoordinatorRecord(key, None))[0], encoded) == (key, value)


@pytest.mark.parametrize(
    ("key", "value", "unknown"),
    [
        ("000b 0001 67", "0000 00", UnknownRecord(11, 0)),  # share groups
        ("000b 0001 67", None, UnknownRecord(11, None)),
        ("0001 0001 67 0001 74 00000002", "0005 00", UnknownRecord(1, 5)),
        ("0001 0001 67 0001 74 00000002", "ffff", UnknownRecord(1, -1)),
        ("0003 0001 67", "0001 00", UnknownRecord(3, 1)),
    ],
)
def test_records_of_other_releases_are_unknown(
    key: str, value: str | None, unknown: UnknownRecord
) -> None:
    value_bytes = None if value is None else bytes.fromhex(value)
    assert decode_offsets_record(bytes.fromhex(key), value_bytes) == unknown


def test_the_topics_number_their_keys_on_their_own() -> None:
    offset = encode_record(CoordinatorRecord(OffsetCommitKey("g", "t", 2), OFFSET))
    transaction = encode_record(CoordinatorRecord(TransactionLogKey("app"), TRANSACTION))
    assert decode_transaction_record(*offset) == UnknownRecord(1, 3)
    assert decode_offsets_record(*transaction) == UnknownRecord(0, 1)


def test_a_members_classic_protocols_are_skipped() -> None:
    record, key, value = GOLDEN["member"]
    assert value is not None and value.endswith("00")
    tagged = value[:-2] + "01 00 04 deadbeef"
    assert decode(bytes.fromhex(key), bytes.fromhex(tagged)) == record


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("", None),
        ("00", None),
        ("0001", None),
        ("0001 0001 67 0001 74 00000002 00", None),
        ("0001 0001 67 0001 74 00000002", ""),
        ("0001 0001 67 0001 74 00000002", "0003"),
        ("0001 0001 67 0001 74 00000002", "0003 0000000000000064 00000005 7fff 6d65"),
        ("000b", "00"),
    ],
)
def test_malformed_bytes_are_refused(key: str, value: str | None) -> None:
    with pytest.raises(DecodeError):
        decode_offsets_record(bytes.fromhex(key), None if value is None else bytes.fromhex(value))


@given(
    number=st.sampled_from([0, 1, 2, 3, 5, 6, 7, 8, 16, 100]),
    key=st.binary(max_size=30) | st.just(bytes.fromhex(G_M)),
    version=st.integers(-1, 5),
    value=st.binary(max_size=100),
)
@settings(max_examples=examples(1000))
def test_random_bytes_raise_nothing_else(
    number: int, key: bytes, version: int, value: bytes
) -> None:
    try:
        record = decode(number.to_bytes(2) + key, version.to_bytes(2, signed=True) + value)
    except DecodeError:
        return
    assert isinstance(record, UnknownRecord | CoordinatorRecord)


def test_an_expire_timestamp_and_a_topic_id_have_no_version() -> None:
    for other in ({"topic_id": TOPIC_ID, "leader_epoch": -1}, {"leader_epoch": 5}):
        value = msgspec.structs.replace(OFFSET, expire_timestamp_ms=2000, **other)
        with pytest.raises(EncodeError, match="lacks"):
            encode_record(CoordinatorRecord(OffsetCommitKey("g", "t", 2), value))


def test_a_value_of_another_key_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="OffsetCommitValue is no value of a GroupMetadataKey"):
        encode_record(CoordinatorRecord(GroupMetadataKey("g"), OFFSET))


def test_more_partitions_than_a_request_may_name_fit_a_record() -> None:
    value = ConsumerGroupTargetAssignmentMemberValue(
        (TopicPartitions(TOPIC_ID, tuple(range(2 * ELEMENTS_MAX))),)
    )
    record = CoordinatorRecord(ConsumerGroupTargetAssignmentMemberKey("g", "m"), value)
    assert decode(*encode_record(record)) == record
    assert record_codec.RECORD_ELEMENTS_MAX * 4 >= 4 << 20
