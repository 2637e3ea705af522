"""The difference made by a command, so that listeners need not examine the whole image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from raftlog.metadata.image import MetadataImage, TopicImage
from raftlog.record.types import BrokerId, PartitionId


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A topic that exists before and after. `partitions` are the different or new partitions."""

    before: TopicImage
    after: TopicImage
    partitions: tuple[PartitionId, ...]

    @property
    def configs_changed(self) -> bool:
        """Whether the configs set on the topic differ."""
        return self.before.configs != self.after.configs


@dataclass(frozen=True, slots=True)
class MetadataDelta:
    """The difference between two images.

    `brokers` are new or differ, and `brokers_gone` were unregistered. `cluster_settings` names the
    settings that were set, changed or removed.
    """

    created: tuple[TopicImage, ...] = ()
    deleted: tuple[TopicImage, ...] = ()
    changed: tuple[TopicChange, ...] = ()
    brokers: tuple[BrokerId, ...] = ()
    brokers_gone: tuple[BrokerId, ...] = ()
    cluster_settings: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(
            self.created
            or self.deleted
            or self.changed
            or self.brokers
            or self.brokers_gone
            or self.cluster_settings
        )


NO_CHANGE = MetadataDelta()


def topic_change(before: TopicImage, after: TopicImage) -> TopicChange:
    """The difference between two states of one topic."""
    assert before.topic_id == after.topic_id
    known = len(before.partitions)
    partitions = tuple(
        row.partition
        for position, row in enumerate(after.partitions)
        if position >= known
        or (row is not before.partitions[position] and row != before.partitions[position])
    )
    return TopicChange(before, after, partitions)


def settings_changed(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the different settings, in order."""
    return tuple(name for name in sorted({*before, *after}) if before.get(name) != after.get(name))


def share_rows(before: MetadataImage, after: MetadataImage) -> None:
    """Replace equal rows of `after` by the very rows of `before`.

    Two images of one cluster are then hardly larger than one, and finding the difference and
    freeing the old image takes time in proportion to the change.
    """
    for topic_id, topic in list(after.topics_by_id.items()):
        old = before.topics_by_id.get(topic_id)
        if old is None:
            continue
        rows = tuple(
            known if row == known else row
            for row, known in zip(topic.partitions, old.partitions, strict=False)
        )
        # There may be more partitions now.
        shared = replace(topic, partitions=rows + topic.partitions[len(rows) :])
        if (
            len(old.partitions) == len(shared.partitions)
            and all(
                row is known for row, known in zip(shared.partitions, old.partitions, strict=True)
            )
            and (old.name, old.configs) == (topic.name, topic.configs)
        ):
            shared = old
        after.topics_by_id[topic_id] = shared
        after.topics_by_name[topic.name] = shared


def difference(before: MetadataImage, after: MetadataImage) -> MetadataDelta:
    """The difference between two images, when a snapshot replaces the whole image."""
    created: list[TopicImage] = []
    changed: list[TopicChange] = []
    for topic_id, topic in after.topics_by_id.items():
        old = before.topics_by_id.get(topic_id)
        if old is None:
            created.append(topic)
        elif old is not topic:
            change = topic_change(old, topic)
            # Along one log a topic never loses partitions, or its name. Two images can differ so.
            same = (old.name, len(old.partitions)) == (topic.name, len(topic.partitions))
            if change.partitions or change.configs_changed or not same:
                changed.append(change)
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
        brokers_gone=tuple(
            broker_id for broker_id in before.brokers if broker_id not in after.brokers
        ),
        cluster_settings=settings_changed(before.cluster_settings, after.cluster_settings),
    )
