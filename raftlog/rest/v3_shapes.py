"""The JSON of the v3 convention: objects with `kind` and `metadata`, lists with `data`.

As in the Confluent REST Proxy's API v3, as far as raftlog has the same thing: links point only to
routes of this server.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Generic, Literal, TypeVar

import msgspec

from raftlog.http.request import Request, ServerContext
from raftlog.metadata.configs import ConfigDescription, ConfigSource
from raftlog.metadata.image import BrokerImage, PartitionImage, TopicImage

T = TypeVar("T")

_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")

_SOURCES = {
    ConfigSource.TOPIC: "DYNAMIC_TOPIC_CONFIG",
    ConfigSource.CLUSTER: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    ConfigSource.NODE: "STATIC_BROKER_CONFIG",
    ConfigSource.DEFAULT: "DEFAULT_CONFIG",
}


class Metadata(msgspec.Struct, frozen=True):
    """Where an object is found, and its name."""

    self_: str = msgspec.field(name="self")
    resource_name: str


class ListMetadata(msgspec.Struct, frozen=True):
    """Where a list is found. Lists come whole: there never is a next page."""

    self_: str = msgspec.field(name="self")
    next: None = None


class Link(msgspec.Struct, frozen=True):
    """Where a related object or list is found."""

    related: str


class Listing(msgspec.Struct, Generic[T], frozen=True):
    """A list of objects of one kind."""

    kind: str
    metadata: ListMetadata
    data: list[T]


class Cluster(msgspec.Struct, frozen=True):
    """The cluster that this node belongs to."""

    kind: str
    metadata: Metadata
    cluster_id: str
    controller: Link | None
    brokers: Link
    topics: Link


class Broker(msgspec.Struct, frozen=True):
    """A node of the cluster."""

    kind: str
    metadata: Metadata
    cluster_id: str
    broker_id: int
    host: str | None
    port: int | None
    rack: str | None


class Topic(msgspec.Struct, frozen=True):
    """A topic."""

    kind: str
    metadata: Metadata
    cluster_id: str
    topic_name: str
    topic_id: str
    is_internal: bool
    replication_factor: int
    partitions_count: int
    partitions: Link
    configs: Link
    authorized_operations: list[str] = []


class Synonym(msgspec.Struct, frozen=True):
    """A place where a config's value may come from, and the value there."""

    name: str
    value: str
    source: str


class TopicConfig(msgspec.Struct, frozen=True):
    """One config of a topic: the value in force, and where it comes from."""

    kind: str
    metadata: Metadata
    cluster_id: str
    topic_name: str
    name: str
    value: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    source: str
    synonyms: list[Synonym]


class Partition(msgspec.Struct, frozen=True):
    """A partition of a topic."""

    kind: str
    metadata: Metadata
    cluster_id: str
    topic_name: str
    partition_id: int
    leader: Link | None
    replicas: Link


class Replica(msgspec.Struct, frozen=True):
    """One replica of a partition."""

    kind: str
    metadata: Metadata
    cluster_id: str
    topic_name: str
    partition_id: int
    broker_id: int
    is_leader: bool
    is_in_sync: bool
    broker: Link


class ConfigValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A config to set when a topic is created."""

    name: str
    value: str


class NewTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic to create."""

    topic_name: str
    partitions_count: int | None = None
    replication_factor: int | None = None
    configs: list[ConfigValue] = []
    validate_only: bool = False


class TopicChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic to grow: `partitions_count` is the number it shall have in all."""

    partitions_count: int


class NewConfigValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value to give to the config that the path names."""

    value: str


class ConfigChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One config to set, or to return to its default."""

    name: str
    value: str | None = None
    operation: Literal["SET", "DELETE"] = "SET"


class ConfigChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Configs to change at once: all of them, or none."""

    data: list[ConfigChange]
    validate_only: bool = False


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
            is_internal=topic.name.startswith("__"),
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
