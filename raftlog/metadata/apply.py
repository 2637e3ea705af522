"""Applying a command to the image: the only code that changes metadata.

Two rules hold everywhere below. First every check, then every change: a refused command leaves the
image as it was. And a check may use only what is fixed for the command's version: the image, and
what protects its invariants. What may differ from one release to the next (bounds, legal configs,
defaults) is checked by the controller before the command is proposed, or nodes of two releases
would come to different images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from msgspec.structs import replace

from raftlog.metadata.commands import (
    AddPartitions,
    AllocateProducerIds,
    AlterTopicConfigs,
    Assignments,
    ClusterCreated,
    Command,
    CreateTopic,
    DeleteTopic,
    RegisterBroker,
)
from raftlog.metadata.delta import NO_CHANGE, MetadataDelta, topic_change
from raftlog.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from raftlog.metadata.names import topic_name_fault
from raftlog.record.errors import (
    ILLEGAL_STATE,
    INVALID_PARTITIONS,
    INVALID_TOPIC,
    TOPIC_EXISTS,
    UNKNOWN_TOPIC,
    ErrorEntry,
    LogError,
)
from raftlog.record.types import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionId,
    ProducerId,
    TopicId,
)

DELETED_TOPIC_IDS_MAX: Final = 10_000
"""Deleted topics that are remembered. Part of command version 1: it decides results."""
BROKERS_MAX: Final = 1_000
"""Brokers that a cluster can have. Part of command version 1, too."""
PRODUCER_ID_MAX: Final = 2**63 - 1
TOPIC_ID_DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """Producer ids from `first` on, `count` of them, that nobody else will ever be given."""

    first: ProducerId
    count: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a command changed nothing, in the terms of the error table."""

    entry: ErrorEntry
    message: str


ApplyValue: TypeAlias = TopicImage | BrokerImage | ProducerIdBlock | str | None
_Change: TypeAlias = tuple[ApplyValue, MetadataDelta]


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """What became of the command at `index`: the same on every node.

    `value` is the topic after creation or change (before deletion), the registered broker, the
    producer ids given, or the cluster's id. With a `refusal` nothing has changed.
    """

    index: int
    value: ApplyValue = None
    delta: MetadataDelta = NO_CHANGE
    refusal: Refusal | None = None

    def check(self) -> None:
        """Raise LogError if the command was refused."""
        if self.refusal is not None:
            raise LogError(self.refusal.entry, self.refusal.message)

    def topic(self) -> TopicImage:
        """The value of a topic command. Raises LogError if it was refused."""
        self.check()
        assert isinstance(self.value, TopicImage)
        return self.value

    def broker(self) -> BrokerImage:
        """The value of RegisterBroker. Raises LogError if it was refused."""
        self.check()
        assert isinstance(self.value, BrokerImage)
        return self.value

    def producer_ids(self) -> ProducerIdBlock:
        """The value of AllocateProducerIds. Raises LogError if it was refused."""
        self.check()
        assert isinstance(self.value, ProducerIdBlock)
        return self.value


class _RefusedError(Exception):
    """Leaves a transition before its first change; never leaves this module."""

    def __init__(self, entry: ErrorEntry, message: str) -> None:
        super().__init__(message)
        self.refusal = Refusal(entry, message)


def apply(image: MetadataImage, index: int, command: Command) -> ApplyResult:
    """Carry out the command that the log holds at `index`, in place.

    Indexes grow but may leave gaps: the log holds entries that are no commands, too.
    """
    assert index > image.applied_index, f"index {index} after {image.applied_index}"
    try:
        value, delta = _transition(image, index, command)
    except _RefusedError as refused:
        result = ApplyResult(index, refusal=refused.refusal)
    else:
        result = ApplyResult(index, value, delta)
    image.applied_index = index
    return result


def _transition(image: MetadataImage, index: int, command: Command) -> _Change:
    match command:
        case ClusterCreated():
            change: _Change = _create_cluster(image, command), NO_CHANGE
        case RegisterBroker():
            change = _register_broker(image, index, command)
        case CreateTopic():
            change = _create_topic(image, command)
        case DeleteTopic():
            change = _delete_topic(image, command)
        case AddPartitions():
            change = _add_partitions(image, command)
        case AlterTopicConfigs():
            change = _alter_configs(image, command)
        case AllocateProducerIds():
            change = _allocate_producer_ids(image, command), NO_CHANGE
        case _:
            assert_never(command)
    return change


def _create_cluster(image: MetadataImage, command: ClusterCreated) -> str:
    if image.cluster_id is None:
        image.cluster_id = command.cluster_id
        image.created_ms = command.created_ms
    elif image.cluster_id != command.cluster_id:
        raise _RefusedError(ILLEGAL_STATE, f"This is cluster {image.cluster_id} already.")
    return image.cluster_id


def _register_broker(
    image: MetadataImage, index: int, command: RegisterBroker
) -> tuple[BrokerImage, MetadataDelta]:
    known = image.brokers.get(command.broker_id)
    if known is not None and known.directory_id != command.directory_id:
        raise _RefusedError(
            ILLEGAL_STATE,
            f"Broker {command.broker_id} is registered with another data directory "
            f"({known.directory_id}): start it with that one, or under another id.",
        )
    if known is not None and known.incarnation == command.incarnation:
        return known, NO_CHANGE
    if known is None and len(image.brokers) >= BROKERS_MAX:
        raise _RefusedError(ILLEGAL_STATE, f"There are {BROKERS_MAX} brokers already.")
    broker = BrokerImage(
        broker_id=command.broker_id,
        # The index grows, and no two commands share it: no incarnation's epoch can come twice.
        broker_epoch=BrokerEpoch(index),
        directory_id=command.directory_id,
        incarnation=command.incarnation,
        host=command.host,
        port=command.port,
        rack=command.rack,
        software_version=command.software_version,
        command_version=command.command_version,
    )
    image.brokers[command.broker_id] = broker
    # A restarted leader may have lost records that it had not synced. Were it to go on in its old
    # leader epoch, two different records could carry the same epoch and offset.
    led = [
        topic
        for topic in image.topics_by_id.values()
        if any(row.leader == command.broker_id for row in topic.partitions)
    ]
    changes = []
    for before in led:
        after = replace(
            before,
            partitions=tuple(
                _next_leader_epoch(row) if row.leader == command.broker_id else row
                for row in before.partitions
            ),
        )
        _put_topic(image, after)
        changes.append(topic_change(before, after))
    return broker, MetadataDelta(changed=tuple(changes), brokers=(command.broker_id,))


def _next_leader_epoch(row: PartitionImage) -> PartitionImage:
    return replace(
        row,
        leader_epoch=LeaderEpoch(row.leader_epoch + 1),
        partition_epoch=PartitionEpoch(row.partition_epoch + 1),
    )


def _create_topic(image: MetadataImage, command: CreateTopic) -> tuple[TopicImage, MetadataDelta]:
    known = image.topics_by_id.get(command.topic_id)
    if known is not None and known.name == command.name:
        return known, NO_CHANGE
    fault = topic_name_fault(command.name)
    if fault is not None:
        raise _RefusedError(INVALID_TOPIC, fault)
    if command.name in image.topics_by_name:
        raise _RefusedError(TOPIC_EXISTS, f"Topic {command.name!r} exists already.")
    if known is not None or command.topic_id in image.deleted_topic_ids:
        raise _RefusedError(ILLEGAL_STATE, f"Topic id {command.topic_id} was used before.")
    if not _is_topic_id(command.topic_id):
        raise _RefusedError(ILLEGAL_STATE, f"{command.topic_id!r} is not a topic id.")
    factor = len(command.assignments[0]) if command.assignments else 0
    _check_assignments(image, command.assignments, factor)
    topic = TopicImage(
        topic_id=command.topic_id,
        name=command.name,
        configs=dict(command.configs),
        partitions=_new_partitions(0, command.assignments),
    )
    _put_topic(image, topic)
    return topic, MetadataDelta(created=(topic,))


def _delete_topic(image: MetadataImage, command: DeleteTopic) -> tuple[TopicImage, MetadataDelta]:
    topic = _topic_of(image, command.topic_id)
    del image.topics_by_id[topic.topic_id]
    del image.topics_by_name[topic.name]
    image.deleted_topic_ids[topic.topic_id] = None
    if len(image.deleted_topic_ids) > DELETED_TOPIC_IDS_MAX:
        del image.deleted_topic_ids[next(iter(image.deleted_topic_ids))]
    return topic, MetadataDelta(deleted=(topic,))


def _add_partitions(
    image: MetadataImage, command: AddPartitions
) -> tuple[TopicImage, MetadataDelta]:
    before = _topic_of(image, command.topic_id)
    if len(before.partitions) != command.partition_count:
        raise _RefusedError(
            ILLEGAL_STATE,
            f"Topic {before.name} has {len(before.partitions)} partitions by now, "
            f"not {command.partition_count}.",
        )
    _check_assignments(image, command.assignments, before.replication_factor)
    added = _new_partitions(command.partition_count, command.assignments)
    after = replace(before, partitions=before.partitions + added)
    _put_topic(image, after)
    return after, MetadataDelta(changed=(topic_change(before, after),))


def _alter_configs(
    image: MetadataImage, command: AlterTopicConfigs
) -> tuple[TopicImage, MetadataDelta]:
    before = _topic_of(image, command.topic_id)
    configs = {
        name: value
        for name, value in {**before.configs, **command.values}.items()
        if name not in command.removals
    }
    if configs == before.configs:
        return before, NO_CHANGE
    after = replace(before, configs=configs)
    _put_topic(image, after)
    return after, MetadataDelta(changed=(topic_change(before, after),))


def _allocate_producer_ids(image: MetadataImage, command: AllocateProducerIds) -> ProducerIdBlock:
    broker = image.brokers.get(command.broker_id)
    if broker is None or broker.broker_epoch != command.broker_epoch:
        raise _RefusedError(
            ILLEGAL_STATE,
            f"Broker {command.broker_id} has been started again since epoch "
            f"{command.broker_epoch}, or was never registered.",
        )
    if image.next_producer_id + command.count > PRODUCER_ID_MAX:
        raise _RefusedError(ILLEGAL_STATE, "All producer ids have been given away.")
    block = ProducerIdBlock(image.next_producer_id, command.count)
    image.next_producer_id = ProducerId(image.next_producer_id + command.count)
    return block


def _check_assignments(
    image: MetadataImage, assignments: Assignments, replication_factor: int
) -> None:
    if not assignments or replication_factor < 1:
        raise _RefusedError(INVALID_PARTITIONS, "A topic needs a partition, and each a replica.")
    for replicas in assignments:
        if len(replicas) != replication_factor or len(set(replicas)) != replication_factor:
            raise _RefusedError(
                INVALID_PARTITIONS,
                f"Each partition needs {replication_factor} different replicas, "
                f"not {list(replicas)}.",
            )
        for broker_id in replicas:
            if broker_id not in image.brokers:
                raise _RefusedError(INVALID_PARTITIONS, f"There is no broker {broker_id}.")


def _new_partitions(first: int, assignments: Assignments) -> tuple[PartitionImage, ...]:
    # The same tuple stands for replicas and ISR, and equal assignments share it: at 100,000
    # partitions that is half of their memory.
    shared: dict[tuple[BrokerId, ...], tuple[BrokerId, ...]] = {}
    return tuple(
        PartitionImage(
            partition=PartitionId(first + position),
            replicas=(brokers := shared.setdefault(replicas, replicas)),
            isr=brokers,
            elr=(),
            leader=brokers[0],
            leader_epoch=LeaderEpoch(0),
            partition_epoch=PartitionEpoch(0),
        )
        for position, replicas in enumerate(assignments)
    )


def _is_topic_id(topic_id: str) -> bool:
    return len(topic_id) == TOPIC_ID_DIGITS and not set(topic_id) - set("0123456789abcdef")


def _topic_of(image: MetadataImage, topic_id: TopicId) -> TopicImage:
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        fate = "was deleted" if topic_id in image.deleted_topic_ids else "does not exist"
        raise _RefusedError(UNKNOWN_TOPIC, f"The topic of id {topic_id} {fate}.")
    return topic


def _put_topic(image: MetadataImage, topic: TopicImage) -> None:
    image.topics_by_id[topic.topic_id] = topic
    image.topics_by_name[topic.name] = topic
