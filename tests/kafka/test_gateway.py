"""Gateway mode on one node: what clients learn of brokers, leaders and coordinators, and fetches.

What is forwarded to other nodes: tests/routing, and tests/integration/test_kafka_gateway.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from raftlog.kafka.handlers.brokers import GATEWAY_ID
from raftlog.kafka.messages.cluster import DescribeClusterRequest
from raftlog.kafka.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from raftlog.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from raftlog.kafka.messages.groups import FindCoordinatorRequest
from raftlog.kafka.messages.metadata import MetadataRequest
from raftlog.kafka.messages.topics import DescribeTopicPartitionsRequest, TopicRequest
from raftlog.kafka.settings import KafkaSettings
from raftlog.record.errors import OVERLOADED, LogError
from raftlog.record.types import BrokerId
from tests.kafka.peers import KafkaNode, RawClient, group_node, kafka_node
from tests.kafka.test_connection import end_of, fetch, produce
from tests.kafka.test_data import move_leader
from tests.waiting import DEADLINE_S

GATEWAY = ("balancer.lan", 9092)
SETTINGS = KafkaSettings(gateway=GATEWAY, shutdown_s=1.0)
BROKER = 4


@pytest.fixture
async def one() -> AsyncIterator[KafkaNode]:
    async with kafka_node(SETTINGS, brokers=3) as node:
        yield node


@pytest.fixture
async def lone() -> AsyncIterator[KafkaNode]:
    """A node that leads all partitions."""
    async with kafka_node(SETTINGS) as node:
        yield node


@pytest.fixture
async def client(one: KafkaNode) -> AsyncIterator[RawClient]:
    async with one.client() as client:
        yield client


def test_the_gateways_id_is_no_nodes() -> None:
    """Node ids begin with 1 (node/settings.py); clients take negative ids for no broker."""
    assert GATEWAY_ID == 0


async def test_metadata_names_the_gateway_alone_and_the_replicas_that_there_are(
    one: KafkaNode, client: RawClient
) -> None:
    move_leader(one, 2)
    answer = await client.ask(MetadataRequest(None), 12)
    [broker] = answer.brokers
    assert (broker.node_id, broker.host, broker.port) == (GATEWAY_ID, *GATEWAY)
    assert answer.controller_id == GATEWAY_ID
    rows = [row for topic in answer.topics for row in topic.partitions]
    assert {(row.error_code, row.leader_id) for row in rows} == {(0, GATEWAY_ID)}
    image = one.node.metadata.image
    for topic in answer.topics:
        for row in topic.partitions:
            known = image.topics_by_name[topic.name].partitions[row.partition_index]
            assert (row.replica_nodes, row.isr_nodes) == (known.replicas, known.isr)
            assert row.leader_epoch == known.leader_epoch
            assert row.offline_replicas == ()


async def test_a_leader_without_kafka_listener_is_reached_all_the_same(
    one: KafkaNode, client: RawClient
) -> None:
    one.advertise(None)
    answer = await client.ask(MetadataRequest(None), 12)
    assert {row.error_code for topic in answer.topics for row in topic.partitions} == {0}


async def test_a_partition_without_a_leader_has_none(one: KafkaNode, client: RawClient) -> None:
    move_leader(one, -1)
    answer = await client.ask(MetadataRequest(None), 12)
    [row] = next(topic.partitions for topic in answer.topics if topic.name == "one")
    assert (row.error_code, row.leader_id) == (5, -1)


async def test_the_cluster_and_partitions_are_described_with_the_gateway(
    one: KafkaNode, client: RawClient
) -> None:
    answer = await client.ask(DescribeClusterRequest(), 1)
    found = [(node.broker_id, node.host, node.port) for node in answer.brokers]
    assert found == [(GATEWAY_ID, *GATEWAY)]
    assert answer.controller_id == GATEWAY_ID
    answer = await client.ask(DescribeTopicPartitionsRequest((TopicRequest("six"),)), 0)
    leaders = {(row.error_code, row.leader_id) for row in answer.topics[0].partitions}
    assert leaders == {(0, GATEWAY_ID)}


async def test_broker_configs_are_described_under_the_gateways_id(client: RawClient) -> None:
    wanted = [DescribeConfigsResource(BROKER, name) for name in ("0", "1", "9")]
    answer = await client.ask(DescribeConfigsRequest(tuple(wanted)), 4)
    assert [one.error_code for one in answer.results] == [0, 0, 42]


async def test_without_gateway_the_id_is_unknown() -> None:
    async with kafka_node() as one, one.client() as client:
        request = DescribeConfigsRequest((DescribeConfigsResource(BROKER, "0"),))
        assert [row.error_code for row in (await client.ask(request, 4)).results] == [42]


@pytest.mark.parametrize("version", [3, 6])
@pytest.mark.parametrize("key_type", [0, 1])
async def test_the_gateway_coordinates_everything(version: int, key_type: int) -> None:
    async with group_node(settings=SETTINGS) as one, one.client() as client:
        request = FindCoordinatorRequest("k", key_type)
        if version >= 4:
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=("k",))
        answer = await client.ask(request, version)
        [found] = answer.coordinators if version >= 4 else [answer]
        assert (found.error_code, found.node_id, found.host, found.port) == (
            0,
            GATEWAY_ID,
            *GATEWAY,
        )


async def test_errors_of_a_lost_leader_name_the_gateway(one: KafkaNode, client: RawClient) -> None:
    """There is no way to node 2 here: the codes let clients come again, to the same address."""
    move_leader(one, 2)
    answer = await client.ask(replace(produce(b"x"), timeout_ms=100), 10)
    [row] = answer.responses[0].partition_responses
    assert row.error_code == 6
    assert row.current_leader.leader_id == GATEWAY_ID
    [node] = answer.node_endpoints
    assert (node.node_id, node.host, node.port) == (GATEWAY_ID, *GATEWAY)
    topic_id = one.node.metadata.image.topics_by_name["one"].topic_id
    part = FetchPartition(0, -1, 0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=100, min_bytes=1, topics=(FetchTopic("", topic_id, (part,)),)
    )
    answer = await client.ask(request, 16)
    [found] = answer.responses[0].partitions
    assert (found.error_code, found.current_leader.leader_id) == (6, GATEWAY_ID)
    assert [node.node_id for node in answer.node_endpoints] == [GATEWAY_ID]
    assert (await client.ask(end_of(), 7)).topics[0].partitions[0].error_code == 6


async def test_a_node_at_its_limit_for_forwarded_requests_lets_clients_come_again(
    one: KafkaNode, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of OVERLOADED (14) is for coordinators: Produce and Fetch know no such code."""

    async def full(*_args: object, **_named: object) -> None:
        raise LogError(OVERLOADED)

    monkeypatch.setattr(one.node.partitions, "call_leader", full)
    move_leader(one, 2)
    answer = await client.ask(produce(b"x"), 9)
    assert answer.responses[0].partition_responses[0].error_code == 6
    answer = await client.ask(fetch(0, wait_ms=100), 12)
    assert answer.responses[0].partitions[0].error_code == 6
    assert (await client.ask(end_of(), 7)).topics[0].partitions[0].error_code == 6


# Fetches


async def test_records_come_back_through_a_gateway(lone: KafkaNode) -> None:
    async with lone.client() as client:
        await client.ask(produce(b"a", b"b"), 9)
        answer = await client.ask(fetch(0, wait_ms=5_000), 12)
        [part] = answer.responses[0].partitions
        assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 2, 2)
        assert part.aborted_transactions is None
        assert bytes(part.records) == bytes(lone.node.log().batches[0])
        answer = await client.ask(fetch(0, isolation=1), 12)
        assert answer.responses[0].partitions[0].aborted_transactions == ()


async def test_a_fetch_at_the_end_waits_for_the_next_record(lone: KafkaNode) -> None:
    async with lone.client() as client, lone.client() as other:
        await client.send(fetch(0, wait_ms=30_000), 12)
        await client.send(end_of(), 7)
        await other.ask(produce(b"a"), 9)
        _, answer = await client.receive()
        assert answer.responses[0].partitions[0].high_watermark == 1
        _, answer = await client.receive()


async def test_a_fetch_without_records_ends_with_its_time_and_the_marks(lone: KafkaNode) -> None:
    async with lone.client() as client:
        begun = asyncio.get_running_loop().time()
        answer = await client.ask(fetch(0, wait_ms=200), 12)
        assert asyncio.get_running_loop().time() - begun >= 0.19
        [part] = answer.responses[0].partitions
        assert (part.error_code, part.high_watermark, bytes(part.records)) == (0, 0, b"")


async def test_a_fetch_waits_for_the_bytes_that_it_wants(lone: KafkaNode) -> None:
    async with lone.client() as client, lone.client() as other:
        await other.ask(produce(b"a"), 9)
        part = FetchPartition(0, -1, 0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=30_000, min_bytes=150, topics=(FetchTopic("one", None, (part,)),)
        )
        await client.send(request, 12)
        await other.ask(produce(b"b" * 100), 9)
        _, answer = await client.receive()
        [found] = answer.responses[0].partitions
        assert bytes(found.records) == b"".join(lone.node.log().batches)


async def test_errors_of_a_fetch_are_of_their_partitions_and_end_the_wait(lone: KafkaNode) -> None:
    async with lone.client() as client:
        await client.ask(produce(b"a", topic="six"), 9)
        rows = tuple(
            FetchPartition(number, -1, offset, partition_max_bytes=1 << 20)
            for number, offset in ((0, 0), (1, 99), (2, 0), (9, 0))
        )
        topics = (FetchTopic("six", None, rows), FetchTopic("none", None, rows[:1]))
        answer = await client.ask(FetchRequest(max_wait_ms=30_000, min_bytes=1, topics=topics), 12)
        codes = [[part.error_code for part in topic.partitions] for topic in answer.responses]
        assert codes == [[0, 1, 0, 3], [3]]
        assert bytes(answer.responses[0].partitions[0].records)


async def test_an_error_ends_the_wait_of_a_fetch_without_records(lone: KafkaNode) -> None:
    async with lone.client() as client:
        part = FetchPartition(0, -1, 0, partition_max_bytes=1 << 20)
        topics = (FetchTopic("one", None, (part,)), FetchTopic("none", None, (part,)))
        answer = await client.ask(FetchRequest(max_wait_ms=30_000, min_bytes=1, topics=topics), 12)
        assert [topic.partitions[0].error_code for topic in answer.responses] == [0, 3]


async def test_a_fetch_stays_within_its_bytes(lone: KafkaNode) -> None:
    async with lone.client() as client:
        for number in range(6):
            for _ in range(4):
                await client.ask(produce(bytes(1_000), topic="six", partition=number), 9)
        batch_bytes = len(lone.node.log("six").batches[0])
        rows = tuple(
            FetchPartition(n, -1, 0, partition_max_bytes=2 * batch_bytes) for n in range(6)
        )
        answer = await client.ask(
            FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                max_bytes=5 * batch_bytes,
                topics=(FetchTopic("six", None, rows),),
            ),
            12,
        )
        sizes = [len(part.records) // batch_bytes for part in answer.responses[0].partitions]
        assert sizes == [2, 2, 1, 0, 0, 0]
        assert {part.high_watermark for part in answer.responses[0].partitions} == {4}


async def test_a_closing_listener_ends_held_fetches(lone: KafkaNode) -> None:
    async with lone.client() as client:
        await client.send(fetch(0, wait_ms=30_000), 12)
        while not lone.listener._tasks:  # noqa: ASYNC110 (plain data)
            await asyncio.sleep(0.005)
        async with asyncio.timeout(DEADLINE_S):
            await lone.listener.close()


async def test_other_epochs_are_refused_as_without_gateway(lone: KafkaNode) -> None:
    async with lone.client() as client:
        move_leader(lone, 1)
        epoch = lone.node.metadata.image.topics_by_name["one"].partitions[0].leader_epoch
        for known, error_code in ((epoch, 0), (epoch + 1, 75), (epoch - 1, 74)):
            part = FetchPartition(0, known, 0, partition_max_bytes=1 << 20)
            request = FetchRequest(
                max_wait_ms=0, min_bytes=1, topics=(FetchTopic("one", None, (part,)),)
            )
            answer = await client.ask(request, 12)
            assert answer.responses[0].partitions[0].error_code == error_code


async def test_a_node_without_gateway_forwards_nothing() -> None:
    async with kafka_node(brokers=3) as one, one.client() as client:
        move_leader(one, 2)
        answer = await client.ask(produce(b"x"), 10)
        [row] = answer.responses[0].partition_responses
        assert (row.error_code, row.current_leader.leader_id) == (6, 2)
        answer = await client.ask(MetadataRequest(None), 12)
        leaders = {row.leader_id for topic in answer.topics for row in topic.partitions}
        assert leaders == {BrokerId(1), BrokerId(2), BrokerId(3)}
