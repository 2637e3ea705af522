"""What a topic's configs mean on this node: the settings of its logs and its in-sync rule."""

from __future__ import annotations

from collections.abc import Mapping

from raftlog.metadata.configs import TopicConfig, validate_all
from raftlog.metadata.image import TopicImage
from raftlog.storage.config import FlushMode, LogConfig

PARTITIONS_DEFAULT = 1


class TopicSettings:
    """The node's defaults for topics, and the settings that follow from a topic's own configs."""

    def __init__(
        self, defaults: Mapping[str, str] | None = None, partitions: int = PARTITIONS_DEFAULT
    ) -> None:
        """`defaults` are topic configs set for the node. Raises LogError(INVALID_CONFIG)."""
        self.defaults: Mapping[str, str] = validate_all(defaults or {})
        self.partitions_default = partitions

    def topic_config(self, topic: TopicImage) -> TopicConfig:
        """All configs in force for the topic. Raises LogError(INVALID_CONFIG)."""
        return TopicConfig.from_configs(
            topic.configs, self.defaults, replication_factor=topic.replication_factor
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
