"""Brokers that come, go and stop: what the active controller commits, in this order.

Each plan gives commands to be proposed one after the other, as long as the controller is active; if
the first one is refused, the rest must not follow. Plans are made step by step, see `elections`.
A controller that dies between two commands leaves work behind. The next one plans the fencing of
every silent broker again, fenced or not (`controller.sessions`), and holds all elections that are
due (`controller.partition_work`). All plans are empty where nothing is left to do.

In all of them, brokers that are `unwritable` (their disks take no writes) are elected last.

Replicas whose storage failed: a pure decision that any broker takes about its own.

A replica that was damaged or wiped, or has lost bytes that it had not flushed, may lack records
that it has acknowledged. It must leave ISR and ELR by a committed change *before* its files are
touched, or it could be elected with less than was committed. From then on it is a replica like one
that is new: it comes back into the ISR when its leader has seen it catch up, and never by itself.

The change begins a new leader epoch, also where the broker is in neither set: its leader may be
about to propose it for the ISR, by what it acknowledged before. That proposal is stale then, and
acknowledgements of an older leader epoch do not count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set

from msgspec.structs import replace

from raftlog.metadata.commands import (
    ChangePartitions,
    Command,
    FenceBroker,
    PartitionChange,
    SetControlledShutdown,
    UnfenceBroker,
    UnregisterBroker,
)
from raftlog.metadata.elections import (
    Elections,
    PartitionKey,
    change_of,
    elected,
    in_batches,
    plan_elections,
)
from raftlog.metadata.image import NO_LEADER_ID, MetadataImage, PartitionImage, TopicImage
from raftlog.record.errors import ILLEGAL_STATE, NOT_FOUND, LogError
from raftlog.record.types import BrokerId


def plan_fencing(
    image: MetadataImage, broker_id: BrokerId, *, unwritable: Set[BrokerId] = frozenset()
) -> Iterator[Command]:
    """Fence a broker; move what it leads; take it out of every ISR. Unknown broker: nothing.

    Also for one that is fenced already (it has been started again, or a controller died over
    it): then only what is left to be done.

    A member that is alone in an ISR leaves it, too (KIP-966): it goes to the ELR, whose members
    have all that was committed, and is elected from there when it returns. But where others would
    be left, and none of them leads or could, the ISR stays whole: each of them may report yet that
    a power cut took records from it, and whoever had left would not be eligible then, though it has
    everything. The first to return leads, and takes out the others.
    """
    broker = image.brokers.get(broker_id)
    if broker is None:
        return
    if not broker.fenced:
        # First of all: from now on no leader can take it into an ISR again.
        yield FenceBroker(broker_id=broker_id, broker_epoch=broker.broker_epoch)
    yield from _plan_leaving(image, {broker_id}, unwritable)


def plan_unfencing(
    image: MetadataImage, broker_id: BrokerId, *, unwritable: Set[BrokerId] = frozenset()
) -> Iterator[Command]:
    """Let a broker serve again, and lead what has no leader for want of it."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        return
    if broker.fenced:
        yield UnfenceBroker(broker_id=broker_id, broker_epoch=broker.broker_epoch)
    including = frozenset() if broker.controlled_shutdown else frozenset({broker_id})
    yield from plan_elections(image, including=including, unwritable=unwritable)


def plan_controlled_shutdown(
    image: MetadataImage, broker_id: BrokerId, *, unwritable: Set[BrokerId] = frozenset()
) -> Iterator[Command]:
    """Move what others can take over from a broker that is about to stop.

    It stays the leader where nobody else is in sync: until it has really stopped it can serve.
    Elsewhere it leaves the ISR, so that its end keeps no write waiting, unless all others are gone
    (see `plan_fencing`).
    """
    broker = image.brokers.get(broker_id)
    if broker is None:
        return
    if not broker.controlled_shutdown:
        yield SetControlledShutdown(broker_id=broker_id, broker_epoch=broker.broker_epoch)
    elections = Elections(image, excluding={broker_id}, unwritable=unwritable)

    def choose(topic: TopicImage, row: PartitionImage) -> PartitionChange | None:
        if broker_id not in row.isr or row.leader == NO_LEADER_ID:
            return None
        rest = tuple(member for member in row.isr if member != broker_id)
        if not _serves(image, elections, row, rest):
            return None
        if row.leader != broker_id:
            return change_of(topic, row, isr=rest)
        election = elections.elect(topic, row, isr=rest)
        assert election is not None and election.isr == rest
        return elected(topic, row, election)

    yield from in_batches(image, choose)


def plan_unregistration(
    image: MetadataImage, broker_id: BrokerId, *, has_vote: bool
) -> UnregisterBroker:
    """Forget a broker; `has_vote`: in the metadata quorum, of which the image knows nothing.

    Raises LogError: NOT_FOUND, or ILLEGAL_STATE if it lives or votes. Whether it holds replicas
    is decided when the command is applied.
    """
    broker = image.brokers.get(broker_id)
    if broker is not None and not broker.fenced:
        raise LogError(
            ILLEGAL_STATE,
            f"Broker {broker_id} is alive: stop it first, and wait until it is fenced.",
        )
    if has_vote:
        # Its vote names its data directory: without a registration it could still not be replaced.
        raise LogError(
            ILLEGAL_STATE,
            f"Node {broker_id} still has a vote: take that first "
            f"(`raftlog quorum remove-voter {broker_id}`).",
        )
    if broker is None:
        raise LogError(NOT_FOUND, f"There is no broker {broker_id}.")
    return UnregisterBroker(broker_id=broker_id, broker_epoch=broker.broker_epoch)


def _plan_leaving(
    image: MetadataImage, leaving: Set[BrokerId], unwritable: Set[BrokerId] = frozenset()
) -> Iterator[ChangePartitions]:
    """Move what these brokers lead, and then take them out of the other ISRs."""
    elections = Elections(image, excluding=leaving, unwritable=unwritable)

    def leave(topic: TopicImage, row: PartitionImage) -> PartitionChange | None:
        isr = row.isr
        if not leaving.isdisjoint(isr):
            rest = tuple(member for member in isr if member not in leaving)
            if len(isr) == 1 or _serves(image, elections, row, rest):
                isr = rest
        if row.leader not in leaving:
            return None if isr is row.isr else change_of(topic, row, isr=isr)
        election = elections.elect(topic, row, isr=isr)
        if election is not None:
            return elected(topic, row, election)
        return change_of(topic, row, leader=NO_LEADER_ID, isr=isr)

    def leave_if_led(topic: TopicImage, row: PartitionImage) -> PartitionChange | None:
        return leave(topic, row) if row.leader in leaving else None

    # Without a leader a partition serves nobody, so these come first. Those that were changed
    # by the first round need nothing in the second, even if they have not been applied yet.
    moved: set[tuple[str, int]] = set()
    for command in in_batches(image, leave_if_led):
        moved.update((change.topic_id, change.partition) for change in command.changes)
        yield command

    def leave_if_not_moved(topic: TopicImage, row: PartitionImage) -> PartitionChange | None:
        if (topic.topic_id, row.partition) in moved:
            return None
        return leave(topic, row)

    yield from in_batches(image, leave_if_not_moved)


def _serves(
    image: MetadataImage, elections: Elections, row: PartitionImage, rest: tuple[BrokerId, ...]
) -> bool:
    """Whether one of these members leads the partition, or could.

    Who is about to stop may go on leading until it has, but is not elected any more.
    """
    return any(
        elections.is_available(member)
        or (member == row.leader and not image.brokers[member].fenced)
        for member in rest
    )


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
