from __future__ import annotations

import pytest
from hypothesis import event, given, settings

from raftlog.metadata import apply as apply_module
from raftlog.metadata.apply import ProducerIdBlock, apply
from raftlog.metadata.commands import (
    AddPartitions,
    AllocateProducerIds,
    AlterTopicConfigs,
    ClusterCreated,
    Command,
    DeleteTopic,
)
from raftlog.metadata.delta import NO_CHANGE, difference
from raftlog.metadata.image import MetadataImage
from raftlog.metadata.invariants import check_invariants
from raftlog.record.errors import (
    ILLEGAL_STATE,
    INVALID_PARTITIONS,
    INVALID_TOPIC,
    TOPIC_EXISTS,
    UNKNOWN_TOPIC,
    ErrorEntry,
    LogError,
)
from raftlog.record.types import BrokerEpoch, BrokerId, ProducerId, TopicId
from tests.metadata.strategies import create, histories, register


def ready() -> MetadataImage:
    image = MetadataImage()
    for broker_id in (1, 2):
        register(image, broker_id)
    create(image, "a", 1, (1,), (2,), (1,))
    return image


def refusal_of(image: MetadataImage, command: Command) -> ErrorEntry:
    before = image.copy()
    result = apply(image, image.applied_index + 1, command)
    assert result.refusal is not None
    assert result.delta is NO_CHANGE
    before.applied_index += 1
    assert image == before, "a refused command changes nothing"
    with pytest.raises(LogError) as raised:
        result.check()
    assert raised.value.message == result.refusal.message
    return result.refusal.entry


@settings(max_examples=200, deadline=None)
@given(histories)
def test_any_history_leaves_a_valid_image_and_truthful_deltas(history: list[Command]) -> None:
    image = MetadataImage()
    for command in history:
        before = image.copy()
        result = apply(image, image.applied_index + 1, command)
        event(f"{type(command).__name__}: {'refused' if result.refusal else 'applied'}")
        check_invariants(image)
        # Whoever follows the deltas sees all that has changed, and nothing else.
        assert result.delta == difference(before, image)
        if result.refusal is not None:
            before.applied_index = image.applied_index
            assert image == before


@settings(max_examples=100, deadline=None)
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


def test_cluster_id_is_given_once() -> None:
    image = MetadataImage()
    first = ClusterCreated(cluster_id="one", created_ms=5)
    assert apply(image, 1, first).value == "one"
    assert apply(image, 2, first).value == "one"
    other = ClusterCreated(cluster_id="two", created_ms=6)
    assert refusal_of(image, other) is ILLEGAL_STATE
    assert (image.cluster_id, image.created_ms) == ("one", 5)


def test_each_start_of_a_broker_gets_a_new_epoch_for_it_and_what_it_leads() -> None:
    image = ready()
    first = image.brokers[BrokerId(1)]
    result = register(image, incarnation="second")
    assert result.broker().broker_epoch > first.broker_epoch
    rows = image.topic("a").partitions
    assert [row.leader_epoch for row in rows] == [1, 0, 1]
    assert [row.partition_epoch for row in rows] == [1, 0, 1]
    (change,) = result.delta.changed
    assert change.partitions == (0, 2)
    assert not change.configs_changed
    assert result.delta.brokers == (1,)


def test_repeated_registration_of_one_start_changes_nothing() -> None:
    image = ready()
    before = image.copy()
    result = register(image, 1)
    assert result.broker() is before.brokers[BrokerId(1)]
    assert result.delta is NO_CHANGE
    before.applied_index = image.applied_index
    assert image == before


def test_wiped_disk_under_a_known_id_is_refused() -> None:
    image = ready()
    result = register(image, incarnation="second", directory_id="another")
    assert result.refusal is not None and result.refusal.entry is ILLEGAL_STATE
    assert "another data directory" in result.refusal.message


def test_number_of_brokers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_module, "BROKERS_MAX", 2)
    image = ready()
    assert register(image, 3).refusal is not None
    assert register(image, 2, incarnation="second").refusal is None


def test_new_topic_is_led_by_its_first_replicas() -> None:
    image = ready()
    result = create(image, "b", 2, (2, 1), (1, 2))
    topic = result.topic()
    assert image.topic("b") is topic is image.topics_by_id[topic.topic_id]
    assert result.delta.created == (topic,)
    assert [(row.leader, row.isr, row.elr, row.leader_epoch) for row in topic.partitions] == [
        (2, (2, 1), (), 0),
        (1, (1, 2), (), 0),
    ]


def test_repeated_creation_is_harmless_but_another_topic_of_the_name_is_refused() -> None:
    image = ready()
    again = create(image, "a", 1, (1,), (2,), (1,))
    assert again.topic() is image.topic("a")
    assert again.delta is NO_CHANGE
    other = create(image, "a", 2, (1,))
    assert other.refusal is not None and other.refusal.entry is TOPIC_EXISTS


@pytest.mark.parametrize(
    ("name", "replicas", "entry"),
    [
        ("../b", ((1,),), INVALID_TOPIC),
        ("b", (), INVALID_PARTITIONS),
        ("b", ((),), INVALID_PARTITIONS),
        ("b", ((1, 1),), INVALID_PARTITIONS),
        ("b", ((1,), (1, 2)), INVALID_PARTITIONS),
        ("b", ((9,),), INVALID_PARTITIONS),
    ],
)
def test_impossible_topics_are_refused(
    name: str, replicas: tuple[tuple[int, ...], ...], entry: ErrorEntry
) -> None:
    image = ready()
    result = create(image, name, 2, *replicas)
    assert result.refusal is not None and result.refusal.entry is entry
    check_invariants(image)


def test_deleted_topic_leaves_its_id_behind() -> None:
    image = ready()
    topic = image.topic("a")
    result = apply(image, 10, DeleteTopic(topic_id=topic.topic_id))
    assert result.topic() is topic
    assert result.delta.deleted == (topic,)
    assert list(image.deleted_topic_ids) == [topic.topic_id]
    assert refusal_of(image, DeleteTopic(topic_id=topic.topic_id)) is UNKNOWN_TOPIC
    reused = create(image, "a", 1, (1,))
    assert reused.refusal is not None and reused.refusal.entry is ILLEGAL_STATE
    assert create(image, "a", 2, (1,)).topic().topic_id != topic.topic_id


def test_delayed_deletion_spares_the_topic_created_since_under_the_name() -> None:
    image = ready()
    delete = DeleteTopic(topic_id=image.topic("a").topic_id)
    apply(image, 10, delete)
    create(image, "a", 2, (1,))
    assert refusal_of(image, delete) is UNKNOWN_TOPIC
    assert image.topic("a")


def test_oldest_deleted_topic_ids_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_module, "DELETED_TOPIC_IDS_MAX", 3)
    image = ready()
    for number in range(10, 15):
        topic = create(image, "t", number, (1,)).topic()
        apply(image, image.applied_index + 1, DeleteTopic(topic_id=topic.topic_id))
    assert list(image.deleted_topic_ids) == [f"{number:032x}" for number in (12, 13, 14)]


def test_partitions_are_added_only_to_the_number_that_was_seen() -> None:
    image = ready()
    topic = image.topic("a")
    command = AddPartitions(
        topic_id=topic.topic_id, partition_count=3, assignments=((BrokerId(2),), (BrokerId(1),))
    )
    result = apply(image, 10, command)
    grown = result.topic()
    assert [row.partition for row in grown.partitions] == [0, 1, 2, 3, 4]
    assert grown.partitions[:3] == topic.partitions
    assert grown.partitions[0] is topic.partitions[0], "unchanged rows are shared"
    (change,) = result.delta.changed
    assert change.partitions == (3, 4)
    assert refusal_of(image, command) is ILLEGAL_STATE


def test_added_partitions_need_the_topics_replication_factor() -> None:
    image = ready()
    command = AddPartitions(
        topic_id=image.topic("a").topic_id,
        partition_count=3,
        assignments=((BrokerId(1), BrokerId(2)),),
    )
    assert refusal_of(image, command) is INVALID_PARTITIONS


def test_configs_are_set_and_removed_even_if_this_release_does_not_know_them() -> None:
    image = ready()
    topic_id = image.topic("a").topic_id
    values = {"from.the.future": "on", "flush": "async"}
    result = apply(image, 10, AlterTopicConfigs(topic_id=topic_id, values=values))
    assert result.topic().configs == values
    assert result.delta.changed[0].configs_changed
    assert result.delta.changed[0].partitions == ()
    remove = AlterTopicConfigs(topic_id=topic_id, values={}, removals=("flush", "absent"))
    assert apply(image, 11, remove).topic().configs == {"from.the.future": "on"}
    assert apply(image, 12, remove).delta is NO_CHANGE


def test_commands_for_unknown_topics_are_refused() -> None:
    image = ready()
    topic_id = TopicId("f" * 32)
    for command in (
        DeleteTopic(topic_id=topic_id),
        AddPartitions(topic_id=topic_id, partition_count=1, assignments=((BrokerId(1),),)),
        AlterTopicConfigs(topic_id=topic_id, values={}),
    ):
        assert refusal_of(image, command) is UNKNOWN_TOPIC


def test_producer_id_blocks_never_overlap() -> None:
    image = ready()
    epoch = image.brokers[BrokerId(1)].broker_epoch
    command = AllocateProducerIds(broker_id=BrokerId(1), broker_epoch=epoch)
    assert apply(image, 10, command).producer_ids() == ProducerIdBlock(ProducerId(0), 1_000)
    assert apply(image, 11, command).producer_ids() == ProducerIdBlock(ProducerId(1_000), 1_000)
    assert image.next_producer_id == 2_000


def test_producer_ids_are_refused_to_an_earlier_incarnation_and_a_stranger() -> None:
    image = ready()
    epoch = image.brokers[BrokerId(1)].broker_epoch
    register(image, incarnation="second")
    for broker_id, broker_epoch in ((1, epoch), (9, BrokerEpoch(1))):
        command = AllocateProducerIds(broker_id=BrokerId(broker_id), broker_epoch=broker_epoch)
        assert refusal_of(image, command) is ILLEGAL_STATE


def test_producer_ids_run_out_before_they_overflow() -> None:
    image = ready()
    image.next_producer_id = ProducerId(2**63 - 500)
    epoch = image.brokers[BrokerId(1)].broker_epoch
    command = AllocateProducerIds(broker_id=BrokerId(1), broker_epoch=epoch)
    assert refusal_of(image, command) is ILLEGAL_STATE


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
