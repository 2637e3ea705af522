"""Elections of partition leaders, pure decisions of the active controller and operators.

A leader comes from the ISR, where each member has all committed records. Otherwise it comes from
the ELR, whose members also have all of them (KIP-966). Any other replica may have lost acknowledged
records. Its election takes the topic's config, or an operator. A fenced or stopping broker is never
elected.

Such an unclean election picks the longest log, which loses the fewest records. That is the greatest
leader epoch of a last record, then the greatest log end offset, as Raft compares logs. The ends are
not in the image. The decider gets them from the brokers, for the partitions of
`undecided_elections`. Without the ends, nothing but a single candidate is elected.

Among the candidates of a clean election, brokers with a writable disk come first (known to the
controller, no part of the image), then brokers out of maintenance. The others lead only without
another choice. Next is the preferred replica (the first replica), because the placement has spread
preferred replicas over the brokers, then the broker that leads the fewest partitions, then the
lowest id. That order is arbitrary, but the same for every decider. Among equally long logs the
order is the same, but the preferred replica has no precedence.

Plans are iterators, because a plan may touch every partition there is. Each step examines the image
of the moment, and yields one command of bounded size. Stopping half-way is safe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from raftlog.metadata.apply.rules import has_living_member
from raftlog.metadata.commands import (
    PARTITION_CHANGES_VERSION,
    ChangePartitions,
    PartitionChange,
)
from raftlog.metadata.configs.topic import is_unclean_election_enabled, min_isr_default
from raftlog.metadata.image import (
    NO_EPOCH,
    NO_LEADER_ID,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from raftlog.record.errors import ILLEGAL_STATE, NO_LEADER, NOT_FOUND, LogError
from raftlog.record.types import BrokerId, LeaderEpoch, Offset, PartitionId, TopicId

PLANNED_CHANGES_MAX: Final = 500
"""Most partitions that one planned command changes. Each node applies a command in one turn of its
event loop, 20 µs for a partition that gets another leader."""

PartitionKey: TypeAlias = tuple[TopicId, PartitionId]
Chooser: TypeAlias = Callable[[TopicImage, PartitionImage], PartitionChange | None]
"""The change of one partition, or None for no change."""


class LogEnd(NamedTuple):
    """The end of a replica's log. The greater of two is the longer history."""

    last_epoch: LeaderEpoch
    """Leader epoch of the last record. NO_EPOCH without any."""
    end_offset: Offset
    """Offset of the next record."""


NO_LOG_END: Final = LogEnd(NO_EPOCH, Offset(-1))
"""The end of a replica without a usable log or a response. It precedes any log's end."""
LogEnds: TypeAlias = Mapping[BrokerId, LogEnd]
"""The ends of one partition's replicas, as far as their brokers have answered."""
NO_LOG_ENDS: Final[Mapping[PartitionKey, LogEnds]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Election:
    """The leader to be, its ISR, and whether committed records may be lost."""

    leader: BrokerId
    isr: tuple[BrokerId, ...]
    is_clean: bool = True


def elect_leader(
    row: PartitionImage,
    *,
    available: Set[BrokerId],
    led: Mapping[BrokerId, int],
    isr: tuple[BrokerId, ...] | None = None,
    unclean: bool = False,
    deprioritized: Set[BrokerId] = frozenset(),
    unwritable: Set[BrokerId] = frozenset(),
    ends: LogEnds | None = None,
) -> Election | None:
    """Choose a leader among the partition's replicas. None without a candidate.

    Also None if an `unclean` election has several candidates and the `ends` of their logs are
    None, that is, not known yet.

    `available` are the brokers that may be elected at all. `led` is the number of partitions led by
    each. `isr` is the ISR to choose from, if about to differ from the present ISR. `deprioritized`
    brokers are elected only without another choice, and `unwritable` brokers after those.
    """

    def first(candidates: Iterable[BrokerId]) -> BrokerId | None:
        return min(
            (broker_id for broker_id in candidates if broker_id in available),
            key=lambda broker_id: (
                broker_id in unwritable,
                broker_id in deprioritized,
                broker_id != row.replicas[0],
                led.get(broker_id, 0),
                broker_id,
            ),
            default=None,
        )

    members = row.isr if isr is None else isr
    leader = first(members)
    if leader is not None:
        return Election(leader, members)
    # A leader elected from outside the ISR starts a new ISR. The members of the present ISR cannot
    # be reached, and do not follow it.
    leader = first(row.elr)
    if leader is not None:
        return Election(leader, (leader,))
    candidates = [broker_id for broker_id in row.replicas if broker_id in available]
    if not unclean or not candidates or (len(candidates) > 1 and ends is None):
        return None
    known: LogEnds = {} if ends is None else ends
    longest = max(known.get(broker_id, NO_LOG_END) for broker_id in candidates)
    leader = min(
        (each for each in candidates if known.get(each, NO_LOG_END) == longest),
        key=lambda each: (each in unwritable, each in deprioritized, led.get(each, 0), each),
    )
    return Election(leader, (leader,), is_clean=False)


class Elections:
    """Elections in sequence, where each counts the leaders elected before."""

    def __init__(
        self,
        image: MetadataImage,
        *,
        including: Set[BrokerId] = frozenset(),
        excluding: Set[BrokerId] = frozenset(),
        unwritable: Set[BrokerId] = frozenset(),
        ends: Mapping[PartitionKey, LogEnds] = NO_LOG_ENDS,
    ) -> None:
        """`including` and `excluding` are brokers about to be available, or not.

        `unwritable` brokers, without a writable disk, are elected last of all. `ends` are the logs'
        ends that brokers have returned, for unclean elections.
        """
        self._image = image
        self._available = (available_brokers(image) | including) - excluding
        self._reluctant = brokers_in_maintenance(image)
        self._unwritable = unwritable
        self._ends = ends
        self._led: Counter[BrokerId] | None = None

    def elect(
        self,
        topic: TopicImage,
        row: PartitionImage,
        *,
        isr: tuple[BrokerId, ...] | None = None,
        unclean: bool | None = None,
    ) -> Election | None:
        """Elect as `elect_leader` does. With `unclean` None, the topic's config decides."""
        if unclean is None:
            unclean = is_unclean_election_enabled(topic.configs, self._image.cluster_settings)
        if self._led is None:
            # Counting examines every partition there is, so it waits for the first use.
            topics = self._image.topics_by_id.values()
            self._led = Counter(row.leader for each in topics for row in each.partitions)
        election = elect_leader(
            row,
            available=self._available,
            led=self._led,
            isr=isr,
            unclean=unclean,
            deprioritized=self._reluctant,
            unwritable=self._unwritable,
            ends=self._ends.get((topic.topic_id, row.partition)),
        )
        if election is not None:
            self._led[row.leader] -= 1
            self._led[election.leader] += 1
        return election

    def has_living_member(self, *, isr: Collection[BrokerId], elr: Collection[BrokerId]) -> bool:
        """Check as `rules.has_living_member` does."""
        return has_living_member(self._image, isr=isr, elr=elr)

    def is_available(self, broker_id: BrokerId) -> bool:
        """Whether the broker may lead."""
        return broker_id in self._available


def available_brokers(image: MetadataImage) -> frozenset[BrokerId]:
    """The brokers that may be elected."""
    return frozenset(
        broker_id for broker_id, broker in image.brokers.items() if broker.is_available
    )


def brokers_in_maintenance(image: MetadataImage) -> frozenset[BrokerId]:
    """The brokers to relieve of leaderships where others can lead."""
    return frozenset(broker_id for broker_id, broker in image.brokers.items() if broker.maintenance)


def elected(topic: TopicImage, row: PartitionImage, election: Election) -> PartitionChange:
    """The change made by an election."""
    return change_of(
        topic, row, leader=election.leader, isr=election.isr, unclean=not election.is_clean
    )


def change_of(
    topic: TopicImage,
    row: PartitionImage,
    *,
    leader: BrokerId | None = None,
    isr: tuple[BrokerId, ...] | None = None,
    unclean: bool = False,
) -> PartitionChange:
    """A change of the row's leader and ISR, without the unchanged fields."""
    return PartitionChange(
        topic_id=topic.topic_id,
        partition=row.partition,
        partition_epoch=row.partition_epoch,
        leader=None if leader == row.leader else leader,
        isr=None if isr == row.isr else isr,
        unclean=unclean,
        min_isr_default=min_isr_default(topic.replication_factor),
    )


def change_command(image: MetadataImage, changes: Iterable[PartitionChange]) -> ChangePartitions:
    """The command for these changes, of the newest version known to all registered brokers."""
    knows = all(
        broker.command_version >= PARTITION_CHANGES_VERSION for broker in image.brokers.values()
    )
    return ChangePartitions(v=PARTITION_CHANGES_VERSION if knows else 1, changes=tuple(changes))


def in_batches(
    image: MetadataImage, choose: Chooser, keys: Collection[PartitionKey] | None = None
) -> Iterator[ChangePartitions]:
    """The changes that `choose` makes of all partitions, or of `keys`, in bounded commands."""
    if keys is not None:
        yield from _in_batches_of(image, choose, keys)
        return
    changes: list[PartitionChange] = []
    for topic_id in list(image.topics_by_id):
        number = 0
        # The topic may change, or go, while a command is being executed.
        while (topic := image.topics_by_id.get(topic_id)) and number < len(topic.partitions):
            for row in topic.partitions[number:]:
                number += 1
                change = choose(topic, row)
                if change is not None:
                    changes.append(change)
                    if len(changes) == PLANNED_CHANGES_MAX:
                        break
            if len(changes) == PLANNED_CHANGES_MAX:
                yield change_command(image, changes)
                changes.clear()
    if changes:
        yield change_command(image, changes)


def _in_batches_of(
    image: MetadataImage, choose: Chooser, keys: Collection[PartitionKey]
) -> Iterator[ChangePartitions]:
    changes: list[PartitionChange] = []
    # Each partition comes once, since the second change of a partition in one command would be
    # stale.
    for topic_id, number in dict.fromkeys(keys):
        topic = image.topics_by_id.get(topic_id)
        if topic is None or not 0 <= number < len(topic.partitions):
            continue
        change = choose(topic, topic.partitions[number])
        if change is not None:
            changes.append(change)
            if len(changes) == PLANNED_CHANGES_MAX:
                yield change_command(image, changes)
                changes.clear()
    if changes:
        yield change_command(image, changes)


def plan_elections(
    image: MetadataImage,
    *,
    including: Set[BrokerId] = frozenset(),
    keys: Collection[PartitionKey] | None = None,
    unwritable: Set[BrokerId] = frozenset(),
    ends: Mapping[PartitionKey, LogEnds] = NO_LOG_ENDS,
) -> Iterator[ChangePartitions]:
    """Elect a leader, if possible, for each leaderless partition, or only for `keys`.

    `including` are brokers about to be available. For `unwritable` and `ends` see Elections.
    """
    elections = Elections(image, including=including, unwritable=unwritable, ends=ends)

    def choose(topic: TopicImage, row: PartitionImage) -> PartitionChange | None:
        if row.leader != NO_LEADER_ID:
            return None
        election = elections.elect(topic, row)
        return None if election is None else elected(topic, row, election)

    return in_batches(image, choose, keys)


def undecided_elections(
    image: MetadataImage,
    keys: Collection[PartitionKey] | None = None,
    *,
    excluding: Set[BrokerId] = frozenset(),
) -> Iterator[PartitionKey]:
    """The partitions of `keys`, or all, whose next leader depends on the ends of logs.

    They have no leader, or a leader in `excluding`. Their config allows an unclean election, no
    clean election is possible, and several replicas live.
    """
    available = available_brokers(image) - excluding
    leaderless = {NO_LEADER_ID, *excluding}

    def is_undecided(row: PartitionImage) -> bool:
        return (
            row.leader in leaderless
            and available.isdisjoint((*row.isr, *row.elr))
            and len(available.intersection(row.replicas)) > 1
        )

    def allows(topic: TopicImage) -> bool:
        return is_unclean_election_enabled(topic.configs, image.cluster_settings)

    if keys is None:
        for topic in image.topics_by_id.values():
            if allows(topic):
                rows = filter(is_undecided, topic.partitions)
                yield from ((topic.topic_id, row.partition) for row in rows)
        return
    for topic_id, number in keys:
        known = image.topics_by_id.get(topic_id)
        if known is None or not 0 <= number < len(known.partitions) or not allows(known):
            continue
        if is_undecided(known.partitions[number]):
            yield topic_id, number


def plan_relief(
    image: MetadataImage,
    keys: Collection[PartitionKey] | None = None,
    unwritable: Set[BrokerId] = frozenset(),
) -> Iterator[ChangePartitions]:
    """Move leaderships from brokers in maintenance or `unwritable` brokers to others in sync.

    Without another choice the leadership stays. From a disk without writes it also moves to a
    broker in maintenance, rather than reject all writes.
    """
    resting = brokers_in_maintenance(image)
    relieved = resting | unwritable
    elections = Elections(image, excluding=unwritable)

    def choose(topic: TopicImage, row: PartitionImage) -> PartitionChange | None:
        if row.leader not in relieved:
            return None
        spared = frozenset() if row.leader in unwritable else resting
        if not any(elections.is_available(b) for b in row.isr if b not in spared):
            return None
        election = elections.elect(topic, row, unclean=False)
        assert election is not None and election.isr == row.isr
        return elected(topic, row, election)

    return in_batches(image, choose, keys) if relieved else iter(())


def plan_preferred_leaders(
    image: MetadataImage,
    *,
    excluding: Set[BrokerId] = frozenset(),
    keys: Collection[PartitionKey] | None = None,
) -> Iterator[ChangePartitions]:
    """Return leaderships to preferred replicas that are in sync and available.

    `keys` limits the partitions. Brokers in maintenance and `excluding` brokers get none. The
    latter came back only recently, or have no writable disk.
    """
    available = available_brokers(image) - brokers_in_maintenance(image) - excluding

    def choose(topic: TopicImage, row: PartitionImage) -> PartitionChange | None:
        preferred = row.replicas[0]
        if (
            row.leader in {preferred, NO_LEADER_ID}
            or preferred not in available
            or preferred not in row.isr
            or preferred in row.removing
        ):
            return None
        return change_of(topic, row, leader=preferred)

    return in_batches(image, choose, keys)


def plan_leader_transfer(
    image: MetadataImage,
    *,
    name: str,
    partition: int,
    broker_id: BrokerId | None,
    unwritable: Set[BrokerId] = frozenset(),
) -> ChangePartitions | None:
    """Move the leadership to that broker, or to the best other broker.

    Returns None if the broker leads already. An `unwritable` broker, without a writable disk, never
    gets the leadership, since it would be relieved at once. No committed record is lost, since only
    members of the ISR can take over. Raises LogError with UNKNOWN_TOPIC, UNKNOWN_PARTITION,
    NO_LEADER without a present leader, NOT_FOUND for a broker without a replica, or ILLEGAL_STATE
    if the broker cannot lead now, or no other can.
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
        return change_command(image, [elected(topic, row, election)])
    if broker_id not in row.isr:
        raise LogError(ILLEGAL_STATE, f"Broker {broker_id} is not in sync with {where}.")
    if broker_id not in available_brokers(image) - brokers_in_maintenance(image):
        raise LogError(ILLEGAL_STATE, f"Broker {broker_id} is stopping or in maintenance.")
    if broker_id in unwritable:
        raise LogError(ILLEGAL_STATE, f"The disk of broker {broker_id} is full, or hangs.")
    return change_command(image, [change_of(topic, row, leader=broker_id)])


def plan_handover(
    image: MetadataImage, key: PartitionKey, row: PartitionImage, successor: BrokerId
) -> ChangePartitions | None:
    """Transfer leadership from a leader without its followers to an ISR or ELR member.

    `row` names the leader. None if the partition has changed since. From the ELR, the new leader
    starts a new ISR, and the others enter as they catch up.
    """
    topic = image.topics_by_id.get(key[0])
    if topic is None or topic.partitions[key[1]] != row:
        return None
    assert successor in row.isr or successor in row.elr
    isr = row.isr if successor in row.isr else (successor,)
    return change_command(image, [elected(topic, row, Election(successor, isr))])


def plan_unclean_election(
    image: MetadataImage,
    *,
    name: str,
    partition: int,
    broker_id: BrokerId | None = None,
    ends: LogEnds | None = None,
) -> ChangePartitions:
    """Elect the named replica, or the longest living log, in a leaderless partition.

    `ends` are the ends of the logs, if no broker is named. An operator accepts the loss of records.
    Raises LogError with UNKNOWN_TOPIC, UNKNOWN_PARTITION, NOT_FOUND or ILLEGAL_STATE.
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
        # The leader starts a new ISR, unless it is a member of the present ISR.
        isr = row.isr if broker_id in row.isr else (broker_id,)
        election: Election | None = Election(broker_id, isr, is_clean=is_clean)
    else:
        state = Elections(image, ends={(topic.topic_id, row.partition): ends or {}})
        election = None if broker_id else state.elect(topic, row, unclean=True)
    if election is None:
        candidates = list(row.replicas) if broker_id is None else [broker_id]
        raise LogError(ILLEGAL_STATE, f"None of the replicas {candidates} of {where} lives.")
    return change_command(image, [elected(topic, row, election)])
