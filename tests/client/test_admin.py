"""The admin client, where an end-to-end test does not reach."""

from __future__ import annotations

import pytest
from raftlog_client import (
    Admin,
    ClientClosedError,
    ConnectionLostError,
    Producer,
    RaftlogClientError,
    ServerError,
    TopicNotFoundError,
    TopicPartition,
)
from raftlog_client.admin import config_text

from bench.node import LoneNode
from raftlog.record.errors import RETRIABLE
from tests.client.fake_node import FakeCluster, Fault


def test_config_values_are_written_as_the_cluster_writes_them() -> None:
    assert [config_text(value) for value in (True, 5, 0.5, "compact")] == [
        "true",
        "5",
        "0.5",
        "compact",
    ]


async def test_a_creation_of_unknown_outcome_is_not_repeated(single: FakeCluster) -> None:
    path = "/v3/clusters/fake/topics"
    async with Admin(bootstrap_servers=single.bootstrap) as admin:
        single.fail(path, Fault(drop_after=True))
        with pytest.raises(ConnectionLostError) as lost:
            await admin.create_topic("new")
        assert lost.value.outcome_unknown
        assert single.requests[path] == 1
        single.fail(path, Fault(error=RETRIABLE))
        with pytest.raises(ServerError) as unknown:
            await admin.create_topic("newer")
        assert unknown.value.outcome_unknown


async def test_malformed_answers_are_typed_errors(single: FakeCluster) -> None:
    async with Admin(bootstrap_servers=single.bootstrap) as admin:
        single.fail("/v1/delete-records", Fault(answer=b"{}"))
        with pytest.raises(RaftlogClientError, match="malformed"):
            await admin.delete_records({TopicPartition("t", 0): 0})
        single.fail("/v1/offsets", Fault(answer=b'{"topics":{"t":{}}}'))
        with pytest.raises(RaftlogClientError, match="malformed"):
            await admin.offsets(["t"])


async def test_a_closed_admin_says_so(single: FakeCluster) -> None:
    admin = Admin(bootstrap_servers=single.bootstrap)
    with pytest.raises(ClientClosedError):
        await admin.list_topics()
    async with admin:
        assert await admin.list_topics() == ["t"]
    with pytest.raises(ClientClosedError):
        await admin.delete_topic("t")


async def test_topics_through_their_life_on_a_real_node(real_node: LoneNode) -> None:
    async with Admin(bootstrap_servers=real_node.address) as admin:
        await admin.create_topic("life", partitions=1, configs={"retention.ms": 1000})
        configs = await admin.describe_configs("life")
        assert (configs["retention.ms"].value, configs["retention.ms"].is_default) == (
            "1000",
            False,
        )
        await admin.alter_configs("life", {"segment.bytes": 1 << 20}, unset=["retention.ms"])
        configs = await admin.describe_configs("life")
        assert configs["segment.bytes"].value == str(1 << 20)
        assert configs["retention.ms"].is_default
        with pytest.raises(ServerError) as refused:
            await admin.alter_configs("life", {"nonsense": 1})
        assert refused.value.name == "INVALID_CONFIG"
        await admin.create_partitions("life", 3)
        assert len((await admin.describe_topic("life")).partitions) == 3
        with pytest.raises(ServerError) as fewer:
            await admin.create_partitions("life", 2)
        assert fewer.value.name == "INVALID_PARTITIONS"
        async with Producer(bootstrap_servers=real_node.address) as producer:
            await producer.send_and_wait("life", b"x", partition=2)
        place = TopicPartition("life", 2)
        assert await admin.delete_records({place: -1}) == {place: 1}
        with pytest.raises(RaftlogClientError, match="life-2"):
            await admin.delete_records({place: 99})
        await admin.delete_topics(["life"])
        with pytest.raises(TopicNotFoundError):
            await admin.describe_topic("life")
        with pytest.raises(TopicNotFoundError):
            await admin.delete_topic("life")
