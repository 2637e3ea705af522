"""Applies commands about topics."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from raftlog.metadata.apply.rules import RefusedError, in_order, topic_of
from raftlog.metadata.commands import (
    AddPartitions,
    AlterTopicConfigs,
    Assignments,
    CreateTopic,
    DeleteTopic,
)
from raftlog.metadata.configs.topic import MIN_ISR
from raftlog.metadata.delta import NO_CHANGE, MetadataDelta, TopicChange
from raftlog.metadata.image import MetadataImage, PartitionImage, TopicImage, topic_name_fault
from raftlog.record.errors import (
    ILLEGAL_STATE,
    INVALID_PARTITIONS,
    INVALID_TOPIC,
    NO_LEADER,
    TOPIC_EXISTS,
)
from raftlog.record.types import BrokerId, LeaderEpoch, PartitionEpoch, PartitionId

DELETED_TOPIC_IDS_MAX: Final = 10_000
"""Remembered deleted topics. Part of command version 1, because the bound decides results."""
TOPIC_ID_DIGITS: Final = 32


def create_topic(image: MetadataImage, command: CreateTopic) -> tuple[TopicImage, MetadataDelta]:
    """Create a topic. Each partition is led by its first replica that may lead."""
    known = image.topics_by_id.get(command.topic_id)
    if known is not None and known.name == command.name:
        return known, NO_CHANGE
    fault = topic_name_fault(command.name)
    if fault is not None:
        raise RefusedError(INVALID_TOPIC, fault)
    if command.name in image.topics_by_name:
        raise RefusedError(TOPIC_EXISTS, f"Topic {command.name!r} exists already.")
    if known is not None or command.topic_id in image.deleted_topic_ids:
        raise RefusedError(ILLEGAL_STATE, f"Topic id {command.topic_id} was used before.")
    if not _is_topic_id(command.topic_id):
        raise RefusedError(ILLEGAL_STATE, f"{command.topic_id!r} is not a topic id.")
    factor = len(command.assignments[0]) if command.assignments else 0
    _check_assignments(image, command.assignments, factor)
    topic = TopicImage(
        topic_id=command.topic_id,
        name=command.name,
        configs=dict(command.configs),
        partitions=_new_partitions(image, 0, command.assignments),
    )
    put_topic(image, topic)
    return topic, MetadataDelta(created=(topic,))


def delete_topic(image: MetadataImage, command: DeleteTopic) -> tuple[TopicImage, MetadataDelta]:
    """Delete a topic. Its id stays among the deleted ids."""
    topic = topic_of(image, command.topic_id)
    del image.topics_by_id[topic.topic_id]
    del image.topics_by_name[topic.name]
    image.deleted_topic_ids[topic.topic_id] = None
    if len(image.deleted_topic_ids) > DELETED_TOPIC_IDS_MAX:
        del image.deleted_topic_ids[next(iter(image.deleted_topic_ids))]
    return topic, MetadataDelta(deleted=(topic,))


def add_partitions(
    image: MetadataImage, command: AddPartitions
) -> tuple[TopicImage, MetadataDelta]:
    """Add partitions. Refused if their number has changed since the decision."""
    before = topic_of(image, command.topic_id)
    present = len(before.partitions)
    if command.partition_count != present:
        raise RefusedError(
            ILLEGAL_STATE,
            f"Topic {before.name} has {present} partitions now, not {command.partition_count}.",
        )
    _check_assignments(image, command.assignments, before.replication_factor)
    added = _new_partitions(image, present, command.assignments)
    after = replace(before, partitions=before.partitions + added)
    put_topic(image, after)
    numbers = tuple(row.partition for row in added)
    return after, MetadataDelta(changed=(TopicChange(before, after, numbers),))


def alter_configs(
    image: MetadataImage, command: AlterTopicConfigs
) -> tuple[TopicImage, MetadataDelta]:
    """Set values without examining them, except min.insync.replicas, see `without_elr`."""
    before = topic_of(image, command.topic_id)
    configs = {
        name: value
        for name, value in {**before.configs, **command.values}.items()
        if name not in command.removals
    }
    if configs == before.configs:
        return before, NO_CHANGE
    after = replace(before, configs=configs)
    numbers: tuple[PartitionId, ...] = ()
    if configs.get(MIN_ISR) != before.configs.get(MIN_ISR):
        after, numbers = without_elr(after)
    put_topic(image, after)
    return after, MetadataDelta(changed=(TopicChange(before, after, numbers),))


def without_elr(topic: TopicImage) -> tuple[TopicImage, tuple[PartitionId, ...]]:
    """The topic after a change of its min.insync.replicas, and the partitions that differ.

    With a lower minimum the ISR may at once commit records missing in the ELR, so no member stays
    eligible where there is an ISR. Without an ISR no record is committed, and the election decides.
    """
    numbers = tuple(row.partition for row in topic.partitions if row.elr and row.isr)
    if not numbers:
        return topic, numbers
    rows = list(topic.partitions)
    for number in numbers:
        row = rows[number]
        rows[number] = replace(row, elr=(), partition_epoch=PartitionEpoch(row.partition_epoch + 1))
    return replace(topic, partitions=tuple(rows)), numbers


def put_topic(image: MetadataImage, topic: TopicImage) -> None:
    """Put the topic's row in place of its previous row."""
    image.topics_by_id[topic.topic_id] = topic
    image.topics_by_name[topic.name] = topic


def _check_assignments(
    image: MetadataImage, assignments: Assignments, replication_factor: int
) -> None:
    if not assignments or replication_factor < 1:
        raise RefusedError(INVALID_PARTITIONS, "A topic needs a partition, and each a replica.")
    # Few combinations stand for many partitions.
    for replicas in dict.fromkeys(assignments):
        if len(replicas) != replication_factor or len(set(replicas)) != replication_factor:
            raise RefusedError(
                INVALID_PARTITIONS,
                f"Each partition needs {replication_factor} different replicas, "
                f"not {list(replicas)}.",
            )
        for broker_id in replicas:
            if broker_id not in image.brokers:
                raise RefusedError(INVALID_PARTITIONS, f"There is no broker {broker_id}.")
        if not any(image.brokers[broker_id].is_available for broker_id in replicas):
            raise RefusedError(
                NO_LEADER, f"None of the brokers {list(replicas)} is available to lead: try again."
            )


def _new_partitions(
    image: MetadataImage, first: int, assignments: Assignments
) -> tuple[PartitionImage, ...]:
    # One tuple stands for all equal assignments and also for the ISR, which is half of the memory
    # at 100,000 partitions. New partitions have no records to catch up with, so each available
    # replica is in sync. The others join later like any follower. A broker in maintenance leads
    # only without another choice.
    shared: dict[tuple[BrokerId, ...], tuple[tuple[BrokerId, ...], tuple[BrokerId, ...]]] = {
        replicas: (
            replicas,
            in_order(replicas, [b for b in replicas if image.brokers[b].is_available]),
        )
        for replicas in assignments
    }
    leader_of = {
        isr: min(isr, key=lambda broker_id: image.brokers[broker_id].maintenance)
        for _, isr in shared.values()
    }
    rows = []
    for position, assignment in enumerate(assignments):
        replicas, isr = shared[assignment]
        rows.append(
            PartitionImage(
                partition=PartitionId(first + position),
                replicas=replicas,
                isr=isr,
                elr=(),
                leader=leader_of[isr],
                leader_epoch=LeaderEpoch(0),
                partition_epoch=PartitionEpoch(0),
            )
        )
    return tuple(rows)


def _is_topic_id(topic_id: str) -> bool:
    return len(topic_id) == TOPIC_ID_DIGITS and not set(topic_id) - set("0123456789abcdef")
