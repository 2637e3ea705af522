from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.metadata.apply import ApplyResult, apply
from raftlog.metadata.commands import (
    Command,
    DeleteTopic,
    MetadataVersionError,
    encode_command,
)
from raftlog.metadata.delta import MetadataDelta
from raftlog.metadata.image import MetadataImage
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.quorum import Applied, LocalQuorum, LocalQuorumLimits
from raftlog.record.types import TopicId
from tests.metadata.strategies import create, histories, register, run
from tests.simulation.disk import SimulatedDisk


def fed(history: list[Command]) -> MetadataStateMachine:
    machine = MetadataStateMachine()
    for index, command in enumerate(history, start=1):
        machine.apply(index, encode_command(command))
    return machine


@settings(max_examples=100, deadline=None)
@given(histories)
def test_replay_of_the_bytes_equals_the_live_image(history: list[Command]) -> None:
    assert fed(history).image == run(history)


@settings(max_examples=100, deadline=None)
@given(histories, histories)
def test_restore_replaces_the_image_and_tells_the_difference(
    old: list[Command], new: list[Command]
) -> None:
    machine, source = fed(old), fed(new)
    topics = {topic.topic_id: topic for topic in machine.image.topics_by_id.values()}
    deltas: list[MetadataDelta] = []
    machine.subscribe(deltas.append)
    machine.restore(source.image.applied_index, source.snapshot()())
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
    machine.restore(5, source.snapshot()())
    assert machine.image.applied_index == 5


def test_snapshot_is_of_the_moment_it_was_captured() -> None:
    machine = MetadataStateMachine()
    register(machine.image)
    create(machine.image, "a", 1, (1,))
    expected = machine.image.copy()
    encode = machine.snapshot()
    delete = DeleteTopic(topic_id=machine.image.topic("a").topic_id)
    machine.apply(3, encode_command(delete))
    restored = MetadataStateMachine()
    restored.restore(2, encode())
    assert restored.image == expected


def test_contradictory_snapshot_ends_the_node() -> None:
    machine = MetadataStateMachine()
    register(machine.image)
    create(machine.image, "a", 1, (1,))
    snapshot = machine.snapshot()().replace(b"[0,[1],[1],[],1,", b"[0,[1],[1],[],2,")
    with pytest.raises(AssertionError, match="leader out of sync"):
        MetadataStateMachine().restore(2, snapshot)


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
    machine.apply(3, delete)
    machine.apply(4, delete)
    assert heard == [("a",)]


def test_unknown_command_changes_nothing_and_raises() -> None:
    machine = MetadataStateMachine()
    with pytest.raises(MetadataVersionError):
        machine.apply(1, b'{"type":"merge_topics","v":1}')
    assert machine.image == MetadataImage()


@settings(max_examples=20, deadline=None)
@given(history=histories, seed=st.integers(0, 1000))
async def test_history_survives_the_quorum(history: list[Command], seed: int) -> None:
    disk = SimulatedDisk(seed, yields=True)
    limits = LocalQuorumLimits(snapshot_entries=5)
    expected = MetadataImage()
    for part in (history[: len(history) // 2], history[len(history) // 2 :]):
        machine = MetadataStateMachine()
        quorum: LocalQuorum[ApplyResult] = await LocalQuorum.open(disk, "m", machine, limits)
        assert machine.image == expected
        for command in part:
            outcome = await quorum.propose(encode_command(command))
            assert isinstance(outcome, Applied)
            assert outcome.result == apply(expected, outcome.index, command)
        assert machine.image == expected
        await quorum.close()
        disk.crash(power=True)


async def test_node_stops_at_a_command_of_a_newer_release() -> None:
    disk = SimulatedDisk()
    quorum = await LocalQuorum.open(disk, "m", MetadataStateMachine())
    told: list[str] = []
    quorum.on_failed(told.append)
    await quorum.propose(b'{"type":"merge_topics","v":2}')
    assert "upgrade this node" in told[0]
    await quorum.close()
    with pytest.raises(MetadataVersionError):
        await LocalQuorum.open(disk, "m", MetadataStateMachine())
