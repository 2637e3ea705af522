"""Moves replicas to other brokers (KIP-455) by pure decisions of the active controller.

New replicas are added first. The old replicas leave once all of the new set are in sync, in one
change. Until then the partition has both, and a reassignment can be cancelled, or given another
target.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from raftlog.metadata.commands import ChangePartitions, PartitionChange
from raftlog.metadata.configs.topic import min_isr_default
from raftlog.metadata.decisions.elections import (
    Elections,
    PartitionKey,
    change_command,
    change_of,
    in_batches,
)
from raftlog.metadata.image import MetadataImage, PartitionImage, TopicImage
from raftlog.record.errors import ILLEGAL_STATE, INVALID_PARTITIONS, LogError
from raftlog.record.types import BrokerId


class Move(NamedTuple):
    """A partition and its target brokers, the preferred leader first."""

    topic: str
    partition: int
    replicas: tuple[BrokerId, ...]


def plan_reassignments(image: MetadataImage, moves: Sequence[Move]) -> Iterator[ChangePartitions]:
    """Execute all of these moves, each partition at most once among them.

    All are checked before the first command, and those already under way are left out. Raises
    LogError at once, as `plan_reassignment` does, or INVALID_PARTITIONS for a repeated partition.
    """
    if len({(move.topic, move.partition) for move in moves}) != len(moves):
        raise LogError(INVALID_PARTITIONS, "A partition can be reassigned only once at a time.")
    keys = {}
    for move in moves:
        topic = image.topic(move.topic)
        row = topic.partition(move.partition)
        _check_target(image, row, move.replicas)
        keys[topic.topic_id, row.partition] = move.replicas

    def choose(topic: TopicImage, row: PartitionImage) -> PartitionChange | None:
        change = reassigned(topic, row, keys[topic.topic_id, row.partition])
        present = (row.replicas, row.adding, row.removing)
        return None if (change.replicas, change.adding, change.removing) == present else change

    return in_batches(image, choose, keys)


def plan_reassignment(
    image: MetadataImage, *, name: str, partition: int, replicas: tuple[BrokerId, ...]
) -> ChangePartitions:
    """Have the partition held by `replicas`, the preferred leader first.

    While another reassignment is under way, this reassignment takes its place. Raises LogError with
    UNKNOWN_TOPIC, UNKNOWN_PARTITION or INVALID_PARTITIONS.
    """
    topic = image.topic(name)
    row = topic.partition(partition)
    _check_target(image, row, replicas)
    return change_command(image, [reassigned(topic, row, replicas)])


def target_of(row: PartitionImage) -> tuple[BrokerId, ...]:
    """The replicas of the partition after the reassignment under way, if any."""
    return tuple(broker_id for broker_id in row.replicas if broker_id not in row.removing)


def reassigned(
    topic: TopicImage, row: PartitionImage, replicas: tuple[BrokerId, ...]
) -> PartitionChange:
    """Start a reassignment to `replicas`, in place of a reassignment under way."""
    removing = tuple(broker_id for broker_id in row.replicas if broker_id not in replicas)
    adding = tuple(
        broker_id
        for broker_id in replicas
        if broker_id not in row.replicas or broker_id in row.adding
    )
    return replace(
        change_of(topic, row), replicas=replicas + removing, adding=adding, removing=removing
    )


def _check_target(
    image: MetadataImage, row: PartitionImage, replicas: tuple[BrokerId, ...]
) -> None:
    if not replicas or len(set(replicas)) != len(replicas):
        raise LogError(
            INVALID_PARTITIONS, f"A partition needs replicas, each once, not {list(replicas)}."
        )
    for broker_id in replicas:
        broker = image.brokers.get(broker_id)
        if broker is None:
            raise LogError(INVALID_PARTITIONS, f"There is no broker {broker_id}.")
        if broker_id not in row.replicas and not broker.may_hold:
            why = "being decommissioned" if broker.decommissioning else "not available"
            raise LogError(
                INVALID_PARTITIONS, f"Broker {broker_id} is {why}: it cannot take a replica."
            )


def plan_cancellation(image: MetadataImage, *, name: str, partition: int) -> ChangePartitions:
    """Drop the replicas being added, and keep the leaving replicas.

    Raises LogError with UNKNOWN_TOPIC, UNKNOWN_PARTITION, or ILLEGAL_STATE without a reassignment,
    or if none of the former replicas has all records, or could lead.
    """
    topic = image.topic(name)
    row = topic.partition(partition)
    if not row.adding and not row.removing:
        raise LogError(ILLEGAL_STATE, f"{name}-{partition} is not being reassigned.")
    change = without_replicas(Elections(image), topic, row, without=row.adding)
    if change is None:
        raise LogError(
            ILLEGAL_STATE, f"None of the former replicas of {name}-{partition} is in sync."
        )
    return change_command(image, [change])


def plan_completions(
    image: MetadataImage, keys: Collection[PartitionKey] | None = None
) -> Iterator[ChangePartitions]:
    """End each reassignment, of `keys` or all, with all new replicas in sync and alive."""
    elections = Elections(image)

    def choose(topic: TopicImage, row: PartitionImage) -> PartitionChange | None:
        if not row.adding and not row.removing:
            return None
        target = target_of(row)
        if not {*target} <= {*row.isr} or any(image.brokers[each].fenced for each in target):
            # An ISR without a living member stays unchanged (see decisions/liveness.py).
            return None
        return without_replicas(elections, topic, row, without=row.removing)

    return in_batches(image, choose, keys)


def without_replicas(
    elections: Elections, topic: TopicImage, row: PartitionImage, *, without: tuple[BrokerId, ...]
) -> PartitionChange | None:
    """End the reassignment without the replicas of `without`. None without an eligible leader."""
    replicas = tuple(broker_id for broker_id in row.replicas if broker_id not in without)
    isr = tuple(broker_id for broker_id in row.isr if broker_id not in without)
    elr = tuple(broker_id for broker_id in row.elr if broker_id not in without)
    leader = row.leader
    if {*row.isr, *row.elr}.isdisjoint(replicas):
        return None
    if (isr, elr) != (row.isr, row.elr) and not elections.has_living_member(isr=isr, elr=elr):
        return None
    if leader in without:
        election = elections.elect(topic, row, isr=isr, unclean=False)
        if election is None or election.isr != isr:
            return None
        leader = election.leader
    return replace(
        change_of(topic, row, leader=leader, isr=isr),
        replicas=replicas,
        adding=(),
        removing=(),
        # The smaller of the two counts, since too low a minimum is safe.
        min_isr_default=min_isr_default(min(len(replicas), topic.replication_factor)),
    )
