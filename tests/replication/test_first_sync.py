"""The replicas that readiness waits for after a start."""

from __future__ import annotations

import pytest

from raftlog.metadata.delta import MetadataDelta, topic_change
from raftlog.metadata.image import NO_LEADER_ID, MetadataImage
from raftlog.record.types import BrokerId
from raftlog.replication.first_sync import FirstSync
from tests.metadata.strategies import create, register, set_row

ME = BrokerId(1)
OTHERS = (BrokerId(2), BrokerId(3))
ALL = (ME, *OTHERS)


def lagging() -> MetadataImage:
    """This node is out of sync in t-0 and t-1, in sync in t-2, and has no replica of the other."""
    image = MetadataImage()
    for broker_id in ALL:
        register(image, broker_id)
    create(image, "t", 7, ALL, ALL, ALL)
    create(image, "other", 8, OTHERS)
    for number in (0, 1):
        set_row(image, "t", number, isr=OTHERS, leader=2)
    return image


def begun(image: MetadataImage) -> FirstSync:
    first = FirstSync(lambda: image, ME)
    first.begin()
    return first


def change(image: MetadataImage, first: FirstSync, number: int, **values: object) -> None:
    before = image.topic("t")
    set_row(image, "t", number, **values)
    first.applied(MetadataDelta(changed=(topic_change(before, image.topic("t")),)))


def test_each_replica_out_of_sync_is_waited_for_until_it_has_been_in_sync_once() -> None:
    image = lagging()
    first = begun(image)
    assert first.waiting() == ["t-0", "t-1"]
    change(image, first, 0, isr=ALL)
    assert first.waiting() == ["t-1"]
    change(image, first, 0, isr=OTHERS)
    assert first.waiting() == ["t-1"]
    change(image, first, 1, isr=ALL)
    assert first.waiting() == []
    change(image, first, 1, isr=OTHERS)
    assert first.waiting() == []


def test_replica_that_has_left_or_is_being_added_is_not_waited_for() -> None:
    image = lagging()
    set_row(image, "t", 1, adding=(ME,))
    first = begun(image)
    assert first.waiting() == ["t-0"]
    change(image, first, 0, replicas=OTHERS)
    assert first.waiting() == []


def test_deleted_topic_is_not_waited_for() -> None:
    image = lagging()
    first = begun(image)
    topic = image.topic("t")
    del image.topics_by_id[topic.topic_id], image.topics_by_name["t"]
    first.applied(MetadataDelta(deleted=(topic,)))
    assert first.waiting() == []


def test_partition_without_a_leader_is_logged_and_not_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    image = lagging()
    set_row(image, "t", 1, isr=(), elr=(), leader=NO_LEADER_ID)
    first = begun(image)
    assert first.waiting() == ["t-0"]
    assert not caplog.messages
    change(image, first, 0, isr=ALL)
    assert first.waiting() == []
    assert "1 replica out of sync whose partitions have no leader: t-1" in caplog.text
    # Once the node was ready, it stays so.
    change(image, first, 1, isr=OTHERS, leader=2)
    assert first.waiting() == []


def test_nothing_is_waited_for_before_the_node_serves() -> None:
    image = lagging()
    assert FirstSync(lambda: image, ME).waiting() == []
