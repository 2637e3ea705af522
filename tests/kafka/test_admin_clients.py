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
    from kafka.admin import KafkaAdminClient

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
async def one() -> AsyncIterator[KafkaNode]:
    async with kafka_node() as node:
        yield node


async def test_kafka_python_administers_topics(one: KafkaNode) -> None:
    def work() -> None:
        admin = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{one.listener.port}")
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


async def test_confluent_kafka_administers_topics(one: KafkaNode) -> None:
    def work() -> None:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{one.listener.port}"})
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
    admin = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{one.listener.port}")
    await admin.start()
    try:
        await admin.create_topics([AioTopic("new", 2, 1)])
        assert "new" in await admin.list_topics()
        await admin.delete_topics(["new"])
        assert "new" not in await admin.list_topics()
    finally:
        await admin.close()
