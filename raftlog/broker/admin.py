"""Administration of topics, configs, records, leaders, reassignments, brokers and the quorum.

A method authorizes its principal and calls `ClusterMetadata` or a pure plan of raftlog.metadata. A
change returns once it is in the metadata and this node acts by it. Copies of records and moves of
leaders then continue in the background. Every change raises LogError NO_CONTROLLER or RETRIABLE
without a quorum.

Descriptions are this node's view, which is the applied metadata and the progress of replicas of
partitions led here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, TypeAlias, TypeVar

from raftlog.broker.authorize import (
    CLUSTER,
    Authorize,
    Operation,
    Principal,
    Resource,
    is_allowed,
    may_describe,
    topic_resource,
)
from raftlog.broker.limits import BrokerSettings
from raftlog.broker.node import NodeServices
from raftlog.metadata.apply.apply import apply
from raftlog.metadata.commands import Assignments
from raftlog.metadata.configs import topic as configs
from raftlog.metadata.configs.broker import describe_broker_configs, operator_settings
from raftlog.metadata.configs.topic import ConfigDescription
from raftlog.metadata.decisions import admin_plans
from raftlog.metadata.decisions.decommission import evacuation_progress
from raftlog.metadata.decisions.elections import PartitionKey
from raftlog.metadata.decisions.reassignment import Move, plan_reassignment
from raftlog.metadata.image import (
    NO_LEADER_ID,
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from raftlog.raft import PeerStatus, QuorumStatus
from raftlog.raft.voters import NODE_ID_MAX, VoterSet, few_voters_warning
from raftlog.record.errors import ILLEGAL_STATE, LogError
from raftlog.record.types import BrokerId, Offset, PartitionId, TopicId
from raftlog.replication.cluster_metadata import in_steps
from raftlog.replication.partition import Partition

__all__ = ["NODE_ID_MAX", "AdminService", "ClusterMembership", "ReplicaProgress"]

CHANGES_AT_ONCE: Final = 32
"""Partitions of one request changed at the same time."""
VALIDATED_TOPIC_ID: Final = TopicId("0" * 32)
"""Id of a topic that is only validated."""
PartitionName: TypeAlias = tuple[str, int]
"""Topic and number."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClusterMembership:
    """The quorum and the brokers at one moment, as this node knows both."""

    cluster_id: str
    node_id: BrokerId
    status: QuorumStatus
    peers: Mapping[int, PeerStatus]
    voters: VoterSet
    image: MetadataImage
    unwritable: Set[BrokerId]
    """Brokers with disks that take no writes."""
    opening: int
    """Replicas that this node is still creating or opening."""
    replicas_open: int
    """Replicas that are open on this node."""
    clock_skew_ms: int | None
    """Milliseconds of this node's wall clock ahead of the cluster time. None if unknown."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is fragile about the quorum, although it works."""
        nodes = len(self.image.brokers.keys() | self.voters.ids)
        warning = few_voters_warning(self.voters, nodes)
        return () if warning is None else (warning,)


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """Replication progress of one partition, empty unless this node leads it."""

    row: PartitionImage
    high_watermark: Offset | None
    log_end_offsets: Mapping[int, int]
    """Log end offsets by broker, where known."""
    log_end_offset: int = 0
    """The leader's."""


@dataclass(frozen=True, slots=True)
class DecommissionState:
    """Progress of a broker's decommission."""

    is_decommissioning: bool
    partitions_left: int
    """Partitions that the broker still holds."""
    partitions_moving: int
    """Those of them being copied to other brokers."""


class ElectionOutcome(NamedTuple):
    """An election of a partition's leader, by an operator's request."""

    topic: str
    partition: int
    is_needed: bool
    """False if the partition had a fitting leader already, or is unknown."""
    error: LogError | None


class ReplicaSize(NamedTuple):
    """A replica on this node, and the bytes of its log."""

    topic: str
    partition: PartitionId
    size_bytes: int


class AdminService:
    """Administrative operations of one node's clients."""

    def __init__(
        self, services: NodeServices, settings: BrokerSettings, authorize: Authorize
    ) -> None:
        self._services = services
        self._metadata = services.metadata
        self._quorum = services.quorum
        self._settings = settings
        self._authorize = authorize

    # The cluster and its topics, as far as the applied metadata knows

    def brokers(self) -> Mapping[BrokerId, BrokerImage]:
        """All brokers. Needs no right, because clients find their leaders by it."""
        return self._metadata.image.brokers

    def controller_id(self) -> int | None:
        """The active controller if this node knows it. Needs no right."""
        return self._quorum.leader_id

    def topic(self, principal: Principal, name: str) -> TopicImage:
        """One topic. LogError UNKNOWN_TOPIC."""
        self._authorize(principal, Operation.DESCRIBE, topic_resource(name))
        return self._metadata.image.topic(name)

    def topics(self, principal: Principal) -> list[TopicImage]:
        """The topics that the principal may describe, by name."""
        topics = self._metadata.image.topics_by_name
        return [
            topics[name]
            for name in sorted(topics)
            if may_describe(self._authorize, principal, topic_resource(name))
        ]

    def topics_of(self, principal: Principal, names: Iterable[str]) -> dict[str, TopicImage | None]:
        """Topics by name, in the order of `names`. None stands for an unknown topic.

        A topic that the principal may not describe is unknown, because its name must not leak.
        """
        topics = self._metadata.image.topics_by_name
        return {
            name: topics.get(name)
            if may_describe(self._authorize, principal, topic_resource(name))
            else None
            for name in names
        }

    def replica_progress(self, principal: Principal, name: str) -> list[ReplicaProgress]:
        """Replication progress of each partition of a topic, in order."""
        topic = self.topic(principal, name)
        find = self._services.replicas.replica
        return [_progress(row, find(topic.topic_id, row.partition)) for row in topic.partitions]

    def permitted(
        self, principal: Principal, resource: Resource, operations: Iterable[Operation]
    ) -> list[Operation]:
        """Those of the operations that the principal may perform on the resource."""
        return [
            operation
            for operation in operations
            if is_allowed(self._authorize, principal, operation, resource)
        ]

    # Topics

    async def create_topic(
        self,
        principal: Principal,
        name: str,
        *,
        partitions: int | None,
        replication_factor: int | None,
        configs: Mapping[str, str],
        assignments: Assignments | None = None,
        validate_only: bool = False,
    ) -> TopicImage:
        """Create a topic, or only validate its creation, and return the topic.

        `assignments` are the brokers of each partition, in place of both counts. Raises LogError as
        `ClusterMetadata.create_topic`.
        """
        self._authorize(principal, Operation.CREATE, topic_resource(name))
        metadata = self._metadata
        if not validate_only:
            return await metadata.create_topic(
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                configs=configs,
                assignments=assignments,
            )
        plan = admin_plans.plan_topic(
            metadata.image,
            name=name,
            partitions=metadata.settings.partitions_default if partitions is None else partitions,
            replication_factor=replication_factor,
            configs=configs,
            topic_id=VALIDATED_TOPIC_ID,
            assignments=assignments,
        )
        command = await in_steps(plan)
        image = metadata.image.copy()
        return apply(image, image.applied_index + 1, command).topic()

    async def delete_topic(self, principal: Principal, name: str) -> None:
        """Delete a topic with its records."""
        self._authorize(principal, Operation.DELETE, topic_resource(name))
        await self._metadata.delete_topic(name)

    async def add_partitions(
        self,
        principal: Principal,
        name: str,
        total: int,
        *,
        assignments: Assignments | None = None,
        validate_only: bool = False,
    ) -> TopicImage:
        """Grow a topic to `total` partitions, or return it unchanged with `validate_only`.

        `assignments` are the brokers of each new partition. Raises LogError as
        `ClusterMetadata.add_partitions`.
        """
        self._authorize(principal, Operation.ALTER, topic_resource(name))
        metadata = self._metadata
        if not validate_only:
            return await metadata.add_partitions(name, total, assignments)
        plan = admin_plans.plan_partitions(
            metadata.image, name=name, partitions=total, assignments=assignments
        )
        await in_steps(plan)
        return metadata.image.topic(name)

    async def delete_records(
        self, principal: Principal, targets: Sequence[tuple[str, int, Offset]]
    ) -> list[Offset | LogError]:
        """Delete the records below an offset of partitions on any node.

        An offset of -1 deletes all committed records. Returns each partition's new log start
        offset, or its error.
        """
        self._settings.check_partition_count(len(targets))
        return await _some_at_once(self._delete(principal, *target) for target in targets)

    async def _delete(
        self, principal: Principal, topic: str, partition: int, before: Offset
    ) -> Offset | LogError:
        try:
            self._authorize(principal, Operation.DELETE, topic_resource(topic))
            return await self._services.partitions.find(topic, partition).delete_records(before)
        except LogError as error:
            return error

    # Configs

    def describe_configs(
        self, principal: Principal, name: str
    ) -> tuple[TopicImage, list[ConfigDescription]]:
        """A topic, and every config of it with value and source."""
        self._authorize(principal, Operation.DESCRIBE_CONFIGS, topic_resource(name))
        topic = self._metadata.image.topic(name)
        return topic, self._configs_of(topic)

    def describe_configs_of(
        self, principal: Principal, topic: TopicImage
    ) -> list[ConfigDescription]:
        """Every config of a topic, which may be only validated and not exist."""
        self._authorize(principal, Operation.DESCRIBE_CONFIGS, topic_resource(topic.name))
        return self._configs_of(topic)

    def _configs_of(self, topic: TopicImage) -> list[ConfigDescription]:
        return configs.describe(
            topic.configs,
            self._metadata.settings.defaults,
            replication_factor=topic.replication_factor,
            cluster=self._metadata.image.cluster_settings,
        )

    def config_resources(self, principal: Principal) -> tuple[list[str], list[BrokerId]]:
        """All topics and all brokers with configs, in order."""
        self._authorize(principal, Operation.DESCRIBE_CONFIGS, CLUSTER)
        image = self._metadata.image
        return sorted(image.topics_by_name), sorted(image.brokers)

    async def alter_configs(
        self,
        principal: Principal,
        name: str,
        values: Mapping[str, str],
        removals: Sequence[str] = (),
        *,
        replaces: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Set some configs of a topic and return others to their defaults, all or none.

        With `replaces`, all that `values` does not set return to their defaults.
        """
        self._authorize(principal, Operation.ALTER_CONFIGS, topic_resource(name))
        metadata = self._metadata
        if replaces:
            removals = [
                config for config in metadata.image.topic(name).configs if config not in values
            ]
        if validate_only:
            admin_plans.plan_configs(metadata.image, name=name, values=values, removals=removals)
        else:
            await metadata.alter_configs(name, values, removals)

    async def cluster_settings(
        self, principal: Principal, *, linearizable: bool
    ) -> tuple[int, Mapping[str, str]]:
        """Metadata index, and the topic configs set for all topics.

        Both are the applied values. With `linearizable` they follow a read barrier of the quorum,
        so that every change acknowledged before the call is included.
        """
        self._authorize(principal, Operation.DESCRIBE_CONFIGS, CLUSTER)
        if linearizable:
            await self._quorum.read_barrier()
        image = self._metadata.image
        return image.applied_index, operator_settings(image.cluster_settings)

    async def alter_cluster_settings(
        self,
        principal: Principal,
        values: Mapping[str, str],
        removals: Sequence[str],
        *,
        replaces: bool = False,
        validate_only: bool = False,
    ) -> tuple[int, Mapping[str, str]]:
        """Set some broker configs, or topic configs for all topics, and remove others.

        With `replaces`, all that `values` does not set are removed. Returns index and settings
        after the change, or the present values with `validate_only`.
        """
        self._authorize(principal, Operation.ALTER_CONFIGS, CLUSTER)
        if replaces:
            present = operator_settings(self._metadata.image.cluster_settings)
            removals = [config for config in present if config not in values]
        if validate_only:
            image = self._metadata.image
            admin_plans.plan_cluster_settings(image, values=values, removals=removals)
            return image.applied_index, operator_settings(image.cluster_settings)
        index, settings = await self._metadata.alter_cluster_settings(values, removals)
        return index, operator_settings(settings)

    def broker_configs(self, principal: Principal) -> list[ConfigDescription]:
        """Every cluster-wide broker config, as applied here."""
        self._authorize(principal, Operation.DESCRIBE_CONFIGS, CLUSTER)
        return describe_broker_configs(self._metadata.image.cluster_settings)

    def topic_defaults(self, principal: Principal) -> list[ConfigDescription]:
        """Every topic config with the value that topics get from this node and the cluster."""
        self._authorize(principal, Operation.DESCRIBE_CONFIGS, CLUSTER)
        metadata = self._metadata
        return configs.describe(
            {},
            metadata.settings.defaults,
            replication_factor=1,
            cluster=metadata.image.cluster_settings,
        )

    # Leaders and replicas

    async def transfer_leader(
        self,
        principal: Principal,
        name: str,
        partition: int,
        broker_id: BrokerId | None,
        *,
        unclean: bool,
    ) -> None:
        """Elect a given replica, or the best other replica, as `Operations.transfer_leader`."""
        self._authorize(principal, Operation.ALTER, CLUSTER)
        await self._metadata.operations.transfer_leader(name, partition, broker_id, unclean=unclean)

    async def reassign(self, principal: Principal, moves: Sequence[Move]) -> None:
        """Start to move partitions. All are checked before any is moved."""
        self._authorize(principal, Operation.ALTER, CLUSTER)
        self._settings.check_partition_count(len(moves))
        await self._metadata.operations.reassign(moves)

    def reassignments(
        self, principal: Principal, topic: str | None
    ) -> Iterator[tuple[TopicImage, PartitionImage]]:
        """The partitions being moved, of one topic or of all, by topic and number."""
        self._authorize(principal, Operation.DESCRIBE, CLUSTER)
        image = self._metadata.image
        topics = (
            [found for _, found in sorted(image.topics_by_name.items())]
            if topic is None
            else [image.topic(topic)]
        )
        return (
            (topic, row)
            for topic in topics
            for row in topic.partitions
            if row.adding or row.removing
        )

    async def cancel_reassignment(self, principal: Principal, name: str, partition: int) -> None:
        """Return a partition to the replicas it had."""
        self._authorize(principal, Operation.ALTER, CLUSTER)
        await self._metadata.operations.cancel_reassignment(name, partition)

    # Leaders and replicas of many partitions, each with its own outcome

    async def elect_leaders(
        self, principal: Principal, wanted: Sequence[PartitionName] | None, *, unclean: bool
    ) -> list[ElectionOutcome]:
        """Return the lead of partitions to their preferred replicas.

        With `unclean`, elect the living replica with the longest log where there is no leader
        instead. Records may be lost. `wanted` are topics and partitions, each once. None selects
        all that need an election. Raises LogError without a quorum.
        """
        self._authorize(principal, Operation.ALTER, CLUSTER)
        image = self._metadata.image
        if wanted is None:
            wanted = [
                (topic.name, row.partition)
                for _, topic in sorted(image.topics_by_name.items())
                for row in topic.partitions
                if _needs_election(row, unclean=unclean)
            ]
        else:
            self._settings.check_partition_count(len(wanted))
        errors: dict[PartitionName, LogError] = {}
        needed: dict[PartitionName, PartitionKey] = {}
        for name, number in wanted:
            try:
                topic = image.topic(name)
                row = topic.partition(number)
            except LogError as error:
                errors[name, number] = error.as_outcome()
            else:
                if _needs_election(row, unclean=unclean):
                    needed[name, number] = topic.topic_id, row.partition
        if unclean:
            errors |= await self._each(needed, self._elect_unclean)
        elif needed:
            await self._metadata.operations.elect_preferred(needed.values())
            errors |= self._not_preferred(needed)
        return [
            ElectionOutcome(*partition, is_needed=partition in needed, error=errors.get(partition))
            for partition in wanted
        ]

    async def _elect_unclean(self, name: str, number: int) -> None:
        await self._metadata.operations.transfer_leader(name, number, None, unclean=True)

    def _not_preferred(self, wanted: Iterable[PartitionName]) -> dict[PartitionName, LogError]:
        """The partitions not led by their preferred replicas, each with an error."""
        errors: dict[PartitionName, LogError] = {}
        for name, number in wanted:
            try:
                row = self._metadata.image.partition(name, number)
            except LogError as error:
                errors[name, number] = error.as_outcome()
                continue
            if _needs_election(row, unclean=False):
                errors[name, number] = LogError(
                    ILLEGAL_STATE,
                    f"Broker {row.replicas[0]} cannot lead {name}-{number} now: it is not in sync, "
                    "not available, or its disk takes no writes.",
                )
        return errors

    async def _each(
        self,
        wanted: Iterable[PartitionName],
        change: Callable[[str, int], Awaitable[None]],
    ) -> dict[PartitionName, LogError]:
        """Change each partition, some at the same time. Returns the errors."""
        errors: dict[PartitionName, LogError] = {}

        async def try_change(name: str, number: int) -> None:
            try:
                await change(name, number)
            except LogError as error:
                errors[name, number] = error.as_outcome()

        await _some_at_once(try_change(*partition) for partition in wanted)
        return errors

    async def reassign_each(
        self, principal: Principal, moves: Sequence[Move]
    ) -> dict[PartitionName, LogError]:
        """Start to move each partition that can be moved. Returns the errors of the others."""
        self._authorize(principal, Operation.ALTER, CLUSTER)
        self._settings.check_partition_count(len(moves))
        errors: dict[PartitionName, LogError] = {}
        for topic, number, replicas in moves:
            try:
                plan_reassignment(
                    self._metadata.image, name=topic, partition=number, replicas=replicas
                )
            except LogError as error:
                errors[topic, number] = error.as_outcome()
        possible = [move for move in moves if move[:2] not in errors]
        try:
            if possible:
                await self._metadata.operations.reassign(possible)
        except LogError as error:
            errors |= dict.fromkeys([move[:2] for move in possible], error.as_outcome())
        return errors

    async def cancel_each(
        self, principal: Principal, wanted: Sequence[PartitionName]
    ) -> dict[PartitionName, LogError]:
        """Return each partition to the replicas it had. Returns the errors."""
        self._authorize(principal, Operation.ALTER, CLUSTER)
        self._settings.check_partition_count(len(wanted))
        return await self._each(wanted, self._metadata.operations.cancel_reassignment)

    def replica_sizes(self, principal: Principal) -> tuple[list[ReplicaSize], int]:
        """This node's replicas with their sizes, and the free bytes of its disk."""
        self._authorize(principal, Operation.DESCRIBE, CLUSTER)
        logs, topics = self._services.logs, self._metadata.image.topics_by_id
        sizes = [
            ReplicaSize(topic.name, number, log.size_bytes)
            for (topic_id, number), log in logs.logs().items()
            if (topic := topics.get(topic_id)) is not None
        ]
        return sorted(sizes), logs.free_bytes

    # Brokers

    async def decommission(self, principal: Principal, broker_id: BrokerId) -> DecommissionState:
        """Begin to move all partitions of a broker to others."""
        self._authorize(principal, Operation.ALTER, CLUSTER)
        await self._metadata.operations.decommission(broker_id)
        return self._decommission_progress(broker_id)

    def decommission_progress(self, principal: Principal, broker_id: BrokerId) -> DecommissionState:
        """Progress of a broker's decommission. LogError NOT_FOUND."""
        self._authorize(principal, Operation.DESCRIBE, CLUSTER)
        return self._decommission_progress(broker_id)

    def _decommission_progress(self, broker_id: BrokerId) -> DecommissionState:
        image = self._metadata.image
        progress = evacuation_progress(image, broker_id)
        return DecommissionState(
            image.brokers[broker_id].decommissioning, progress.left, progress.moving
        )

    async def recommission(self, principal: Principal, broker_id: BrokerId) -> None:
        """Cancel a decommission. Partitions that have moved stay where they are."""
        self._authorize(principal, Operation.ALTER, CLUSTER)
        await self._metadata.operations.recommission(broker_id)

    async def set_maintenance(
        self, principal: Principal, broker_id: BrokerId, *, wanted: bool
    ) -> None:
        """Start or end maintenance. A broker in maintenance leads only where no other can."""
        self._authorize(principal, Operation.ALTER, CLUSTER)
        await self._metadata.operations.set_maintenance(broker_id, wanted=wanted)

    async def unregister_broker(self, principal: Principal, broker_id: BrokerId) -> None:
        """Forget a removed broker. Its id may return with another directory."""
        self._authorize(principal, Operation.ALTER, CLUSTER)
        await self._metadata.unregister_broker(broker_id)

    async def replace_directory(
        self, principal: Principal, broker_id: BrokerId, directory_id: str
    ) -> None:
        """Give the place of a broker with a lost data directory to an empty directory."""
        self._authorize(principal, Operation.ALTER, CLUSTER)
        await self._metadata.replace_directory(broker_id, directory_id)

    # The metadata quorum

    def membership(self, principal: Principal) -> ClusterMembership:
        """This node's view of the quorum and the brokers. Needs no quorum."""
        self._authorize(principal, Operation.DESCRIBE, CLUSTER)
        services, quorum = self._services, self._quorum
        return ClusterMembership(
            cluster_id=services.cluster_id,
            node_id=services.node_id,
            status=quorum.status(),
            peers=quorum.peers(),
            voters=quorum.voters,
            image=self._metadata.image,
            unwritable=self._metadata.unwritable,
            opening=services.replicas.opening_count,
            replicas_open=services.replicas.open_count,
            clock_skew_ms=services.logs.clock_skew_ms,
        )

    async def add_voter(self, principal: Principal, node_id: int) -> None:
        """Make a connected observer a voter."""
        self._authorize(principal, Operation.ALTER, CLUSTER)
        await self._quorum.add_voter(node_id)

    async def remove_voter(self, principal: Principal, node_id: int) -> None:
        """Remove a voter. Only the leader decides, because this node may not know a new voter.

        Raises LogError ILLEGAL_STATE.
        """
        self._authorize(principal, Operation.ALTER, CLUSTER)
        await self._quorum.remove_voter(node_id)

    async def transfer_controller(self, principal: Principal, node_id: int | None) -> None:
        """Transfer the quorum's leadership to a voter, or (None) to the most advanced voter."""
        self._authorize(principal, Operation.ALTER, CLUSTER)
        await self._quorum.transfer_leadership(node_id)


def _progress(row: PartitionImage, replica: Partition | None) -> ReplicaProgress:
    if replica is None or not replica.is_leader:
        return ReplicaProgress(row, None, {})
    ends: dict[int, int] = {}
    log_end = 0
    role = replica.leader_role
    if role is not None:
        log_end = replica.log_end_offset
        ends = {
            broker_id: follower.durable_end
            for broker_id, follower in role.state.followers.items()
            if follower.durable_end >= 0
        }
        ends[row.leader] = log_end
    return ReplicaProgress(row, replica.high_watermark, ends, log_end)


async def _some_at_once(changes: Iterable[Awaitable[T]]) -> list[T]:
    """The outcomes of the changes, in their order, with CHANGES_AT_ONCE at the same time."""
    outcomes: list[T] = []
    remaining = iter(changes)
    while some := list(islice(remaining, CHANGES_AT_ONCE)):
        outcomes += await asyncio.gather(*some)
    return outcomes


def _needs_election(row: PartitionImage, *, unclean: bool) -> bool:
    """Whether the partition has no leader, or another leader than its preferred replica."""
    return row.leader == NO_LEADER_ID if unclean else row.leader != row.replicas[0]
