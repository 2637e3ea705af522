"""The controller's decisions: from a request and the image to the command that carries it out.

Pure: the caller proposes what comes back. Everything that a release may decide differently from
another (bounds, defaults, legal configs, placement) is decided here, once, by the node that acts as
controller; applying the command then depends on nothing but the image.

Between decision and application other commands may come: the command names what it counts on
(topic id, number of partitions, broker epoch), and is refused if that no longer holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from raftlog.metadata.apply_cluster import CLUSTER_SETTINGS_MAX
from raftlog.metadata.commands import (
    AddPartitions,
    AlterClusterSettings,
    AlterTopicConfigs,
    Assignments,
    CreateTopic,
)
from raftlog.metadata.configs import find_entry, validate_all
from raftlog.metadata.image import BrokerImage, MetadataImage
from raftlog.metadata.names import check_topic_name
from raftlog.record.errors import (
    INVALID_CONFIG,
    INVALID_PARTITIONS,
    NOT_ENOUGH_REPLICAS,
    TOPIC_EXISTS,
    LogError,
)
from raftlog.record.types import BrokerId, TopicId

PARTITIONS_PER_TOPIC_MAX: Final = 10_000
PARTITIONS_PER_CLUSTER_MAX: Final = 100_000
"""Bounds the image: about 25 MB with three replicas each."""
REPLICATION_FACTOR_DEFAULT: Final = 3
REPLICATION_FACTOR_MAX: Final = 1
"""For new topics. Followers do not replicate records yet: a second replica would stay empty, and
count as in sync, so that it could be elected. All that comes below takes any number."""


def plan_topic(
    image: MetadataImage,
    *,
    name: str,
    partitions: int,
    replication_factor: int | None,
    configs: Mapping[str, str],
    topic_id: TopicId,
) -> CreateTopic:
    """Create a topic. Without a replication factor: 3, or as many as there are brokers or allowed.

    Raises LogError: INVALID_TOPIC, TOPIC_EXISTS, INVALID_PARTITIONS, INVALID_CONFIG,
    NOT_ENOUGH_REPLICAS (too few brokers are available at the moment).
    """
    check_topic_name(name)
    if name in image.topics_by_name:
        raise LogError(TOPIC_EXISTS, f"Topic {name!r} exists already.")
    if replication_factor is None:
        # Brokers that are away count: a topic must not be less safe for having been created then.
        replication_factor = max(
            1, min(REPLICATION_FACTOR_DEFAULT, REPLICATION_FACTOR_MAX, len(image.brokers))
        )
    elif replication_factor > REPLICATION_FACTOR_MAX:
        raise LogError(
            INVALID_PARTITIONS,
            f"A replication factor of {replication_factor} is not possible: this release does not "
            f"replicate records yet, so that topics have {REPLICATION_FACTOR_MAX} replica.",
        )
    _check_count(image, partitions, added=partitions)
    return CreateTopic(
        topic_id=topic_id,
        name=name,
        configs=validate_all(configs),
        assignments=place(image, partitions, replication_factor),
    )


def plan_partitions(image: MetadataImage, *, name: str, partitions: int) -> AddPartitions:
    """Raise a topic's number of partitions to `partitions`.

    Raises LogError: UNKNOWN_TOPIC, INVALID_PARTITIONS, NOT_ENOUGH_REPLICAS.
    """
    topic = image.topic(name)
    present = len(topic.partitions)
    if partitions <= present:
        raise LogError(
            INVALID_PARTITIONS,
            f"Topic {name} has {present} partitions: their number can only grow.",
        )
    _check_count(image, partitions, added=partitions - present)
    return AddPartitions(
        topic_id=topic.topic_id,
        partition_count=present,
        assignments=place(image, partitions - present, topic.replication_factor),
    )


def plan_configs(
    image: MetadataImage, *, name: str, values: Mapping[str, str], removals: Iterable[str] = ()
) -> AlterTopicConfigs:
    """Set and unset configs of a topic, all or none.

    A name to be removed need not be in the table: an older release may have set it.
    Raises LogError(UNKNOWN_TOPIC or INVALID_CONFIG).
    """
    topic = image.topic(name)
    return AlterTopicConfigs(
        topic_id=topic.topic_id,
        values=validate_all(values),
        removals=_removals(removals, values, topic.configs),
    )


def plan_cluster_settings(
    image: MetadataImage, *, values: Mapping[str, str], removals: Iterable[str] = ()
) -> AlterClusterSettings:
    """Set and unset topic configs for all topics that do not set them, all or none.

    Raises LogError(INVALID_CONFIG).
    """
    command = AlterClusterSettings(
        values=validate_all(values), removals=_removals(removals, values, image.cluster_settings)
    )
    if len({*image.cluster_settings, *values}.difference(command.removals)) > CLUSTER_SETTINGS_MAX:
        raise LogError(INVALID_CONFIG, f"A cluster has at most {CLUSTER_SETTINGS_MAX} settings.")
    return command


def _removals(
    removals: Iterable[str], values: Mapping[str, str], present: Mapping[str, str]
) -> tuple[str, ...]:
    names = sorted(set(removals))
    for name in names:
        if name in values:
            raise LogError(INVALID_CONFIG, f"{name} cannot be both set and removed.")
        if name not in present:
            find_entry(name)
    return tuple(names)


def place(image: MetadataImage, partitions: int, replication_factor: int) -> Assignments:
    """Brokers for each of `partitions` new partitions, the preferred leader first.

    The leader is the broker that leads the fewest partitions, then holds the fewest replicas, then
    has the lowest id. Each follower is, in this order: in a rack that holds the fewest replicas of
    the partition; the one that follows this leader least often, so that a dead leader's load
    spreads over all others; the one that holds the fewest replicas; the lowest id.
    Brokers that are fenced or about to stop are left out.
    Raises LogError: INVALID_PARTITIONS if there are too few brokers, NOT_ENOUGH_REPLICAS if too few
    of them are available at the moment.
    """
    known = [image.brokers[broker_id] for broker_id in sorted(image.brokers)]
    if not 1 <= replication_factor <= len(known):
        raise LogError(
            INVALID_PARTITIONS,
            f"A replication factor of {replication_factor} is not possible: there "
            f"{'is 1 broker' if len(known) == 1 else f'are {len(known)} brokers'}.",
        )
    brokers = [broker for broker in known if broker.is_available]
    if len(brokers) < replication_factor:
        raise LogError(
            NOT_ENOUGH_REPLICAS,
            f"A replication factor of {replication_factor} is not possible now: of {len(known)} "
            f"brokers only {len(brokers)} can take replicas; the others are fenced or stopping.",
        )
    load = _Load(image)
    assignments = []
    for _ in range(partitions):
        # `min` takes the first of equals, and they are in order of their ids.
        leader = min(brokers, key=load.of_leader)
        chosen = [leader]
        racks = Counter([_rack(leader)])
        while len(chosen) < replication_factor:
            rest = (broker for broker in brokers if broker not in chosen)
            chosen.append(
                min(rest, key=lambda broker: (racks[_rack(broker)], *load.of(leader, broker)))
            )
            racks[_rack(chosen[-1])] += 1
        replicas = tuple(broker.broker_id for broker in chosen)
        load.add(leader.broker_id, replicas, 1)
        assignments.append(replicas)
    return tuple(assignments)


class _Load:
    """Who leads, holds and follows how much; counts what is placed as if it were there already."""

    def __init__(self, image: MetadataImage) -> None:
        self._led: Counter[BrokerId] = Counter()
        self._held: Counter[BrokerId] = Counter()
        self._followed: Counter[tuple[BrokerId, BrokerId]] = Counter()
        # Few combinations stand for many partitions: counting those first is what makes this
        # fast enough for the event loop.
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

    def of(self, leader: BrokerImage, follower: BrokerImage) -> tuple[int, int]:
        """Partitions in which the one follows the other as preferred leader, then replicas held."""
        return (
            self._followed[leader.broker_id, follower.broker_id],
            self._held[follower.broker_id],
        )


def _rack(broker: BrokerImage) -> tuple[str, str | BrokerId]:
    """A broker without a rack stands alone, and shares none with a rack of any name."""
    return ("broker", broker.broker_id) if broker.rack is None else ("rack", broker.rack)


def _check_count(image: MetadataImage, partitions: int, *, added: int) -> None:
    if not 1 <= partitions <= PARTITIONS_PER_TOPIC_MAX:
        raise LogError(
            INVALID_PARTITIONS,
            f"A topic has 1 to {PARTITIONS_PER_TOPIC_MAX} partitions, not {partitions}.",
        )
    if image.partition_count + added > PARTITIONS_PER_CLUSTER_MAX:
        raise LogError(
            INVALID_PARTITIONS,
            f"With {added} more, the cluster would have more than {PARTITIONS_PER_CLUSTER_MAX} "
            "partitions.",
        )
