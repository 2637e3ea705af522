"""The APIs that the listener serves, with their versions: what ApiVersions offers.

`first` and `last` bound what a client may send. Produce is *offered* from version 0 on: older
librdkafka looks for single old versions, and compresses nothing where they are missing
(KAFKA-18659).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from raftlog.kafka.call import Call
from raftlog.kafka.framing import answer_head, parse_head
from raftlog.kafka.handlers import (
    classic,
    fetch,
    group_offsets,
    groups,
    metadata,
    offsets,
    produce,
)
from raftlog.kafka.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from raftlog.kafka.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from raftlog.kafka.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from raftlog.kafka.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from raftlog.kafka.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from raftlog.kafka.messages.fetch import FetchRequest, FetchResponse
from raftlog.kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from raftlog.kafka.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from raftlog.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from raftlog.kafka.messages.join_group import JoinGroupRequest, JoinGroupResponse
from raftlog.kafka.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from raftlog.kafka.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from raftlog.kafka.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from raftlog.kafka.messages.metadata import MetadataRequest, MetadataResponse
from raftlog.kafka.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from raftlog.kafka.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from raftlog.kafka.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from raftlog.kafka.messages.produce import ProduceRequest, ProduceResponse
from raftlog.kafka.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from raftlog.record.types import Buffer
from raftlog.schema.codec import Codec, codec_of
from raftlog.schema.fields import Versions

PRODUCE: Final = 0
API_VERSIONS: Final = 18
UNSUPPORTED_VERSION: Final = 35

Handler = Callable[[Call, Any], Awaitable[msgspec.Struct | None]]


@dataclass(frozen=True, slots=True)
class Api:
    """One API."""

    key: int
    name: str
    request_type: type[msgspec.Struct]
    response_type: type[msgspec.Struct]
    handler: Handler
    """None: the request has no answer."""
    last: int
    """The newest version."""
    takes_records: bool = False
    """Whether a request may be as large as a Produce request."""
    is_held: bool = False
    """Whether its answer may be held back: no later request of the connection begins before."""
    ends_with_connection: bool = False
    """Whether the request is of no use without its client."""

    @property
    def first(self) -> int:
        """The oldest version."""
        return self._versions.first

    @property
    def offered(self) -> ApiVersion:
        """The line of ApiVersions."""
        return ApiVersion(self.key, 0 if self.key == PRODUCE else self.first, self.last)

    @property
    def _versions(self) -> Versions:
        versions: Versions = self.request_type.VERSIONS  # type: ignore[attr-defined]
        return versions

    def request_codec(self, version: int) -> Codec[Any]:
        """Of requests."""
        return codec_of(self.request_type, version)

    def response_codec(self, version: int) -> Codec[Any]:
        """Of answers."""
        return codec_of(self.response_type, version)

    def is_request_flexible(self, version: int) -> bool:
        """Whether the request's head has tagged fields."""
        return self._versions.is_flexible(version)

    def is_answer_flexible(self, version: int) -> bool:
        """The same of the answer's head: never of ApiVersions, which is read before all else."""
        return self.key != API_VERSIONS and self._versions.is_flexible(version)


async def api_versions(_call: Call, _request: ApiVersionsRequest) -> ApiVersionsResponse:
    """18: what this listener serves."""
    return OFFERED


def unsupported_version(frame: Buffer) -> list[Buffer]:
    """The answer to ApiVersions of a version unknown here: version 0 (KIP-511)."""
    head = parse_head(frame, is_flexible=False)
    answer = codec_of(ApiVersionsResponse, 0).encode(
        ApiVersionsResponse(UNSUPPORTED_VERSION, OFFERED.api_keys)
    )
    return [answer_head(head.correlation_id, len(answer), is_flexible=False), answer]


APIS: Final = {
    api.key: api
    for api in (
        Api(
            PRODUCE,
            "Produce",
            ProduceRequest,
            ProduceResponse,
            produce.produce,
            13,
            takes_records=True,
        ),
        Api(
            1,
            "Fetch",
            FetchRequest,
            FetchResponse,
            fetch.fetch,
            18,
            is_held=True,
            ends_with_connection=True,
        ),
        Api(2, "ListOffsets", ListOffsetsRequest, ListOffsetsResponse, offsets.list_offsets, 10),
        Api(3, "Metadata", MetadataRequest, MetadataResponse, metadata.metadata, 13),
        Api(8, "OffsetCommit", OffsetCommitRequest, OffsetCommitResponse, group_offsets.commit, 10),
        Api(9, "OffsetFetch", OffsetFetchRequest, OffsetFetchResponse, group_offsets.fetch, 10),
        Api(
            10,
            "FindCoordinator",
            FindCoordinatorRequest,
            FindCoordinatorResponse,
            groups.find_coordinator,
            6,
        ),
        Api(
            11,
            "JoinGroup",
            JoinGroupRequest,
            JoinGroupResponse,
            classic.join,
            9,
            is_held=True,
            ends_with_connection=True,
        ),
        Api(12, "Heartbeat", HeartbeatRequest, HeartbeatResponse, classic.heartbeat, 4),
        Api(13, "LeaveGroup", LeaveGroupRequest, LeaveGroupResponse, classic.leave, 5),
        Api(
            14,
            "SyncGroup",
            SyncGroupRequest,
            SyncGroupResponse,
            classic.sync,
            5,
            is_held=True,
            ends_with_connection=True,
        ),
        Api(
            15,
            "DescribeGroups",
            DescribeGroupsRequest,
            DescribeGroupsResponse,
            groups.describe_groups,
            6,
        ),
        Api(16, "ListGroups", ListGroupsRequest, ListGroupsResponse, groups.list_groups, 5),
        Api(API_VERSIONS, "ApiVersions", ApiVersionsRequest, ApiVersionsResponse, api_versions, 4),
        Api(
            22,
            "InitProducerId",
            InitProducerIdRequest,
            InitProducerIdResponse,
            produce.init_producer_id,
            5,
        ),
        Api(42, "DeleteGroups", DeleteGroupsRequest, DeleteGroupsResponse, groups.delete_groups, 2),
        Api(47, "OffsetDelete", OffsetDeleteRequest, OffsetDeleteResponse, group_offsets.delete, 0),
        Api(
            68,
            "ConsumerGroupHeartbeat",
            ConsumerGroupHeartbeatRequest,
            ConsumerGroupHeartbeatResponse,
            groups.heartbeat,
            1,
        ),
        Api(
            69,
            "ConsumerGroupDescribe",
            ConsumerGroupDescribeRequest,
            ConsumerGroupDescribeResponse,
            groups.describe_consumer_groups,
            1,
        ),
    )
}
"""By key."""

OFFERED: Final = ApiVersionsResponse(api_keys=tuple(api.offered for api in APIS.values()))
