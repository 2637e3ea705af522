"""Rules shared by the modules here, for refusals, look-ups and in-sync arithmetic.

The arithmetic is part of command version 1, since every node must come to the same result. Safety
of the ELR (KIP-966) rests on a rule that partition leaders keep. No record is committed while the
ISR has fewer than `min(min.insync.replicas, replicas)` members, nor beside an ELR. So each member
of the ISR at the moment of falling below has all committed records until the ISR is large enough
again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from raftlog.metadata.configs.topic import MIN_ISR
from raftlog.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from raftlog.record.errors import ILLEGAL_STATE, UNKNOWN_PARTITION, UNKNOWN_TOPIC, ErrorEntry
from raftlog.record.types import BrokerEpoch, BrokerId, PartitionId, TopicId


class Reason(StrEnum):
    """The next step of a program that proposed the command. Users have entry and message."""

    GONE = "gone"
    """The topic, partition or broker does not exist (any more)."""
    STALE_BROKER_EPOCH = "stale_broker_epoch"
    """The broker named by the command has been restarted since."""
    STALE_LEADER_EPOCH = "stale_leader_epoch"
    """The proposer does not lead the partition, or no longer in the named leader epoch."""
    STALE_PARTITION_EPOCH = "stale_partition_epoch"
    """The partition has changed since the decision, so read it again."""
    BROKER_FENCED = "broker_fenced"
    """The proposer, or the leader to be, is fenced or about to stop."""
    INELIGIBLE_MEMBER = "ineligible_member"
    """A member of the ISR to be is fenced, restarted, or about to stop."""
    LAST_REPLICA = "last_replica"
    """No living member would be left that has all committed records."""
    INVALID = "invalid"
    """The command contradicts itself, or would make the image contradict itself."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a command changed nothing, in the terms of the error table."""

    entry: ErrorEntry
    message: str
    reason: Reason = Reason.OTHER


class RefusedError(Exception):
    """Leaves a transition before its first change. Never leaves `apply`."""

    def __init__(self, entry: ErrorEntry, message: str, reason: Reason = Reason.OTHER) -> None:
        super().__init__(message)
        self.refusal = Refusal(entry, message, reason)


def topic_of(image: MetadataImage, topic_id: TopicId) -> TopicImage:
    """The topic of the id. Raises RefusedError."""
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        fate = "was deleted" if topic_id in image.deleted_topic_ids else "does not exist"
        raise RefusedError(UNKNOWN_TOPIC, f"The topic of id {topic_id} {fate}.", Reason.GONE)
    return topic


def partition_of(topic: TopicImage, partition: PartitionId) -> PartitionImage:
    """The partition of the number. Raises RefusedError."""
    if not 0 <= partition < len(topic.partitions):
        raise RefusedError(
            UNKNOWN_PARTITION, f"Topic {topic.name} has no partition {partition}.", Reason.GONE
        )
    return topic.partitions[partition]


def broker_of(image: MetadataImage, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> BrokerImage:
    """The broker, if this is its present incarnation. Raises RefusedError otherwise."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise RefusedError(ILLEGAL_STATE, f"There is no broker {broker_id}.", Reason.GONE)
    if broker.broker_epoch != broker_epoch:
        raise RefusedError(
            ILLEGAL_STATE,
            f"Broker {broker_id} is in epoch {broker.broker_epoch}, not {broker_epoch}: it has "
            "been started again.",
            Reason.STALE_BROKER_EPOCH,
        )
    return broker


MIN_ISR_DIGITS_MAX = 10


def in_order(replicas: tuple[BrokerId, ...], members: Collection[BrokerId]) -> tuple[BrokerId, ...]:
    """The replicas among `members`, in order. The same tuple if all are, to save memory."""
    chosen = tuple(broker_id for broker_id in replicas if broker_id in members)
    return replicas if len(chosen) == len(replicas) else chosen


def min_isr_in_force(
    configs: Mapping[str, str], cluster_settings: Mapping[str, str], default: int
) -> int:
    """min.insync.replicas of a topic, set by the topic, else the cluster, else `default`.

    `default` comes with the command, because releases may differ. A value other than a number
    counts as 1, the safest value for the ELR, since the fewest members stay eligible.
    """
    value = configs.get(MIN_ISR, cluster_settings.get(MIN_ISR))
    if value is None:
        return default
    if value.isascii() and value.isdigit() and len(value) <= MIN_ISR_DIGITS_MAX:
        return max(1, int(value))
    return 1


def next_elr(
    row: PartitionImage,
    *,
    replicas: tuple[BrokerId, ...],
    isr: tuple[BrokerId, ...],
    min_isr: int,
    not_eligible: Collection[BrokerId] = (),
) -> tuple[BrokerId, ...]:
    """The ELR once the ISR becomes `isr`.

    It is empty while enough are in sync. Otherwise it has the earlier members. The last member to
    leave, which leaves an empty ISR, is eligible in any case, because the ISR is then below every
    minimum.
    """
    if len(isr) >= min_isr:
        return ()
    were = {*row.isr, *row.elr}.difference(isr, not_eligible)
    return in_order(replicas, were) if were else ()


def has_living_member(
    image: MetadataImage, *, isr: Collection[BrokerId], elr: Collection[BrokerId]
) -> bool:
    """Whether a member with all committed records lives, and may lead now or later.

    A fenced member may yet report records lost in a power cut. An eligible member that is about to
    stop is not going to lead.
    """
    brokers = image.brokers
    return any(not brokers[member].fenced for member in isr) or any(
        brokers[member].is_available for member in elr
    )


def check_records_kept(
    image: MetadataImage,
    before: PartitionImage,
    after: PartitionImage,
    *,
    retired: Collection[BrokerId],
    lost: Collection[BrokerId],
) -> None:
    """Refuse to remove the last living member of ISR and ELR.

    `retired` members are named by the change. `lost` members have lost records and may go in any
    case. This rule covers all removals (repair, fencing, shutdown, reassignment, election), since
    two members that leave at once, each counting on the other, must not both be right. It is here
    and not in the plans, because only commands in the log have an order. An ELR that is void
    because enough members are in sync is no removal, as members enter the ISR only alive. Raises
    RefusedError.
    """
    leaving = {
        *(member for member in before.isr if member not in {*after.isr, *after.elr}),
        *(member for member in before.elr if member in retired or member not in after.replicas),
    }.difference(lost)
    if leaving and not has_living_member(image, isr=after.isr, elr=after.elr):
        raise RefusedError(
            ILLEGAL_STATE,
            f"Partition {before.partition}: without the brokers {sorted(leaving)} no living "
            "replica would be left that has all committed records.",
            Reason.LAST_REPLICA,
        )
