"""The v3 convention's JSON has objects with `kind` and `metadata`, lists with `data`.

The shapes are those of the Confluent REST Proxy's API v3, as far as raftlog has the same operation.
Links point only to routes of this server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote

import msgspec

from raftlog.api import v3 as api
from raftlog.broker.groups import MemberDescription
from raftlog.http.request import Request, ServerContext, own_url
from raftlog.metadata.configs.topic import ConfigDescription, ConfigSource
from raftlog.metadata.image import BrokerImage, PartitionImage, TopicImage
from raftlog.record.coordinators import INTERNAL_TOPICS

T = TypeVar("T")

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
        "file.delete.delay.ms": "log.segment.delete.delay.ms",
        "flush.messages": "log.flush.interval.messages",
        "flush.ms": "log.flush.interval.ms",
        "index.interval.bytes": "log.index.interval.bytes",
        "local.retention.bytes": "log.local.retention.bytes",
        "local.retention.ms": "log.local.retention.ms",
        "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
        "max.message.bytes": "message.max.bytes",
        "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
        "message.timestamp.type": "log.message.timestamp.type",
        "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
        "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
        "preallocate": "log.preallocate",
        "retention.bytes": "log.retention.bytes",
        "retention.ms": "log.retention.ms",
        "segment.bytes": "log.segment.bytes",
        "segment.index.bytes": "log.index.size.max.bytes",
        "segment.jitter.ms": "log.roll.jitter.ms",
        "segment.ms": "log.roll.ms",
    }
)
"""Kafka's broker names of topic configs. Configs that are not listed have one name."""


class GroupLag(NamedTuple):
    """The lag of a group in one partition."""

    topic: str
    partition: int
    committed_offset: int
    end_offset: int
    member: MemberDescription | None
    """The member that has the partition."""

    @property
    def lag(self) -> int:
        """Records committed and not yet consumed, or 0 if the commit is beyond the end."""
        return max(self.end_offset - self.committed_offset, 0)


def group_path(group_id: str) -> str:
    """The path of a group in its cluster. Its id may have any characters."""
    return f"/consumer-groups/{quote(group_id, safe='')}"


def consumer_path(group_id: str, member_id: str) -> str:
    """The path of a group's member."""
    return f"{group_path(group_id)}/consumers/{quote(member_id, safe='')}"


class Shaper:
    """Makes the objects for one request, with links under the host that the peer used."""

    def __init__(self, request: Request, context: ServerContext) -> None:
        self.cluster_id = context.broker.cluster_id
        self._root = f"{own_url(request, context)}/v3/clusters"
        self._base = f"{self._root}/{self.cluster_id}"
        self._crn = f"crn:///kafka={self.cluster_id}"

    def listing(self, kind: str, path: str, data: Sequence[T]) -> api.Listing[T]:
        """A list of objects found at `path` of the cluster."""
        return api.Listing(f"Kafka{kind}List", api.ListMetadata(self._base + path), list(data))

    def cluster_listing(self, controller: int | None) -> api.Listing[api.Cluster]:
        """The list of clusters, which has only this cluster."""
        data = [self.cluster(controller)]
        return api.Listing("KafkaClusterList", api.ListMetadata(self._root), data)

    def cluster(self, controller: int | None) -> api.Cluster:
        """This cluster."""
        return api.Cluster(
            *self._common("Cluster", ""),
            controller=None if controller is None else self._link(f"/brokers/{controller}"),
            brokers=self._link("/brokers"),
            broker_configs=self._link("/broker-configs"),
            topics=self._link("/topics"),
            consumer_groups=self._link("/consumer-groups"),
            partition_reassignments=self._link("/topics/-/partitions/-/reassignment"),
        )

    def broker(self, broker: BrokerImage) -> api.Broker:
        """A broker."""
        path = f"/brokers/{broker.broker_id}"
        return api.Broker(
            *self._common("Broker", path),
            broker_id=broker.broker_id,
            host=broker.host,
            port=broker.port,
            rack=broker.rack,
            configs=self._link(f"{path}/configs"),
            partition_replicas=self._link(f"{path}/partition-replicas"),
        )

    def topic(self, topic: TopicImage) -> api.Topic:
        """A topic."""
        path = f"/topics/{topic.name}"
        return api.Topic(
            *self._common("Topic", path),
            topic_name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.name in INTERNAL_TOPICS,
            replication_factor=topic.replication_factor,
            partitions_count=len(topic.partitions),
            partitions=self._link(f"{path}/partitions"),
            configs=self._link(f"{path}/configs"),
            partition_reassignments=self._link(f"{path}/partitions/-/reassignment"),
        )

    def config(self, topic: TopicImage, config: ConfigDescription) -> api.TopicConfig:
        """One config of a topic."""
        path = f"/topics/{topic.name}/configs/{config.entry.name}"
        return api.TopicConfig(
            *self._common("TopicConfig", path),
            topic_name=topic.name,
            name=config.entry.name,
            value=config.value,
            is_default=config.is_default,
            is_read_only=False,
            is_sensitive=False,
            source=_SOURCES[config.source],
            synonyms=_synonyms(config),
            note=config.entry.note or msgspec.UNSET,
        )

    def cluster_config(self, config: ConfigDescription) -> api.ClusterConfig:
        """One config of all brokers."""
        return api.ClusterConfig(
            *self._common("ClusterConfig", f"/broker-configs/{config.entry.name}"),
            config_type="BROKER",
            name=config.entry.name,
            value=config.value,
            is_default=config.is_default,
            is_read_only=False,
            is_sensitive=False,
            source=_SOURCES[config.source],
            synonyms=_synonyms(config),
        )

    def broker_config(self, broker_id: int, config: ConfigDescription) -> api.BrokerConfig:
        """A config of all brokers as in force on one broker.

        It is set for all brokers, so it is read-only here.
        """
        return api.BrokerConfig(
            *self._common("BrokerConfig", f"/brokers/{broker_id}/configs/{config.entry.name}"),
            broker_id=broker_id,
            name=config.entry.name,
            value=config.value,
            is_default=config.is_default,
            is_read_only=True,
            is_sensitive=False,
            source=_SOURCES[config.source],
            synonyms=_synonyms(config),
        )

    def partition(self, topic: TopicImage, row: PartitionImage) -> api.Partition:
        """A partition of a topic."""
        path = f"/topics/{topic.name}/partitions/{row.partition}"
        return api.Partition(
            *self._common("Partition", path),
            topic_name=topic.name,
            partition_id=row.partition,
            leader=None if row.leader < 0 else self._link(f"{path}/replicas/{row.leader}"),
            replicas=self._link(f"{path}/replicas"),
            reassignment=self._link(f"{path}/reassignment"),
        )

    def partition_with_offsets(
        self, topic: TopicImage, row: PartitionImage, earliest: int, latest: int
    ) -> api.PartitionWithOffsets:
        """The readable offsets of a partition."""
        path = f"/topics/{topic.name}/partitions/{row.partition}/offset"
        return api.PartitionWithOffsets(
            *self._common("PartitionWithOffsets", path),
            topic_name=topic.name,
            partition_id=row.partition,
            earliest_offset=earliest,
            latest_offset=latest,
        )

    def reassignment(self, topic: TopicImage, row: PartitionImage) -> api.PartitionReassignment:
        """A partition that moves."""
        path = f"/topics/{topic.name}/partitions/{row.partition}"
        return api.PartitionReassignment(
            *self._common("Reassignment", f"{path}/reassignment"),
            topic_name=topic.name,
            partition_id=row.partition,
            adding_replicas=list(row.adding),
            removing_replicas=list(row.removing),
            replicas=self._link(f"{path}/replicas"),
        )

    def replica(self, topic: TopicImage, row: PartitionImage, broker_id: int) -> api.Replica:
        """One replica of a partition."""
        return api.Replica(
            *self._common(
                "Replica", f"/topics/{topic.name}/partitions/{row.partition}/replicas/{broker_id}"
            ),
            topic_name=topic.name,
            partition_id=row.partition,
            broker_id=broker_id,
            is_leader=row.leader == broker_id,
            is_in_sync=broker_id in row.isr,
            broker=self._link(f"/brokers/{broker_id}"),
        )

    def group(
        self, group_id: str, kind: str, state: str, assignor: str, coordinator: int | None
    ) -> api.ConsumerGroup:
        """A consumer group."""
        path = group_path(group_id)
        return api.ConsumerGroup(
            *self._common("ConsumerGroup", path),
            consumer_group_id=group_id,
            is_simple=kind == "offsets",
            partition_assignor=assignor,
            state=state.upper(),
            type="CONSUMER" if kind == "consumer" else "CLASSIC",
            is_mixed_consumer_group=False,
            coordinator=None if coordinator is None else self._link(f"/brokers/{coordinator}"),
            consumers=self._link(f"{path}/consumers"),
            lag_summary=self._link(f"{path}/lag-summary"),
        )

    def consumer(self, group_id: str, member: MemberDescription) -> api.Consumer:
        """A member of a group."""
        member_id = member.member_id
        path = consumer_path(group_id, member_id)
        return api.Consumer(
            *self._common("Consumer", path),
            consumer_group_id=group_id,
            consumer_id=member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            assignments=self._link(f"{path}/assignments"),
        )

    def assignment(
        self, group_id: str, member_id: str, topic: str, number: int
    ) -> api.ConsumerAssignment:
        """A partition of a member."""
        partition = f"/{topic}/partitions/{number}"
        return api.ConsumerAssignment(
            *self._common(
                "ConsumerAssignment", f"{consumer_path(group_id, member_id)}/assignments{partition}"
            ),
            consumer_group_id=group_id,
            consumer_id=member_id,
            topic_name=topic,
            partition_id=number,
            partition=self._link(f"/topics{partition}"),
            lag=self._link(f"{group_path(group_id)}/lags{partition}"),
        )

    def lag(self, group_id: str, lag: GroupLag) -> api.ConsumerLag:
        """The lag of a group in one partition."""
        path = f"{group_path(group_id)}/lags/{lag.topic}/partitions/{lag.partition}"
        return api.ConsumerLag(
            *self._common("ConsumerLag", path),
            consumer_group_id=group_id,
            topic_name=lag.topic,
            partition_id=lag.partition,
            current_offset=lag.committed_offset,
            log_end_offset=lag.end_offset,
            lag=lag.lag,
            consumer_id="" if lag.member is None else lag.member.member_id,
            instance_id=None if lag.member is None else lag.member.instance_id,
            client_id="" if lag.member is None else lag.member.client_id,
        )

    def lag_summary(self, group_id: str, lags: Sequence[GroupLag]) -> api.ConsumerGroupLagSummary:
        """The largest lag of a group with lags, and the sum of all."""
        path = group_path(group_id)
        largest = max(lags, key=lambda lag: lag.lag)
        member = largest.member
        return api.ConsumerGroupLagSummary(
            *self._common("ConsumerGroupLagSummary", f"{path}/lag-summary"),
            consumer_group_id=group_id,
            max_lag_consumer_id="" if member is None else member.member_id,
            max_lag_instance_id=None if member is None else member.instance_id,
            max_lag_client_id="" if member is None else member.client_id,
            max_lag_topic_name=largest.topic,
            max_lag_partition_id=largest.partition,
            max_lag=largest.lag,
            total_lag=sum(lag.lag for lag in lags),
            max_lag_consumer=None
            if member is None
            else self._link(consumer_path(group_id, member.member_id)),
            max_lag_partition=self._link(f"/topics/{largest.topic}/partitions/{largest.partition}"),
        )

    def _common(self, kind: str, path: str) -> tuple[str, api.Metadata, str]:
        """The fields of every object, for the object at `path` of the cluster.

        Its name has the path's parts: `/topics/a/partitions/0/offset` is
        `/topic=a/partition=0/offset`.
        """
        parts = path.split("/")[1:]
        resource = "".join(
            f"/{kinds}" if name is None else f"/{kinds.removesuffix('s')}={unquote(name)}"
            for kinds, name in zip_longest(parts[::2], parts[1::2])
        )
        metadata = api.Metadata(self._base + path, self._crn + resource)
        return f"Kafka{kind}", metadata, self.cluster_id

    def _link(self, path: str) -> api.Link:
        return api.Link(self._base + path)


def _synonyms(config: ConfigDescription) -> list[api.Synonym]:
    name = config.entry.name
    return [
        api.Synonym(
            name if source is ConfigSource.TOPIC else _BROKER_NAMES.get(name, name),
            value,
            _SOURCES[source],
        )
        for source, value in config.synonyms
    ]
