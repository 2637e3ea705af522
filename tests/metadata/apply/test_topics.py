from __future__ import annotations

import pytest

from raftlog.metadata.apply import topics as apply_topics
from raftlog.metadata.apply.apply import apply
from raftlog.metadata.commands import (
    AddPartitions,
    AlterTopicConfigs,
    DeleteTopic,
)
from raftlog.metadata.delta import NO_CHANGE
from raftlog.metadata.state_machine import check_invariants
from raftlog.record.errors import (
    ILLEGAL_STATE,
    INVALID_PARTITIONS,
    INVALID_TOPIC,
    NO_LEADER,
    TOPIC_EXISTS,
    UNKNOWN_TOPIC,
    ErrorEntry,
)
from raftlog.record.types import BrokerId, TopicId
from tests.metadata.strategies import (
    alter_broker,
    create,
    fence,
    ready,
    refusal_of,
    register,
    shut_down,
    unfence,
)


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


def test_broker_in_maintenance_leads_a_new_topic_only_without_another_choice() -> None:
    image = ready()
    alter_broker(image, 2, maintenance=True)
    rows = create(image, "b", 2, (2, 1), (1, 2)).topic().partitions
    assert [(row.leader, row.isr) for row in rows] == [(1, (2, 1)), (1, (1, 2))]
    (row,) = create(image, "c", 3, (2,)).topic().partitions
    assert (row.leader, row.isr) == (2, (2,))


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
    monkeypatch.setattr(apply_topics, "DELETED_TOPIC_IDS_MAX", 3)
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


def test_unavailable_replicas_neither_lead_nor_count_as_in_sync() -> None:
    image = ready()
    register(image, 3)
    fence(image, 1)
    shut_down(image, 2)
    topic = create(image, "b", 2, (1, 2, 3), (3, 1, 2)).topic()
    assert [(row.replicas, row.leader, row.isr, row.elr) for row in topic.partitions] == [
        ((1, 2, 3), 3, (3,), ()),
        ((3, 1, 2), 3, (3,), ()),
    ]


def test_topic_without_an_eligible_leader_is_refused_for_now() -> None:
    image = ready()
    fence(image, 1)
    result = create(image, "b", 2, (2,), (1,))
    assert result.refusal is not None and result.refusal.entry is NO_LEADER
    assert result.refusal.entry.retriable
    more = AddPartitions(
        topic_id=image.topic("a").topic_id, partition_count=3, assignments=((BrokerId(1),),)
    )
    assert refusal_of(image, more) is NO_LEADER
    unfence(image, 1)
    assert create(image, "b", 2, (2,), (1,)).refusal is None
