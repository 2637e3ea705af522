"""The JSON of the v3 convention: objects with `kind` and `metadata`, lists with `data`.

As in the Confluent REST Proxy's API v3, as far as raftlog has the same thing: links point only to
routes of this server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

from raftlog.api.v3 import (
    Broker,
    BrokerConfig,
    Cluster,
    ClusterConfig,
    Link,
    Listing,
    ListMetadata,
    Metadata,
    Partition,
    PartitionReassignment,
    PartitionWithOffsets,
    Replica,
    Synonym,
    Topic,
    TopicConfig,
)
from raftlog.http.request import Request, ServerContext
from raftlog.metadata.configs import ConfigDescription, ConfigSource
from raftlog.metadata.image import BrokerImage, PartitionImage, TopicImage, is_internal_topic

T = TypeVar("T")

_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")

_SOURCES = {
    ConfigSource.TOPIC: "DYNAMIC_TOPIC_CONFIG",
    ConfigSource.CLUSTER: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    ConfigSource.NODE: "STATIC_BROKER_CONFIG",
    ConfigSource.DEFAULT: "DEFAULT_CONFIG",
}


_BROKER_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cleanup.policy": "log.cleanup.policy",
        "delete.retention.ms": "log.cleaner.delete.retention.ms",
        "index.interval.bytes": "log.index.interval.bytes",
        "max.message.bytes": "message.max.bytes",
        "message.timestamp.type": "log.message.timestamp.type",
        "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
        "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
        "retention.bytes": "log.retention.bytes",
        "retention.ms": "log.retention.ms",
        "segment.bytes": "log.segment.bytes",
        "segment.ms": "log.roll.ms",
    }
)
"""Kafka's names of topic configs where they are set for brokers; the others have one name."""


class Shaper:
    """Makes the objects for one request, with links under the host that the peer used."""

    def __init__(self, request: Request, context: ServerContext) -> None:
        self.cluster_id = context.broker.cluster_id
        host = request.headers.get("Host", "")
        if _HOST.fullmatch(host) is None:
            # A malformed header must not come back in links.
            host = f"{context.settings.host}:{context.settings.port}"
        self._root = f"http://{host}/v3/clusters"
        self._base = f"{self._root}/{self.cluster_id}"
        self._crn = f"crn:///kafka={self.cluster_id}"

    def listing(self, kind: str, path: str, data: Sequence[T]) -> Listing[T]:
        """A list of objects found at `path` of the cluster."""
        return Listing(f"Kafka{kind}List", ListMetadata(self._base + path), list(data))

    def cluster_listing(self, controller: int | None) -> Listing[Cluster]:
        """The list of clusters: this one."""
        data = [self.cluster(controller)]
        return Listing("KafkaClusterList", ListMetadata(self._root), data)

    def cluster(self, controller: int | None) -> Cluster:
        """This cluster."""
        return Cluster(
            kind="KafkaCluster",
            metadata=Metadata(self._base, self._crn),
            cluster_id=self.cluster_id,
            controller=None if controller is None else self._link(f"/brokers/{controller}"),
            brokers=self._link("/brokers"),
            broker_configs=self._link("/broker-configs"),
            topics=self._link("/topics"),
            partition_reassignments=self._link("/topics/-/partitions/-/reassignment"),
        )

    def broker(self, broker: BrokerImage) -> Broker:
        """A broker."""
        path = f"/brokers/{broker.broker_id}"
        return Broker(
            kind="KafkaBroker",
            metadata=self._metadata(path, f"/broker={broker.broker_id}"),
            cluster_id=self.cluster_id,
            broker_id=broker.broker_id,
            host=broker.host,
            port=broker.port,
            rack=broker.rack,
            configs=self._link(f"{path}/configs"),
            partition_replicas=self._link(f"{path}/partition-replicas"),
        )

    def topic(self, topic: TopicImage) -> Topic:
        """A topic."""
        path = f"/topics/{topic.name}"
        return Topic(
            kind="KafkaTopic",
            metadata=self._metadata(path, f"/topic={topic.name}"),
            cluster_id=self.cluster_id,
            topic_name=topic.name,
            topic_id=topic.topic_id,
            is_internal=is_internal_topic(topic.name),
            replication_factor=topic.replication_factor,
            partitions_count=len(topic.partitions),
            partitions=self._link(f"{path}/partitions"),
            configs=self._link(f"{path}/configs"),
            partition_reassignments=self._link(f"{path}/partitions/-/reassignment"),
        )

    def config(self, topic: TopicImage, config: ConfigDescription) -> TopicConfig:
        """One config of a topic."""
        name = config.entry.name
        return TopicConfig(
            kind="KafkaTopicConfig",
            metadata=self._metadata(
                f"/topics/{topic.name}/configs/{name}", f"/topic={topic.name}/config={name}"
            ),
            cluster_id=self.cluster_id,
            topic_name=topic.name,
            name=name,
            value=config.value,
            is_default=config.is_default,
            is_read_only=False,
            is_sensitive=False,
            source=_SOURCES[config.source],
            synonyms=_synonyms(config),
        )

    def cluster_config(self, config: ConfigDescription) -> ClusterConfig:
        """One config of all brokers."""
        name = config.entry.name
        return ClusterConfig(
            kind="KafkaClusterConfig",
            metadata=self._metadata(f"/broker-configs/{name}", f"/broker-config={name}"),
            cluster_id=self.cluster_id,
            config_type="BROKER",
            name=name,
            value=config.value,
            is_default=config.is_default,
            is_read_only=False,
            is_sensitive=False,
            source=_SOURCES[config.source],
            synonyms=_synonyms(config),
        )

    def broker_config(self, broker_id: int, config: ConfigDescription) -> BrokerConfig:
        """One config of all brokers, as in force on one; set for all of them, so read-only here."""
        name = config.entry.name
        return BrokerConfig(
            kind="KafkaBrokerConfig",
            metadata=self._metadata(
                f"/brokers/{broker_id}/configs/{name}", f"/broker={broker_id}/config={name}"
            ),
            cluster_id=self.cluster_id,
            broker_id=broker_id,
            name=name,
            value=config.value,
            is_default=config.is_default,
            is_read_only=True,
            is_sensitive=False,
            source=_SOURCES[config.source],
            synonyms=_synonyms(config),
        )

    def partition(self, topic: TopicImage, row: PartitionImage) -> Partition:
        """A partition of a topic."""
        path = f"/topics/{topic.name}/partitions/{row.partition}"
        return Partition(
            kind="KafkaPartition",
            metadata=self._metadata(path, f"/topic={topic.name}/partition={row.partition}"),
            cluster_id=self.cluster_id,
            topic_name=topic.name,
            partition_id=row.partition,
            leader=None if row.leader < 0 else self._link(f"{path}/replicas/{row.leader}"),
            replicas=self._link(f"{path}/replicas"),
            reassignment=self._link(f"{path}/reassignment"),
        )

    def partition_with_offsets(
        self, topic: TopicImage, row: PartitionImage, earliest: int, latest: int
    ) -> PartitionWithOffsets:
        """The readable offsets of a partition."""
        path = f"/topics/{topic.name}/partitions/{row.partition}/offset"
        return PartitionWithOffsets(
            kind="KafkaPartitionWithOffsets",
            metadata=self._metadata(path, f"/topic={topic.name}/partition={row.partition}/offset"),
            cluster_id=self.cluster_id,
            topic_name=topic.name,
            partition_id=row.partition,
            earliest_offset=earliest,
            latest_offset=latest,
        )

    def reassignment(self, topic: TopicImage, row: PartitionImage) -> PartitionReassignment:
        """A partition that moves."""
        path = f"/topics/{topic.name}/partitions/{row.partition}"
        return PartitionReassignment(
            kind="KafkaReassignment",
            metadata=self._metadata(
                f"{path}/reassignment",
                f"/topic={topic.name}/partition={row.partition}/reassignment",
            ),
            cluster_id=self.cluster_id,
            topic_name=topic.name,
            partition_id=row.partition,
            adding_replicas=list(row.adding),
            removing_replicas=list(row.removing),
            replicas=self._link(f"{path}/replicas"),
        )

    def replica(self, topic: TopicImage, row: PartitionImage, broker_id: int) -> Replica:
        """One replica of a partition."""
        return Replica(
            kind="KafkaReplica",
            metadata=self._metadata(
                f"/topics/{topic.name}/partitions/{row.partition}/replicas/{broker_id}",
                f"/topic={topic.name}/partition={row.partition}/replica={broker_id}",
            ),
            cluster_id=self.cluster_id,
            topic_name=topic.name,
            partition_id=row.partition,
            broker_id=broker_id,
            is_leader=row.leader == broker_id,
            is_in_sync=broker_id in row.isr,
            broker=self._link(f"/brokers/{broker_id}"),
        )

    def _metadata(self, path: str, resource: str) -> Metadata:
        return Metadata(self._base + path, self._crn + resource)

    def _link(self, path: str) -> Link:
        return Link(self._base + path)


def _synonyms(config: ConfigDescription) -> list[Synonym]:
    name = config.entry.name
    return [
        Synonym(
            name if source is ConfigSource.TOPIC else _BROKER_NAMES.get(name, name),
            value,
            _SOURCES[source],
        )
        for source, value in config.synonyms
    ]
