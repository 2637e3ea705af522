"""Shapes of the v3 admin convention, as in the Confluent REST Proxy's API v3.

Objects have `kind` and `metadata`, lists have `data`. Only objects that raftlog has are shaped, and
links are given only to served paths.
"""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

import msgspec

T = TypeVar("T")


class Metadata(msgspec.Struct, frozen=True):
    """Location and name of an object."""

    self_: str = msgspec.field(name="self")
    resource_name: str


class ListMetadata(msgspec.Struct, frozen=True):
    """Location of a list. Lists are complete, so there is never a next page."""

    self_: str = msgspec.field(name="self")
    next: None = None


class Link(msgspec.Struct, frozen=True):
    """Location of a related object or list."""

    related: str


class Listing(msgspec.Struct, Generic[T], frozen=True):
    """A list of objects of one kind."""

    kind: str
    metadata: ListMetadata
    data: list[T]


class Resource(msgspec.Struct, frozen=True):
    """The fields of every object of a cluster."""

    kind: str
    metadata: Metadata
    cluster_id: str


class Cluster(Resource, frozen=True):
    """This node's cluster."""

    controller: Link | None
    brokers: Link
    broker_configs: Link
    topics: Link
    consumer_groups: Link
    partition_reassignments: Link


class Broker(Resource, frozen=True):
    """A node of the cluster."""

    broker_id: int
    host: str | None
    port: int | None
    rack: str | None
    configs: Link
    partition_replicas: Link


class Topic(Resource, frozen=True):
    """A topic."""

    topic_name: str
    topic_id: str
    is_internal: bool
    replication_factor: int
    partitions_count: int
    partitions: Link
    configs: Link
    partition_reassignments: Link
    authorized_operations: list[str] = []


class Synonym(msgspec.Struct, frozen=True):
    """A place that may set a config, and its value there."""

    name: str
    value: str
    source: str


class TopicConfig(Resource, frozen=True):
    """One config of a topic, with its effective value and origin."""

    topic_name: str
    name: str
    value: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    source: str
    synonyms: list[Synonym]
    note: str | msgspec.UnsetType = msgspec.UNSET
    """Present for a Kafka config that has no effect here."""


class ClusterConfig(Resource, frozen=True):
    """One config of all brokers, with its effective value and source."""

    config_type: Literal["BROKER"]
    name: str
    value: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    source: str
    synonyms: list[Synonym]


class BrokerConfig(Resource, frozen=True):
    """One config of all brokers, as effective on one broker."""

    broker_id: int
    name: str
    value: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    source: str
    synonyms: list[Synonym]


class Partition(Resource, frozen=True):
    """A partition of a topic."""

    topic_name: str
    partition_id: int
    leader: Link | None
    replicas: Link
    reassignment: Link


class PartitionWithOffsets(Resource, frozen=True):
    """The readable offsets of a partition."""

    topic_name: str
    partition_id: int
    earliest_offset: int
    """First offset that can be read."""
    latest_offset: int
    """Offset after the last record that can be read."""


class PartitionReassignment(Resource, frozen=True):
    """A partition that moves to other brokers."""

    topic_name: str
    partition_id: int
    adding_replicas: list[int]
    removing_replicas: list[int]
    replicas: Link


class Replica(Resource, frozen=True):
    """One replica of a partition."""

    topic_name: str
    partition_id: int
    broker_id: int
    is_leader: bool
    is_in_sync: bool
    broker: Link


class ConsumerGroup(Resource, frozen=True):
    """A consumer group."""

    consumer_group_id: str
    is_simple: bool
    """Whether the group has committed offsets and never had a member."""
    partition_assignor: str
    state: str
    """EMPTY, STABLE or RECONCILING."""
    type: str
    """CONSUMER (KIP-848) or CLASSIC."""
    is_mixed_consumer_group: bool
    """Always false. All members of a group use the same protocol."""
    coordinator: Link | None
    consumers: Link
    lag_summary: Link


class Consumer(Resource, frozen=True):
    """A member of a consumer group."""

    consumer_group_id: str
    consumer_id: str
    instance_id: str | None
    client_id: str
    assignments: Link


class ConsumerAssignment(Resource, frozen=True):
    """A partition of a member."""

    consumer_group_id: str
    consumer_id: str
    topic_name: str
    partition_id: int
    partition: Link
    lag: Link


class ConsumerLag(Resource, frozen=True):
    """The lag of a group in one partition."""

    consumer_group_id: str
    topic_name: str
    partition_id: int
    current_offset: int
    """The committed offset."""
    log_end_offset: int
    lag: int
    consumer_id: str
    """Id of the member that has the partition, or empty."""
    instance_id: str | None
    client_id: str


class ConsumerGroupLagSummary(Resource, frozen=True):
    """The largest lag of a group, and the sum of all its lags."""

    consumer_group_id: str
    max_lag_consumer_id: str
    max_lag_instance_id: str | None
    max_lag_client_id: str
    max_lag_topic_name: str
    max_lag_partition_id: int
    max_lag: int
    total_lag: int
    max_lag_consumer: Link | None
    """Member with the largest lag, or null if no member has the partition."""
    max_lag_partition: Link


class ConfigValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A config to set when a topic is created."""

    name: str
    value: str


class NewTopic(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A topic to create."""

    topic_name: str
    partitions_count: int | None = None
    replication_factor: int | None = None
    configs: list[ConfigValue] = []
    validate_only: bool = False
    replicas_assignments: dict[int, tuple[int, ...]] = {}
    """Brokers of each partition, the preferred leader first, instead of both counts."""


class TopicChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic to grow. `partitions_count` is the new total."""

    partitions_count: int


class NewConfigValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The new value of the config in the path."""

    value: str


class ConfigChange(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A config to set or reset."""

    name: str
    value: str | None = None
    operation: Literal["SET", "DELETE"] = "SET"


class ConfigChanges(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Configs to change together. All change or none."""

    data: list[ConfigChange]
    validate_only: bool = False
