from __future__ import annotations

import pytest
from hypothesis import given, settings

from raftlog.metadata.commands import (
    Command,
    DeleteTopic,
    MetadataVersionError,
    encode_command,
)
from raftlog.metadata.delta import MetadataDelta
from raftlog.metadata.image import MetadataImage
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.record.types import TopicId
from tests.examples import examples
from tests.metadata.strategies import create, histories, register, run, set_row


def fed(history: list[Command]) -> MetadataStateMachine:
    machine = MetadataStateMachine()
    for index, command in enumerate(history, start=1):
        machine.apply(index, encode_command(command))
    return machine


@settings(max_examples=examples(100), deadline=None)
@given(histories)
def test_replay_of_the_bytes_equals_the_live_image(history: list[Command]) -> None:
    assert fed(history).image == run(history)


@settings(max_examples=examples(100), deadline=None)
@given(histories, histories)
def test_restore_replaces_the_image_and_tells_the_difference(
    old: list[Command], new: list[Command]
) -> None:
    machine, source = fed(old), fed(new)
    topics = {topic.topic_id: topic for topic in machine.image.topics_by_id.values()}
    before = machine.image.copy()
    deltas: list[MetadataDelta] = []
    machine.subscribe(deltas.append)
    install = machine.restore(source.image.applied_index, source.snapshot()())
    assert machine.image == before and not deltas, "nothing has changed yet"
    install()
    assert machine.image == source.image
    for delta in deltas:
        for topic in delta.deleted:
            del topics[topic.topic_id]
        for topic in delta.created:
            topics[topic.topic_id] = topic
        for change in delta.changed:
            assert topics[change.before.topic_id] == change.before
            topics[change.after.topic_id] = change.after
    assert topics == source.image.topics_by_id


def test_restored_image_takes_the_index_of_the_snapshot() -> None:
    source = fed([])
    machine = MetadataStateMachine()
    machine.restore(5, source.snapshot()())()
    assert machine.image.applied_index == 5


def test_snapshot_is_of_the_moment_it_was_captured() -> None:
    machine = MetadataStateMachine()
    register(machine.image)
    create(machine.image, "a", 1, (1,))
    expected = machine.image.copy()
    encode = machine.snapshot()
    delete = DeleteTopic(topic_id=machine.image.topic("a").topic_id)
    machine.apply(4, encode_command(delete))
    restored = MetadataStateMachine()
    restored.restore(3, encode())()
    assert restored.image == expected


def test_contradictory_snapshot_ends_the_node() -> None:
    machine = MetadataStateMachine()
    register(machine.image)
    create(machine.image, "a", 1, (1,))
    snapshot = b"".join(machine.snapshot()()).replace(b"[0,[1],[1],[],1,", b"[0,[1],[1],[],2,")
    with pytest.raises(AssertionError, match="leader out of sync"):
        MetadataStateMachine().restore(3, [snapshot])


def test_restore_keeps_the_rows_that_are_equal() -> None:
    machine = MetadataStateMachine()
    register(machine.image)
    create(machine.image, "a", 1, (1,))
    create(machine.image, "b", 2, (1,), (1,))
    rows = dict(machine.image.topics_by_name)
    source = MetadataStateMachine()
    source.restore(4, machine.snapshot()())()
    set_row(source.image, "b", 1, partition_epoch=1)
    deltas: list[MetadataDelta] = []
    machine.subscribe(deltas.append)
    machine.restore(4, source.snapshot()())()
    image = machine.image
    assert image.topic("a") is image.topics_by_id[image.topic("a").topic_id] is rows["a"]
    assert image.topic("b") is image.topics_by_id[image.topic("b").topic_id]
    assert image.partition("b", 0) is rows["b"].partitions[0]
    ((change,),) = [delta.changed for delta in deltas]
    assert change.partitions == (1,)


def test_nothing_may_be_applied_while_a_snapshot_is_restored() -> None:
    machine = MetadataStateMachine()
    register(machine.image)
    install = machine.restore(5, machine.snapshot()())
    machine.apply(6, encode_command(DeleteTopic(topic_id=TopicId(f"{1:032x}"))))
    with pytest.raises(AssertionError, match="applied during a restore"):
        install()


def test_listener_finds_the_change_in_the_image_and_hears_of_nothing_else() -> None:
    machine = MetadataStateMachine()
    heard: list[tuple[str, ...]] = []

    def listen(delta: MetadataDelta) -> None:
        for topic in delta.deleted:
            assert topic.topic_id not in machine.image.topics_by_id
        heard.append(tuple(topic.name for topic in delta.deleted))

    register(machine.image)
    create(machine.image, "a", 1, (1,))
    machine.subscribe(listen)
    delete = encode_command(DeleteTopic(topic_id=TopicId(f"{1:032x}")))
    machine.apply(4, delete)
    machine.apply(5, delete)
    assert heard == [("a",)]


def test_unknown_command_changes_nothing_and_raises() -> None:
    machine = MetadataStateMachine()
    with pytest.raises(MetadataVersionError):
        machine.apply(1, b'{"type":"merge_topics","v":1}')
    assert machine.image == MetadataImage()
