from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from msgspec.structs import replace

from raftlog.metadata.commands import (
    COMMAND_TYPES,
    COMMAND_VERSION,
    PARTITION_CHANGES_MAX,
    AddPartitions,
    AllocateProducerIds,
    AlterBroker,
    AlterClusterSettings,
    AlterIsr,
    AlterTopicConfigs,
    ChangePartitions,
    ClusterCreated,
    Command,
    CreateTopic,
    DeleteTopic,
    FenceBroker,
    MetadataVersionError,
    PartitionChange,
    RegisterBroker,
    ReplaceDirectory,
    SetControlledShutdown,
    UnfenceBroker,
    UnregisterBroker,
    decode_command,
    encode_command,
)
from raftlog.record.types import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionId,
    TopicId,
)
from tests.metadata.strategies import commands

TOPIC_ID = TopicId("0123456789abcdef0123456789abcdef")
# These bytes are in logs. Older nodes ignore a field added without a new version: a change of a
# line here must be safe for them, and the old line must stay readable.
GOLDEN: list[tuple[Command, bytes]] = [
    (
        ClusterCreated(cluster_id="c", created_ms=5),
        b'{"type":"cluster_created","v":1,"cluster_id":"c","created_ms":5}',
    ),
    (
        RegisterBroker(
            broker_id=BrokerId(1),
            directory_id="d",
            incarnation="i",
            host="h",
            port=8082,
            software_version="0.1.0",
            rack="r",
        ),
        b'{"type":"register_broker","v":1,"broker_id":1,"directory_id":"d","incarnation":"i",'
        b'"host":"h","port":8082,"software_version":"0.1.0","rack":"r","command_version":5,'
        b'"kafka_host":null,"kafka_port":null}',
    ),
    (
        RegisterBroker(
            v=4,
            broker_id=BrokerId(1),
            directory_id="d",
            incarnation="i",
            host="h",
            port=8082,
            software_version="0.1.0",
            kafka_host="k",
            kafka_port=9092,
        ),
        b'{"type":"register_broker","v":4,"broker_id":1,"directory_id":"d","incarnation":"i",'
        b'"host":"h","port":8082,"software_version":"0.1.0","rack":null,"command_version":5,'
        b'"kafka_host":"k","kafka_port":9092}',
    ),
    (
        CreateTopic(
            topic_id=TOPIC_ID,
            name="t",
            configs={"b": "2", "a": "1"},
            assignments=((BrokerId(1), BrokerId(2)), (BrokerId(2), BrokerId(1))),
        ),
        b'{"type":"create_topic","v":1,"topic_id":"0123456789abcdef0123456789abcdef","name":"t",'
        b'"configs":{"a":"1","b":"2"},"assignments":[[1,2],[2,1]]}',
    ),
    (
        DeleteTopic(topic_id=TOPIC_ID),
        b'{"type":"delete_topic","v":1,"topic_id":"0123456789abcdef0123456789abcdef"}',
    ),
    (
        AddPartitions(topic_id=TOPIC_ID, partition_count=2, assignments=((BrokerId(1),),)),
        b'{"type":"add_partitions","v":1,"topic_id":"0123456789abcdef0123456789abcdef",'
        b'"partition_count":2,"assignments":[[1]]}',
    ),
    (
        AlterTopicConfigs(topic_id=TOPIC_ID, values={"flush": "sync"}, removals=("retention.ms",)),
        b'{"type":"alter_topic_configs","v":1,"topic_id":"0123456789abcdef0123456789abcdef",'
        b'"values":{"flush":"sync"},"removals":["retention.ms"]}',
    ),
    (
        AllocateProducerIds(broker_id=BrokerId(1), broker_epoch=BrokerEpoch(7)),
        b'{"type":"allocate_producer_ids","v":1,"broker_id":1,"broker_epoch":7,"count":1000}',
    ),
    (
        UnregisterBroker(broker_id=BrokerId(1), broker_epoch=BrokerEpoch(7)),
        b'{"type":"unregister_broker","v":1,"broker_id":1,"broker_epoch":7}',
    ),
    (
        ReplaceDirectory(broker_id=BrokerId(1), broker_epoch=BrokerEpoch(7), directory_id="d"),
        b'{"type":"replace_directory","v":5,"broker_id":1,"broker_epoch":7,"directory_id":"d"}',
    ),
    (
        FenceBroker(broker_id=BrokerId(1), broker_epoch=BrokerEpoch(7)),
        b'{"type":"fence_broker","v":1,"broker_id":1,"broker_epoch":7}',
    ),
    (
        UnfenceBroker(broker_id=BrokerId(1), broker_epoch=BrokerEpoch(7)),
        b'{"type":"unfence_broker","v":1,"broker_id":1,"broker_epoch":7}',
    ),
    (
        SetControlledShutdown(broker_id=BrokerId(1), broker_epoch=BrokerEpoch(7)),
        b'{"type":"set_controlled_shutdown","v":1,"broker_id":1,"broker_epoch":7}',
    ),
    (
        AlterIsr(
            broker_id=BrokerId(1),
            broker_epoch=BrokerEpoch(7),
            topic_id=TOPIC_ID,
            partition=PartitionId(3),
            leader_epoch=LeaderEpoch(4),
            partition_epoch=PartitionEpoch(5),
            isr=((BrokerId(1), BrokerEpoch(7)), (BrokerId(2), BrokerEpoch(8))),
            min_isr_default=2,
        ),
        b'{"type":"alter_isr","v":1,"broker_id":1,"broker_epoch":7,'
        b'"topic_id":"0123456789abcdef0123456789abcdef","partition":3,"leader_epoch":4,'
        b'"partition_epoch":5,"isr":[[1,7],[2,8]],"min_isr_default":2}',
    ),
    (
        ChangePartitions(
            changes=(
                PartitionChange(
                    topic_id=TOPIC_ID,
                    partition=PartitionId(0),
                    partition_epoch=PartitionEpoch(5),
                    isr=(BrokerId(1),),
                    leader=BrokerId(-1),
                    replicas=(BrokerId(1), BrokerId(2)),
                    adding=(BrokerId(2),),
                    removing=(),
                    not_eligible=(BrokerId(2),),
                    unclean=True,
                    min_isr_default=2,
                ),
                PartitionChange(
                    topic_id=TOPIC_ID, partition=PartitionId(1), partition_epoch=PartitionEpoch(0)
                ),
            )
        ),
        b'{"type":"change_partitions","v":1,"changes":['
        b'{"topic_id":"0123456789abcdef0123456789abcdef","partition":0,"partition_epoch":5,'
        b'"isr":[1],"leader":-1,"replicas":[1,2],"adding":[2],"removing":[],"not_eligible":[2],'
        b'"unclean":true,"min_isr_default":2},'
        b'{"topic_id":"0123456789abcdef0123456789abcdef","partition":1,"partition_epoch":0}]}',
    ),
    (
        ChangePartitions(
            v=3,
            changes=(
                PartitionChange(
                    topic_id=TOPIC_ID,
                    partition=PartitionId(1),
                    partition_epoch=PartitionEpoch(0),
                    not_eligible=(BrokerId(2),),
                    lost=True,
                ),
            ),
        ),
        b'{"type":"change_partitions","v":3,"changes":['
        b'{"topic_id":"0123456789abcdef0123456789abcdef","partition":1,"partition_epoch":0,'
        b'"not_eligible":[2],"lost":true}]}',
    ),
    (
        AlterBroker(broker_id=BrokerId(1), maintenance=True),
        b'{"type":"alter_broker","v":2,"broker_id":1,"maintenance":true,"decommissioning":null}',
    ),
    (
        AlterClusterSettings(values={"flush": "sync"}, removals=("retention.ms",)),
        b'{"type":"alter_cluster_settings","v":1,"values":{"flush":"sync"},'
        b'"removals":["retention.ms"]}',
    ),
]
_CHANGE = PartitionChange(
    topic_id=TOPIC_ID, partition=PartitionId(1), partition_epoch=PartitionEpoch(0)
)


@pytest.mark.parametrize(("command", "encoded"), GOLDEN)
def test_encoding_never_changes(command: Command, encoded: bytes) -> None:
    assert json.loads(encode_command(command)) == json.loads(encoded)
    assert decode_command(encoded) == command


def test_every_type_has_a_golden_line() -> None:
    assert {json.loads(encoded)["type"] for _, encoded in GOLDEN} == COMMAND_TYPES


@given(commands)
def test_commands_round_trip(command: Command) -> None:
    assert decode_command(encode_command(command)) == command


def test_equal_commands_have_equal_bytes() -> None:
    one, other = (
        AlterTopicConfigs(topic_id=TOPIC_ID, values=values)
        for values in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"})
    )
    assert encode_command(one) == encode_command(other)


def test_registration_of_an_older_release_is_read() -> None:
    command, encoded = next(row for row in GOLDEN if isinstance(row[0], RegisterBroker))
    assert isinstance(command, RegisterBroker)
    older = {
        name: value for name, value in json.loads(encoded).items() if not name.startswith("kafka")
    }
    assert decode_command(json.dumps(older | {"command_version": 3}).encode()) == replace(
        command, command_version=3
    )


def test_unknown_fields_of_a_known_version_are_ignored() -> None:
    for command, encoded in GOLDEN:
        extended = json.dumps({**json.loads(encoded), "asked_by": {"name": "someone"}}).encode()
        assert decode_command(extended) == command


def test_every_command_of_a_newer_version_is_refused() -> None:
    for _, encoded in GOLDEN:
        newer = {**json.loads(encoded), "v": COMMAND_VERSION + 1}
        with pytest.raises(MetadataVersionError, match="upgrade this node"):
            decode_command(json.dumps(newer).encode())


def test_every_field_that_has_no_default_is_needed() -> None:
    requests = {"maintenance", "decommissioning", "kafka_host", "kafka_port"}
    for command, encoded in GOLDEN:
        for name in json.loads(encoded).keys() - {"type", "v"}:
            less = {key: value for key, value in json.loads(encoded).items() if key != name}
            if name in {*requests, "rack", "command_version", "removals", "count"}:
                assert type(decode_command(json.dumps(less).encode())) is type(command)
            else:
                with pytest.raises(MetadataVersionError):
                    decode_command(json.dumps(less).encode())


def test_largest_change_of_partitions_fits_the_log() -> None:
    most = PartitionChange(
        topic_id=TOPIC_ID,
        partition=PartitionId(9_999),
        partition_epoch=PartitionEpoch(2**40),
        isr=tuple(BrokerId(2**31 - n) for n in range(3)),
        leader=BrokerId(2**31 - 1),
        min_isr_default=2,
    )
    encoded = encode_command(ChangePartitions(changes=(most,) * PARTITION_CHANGES_MAX))
    assert len(encoded) < 256 * 1024


@pytest.mark.parametrize(
    "encoded",
    [
        b'{"type":"merge_topics","v":1}',
        b'{"type":"delete_topic","v":%d,"topic_id":"x"}' % (COMMAND_VERSION + 1),
        b'{"type":"delete_topic","v":1}',
        b'{"type":"delete_topic","v":1,"topic_id":7}',
        b'{"type":"delete_topic","topic_id":"x"}',
        b'{"v":1}',
        b"[]",
        b"",
        b"\xff\xfe",
        b'{"type":"delete_topic","v":1,"topic_id":"x"',
    ],
)
def test_unknown_command_is_never_skipped(encoded: bytes) -> None:
    with pytest.raises(MetadataVersionError, match="upgrade this node"):
        decode_command(encoded)


def test_command_without_a_decoding_never_reaches_the_log() -> None:
    for command in (
        DeleteTopic(topic_id=7),  # type: ignore[arg-type]  # the mistake this is about
        AllocateProducerIds(broker_id=BrokerId(1), broker_epoch=BrokerEpoch(1), count=0),
        ClusterCreated(cluster_id="x" * 256, created_ms=0),
        ChangePartitions(changes=()),
        ChangePartitions(changes=(_CHANGE,) * (PARTITION_CHANGES_MAX + 1)),
        AlterClusterSettings(values={"x": "y" * 1_025}),
    ):
        with pytest.raises(msgspec.ValidationError):
            encode_command(command)
