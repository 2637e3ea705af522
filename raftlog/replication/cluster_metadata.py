"""Changing the metadata: decide, propose, wait until it is applied and carried out here.

Each call turns a wish into a command by the pure decisions of `raftlog.metadata.admin_plans`, puts
it through the quorum, and returns when this node acts by it.

What operators decide about leaders, replicas and brokers: plans, carried out.

Each call returns when what it asks for is in the metadata and this node acts by it. What takes
longer (copying records to other brokers, moving leaders away) is begun by then, and the active
controller goes on with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Final, TypeAlias

from raftlog.metadata import admin_plans, decommission, elections, liveness, reassignment
from raftlog.metadata.apply import ApplyResult
from raftlog.metadata.apply_cluster import ClusterSettings
from raftlog.metadata.apply_partitions import PartitionsChanged
from raftlog.metadata.apply_rules import Reason
from raftlog.metadata.commands import (
    AllocateProducerIds,
    Command,
    DeleteTopic,
    encode_command,
)
from raftlog.metadata.elections import PartitionKey
from raftlog.metadata.image import MetadataImage, TopicImage
from raftlog.metadata.liveness import plan_replica_failures
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.raft import Applied, RaftMember, Refused, Unknown
from raftlog.record.errors import NOT_READY, RETRIABLE, LogError
from raftlog.record.types import BrokerId, ProducerEpoch, ProducerId, TopicId
from raftlog.replication.replica import TopicSettings
from raftlog.world import Randomness

TOPIC_ID_BYTES = 16
PLAN_ROUNDS_MAX: Final = 20
"""Plans for one purpose in a row, if others change the same partitions at the same time."""


class ClusterMetadata:
    """The applied metadata of this node, and the way to change the cluster's."""

    def __init__(
        self,
        *,
        state_machine: MetadataStateMachine,
        quorum: RaftMember[ApplyResult],
        broker_id: BrokerId,
        randomness: Randomness,
        settings: TopicSettings,
        settled: Callable[[int], Awaitable[None]],
        unwritable: Callable[[], Set[BrokerId]] = frozenset,
    ) -> None:
        """`unwritable` tells the brokers whose disks take no writes, as far as this node knows."""
        self._state_machine = state_machine
        self._quorum = quorum
        self._broker_id = broker_id
        self._randomness = randomness
        self._settings = settings
        self._settled = settled
        self._producer_ids: range = range(0)
        self._unwritable = unwritable
        self.operations: Final = Operations(lambda: self.image, self._carry_out, unwritable)
        """What operators decide about brokers and replicas."""

    @property
    def image(self) -> MetadataImage:
        """The applied metadata. Ask each time: it may be replaced as a whole."""
        return self._state_machine.image

    @property
    def unwritable(self) -> Set[BrokerId]:
        """The brokers whose disks take no writes, as far as this node knows."""
        return self._unwritable()

    @property
    def settings(self) -> TopicSettings:
        """What topics default to on this node."""
        return self._settings

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> TopicImage:
        """Create a topic; it can be written to when this returns.

        Raises LogError: INVALID_TOPIC, TOPIC_EXISTS, INVALID_PARTITIONS, INVALID_CONFIG.
        """
        command = admin_plans.plan_topic(
            self.image,
            name=name,
            partitions=self._settings.partitions_default if partitions is None else partitions,
            replication_factor=replication_factor,
            configs=configs or {},
            topic_id=TopicId(self._randomness.token(TOPIC_ID_BYTES).hex()),
            unwritable=self._unwritable(),
        )
        return (await self._apply(command)).topic()

    async def delete_topic(self, name: str) -> TopicImage:
        """Delete a topic and its records. Raises LogError(UNKNOWN_TOPIC)."""
        return (await self._apply(DeleteTopic(topic_id=self.image.topic(name).topic_id))).topic()

    async def add_partitions(self, name: str, total: int) -> TopicImage:
        """Grow a topic to `total` partitions. LogError: UNKNOWN_TOPIC, INVALID_PARTITIONS."""
        command = admin_plans.plan_partitions(
            self.image, name=name, partitions=total, unwritable=self._unwritable()
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
        """Set topic configs for all topics that do not set them, and return others to the default.

        Returns the index of the change, and all settings right after it. Raises
        LogError(INVALID_CONFIG).
        """
        command = admin_plans.plan_cluster_settings(self.image, values=values, removals=removals)
        result = await self._apply(command)
        assert isinstance(result.value, ClusterSettings)
        return result.index, result.value.values

    async def unregister_broker(self, broker_id: BrokerId) -> None:
        """Forget a broker that is gone for good: its id may then come with another data directory.

        Raises LogError: NOT_FOUND; ILLEGAL_STATE while it is alive, has a vote, or holds replicas;
        NO_CONTROLLER or RETRIABLE without a quorum.
        """
        # Its vote may have been taken just now by way of another node, ahead of this one.
        await self._quorum.read_barrier()
        command = liveness.plan_unregistration(
            self.image, broker_id, has_vote=self._quorum.voters.find(broker_id) is not None
        )
        await self._apply(command)

    async def allocate_producer_id(self) -> tuple[ProducerId, ProducerEpoch]:
        """An id that no producer was ever given, with its first epoch.

        Raises LogError: NOT_READY before this node is registered; as `propose` does.
        """
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

    async def fail_replicas(self, keys: Collection[PartitionKey]) -> None:
        """Take this node out of ISR and ELR of these partitions: its replicas cannot be trusted.

        When this returns it is in neither, and knows it: only then may the files be touched. Does
        not wait for what follows on this node's disk, so that whoever works on that may call it.
        Raises LogError, after which nothing may be done to the files: NO_CONTROLLER, RETRIABLE.
        """
        left = keys
        for _ in range(PLAN_ROUNDS_MAX):
            stale: list[PartitionKey] = []
            for command in plan_replica_failures(self.image, self._broker_id, left):
                changed = (await propose(self._quorum, command)).partitions()
                stale += [(each.topic_id, each.partition) for each in changed.stale]
            if not stale:
                return
            left = stale
        raise _restless()

    async def _carry_out(self, plan: Callable[[], Iterable[Command]]) -> None:
        """Propose what `plan` gives, anew as long as some of it was stale when it was applied.

        Raises what the plan and `propose` raise, and LogError(RETRIABLE) after many rounds.
        """
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
        await self._settled(result.index if result.delta else 0)
        return result


def _check_worth_another(changed: PartitionsChanged) -> None:
    """Raise LogError if a change was not merely stale: it would be refused again."""
    for each in changed.stale:
        if each.refusal.reason is Reason.INVALID:
            raise LogError(each.refusal.entry, each.refusal.message)


def _restless() -> LogError:
    return LogError(RETRIABLE, "The same partitions changed again and again: try again.")


async def propose(quorum: RaftMember[ApplyResult], command: Command) -> ApplyResult:
    """Put a command through the quorum. Raises LogError if it was refused or is unknown."""
    outcome = await quorum.propose(encode_command(command))
    match outcome:
        case Applied(result=result):
            result.check()
            return result
        case Refused(entry=entry, message=message):
            raise LogError(entry, message)
        case Unknown(message=message):
            raise LogError(RETRIABLE, message)


CarryOut: TypeAlias = Callable[[Callable[[], Iterable[Command]]], Awaitable[None]]
"""Proposes what a plan gives, and makes the plan anew if some of it was stale."""


class Operations:
    """Every call raises LogError for what is not possible, and NO_CONTROLLER or RETRIABLE."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        carry_out: CarryOut,
        unwritable: Callable[[], Set[BrokerId]] = frozenset,
    ) -> None:
        """`image` gives the applied metadata, `unwritable` the brokers that take no writes."""
        self._image = image
        self._unwritable = unwritable
        self._carry_out = carry_out

    async def transfer_leader(
        self, name: str, partition: int, broker_id: BrokerId | None, *, unclean: bool = False
    ) -> None:
        """Have that broker lead, or the best other one; `unclean`: though it may lack records.

        LogError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, NOT_FOUND, NO_LEADER, ILLEGAL_STATE.
        """

        def plan() -> Iterable[Command]:
            image = self._image()
            if unclean:
                return (
                    elections.plan_unclean_election(
                        image, name=name, partition=partition, broker_id=broker_id
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

        await self._carry_out(plan)

    async def reassign(self, moves: Sequence[reassignment.Move]) -> None:
        """Begin to move partitions to other brokers; all are checked before any is moved.

        LogError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, INVALID_PARTITIONS.
        """
        await self._carry_out(lambda: reassignment.plan_reassignments(self._image(), moves))

    async def cancel_reassignment(self, name: str, partition: int) -> None:
        """Leave a partition to the replicas that it had.

        LogError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, ILLEGAL_STATE.
        """
        await self._carry_out(
            lambda: (reassignment.plan_cancellation(self._image(), name=name, partition=partition),)
        )

    async def decommission(self, broker_id: BrokerId) -> None:
        """Have all that a broker holds moved to others.

        LogError: NOT_FOUND; ILLEGAL_STATE if too few others would be left.
        """
        await self._carry_out(lambda: (decommission.plan_decommission(self._image(), broker_id),))

    async def recommission(self, broker_id: BrokerId) -> None:
        """Cancel a decommission; what has moved stays where it is. LogError: NOT_FOUND."""
        await self._carry_out(lambda: decommission.plan_recommission(self._image(), broker_id))

    async def set_maintenance(self, broker_id: BrokerId, *, wanted: bool) -> None:
        """Have a broker lead nothing that others can, or end that. LogError: NOT_FOUND."""
        await self._carry_out(
            lambda: (decommission.plan_maintenance(self._image(), broker_id, wanted=wanted),)
        )
