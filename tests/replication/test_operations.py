"""Operators' requests and failed replicas, through a quorum with concurrent proposals."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest

from raftlog.metadata.apply.apply import ApplyResult
from raftlog.metadata.commands import (
    AlterIsr,
    AlterTopicConfigs,
    ChangePartitions,
    Command,
    CreateTopic,
    PartitionChange,
    RegisterBroker,
    UnfenceBroker,
    decode_command,
    encode_command,
)
from raftlog.metadata.decisions import reassignment
from raftlog.metadata.decisions.elections import LogEnd, LogEnds, PartitionKey
from raftlog.metadata.decisions.liveness import plan_replica_failures
from raftlog.metadata.decisions.reassignment import Move
from raftlog.metadata.image import NO_LEADER_ID, MetadataImage, PartitionImage
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.raft import Applied, Outcome, RaftMember, Refused, Unknown
from raftlog.record.errors import (
    ILLEGAL_STATE,
    INVALID_PARTITIONS,
    NO_CONTROLLER,
    NOT_FOUND,
    RETRIABLE,
    UNKNOWN_PARTITION,
    LogError,
)
from raftlog.record.types import BrokerId, LeaderEpoch, Offset, PartitionId, TopicId
from raftlog.replication import cluster_metadata
from raftlog.replication.cluster_metadata import ClusterMetadata
from raftlog.replication.replica import TopicSettings
from raftlog.world.randomness import SystemRandomness

TOPIC_ID = TopicId("0" * 32)
KEY: PartitionKey = (TOPIC_ID, PartitionId(0))


@dataclass
class SharedQuorum:
    """Applies proposals at once; other proposals may come first."""

    state_machine: MetadataStateMachine = field(default_factory=MetadataStateMachine)
    index: int = 0
    before: deque[Callable[[], None]] = field(default_factory=deque)
    """Done one after the other, each right before a proposal is applied."""
    ending: Refused | Unknown | None = None
    proposed: list[Command] = field(default_factory=list)

    async def propose(self, command: bytes) -> Outcome[ApplyResult]:
        await asyncio.sleep(0)
        self.proposed.append(decode_command(command))
        if self.ending is not None:
            return self.ending
        if self.before:
            self.before.popleft()()
        result = self.apply(decode_command(command))
        return Applied(self.index, result)

    def apply(self, command: Command) -> ApplyResult:
        self.index += 1
        return self.state_machine.apply(self.index, encode_command(command))

    @property
    def image(self) -> MetadataImage:
        return self.state_machine.image

    def row(self, partition: int = 0) -> PartitionImage:
        return self.image.topic("t").partitions[partition]

    def configure(self, **configs: str) -> None:
        """Set configs of the topic; `_` in a name stands for a dot."""
        values = {name.replace("_", "."): value for name, value in configs.items()}
        self.apply(AlterTopicConfigs(topic_id=TOPIC_ID, values=values)).check()

    def alter_isr(self, *members: int) -> None:
        """The leader of partition 0 changes its ISR."""
        row = self.row()
        epochs = {b: broker.broker_epoch for b, broker in self.image.brokers.items()}
        self.apply(
            AlterIsr(
                broker_id=row.leader,
                broker_epoch=epochs[row.leader],
                topic_id=TOPIC_ID,
                partition=row.partition,
                leader_epoch=row.leader_epoch,
                partition_epoch=row.partition_epoch,
                isr=tuple((BrokerId(b), epochs[BrokerId(b)]) for b in members),
                min_isr_default=2,
            )
        ).check()


@dataclass
class Node:
    """Node 2 of four, which holds partitions 0 and 1 of topic t."""

    quorum: SharedQuorum
    metadata: ClusterMetadata
    settled: list[int]
    ends: dict[BrokerId, LogEnd]
    """Of every partition, as the brokers answer."""


@pytest.fixture
def node() -> Node:
    quorum = SharedQuorum()
    for number in range(1, 5):
        broker_id = BrokerId(number)
        broker = quorum.apply(
            RegisterBroker(
                broker_id=broker_id,
                directory_id=f"d{number}",
                incarnation=f"i{number}",
                host="h",
                port=1,
                software_version="0",
            )
        ).broker()
        quorum.apply(UnfenceBroker(broker_id=broker_id, broker_epoch=broker.broker_epoch))
    one, two, three = (BrokerId(number) for number in (1, 2, 3))
    quorum.apply(
        CreateTopic(
            topic_id=TOPIC_ID,
            name="t",
            configs={},
            assignments=((one, two, three), (two, three, one)),
        )
    ).check()
    settled: list[int] = []
    ends: dict[BrokerId, LogEnd] = {}

    async def collect(keys: Collection[PartitionKey]) -> Mapping[PartitionKey, LogEnds]:
        await asyncio.sleep(0)
        return dict.fromkeys(keys, ends)

    async def settle(index: int) -> None:
        await asyncio.sleep(0)
        settled.append(index)

    metadata = ClusterMetadata(
        state_machine=quorum.state_machine,
        quorum=cast(RaftMember[ApplyResult], quorum),
        broker_id=two,
        randomness=SystemRandomness(),
        settings=TopicSettings(),
        settled=settle,
        log_ends=collect,
    )
    return Node(quorum, metadata, settled, ends)


async def test_failed_replicas_are_out_before_the_call_returns(node: Node) -> None:
    await node.metadata.fail_replicas([KEY, (TOPIC_ID, PartitionId(1))], lost=True)
    rows = [node.quorum.row(0), node.quorum.row(1)]
    assert [(row.leader, row.isr, row.elr) for row in rows] == [(1, (1, 3), ()), (3, (3, 1), ())]
    assert node.settled == [], "whoever works on the disk may call it"


async def test_failure_outlasts_changes_that_others_make_at_the_same_time(node: Node) -> None:
    node.quorum.before.extend(
        [lambda: node.quorum.alter_isr(1, 2), lambda: node.quorum.alter_isr(1, 2, 3)]
    )
    await node.metadata.fail_replicas([KEY, (TOPIC_ID, PartitionId(1))], lost=True)
    assert node.quorum.row().isr == (1, 3)
    sizes = [len(c.changes) for c in node.quorum.proposed if isinstance(c, ChangePartitions)]
    assert sizes == [2, 1, 1], "what was done already is not done again"
    assert node.quorum.row(1).leader_epoch == 1


async def test_failure_that_is_not_known_to_be_committed_is_an_error(node: Node) -> None:
    for ending, entry in (
        (Refused(NO_CONTROLLER, "Nobody leads."), NO_CONTROLLER),
        (Unknown("Nobody answered."), RETRIABLE),
    ):
        node.quorum.ending = ending
        with pytest.raises(LogError) as raised:
            await node.metadata.fail_replicas([KEY], lost=True)
        assert raised.value.entry is entry


async def test_failure_is_given_up_after_many_rounds(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_metadata, "PLAN_ROUNDS_MAX", 4)
    for members in ((1, 2), (1, 2, 3), (1, 2), (1, 2, 3), (1, 2)):
        node.quorum.before.append(lambda members=members: node.quorum.alter_isr(*members))
    with pytest.raises(LogError, match="keep changing") as raised:
        await node.metadata.fail_replicas([KEY], lost=True)
    assert raised.value.entry is RETRIABLE
    assert len(node.quorum.proposed) == 4


async def test_leadership_is_transferred_though_the_isr_changes_meanwhile(node: Node) -> None:
    node.quorum.before.append(lambda: node.quorum.alter_isr(1, 2))
    await node.metadata.operations.transfer_leader("t", 0, BrokerId(2))
    assert (node.quorum.row().leader, node.quorum.row().isr) == (2, (1, 2))
    assert node.settled == [node.quorum.index]
    await node.metadata.operations.transfer_leader("t", 0, BrokerId(2))
    assert len(node.quorum.proposed) == 2, "it leads already"
    node.quorum.before.append(lambda: node.quorum.alter_isr(1, 2, 3))
    await node.metadata.operations.transfer_leader("t", 0, None)
    assert node.quorum.row().leader == 1


def log_end(last_epoch: int, end_offset: int) -> LogEnd:
    return LogEnd(LeaderEpoch(last_epoch), Offset(end_offset))


async def test_an_operator_s_unclean_election_takes_the_longest_log(node: Node) -> None:
    one, three = BrokerId(1), BrokerId(3)
    node.quorum.configure(min_insync_replicas="1")
    node.quorum.alter_isr(1)
    (failure,) = plan_replica_failures(node.quorum.image, one, [KEY], lost=True)
    node.quorum.apply(failure).check()
    assert node.quorum.row().leader == NO_LEADER_ID
    node.ends |= {one: log_end(1, 9), BrokerId(2): log_end(0, 99), three: log_end(1, 10)}
    await node.metadata.operations.transfer_leader("t", 0, None, unclean=True)
    assert (node.quorum.row().leader, node.quorum.row().isr) == (3, (3,))
    with pytest.raises(LogError) as raised:
        await node.metadata.operations.transfer_leader("t", 7, None, unclean=True)
    assert raised.value.entry is UNKNOWN_PARTITION


async def test_the_last_in_sync_gives_way_to_the_longest_log_of_the_others(node: Node) -> None:
    node.quorum.configure(min_insync_replicas="1", unclean_leader_election_enable="true")
    await node.metadata.operations.transfer_leader("t", 0, BrokerId(2))
    node.quorum.alter_isr(2)
    node.ends |= {BrokerId(1): log_end(0, 4), BrokerId(3): log_end(0, 5)}
    await node.metadata.fail_replicas([KEY], lost=False)
    assert (node.quorum.row().leader, node.quorum.row().isr) == (3, (3,))


async def test_transfer_to_a_replica_that_has_just_fallen_behind_is_refused(node: Node) -> None:
    node.quorum.before.append(lambda: node.quorum.alter_isr(1, 3))
    with pytest.raises(LogError, match="not in sync") as raised:
        await node.metadata.operations.transfer_leader("t", 0, BrokerId(2))
    assert raised.value.entry is ILLEGAL_STATE
    assert node.quorum.row().leader == 1


async def test_moves_are_begun_and_cancelled(node: Node) -> None:
    operations = node.metadata.operations
    to_four = tuple(BrokerId(number) for number in (1, 3, 4))
    with pytest.raises(LogError) as raised:
        await operations.reassign([Move("t", 0, to_four), Move("t", 1, (BrokerId(9),))])
    assert raised.value.entry is INVALID_PARTITIONS
    assert node.quorum.proposed == []
    await operations.reassign([Move("t", 0, to_four), Move("t", 1, to_four)])
    assert [node.quorum.row(number).adding for number in (0, 1)] == [(4,), (4,)]
    await operations.cancel_reassignment("t", 0)
    assert (node.quorum.row().adding, {*node.quorum.row().replicas}) == ((), {1, 2, 3})
    with pytest.raises(LogError) as raised:
        await operations.cancel_reassignment("t", 0)
    assert raised.value.entry is ILLEGAL_STATE


async def test_change_that_contradicts_the_metadata_is_not_repeated(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = node.quorum.row()
    wrong = PartitionChange(
        topic_id=TOPIC_ID, partition=row.partition, partition_epoch=row.partition_epoch, replicas=()
    )
    monkeypatch.setattr(
        reassignment, "plan_reassignments", lambda *_: [ChangePartitions(changes=(wrong,))]
    )
    with pytest.raises(LogError, match="needs replicas"):
        await node.metadata.operations.reassign([])
    assert len(node.quorum.proposed) == 1


async def test_wishes_about_brokers_are_put_on_record(node: Node) -> None:
    operations = node.metadata.operations
    await operations.decommission(BrokerId(2))
    await operations.set_maintenance(BrokerId(3), wanted=True)
    brokers = node.quorum.image.brokers
    assert brokers[BrokerId(2)].decommissioning and brokers[BrokerId(3)].maintenance
    with pytest.raises(LogError, match="only 2 brokers"):
        await operations.decommission(BrokerId(1))
    await operations.recommission(BrokerId(2))
    await operations.set_maintenance(BrokerId(3), wanted=False)
    assert not brokers[BrokerId(2)].decommissioning and not brokers[BrokerId(3)].maintenance
    for asked in (
        operations.decommission(BrokerId(9)),
        operations.recommission(BrokerId(9)),
        operations.set_maintenance(BrokerId(9), wanted=True),
    ):
        with pytest.raises(LogError) as raised:
            await asked
        assert raised.value.entry is NOT_FOUND
