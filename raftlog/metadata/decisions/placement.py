"""Places replicas spread over racks, and evenly over brokers. Pure.

It serves new partitions and moving replicas. No present replica moves for the sake of balance.
These criteria choose each follower of a new partition, in this order:

1. it is available,
2. its rack has the fewest replicas of the partition,
3. it is not `unwritable`,
4. it follows this leader least often, so that a dead leader's load spreads over all others,
5. it has the fewest replicas,
6. it has the lowest id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Set
from typing import Final

from raftlog.metadata.commands import Assignments
from raftlog.metadata.configs.topic import min_isr_default
from raftlog.metadata.image import BrokerImage, MetadataImage
from raftlog.record.errors import INVALID_PARTITIONS, NOT_ENOUGH_REPLICAS, LogError
from raftlog.record.types import BrokerId

CHOICES_PER_STEP: Final = 10_000
"""Brokers compared in one step, about ten milliseconds."""


def place(
    image: MetadataImage,
    partitions: int,
    replication_factor: int,
    *,
    unwritable: Set[BrokerId] = frozenset(),
) -> Generator[None, None, Assignments]:
    """Brokers for each of `partitions` new partitions, in small steps.

    The preferred leader is first. It is the broker that leads the fewest partitions, then holds the
    fewest replicas, then has the lowest id. A broker in maintenance leads only without another
    choice, and an `unwritable` broker, whose disk takes no writes, after those. The module's
    criteria choose the followers.

    Decommissioned brokers are left out. Fenced and stopping brokers join when they are back, since
    a topic created while a node is away must neither have fewer replicas nor wait, as long as
    enough brokers are there to accept writes. Raises LogError with
    INVALID_PARTITIONS if there are too few brokers, NOT_ENOUGH_REPLICAS if too few of them are
    available at the moment.
    """
    known = [image.brokers[broker_id] for broker_id in sorted(image.brokers)]
    staying = [broker for broker in known if not broker.decommissioning]
    if not 1 <= replication_factor <= len(staying):
        raise LogError(
            INVALID_PARTITIONS,
            f"A replication factor of {replication_factor} is not possible: there "
            f"{'is 1 broker' if len(staying) == 1 else f'are {len(staying)} brokers'}"
            f"{'' if staying == known else ' that are not being decommissioned'}.",
        )
    available = [broker for broker in staying if broker.may_hold]
    needed = min_isr_default(replication_factor)
    if len(available) < needed:
        raise LogError(
            NOT_ENOUGH_REPLICAS,
            f"A replication factor of {replication_factor} is not possible now: of {len(staying)} "
            f"brokers only {len(available)} can take replicas, and {needed} must; the others are "
            "fenced or stopping.",
        )
    brokers = staying if len(available) < replication_factor else available
    leaders = _best(available, unwritable)
    load = _Load(image)
    assignments = []
    partitions_per_step = max(1, CHOICES_PER_STEP // (len(brokers) * replication_factor))
    for number in range(partitions):
        if number % partitions_per_step == partitions_per_step - 1:
            yield
        # `min` takes the first of equals, and the brokers are in order of their ids.
        leader = min(leaders, key=load.of_leader)
        chosen = [leader]
        racks = Counter([_rack(leader)])
        while len(chosen) < replication_factor:
            rest = (broker for broker in brokers if broker not in chosen)
            chosen.append(
                min(
                    rest,
                    key=lambda broker: (
                        not broker.may_hold,
                        racks[_rack(broker)],
                        broker.broker_id in unwritable,
                        *load.of(leader.broker_id, broker.broker_id),
                    ),
                )
            )
            racks[_rack(chosen[-1])] += 1
        replicas = tuple(broker.broker_id for broker in chosen)
        load.add(leader.broker_id, replicas, 1)
        assignments.append(replicas)
    return tuple(assignments)


class Replacements:
    """Replacement brokers for moving replicas, in sequence."""

    def __init__(self, image: MetadataImage, unwritable: Set[BrokerId] = frozenset()) -> None:
        """Count the present load. Brokers without a writable disk (`unwritable`) are last."""
        self._image = image
        self._unwritable = unwritable
        self._load = _Load(image)

    def replace(
        self, replicas: tuple[BrokerId, ...], leaving: Collection[BrokerId]
    ) -> tuple[BrokerId, ...] | None:
        """The replicas with others in place of `leaving`. None if there are too few brokers.

        The rules of `place` apply, but a writable disk goes before racks, since all records
        are copied now. Next is a rack with the fewest of the remaining replicas. Then, in the first
        place, the broker that leads least, elsewhere the broker that follows the first replica
        least. Last is the broker with the fewest replicas.
        """
        chosen = list(replicas)
        for position, broker_id in enumerate(replicas):
            if broker_id not in leaving:
                continue
            rest = [member for member in chosen if member not in leaving]
            racks = Counter(_rack(self._image.brokers[member]) for member in rest)
            found = min(
                (
                    self._image.brokers[candidate]
                    for candidate in sorted(self._image.brokers)
                    if candidate not in rest
                    and candidate not in leaving
                    and self._image.brokers[candidate].may_hold
                ),
                key=lambda broker: (
                    broker.broker_id in self._unwritable,
                    racks[_rack(broker)],
                    *(
                        (broker.maintenance, *self._load.of_leader(broker))
                        if position == 0
                        else self._load.of(chosen[0], broker.broker_id)
                    ),
                ),
                default=None,
            )
            if found is None:
                return None
            chosen[position] = found.broker_id
        result = tuple(chosen)
        self._load.add(replicas[0], replicas, -1)
        self._load.add(result[0], result, 1)
        return result


def _best(available: list[BrokerImage], unwritable: Set[BrokerId]) -> list[BrokerImage]:
    """The candidates with the fewest objections to leading."""

    def against(broker: BrokerImage) -> tuple[bool, bool]:
        return broker.broker_id in unwritable, broker.maintenance

    least = min(map(against, available))
    return [broker for broker in available if against(broker) == least]


class _Load:
    """Counts of leaders, replicas and followers. Placed replicas count as present."""

    def __init__(self, image: MetadataImage) -> None:
        self._led: Counter[BrokerId] = Counter()
        self._held: Counter[BrokerId] = Counter()
        self._followed: Counter[tuple[BrokerId, BrokerId]] = Counter()
        # Few combinations stand for many partitions. Counting those first makes this fast enough
        # for the event loop.
        combinations = Counter(
            (row.leader, row.replicas)
            for topic in image.topics_by_id.values()
            for row in topic.partitions
        )
        for (leader, replicas), count in combinations.items():
            self.add(leader, replicas, count)

    def add(self, leader: BrokerId, replicas: tuple[BrokerId, ...], count: int) -> None:
        """Count so many partitions of these replicas."""
        self._led[leader] += count
        for broker_id in replicas:
            self._held[broker_id] += count
            self._followed[replicas[0], broker_id] += count

    def of_leader(self, broker: BrokerImage) -> tuple[int, int]:
        """Partitions led, then replicas held."""
        return self._led[broker.broker_id], self._held[broker.broker_id]

    def of(self, leader: BrokerId, follower: BrokerId) -> tuple[int, int]:
        """Partitions of `leader` in which `follower` follows it, then replicas held."""
        return self._followed[leader, follower], self._held[follower]


def _rack(broker: BrokerImage) -> tuple[str, str | BrokerId]:
    """The rack of a broker. Without a rack, a key that no other broker or rack name shares."""
    return ("broker", broker.broker_id) if broker.rack is None else ("rack", broker.rack)
