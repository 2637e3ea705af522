from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import event, given, settings

from raftlog.metadata.apply.apply import apply
from raftlog.metadata.commands import (
    AlterTopicConfigs,
    ClusterCreated,
    Command,
)
from raftlog.metadata.delta import MetadataDelta, difference
from raftlog.metadata.image import MetadataImage
from raftlog.metadata.state_machine import check_invariants
from raftlog.record.types import BrokerId, TopicId
from tests.examples import examples
from tests.metadata.strategies import (
    histories,
    ready,
    register,
)


def in_id_order(delta: MetadataDelta) -> MetadataDelta:
    ordered = sorted(delta.changed, key=lambda change: change.after.topic_id)
    return replace(delta, changed=tuple(ordered))


@settings(max_examples=examples(200), deadline=None)
@given(histories)
def test_any_history_leaves_a_valid_image_and_truthful_deltas(history: list[Command]) -> None:
    image = MetadataImage()
    for command in history:
        before = image.copy()
        result = apply(image, image.applied_index + 1, command)
        event(f"{type(command).__name__}: {'refused' if result.refusal else bool(result.delta)}")
        check_invariants(image)
        # A follower of the deltas sees all changes, and only changes.
        expected = difference(before, image)
        assert in_id_order(result.delta) == in_id_order(expected)
        if result.refusal is not None:
            before.applied_index = image.applied_index
            assert image == before


@settings(max_examples=examples(100), deadline=None)
@given(histories)
def test_epochs_never_go_back(history: list[Command]) -> None:
    image = MetadataImage()
    broker_epochs: dict[BrokerId, int] = {}
    partitions: dict[tuple[TopicId, int], tuple[int, int]] = {}
    for command in history:
        apply(image, image.applied_index + 1, command)
        for broker in image.brokers.values():
            assert broker.broker_epoch >= broker_epochs.get(broker.broker_id, 0)
            broker_epochs[broker.broker_id] = broker.broker_epoch
        for topic in image.topics_by_id.values():
            for row in topic.partitions:
                key = (topic.topic_id, row.partition)
                epochs = (row.leader_epoch, row.partition_epoch)
                assert epochs >= partitions.get(key, (0, 0))
                partitions[key] = epochs


def test_rows_taken_from_the_image_never_change() -> None:
    image = ready()
    topic = image.topic("a")
    partitions = topic.partitions
    register(image, incarnation="second")
    apply(image, 20, AlterTopicConfigs(topic_id=topic.topic_id, values={"flush": "async"}))
    assert (topic.partitions, topic.configs) == (partitions, {})
    assert partitions[0].leader_epoch == 0


def test_index_must_grow() -> None:
    image = ready()
    with pytest.raises(AssertionError):
        apply(image, image.applied_index, ClusterCreated(cluster_id="one", created_ms=0))
