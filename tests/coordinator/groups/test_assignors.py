"""Assignors: every partition once, balanced, sticky; deterministic."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.coordinator.groups.assignors import (
    ASSIGNORS,
    Assignment,
    Subscriber,
    Subscribers,
    assignment_of,
    assignor_name,
    by_range,
    pairs,
    preferred_assignor,
    to_primary,
    uniform,
)
from raftlog.record.errors import UNSUPPORTED_ASSIGNOR, LogError
from raftlog.record.types import TopicId
from tests.examples import examples

TOPICS = [TopicId(name) for name in "abcd"]
MEMBERS = [f"m{number}" for number in range(6)]
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 7))


@st.composite
def subscribers(draw: st.DrawFn, *, equal: bool, least: int = 0) -> Subscribers:
    members = draw(st.lists(st.sampled_from(MEMBERS), unique=True, min_size=least))
    topics = st.frozensets(st.sampled_from(TOPICS))
    same = draw(topics)
    return {member: Subscriber(same if equal else draw(topics)) for member in members}


any_subscribers = st.booleans().flatmap(lambda equal: subscribers(equal=equal))


@st.composite
def previous_assignments(draw: st.DrawFn) -> dict[str, Assignment]:
    """Any assignment, also of members, topics and partitions that are gone."""
    partition = st.tuples(st.sampled_from(TOPICS), st.integers(0, 8))
    owners = draw(st.dictionaries(partition, st.sampled_from(MEMBERS)))
    return {
        member: assignment_of(pair for pair, owner in owners.items() if owner == member)
        for member in MEMBERS
    }


def on(*topics: str) -> Subscriber:
    return Subscriber(frozenset(TopicId(topic) for topic in topics))


def loads(assignment: dict[str, Assignment]) -> list[int]:
    return sorted(len(pairs(one)) for one in assignment.values())


@given(any_subscribers, counts, previous_assignments(), st.sampled_from(sorted(ASSIGNORS)))
def test_each_subscribed_partition_has_one_owner_subscribed_to_it(
    members: Subscribers,
    partition_counts: dict[TopicId, int],
    previous: dict[str, Assignment],
    name: str,
) -> None:
    assigned = ASSIGNORS[name](members, partition_counts, previous)
    assert assigned.keys() == members.keys()
    owners = Counter(pair for one in assigned.values() for pair in pairs(one))
    subscribed = {topic for member in members.values() for topic in member.topics}
    assert owners == Counter(
        (topic, partition)
        for topic, count in partition_counts.items()
        if topic in subscribed
        for partition in range(count)
    )
    for member, one in assigned.items():
        assert {topic for topic, _ in pairs(one)} <= members[member].topics
        assert one == assignment_of(pairs(one))


@given(subscribers(equal=True), counts, previous_assignments())
def test_uniform_balances_equal_subscriptions_to_one_partition(
    members: Subscribers, partition_counts: dict[TopicId, int], previous: dict[str, Assignment]
) -> None:
    after = loads(uniform(members, partition_counts, previous))
    assert not after or after[-1] - after[0] <= 1


@given(subscribers(equal=True), counts, previous_assignments())
def test_uniform_moves_as_few_as_balance_takes(
    members: Subscribers, partition_counts: dict[TopicId, int], previous: dict[str, Assignment]
) -> None:
    after = uniform(members, partition_counts, previous)
    valid = {
        member: {
            (topic, partition)
            for topic, partition in pairs(previous.get(member, ()))
            if topic in members[member].topics and partition < partition_counts.get(topic, 0)
        }
        for member in members
    }
    lost = sum(len(valid[member] - set(pairs(after[member]))) for member in members)
    sizes = loads(after)
    # The fewest: over all ways to hand out the balanced sizes, what is over a member's size moves.
    fewest = min(
        sum(
            max(0, len(valid[member]) - size)
            for member, size in zip(sorted(members), order, strict=True)
        )
        for order in permutations(sizes)
    )
    assert lost == fewest


@given(any_subscribers, counts, previous_assignments())
def test_uniform_is_a_fixed_point(
    members: Subscribers, partition_counts: dict[TopicId, int], previous: dict[str, Assignment]
) -> None:
    once = uniform(members, partition_counts, previous)
    assert uniform(members, partition_counts, once) == once


@settings(max_examples=examples(500))
@given(subscribers(equal=False, least=3), counts, previous_assignments())
def test_uniform_leaves_no_path_of_moves_that_would_balance(
    members: Subscribers, partition_counts: dict[TopicId, int], previous: dict[str, Assignment]
) -> None:
    after = uniform(members, partition_counts, previous)
    load = {member: len(pairs(one)) for member, one in after.items()}
    for start in members:
        reached, grown = {start}, True
        while grown:
            topics = {topic for member in reached for topic, _ in pairs(after[member])}
            more = {member for member in members if members[member].topics & topics}
            grown = not more <= reached
            reached |= more
        assert min(load[member] for member in reached) >= load[start] - 1


def test_uniform_moves_along_a_path_when_no_single_move_balances() -> None:
    topics = {TopicId("a"): 3, TopicId("b"): 2, TopicId("c"): 1}
    members = {"m1": on("a"), "m2": on("a", "b"), "m3": on("b", "c")}
    before = {
        name: assignment_of((topic, partition) for partition in range(topics[topic]))
        for name, topic in zip(members, topics, strict=True)
    }
    after = uniform(members, topics, before)
    assert loads(after) == [2, 2, 2]
    moved = {name: set(pairs(before[name])) - set(pairs(after[name])) for name in members}
    assert [len(one) for one in moved.values()] == [1, 1, 0]


def test_joining_member_gets_a_part_of_every_topic() -> None:
    topics = {TopicId(name): 10 for name in "abcd"}
    before = uniform({f"m{n}": on(*"abcd") for n in range(4)}, topics, {})
    after = uniform({f"m{n}": on(*"abcd") for n in range(5)}, topics, before)
    assert len({topic for topic, _ in pairs(after["m4"])}) >= 3
    for member in before:
        assert set(pairs(after[member])) < set(pairs(before[member]))


def test_range_gives_ranges_in_the_order_of_instance_ids() -> None:
    members = {
        "z": Subscriber(frozenset(TOPICS[:2]), "1"),
        "a": Subscriber(frozenset(TOPICS[:2]), "2"),
    }
    assigned = by_range(members, {TOPICS[0]: 3, TOPICS[1]: 2}, {})
    assert pairs(assigned["z"]) == [("a", 0), ("a", 1), ("b", 0)]
    assert pairs(assigned["a"]) == [("a", 2), ("b", 1)]


LOG = TopicId("log")
P0 = assignment_of([(LOG, 0), (LOG, 1)])


def replica(position: int = -1, primaries: int = 0, instance_id: str | None = None) -> Subscriber:
    return Subscriber(frozenset({LOG}), instance_id, position, primaries)


def primary_of(members: Subscribers, previous: dict[str, Assignment]) -> str:
    """The only member with partitions, which has all."""
    assigned = to_primary(members, {LOG: 2}, previous)
    (found,) = (member for member, one in assigned.items() if one)
    assert assigned[found] == P0
    return found


def test_primary_stays_with_its_holder_and_is_the_furthest_member_after_it() -> None:
    members = {"a": replica(5), "b": replica(7), "c": replica(7, 1)}
    assert primary_of(members, {"a": P0}) == "a"
    assert primary_of(members, {"gone": P0}) == primary_of(members, {}) == "b"


def test_primary_of_equal_positions_is_the_one_with_the_fewest_primaries_then_the_lowest_id() -> (
    None
):
    assert primary_of({"a": replica(7, 2), "b": replica(7, 1)}, {}) == "b"
    assert primary_of({"a": replica(7), "b": replica(7)}, {}) == "a"
    assert primary_of({"a": replica(0, 0, "2"), "b": replica(0, 0, "1")}, {}) == "b"
    assert primary_of({"a": replica(), "b": replica(0)}, {}) == "b", "-1: nothing is known of it"


reporting = any_subscribers.flatmap(
    lambda members: st.fixed_dictionaries(
        {
            member: st.builds(
                Subscriber,
                st.just(one.topics),
                st.none() | st.sampled_from(MEMBERS),
                st.integers(-1, 3),
                st.integers(0, 2),
            )
            for member, one in members.items()
        }
    )
)


@given(reporting, counts, previous_assignments())
def test_primary_has_all_partitions_of_a_topic_and_keeps_them_whatever_is_reported(
    members: Subscribers, partition_counts: dict[TopicId, int], previous: dict[str, Assignment]
) -> None:
    once = to_primary(members, partition_counts, previous)
    owners = [topic.topic_id for one in once.values() for topic in one]
    assert len(owners) == len(set(owners)), "no topic has two owners"
    others = {
        name: one._replace(position=-one.position, primaries=9) for name, one in members.items()
    }
    if len({one.topics for one in members.values()}) <= 1:
        assert to_primary(others, partition_counts, once) == once
    backwards = dict(reversed(members.items()))
    assert to_primary(backwards, partition_counts, previous) == once, "no order counts"


def test_unknown_assignor_is_refused_and_an_alias_taken() -> None:
    assert assignor_name("cooperative-sticky") == "uniform"
    with pytest.raises(LogError) as caught:
        assignor_name("round-robin")
    assert caught.value.entry is UNSUPPORTED_ASSIGNOR


def test_most_members_choose_the_assignor() -> None:
    assert preferred_assignor([]) == preferred_assignor(["range", "uniform", None]) == "uniform"
    assert preferred_assignor(["range", None, None]) == "range"
