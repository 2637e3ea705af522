"""Replicas whose storage failed: a pure decision that any broker takes about its own.

A replica that was damaged or wiped, or has lost bytes that it had not flushed, may lack records
that it has acknowledged. It must leave ISR and ELR by a committed change *before* its files are
touched, or it could be elected with less than was committed. From then on it is a replica like one
that is new: it comes back into the ISR when its leader has seen it catch up, and never by itself.

The change begins a new leader epoch, also where the broker is in neither set: its leader may be
about to propose it for the ISR, by what it acknowledged before. That proposal is stale then, and
acknowledgements of an older leader epoch do not count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec.structs import replace

from raftlog.metadata.commands import ChangePartitions, PartitionChange
from raftlog.metadata.elections import Elections, PartitionKey, change_of, elected, in_batches
from raftlog.metadata.image import NO_LEADER_ID, MetadataImage, PartitionImage, TopicImage
from raftlog.record.types import BrokerId


def plan_replica_failures(
    image: MetadataImage, broker_id: BrokerId, keys: Collection[PartitionKey]
) -> Iterator[ChangePartitions]:
    """Take the broker out of ISR and ELR of these partitions, and have others lead them.

    Afterwards it is in neither, also where it was the last: nobody can lead then until an operator
    accepts the loss. One change for each partition that it holds, whatever its state: those that
    turn out to be stale have to be planned anew, and only those. Nothing may be done to the files
    of a replica before its change is applied.
    """
    elections = Elections(image, excluding={broker_id})

    def choose(topic: TopicImage, row: PartitionImage) -> PartitionChange | None:
        if broker_id not in row.replicas:
            return None
        rest = tuple(member for member in row.isr if member != broker_id)
        if row.leader != broker_id:
            change = change_of(topic, row, isr=rest)
        else:
            election = elections.elect(topic, row, isr=rest)
            change = (
                change_of(topic, row, leader=NO_LEADER_ID, isr=rest)
                if election is None
                else elected(topic, row, election)
            )
        return replace(change, not_eligible=(broker_id,))

    return in_batches(image, choose, keys)
