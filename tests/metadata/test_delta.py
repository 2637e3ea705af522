from __future__ import annotations

from raftlog.metadata.apply.apply import apply
from raftlog.metadata.commands import (
    AddPartitions,
    AlterClusterSettings,
    AlterTopicConfigs,
    DeleteTopic,
)
from raftlog.metadata.decisions.reassignment import plan_completions, plan_reassignment
from raftlog.metadata.delta import NO_CHANGE, MetadataDelta, difference, share_rows
from raftlog.metadata.image import MetadataImage
from raftlog.record.types import BrokerId
from tests.metadata.strategies import carry_out, create, ids, register


def ready() -> MetadataImage:
    image = MetadataImage()
    register(image)
    create(image, "a", 1, (1,), (1,))
    create(image, "b", 2, (1,))
    return image


def test_equal_images_do_not_differ() -> None:
    assert difference(ready(), ready()) == NO_CHANGE
    assert not NO_CHANGE


def test_change_of_configs_alone_is_a_change() -> None:
    before, after = ready(), ready()
    topic_id = after.topic("a").topic_id
    apply(after, 10, AlterTopicConfigs(topic_id=topic_id, values={"flush": "async"}))
    (change,) = difference(before, after).changed
    assert (change.before, change.after) == (before.topic("a"), after.topic("a"))
    assert change.configs_changed
    assert change.partitions == ()


def test_topic_deleted_and_created_again_is_another_topic() -> None:
    before, after = ready(), ready()
    apply(after, 10, DeleteTopic(topic_id=after.topic("a").topic_id))
    create(after, "a", 3, (1,), (1,))
    delta = difference(before, after)
    assert delta == MetadataDelta(created=(after.topic("a"),), deleted=(before.topic("a"),))


def test_restarted_broker_is_named_with_the_partitions_it_leads() -> None:
    before, after = ready(), ready()
    register(after, incarnation="second")
    delta = difference(before, after)
    assert delta.brokers == (1,)
    assert [(change.after.name, change.partitions) for change in delta.changed] == [
        ("a", (0, 1)),
        ("b", (0,)),
    ]
    assert not any(change.configs_changed for change in delta.changed)


def test_brokers_that_went_and_settings_that_differ_are_named() -> None:
    before, after = ready(), ready()
    register(before, 2)
    register(after, 3)
    carry_out(before, AlterClusterSettings(values={"a": "1", "b": "1", "c": "1"}))
    carry_out(after, AlterClusterSettings(values={"a": "1", "b": "2", "d": "1"}))
    delta = difference(before, after)
    assert delta == MetadataDelta(
        brokers=(BrokerId(3),), brokers_gone=(BrokerId(2),), cluster_settings=("b", "c", "d")
    )
    for part in (
        MetadataDelta(brokers_gone=(BrokerId(2),)),
        MetadataDelta(cluster_settings=("b",)),
    ):
        assert part, "even alone it is a change"


def test_sharing_keeps_what_the_images_hold() -> None:
    before, after = ready(), ready()
    carry_out(
        after,
        AddPartitions(
            topic_id=after.topic("a").topic_id, partition_count=2, assignments=((BrokerId(1),),)
        ),
    )
    create(after, "c", 3, (1,))
    expected = after.copy()
    share_rows(before, after)
    assert after == expected
    assert after.topic("b") is before.topic("b")
    assert after.partition("a", 1) is before.partition("a", 1)
    assert difference(before, after) == difference(before, expected)


def test_equal_rows_under_other_configs_are_shared_but_not_the_topic() -> None:
    before, after = ready(), ready()
    topic_id = after.topic("a").topic_id
    carry_out(after, AlterTopicConfigs(topic_id=topic_id, values={"flush": "async"}))
    share_rows(before, after)
    assert after.topic("a").configs == {"flush": "async"}
    assert after.partition("a", 0) is before.partition("a", 0)
    assert difference(before, after).changed[0].configs_changed


def test_replica_that_was_moved_away_is_a_change_of_its_partition_also_by_a_snapshot() -> None:
    """A node may remove a replica after a row with the node, and then one without."""
    before, after = ready(), ready()
    for image in (before, after):
        register(image, 2)
        create(image, "moved", 3, (1, 2), (1, 2))
    carry_out(after, plan_reassignment(after, name="moved", partition=1, replicas=ids(1)))
    for command in plan_completions(after):
        carry_out(after, command)
    share_rows(before, after)
    (change,) = difference(before, after).changed
    assert change.partitions == (1,)
    assert [row.replicas for row in change.before.partitions] == [(1, 2), (1, 2)]
    assert [row.replicas for row in change.after.partitions] == [(1, 2), (1,)]
