"""Applies the commands about in-sync sets and leaders."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from msgspec.structs import replace

from raftlog.metadata.apply.rules import (
    Reason,
    Refusal,
    RefusedError,
    broker_of,
    check_records_kept,
    in_order,
    min_isr_in_force,
    next_elr,
    partition_of,
    topic_of,
)
from raftlog.metadata.apply.topics import put_topic, without_elr
from raftlog.metadata.commands import (
    PARTITION_CHANGES_VERSION,
    AlterIsr,
    ChangePartitions,
    PartitionChange,
)
from raftlog.metadata.delta import NO_CHANGE, MetadataDelta, TopicChange
from raftlog.metadata.image import NO_LEADER_ID, MetadataImage, PartitionImage, TopicImage
from raftlog.record.errors import ILLEGAL_STATE
from raftlog.record.types import BrokerId, LeaderEpoch, PartitionEpoch, PartitionId, TopicId


@dataclass(frozen=True, slots=True)
class StaleChange:
    """A skipped change, because a precondition no longer holds."""

    topic_id: TopicId
    partition: PartitionId
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class PartitionsChanged:
    """The outcome of each change of a ChangePartitions, in order."""

    applied: tuple[tuple[TopicId, PartitionId], ...]
    stale: tuple[StaleChange, ...]


def alter_isr(image: MetadataImage, command: AlterIsr) -> tuple[PartitionImage, MetadataDelta]:
    """Apply every check of KIP-497 and KIP-903, then the new ISR and the resulting ELR."""
    topic = topic_of(image, command.topic_id)
    row = partition_of(topic, command.partition)
    if broker_of(image, command.broker_id, command.broker_epoch).fenced:
        raise RefusedError(
            ILLEGAL_STATE, f"Broker {command.broker_id} is fenced.", Reason.BROKER_FENCED
        )
    if row.leader != command.broker_id or row.leader_epoch != command.leader_epoch:
        raise RefusedError(
            ILLEGAL_STATE,
            f"{topic.name}-{row.partition} is led by broker {row.leader} in leader epoch "
            f"{row.leader_epoch}, not by {command.broker_id} in {command.leader_epoch}.",
            Reason.STALE_LEADER_EPOCH,
        )
    _check_partition_epoch(topic, row, command.partition_epoch)
    members = [broker_id for broker_id, _ in command.isr]
    _check_distinct_part(members, row.replicas, "ISR")
    if row.leader not in members:
        raise RefusedError(ILLEGAL_STATE, "A leader is always in sync.", Reason.INVALID)
    for broker_id, broker_epoch in command.isr:
        broker = image.brokers[broker_id]
        # A stopping member may stay until it leaves, but must not come back until its next start.
        joins = broker_id not in row.isr
        if (
            broker.fenced
            or broker.broker_epoch != broker_epoch
            or (joins and broker.controlled_shutdown)
        ):
            raise RefusedError(
                ILLEGAL_STATE,
                f"Broker {broker_id} in epoch {broker_epoch} cannot be in sync: it is in epoch "
                f"{broker.broker_epoch}{', fenced' if broker.fenced else ''}"
                f"{', about to stop' if broker.controlled_shutdown else ''}.",
                Reason.INELIGIBLE_MEMBER,
            )
    isr = in_order(row.replicas, members)
    if isr == row.isr:
        return row, NO_CHANGE
    min_isr = min_isr_in_force(topic.configs, image.cluster_settings, command.min_isr_default)
    changed = replace(
        row,
        isr=isr,
        elr=next_elr(row, replicas=row.replicas, isr=isr, min_isr=min_isr),
        partition_epoch=PartitionEpoch(row.partition_epoch + 1),
    )
    rows = list(topic.partitions)
    rows[row.partition] = changed
    after = replace(topic, partitions=tuple(rows))
    put_topic(image, after)
    change = TopicChange(topic, after, (row.partition,))
    return changed, MetadataDelta(changed=(change,))


def change_partitions(
    image: MetadataImage, command: ChangePartitions
) -> tuple[PartitionsChanged, MetadataDelta]:
    """Apply each change separately. It sees the earlier changes of the command."""
    applied: list[tuple[TopicId, PartitionId]] = []
    stale: list[StaleChange] = []
    # Make a topic's row once for all its changes: it may have 10,000 partitions.
    working: dict[TopicId, list[PartitionImage]] = {}
    numbers: dict[TopicId, set[PartitionId]] = {}
    for change in command.changes:
        try:
            topic = topic_of(image, change.topic_id)
            partition_of(topic, change.partition)
            rows = working.get(topic.topic_id)
            row = topic.partitions[change.partition] if rows is None else rows[change.partition]
            changed = _changed_row(image, topic, row, change)
            if command.v >= PARTITION_CHANGES_VERSION:
                retired = change.not_eligible
                lost = retired if change.lost else ()
                check_records_kept(image, row, changed, retired=retired, lost=lost)
        except RefusedError as refused:
            stale.append(StaleChange(change.topic_id, change.partition, refused.refusal))
            continue
        applied.append((change.topic_id, change.partition))
        if changed != row:
            if rows is None:
                rows = working[topic.topic_id] = list(topic.partitions)
            rows[change.partition] = changed
            numbers.setdefault(topic.topic_id, set()).add(change.partition)
    changes = []
    for topic_id, rows in working.items():
        before = image.topics_by_id[topic_id]
        after = replace(before, partitions=tuple(rows))
        changed_numbers = numbers[topic_id]
        if after.replication_factor != before.replication_factor:
            # The default of min.insync.replicas follows the replication factor, for all partitions
            # of the topic.
            after, without = without_elr(after)
            changed_numbers.update(without)
        put_topic(image, after)
        changes.append(TopicChange(before, after, tuple(sorted(changed_numbers))))
    delta = MetadataDelta(changed=tuple(changes)) if changes else NO_CHANGE
    return PartitionsChanged(tuple(applied), tuple(stale)), delta


def _changed_row(
    image: MetadataImage, topic: TopicImage, row: PartitionImage, change: PartitionChange
) -> PartitionImage:
    _check_partition_epoch(topic, row, change.partition_epoch)
    replicas = row.replicas if change.replicas is None else change.replicas
    _check_replicas(image, row, replicas)
    adding = _part(change.adding, row.adding, replicas, "adding")
    removing = _part(change.removing, row.removing, replicas, "removing")
    if not set(adding).isdisjoint(removing):
        raise RefusedError(ILLEGAL_STATE, "A replica cannot both join and leave.", Reason.INVALID)
    if len(replicas) in {len(adding), len(removing)}:
        raise RefusedError(ILLEGAL_STATE, "Some replica has to stay or join.", Reason.INVALID)
    isr = _part(change.isr, row.isr, replicas, "ISR")
    for broker_id in isr:
        if broker_id not in row.isr:
            _check_may_enter(image, row, broker_id, unclean=change.unclean)
    leader = row.leader if change.leader is None else change.leader
    if leader != NO_LEADER_ID:
        if leader not in isr:
            raise RefusedError(ILLEGAL_STATE, "A leader is always in sync.", Reason.INVALID)
        if leader != row.leader and not image.brokers[leader].is_available:
            raise RefusedError(
                ILLEGAL_STATE, f"Broker {leader} is not available to lead.", Reason.BROKER_FENCED
            )
    min_isr = min_isr_in_force(topic.configs, image.cluster_settings, change.min_isr_default)
    elr = next_elr(
        row, replicas=replicas, isr=isr, min_isr=min_isr, not_eligible=change.not_eligible
    )
    # The change is unclean even if not marked so, as the other members held records unknown to the
    # new members.
    is_unclean = not {*row.isr, *row.elr}.issuperset(isr)
    if is_unclean:
        # They are no equals of the new members any more.
        elr = ()
    # Acknowledgements from before a member's loss must not count any more, nor may a proposal based
    # on them be applied. Both are then of an older leader epoch. Within one epoch, only the leader
    # lets members in, and it relies on that, so their acknowledgements still hold.
    has_entered = not set(isr) <= set(row.isr)
    # A broker deletes a removed replica, maybe late. If it gets a new replica of the partition
    # before that, the broker must not count as holding the records acknowledged by the deleted
    # replica.
    has_left = not set(row.replicas) <= set(replicas)
    is_new_epoch = leader != row.leader or has_entered or has_left or bool(change.not_eligible)
    leader_epoch = LeaderEpoch(row.leader_epoch + is_new_epoch)
    changed = PartitionImage(
        partition=row.partition,
        replicas=replicas,
        isr=isr,
        elr=elr,
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=row.partition_epoch,
        adding=adding,
        removing=removing,
        unclean_epoch=leader_epoch if is_unclean else row.unclean_epoch,
    )
    if changed == row:
        return row
    return replace(changed, partition_epoch=PartitionEpoch(row.partition_epoch + 1))


def _check_replicas(
    image: MetadataImage, row: PartitionImage, replicas: tuple[BrokerId, ...]
) -> None:
    if replicas is row.replicas:
        return
    if not replicas or len(set(replicas)) != len(replicas):
        raise RefusedError(ILLEGAL_STATE, "A partition needs replicas, each once.", Reason.INVALID)
    for broker_id in replicas:
        if broker_id not in image.brokers:
            raise RefusedError(ILLEGAL_STATE, f"There is no broker {broker_id}.", Reason.GONE)
    if {*row.isr, *row.elr}.isdisjoint(replicas) and not {*row.replicas} <= {*replicas}:
        # A broker with committed records must not be forgotten before other brokers also have them.
        # While the holders are unknown, no replica may be forgotten.
        raise RefusedError(
            ILLEGAL_STATE, "No replica would be left that has all records.", Reason.INVALID
        )


def _part(
    wanted: tuple[BrokerId, ...] | None,
    present: tuple[BrokerId, ...],
    replicas: tuple[BrokerId, ...],
    what: str,
) -> tuple[BrokerId, ...]:
    """The requested members, or the present members that are still replicas."""
    if wanted is None:
        return in_order(replicas, present) if present else present
    _check_distinct_part(wanted, replicas, what)
    return in_order(replicas, wanted) if wanted else wanted


def _check_distinct_part(
    members: Collection[BrokerId], replicas: tuple[BrokerId, ...], what: str
) -> None:
    if len(set(members)) != len(members) or not set(members) <= set(replicas):
        raise RefusedError(
            ILLEGAL_STATE,
            f"{what} {list(members)} is no part of the replicas {list(replicas)}.",
            Reason.INVALID,
        )


def _check_may_enter(
    image: MetadataImage, row: PartitionImage, broker_id: BrokerId, *, unclean: bool
) -> None:
    if not image.brokers[broker_id].is_available:
        raise RefusedError(
            ILLEGAL_STATE, f"Broker {broker_id} is not available.", Reason.INELIGIBLE_MEMBER
        )
    if broker_id not in row.elr and not unclean:
        raise RefusedError(
            ILLEGAL_STATE,
            f"Broker {broker_id} may have lost records, and the change is not marked as unclean.",
            Reason.INVALID,
        )


def _check_partition_epoch(
    topic: TopicImage, row: PartitionImage, partition_epoch: PartitionEpoch
) -> None:
    if row.partition_epoch != partition_epoch:
        raise RefusedError(
            ILLEGAL_STATE,
            f"{topic.name}-{row.partition} is in partition epoch {row.partition_epoch} now, "
            f"not {partition_epoch}.",
            Reason.STALE_PARTITION_EPOCH,
        )
