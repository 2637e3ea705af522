"""What a command changed, so that those who act on metadata need not look at all of it again."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.metadata.image import MetadataImage, TopicImage
from raftlog.record.types import BrokerId, PartitionId


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A topic that exists before and after. `partitions` are those that differ or are new."""

    before: TopicImage
    after: TopicImage
    partitions: tuple[PartitionId, ...]

    @property
    def configs_changed(self) -> bool:
        """Whether the configs set on the topic differ."""
        return self.before.configs != self.after.configs


@dataclass(frozen=True, slots=True)
class MetadataDelta:
    """The difference between two images. Brokers are named if they are new or differ."""

    created: tuple[TopicImage, ...] = ()
    deleted: tuple[TopicImage, ...] = ()
    changed: tuple[TopicChange, ...] = ()
    brokers: tuple[BrokerId, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.created or self.deleted or self.changed or self.brokers)


NO_CHANGE = MetadataDelta()


def topic_change(before: TopicImage, after: TopicImage) -> TopicChange:
    """What differs between two states of one topic."""
    assert before.topic_id == after.topic_id
    known = len(before.partitions)
    partitions = tuple(
        row.partition
        for position, row in enumerate(after.partitions)
        if position >= known or row != before.partitions[position]
    )
    return TopicChange(before, after, partitions)


def difference(before: MetadataImage, after: MetadataImage) -> MetadataDelta:
    """What differs between two images; for a whole image that is replaced by a snapshot."""
    created: list[TopicImage] = []
    changed: list[TopicChange] = []
    for topic_id, topic in after.topics_by_id.items():
        old = before.topics_by_id.get(topic_id)
        if old is None:
            created.append(topic)
        elif old is not topic and old != topic:
            changed.append(topic_change(old, topic))
    return MetadataDelta(
        created=tuple(created),
        deleted=tuple(
            topic
            for topic_id, topic in before.topics_by_id.items()
            if topic_id not in after.topics_by_id
        ),
        changed=tuple(changed),
        brokers=tuple(
            broker_id
            for broker_id, broker in after.brokers.items()
            if broker != before.brokers.get(broker_id)
        ),
    )
