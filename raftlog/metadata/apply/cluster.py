"""Applies commands about the cluster as a whole, and commands about brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from raftlog.metadata.apply.rules import Reason, RefusedError, broker_of
from raftlog.metadata.apply.topics import put_topic, without_elr
from raftlog.metadata.commands import (
    KAFKA_ADDRESS_VERSION,
    AllocateProducerIds,
    AlterBroker,
    AlterClusterSettings,
    ClusterCreated,
    FenceBroker,
    RegisterBroker,
    ReplaceDirectory,
    SetControlledShutdown,
    UnfenceBroker,
    UnregisterBroker,
)
from raftlog.metadata.configs.topic import MIN_ISR
from raftlog.metadata.delta import NO_CHANGE, MetadataDelta, TopicChange, settings_changed
from raftlog.metadata.image import BrokerImage, MetadataImage
from raftlog.record.errors import ILLEGAL_STATE, INVALID_CONFIG, counted, when_directory_is_lost
from raftlog.record.types import BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch, ProducerId

CLUSTER_SETTINGS_MAX: Final = 500
"""Settings of a cluster. Part of command version 1, because the bound decides results."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """All settings of the cluster, after the command."""

    values: Mapping[str, str]


def create_cluster(image: MetadataImage, command: ClusterCreated) -> str:
    """Keep the first id given as the cluster's id for good."""
    if image.cluster_id is None:
        image.cluster_id = command.cluster_id
        image.created_ms = command.created_ms
    elif image.cluster_id != command.cluster_id:
        raise RefusedError(ILLEGAL_STATE, f"This is cluster {image.cluster_id} already.")
    return image.cluster_id


def alter_cluster_settings(
    image: MetadataImage, command: AlterClusterSettings
) -> tuple[ClusterSettings, MetadataDelta]:
    """Set values without examining them, except min.insync.replicas, see `without_elr`."""
    before = image.cluster_settings
    after = {
        name: value
        for name, value in {**before, **command.values}.items()
        if name not in command.removals
    }
    if len(after) > CLUSTER_SETTINGS_MAX:
        raise RefusedError(
            INVALID_CONFIG, f"A cluster has at most {CLUSTER_SETTINGS_MAX} settings."
        )
    if after == before:
        return ClusterSettings(before), NO_CHANGE
    image.cluster_settings = after
    changes = []
    if after.get(MIN_ISR) != before.get(MIN_ISR):
        for topic in list(image.topics_by_id.values()):
            if MIN_ISR in topic.configs:
                continue
            changed, numbers = without_elr(topic)
            if numbers:
                put_topic(image, changed)
                changes.append(TopicChange(topic, changed, numbers))
    names = settings_changed(before, after)
    return ClusterSettings(after), MetadataDelta(changed=tuple(changes), cluster_settings=names)


BROKERS_MAX: Final = 1_000
"""Brokers of a cluster. Part of command version 1, because the bound decides results."""
PRODUCER_ID_MAX: Final = 2**63 - 1
TOPICS_NAMED_MAX: Final = 5
"""Topics named in the words of a refusal."""


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """Producer ids from `first` on, `count` of them, never allocated again."""

    first: ProducerId
    count: int


def register_broker(
    image: MetadataImage, index: int, command: RegisterBroker
) -> tuple[BrokerImage, MetadataDelta]:
    """Register a new incarnation, fenced. A repeat changes at most the Kafka address."""
    known = image.brokers.get(command.broker_id)
    if known is not None and known.directory_id != command.directory_id:
        raise RefusedError(
            ILLEGAL_STATE,
            f"Broker {command.broker_id} is registered with another data directory "
            f"({known.directory_id}): start it with that one, or under another id. "
            f"{when_directory_is_lost(known.broker_id)}",
        )
    kafka_host, kafka_port = _kafka_address(command)
    if known is not None and known.incarnation == command.incarnation:
        if command.v < KAFKA_ADDRESS_VERSION:
            return known, NO_CHANGE
        return _put_broker(
            image, known, replace(known, kafka_host=kafka_host, kafka_port=kafka_port)
        )
    if known is None and len(image.brokers) >= BROKERS_MAX:
        raise RefusedError(ILLEGAL_STATE, f"There are {BROKERS_MAX} brokers already.")
    broker = BrokerImage(
        broker_id=command.broker_id,
        # The index grows, and no two commands share an index, so no epoch of an incarnation can
        # come twice.
        broker_epoch=BrokerEpoch(index),
        directory_id=command.directory_id,
        incarnation=command.incarnation,
        host=command.host,
        port=command.port,
        rack=command.rack,
        software_version=command.software_version,
        command_version=command.command_version,
        fenced=True,
        maintenance=known is not None and known.maintenance,
        decommissioning=known is not None and known.decommissioning,
        kafka_host=kafka_host,
        kafka_port=kafka_port,
    )
    image.brokers[command.broker_id] = broker
    changes = _begin_leader_epochs(image, command.broker_id) if known is not None else ()
    return broker, MetadataDelta(changed=changes, brokers=(command.broker_id,))


def unregister_broker(
    image: MetadataImage, command: UnregisterBroker
) -> tuple[BrokerImage, MetadataDelta]:
    """Forget the broker. Refused while the broker is alive or holds replicas."""
    broker = broker_of(image, command.broker_id, command.broker_epoch)
    if not broker.fenced:
        raise RefusedError(ILLEGAL_STATE, f"Broker {broker.broker_id} is alive: stop it first.")
    held = _partitions_held(image, broker.broker_id)
    if held:
        raise RefusedError(ILLEGAL_STATE, _held_message(broker.broker_id, held))
    del image.brokers[broker.broker_id]
    return broker, MetadataDelta(brokers_gone=(broker.broker_id,))


def replace_directory(
    image: MetadataImage, command: ReplaceDirectory
) -> tuple[BrokerImage, MetadataDelta]:
    """Change the directory. Refused while the broker is alive.

    Touches no partition, see the command.
    """
    broker = broker_of(image, command.broker_id, command.broker_epoch)
    if not broker.fenced:
        raise RefusedError(ILLEGAL_STATE, f"Broker {broker.broker_id} is alive: stop it first.")
    return _put_broker(image, broker, replace(broker, directory_id=command.directory_id))


def fence_broker(image: MetadataImage, command: FenceBroker) -> tuple[BrokerImage, MetadataDelta]:
    """Fence the broker. Changes no partition, as the controller decides about partitions."""
    broker = broker_of(image, command.broker_id, command.broker_epoch)
    return _put_broker(image, broker, replace(broker, fenced=True))


def unfence_broker(
    image: MetadataImage, command: UnfenceBroker
) -> tuple[BrokerImage, MetadataDelta]:
    """Unfence the broker. Touches no partition either."""
    broker = broker_of(image, command.broker_id, command.broker_epoch)
    return _put_broker(image, broker, replace(broker, fenced=False))


def set_controlled_shutdown(
    image: MetadataImage, command: SetControlledShutdown
) -> tuple[BrokerImage, MetadataDelta]:
    """Mark the broker as stopping until its next start."""
    broker = broker_of(image, command.broker_id, command.broker_epoch)
    return _put_broker(image, broker, replace(broker, controlled_shutdown=True))


def alter_broker(image: MetadataImage, command: AlterBroker) -> tuple[BrokerImage, MetadataDelta]:
    """Set operator requests, until the next alteration or the broker's unregistration."""
    broker = image.brokers.get(command.broker_id)
    if broker is None:
        raise RefusedError(ILLEGAL_STATE, f"There is no broker {command.broker_id}.", Reason.GONE)
    after = broker
    if command.maintenance is not None:
        after = replace(after, maintenance=command.maintenance)
    if command.decommissioning is not None:
        after = replace(after, decommissioning=command.decommissioning)
    return _put_broker(image, broker, after)


def allocate_producer_ids(image: MetadataImage, command: AllocateProducerIds) -> ProducerIdBlock:
    """Allocate the next block to the present incarnation of a broker."""
    broker_of(image, command.broker_id, command.broker_epoch)
    if image.next_producer_id + command.count > PRODUCER_ID_MAX:
        raise RefusedError(ILLEGAL_STATE, "All producer ids have been given away.")
    block = ProducerIdBlock(image.next_producer_id, command.count)
    image.next_producer_id = ProducerId(image.next_producer_id + command.count)
    return block


def _kafka_address(command: RegisterBroker) -> tuple[str | None, int | None]:
    """The address of the broker's Kafka listener, as the command's version understands it."""
    if (
        command.v < KAFKA_ADDRESS_VERSION
        or command.kafka_host is None
        or command.kafka_port is None
    ):
        return None, None
    return command.kafka_host, command.kafka_port


def _partitions_held(image: MetadataImage, broker_id: BrokerId) -> dict[str, int]:
    """Count the partitions with a replica on the broker, by topic name."""
    held = {
        name: sum(broker_id in row.replicas for row in topic.partitions)
        for name, topic in sorted(image.topics_by_name.items())
    }
    return {name: count for name, count in held.items() if count}


def _held_message(broker_id: BrokerId, held: dict[str, int]) -> str:
    names = list(held)
    listed = ", ".join(names[:TOPICS_NAMED_MAX]) + (", …" if len(names) > TOPICS_NAMED_MAX else "")
    return (
        f"Broker {broker_id} still holds replicas of {counted(sum(held.values()), 'partition')} "
        f"of {counted(len(held), 'topic')} ({listed}). Decommission it first, so that they move to "
        "other brokers; what has no other copy there is can only be deleted (`raftlog topic "
        "delete`)."
    )


def _put_broker(
    image: MetadataImage, before: BrokerImage, after: BrokerImage
) -> tuple[BrokerImage, MetadataDelta]:
    if after == before:
        return before, NO_CHANGE
    image.brokers[after.broker_id] = after
    return after, MetadataDelta(brokers=(after.broker_id,))


def _begin_leader_epochs(image: MetadataImage, broker_id: BrokerId) -> tuple[TopicChange, ...]:
    """Begin a new leader epoch for each partition led by the broker.

    A restarted leader may have lost unsynced records. In its old leader epoch, two different
    records could then carry the same epoch and offset.
    """
    changes = []
    for before in list(image.topics_by_id.values()):
        numbers = tuple(row.partition for row in before.partitions if row.leader == broker_id)
        if not numbers:
            continue
        rows = list(before.partitions)
        for number in numbers:
            row = rows[number]
            rows[number] = replace(
                row,
                leader_epoch=LeaderEpoch(row.leader_epoch + 1),
                partition_epoch=PartitionEpoch(row.partition_epoch + 1),
            )
        after = replace(before, partitions=tuple(rows))
        put_topic(image, after)
        changes.append(TopicChange(before, after, numbers))
    return tuple(changes)
