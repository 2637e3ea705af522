"""The JSON of the v3 convention: objects with `kind` and `metadata`, lists with `data`.

As in the Confluent REST Proxy's API v3, as far as raftlog has the same thing: links point only to
routes of this server.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from raftlog.api.v3 import (
    Broker,
    BrokerConfig,
    Cluster,
    Link,
    Listing,
    ListMetadata,
    Metadata,
    Partition,
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
            topics=self._link("/topics"),
        )

    def broker(self, broker: BrokerImage) -> Broker:
        """A broker."""
        return Broker(
            kind="KafkaBroker",
            metadata=self._metadata(f"/brokers/{broker.broker_id}", f"/broker={broker.broker_id}"),
            cluster_id=self.cluster_id,
            broker_id=broker.broker_id,
            host=broker.host,
            port=broker.port,
            rack=broker.rack,
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
        )

    def config(self, topic: TopicImage, config: ConfigDescription) -> TopicConfig:
        """One config of a topic."""
        name, source = config.entry.name, _SOURCES[config.source]
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
            source=source,
            synonyms=[Synonym(name, config.value, source)],
        )

    def broker_config(self, config: ConfigDescription) -> BrokerConfig:
        """One config of all brokers."""
        name, source = config.entry.name, _SOURCES[config.source]
        return BrokerConfig(
            kind="KafkaClusterConfig",
            metadata=self._metadata(f"/broker-configs/{name}", f"/broker-config={name}"),
            cluster_id=self.cluster_id,
            config_type="BROKER",
            name=name,
            value=config.value,
            is_default=config.is_default,
            is_read_only=False,
            is_sensitive=False,
            source=source,
            synonyms=[Synonym(name, config.value, source)],
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
