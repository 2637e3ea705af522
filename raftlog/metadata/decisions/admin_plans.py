"""Decisions on requests, from a request and the image to the command.

The decisions are pure, and the caller proposes the returned command. Rules that may differ between
releases (bounds, defaults, legal configs, placement) are applied here, once, by the deciding node.
Applying the command then depends only on the image.

Other commands may come between decision and application. The command names its preconditions (topic
id, number of partitions, broker epoch), and is refused if a precondition no longer holds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Set
from typing import Final, TypeVar

from raftlog.metadata.apply.cluster import CLUSTER_SETTINGS_MAX
from raftlog.metadata.commands import (
    AddPartitions,
    AlterClusterSettings,
    AlterTopicConfigs,
    Assignments,
    CreateTopic,
)
from raftlog.metadata.configs.broker import (
    find_cluster_setting,
    operator_settings,
    validate_cluster_settings,
)
from raftlog.metadata.configs.topic import find_entry, min_isr_default, validate_all
from raftlog.metadata.configs.values import ConfigEntry
from raftlog.metadata.decisions.placement import place
from raftlog.metadata.image import MetadataImage, check_topic_name
from raftlog.record.coordinators import INTERNAL_TOPICS
from raftlog.record.errors import (
    INVALID_CONFIG,
    INVALID_PARTITIONS,
    INVALID_TOPIC,
    NOT_ENOUGH_REPLICAS,
    TOPIC_EXISTS,
    LogError,
)
from raftlog.record.types import BrokerId, TopicId

PARTITIONS_PER_TOPIC_MAX: Final = 10_000
PARTITIONS_PER_CLUSTER_MAX: Final = 100_000
"""Partitions of a cluster. They bound the image to about 25 MB with three replicas each."""
REPLICATION_FACTOR_DEFAULT: Final = 3

T = TypeVar("T")


def complete(plan: Generator[None, None, T]) -> T:
    """All steps of a plan at once."""
    while True:
        try:
            next(plan)
        except StopIteration as end:
            result: T = end.value
            return result


def plan_topic(
    image: MetadataImage,
    *,
    name: str,
    partitions: int,
    replication_factor: int | None,
    configs: Mapping[str, str],
    topic_id: TopicId,
    unwritable: Set[BrokerId] = frozenset(),
    assignments: Assignments | None = None,
) -> Generator[None, None, CreateTopic]:
    """Create a topic in small steps. By default it has up to 3 replicas.

    Without enough brokers, the default is one replica per broker. With `assignments`, the brokers
    of each partition, both counts are theirs. `unwritable` are brokers without a writable disk, see
    `place`. Raises LogError with INVALID_TOPIC, TOPIC_EXISTS, INVALID_PARTITIONS, INVALID_CONFIG or
    NOT_ENOUGH_REPLICAS (too few brokers are available at the moment).
    """
    check_topic_name(name)
    if name in image.topics_by_name:
        raise LogError(TOPIC_EXISTS, f"Topic {name!r} exists already.")
    _check_collision(image, name)
    if assignments is not None:
        _check_count(image, len(assignments), added=len(assignments))
        _check_assignments(image, assignments, len(assignments[0]))
        return CreateTopic(
            topic_id=topic_id, name=name, configs=validate_all(configs), assignments=assignments
        )
    if replication_factor is None:
        # Absent brokers count, since the time of creation must not make a topic less safe. Brokers
        # on their way out do not count, since the creation would have to wait until they have left.
        staying = sum(not broker.decommissioning for broker in image.brokers.values())
        replication_factor = max(1, min(REPLICATION_FACTOR_DEFAULT, staying))
    _check_count(image, partitions, added=partitions)
    return CreateTopic(
        topic_id=topic_id,
        name=name,
        configs=validate_all(configs),
        assignments=(
            yield from place(image, partitions, replication_factor, unwritable=unwritable)
        ),
    )


def _check_collision(image: MetadataImage, name: str) -> None:
    """Raise LogError(INVALID_TOPIC) if a topic's name differs only in `.` and `_`, as in Kafka.

    Names of metrics have `_` for `.`, so both topics would have the same metrics.
    """
    unified = name.replace(".", "_")
    if "_" not in unified or name in INTERNAL_TOPICS:
        return
    for other in (*INTERNAL_TOPICS, *image.topics_by_name):
        if len(other) == len(name) and other.replace(".", "_") == unified:
            raise LogError(
                INVALID_TOPIC,
                f"Topic {name!r} collides with topic {other!r}: names must differ in more than "
                "'.' and '_'.",
            )


def plan_partitions(
    image: MetadataImage,
    *,
    name: str,
    partitions: int,
    unwritable: Set[BrokerId] = frozenset(),
    assignments: Assignments | None = None,
) -> Generator[None, None, AddPartitions]:
    """Raise a topic's partitions to `partitions`, in small steps.

    `unwritable` are brokers without a writable disk, see `place`. `assignments` are the brokers of
    each new partition. Raises LogError with UNKNOWN_TOPIC, INVALID_PARTITIONS or
    NOT_ENOUGH_REPLICAS.
    """
    topic = image.topic(name)
    present = len(topic.partitions)
    if partitions <= present:
        raise LogError(
            INVALID_PARTITIONS,
            f"Topic {name} has {present} partitions: their number can only grow.",
        )
    added = partitions - present
    _check_count(image, partitions, added=added)
    if assignments is None:
        assignments = yield from place(
            image, added, topic.replication_factor, unwritable=unwritable
        )
    elif len(assignments) != added:
        raise LogError(
            INVALID_PARTITIONS,
            f"Topic {name} would have {added} new partitions, and {len(assignments)} have replicas "
            "assigned.",
        )
    else:
        _check_assignments(image, assignments, topic.replication_factor)
    return AddPartitions(topic_id=topic.topic_id, partition_count=present, assignments=assignments)


def plan_configs(
    image: MetadataImage, *, name: str, values: Mapping[str, str], removals: Iterable[str] = ()
) -> AlterTopicConfigs:
    """Set and unset configs of a topic, all or none.

    A removed name need not be in the table, because an older release may have set the name. Raises
    LogError(UNKNOWN_TOPIC or INVALID_CONFIG).
    """
    topic = image.topic(name)
    return AlterTopicConfigs(
        topic_id=topic.topic_id,
        values=validate_all(values),
        removals=_removals(removals, values, topic.configs, find_entry),
    )


def plan_cluster_settings(
    image: MetadataImage, *, values: Mapping[str, str], removals: Iterable[str] = ()
) -> AlterClusterSettings:
    """Set and unset broker configs, and topic configs for all topics without their own value.

    All or none. Raises LogError(INVALID_CONFIG).
    """
    command = AlterClusterSettings(
        values=validate_cluster_settings(values),
        removals=_removals(
            removals, values, operator_settings(image.cluster_settings), find_cluster_setting
        ),
    )
    if len({*image.cluster_settings, *values}.difference(command.removals)) > CLUSTER_SETTINGS_MAX:
        raise LogError(INVALID_CONFIG, f"A cluster has at most {CLUSTER_SETTINGS_MAX} settings.")
    return command


def _removals(
    removals: Iterable[str],
    values: Mapping[str, str],
    present: Mapping[str, str],
    find: Callable[[str], ConfigEntry],
) -> tuple[str, ...]:
    names = sorted(set(removals))
    for name in names:
        if name in values:
            raise LogError(INVALID_CONFIG, f"{name} cannot be both set and removed.")
        if name not in present:
            find(name)
    return tuple(names)


def _check_assignments(image: MetadataImage, assignments: Assignments, factor: int) -> None:
    """Raise LogError INVALID_PARTITIONS or NOT_ENOUGH_REPLICAS unless the brokers can begin."""
    needed = min_isr_default(factor)
    for number, replicas in enumerate(assignments):
        if not replicas or len(set(replicas)) != len(replicas) or len(replicas) != factor:
            raise LogError(
                INVALID_PARTITIONS,
                f"No partition can have the replicas {list(replicas)}: each partition of the topic "
                f"needs {factor}, each once.",
            )
        for broker_id in replicas:
            broker = image.brokers.get(broker_id)
            if broker is None:
                raise LogError(INVALID_PARTITIONS, f"There is no broker {broker_id}.")
            if broker.decommissioning:
                raise LogError(
                    INVALID_PARTITIONS,
                    f"Broker {broker_id} is being decommissioned: it cannot take a replica.",
                )
        available = sum(image.brokers[broker_id].may_hold for broker_id in replicas)
        if available < needed:
            raise LogError(
                NOT_ENOUGH_REPLICAS,
                f"Partition {number} cannot begin now: of its {factor} brokers only {available} "
                f"can take replicas, and {needed} must; the others are fenced or stopping.",
            )


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
