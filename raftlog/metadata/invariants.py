"""What is true of every image, whatever commands made it."""

from __future__ import annotations

from raftlog.metadata.image import NO_LEADER_ID, MetadataImage, PartitionImage, TopicImage
from raftlog.metadata.names import topic_name_fault


def check_invariants(image: MetadataImage) -> None:
    """Raise AssertionError if the image contradicts itself."""
    assert image.applied_index >= 0
    assert image.next_producer_id >= 0
    assert len(image.topics_by_id) == len(image.topics_by_name)
    for broker_id, broker in image.brokers.items():
        assert broker_id == broker.broker_id
        assert 1 <= broker.broker_epoch <= image.applied_index
    for topic_id, topic in image.topics_by_id.items():
        assert topic_id == topic.topic_id
        assert image.topics_by_name.get(topic.name) is topic
        assert topic_id not in image.deleted_topic_ids
        _check_topic(image, topic)


def _check_topic(image: MetadataImage, topic: TopicImage) -> None:
    assert topic_name_fault(topic.name) is None
    assert topic.partitions, f"{topic.name} has no partition"
    for position, row in enumerate(topic.partitions):
        assert row.partition == position
        _check_partition(image, row)


def _check_partition(image: MetadataImage, row: PartitionImage) -> None:
    replicas = row.replicas
    assert replicas, f"partition without replicas: {row}"
    assert all(broker_id in image.brokers for broker_id in replicas), f"unknown broker: {row}"
    if row.isr != replicas or len(replicas) > 1:
        known = set(replicas)
        in_sync = set(row.isr)
        eligible = set(row.elr)
        assert len(known) == len(replicas), f"replica twice: {row}"
        assert len(in_sync) == len(row.isr) and in_sync <= known, f"isr beyond replicas: {row}"
        assert len(eligible) == len(row.elr) and eligible <= known, f"elr beyond replicas: {row}"
        assert not in_sync & eligible, f"both in isr and elr: {row}"
    assert row.leader == NO_LEADER_ID or row.leader in row.isr, f"leader out of sync: {row}"
    # Every new leader epoch is a change of the partition, too.
    assert 0 <= row.leader_epoch <= row.partition_epoch, f"epochs: {row}"
