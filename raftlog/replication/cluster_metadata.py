"""Metadata changes are planned, proposed, and awaited until they take effect on this node.

Each call plans a command by the pure decisions of `metadata/decisions/admin_plans.py`, proposes it
to the quorum, and returns when this node acts by the result.

`Operations` holds the operators' requests about leaders, replicas and brokers. Longer work (copying
records to other brokers, moving leaders away) has started on return, and the active controller
continues it.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
    Sequence,
    Set,
)
from contextlib import suppress
from typing import Final, TypeAlias, TypeVar

from raftlog.metadata.apply.apply import ApplyResult
from raftlog.metadata.apply.cluster import ClusterSettings
from raftlog.metadata.apply.partitions import PartitionsChanged
from raftlog.metadata.apply.rules import Reason
from raftlog.metadata.commands import (
    AllocateProducerIds,
    Assignments,
    Command,
    DeleteTopic,
    encode_command,
)
from raftlog.metadata.decisions import admin_plans, decommission, elections, liveness, reassignment
from raftlog.metadata.decisions.elections import LogEnds, PartitionKey
from raftlog.metadata.decisions.liveness import plan_replica_failures
from raftlog.metadata.image import MetadataImage, TopicImage
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.raft import Applied, RaftMember, Refused, Unknown
from raftlog.record.errors import NOT_READY, RETRIABLE, LogError
from raftlog.record.types import BrokerId, ProducerEpoch, ProducerId, TopicId
from raftlog.replication.replica import TopicSettings
from raftlog.world import Randomness

T = TypeVar("T")

CollectLogEnds: TypeAlias = Callable[
    [Collection[PartitionKey]], Awaitable[Mapping[PartitionKey, LogEnds]]
]
"""Queries the living brokers for the ends of their logs of these partitions."""

TOPIC_ID_BYTES = 16
SETTLE_S: Final = 1.0
"""Longest wait for this node's disk after a committed change of topics. The files of thousands of
partitions take longer, and a waiting client would take its request for lost."""
PLAN_ROUNDS_MAX: Final = 20
"""Most plans for one request, while other changes to the same partitions make them stale."""


class ClusterMetadata:
    """The applied metadata of this node, and its changes."""

    def __init__(
        self,
        *,
        state_machine: MetadataStateMachine,
        quorum: RaftMember[ApplyResult],
        broker_id: BrokerId,
        randomness: Randomness,
        settings: TopicSettings,
        settled: Callable[[int], Awaitable[None]],
        log_ends: CollectLogEnds,
        unwritable: Callable[[], Set[BrokerId]] = frozenset,
    ) -> None:
        """`unwritable` returns the brokers with unwritable disks, as known to this node."""
        self._state_machine = state_machine
        self._quorum = quorum
        self._broker_id = broker_id
        self._randomness = randomness
        self._settings = settings
        self._settled = settled
        self._producer_ids: range = range(0)
        self._log_ends = log_ends
        self._unwritable = unwritable
        self.operations: Final = Operations(lambda: self.image, self._execute, log_ends, unwritable)
        """The operators' requests about brokers and replicas."""

    @property
    def image(self) -> MetadataImage:
        """The applied metadata. Read it each time, because a snapshot replaces it as a whole."""
        return self._state_machine.image

    @property
    def unwritable(self) -> Set[BrokerId]:
        """The brokers with disks that take no writes, as known to this node."""
        return self._unwritable()

    @property
    def settings(self) -> TopicSettings:
        """The topic configs in force on this node."""
        return self._settings

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
        assignments: Assignments | None = None,
    ) -> TopicImage:
        """Create a topic. Committed on return. Partitions not open yet refuse appends (NOT_READY).
        Raises LogError INVALID_TOPIC, TOPIC_EXISTS, INVALID_PARTITIONS or INVALID_CONFIG."""
        command = await in_steps(
            admin_plans.plan_topic(
                self.image,
                name=name,
                partitions=self._settings.partitions_default if partitions is None else partitions,
                replication_factor=replication_factor,
                configs=configs or {},
                topic_id=TopicId(self._randomness.token(TOPIC_ID_BYTES).hex()),
                unwritable=self._unwritable(),
                assignments=assignments,
            )
        )
        return (await self._apply(command)).topic()

    async def delete_topic(self, name: str) -> TopicImage:
        """Delete a topic and its records. Raises LogError(UNKNOWN_TOPIC)."""
        return (await self._apply(DeleteTopic(topic_id=self.image.topic(name).topic_id))).topic()

    async def add_partitions(
        self, name: str, total: int, assignments: Assignments | None = None
    ) -> TopicImage:
        """Grow a topic to `total` partitions. `assignments` are the brokers of each new partition.
        Raises LogError UNKNOWN_TOPIC, INVALID_PARTITIONS or NOT_ENOUGH_REPLICAS."""
        command = await in_steps(
            admin_plans.plan_partitions(
                self.image,
                name=name,
                partitions=total,
                unwritable=self._unwritable(),
                assignments=assignments,
            )
        )
        return (await self._apply(command)).topic()

    async def alter_configs(
        self, name: str, values: Mapping[str, str], removals: Sequence[str] = ()
    ) -> TopicImage:
        """Set configs, and return others to their defaults. Raises LogError(INVALID_CONFIG)."""
        command = admin_plans.plan_configs(self.image, name=name, values=values, removals=removals)
        return (await self._apply(command)).topic()

    async def alter_cluster_settings(
        self, values: Mapping[str, str], removals: Sequence[str] = ()
    ) -> tuple[int, Mapping[str, str]]:
        """Set topic configs for all topics without their own values, and remove others. Returns the
        index of the change, and all settings right after. Raises LogError(INVALID_CONFIG)."""
        command = admin_plans.plan_cluster_settings(self.image, values=values, removals=removals)
        result = await self._apply(command)
        assert isinstance(result.value, ClusterSettings)
        return result.index, result.value.values

    async def unregister_broker(self, broker_id: BrokerId) -> None:
        """Unregister a broker that is gone for good. Its id may then use another data directory.

        Raises LogError NOT_FOUND, ILLEGAL_STATE while the broker is alive, has a vote, or holds
        replicas, or NO_CONTROLLER or RETRIABLE without a quorum.
        """
        # Another node may have removed the vote just now, ahead of this one.
        await self._quorum.read_barrier()
        command = liveness.plan_unregistration(
            self.image, broker_id, has_vote=self._quorum.voters.find(broker_id) is not None
        )
        await self._apply(command)

    async def replace_directory(self, broker_id: BrokerId, directory_id: str) -> None:
        """Give the place of a broker, whose data directory is lost, to an empty directory.

        Harmless to repeat. Raises LogError NOT_FOUND, ILLEGAL_STATE while the broker is alive or
        has a vote, or NO_CONTROLLER or RETRIABLE without a quorum.
        """
        await self._quorum.read_barrier()
        command = liveness.plan_replacement(
            self.image,
            broker_id,
            directory_id,
            has_vote=self._quorum.voters.find(broker_id) is not None,
        )
        if command is not None:
            await self._apply(command)

    async def allocate_producer_id(self) -> tuple[ProducerId, ProducerEpoch]:
        """A producer id never used before, with its first epoch. Raises LogError NOT_READY before
        this node is registered, and the errors of `propose`."""
        while not self._producer_ids:
            broker = self.image.brokers.get(self._broker_id)
            if broker is None:
                raise LogError(NOT_READY, "This node is not registered in the cluster yet.")
            block = (
                await self._apply(
                    AllocateProducerIds(broker_id=self._broker_id, broker_epoch=broker.broker_epoch)
                )
            ).producer_ids()
            self._producer_ids = range(block.first, block.first + block.count)
        producer_id, self._producer_ids = self._producer_ids[0], self._producer_ids[1:]
        return ProducerId(producer_id), ProducerEpoch(0)

    async def fail_replicas(self, keys: Collection[PartitionKey], *, lost: bool) -> None:
        """Take this node out of ISR and ELR of these partitions, whose replicas have failed.

        `plan_replica_failures` explains `lost`. On return this node has applied the change. Only
        then may the files be touched. Does not wait for this node's disk, so work on the disk may
        call it. Raises LogError NO_CONTROLLER, RETRIABLE or OVERLOADED, or ILLEGAL_STATE unless
        `lost` where no other living replica has all records. The files must not be touched then.
        """
        left = keys
        for _ in range(PLAN_ROUNDS_MAX):
            stale: list[PartitionKey] = []
            # Where records are lost, the active controller elects by the log ends that it queries.
            ends = {} if lost else await self._ends_of_others(left)
            for command in plan_replica_failures(
                self.image, self._broker_id, left, lost=lost, ends=ends
            ):
                changed = (await propose(self._quorum, command)).partitions()
                for each in changed.stale:
                    if each.refusal.reason is Reason.LAST_REPLICA:
                        raise LogError(each.refusal.entry, each.refusal.message)
                stale += [(each.topic_id, each.partition) for each in changed.stale]
            if not stale:
                return
            left = stale
        raise _restless()

    async def _ends_of_others(
        self, keys: Collection[PartitionKey]
    ) -> Mapping[PartitionKey, LogEnds]:
        """The log ends that decide unclean elections without this broker."""
        undecided = elections.undecided_elections(self.image, keys, excluding={self._broker_id})
        asked = list(undecided)
        return await self._log_ends(asked) if asked else {}

    async def _execute(self, plan: Callable[[], Iterable[Command]]) -> None:
        """Propose the commands of `plan`, and plan again while some were stale when applied. Raises
        the errors of the plan and of `propose`, and LogError(RETRIABLE) after many rounds."""
        index = 0
        for _ in range(PLAN_ROUNDS_MAX):
            stale = False
            for command in plan():
                result = await propose(self._quorum, command)
                if isinstance(result.value, PartitionsChanged) and result.value.stale:
                    _check_worth_another(result.value)
                    stale = True
                index = result.index if result.delta else index
            if not stale:
                await self._settled(index)
                return
        raise _restless()

    async def _apply(self, command: Command) -> ApplyResult:
        result = await propose(self._quorum, command)
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await self._settled(result.index if result.delta else 0)
        return result


def _check_worth_another(changed: PartitionsChanged) -> None:
    """Raise LogError unless the change was merely stale and a new plan may succeed."""
    for each in changed.stale:
        if each.refusal.reason is Reason.INVALID:
            raise LogError(each.refusal.entry, each.refusal.message)


def _restless() -> LogError:
    return LogError(RETRIABLE, "The same partitions keep changing: try again.")


async def in_steps(plan: Generator[None, None, T]) -> T:
    """The outcome of a plan, with a turn for the event loop after each step."""
    while True:
        try:
            next(plan)
        except StopIteration as end:
            outcome: T = end.value
            return outcome
        await asyncio.sleep(0)


async def propose(quorum: RaftMember[ApplyResult], command: Command) -> ApplyResult:
    """Propose a command to the quorum. Raises LogError if refused, or if the outcome is unknown."""
    outcome = await quorum.propose(encode_command(command))
    match outcome:
        case Applied(result=result):
            result.check()
            return result
        case Refused(entry=entry, message=message):
            raise LogError(entry, message)
        case Unknown(message=message):
            raise LogError(RETRIABLE, message)


Execute: TypeAlias = Callable[[Callable[[], Iterable[Command]]], Awaitable[None]]
"""Proposes the commands of a plan, and plans again while some were stale."""


class Operations:
    """The operators' requests. Every call may also raise LogError NO_CONTROLLER or RETRIABLE."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        execute: Execute,
        log_ends: CollectLogEnds,
        unwritable: Callable[[], Set[BrokerId]] = frozenset,
    ) -> None:
        """`image` returns the applied metadata, `unwritable` the brokers that take no writes."""
        self._image = image
        self._log_ends = log_ends
        self._unwritable = unwritable
        self._execute = execute

    async def transfer_leader(
        self, name: str, partition: int, broker_id: BrokerId | None, *, unclean: bool = False
    ) -> None:
        """Move the lead to a broker, or to the best other replica.

        `unclean` permits the loss of records. The best replica of an unclean election has the
        longest log. Raises LogError UNKNOWN_TOPIC, UNKNOWN_PARTITION, NOT_FOUND, NO_LEADER or
        ILLEGAL_STATE.
        """

        ends: LogEnds | None = None
        if unclean and broker_id is None:
            topic = self._image().topic(name)
            key = topic.topic_id, topic.partition(partition).partition
            ends = (await self._log_ends([key]))[key]

        def plan() -> Iterable[Command]:
            image = self._image()
            if unclean:
                return (
                    elections.plan_unclean_election(
                        image, name=name, partition=partition, broker_id=broker_id, ends=ends
                    ),
                )
            command = elections.plan_leader_transfer(
                image,
                name=name,
                partition=partition,
                broker_id=broker_id,
                unwritable=self._unwritable(),
            )
            return () if command is None else (command,)

        await self._execute(plan)

    async def elect_preferred(self, keys: Collection[PartitionKey]) -> None:
        """Return the lead of these partitions to their preferred replicas, where these may lead."""
        await self._execute(
            lambda: elections.plan_preferred_leaders(
                self._image(), excluding=self._unwritable(), keys=keys
            )
        )

    async def reassign(self, moves: Sequence[reassignment.Move]) -> None:
        """Start to move partitions to other brokers. All moves are checked before the first.
        LogError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, INVALID_PARTITIONS."""
        await self._execute(lambda: reassignment.plan_reassignments(self._image(), moves))

    async def cancel_reassignment(self, name: str, partition: int) -> None:
        """Return a partition to its replicas from before the reassignment. LogError: UNKNOWN_TOPIC,
        UNKNOWN_PARTITION, ILLEGAL_STATE."""
        await self._execute(
            lambda: (reassignment.plan_cancellation(self._image(), name=name, partition=partition),)
        )

    async def decommission(self, broker_id: BrokerId) -> None:
        """Start to move all replicas of a broker to others. Raises LogError NOT_FOUND, or
        ILLEGAL_STATE if too few other brokers would be left."""
        await self._execute(lambda: (decommission.plan_decommission(self._image(), broker_id),))

    async def recommission(self, broker_id: BrokerId) -> None:
        """Cancel a decommission. Replicas already moved stay there. Raises LogError NOT_FOUND."""
        await self._execute(lambda: decommission.plan_recommission(self._image(), broker_id))

    async def set_maintenance(self, broker_id: BrokerId, *, wanted: bool) -> None:
        """Begin maintenance, in which other brokers lead if they can, or end it. LogError:
        NOT_FOUND."""
        await self._execute(
            lambda: (decommission.plan_maintenance(self._image(), broker_id, wanted=wanted),)
        )
