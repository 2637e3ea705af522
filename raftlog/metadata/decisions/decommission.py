"""Empties a broker for good. Its replicas move to others, and it gets none. Pure.

The request is in the metadata (`BrokerImage.decommissioning`), so every active controller continues
the work. `plan_evacuation` finds the remaining replicas. A bounded number of partitions moves at a
time, because each move copies all records. As some moves end, others start.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Final

from raftlog.metadata.commands import (
    COMMAND_VERSION,
    PARTITION_CHANGES_MAX,
    AlterBroker,
    ChangePartitions,
    PartitionChange,
)
from raftlog.metadata.decisions.elections import Elections, change_command, in_batches
from raftlog.metadata.decisions.liveness import require_command_version
from raftlog.metadata.decisions.placement import Replacements
from raftlog.metadata.decisions.reassignment import reassigned, target_of, without_replicas
from raftlog.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from raftlog.record.errors import ILLEGAL_STATE, NOT_FOUND, LogError, counted
from raftlog.record.types import BrokerId

MOVES_AT_ONCE_MAX: Final = 500
"""Partitions that move at a time because brokers are decommissioned."""
assert MOVES_AT_ONCE_MAX <= PARTITION_CHANGES_MAX


@dataclass(frozen=True, slots=True)
class EvacuationProgress:
    """Progress of a decommission. `left` are the partitions still held by the broker.

    `moving` of them are on their way. With none left the broker may be stopped and removed.
    """

    left: int
    moving: int


def plan_decommission(image: MetadataImage, broker_id: BrokerId) -> AlterBroker:
    """Start to empty the broker. A repeat is harmless.

    Raises LogError with NOT_FOUND, or ILLEGAL_STATE if too few brokers would stay for one of the
    broker's topics.
    """
    _require_broker(image, broker_id)
    staying = sum(
        not broker.decommissioning and each != broker_id for each, broker in image.brokers.items()
    )
    for name in sorted(image.topics_by_name):
        topic = image.topics_by_name[name]
        needed = max(
            (
                len(row.replicas) - len(row.removing)
                for row in topic.partitions
                if broker_id in row.replicas and broker_id not in row.removing
            ),
            default=0,
        )
        if needed > staying:
            raise LogError(
                ILLEGAL_STATE,
                f"Broker {broker_id} cannot be decommissioned: topic {name} has "
                f"{counted(needed, 'replica')}, and only {counted(staying, 'broker')} would be "
                "left to hold them. Add a broker first, or reassign the topic to fewer replicas.",
            )
    return alter_broker(image, broker_id, decommissioning=True)


def plan_recommission(
    image: MetadataImage, broker_id: BrokerId
) -> Iterator[AlterBroker | ChangePartitions]:
    """Cancel a decommission. The broker keeps its remaining replicas, as far as possible.

    Moved replicas stay at their new place. Raises LogError(NOT_FOUND), at once.
    """
    request = alter_broker(image, broker_id, decommissioning=False)
    return _recommission(image, broker_id, request)


def _recommission(
    image: MetadataImage, broker_id: BrokerId, request: AlterBroker
) -> Iterator[AlterBroker | ChangePartitions]:
    if image.brokers[broker_id].decommissioning:
        yield request
    elections = Elections(image)

    def choose(topic: TopicImage, row: PartitionImage) -> PartitionChange | None:
        if broker_id not in row.removing:
            return None
        return without_replicas(elections, topic, row, without=row.adding)

    yield from in_batches(image, choose)


def plan_maintenance(image: MetadataImage, broker_id: BrokerId, *, wanted: bool) -> AlterBroker:
    """Relieve the broker of leaderships that others can take, or end that. Raises
    LogError(NOT_FOUND)."""
    _require_broker(image, broker_id)
    return alter_broker(image, broker_id, maintenance=wanted)


def plan_evacuation(
    image: MetadataImage, *, unwritable: Set[BrokerId] = frozenset()
) -> Iterator[ChangePartitions]:
    """Move replicas from decommissioned brokers, as many as may move at a time.

    `unwritable` brokers, without a writable disk, get replicas only without another choice.
    Empty while too few other brokers are available.
    """
    leaving = {b for b, broker in image.brokers.items() if broker.decommissioning}
    if not leaving:
        return
    room = MOVES_AT_ONCE_MAX - sum(
        not leaving.isdisjoint(row.removing)
        for topic in image.topics_by_id.values()
        for row in topic.partitions
        if row.removing
    )
    replacements = Replacements(image, unwritable)
    changes: list[PartitionChange] = []
    for topic in image.topics_by_id.values():
        for row in topic.partitions:
            if len(changes) >= room:
                break
            if leaving.isdisjoint(row.replicas):
                continue
            target = target_of(row)
            if leaving.isdisjoint(target):
                continue
            replicas = replacements.replace(target, leaving)
            if replicas is not None:
                changes.append(reassigned(topic, row, replicas))
    if changes:
        yield change_command(image, changes)


def evacuation_progress(image: MetadataImage, broker_id: BrokerId) -> EvacuationProgress:
    """How much the broker still holds. Raises LogError(NOT_FOUND)."""
    _require_broker(image, broker_id)
    rows = [
        row
        for topic in image.topics_by_id.values()
        for row in topic.partitions
        if broker_id in row.replicas
    ]
    return EvacuationProgress(len(rows), sum(broker_id in row.removing for row in rows))


def alter_broker(
    image: MetadataImage,
    broker_id: BrokerId,
    *,
    maintenance: bool | None = None,
    decommissioning: bool | None = None,
) -> AlterBroker:
    """Make the command. Raises LogError with NOT_FOUND, or ILLEGAL_STATE for an older node."""
    _require_broker(image, broker_id)
    command = AlterBroker(
        broker_id=broker_id, maintenance=maintenance, decommissioning=decommissioning
    )
    assert command.v <= COMMAND_VERSION
    require_command_version(image, command.v)
    return command


def _require_broker(image: MetadataImage, broker_id: BrokerId) -> BrokerImage:
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise LogError(NOT_FOUND, f"There is no broker {broker_id}.")
    return broker
