"""Commands about the cluster as a whole, applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raftlog.metadata.apply_topics import put_topic, without_elr
from raftlog.metadata.commands import AlterClusterSettings, ClusterCreated
from raftlog.metadata.configs import MIN_ISR
from raftlog.metadata.delta import NO_CHANGE, MetadataDelta, TopicChange, settings_changed
from raftlog.metadata.image import MetadataImage
from raftlog.metadata.refusals import RefusedError
from raftlog.record.errors import ILLEGAL_STATE, INVALID_CONFIG

CLUSTER_SETTINGS_MAX: Final = 500
"""Settings of a cluster. Part of command version 1: it decides results."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """All settings of the cluster, after the command."""

    values: Mapping[str, str]


def create_cluster(image: MetadataImage, command: ClusterCreated) -> str:
    """The first id given is the cluster's for good."""
    if image.cluster_id is None:
        image.cluster_id = command.cluster_id
        image.created_ms = command.created_ms
    elif image.cluster_id != command.cluster_id:
        raise RefusedError(ILLEGAL_STATE, f"This is cluster {image.cluster_id} already.")
    return image.cluster_id


def alter_cluster_settings(
    image: MetadataImage, command: AlterClusterSettings
) -> tuple[ClusterSettings, MetadataDelta]:
    """Names and values are not looked at, but for min.insync.replicas: see `without_elr`."""
    before = image.cluster_settings
    after = {
        name: value
        for name, value in {**before, **command.values}.items()
        if name not in command.removals
    }
    if len(after) > CLUSTER_SETTINGS_MAX:
        raise RefusedError(
            INVALID_CONFIG, f"A cluster has at most {CLUSTER_SETTINGS_MAX} settings."
        )
    if after == before:
        return ClusterSettings(before), NO_CHANGE
    image.cluster_settings = after
    changes = []
    if after.get(MIN_ISR) != before.get(MIN_ISR):
        for topic in list(image.topics_by_id.values()):
            if MIN_ISR in topic.configs:
                continue
            changed, numbers = without_elr(topic)
            if numbers:
                put_topic(image, changed)
                changes.append(TopicChange(topic, changed, numbers))
    names = settings_changed(before, after)
    return ClusterSettings(after), MetadataDelta(changed=tuple(changes), cluster_settings=names)
