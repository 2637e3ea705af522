"""Leaders and replicas of many partitions at once, each with its own outcome.

`AdminService` has the operations that succeed or fail as a whole. Here a partition that cannot be
changed leaves the others unaffected, and the result has the partitions with errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from raftlog.broker.authorize import CLUSTER, Authorize, Operation, Principal
from raftlog.broker.limits import BrokerSettings
from raftlog.broker.node import NodeServices
from raftlog.metadata.decisions.elections import PartitionKey
from raftlog.metadata.decisions.reassignment import Move, plan_reassignment
from raftlog.metadata.image import NO_LEADER_ID, PartitionImage
from raftlog.record.errors import ILLEGAL_STATE, LogError
from raftlog.record.types import PartitionId

CHANGES_AT_ONCE: Final = 32
"""Partitions of one request changed at the same time."""

PartitionName: TypeAlias = tuple[str, int]
"""Topic and number."""


class ElectionOutcome(NamedTuple):
    """An election of a partition's leader, by an operator's request."""

    topic: str
    partition: int
    is_needed: bool
    """False: the partition had a fitting leader already, or is unknown."""
    error: LogError | None


class ReplicaSize(NamedTuple):
    """A replica on this node, and the bytes of its log."""

    topic: str
    partition: PartitionId
    size_bytes: int


class PlacementService:
    """Elections, reassignments and sizes of replicas. See `AdminService` for what they change."""

    def __init__(
        self, services: NodeServices, settings: BrokerSettings, authorize: Authorize
    ) -> None:
        self._services = services
        self._metadata = services.metadata
        self._settings = settings
        self._authorize = authorize

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
        """Change each partition, some at the same time. The errors of those that failed."""
        errors: dict[PartitionName, LogError] = {}

        async def one(name: str, number: int) -> None:
            try:
                await change(name, number)
            except LogError as error:
                errors[name, number] = error.as_outcome()

        some = list(wanted)
        for start in range(0, len(some), CHANGES_AT_ONCE):
            await asyncio.gather(*(one(*each) for each in some[start : start + CHANGES_AT_ONCE]))
        return errors

    async def reassign_each(
        self, principal: Principal, moves: Sequence[Move]
    ) -> dict[PartitionName, LogError]:
        """Begin to move each partition that can be moved. The errors of the others."""
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
        """Return each partition to the replicas it had. The errors of those that failed."""
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


def _needs_election(row: PartitionImage, *, unclean: bool) -> bool:
    """Whether the partition has no leader, or another leader than its preferred replica."""
    return row.leader == NO_LEADER_ID if unclean else row.leader != row.replicas[0]
