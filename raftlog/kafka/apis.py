"""ApiVersions offers the APIs that the listener serves, with their versions.

`first` and `last` bound the versions that a client may send. Produce is *offered* from version 0
on, because older librdkafka searches for single old versions, and compresses nothing where they are
missing (KAFKA-18659).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import msgspec

from raftlog.kafka.call import Call
from raftlog.kafka.framing import answer_head, parse_head
from raftlog.kafka.handlers import (
    classic,
    cluster,
    configs,
    fetch,
    group_offsets,
    groups,
    metadata,
    offsets,
    produce,
    sasl,
    topics,
    transactions,
)
from raftlog.kafka.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from raftlog.record.types import Buffer
from raftlog.schema.codec import Codec, codec_of, slicer_of
from raftlog.schema.fields import Versions

PRODUCE: Final = 0
API_VERSIONS: Final = 18
UNSUPPORTED_VERSION: Final = 35
MESSAGES: Final[dict[str, type[msgspec.Struct]]] = {
    name: value
    for handlers in (
        *(classic, cluster, configs, fetch, group_offsets, groups, metadata, offsets, produce),
        *(sasl, topics, transactions),
    )
    for name, value in vars(
        import_module(handlers.__name__.replace("handlers", "messages"))
    ).items()
    if name.endswith(("Request", "Response"))
}
"""Requests and responses by name. Handlers and messages have modules of the same names."""

Handler = Callable[[Call, Any], Awaitable[msgspec.Struct | None]]
"""A handler of one API. It returns None for a request without a response."""


@dataclass(frozen=True, slots=True)
class Api:
    """One API."""

    key: int
    name: str
    handler: Handler
    first: int
    """The oldest version."""
    last: int
    """The newest version."""
    flexible: float
    """First version with tagged fields in the request's head, or infinity."""
    request_type: type[msgspec.Struct]
    response_type: type[msgspec.Struct]
    takes_records: bool = False
    """Whether a request may be as large as a Produce request."""
    is_held: bool = False
    """Whether its response may be delayed. Until then no later request of the connection begins."""
    ends_with_connection: bool = False
    """Whether the request is of no use without its client."""

    @property
    def offered(self) -> ApiVersion:
        """The entry in ApiVersions."""
        return ApiVersion(self.key, 0 if self.key == PRODUCE else self.first, self.last)

    def request_decoder(self, version: int) -> Callable[[Buffer, int, int], tuple[Any, int]]:
        """The function that decodes the request in a frame, after its head. See `Codec`.

        It also returns the request's end. Bytes after it are ignored, as in Kafka. librdkafka
        writes the count of no topics with four bytes in place of one (its issue 5049).
        """
        return codec_of(self.request_type, version).decode_prefix

    def response_codec(self, version: int) -> Codec[Any]:
        """The codec of responses."""
        return codec_of(self.response_type, version)

    def response_slicer(self, version: int) -> Callable[[Any], Iterator[bytes]]:
        """The encoder of large responses, in slices."""
        return slicer_of(self.response_type, version)

    def is_request_flexible(self, version: int) -> bool:
        """Whether the request's head has tagged fields."""
        return version >= self.flexible

    def is_answer_flexible(self, version: int) -> bool:
        """Whether the response's head has tagged fields. That of ApiVersions never has.

        Clients read ApiVersions before they know the node's versions.
        """
        return self.key != API_VERSIONS and version >= self.flexible


def _api(key: int, name: str, handler: Handler, last: int, **options: bool) -> Api:
    """An API with the messages of its name."""
    request_type = MESSAGES[f"{name}Request"]
    versions: Versions = request_type.VERSIONS  # type: ignore[attr-defined]
    return Api(
        key=key,
        name=name,
        handler=handler,
        first=versions.first,
        last=last,
        flexible=math.inf if versions.flexible is None else versions.flexible,
        request_type=request_type,
        response_type=MESSAGES[f"{name}Response"],
        **options,
    )


async def api_versions(_call: Call, _request: ApiVersionsRequest) -> ApiVersionsResponse:
    """18. Returns the APIs and versions of this listener."""
    return OFFERED


def unsupported_version(frame: Buffer) -> list[Buffer]:
    """The response to ApiVersions of an unknown version, in version 0 (KIP-511)."""
    head = parse_head(frame, is_flexible=False)
    answer = codec_of(ApiVersionsResponse, 0).encode(
        ApiVersionsResponse(UNSUPPORTED_VERSION, OFFERED.api_keys)
    )
    return [answer_head(head.correlation_id, len(answer), is_flexible=False), answer]


LOOKUP: Final = {"ends_with_connection": True}
"""Options of long reads, such as thousands of groups with a call each."""
HELD: Final = {"is_held": True, **LOOKUP}

APIS: Final = {
    api.key: api
    for api in (
        _api(PRODUCE, "Produce", produce.produce, 13, takes_records=True),
        _api(1, "Fetch", fetch.fetch, 18, **HELD),
        _api(2, "ListOffsets", offsets.list_offsets, 10, **LOOKUP),
        _api(3, "Metadata", metadata.metadata, 13),
        _api(8, "OffsetCommit", group_offsets.commit, 10),
        _api(9, "OffsetFetch", group_offsets.fetch, 10, **LOOKUP),
        _api(10, "FindCoordinator", groups.find_coordinator, 6),
        _api(11, "JoinGroup", classic.join, 9, **HELD),
        _api(12, "Heartbeat", classic.heartbeat, 4),
        _api(13, "LeaveGroup", classic.leave, 5),
        _api(14, "SyncGroup", classic.sync, 5, **HELD),
        _api(15, "DescribeGroups", groups.describe_groups, 6, **LOOKUP),
        _api(16, "ListGroups", groups.list_groups, 5),
        _api(17, "SaslHandshake", sasl.handshake, 1),
        _api(API_VERSIONS, "ApiVersions", api_versions, 4),
        _api(19, "CreateTopics", topics.create_topics, 7),
        _api(20, "DeleteTopics", topics.delete_topics, 6),
        _api(21, "DeleteRecords", offsets.delete_records, 2),
        _api(22, "InitProducerId", transactions.init_producer_id, 5),
        _api(23, "OffsetForLeaderEpoch", offsets.offset_for_leader_epoch, 4),
        # From version 4 on it is for brokers only, and raftlog's brokers have a separate channel.
        # Both wait for the markers of the previous transaction. An abort must not overtake them,
        # because it would end a transaction that has not begun.
        _api(24, "AddPartitionsToTxn", transactions.add_partitions, 3, is_held=True),
        _api(25, "AddOffsetsToTxn", transactions.add_offsets, 4, is_held=True),
        _api(26, "EndTxn", transactions.end, 5),
        _api(27, "WriteTxnMarkers", transactions.write_markers, 2),
        _api(28, "TxnOffsetCommit", transactions.commit_offsets, 5),
        _api(32, "DescribeConfigs", configs.describe_configs, 4),
        _api(33, "AlterConfigs", configs.alter_configs, 2),
        _api(35, "DescribeLogDirs", cluster.describe_log_dirs, 5),
        _api(36, "SaslAuthenticate", sasl.authenticate, 2),
        _api(37, "CreatePartitions", topics.create_partitions, 3),
        _api(42, "DeleteGroups", groups.delete_groups, 2),
        _api(43, "ElectLeaders", cluster.elect_leaders, 2),
        _api(44, "IncrementalAlterConfigs", configs.incremental_alter_configs, 1),
        _api(45, "AlterPartitionReassignments", cluster.alter_partition_reassignments, 1),
        _api(46, "ListPartitionReassignments", cluster.list_partition_reassignments, 0),
        _api(47, "OffsetDelete", group_offsets.delete, 0),
        _api(55, "DescribeQuorum", cluster.describe_quorum, 2),
        _api(60, "DescribeCluster", cluster.describe_cluster, 2),
        _api(61, "DescribeProducers", transactions.describe_producers, 0),
        _api(65, "DescribeTransactions", transactions.describe, 0, **LOOKUP),
        _api(66, "ListTransactions", transactions.list_, 2),
        _api(68, "ConsumerGroupHeartbeat", groups.heartbeat, 1),
        _api(69, "ConsumerGroupDescribe", groups.describe_consumer_groups, 1, **LOOKUP),
        _api(74, "ListConfigResources", configs.list_config_resources, 1),
        _api(75, "DescribeTopicPartitions", topics.describe_topic_partitions, 0),
    )
}
"""APIs by key."""

FEATURES: Final = {"group.version": 1, "transaction.version": 2}
"""Feature levels (KIP-584) for groups of KIP-848, and transactions that EndTxn 5 ends (KIP-890)."""

OFFERED: Final = ApiVersionsResponse(
    api_keys=tuple(api.offered for api in APIS.values()),
    supported_features=tuple(
        SupportedFeatureKey(name, 0, level) for name, level in FEATURES.items()
    ),
    finalized_features_epoch=0,
    finalized_features=tuple(
        FinalizedFeatureKey(name, level, level) for name, level in FEATURES.items()
    ),
)
