"""What a topic's configs mean on this node: the settings of its logs and its in-sync rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raftlog.metadata.configs import TopicConfig, validate_all
from raftlog.metadata.image import TopicImage
from raftlog.storage.types import FlushMode, LogConfig

PARTITIONS_DEFAULT = 1
_NONE: Mapping[str, str] = {}


class TopicSettings:
    """The defaults for topics on this node, and what follows from a topic's own configs.

    What is set for the whole cluster goes before what is set for the node.
    """

    def __init__(
        self,
        defaults: Mapping[str, str] | None = None,
        partitions: int = PARTITIONS_DEFAULT,
        *,
        cluster: Callable[[], Mapping[str, str]] = lambda: _NONE,
    ) -> None:
        """`defaults` are topic configs set for the node; `cluster` gives those set for the cluster
        at the moment. Raises LogError(INVALID_CONFIG)."""
        self.defaults: Mapping[str, str] = validate_all(defaults or {})
        self.partitions_default = partitions
        self._cluster = cluster

    def topic_config(self, topic: TopicImage) -> TopicConfig:
        """All configs in force for the topic. Raises LogError(INVALID_CONFIG)."""
        return TopicConfig.from_configs(
            topic.configs,
            self.defaults,
            replication_factor=topic.replication_factor,
            cluster=self._cluster(),
        )

    def min_insync_replicas(self, topic: TopicImage) -> int:
        """Replicas that `acks=all` needs."""
        return self.topic_config(topic).min_insync_replicas

    def log_config(self, topic: TopicImage) -> LogConfig:
        """Settings of the topic's logs. Raises LogError(INVALID_CONFIG)."""
        config = self.topic_config(topic)
        return LogConfig(
            segment_bytes=config.segment_bytes,
            segment_ms=config.segment_ms,
            index_interval_bytes=config.index_interval_bytes,
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
            cleanup_policy=config.cleanup_policy,
            delete_retention_ms=config.delete_retention_ms,
            min_compaction_lag_ms=config.min_compaction_lag_ms,
            min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
            max_message_bytes=config.max_message_bytes,
            flush=FlushMode(config.flush),
            log_append_time=config.message_timestamp_type == "LogAppendTime",
        )
