"""Consumer groups by the v3 convention: fields as the REST Proxy documents them, live links."""

from __future__ import annotations

from typing import Any

from raftlog.record.errors import COORDINATOR_LOADING, LogError
from tests.rest.data_fakes import DataPeer
from tests.rest.v1.test_groups import group_node
from tests.rest.v1.test_quorum import checked
from tests.rest.v2.test_consumers import Client, produce
from tests.rest.v3.test_objects import links, objects

GROUPS = "/v3/clusters/-/consumer-groups"
GROUP = f"{GROUPS}/a%2Fb"
TEMPLATE = "/v3/clusters/{cluster}/consumer-groups"

DOCUMENTED = {
    "KafkaConsumerGroup": {
        "cluster_id", "consumer_group_id", "is_simple", "partition_assignor", "state", "type",
        "is_mixed_consumer_group", "coordinator", "consumers", "lag_summary",
    },
    "KafkaConsumer": {
        "cluster_id", "consumer_group_id", "consumer_id", "instance_id", "client_id",
        "assignments",
    },
    "KafkaConsumerAssignment": {
        "cluster_id", "consumer_group_id", "consumer_id", "topic_name", "partition_id",
        "partition", "lag",
    },
    "KafkaConsumerLag": {
        "cluster_id", "consumer_group_id", "topic_name", "partition_id", "current_offset",
        "log_end_offset", "lag", "consumer_id", "instance_id", "client_id",
    },
    "KafkaConsumerGroupLagSummary": {
        "cluster_id", "consumer_group_id", "max_lag_consumer_id", "max_lag_instance_id",
        "max_lag_client_id", "max_lag_topic_name", "max_lag_partition_id", "max_lag", "total_lag",
        "max_lag_consumer", "max_lag_partition",
    },
}  # fmt: skip


async def lagging(one: DataPeer) -> Client:
    """A member of group `a/b` that has read and committed a part of each partition."""
    client = Client(one, "a%2Fb")
    await client.create(**{"auto.commit.enable": False})
    await client.subscribe("six")
    for number in range(6):
        await produce(one, "six", 1, partition=number)
    assert len(await client.read()) == 6
    assert (await client.post("/offsets")).status == 200
    await produce(one, "six", 2, 3, partition=4)
    await produce(one, "six", 2, partition=5)
    return client


async def get(one: DataPeer, path: str) -> Any:
    reply = await one.peer.request("GET", path)
    assert reply.status == 200, reply.body
    return reply.json


async def test_objects_have_the_documented_fields_and_live_links() -> None:
    async with group_node() as one:
        await lagging(one)
        to_visit, seen, kinds = [GROUPS, f"{GROUP}/lags"], set[str](), set[str]()
        while to_visit:
            path = to_visit.pop()
            if path in seen or path.endswith("/reassignment"):
                continue
            seen.add(path)
            document = await get(one, path)
            for found in objects(document):
                kind = found["kind"]
                if kind in DOCUMENTED:
                    kinds.add(kind)
                    assert set(found) - {"kind", "metadata"} == DOCUMENTED[kind]
                    assert found["metadata"]["resource_name"].startswith("crn:///kafka=")
            to_visit += links(document)
        assert kinds == set(DOCUMENTED)


async def test_groups_members_and_assignments() -> None:
    async with group_node() as one:
        await lagging(one)
        [group] = checked(await one.peer.request("GET", GROUPS), "get", TEMPLATE)["data"]
        assert group == await get(one, GROUP)
        assert (group["consumer_group_id"], group["state"], group["type"]) == (
            "a/b", "STABLE", "CONSUMER"
        )  # fmt: skip
        assert (group["partition_assignor"], group["is_simple"]) == ("uniform", False)
        assert group["coordinator"]["related"].endswith("/brokers/1")
        [consumer] = (await get(one, f"{GROUP}/consumers"))["data"]
        assert consumer["client_id"] == "i"
        path = f"{GROUP}/consumers/{consumer['consumer_id']}"
        assert await get(one, path) == consumer
        assigned = (await get(one, f"{path}/assignments"))["data"]
        assert [row["partition_id"] for row in assigned] == list(range(6))
        found = await get(one, f"{path}/assignments/six/partitions/3")
        assert found == assigned[3]
        for missing in (
            f"{path}x",
            f"{path}/assignments/one/partitions/0",
            f"{GROUP}/lags/one/partitions/0",
        ):
            assert (await one.peer.request("GET", missing)).error_code == 40400
        for missing in ("", "/consumers", "/lags", "/lag-summary"):
            reply = await one.peer.request("GET", f"{GROUPS}/none{missing}")
            assert reply.error_code == 40421


async def test_lags() -> None:
    async with group_node() as one:
        client = await lagging(one)
        lags = (await get(one, f"{GROUP}/lags"))["data"]
        assert [(row["partition_id"], row["current_offset"], row["lag"]) for row in lags] == [
            (0, 1, 0), (1, 1, 0), (2, 1, 0), (3, 1, 0), (4, 1, 2), (5, 1, 1)
        ]  # fmt: skip
        assert await get(one, f"{GROUP}/lags/six/partitions/4") == lags[4]
        summary = await get(one, f"{GROUP}/lag-summary")
        assert (summary["max_lag"], summary["total_lag"]) == (2, 3)
        assert (summary["max_lag_topic_name"], summary["max_lag_partition_id"]) == ("six", 4)
        assert summary["max_lag_client_id"] == lags[4]["client_id"] == "i"
        await client.delete()
        summary = await get(one, f"{GROUP}/lag-summary")
        assert (summary["max_lag"], summary["max_lag_consumer"]) == (2, None)
        assert (await get(one, GROUP))["state"] == "EMPTY"
        empty = Client(one, "empty")
        await empty.create()
        await empty.subscribe("one")
        reply = await one.peer.request("GET", f"{GROUPS}/empty/lag-summary")
        assert reply.error_code == 40400


async def test_a_list_that_lacks_groups_is_an_error() -> None:
    async with group_node() as one:
        await lagging(one)
        coordinators = one.node.services.coordinators

        async def fails(*_: object, **__: object) -> bytes:
            raise LogError(COORDINATOR_LOADING)

        coordinators.call_partition = fails
        reply = await one.peer.request("GET", GROUPS)
        assert reply.status == 503
