from __future__ import annotations

import pytest

from raftlog.metadata.apply.apply import apply
from raftlog.metadata.commands import AddPartitions, AlterClusterSettings, Command, CreateTopic
from raftlog.metadata.configs.broker import DISK_RESERVE, LEASE_BOUND, SESSION_TIMEOUT
from raftlog.metadata.decisions import admin_plans
from raftlog.metadata.decisions.admin_plans import (
    complete,
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
from raftlog.record.types import BrokerId, TopicId
from tests.metadata.strategies import alter_broker, create, fence, register

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
    return complete(
        plan_topic(
            image,
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs or {},
            topic_id=NEW_ID,
        )
    )


def test_planned_topic_can_be_applied() -> None:
    image = cluster(None)
    carry_out(image, plan(image, partitions=3, configs={"retention.ms": " 07 "}))
    topic = image.topic("t")
    assert [row.replicas for row in topic.partitions] == [(1,)] * 3
    assert topic.configs == {"retention.ms": "7"}


@pytest.mark.parametrize(("brokers", "factor"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_default_replication_factor_is_three_or_the_clusters_size(
    brokers: int, factor: int
) -> None:
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


@pytest.mark.parametrize(
    ("present", "name", "collides"),
    [
        ("a.b", "a_b", True),
        ("a_b.c", "a.b_c", True),
        ("a.b", "a.c", False),
        ("a.b", "a-b", False),
        ("ab", "a.b", False),
        ("x", "__consumer.offsets", True),
        ("__consumer.offsets", "__consumer_offsets", False),
    ],
)
def test_names_must_differ_in_more_than_dots_and_underscores(
    present: str, name: str, collides: bool
) -> None:
    image = cluster(None)
    create(image, present, 1, (1,))
    if not collides:
        carry_out(image, plan(image, name))
        assert name in image.topics_by_name
        return
    with pytest.raises(LogError, match="collides") as refused:
        plan(image, name)
    assert refused.value.entry is INVALID_TOPIC


def test_nothing_can_be_placed_without_brokers() -> None:
    with pytest.raises(LogError) as raised:
        plan(MetadataImage())
    assert raised.value.entry is INVALID_PARTITIONS


def test_partitions_of_the_cluster_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_plans, "PARTITIONS_PER_CLUSTER_MAX", 5)
    image = cluster(None)
    create(image, "known", 1, (1,), (1,))
    plan(image, partitions=3)
    with pytest.raises(LogError):
        plan(image, partitions=4)
    complete(plan_partitions(image, name="known", partitions=5))
    with pytest.raises(LogError):
        complete(plan_partitions(image, name="known", partitions=6))


def test_new_partitions_may_name_their_brokers() -> None:
    image = cluster(None, None, None)
    create(image, "known", 1, (1, 2))

    def grow(*replicas: tuple[int, ...]) -> AddPartitions:
        assignments = tuple(tuple(map(BrokerId, each)) for each in replicas)
        return complete(plan_partitions(image, name="known", partitions=3, assignments=assignments))

    for wrong in ((2, 3),), ((2, 3), (3,)), ((2, 3), (3, 3)), ((2, 3), (3, 9)):
        with pytest.raises(LogError) as raised:
            grow(*wrong)
        assert raised.value.entry is INVALID_PARTITIONS
    carry_out(image, grow((2, 3), (3, 1)))
    assert [row.replicas for row in image.topic("known").partitions] == [(1, 2), (2, 3), (3, 1)]


def test_partitions_can_only_grow() -> None:
    image = cluster(None)
    create(image, "known", 1, (1,), (1,))
    for partitions in (2, 1, 0, -5):
        with pytest.raises(LogError, match="can only grow") as raised:
            complete(plan_partitions(image, name="known", partitions=partitions))
        assert raised.value.entry is INVALID_PARTITIONS
    carry_out(image, complete(plan_partitions(image, name="known", partitions=4)))
    assert len(image.topic("known").partitions) == 4
    with pytest.raises(LogError) as raised:
        complete(plan_partitions(image, name="absent", partitions=4))
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


def test_brokers_that_are_to_leave_do_not_count_for_the_default_factor() -> None:
    image = cluster(None, None, None)
    alter_broker(image, 3, decommissioning=True)
    carry_out(image, plan(image))
    assert image.partition("t", 0).replicas == (1, 2)


def test_default_replication_factor_does_not_fall_because_a_broker_is_away() -> None:
    image = cluster(None, None, None)
    fence(image, 1)
    assert {len(replicas) for replicas in plan(image).assignments} == {3}
    fence(image, 2)
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
    monkeypatch.setattr(admin_plans, "CLUSTER_SETTINGS_MAX", 1)
    image = cluster(None)
    carry_out(image, plan_cluster_settings(image, values={"flush": "async"}))
    with pytest.raises(LogError, match="at most 1"):
        plan_cluster_settings(image, values={"retention.ms": "1"})
    plan_cluster_settings(image, values={"retention.ms": "1"}, removals=["flush"])


def test_broker_configs_are_planned_with_their_bounds() -> None:
    image = MetadataImage()
    carry_out(image, plan_cluster_settings(image, values={SESSION_TIMEOUT: " 02000 "}))
    assert image.cluster_settings == {SESSION_TIMEOUT: "2000"}
    for value in ("999", "60001", "1.5", "", "soon"):
        with pytest.raises(LogError, match="a whole number from 1000 to 60000") as caught:
            plan_cluster_settings(image, values={SESSION_TIMEOUT: value})
        assert caught.value.entry is INVALID_CONFIG
    carry_out(image, plan_cluster_settings(image, values={}, removals=[SESSION_TIMEOUT]))
    assert image.cluster_settings == {}


def test_lease_bound_belongs_to_the_controller() -> None:
    image = MetadataImage()
    image.cluster_settings = {LEASE_BOUND: "9000"}
    for values, removals in (({LEASE_BOUND: "1000"}, ()), ({}, (LEASE_BOUND,))):
        with pytest.raises(LogError, match="no broker or topic config") as caught:
            plan_cluster_settings(image, values=values, removals=removals)
        assert caught.value.entry is INVALID_CONFIG


def test_broker_config_is_no_topic_config() -> None:
    image = MetadataImage()
    register(image, 1)
    create(image, "known", 1, (1,))
    for values, removals in (({DISK_RESERVE: "4194304"}, ()), ({}, (DISK_RESERVE,))):
        with pytest.raises(LogError, match="no topic config"):
            plan_configs(image, name="known", values=values, removals=removals)


def test_assigned_replicas_are_taken_as_they_are_if_enough_can_begin() -> None:
    image = cluster(None, None, None)
    assigned = tuple(tuple(map(BrokerId, one)) for one in ((3, 1, 2), (1, 2, 3)))

    def command() -> CreateTopic:
        return complete(
            plan_topic(
                image,
                name="t",
                partitions=1,
                replication_factor=None,
                configs={},
                topic_id=NEW_ID,
                assignments=assigned,
            )
        )

    assert command().assignments == assigned
    fence(image, 3)
    assert command().assignments == assigned
    fence(image, 2)
    with pytest.raises(LogError, match="Partition 0 cannot begin now") as caught:
        command()
    assert caught.value.entry is NOT_ENOUGH_REPLICAS
