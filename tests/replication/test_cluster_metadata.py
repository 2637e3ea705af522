"""Changes of the cluster's metadata: results for the proposer, and the effect on open logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from raftlog.metadata.apply.apply import ApplyResult
from raftlog.metadata.commands import (
    Command,
    CreateTopic,
    FenceBroker,
    RegisterBroker,
    UnfenceBroker,
    encode_command,
)
from raftlog.metadata.decisions.elections import LogEnds, PartitionKey
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.raft import Applied, Outcome, RaftMember, Refused, Unknown
from raftlog.raft.voters import Voter, VoterSet
from raftlog.record.errors import (
    ILLEGAL_STATE,
    INVALID_CONFIG,
    NO_CONTROLLER,
    NOT_FOUND,
    NOT_READY,
    RETRIABLE,
    LogError,
)
from raftlog.record.types import BrokerId, TopicId
from raftlog.replication import cluster_metadata
from raftlog.replication.cluster_metadata import ClusterMetadata
from raftlog.replication.manager import ReplicaManager
from raftlog.replication.partition import Host
from raftlog.replication.replica import TopicSettings
from raftlog.replication.streams.follower_streams import FollowerStreams
from raftlog.storage.manager import LogManager
from raftlog.world.cluster_clock import ClusterClock
from raftlog.world.randomness import SystemRandomness
from raftlog.world.time import SystemClock
from tests.replication.one_node import NotedStreams
from tests.replication.permits import SwitchedPermit
from tests.simulation.disk import SimulatedDisk
from tests.waiting import DEADLINE_S

BROKER = BrokerId(1)


@dataclass
class DirectQuorum:
    """Applies proposals at once, unless the test gives another ending."""

    state_machine: MetadataStateMachine
    ending: Refused | Unknown | None = None
    index: int = 0
    voters: VoterSet = field(default_factory=lambda: VoterSet((Voter(1, "h", 1),)))
    on_barrier: Callable[[], None] = lambda: None

    async def read_barrier(self) -> int:
        await asyncio.sleep(0)
        if isinstance(self.ending, Refused):
            raise LogError(self.ending.entry, self.ending.message)
        self.on_barrier()
        return self.index

    async def propose(self, command: bytes) -> Outcome[ApplyResult]:
        await asyncio.sleep(0)
        if self.ending is not None:
            return self.ending
        return self.apply(command)

    def apply(self, command: bytes) -> Applied[ApplyResult]:
        self.index += 1
        return Applied(self.index, self.state_machine.apply(self.index, command))


@dataclass
class Cluster:
    """One broker's metadata and partitions, over a simulated disk."""

    quorum: DirectQuorum
    metadata: ClusterMetadata
    replicas: ReplicaManager

    def run(self, command: Command) -> None:
        self.quorum.apply(encode_command(command)).result.check()

    def retention_ms(self, topic: str) -> int:
        return self.replicas.partition(topic, 0).log.config.retention_ms


def registration(broker_id: int) -> RegisterBroker:
    return RegisterBroker(
        broker_id=BrokerId(broker_id),
        directory_id=f"d{broker_id}",
        incarnation=f"i{broker_id}",
        host="h",
        port=1,
        software_version="0",
    )


async def no_log_ends(keys: Collection[PartitionKey]) -> Mapping[PartitionKey, LogEnds]:
    """The only broker there is: no election takes the ends of logs."""
    raise AssertionError(keys)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    state_machine = MetadataStateMachine()
    quorum = DirectQuorum(state_machine)
    settings = TopicSettings(
        {"retention.ms": "700"}, cluster=lambda: state_machine.image.cluster_settings
    )
    logs = await LogManager.open(SimulatedDisk(1), SystemClock())
    host = Host(
        broker_id=BROKER,
        clock=SystemClock(),
        cluster_clock=ClusterClock(SystemClock()),
        permit=SwitchedPermit(),
        brokers=lambda: state_machine.image.brokers,
    )
    replicas = ReplicaManager(
        state_machine,
        logs,
        settings,
        host,
        cast(FollowerStreams, NotedStreams()),
        on_fatal=pytest.fail,
    )
    metadata = ClusterMetadata(
        state_machine=state_machine,
        quorum=cast(RaftMember[ApplyResult], quorum),
        broker_id=BROKER,
        randomness=SystemRandomness(),
        settings=settings,
        settled=replicas.settled,
        log_ends=no_log_ends,
    )
    made = Cluster(quorum, metadata, replicas)
    made.run(registration(BROKER))
    epoch = state_machine.image.brokers[BROKER].broker_epoch
    made.run(UnfenceBroker(broker_id=BROKER, broker_epoch=epoch))
    await replicas.start()
    try:
        yield made
    finally:
        await replicas.close()
        await logs.close()


async def test_cluster_settings_reach_open_logs_of_topics_that_do_not_set_them(
    cluster: Cluster,
) -> None:
    await cluster.metadata.create_topic("plain")
    await cluster.metadata.create_topic("own", configs={"retention.ms": "500"})
    assert (cluster.retention_ms("plain"), cluster.retention_ms("own")) == (700, 500)
    index, values = await cluster.metadata.alter_cluster_settings({"retention.ms": "600"})
    assert (index, values) == (cluster.quorum.index, {"retention.ms": "600"})
    assert (cluster.retention_ms("plain"), cluster.retention_ms("own")) == (600, 500)
    await cluster.metadata.create_topic("later")
    assert cluster.retention_ms("later") == 600
    assert (await cluster.metadata.alter_cluster_settings({}, ["retention.ms"]))[1] == {}
    assert [cluster.retention_ms(name) for name in ("plain", "own", "later")] == [700, 500, 700]


async def test_cluster_settings_reach_the_in_sync_rule(cluster: Cluster) -> None:
    await cluster.metadata.create_topic("t")
    await cluster.metadata.alter_cluster_settings({"min.insync.replicas": "2"})
    assert cluster.replicas.partition("t", 0).min_insync_replicas == 2


async def test_change_that_changes_nothing_is_answered(cluster: Cluster) -> None:
    await cluster.metadata.alter_cluster_settings({"flush": "async"})
    async with asyncio.timeout(DEADLINE_S):
        _, values = await cluster.metadata.alter_cluster_settings({"flush": "async"})
    assert values == {"flush": "async"}


async def test_illegal_setting_is_not_proposed(cluster: Cluster) -> None:
    before = cluster.quorum.index
    with pytest.raises(LogError) as refused:
        await cluster.metadata.alter_cluster_settings({"retention.ms": "soon"})
    assert refused.value.entry is INVALID_CONFIG
    assert cluster.quorum.index == before


async def test_broker_without_life_vote_and_replicas_is_forgotten(cluster: Cluster) -> None:
    cluster.run(registration(2))  # fenced: no heartbeat yet
    await cluster.metadata.unregister_broker(BrokerId(2))
    assert sorted(cluster.metadata.image.brokers) == [1]
    before = cluster.quorum.index
    for broker_id, entry in ((2, NOT_FOUND), (1, ILLEGAL_STATE)):
        with pytest.raises(LogError) as refused:
            await cluster.metadata.unregister_broker(BrokerId(broker_id))
        assert refused.value.entry is entry
    assert cluster.quorum.index == before, "neither was proposed"


async def test_broker_is_forgotten_by_what_was_known_anywhere_before(cluster: Cluster) -> None:
    """This node may not have applied the vote's removal, or the fencing, yet."""
    quorum = cluster.quorum
    with_vote = quorum.voters.add(Voter(2, "h", 2))
    cluster.run(registration(2))

    def catch_up() -> None:
        quorum.voters = with_vote.remove(2)

    quorum.voters, quorum.on_barrier = with_vote, catch_up
    await cluster.metadata.unregister_broker(BrokerId(2))
    cluster.run(registration(2))
    quorum.voters, quorum.on_barrier = with_vote, lambda: None
    with pytest.raises(LogError, match="`raftlog quorum remove-voter 2`") as refused:
        await cluster.metadata.unregister_broker(BrokerId(2))
    assert refused.value.entry is ILLEGAL_STATE


async def test_broker_that_holds_replicas_is_not_forgotten(cluster: Cluster) -> None:
    cluster.run(registration(2))
    epoch = cluster.metadata.image.brokers[BrokerId(2)].broker_epoch
    cluster.run(UnfenceBroker(broker_id=BrokerId(2), broker_epoch=epoch))
    cluster.run(
        CreateTopic(topic_id=TopicId("0" * 32), name="t", configs={}, assignments=((BrokerId(2),),))
    )
    cluster.run(FenceBroker(broker_id=BrokerId(2), broker_epoch=epoch))
    with pytest.raises(LogError, match="1 partition of 1 topic") as refused:
        await cluster.metadata.unregister_broker(BrokerId(2))
    assert refused.value.entry is ILLEGAL_STATE
    await cluster.metadata.delete_topic("t")
    await cluster.metadata.unregister_broker(BrokerId(2))


@pytest.mark.parametrize(
    ("ending", "entry"),
    [
        (Refused(NO_CONTROLLER, "Nobody leads."), NO_CONTROLLER),
        (Unknown("Nobody answered."), RETRIABLE),
    ],
)
async def test_without_a_quorum_changes_fail_typed_and_partitions_are_served(
    cluster: Cluster, ending: Any, entry: object
) -> None:
    await cluster.metadata.create_topic("t")
    cluster.quorum.ending = ending
    for change in (
        cluster.metadata.create_topic("u"),
        cluster.metadata.alter_configs("t", {"retention.ms": "1"}),
        cluster.metadata.alter_cluster_settings({"retention.ms": "1"}),
        cluster.metadata.delete_topic("t"),
    ):
        with pytest.raises(LogError) as failed:
            await change
        assert failed.value.entry is entry
        assert failed.value.entry.retriable
    assert (await cluster.replicas.partition("t", 0).read(0, max_bytes=1)).data == b""


async def test_a_creation_is_answered_once_committed_though_the_disk_takes_long(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_metadata, "SETTLE_S", 0.01)
    gate = asyncio.Event()
    run = SimulatedDisk.run

    async def gated(disk: SimulatedDisk, work: Callable[[], object]) -> object:
        await gate.wait()
        return await run(disk, work)

    monkeypatch.setattr(SimulatedDisk, "run", gated)
    topic = await cluster.metadata.create_topic("large", partitions=1_000)
    assert len(topic.partitions) == 1_000
    assert cluster.replicas.opening_count == 1_000
    with pytest.raises(LogError) as refused:
        cluster.replicas.partition("large", 0)
    assert refused.value.entry is NOT_READY
    gate.set()
    await cluster.replicas.settled(cluster.quorum.index)
    assert cluster.replicas.opening_count == 0
    assert cluster.replicas.partition("large", 999).is_leader
