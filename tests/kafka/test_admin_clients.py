"""Admin clients of Kafka, unchanged, at the listener."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioTopic
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from tests.kafka.peers import KafkaNode, kafka_node

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import TopicPartition
    from kafka.admin import ConfigResource as Resource
    from kafka.admin import KafkaAdminClient, OffsetSpec

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
async def one() -> AsyncIterator[KafkaNode]:
    async with kafka_node() as node:
        yield node


async def test_kafka_python_administers_topics(one: KafkaNode) -> None:
    def work() -> None:
        admin = KafkaAdminClient(bootstrap_servers=one.address)
        try:
            admin.create_topics({"new": {"num_partitions": 2, "replication_factor": 1}})
            assert "new" in admin.list_topics()
            admin.create_partitions({"new": 4})
            assert len(admin.describe_topics(["new"])[0]["partitions"]) == 4
            admin.delete_topics(["new"])
            assert "new" not in admin.list_topics()
            assert admin.describe_cluster()["cluster_id"] == "fake-cluster"
        finally:
            admin.close()

    await asyncio.to_thread(work)


async def test_kafka_python_administers_configs_and_the_cluster(one: KafkaNode) -> None:
    one.node.services.replicas.opening_count = one.node.services.replicas.open_count = 0

    def work() -> None:
        admin = KafkaAdminClient(bootstrap_servers=one.address)
        try:
            admin.alter_configs([Resource("TOPIC", "one", {"retention.ms": "5"})])
            [described] = admin.describe_configs([Resource("TOPIC", "one")]).values()
            assert described["one"]["retention.ms"]["value"] == "5"
            assert admin.list_config_resources()
            [page] = admin.describe_topic_partitions(["six"])["topics"]
            assert len(page["partitions"]) == 6
            assert admin.describe_metadata_quorum()["topics"][0]["partitions"][0]["leader_id"] == 1
            assert admin.describe_log_dirs()
            assert not admin.list_partition_reassignments()
            partition = TopicPartition("one", 0)
            admin.alter_partition_reassignments({partition: [1]})
            admin.elect_leaders(0, {"one": [0]}, raise_errors=False)
            assert admin.delete_records({partition: -1})[partition]["low_watermark"] == 0
            spec = {partition: OffsetSpec.MAX_TIMESTAMP}
            assert admin.list_partition_offsets(spec)[partition].offset == -1
        finally:
            admin.close()

    await asyncio.to_thread(work)


async def test_confluent_kafka_administers_topics(one: KafkaNode) -> None:
    def work() -> None:
        admin = AdminClient({"bootstrap.servers": one.address})
        admin.create_topics([NewTopic("new", 2, 1, config={"retention.ms": "5"})])["new"].result(30)
        admin.create_partitions([NewPartitions("new", 4)])["new"].result(30)
        assert len(admin.list_topics(timeout=30).topics["new"].partitions) == 4
        resource = ConfigResource(ConfigResource.Type.TOPIC, "new")
        found = admin.describe_configs([resource])[resource].result(30)
        assert found["retention.ms"].value == "5"
        assert admin.describe_cluster().result(30).cluster_id == "fake-cluster"
        admin.delete_topics(["new"])["new"].result(30)

    await asyncio.to_thread(work)
    assert "new" not in one.node.metadata.image.topics_by_name


async def test_aiokafka_administers_topics(one: KafkaNode) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=one.address)
    await admin.start()
    try:
        await admin.create_topics([AioTopic("new", 2, 1)])
        assert "new" in await admin.list_topics()
        await admin.delete_topics(["new"])
        assert "new" not in await admin.list_topics()
    finally:
        await admin.close()
