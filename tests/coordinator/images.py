"""Metadata images with topics, for the coordinators' tests."""

from __future__ import annotations

from raftlog.metadata.image import NO_EPOCH, MetadataImage, PartitionImage, TopicImage
from raftlog.record.types import BrokerId, LeaderEpoch, PartitionEpoch, PartitionId, TopicId

LEADER = BrokerId(1)


def image_of(**partition_counts: int) -> MetadataImage:
    """An image with these topics, each with the id `id_of(NAME)`."""
    image = MetadataImage()
    for name, count in partition_counts.items():
        put_topic(image, name, count)
    return image


def put_topic(
    image: MetadataImage, name: str, count: int, topic_id: TopicId | None = None
) -> TopicId:
    """Create the topic, or give it another number of partitions."""
    topic_id = topic_id or id_of(name)
    rows = tuple(
        PartitionImage(
            PartitionId(partition),
            (LEADER,),
            (LEADER,),
            (),
            LEADER,
            LeaderEpoch(0),
            PartitionEpoch(0),
            unclean_epoch=NO_EPOCH,
        )
        for partition in range(count)
    )
    topic = TopicImage(topic_id, name, {}, rows)
    image.topics_by_name[name] = image.topics_by_id[topic_id] = topic
    image.applied_index += 1
    return topic_id


def remove_topic(image: MetadataImage, name: str) -> None:
    topic = image.topics_by_name.pop(name)
    del image.topics_by_id[topic.topic_id]
    image.applied_index += 1


def id_of(name: str) -> TopicId:
    return TopicId(name.encode().hex().zfill(32))
