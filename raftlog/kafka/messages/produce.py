"""Messages of Produce.

scripts/generate_kafka_messages.py wrote this module. Do not edit it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int16, Int32, Int64, OptionalUuid, Records, Versions


class PartitionProduceData(msgspec.Struct, frozen=True, gc=False):
    index: Int32 = 0
    records: Records | None = b""


class TopicProduceData(msgspec.Struct, frozen=True, gc=False):
    name: Annotated[str, Field(until=12, is_ignorable=True)] = ""
    topic_id: Annotated[OptionalUuid, Field(since=13, is_ignorable=True)] = None
    partition_data: tuple[PartitionProduceData, ...] = ()


class ProduceRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(3, 13, flexible=9)
    transactional_id: str | None = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: tuple[TopicProduceData, ...] = ()


class BatchIndexAndErrorMessage(msgspec.Struct, frozen=True, gc=False):
    batch_index: Annotated[Int32, Field(since=8)] = 0
    batch_index_error_message: Annotated[str | None, Field(since=8)] = None


class LeaderIdAndEpoch(msgspec.Struct, frozen=True, gc=False):
    leader_id: Annotated[Int32, Field(since=10)] = -1
    leader_epoch: Annotated[Int32, Field(since=10)] = -1


class PartitionProduceResponse(msgspec.Struct, frozen=True, gc=False):
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    log_append_time_ms: Int64 = -1
    log_start_offset: Annotated[Int64, Field(since=5, is_ignorable=True)] = -1
    record_errors: Annotated[
        tuple[BatchIndexAndErrorMessage, ...], Field(since=8, is_ignorable=True)
    ] = ()
    error_message: Annotated[str | None, Field(since=8, is_ignorable=True)] = None
    current_leader: Annotated[LeaderIdAndEpoch, Field(since=10, tag=0)] = LeaderIdAndEpoch()


class TopicProduceResponse(msgspec.Struct, frozen=True, gc=False):
    name: Annotated[str, Field(until=12, is_ignorable=True)] = ""
    topic_id: Annotated[OptionalUuid, Field(since=13, is_ignorable=True)] = None
    partition_responses: tuple[PartitionProduceResponse, ...] = ()


class NodeEndpoint(msgspec.Struct, frozen=True, gc=False):
    node_id: Annotated[Int32, Field(since=10)] = 0
    host: Annotated[str, Field(since=10)] = ""
    port: Annotated[Int32, Field(since=10)] = 0
    rack: Annotated[str | None, Field(since=10)] = None


class ProduceResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(3, 13, flexible=9)
    responses: tuple[TopicProduceResponse, ...] = ()
    throttle_time_ms: Int32 = 0
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], Field(since=10, tag=0)] = ()
