from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.metadata import controller
from raftlog.metadata.apply import apply
from raftlog.metadata.commands import AlterClusterSettings, Command
from raftlog.metadata.controller import (
    place,
    plan_cluster_settings,
    plan_configs,
    plan_partitions,
    plan_topic,
)
from raftlog.metadata.image import MetadataImage
from raftlog.record.errors import (
    INVALID_CONFIG,
    INVALID_PARTITIONS,
    INVALID_TOPIC,
    NOT_ENOUGH_REPLICAS,
    TOPIC_EXISTS,
    UNKNOWN_TOPIC,
    ErrorEntry,
    LogError,
)
from raftlog.record.types import TopicId
from tests.metadata.strategies import create, fence, register, shut_down

NEW_ID = TopicId("f" * 32)


def cluster(*racks: str | None) -> MetadataImage:
    image = MetadataImage()
    for number, rack in enumerate(racks, start=1):
        register(image, number, rack=rack)
    return image


def carry_out(image: MetadataImage, command: Command) -> None:
    apply(image, image.applied_index + 1, command).check()


def plan(
    image: MetadataImage,
    name: str = "t",
    partitions: int = 1,
    replication_factor: int | None = None,
    configs: dict[str, str] | None = None,
) -> Command:
    return plan_topic(
        image,
        name=name,
        partitions=partitions,
        replication_factor=replication_factor,
        configs=configs or {},
        topic_id=NEW_ID,
    )


def test_planned_topic_can_be_applied() -> None:
    image = cluster(None)
    carry_out(image, plan(image, partitions=3, configs={"retention.ms": " 07 "}))
    topic = image.topic("t")
    assert [row.replicas for row in topic.partitions] == [(1,)] * 3
    assert topic.configs == {"retention.ms": "7"}


def test_new_topics_have_one_replica_as_long_as_records_are_not_replicated() -> None:
    image = cluster(None, None, None)
    carry_out(image, plan(image))
    assert image.topic("t").replication_factor == 1
    with pytest.raises(LogError, match="does not replicate records yet") as raised:
        plan(image, name="u", replication_factor=2)
    assert raised.value.entry is INVALID_PARTITIONS


@pytest.mark.parametrize(("brokers", "factor"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_default_replication_factor_is_three_or_the_clusters_size(
    brokers: int, factor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "REPLICATION_FACTOR_MAX", 1_000)
    image = cluster(*[None] * brokers)
    carry_out(image, plan(image))
    assert image.topic("t").replication_factor == factor


@pytest.mark.parametrize(
    ("arguments", "entry"),
    [
        ({"name": "../t"}, INVALID_TOPIC),
        ({"name": ""}, INVALID_TOPIC),
        ({"name": "known"}, TOPIC_EXISTS),
        ({"partitions": 0}, INVALID_PARTITIONS),
        ({"partitions": -1}, INVALID_PARTITIONS),
        ({"partitions": 10_001}, INVALID_PARTITIONS),
        ({"replication_factor": 0}, INVALID_PARTITIONS),
        ({"replication_factor": 2}, INVALID_PARTITIONS),
        ({"configs": {"flush": "never"}}, INVALID_CONFIG),
        ({"configs": {"no.such": "1"}}, INVALID_CONFIG),
    ],
)
def test_impossible_topics_are_refused_before_they_are_proposed(
    arguments: dict[str, object], entry: ErrorEntry
) -> None:
    image = cluster(None)
    create(image, "known", 1, (1,))
    with pytest.raises(LogError) as raised:
        plan(image, **arguments)  # type: ignore[arg-type]  # one table for all arguments
    assert raised.value.entry is entry


def test_nothing_can_be_placed_without_brokers() -> None:
    with pytest.raises(LogError) as raised:
        plan(MetadataImage())
    assert raised.value.entry is INVALID_PARTITIONS


def test_partitions_of_the_cluster_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "PARTITIONS_PER_CLUSTER_MAX", 5)
    image = cluster(None)
    create(image, "known", 1, (1,), (1,))
    plan(image, partitions=3)
    with pytest.raises(LogError):
        plan(image, partitions=4)
    plan_partitions(image, name="known", partitions=5)
    with pytest.raises(LogError):
        plan_partitions(image, name="known", partitions=6)


def test_partitions_can_only_grow() -> None:
    image = cluster(None)
    create(image, "known", 1, (1,), (1,))
    for partitions in (2, 1, 0, -5):
        with pytest.raises(LogError, match="can only grow") as raised:
            plan_partitions(image, name="known", partitions=partitions)
        assert raised.value.entry is INVALID_PARTITIONS
    carry_out(image, plan_partitions(image, name="known", partitions=4))
    assert len(image.topic("known").partitions) == 4
    with pytest.raises(LogError) as raised:
        plan_partitions(image, name="absent", partitions=4)
    assert raised.value.entry is UNKNOWN_TOPIC


def test_configs_are_planned_all_or_none() -> None:
    image = cluster(None)
    create(image, "known", 1, (1,))
    carry_out(image, plan_configs(image, name="known", values={"flush": "async"}))
    command = plan_configs(
        image, name="known", values={"retention.ms": "1"}, removals=["flush", "flush"]
    )
    carry_out(image, command)
    assert image.topic("known").configs == {"retention.ms": "1"}
    for values, removals in (
        ({"retention.ms": "x"}, []),
        ({}, ["no.such"]),
        ({"flush": "sync"}, ["flush"]),
    ):
        with pytest.raises(LogError) as raised:
            plan_configs(image, name="known", values=values, removals=removals)
        assert raised.value.entry is INVALID_CONFIG


def test_config_of_another_release_can_be_removed() -> None:
    image = cluster(None)
    create(image, "known", 1, (1,))
    topic = image.topic("known")
    assert isinstance(topic.configs, dict)
    topic.configs["from.the.future"] = "x"
    carry_out(image, plan_configs(image, name="known", values={}, removals=["from.the.future"]))
    assert image.topic("known").configs == {}


@settings(max_examples=100, deadline=None)
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


def test_brokers_that_are_away_get_no_replicas() -> None:
    image = cluster(None, None, None, None)
    fence(image, 1)
    shut_down(image, 3)
    assert {b for replicas in place(image, 6, 2) for b in replicas} == {2, 4}
    with pytest.raises(LogError, match="only 2 can take replicas") as raised:
        place(image, 1, 3)
    assert raised.value.entry is NOT_ENOUGH_REPLICAS and raised.value.entry.retriable
    with pytest.raises(LogError, match="there are 4 brokers") as raised:
        place(image, 1, 5)
    assert raised.value.entry is INVALID_PARTITIONS


def test_default_replication_factor_does_not_fall_because_a_broker_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller, "REPLICATION_FACTOR_MAX", 3)
    image = cluster(None, None, None)
    fence(image, 1)
    with pytest.raises(LogError) as raised:
        plan(image)
    assert raised.value.entry is NOT_ENOUGH_REPLICAS


def test_cluster_settings_are_planned_all_or_none() -> None:
    image = cluster(None)
    carry_out(image, plan_cluster_settings(image, values={"retention.ms": " 07 "}))
    assert image.cluster_settings == {"retention.ms": "7"}
    command = plan_cluster_settings(
        image, values={"flush": "async"}, removals=["retention.ms", "retention.ms"]
    )
    carry_out(image, command)
    assert image.cluster_settings == {"flush": "async"}
    for values, removals in (
        ({"retention.ms": "x"}, []),
        ({"no.such": "1"}, []),
        ({}, ["no.such"]),
        ({"flush": "sync"}, ["flush"]),
    ):
        with pytest.raises(LogError) as raised:
            plan_cluster_settings(image, values=values, removals=removals)
        assert raised.value.entry is INVALID_CONFIG


def test_setting_of_another_release_can_be_removed() -> None:
    image = cluster(None)
    carry_out(image, AlterClusterSettings(values={"from.the.future": "1"}))
    carry_out(image, plan_cluster_settings(image, values={}, removals=["from.the.future"]))
    assert image.cluster_settings == {}


def test_number_of_cluster_settings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "CLUSTER_SETTINGS_MAX", 1)
    image = cluster(None)
    carry_out(image, plan_cluster_settings(image, values={"flush": "async"}))
    with pytest.raises(LogError, match="at most 1"):
        plan_cluster_settings(image, values={"retention.ms": "1"})
    plan_cluster_settings(image, values={"retention.ms": "1"}, removals=["flush"])
