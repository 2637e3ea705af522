"""Who leads one partition, as an operator wants it: pure decisions."""

from __future__ import annotations

from collections.abc import Set

from raftlog.metadata.commands import ChangePartitions
from raftlog.metadata.elections import (
    Election,
    Elections,
    available_brokers,
    brokers_in_maintenance,
    change_of,
    elected,
)
from raftlog.metadata.image import NO_LEADER_ID, MetadataImage
from raftlog.record.errors import ILLEGAL_STATE, NO_LEADER, NOT_FOUND, LogError
from raftlog.record.types import BrokerId


def plan_leader_transfer(
    image: MetadataImage,
    *,
    name: str,
    partition: int,
    broker_id: BrokerId | None,
    unwritable: Set[BrokerId] = frozenset(),
) -> ChangePartitions | None:
    """Have that broker lead the partition, or the best other one; None if it does already.

    Not a broker of `unwritable`, whose disks take no writes: it would be relieved of it at once.
    Nothing that was committed is lost by it: only members of the ISR can be given the lead.
    Raises LogError: UNKNOWN_TOPIC, UNKNOWN_PARTITION; NO_LEADER without a leader to take it from;
    NOT_FOUND for a broker that does not hold the partition; ILLEGAL_STATE if it cannot lead now,
    or nobody else can.
    """
    topic = image.topic(name)
    row = topic.partition(partition)
    where = f"{name}-{partition}"
    if broker_id is not None and broker_id not in row.replicas:
        raise LogError(
            NOT_FOUND,
            f"Broker {broker_id} does not hold {where}: its replicas are {list(row.replicas)}.",
        )
    if row.leader == NO_LEADER_ID:
        raise LogError(NO_LEADER, f"{where} has no leader.")
    if broker_id == row.leader:
        return None
    if broker_id is None:
        excluding = {row.leader, *brokers_in_maintenance(image), *unwritable}
        others = Elections(image, excluding=excluding)
        if not any(map(others.is_available, row.isr)):
            raise LogError(ILLEGAL_STATE, f"No other replica of {where} is in sync and may lead.")
        election = others.elect(topic, row, unclean=False)
        assert election is not None and election.isr == row.isr
        return ChangePartitions(changes=(elected(topic, row, election),))
    if broker_id not in row.isr:
        raise LogError(ILLEGAL_STATE, f"Broker {broker_id} is not in sync with {where}.")
    if broker_id not in available_brokers(image) - brokers_in_maintenance(image):
        raise LogError(ILLEGAL_STATE, f"Broker {broker_id} is stopping or in maintenance.")
    if broker_id in unwritable:
        raise LogError(ILLEGAL_STATE, f"The disk of broker {broker_id} is full, or hangs.")
    return ChangePartitions(changes=(change_of(topic, row, leader=broker_id),))


def plan_unclean_election(
    image: MetadataImage, *, name: str, partition: int, broker_id: BrokerId | None = None
) -> ChangePartitions:
    """Let any living replica lead a partition that has no leader, or the one that is named.

    An operator accepts that records are lost by it.
    Raises LogError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, NOT_FOUND, ILLEGAL_STATE.
    """
    topic = image.topic(name)
    row = topic.partition(partition)
    where = f"{name}-{partition}"
    if broker_id is not None and broker_id not in row.replicas:
        raise LogError(
            NOT_FOUND,
            f"Broker {broker_id} does not hold {where}: its replicas are {list(row.replicas)}.",
        )
    if row.leader != NO_LEADER_ID:
        raise LogError(ILLEGAL_STATE, f"{where} is led by broker {row.leader}.")
    if broker_id is not None and broker_id in available_brokers(image):
        is_clean = broker_id in row.isr or broker_id in row.elr
        # Begins an ISR of its own, unless it is a member of the present one.
        isr = row.isr if broker_id in row.isr else (broker_id,)
        election: Election | None = Election(broker_id, isr, is_clean=is_clean)
    else:
        election = None if broker_id else Elections(image).elect(topic, row, unclean=True)
    if election is None:
        candidates = list(row.replicas) if broker_id is None else [broker_id]
        raise LogError(ILLEGAL_STATE, f"None of the replicas {candidates} of {where} lives.")
    return ChangePartitions(changes=(elected(topic, row, election),))
