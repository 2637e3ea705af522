from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.metadata.commands import Assignments
from raftlog.metadata.decisions import placement
from raftlog.metadata.decisions.admin_plans import complete
from raftlog.metadata.decisions.placement import Replacements
from raftlog.metadata.image import MetadataImage
from raftlog.record.errors import INVALID_PARTITIONS, NOT_ENOUGH_REPLICAS, LogError
from raftlog.record.types import BrokerId
from tests.examples import examples
from tests.metadata.strategies import (
    alter_broker,
    cluster_images,
    create,
    fence,
    ids,
    register,
    shut_down,
)


def place(
    image: MetadataImage,
    partitions: int,
    replication_factor: int,
    unwritable: frozenset[BrokerId] = frozenset(),
) -> Assignments:
    return complete(placement.place(image, partitions, replication_factor, unwritable=unwritable))


def cluster(*racks: str | None) -> MetadataImage:
    image = MetadataImage()
    for number, rack in enumerate(racks, start=1):
        register(image, number, rack=rack)
    return image


@settings(max_examples=examples(100), deadline=None)
@given(
    racks=st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=8),
    partitions=st.integers(1, 60),
    data=st.data(),
)
def test_placement_spreads_leaders_and_racks(
    racks: list[str | None], partitions: int, data: st.DataObject
) -> None:
    image = cluster(*racks)
    factor = data.draw(st.integers(1, len(racks)))
    assignments = place(image, partitions, factor)
    assert assignments == place(image, partitions, factor), "the same image, the same decision"
    assert len(assignments) == partitions
    names = {
        broker_id: broker.rack or f"alone {broker_id}"
        for broker_id, broker in image.brokers.items()
    }
    for replicas in assignments:
        assert len(set(replicas)) == len(replicas) == factor
        used = {names[broker_id] for broker_id in replicas}
        assert len(used) == min(factor, len(set(names.values())))
    leaders = Counter(replicas[0] for replicas in assignments)
    counts = [leaders[broker_id] for broker_id in image.brokers]
    assert max(counts) - min(counts) <= 1


def test_replicas_are_balanced_and_a_brokers_partners_are_many() -> None:
    image = cluster(*[None] * 6)
    assignments = place(image, 120, 3)
    held = Counter(broker_id for replicas in assignments for broker_id in replicas)
    assert max(held.values()) - min(held.values()) <= 2
    for broker_id in image.brokers:
        partners = {other for row in assignments if row[0] == broker_id for other in row[1:]}
        assert len(partners) == 5, "when it dies, all others share its load"


def test_new_partitions_go_where_the_least_is_led() -> None:
    image = cluster(None, None, None)
    create(image, "busy", 1, (1,), (1,), (3,))
    assert place(image, 4, 1) == ((2,), (2,), (3,), (1,))


def test_broker_without_a_rack_shares_none() -> None:
    # A rack may be called like anything, even like a broker's id.
    image = cluster("2", None, "2")
    assert all(2 in replicas for replicas in place(image, 9, 2))


def test_brokers_that_are_away_get_replicas_only_for_want_of_others() -> None:
    image = cluster(None, None, None, None)
    fence(image, 1)
    shut_down(image, 3)
    assert {b for replicas in place(image, 6, 2) for b in replicas} == {2, 4}
    for replicas in place(image, 6, 3):
        assert replicas[0] in {2, 4}, "whoever is away cannot lead"
        assert {2, 4} < set(replicas)
    fence(image, 2)
    with pytest.raises(LogError, match="only 1 can take replicas, and 2 must") as raised:
        place(image, 1, 3)
    assert raised.value.entry is NOT_ENOUGH_REPLICAS and raised.value.entry.retriable
    with pytest.raises(LogError, match="there are 4 brokers") as raised:
        place(image, 1, 5)
    assert raised.value.entry is INVALID_PARTITIONS


@settings(max_examples=examples(50), deadline=None)
@given(racks=st.integers(0, 4), brokers_per_rack=st.integers(1, 4), partitions=st.integers(1, 100))
def test_three_replicas_on_equal_racks_are_balanced(
    racks: int, brokers_per_rack: int, partitions: int
) -> None:
    names = [str(rack) for rack in range(racks) for _ in range(brokers_per_rack)]
    image = cluster(*(names if len(names) >= 3 else [None] * (2 + brokers_per_rack)))
    assignments = place(image, partitions, 3)
    led = Counter(replicas[0] for replicas in assignments)
    held = Counter(broker_id for replicas in assignments for broker_id in replicas)
    leads = [led[broker_id] for broker_id in image.brokers]
    holds = [held[broker_id] for broker_id in image.brokers]
    assert max(leads) - min(leads) <= 1
    # Many partners for each broker come before the last bit of balance.
    assert max(holds) - min(holds) <= 3


def test_brokers_in_maintenance_hold_but_do_not_lead_and_those_that_leave_hold_nothing() -> None:
    image = cluster(None, None, None, None)
    alter_broker(image, 1, maintenance=True)
    alter_broker(image, 2, decommissioning=True)
    assignments = place(image, 6, 2)
    assert {replicas[0] for replicas in assignments} == {3, 4}
    assert {broker_id for replicas in assignments for broker_id in replicas} == {1, 3, 4}
    alter_broker(image, 3, maintenance=True)
    alter_broker(image, 4, maintenance=True)
    assert {replicas[0] for replicas in place(image, 6, 2)} == {1, 3, 4}, "somebody has to"
    with pytest.raises(LogError, match="decommissioned") as raised:
        place(image, 1, 4)
    assert raised.value.entry is INVALID_PARTITIONS


def test_replicas_are_replaced_in_the_rack_that_lost_one() -> None:
    image = cluster("a", "a", "b", "b", "c")
    assert Replacements(image).replace(ids(1, 3, 5), ids(3)) == (1, 4, 5)
    assert Replacements(image).replace(ids(3, 1, 5), ids(3)) == (4, 1, 5)


def test_replacements_are_spread_over_the_others() -> None:
    image = cluster(*[None] * 5)
    replacements = Replacements(image)
    found = [replacements.replace(ids(5, 1), ids(5)) for _ in range(6)]
    assert Counter(row[0] for row in found if row) == {2: 2, 3: 2, 4: 2}
    replacements = Replacements(image)
    found = [replacements.replace(ids(1, 5), ids(5)) for _ in range(6)]
    assert Counter(row[1] for row in found if row) == {2: 2, 3: 2, 4: 2}


def test_nothing_is_replaced_without_enough_other_brokers() -> None:
    image = cluster(None, None, None)
    fence(image, 3)
    assert Replacements(image).replace(ids(1, 2), ids(2)) is None
    assert Replacements(image).replace(ids(1, 2, 3), ids(2)) is None


@settings(max_examples=examples(100), deadline=None)
@given(cluster_images(), st.data())
def test_replacements_keep_all_others_in_their_places(
    image: MetadataImage, data: st.DataObject
) -> None:
    replicas = tuple(
        data.draw(st.lists(st.sampled_from(ids(1, 2, 3, 4, 5)), unique=True, min_size=1))
    )
    leaving = set(data.draw(st.lists(st.sampled_from(ids(1, 2, 3, 4, 5)), unique=True)))
    found = Replacements(image).replace(replicas, leaving)
    able = {b for b, broker in image.brokers.items() if broker.may_hold} - leaving
    if found is None:
        assert len(able - {*replicas}) < len(leaving & {*replicas})
        return
    assert len({*found}) == len(replicas)
    for before, after in zip(replicas, found, strict=True):
        assert after in able - {*replicas} if before in leaving else after == before


def test_unwritable_brokers_lead_and_hold_only_without_another_choice() -> None:
    image = cluster(*[None] * 4)
    assignments = place(image, 12, 3, unwritable=frozenset(ids(2)))
    assert all(2 not in replicas for replicas in assignments)
    assignments = place(image, 12, 3, unwritable=frozenset(ids(1, 2)))
    assert {replicas[0] for replicas in assignments} == {3, 4}
    assert all({3, 4} <= {*replicas} for replicas in assignments)
    alter_broker(image, 3, maintenance=True)
    alter_broker(image, 4, maintenance=True)
    assignments = place(image, 4, 3, unwritable=frozenset(ids(1, 2)))
    assert {replicas[0] for replicas in assignments} == {3, 4}
    every = frozenset(ids(1, 2, 3, 4))
    assert {replicas[0] for replicas in place(image, 4, 3, unwritable=every)} == {1, 2}


def test_racks_go_before_room_in_a_new_topic_and_after_it_in_a_move() -> None:
    image = cluster("a", "a", "b")
    unwritable = frozenset(ids(3))
    assert all(3 in replicas for replicas in place(image, 4, 2, unwritable=unwritable))
    image = cluster("a", "b", "a", "b")
    replacements = Replacements(image, frozenset(ids(4)))
    assert replacements.replace(ids(1, 2), ids(2)) == (1, 3)


def test_a_large_topic_is_placed_in_small_steps() -> None:
    image = cluster(*[None] * 100)
    steps = list(placement.place(image, 1_000, 3))
    assert len(steps) >= 1_000 * 100 * 3 // placement.CHOICES_PER_STEP - 1
