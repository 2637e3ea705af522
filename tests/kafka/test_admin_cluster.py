"""Admin APIs of the cluster: oldest and newest versions, an error for each item."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from raftlog.kafka.call import FENCED_LISTED_S, Fences
from raftlog.kafka.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    DescribableLogDirTopic,
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    DescribeQuorumRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
    RequestPartitionData,
    RequestTopicData,
    TopicPartitions,
)
from raftlog.kafka.messages.metadata import MetadataRequest
from raftlog.kafka.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from raftlog.metadata.commands import ChangePartitions, FenceBroker, PartitionChange
from raftlog.record.types import BrokerId
from tests.kafka.peers import KafkaNode, RawClient, kafka_node

TIMEOUT_MS = 30_000
TOPIC, BROKER = 2, 4


@pytest.fixture
async def one() -> AsyncIterator[KafkaNode]:
    async with kafka_node() as node:
        yield node


@pytest.fixture
async def client(one: KafkaNode) -> AsyncIterator[RawClient]:
    async with one.client() as client:
        yield client


@pytest.fixture
async def three() -> AsyncIterator[KafkaNode]:
    async with kafka_node(brokers=3) as node:
        yield node


@pytest.mark.parametrize("version", [0, 2])
async def test_the_cluster_is_described(three: KafkaNode, version: int) -> None:
    three.node.metadata.register(4, kafka_port=4)
    three.node.metadata.register(5)
    three.node.metadata.unfence(5)
    details = {"include_fenced_brokers": True} if version else {}
    async with three.client() as client:
        answer = await client.ask(
            DescribeClusterRequest(include_cluster_authorized_operations=True, **details),
            version,
        )
        assert (answer.cluster_id, answer.controller_id) == ("fake-cluster", 1)
        ids = [row.broker_id for row in answer.brokers]
        assert ids == ([1, 2, 3, 4] if version else [1, 2, 3])
        assert answer.brokers[0].port == three.listener.port
        assert answer.cluster_authorized_operations & (1 << 8)
        if version:
            assert [row.is_fenced for row in answer.brokers] == [False, False, False, True]
            wrong = DescribeClusterRequest(endpoint_type=2)
            assert (await client.ask(wrong, 1)).error_code == 114


async def test_metadata_lists_a_broker_that_is_away_for_seconds(three: KafkaNode) -> None:
    """librdkafka forgets a broker that is not listed, and a transaction waits for it in vain."""
    three.node.metadata.register(4, kafka_port=4)
    three.node.metadata.unfence(4)
    rows = (tuple(map(BrokerId, (1, 4))),)
    await three.node.metadata.create_topic("shared", assignments=rows)
    epoch = three.node.metadata.image.brokers[BrokerId(4)].broker_epoch
    three.node.metadata.run(FenceBroker(broker_id=BrokerId(4), broker_epoch=epoch))
    async with three.client() as client:
        answer = await client.ask(MetadataRequest(topics=None), 9)
        assert [row.node_id for row in answer.brokers] == [1, 2, 3, 4]
        [shared] = [one for one in answer.topics if one.name == "shared"]
        [partition] = shared.partitions
        assert (partition.leader_id, partition.replica_nodes, partition.offline_replicas) == (
            1,
            (1, 4),
            (4,),
        )
        described = await client.ask(DescribeClusterRequest(), 0)
        assert [row.broker_id for row in described.brokers] == [1, 2, 3]


def test_a_fenced_broker_is_listed_for_a_while_from_each_fence_on() -> None:
    fences, one, two = Fences(), BrokerId(1), BrokerId(2)
    assert fences.recent({one}, 100.0) == {one}
    assert fences.recent({one, two}, 100.0 + FENCED_LISTED_S - 1) == {one, two}
    assert fences.recent({one, two}, 100.0 + FENCED_LISTED_S) == {two}
    assert fences.recent({two}, 120.0) == {two}
    assert fences.recent({one, two}, 121.0) == {one, two}, "fenced again"


async def moved_away(three: KafkaNode) -> None:
    """Topic `led`: its partition 0 is led by broker 2, its partition 1 by no broker."""
    metadata = three.node.metadata
    rows = tuple(tuple(map(BrokerId, ids)) for ids in ((1, 2), (2, 1), (3, 1)))
    await metadata.create_topic("led", assignments=rows)
    await metadata.operations.transfer_leader("led", 0, BrokerId(2))
    topic = metadata.image.topic("led")
    row = topic.partitions[1]
    metadata.run(
        ChangePartitions(
            changes=(
                PartitionChange(
                    topic_id=topic.topic_id,
                    partition=row.partition,
                    partition_epoch=row.partition_epoch,
                    leader=BrokerId(-1),
                ),
            )
        )
    )


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_preferred_leaders_are_elected(three: KafkaNode, version: int) -> None:
    await moved_away(three)
    async with three.client() as client:
        wanted = (
            TopicPartitions("led", (0, 1, 2, 9)),
            TopicPartitions("missing", (0,)),
        )
        answer = await client.ask(ElectLeadersRequest(0, wanted, TIMEOUT_MS), version)
        codes = {
            (topic.topic, row.partition_id): row.error_code
            for topic in answer.replica_election_results
            for row in topic.partition_result
        }
        assert codes == {
            ("led", 0): 0,
            ("led", 1): 80,
            ("led", 2): 84,
            ("led", 9): 3,
            ("missing", 0): 3,
        }
        assert three.node.metadata.image.partition("led", 0).leader == 1


@pytest.mark.parametrize("version", [1, 2])
async def test_leaders_are_elected_unclean_only_where_there_is_none(
    three: KafkaNode, version: int
) -> None:
    await moved_away(three)
    async with three.client() as client:
        wanted = (TopicPartitions("led", (0, 1)),)
        answer = await client.ask(ElectLeadersRequest(1, wanted), version)
        [topic] = answer.replica_election_results
        assert [row.error_code for row in topic.partition_result] == [84, 0]
        unknown = ElectLeadersRequest(7, wanted)
        assert (await client.ask(unknown, version)).error_code == 42


async def test_all_leaders_are_elected(three: KafkaNode) -> None:
    await moved_away(three)
    async with three.client() as client:
        request = ElectLeadersRequest(0, None, TIMEOUT_MS)
        [topic] = (await client.ask(request, 2)).replica_election_results
        assert [(row.partition_id, row.error_code) for row in topic.partition_result] == [
            (0, 0),
            (1, 80),
        ]


def moved(name: str, *partitions: tuple[int, tuple[int, ...] | None]) -> Any:
    return ReassignableTopic(
        name,
        tuple(ReassignablePartition(*one) for one in partitions),
    )


@pytest.mark.parametrize("version", [0, 1])
async def test_partitions_are_moved_listed_and_kept(three: KafkaNode, version: int) -> None:
    rows = tuple((BrokerId(1), BrokerId(2)) for _ in range(4))
    await three.node.metadata.create_topic("m", assignments=rows)
    message = AlterPartitionReassignmentsRequest
    async with three.client() as client:

        async def alter(*topics: Any, **options: bool) -> dict[tuple[str, int], int]:
            answer = await client.ask(
                message(timeout_ms=TIMEOUT_MS, topics=topics, **options), version
            )
            assert answer.error_code == 0
            return {
                (topic.name, row.partition_index): row.error_code
                for topic in answer.responses
                for row in topic.partitions
            }

        async def listed(topics: Any = None) -> list[tuple[str, int, tuple[int, ...]]]:
            request = ListPartitionReassignmentsRequest(TIMEOUT_MS, topics)
            answer = await client.ask(request, 0)
            return [
                (topic.name, row.partition_index, row.adding_replicas)
                for topic in answer.topics
                for row in topic.partitions
            ]

        codes = await alter(
            moved("m", (0, (2, 3)), (1, (1, 9)), (2, None), (3, (1, 1)), (8, (1,))),
            moved("missing", (0, (1,)), (1, None)),
            moved("six", (0, (2,)), (0, (3,))),
        )
        assert codes == {
            ("m", 0): 0,
            ("m", 1): 39,
            ("m", 2): 85,
            ("m", 3): 39,
            ("m", 8): 3,
            ("missing", 0): 3,
            ("missing", 1): 3,
            ("six", 0): 42,
        }
        assert await listed() == [("m", 0, (3,))]
        some = ListPartitionReassignmentsTopics
        assert await listed((some("m", (0, 1)), some("missing", (0,)))) == [("m", 0, (3,))]
        assert await listed((some("m", (1,)),)) == []
        assert await alter(moved("m", (0, None))) == {("m", 0): 0}
        assert await listed() == []
        if version == 1:
            fewer = await alter(moved("m", (1, (1,))), allow_replication_factor_change=False)
            assert fewer == {("m", 1): 38}


async def test_more_partitions_than_a_request_may_name_are_refused() -> None:
    async with kafka_node(partitions_per_request_max=2) as one, one.client() as client:
        wanted = (TopicPartitions("six", (0, 1, 2)),)
        answer = await client.ask(ElectLeadersRequest(0, wanted), 2)
        assert answer.error_code == 42
        deletion = DeleteRecordsRequest(
            (DeleteRecordsTopic("six", tuple(DeleteRecordsPartition(n, 0) for n in range(3))),),
            TIMEOUT_MS,
        )
        [topic] = (await client.ask(deletion, 2)).topics
        assert {row.error_code for row in topic.partitions} == {42}


@pytest.mark.parametrize("version", [1, 2, 5])
async def test_replicas_have_sizes(one: KafkaNode, client: RawClient, version: int) -> None:
    six = one.node.metadata.image.topic("six").topic_id
    one.node.services.logs.sizes = {(six, 0): 100, (six, 4): 300, ("gone", 0): 9}
    for topics_wanted, expected in (
        (None, [(0, 100), (4, 300)]),
        ((DescribableLogDirTopic("six", (4, 5)),), [(4, 300)]),
    ):
        answer = await client.ask(DescribeLogDirsRequest(topics_wanted), version)
        [directory] = answer.results
        [topic] = directory.topics
        assert topic.name == "six"
        assert [(row.partition_index, row.partition_size) for row in topic.partitions] == expected
        if version >= 4:
            assert (directory.total_bytes, directory.usable_bytes) == (-1, 1 << 30)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_quorum_is_described(three: KafkaNode, version: int) -> None:
    quorum = three.node.services.quorum
    three.node.services.replicas.opening_count = three.node.services.replicas.open_count = 0
    three.node.services.logs.clock_skew_ms = 0
    quorum.connect(2, match_index=119)
    quorum.connect(9, match_index=3)
    topic = RequestTopicData
    rows = (RequestPartitionData(0),)
    request = DescribeQuorumRequest((topic("__cluster_metadata", rows), topic("one", rows)))
    async with three.client() as client:
        answer = await client.ask(request, version)
        metadata, other = (topic.partitions[0] for topic in answer.topics)
        assert other.error_code == 3
        assert (metadata.leader_id, metadata.leader_epoch, metadata.high_watermark) == (1, 7, 120)
        assert [(row.replica_id, row.log_end_offset) for row in metadata.current_voters] == [
            (1, 121),
            (2, 120),
            (3, -1),
        ]
        assert [(row.replica_id, row.log_end_offset) for row in metadata.observers] == [(9, 4)]
        if version >= 1:
            here, near, absent = metadata.current_voters
            assert here.last_caught_up_timestamp >= near.last_caught_up_timestamp > 0
            assert absent.last_fetch_timestamp == -1
            assert metadata.observers[0].last_caught_up_timestamp == -1
        if version >= 2:
            [listener] = answer.nodes[1].listeners
            assert (listener.host, listener.port) == ("10.0.0.2", 8082)
