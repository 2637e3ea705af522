"""Changes by the client: the wait before a stop, replicas chosen, nodes unregistered."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftlog_client import (
    Admin,
    ConfigEntry,
    ConnectionLostError,
    PartitionInfo,
    TopicDescription,
    TopicPartition,
)
from raftlog_client.errors import server_error

from raftlog.fleet import changes
from raftlog.fleet.errors import FleetError
from raftlog.record.errors import ILLEGAL_STATE, NOT_FOUND, UNAUTHORIZED

PATIENCE_S = 60.0


def partition(number: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> PartitionInfo:
    return PartitionInfo("t", number, replicas[0], 0, replicas, isr)


class Cluster:
    """The answers of an admin client that the changes call for."""

    def __init__(self, *isrs: tuple[int, ...], replicas: tuple[int, ...] = (1, 2, 3)) -> None:
        self.replicas = replicas
        self.isrs = list(isrs)
        """The in-sync replicas, answer by answer; the last one stays. Empty: no answer."""
        self.refusals: list[Exception] = []
        """Of `remove_node`."""

    async def describe_topics(self) -> list[TopicDescription]:
        isr = self.isrs.pop(0) if len(self.isrs) > 1 else self.isrs[0]
        if not isr:
            raise ConnectionLostError("gone", outcome_unknown=False)
        return [TopicDescription("t", "id", (partition(0, self.replicas, isr),))]

    async def describe_configs(self, topic: str) -> dict[str, ConfigEntry]:
        name = "min.insync.replicas"
        return {name: ConfigEntry(name, "2", is_default=False, source="DYNAMIC_TOPIC_CONFIG")}

    async def remove_node(self, node_id: int) -> None:
        if self.refusals:
            raise self.refusals.pop(0)


async def wait_to_stop(cluster: Cluster, node_id: int = 1, **options: Any) -> list[str]:
    said: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        await changes.await_may_stop(cast(Admin, cluster), node_id, said.append, **options)
    return said


async def test_stop_waits_until_enough_replicas_are_in_sync() -> None:
    cluster = Cluster((1, 2), (1, 2), (), (1, 2, 3))
    assert await wait_to_stop(cluster) == [
        "node 1 must not stop yet: t/0 would fall below min.insync.replicas",
        "node 1 must not stop yet: the cluster does not answer: gone",
    ]


async def test_partition_with_too_few_replicas_is_named_and_passed() -> None:
    (said,) = await wait_to_stop(Cluster((1, 2), replicas=(1, 2)))
    assert said.startswith("node 1 stops although t/0 then refuse acks=all")


async def test_wait_for_a_stop_has_a_deadline() -> None:
    with pytest.raises(FleetError, match="node 1 cannot stop: t/0 would fall") as caught:
        await wait_to_stop(Cluster((1, 2)), timeout_s=0.0)
    assert "cluster health" in (caught.value.hint or "")


async def test_node_that_does_not_serve_is_needed_only_where_it_is_in_sync() -> None:
    assert await wait_to_stop(Cluster((2,)), 1, is_serving=False) == []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await changes.await_may_stop(cast(Admin, Cluster((2,))), 1, lambda _: None)


async def test_node_is_unregistered_once_its_session_has_ended() -> None:
    cluster = Cluster()
    cluster.refusals = [server_error(ILLEGAL_STATE.code), server_error(NOT_FOUND.code)]
    await changes.forget(cast(Admin, cluster), 4)
    assert not cluster.refusals
    cluster.refusals = [ConnectionLostError("gone", outcome_unknown=True)]
    await changes.forget(cast(Admin, cluster), 4)


async def test_refusal_to_unregister_is_raised_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.refusals = [server_error(UNAUTHORIZED.code)]
    with pytest.raises(type(server_error(UNAUTHORIZED.code))):
        await changes.forget(cast(Admin, cluster), 4)
    monkeypatch.setattr(changes, "FORGET_TIMEOUT_S", 0.0)
    cluster.refusals = [server_error(ILLEGAL_STATE.code)]
    with pytest.raises(FleetError, match="does not unregister node 4"):
        await changes.forget(cast(Admin, cluster), 4)


def test_added_replicas_go_to_other_racks_and_to_the_emptiest_nodes() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "c"}
    found = changes.resized([partition(0, (1,), (1,)), partition(1, (3, 1), (3, 1))], 2, racks)
    assert found == {TopicPartition("t", 0): (1, 4)}
    assert changes.resized([partition(0, (1,), (1,))], 4, dict.fromkeys((1, 2, 3, 4))) == {
        TopicPartition("t", 0): (1, 2, 3, 4)
    }


def test_replicas_in_sync_stay_when_others_go() -> None:
    found = changes.resized([partition(0, (1, 2, 3), (1, 3))], 2, {1: None, 2: None, 3: None})
    assert found == {TopicPartition("t", 0): (1, 3)}


def test_more_replicas_than_nodes_are_refused() -> None:
    with pytest.raises(FleetError, match="t/0 cannot have 3 replicas on 2 nodes"):
        changes.resized([partition(0, (1,), (1,))], 3, {1: None, 2: None})


@st.composite
def topics(draw: st.DrawFn) -> tuple[list[PartitionInfo], int, dict[int, str | None]]:
    nodes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6, unique=True))
    racks = {node: draw(st.sampled_from((None, "a", "b"))) for node in nodes}
    chosen = []
    for number in range(draw(st.integers(0, 5))):
        replicas = draw(st.lists(st.sampled_from(nodes), min_size=1, unique=True))
        isr = draw(st.lists(st.sampled_from(replicas), unique=True))
        chosen.append(partition(number, tuple(replicas), tuple(isr)))
    return chosen, draw(st.integers(1, len(nodes))), racks


@given(topics())
def test_every_partition_gets_as_many_replicas_as_written(
    given_topic: tuple[list[PartitionInfo], int, dict[int, str | None]],
) -> None:
    partitions, factor, racks = given_topic
    found = changes.resized(partitions, factor, racks)
    for info in partitions:
        target = found.get(TopicPartition("t", info.partition), info.replicas)
        assert len(set(target)) == len(target) == factor
        assert set(target) <= set(racks)
        # A replica in sync leaves only for want of places.
        kept = set(target) & set(info.isr)
        assert len(kept) == min(len(info.isr), factor)
