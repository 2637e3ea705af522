"""Assignors divide the partitions of subscribed topics among members. Pure and deterministic.

`uniform` balances the number of partitions of each member, and moves as few as possible. Members
with equal subscriptions differ by one partition at most. With different subscriptions no chain of
moves can relieve a fuller member in favor of a member with two fewer. The result is an optimal
semi-matching (Harvey et al., "Semi-matchings for bipartite graphs and load balancing", 2003).

`range` gives each member a range of each topic, in the order of instance id or member id, so that
equal numbers of topics with equally many partitions and the same subscribers meet in one member.

`primary` gives all partitions to one member, the primary of a replicated service, which keeps them
until its end or a hand-over.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple, TypeAlias

from raftlog.coordinator.shard.records import TopicPartitions
from raftlog.record.errors import UNSUPPORTED_ASSIGNOR, LogError, quoted
from raftlog.record.types import TopicId

Assignment: TypeAlias = tuple[TopicPartitions, ...]
"""Partitions in order of topic ids and numbers. No topic is empty or there twice."""
Pair: TypeAlias = tuple[TopicId, int]
"""Topic id and number of a partition."""


class Subscriber(NamedTuple):
    """A member as an assignor sees it."""

    topics: frozenset[TopicId]
    instance_id: str | None = None
    position: int = -1
    """Entries of its log that the member has applied, or -1 if not reported."""
    primaries: int = 0
    """Number of other groups whose primary is the member's process."""


Subscribers: TypeAlias = Mapping[str, Subscriber]
"""Subscribers by member id."""
Assignor: TypeAlias = Callable[
    [Subscribers, Mapping[TopicId, int], Mapping[str, Assignment]], dict[str, Assignment]
]
"""An assignor takes subscribers, partition counts of their topics, and the previous target."""


def pairs(assignment: Iterable[TopicPartitions]) -> list[Pair]:
    """Each partition of an assignment."""
    return [(topic.topic_id, partition) for topic in assignment for partition in topic.partitions]


def assignment_of(partitions: Iterable[Pair]) -> Assignment:
    """The assignment with these partitions."""
    by_topic: dict[TopicId, set[int]] = {}
    for topic_id, partition in partitions:
        by_topic.setdefault(topic_id, set()).add(partition)
    return tuple(
        TopicPartitions(topic_id, tuple(sorted(by_topic[topic_id])))
        for topic_id in sorted(by_topic)
    )


def uniform(
    subscribers: Subscribers,
    partition_counts: Mapping[TopicId, int],
    previous: Mapping[str, Assignment],
) -> dict[str, Assignment]:
    """Balance with the fewest moves, as the module describes."""
    kept, unowned = _keep(subscribers, partition_counts, previous)
    first = next(iter(subscribers.values()), None)
    if first is None:
        return {}
    if all(
        other.topics is first.topics or other.topics == first.topics
        for other in subscribers.values()
    ):
        _balance_by_quota(kept, unowned)
    else:
        _balance_by_paths(subscribers, kept, unowned)
    assigned: dict[str, Assignment] = {}
    for member_id, owned in kept.items():
        before = previous.get(member_id, ())
        # Most members of a large group keep all. Sorting and building these again takes longest.
        assigned[member_id] = before if pairs(before) == owned else assignment_of(owned)
    return assigned


def by_range(
    subscribers: Subscribers,
    partition_counts: Mapping[TopicId, int],
    previous: Mapping[str, Assignment],
) -> dict[str, Assignment]:
    """A range of each topic for each subscriber. `previous` has no influence."""
    order = sorted(subscribers, key=lambda member_id: (_rank(subscribers, member_id), member_id))
    assigned: dict[str, list[TopicPartitions]] = {member_id: [] for member_id in order}
    for topic_id, count in sorted(partition_counts.items()):
        members = [member_id for member_id in order if topic_id in subscribers[member_id].topics]
        if not members:
            continue
        size, extra = divmod(count, len(members))
        start = 0
        for position, member_id in enumerate(members):
            end = start + size + (position < extra)
            if end > start:
                assigned[member_id].append(TopicPartitions(topic_id, tuple(range(start, end))))
            start = end
    return {member_id: tuple(topics) for member_id, topics in assigned.items()}


def to_primary(
    subscribers: Subscribers,
    partition_counts: Mapping[TopicId, int],
    previous: Mapping[str, Assignment],
) -> dict[str, Assignment]:
    """All partitions of a topic for one subscriber.

    It is the subscriber with most of them, then the furthest, then the primary of the fewest
    groups, then the lowest id.
    """

    def preference(member_id: str) -> tuple[int, int, int, str, str]:
        one = subscribers[member_id]
        held = sum(len(topic.partitions) for topic in previous.get(member_id, ()))
        return -held, -one.position, one.primaries, _rank(subscribers, member_id), member_id

    order = sorted(subscribers, key=preference)
    assigned: dict[str, list[TopicPartitions]] = {member_id: [] for member_id in order}
    for topic_id, count in sorted(partition_counts.items()):
        member = next((one for one in order if topic_id in subscribers[one].topics), None)
        if member is not None and count:
            assigned[member].append(TopicPartitions(topic_id, tuple(range(count))))
    return {member_id: tuple(topics) for member_id, topics in assigned.items()}


def _rank(subscribers: Subscribers, member_id: str) -> str:
    return subscribers[member_id].instance_id or member_id


DEFAULT_ASSIGNOR: Final = "uniform"
PRIMARY_ASSIGNOR: Final = "primary"
ASSIGNORS: Final[Mapping[str, Assignor]] = {
    DEFAULT_ASSIGNOR: uniform,
    "range": by_range,
    PRIMARY_ASSIGNOR: to_primary,
}
_ALIASES: Final[Mapping[str, str]] = {"cooperative-sticky": DEFAULT_ASSIGNOR}


def assignor_name(name: str) -> str:
    """The name of the assignor, also for an alias. Raises LogError(UNSUPPORTED_ASSIGNOR)."""
    name = _ALIASES.get(name, name)
    if name not in ASSIGNORS:
        known = ", ".join(f"'{one}'" for one in ASSIGNORS)
        raise LogError(
            UNSUPPORTED_ASSIGNOR, f"There is no assignor {quoted(name)}: use one of {known}."
        )
    return name


def preferred_assignor(choices: Iterable[str | None]) -> str:
    """The assignor chosen most often, or the default without any choice."""
    votes = Counter(choice for choice in choices if choice is not None)
    return max(ASSIGNORS, key=lambda name: votes[name])


def _keep(
    subscribers: Subscribers,
    partition_counts: Mapping[TopicId, int],
    previous: Mapping[str, Assignment],
) -> tuple[dict[str, list[Pair]], list[Pair]]:
    """Previous partitions that still exist for each member, and all others."""
    subscribed: set[TopicId] = set()
    subscribed = subscribed.union(*{subscriber.topics for subscriber in subscribers.values()})
    unowned = {
        (topic_id, partition): None
        for topic_id in sorted(subscribed & partition_counts.keys())
        for partition in range(partition_counts[topic_id])
    }
    kept: dict[str, list[Pair]] = {}
    for member_id in sorted(subscribers):
        kept[member_id] = owned = []
        topics = subscribers[member_id].topics
        for topic in previous.get(member_id, ()):
            if topic.topic_id not in topics:
                continue
            for partition in topic.partitions:
                pair = (topic.topic_id, partition)
                if pair in unowned:
                    del unowned[pair]
                    owned.append(pair)
    return kept, list(unowned)


def _balance_by_quota(kept: dict[str, list[Pair]], unowned: list[Pair]) -> None:
    """Move partitions over a member's quota, and all unowned partitions, to the others."""
    total = len(unowned) + sum(map(len, kept.values()))
    quota, extra = divmod(total, len(kept))
    # The members with the most partitions get the odd partitions, which moves the fewest.
    order = sorted(kept, key=lambda member_id: (-len(kept[member_id]), member_id))
    takers: deque[tuple[list[Pair], int]] = deque()
    for position, member_id in enumerate(order):
        owned = kept[member_id]
        most = quota + (position < extra)
        if len(owned) > most:
            # Another place in each member: else the taker got one topic only.
            place = position % len(owned)
            owned[:] = owned[place:] + owned[:place]
            unowned += owned[most:]
            del owned[most:]
        elif len(owned) < most:
            takers.append((owned, most))
    for pair in unowned:
        owned, most = takers.popleft()
        owned.append(pair)
        if len(owned) < most:
            takers.append((owned, most))
    assert not takers


def _balance_by_paths(
    subscribers: Subscribers, kept: dict[str, list[Pair]], unowned: list[Pair]
) -> None:
    """Give unowned partitions to the least loaded subscriber, then even out the loads.

    Moves go along paths, from a member by a topic it holds to any subscriber of that topic.
    """
    takers: dict[TopicId, list[str]] = {}
    for member_id in kept:
        for topic_id in subscribers[member_id].topics:
            takers.setdefault(topic_id, []).append(member_id)
    held: dict[str, dict[TopicId, list[int]]] = {member_id: {} for member_id in kept}
    load = {member_id: len(owned) for member_id, owned in kept.items()}
    for member_id, owned in kept.items():
        for topic_id, partition in owned:
            held[member_id].setdefault(topic_id, []).append(partition)
    # Topics with few subscribers come first, since the others can make up for them.
    unowned_by_topic: dict[TopicId, list[int]] = {}
    for topic_id, partition in unowned:
        unowned_by_topic.setdefault(topic_id, []).append(partition)
    for topic_id in sorted(
        unowned_by_topic, key=lambda topic_id: (len(takers[topic_id]), topic_id)
    ):
        loads = [(load[member_id], member_id) for member_id in takers[topic_id]]
        heapify(loads)
        for partition in unowned_by_topic[topic_id]:
            _, member_id = heappop(loads)
            held[member_id].setdefault(topic_id, []).append(partition)
            load[member_id] += 1
            heappush(loads, (load[member_id], member_id))

    settled: set[str] = set()
    fullest = [(-count, member_id) for member_id, count in load.items()]
    heapify(fullest)
    while fullest:
        count, member_id = heappop(fullest)
        if member_id in settled or -count != load[member_id]:
            continue
        reached = _reachable(member_id, held, takers, settled)
        emptiest = min(reached, key=lambda member: (load[member], member))
        if load[emptiest] > load[member_id] - 2:
            # Nor does a path relieve any reached member, which is no fuller.
            settled |= reached.keys()
            continue
        load[member_id] -= 1
        load[emptiest] += 1
        heappush(fullest, (-load[member_id], member_id))
        heappush(fullest, (-load[emptiest], emptiest))
        taker = emptiest
        while (step := reached[taker]) is not None:
            giver, topic_id = step
            # The last was assigned last, so a new partition moves before a kept partition.
            held[taker].setdefault(topic_id, []).append(held[giver][topic_id].pop())
            taker = giver
    for member_id, topics in held.items():
        kept[member_id] = [
            (topic_id, partition)
            for topic_id, partitions in topics.items()
            for partition in partitions
        ]


def _reachable(
    start: str,
    held: Mapping[str, Mapping[TopicId, list[int]]],
    takers: Mapping[TopicId, list[str]],
    settled: set[str],
) -> dict[str, tuple[str, TopicId] | None]:
    """Members to which a partition of `start` can move, with the path's last step."""
    reached: dict[str, tuple[str, TopicId] | None] = {start: None}
    seen: set[TopicId] = set()
    queue = deque([start])
    while queue:
        giver = queue.popleft()
        for topic_id, partitions in held[giver].items():
            if not partitions or topic_id in seen:
                continue
            seen.add(topic_id)
            for taker in takers[topic_id]:
                if taker not in reached and taker not in settled:
                    reached[taker] = (giver, topic_id)
                    queue.append(taker)
    return reached
