"""Commits of the active controller for brokers that come, go and stop, in this order.

Each plan yields commands to be proposed in sequence, while the controller is active. After a
refusal of the first command, the rest must not follow. Plans are made step by step, see
`elections`. A controller that dies between two commands leaves work behind. The next controller
plans the fencing of every silent broker again, fenced or not (`controller.sessions`), and holds all
elections that are due (`controller.partition_work`). All plans are empty without remaining work.

In all of them, `unwritable` brokers (their disks take no writes) are elected last.

A broker decides about its failed replicas by itself. A replica that was damaged or wiped, or has
lost unflushed bytes, may lack acknowledged records. The replica must leave ISR and ELR by a
committed change *before* its files are touched. Otherwise it could be elected without committed
records. From then on it counts as new. Its leader, never the broker itself, lets it into the ISR
after it has caught up.

The change starts a new leader epoch, also where the broker is in neither set. Its leader may be
about to propose it for the ISR, based on acknowledgements from before. The proposal is stale then,
and acknowledgements of an older leader epoch do not count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set

from msgspec.structs import replace

from raftlog.metadata.apply.rules import has_living_member
from raftlog.metadata.commands import (
    KAFKA_ADDRESS_VERSION,
    ChangePartitions,
    Command,
    FenceBroker,
    PartitionChange,
    RegisterBroker,
    ReplaceDirectory,
    SetControlledShutdown,
    UnfenceBroker,
    UnregisterBroker,
)
from raftlog.metadata.configs.topic import is_unclean_election_enabled
from raftlog.metadata.decisions.elections import (
    NO_LOG_ENDS,
    Elections,
    LogEnds,
    PartitionKey,
    change_of,
    elected,
    in_batches,
    plan_elections,
)
from raftlog.metadata.image import (
    NO_LEADER_ID,
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from raftlog.record.errors import ILLEGAL_STATE, NOT_FOUND, LogError
from raftlog.record.types import BrokerId


def brokers_without_kafka_addresses(
    image: MetadataImage, registering: BrokerId
) -> tuple[BrokerId, ...]:
    """Other registered brokers, with releases that know no Kafka address."""
    return tuple(
        broker_id
        for broker_id in sorted(image.brokers)
        if broker_id != registering
        and image.brokers[broker_id].command_version < KAFKA_ADDRESS_VERSION
    )


def registration_command(image: MetadataImage, wanted: RegisterBroker) -> RegisterBroker:
    """The registration in a version that all other registered brokers know.

    While another broker runs an older release, the Kafka address is left out. `image` must hold
    every registration made before, so pass a read barrier first.
    """
    if wanted.kafka_host is None:
        return wanted
    if brokers_without_kafka_addresses(image, wanted.broker_id):
        return replace(wanted, kafka_host=None, kafka_port=None)
    return replace(wanted, v=KAFKA_ADDRESS_VERSION)


def plan_fencing(
    image: MetadataImage, broker_id: BrokerId, *, unwritable: Set[BrokerId] = frozenset()
) -> Iterator[Command]:
    """Fence a broker, move its leaderships, and remove it from every ISR.

    Empty for an unknown broker. For a fenced broker (restarted, or left half done by a dead
    controller) only the remaining work is planned.

    A member alone in an ISR also leaves (KIP-966). It goes to the ELR, where each member has all
    committed records, and is elected from there on its return. But where others would be left, and
    none of them leads or could, the ISR stays whole. Each of them may yet report records lost in a
    power cut, and a member that had left would not be eligible then, in spite of having all
    records. The first to return leads, and removes the others.
    """
    broker = image.brokers.get(broker_id)
    if broker is None:
        return
    if not broker.fenced:
        # Fencing is first, so that from now on no leader can admit the broker to an ISR.
        yield FenceBroker(broker_id=broker_id, broker_epoch=broker.broker_epoch)
    yield from _plan_leaving(image, {broker_id}, unwritable)


def plan_unfencing(
    image: MetadataImage, broker_id: BrokerId, *, unwritable: Set[BrokerId] = frozenset()
) -> Iterator[Command]:
    """Unfence a broker, and let it lead partitions left without a leader."""
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
    """Move leaderships from a stopping broker where others can take over.

    The broker stays the leader where no other is in sync, as it can serve until its stop. Elsewhere
    it leaves the ISR, so that its end delays no write, unless all others are gone (see
    `plan_fencing`).
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
    """Forget a broker. `has_vote` is whether it votes in the metadata quorum.

    The quorum's votes are not in the image. Raises LogError with NOT_FOUND, or ILLEGAL_STATE if the
    broker lives or votes. Applying the command decides whether it holds replicas.
    """
    broker = _stopped_broker(image, broker_id, has_vote=has_vote)
    return UnregisterBroker(broker_id=broker_id, broker_epoch=broker.broker_epoch)


def plan_replacement(
    image: MetadataImage, broker_id: BrokerId, directory_id: str, *, has_vote: bool
) -> ReplaceDirectory | None:
    """Replace a broker's lost data directory by an empty directory.

    None if the directory has the place already. Raises LogError with NOT_FOUND, or ILLEGAL_STATE if
    the broker lives or votes, or while a node of an older release is in the cluster.
    """
    known = image.brokers.get(broker_id)
    if known is not None and known.directory_id == directory_id:
        return None
    broker = _stopped_broker(image, broker_id, has_vote=has_vote)
    command = ReplaceDirectory(
        broker_id=broker_id, broker_epoch=broker.broker_epoch, directory_id=directory_id
    )
    require_command_version(image, command.v, but_for=broker_id)
    return command


def _stopped_broker(image: MetadataImage, broker_id: BrokerId, *, has_vote: bool) -> BrokerImage:
    """A registered broker that neither lives nor votes. Raises LogError."""
    broker = image.brokers.get(broker_id)
    if broker is not None and not broker.fenced:
        raise LogError(
            ILLEGAL_STATE,
            f"Broker {broker_id} is alive: stop it first, and wait until it is fenced.",
        )
    if has_vote:
        # Its vote names its data directory, so without a registration it could still not be
        # replaced.
        raise LogError(
            ILLEGAL_STATE,
            f"Node {broker_id} still has a vote: take that first "
            f"(`raftlog quorum remove-voter {broker_id}`).",
        )
    if broker is None:
        raise LogError(NOT_FOUND, f"There is no broker {broker_id}.")
    return broker


def require_command_version(
    image: MetadataImage, version: int, *, but_for: BrokerId | None = None
) -> None:
    """Raise LogError ILLEGAL_STATE while a registered broker does not know a command's version."""
    for other in sorted(image.brokers):
        if other != but_for and image.brokers[other].command_version < version:
            raise LogError(
                ILLEGAL_STATE, f"Node {other} runs an older release: upgrade all nodes first."
            )


def _plan_leaving(
    image: MetadataImage, leaving: Set[BrokerId], unwritable: Set[BrokerId] = frozenset()
) -> Iterator[ChangePartitions]:
    """Move the leaderships of these brokers, then remove the brokers from the other ISRs."""
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

    # A partition without a leader serves no client, so these partitions are first. Partitions
    # changed by the first round need no change in the second, even if not applied yet.
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

    A stopping broker may lead until its stop, but is not elected any more.
    """
    return any(
        elections.is_available(member)
        or (member == row.leader and not image.brokers[member].fenced)
        for member in rest
    )


def plan_replica_failures(
    image: MetadataImage,
    broker_id: BrokerId,
    keys: Collection[PartitionKey],
    *,
    lost: bool,
    ends: Mapping[PartitionKey, LogEnds] = NO_LOG_ENDS,
) -> Iterator[ChangePartitions]:
    """Remove the broker from ISR and ELR of these partitions, and elect other leaders.

    With `lost`, the replicas lack records, so the broker leaves even as the last member. Then no
    replica can lead until an operator accepts the loss. Otherwise the replicas are to be replaced,
    and the apply refuses to remove the last living member, unless the config allows an unclean
    election. For that, `ends` has the logs of the others (`undecided_elections`). Each of its
    partitions gets one change, whatever its state, so plan only the stale changes again. The files
    of a replica must stay untouched before its change is applied.
    """
    elections = Elections(image, excluding={broker_id}, ends=ends)

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
        return replace(change, not_eligible=(broker_id,), lost=lost)

    return in_batches(image, choose, keys)


def may_retire_replica(image: MetadataImage, key: PartitionKey, broker_id: BrokerId) -> bool:
    """Whether the broker's replica may leave ISR and ELR to be replaced.

    True only while another living member has all committed records, or if the topic allows the
    unclean election of another living replica. A restart may bring the last log back, and an
    operator can still elect another replica while its broker is down. The apply decides, and this
    spares the proposal.
    """
    topic = image.topics_by_id[key[0]]
    row = topic.partitions[key[1]]
    if has_living_member(
        image,
        isr=[member for member in row.isr if member != broker_id],
        elr=[member for member in row.elr if member != broker_id],
    ):
        return True
    can_another_lead = any(
        image.brokers[replica].is_available for replica in row.replicas if replica != broker_id
    )
    return can_another_lead and is_unclean_election_enabled(topic.configs, image.cluster_settings)
