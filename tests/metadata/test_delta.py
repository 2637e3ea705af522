from __future__ import annotations

from raftlog.metadata.apply import apply
from raftlog.metadata.commands import AlterTopicConfigs, DeleteTopic
from raftlog.metadata.delta import NO_CHANGE, MetadataDelta, difference
from raftlog.metadata.image import MetadataImage
from tests.metadata.strategies import create, register


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
