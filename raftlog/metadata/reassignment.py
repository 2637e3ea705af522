"""Moving replicas to other brokers (KIP-455): pure decisions of the active controller.

New replicas are added first; the old ones leave once all of the new set are in sync, in one change.
Until then the partition has both, and a reassignment can be cancelled, or given another target.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from raftlog.metadata.commands import ChangePartitions, PartitionChange
from raftlog.metadata.configs import min_isr_default
from raftlog.metadata.elections import Elections, change_of, in_batches
from raftlog.metadata.image import MetadataImage, PartitionImage, TopicImage
from raftlog.record.errors import ILLEGAL_STATE, INVALID_PARTITIONS, LogError
from raftlog.record.types import BrokerId


def plan_reassignment(
    image: MetadataImage, *, name: str, partition: int, replicas: tuple[BrokerId, ...]
) -> ChangePartitions:
    """Have the partition held by `replicas`, the preferred leader first.

    While another reassignment is under way, this one takes its place.
    Raises LogError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, INVALID_PARTITIONS.
    """
    topic = image.topic(name)
    row = topic.partition(partition)
    if not replicas or len(set(replicas)) != len(replicas):
        raise LogError(
            INVALID_PARTITIONS, f"A partition needs replicas, each once, not {list(replicas)}."
        )
    for broker_id in replicas:
        broker = image.brokers.get(broker_id)
        if broker is None:
            raise LogError(INVALID_PARTITIONS, f"There is no broker {broker_id}.")
        if broker_id not in row.replicas and not broker.is_available:
            raise LogError(
                INVALID_PARTITIONS, f"Broker {broker_id} is not available to take a replica."
            )
    removing = tuple(broker_id for broker_id in row.replicas if broker_id not in replicas)
    adding = tuple(
        broker_id
        for broker_id in replicas
        if broker_id not in row.replicas or broker_id in row.adding
    )
    change = replace(
        change_of(topic, row), replicas=replicas + removing, adding=adding, removing=removing
    )
    return ChangePartitions(changes=(change,))


def plan_cancellation(image: MetadataImage, *, name: str, partition: int) -> ChangePartitions:
    """Drop the replicas that were being added, and keep those that were to leave.

    Raises LogError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, or ILLEGAL_STATE if no reassignment is under
    way, or none of the former replicas has all records, or could lead.
    """
    topic = image.topic(name)
    row = topic.partition(partition)
    if not row.adding and not row.removing:
        raise LogError(ILLEGAL_STATE, f"{name}-{partition} is not being reassigned.")
    change = _with_replicas(Elections(image), topic, row, without=row.adding)
    if change is None:
        raise LogError(
            ILLEGAL_STATE, f"None of the former replicas of {name}-{partition} is in sync."
        )
    return ChangePartitions(changes=(change,))


def plan_completions(image: MetadataImage) -> Iterator[ChangePartitions]:
    """End every reassignment whose new replicas are all in sync."""
    elections = Elections(image)

    def choose(topic: TopicImage, row: PartitionImage) -> PartitionChange | None:
        if not row.adding and not row.removing:
            return None
        if not {*row.replicas}.difference(row.removing) <= {*row.isr}:
            return None
        return _with_replicas(elections, topic, row, without=row.removing)

    return in_batches(image, choose)


def _with_replicas(
    elections: Elections, topic: TopicImage, row: PartitionImage, *, without: tuple[BrokerId, ...]
) -> PartitionChange | None:
    """The reassignment's end, by which `without` lose their replicas; None if nobody could lead."""
    replicas = tuple(broker_id for broker_id in row.replicas if broker_id not in without)
    isr = tuple(broker_id for broker_id in row.isr if broker_id not in without)
    leader = row.leader
    if {*row.isr, *row.elr}.isdisjoint(replicas):
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
        # Of the two, the smaller: too low a minimum is safe.
        min_isr_default=min_isr_default(min(len(replicas), topic.replication_factor)),
    )
