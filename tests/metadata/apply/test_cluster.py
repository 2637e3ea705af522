""""""

from __future__ import annotations

from typing import TypeAlias

import pytest
from msgspec.structs import replace

from raftlog.metadata.apply import cluster as apply_cluster
from raftlog.metadata.apply.apply import apply
from raftlog.metadata.apply.cluster import ProducerIdBlock
from raftlog.metadata.commands import (
    AllocateProducerIds,
    AlterBroker,
    AlterClusterSettings,
    ClusterCreated,
    Command,
    DeleteTopic,
    FenceBroker,
    RegisterBroker,
    ReplaceDirectory,
    SetControlledShutdown,
    UnfenceBroker,
    UnregisterBroker,
)
from raftlog.metadata.delta import NO_CHANGE, MetadataDelta
from raftlog.metadata.image import MetadataImage
from raftlog.record.errors import (
    ILLEGAL_STATE,
    INVALID_CONFIG,
)
from raftlog.record.types import BrokerEpoch, BrokerId, ProducerId
from tests.metadata.strategies import (
    carry_out,
    create,
    fence,
    ready,
    refusal_of,
    register,
    unfence,
)


def test_cluster_id_is_given_once() -> None:
    image = MetadataImage()
    first = ClusterCreated(cluster_id="one", created_ms=5)
    assert apply(image, 1, first).value == "one"
    assert apply(image, 2, first).value == "one"
    other = ClusterCreated(cluster_id="two", created_ms=6)
    assert refusal_of(image, other) is ILLEGAL_STATE
    assert (image.cluster_id, image.created_ms) == ("one", 5)


def test_settings_are_set_and_removed_even_if_this_release_does_not_know_them() -> None:
    image = MetadataImage()
    values = {"from.the.future": "on", "flush": "async"}
    result = carry_out(image, AlterClusterSettings(values=values))
    assert result.cluster_settings() == image.cluster_settings == values
    assert result.delta == MetadataDelta(cluster_settings=("flush", "from.the.future"))
    remove = AlterClusterSettings(values={}, removals=("flush", "absent"))
    assert carry_out(image, remove).cluster_settings() == {"from.the.future": "on"}
    assert carry_out(image, remove).delta is NO_CHANGE
    assert result.cluster_settings() == values, "what was read before does not change"


def test_number_of_settings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_cluster, "CLUSTER_SETTINGS_MAX", 2)
    image = MetadataImage()
    carry_out(image, AlterClusterSettings(values={"a": "1", "b": "2"}))
    assert refusal_of(image, AlterClusterSettings(values={"c": "3"})) is INVALID_CONFIG
    carry_out(image, AlterClusterSettings(values={"c": "3"}, removals=("a",)))
    assert image.cluster_settings == {"b": "2", "c": "3"}


AnyBrokerCommand: TypeAlias = FenceBroker | UnfenceBroker | SetControlledShutdown | UnregisterBroker


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


def test_registration_names_the_kafka_listener_of_this_start() -> None:
    image = MetadataImage()
    assert register(image, kafka=("k", 9092)).broker().kafka_host == "k"
    moved = register(image, incarnation="second", kafka=("k", 9093)).broker()
    assert (moved.kafka_host, moved.kafka_port) == ("k", 9093)
    without = register(image, incarnation="third").broker()
    assert (without.kafka_host, without.kafka_port) == (None, None)


def test_repeat_may_add_the_kafka_address_and_moves_no_epoch() -> None:
    image = MetadataImage()
    register(image)
    create(image, "t", 1, (1,))
    before, row = image.brokers[BrokerId(1)], image.partition("t", 0)
    result = register(image, kafka=("k", 9092), fenced=True)
    after = replace(before, kafka_host="k", kafka_port=9092)
    assert result.broker() == image.brokers[BrokerId(1)] == after
    assert result.delta.brokers == (1,)
    assert image.partition("t", 0) == row
    # A late copy of the command without the address.
    assert register(image, fenced=True).broker() == after


def test_address_in_a_registration_of_an_older_version_does_not_count() -> None:
    """Nodes of an older release ignore it there: all images must agree."""
    image = MetadataImage()
    for number, (version, host, port) in enumerate(((1, "k", 1), (4, "k", None), (4, None, 1)), 1):
        broker = carry_out(
            image,
            RegisterBroker(
                v=version,
                broker_id=BrokerId(number),
                directory_id="d",
                incarnation="i",
                host="h",
                port=1,
                software_version="0",
                kafka_host=host,
                kafka_port=port,
            ),
        ).broker()
        assert (broker.kafka_host, broker.kafka_port) == (None, None)


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
    assert "`raftlog serve --replace 1 --join …`" in result.refusal.message


def test_directory_of_a_stopped_broker_is_replaced_with_its_replicas_in_place() -> None:
    image = ready()
    create(image, "t", 7, (1, 2))
    before = image.partition("t", 0)
    epoch = image.brokers[BrokerId(1)].broker_epoch
    command = ReplaceDirectory(broker_id=BrokerId(1), broker_epoch=epoch, directory_id="new")
    assert refusal_of(image, command) is ILLEGAL_STATE
    fence(image, 1)
    result = carry_out(image, command)
    assert result.delta == MetadataDelta(brokers=(BrokerId(1),))
    assert image.brokers[BrokerId(1)] == replace(result.broker(), directory_id="new", fenced=True)
    assert image.partition("t", 0) == before
    # The lost directory is refused from now on, should it come back; the new one registers.
    assert register(image, incarnation="old", directory_id="d").refusal is not None
    assert register(image, incarnation="new", directory_id="new").broker().broker_epoch > epoch
    assert refusal_of(image, command) is ILLEGAL_STATE


def test_number_of_brokers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_cluster, "BROKERS_MAX", 2)
    image = ready()
    assert register(image, 3).refusal is not None
    assert register(image, 2, incarnation="second").refusal is None


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


def command_for(kind: type[AnyBrokerCommand], image: MetadataImage, broker_id: int) -> Command:
    broker = image.brokers[BrokerId(broker_id)]
    return kind(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)


def test_started_broker_is_fenced_until_the_controller_says_otherwise() -> None:
    image = MetadataImage()
    assert register(image, fenced=True).broker().fenced
    result = carry_out(image, command_for(UnfenceBroker, image, 1))
    assert not result.broker().fenced
    assert result.broker() is image.brokers[BrokerId(1)]
    assert result.delta == MetadataDelta(brokers=(BrokerId(1),))
    again = register(image, fenced=True)
    assert not again.broker().fenced, "a repeat of the same start changes nothing"
    assert register(image, incarnation="second", fenced=True).broker().fenced


def test_fencing_touches_the_broker_only() -> None:
    image = ready()
    topics = dict(image.topics_by_id)
    result = carry_out(image, command_for(FenceBroker, image, 1))
    assert image.brokers[BrokerId(1)].fenced
    assert image.topics_by_id == topics
    assert result.delta == MetadataDelta(brokers=(BrokerId(1),))


def test_controlled_shutdown_lasts_until_the_next_start() -> None:
    image = ready()
    carry_out(image, command_for(SetControlledShutdown, image, 1))
    assert image.brokers[BrokerId(1)].controlled_shutdown
    fence(image, 1)
    unfence(image, 1)
    assert not image.brokers[BrokerId(1)].is_available
    register(image, incarnation="second")
    assert image.brokers[BrokerId(1)].is_available


@pytest.mark.parametrize("kind", [FenceBroker, UnfenceBroker, SetControlledShutdown])
def test_repeats_change_nothing_and_earlier_incarnations_are_refused(
    kind: type[AnyBrokerCommand],
) -> None:
    image = ready()
    command = command_for(kind, image, 1)
    carry_out(image, command)
    assert carry_out(image, command).delta is NO_CHANGE
    register(image, incarnation="second", fenced=True)
    before = image.brokers[BrokerId(1)]
    assert refusal_of(image, command) is ILLEGAL_STATE
    assert image.brokers[BrokerId(1)] is before
    stranger = kind(broker_id=BrokerId(9), broker_epoch=BrokerEpoch(1))
    assert refusal_of(image, stranger) is ILLEGAL_STATE


def test_broker_is_unregistered_only_without_life_and_replicas() -> None:
    image = ready()
    register(image, 3, directory_id="old")
    assert refusal_of(image, command_for(UnregisterBroker, image, 3)) is ILLEGAL_STATE
    fence(image, 1)
    fence(image, 3)
    assert refusal_of(image, command_for(UnregisterBroker, image, 1)) is ILLEGAL_STATE
    command = command_for(UnregisterBroker, image, 3)
    result = carry_out(image, command)
    assert result.broker().broker_id == 3
    assert result.delta == MetadataDelta(brokers_gone=(BrokerId(3),))
    assert sorted(image.brokers) == [1, 2]
    assert refusal_of(image, command) is ILLEGAL_STATE
    # Its id is free for a node with another disk, in a fresh epoch.
    epoch = register(image, 3, directory_id="new").broker().broker_epoch
    assert epoch > result.broker().broker_epoch
    assert refusal_of(image, command) is ILLEGAL_STATE


@pytest.mark.parametrize(
    ("topics", "words"),
    [
        ({"a": (1,)}, "replicas of 1 partition of 1 topic (a). Decommission it first"),
        ({"b": (1, 2, 1), "a": (1,), "c": (2,)}, "replicas of 3 partitions of 2 topics (a, b)."),
        (
            {f"t{number}": (1, 1) for number in range(7)},
            "replicas of 14 partitions of 7 topics (t0, t1, t2, t3, t4, …).",
        ),
    ],
)
def test_refusal_counts_what_a_broker_still_holds(
    topics: dict[str, tuple[int, ...]], words: str
) -> None:
    image = MetadataImage()
    for number in (1, 2):
        register(image, number)
    for number, (name, holders) in enumerate(topics.items()):
        create(image, name, number, *((holder,) for holder in holders)).check()
    fence(image, 1)
    command = command_for(UnregisterBroker, image, 1)
    refusal = apply(image, image.applied_index + 1, command).refusal
    assert refusal is not None
    assert words in refusal.message
    assert "only be deleted (`raftlog topic delete`)" in refusal.message


def test_requests_about_a_broker_outlast_its_starts_but_not_its_registration() -> None:
    image = ready()
    command = AlterBroker(broker_id=BrokerId(2), maintenance=True, decommissioning=True)
    result = carry_out(image, command)
    assert result.broker() is image.brokers[BrokerId(2)]
    assert result.delta == MetadataDelta(brokers=(BrokerId(2),))
    assert carry_out(image, command).delta is NO_CHANGE
    register(image, 2, incarnation="second")
    carry_out(image, AlterBroker(broker_id=BrokerId(2), maintenance=False))
    broker = image.brokers[BrokerId(2)]
    assert (broker.maintenance, broker.decommissioning) == (False, True)
    carry_out(image, DeleteTopic(topic_id=image.topic("a").topic_id))
    fence(image, 2)
    carry_out(image, command_for(UnregisterBroker, image, 2))
    register(image, 2)
    assert not image.brokers[BrokerId(2)].decommissioning
    unknown = AlterBroker(broker_id=BrokerId(9), maintenance=True)
    assert refusal_of(image, unknown) is ILLEGAL_STATE
