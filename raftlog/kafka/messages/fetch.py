"""Messages of Fetch.

scripts/generate_kafka_messages.py wrote this module. Do not edit it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int8, Int16, Int32, Int64, OptionalUuid, Records, Versions


class ReplicaState(msgspec.Struct, frozen=True, gc=False):
    replica_id: Annotated[Int32, Field(since=15)] = -1
    replica_epoch: Annotated[Int64, Field(since=15)] = -1


class FetchPartition(msgspec.Struct, frozen=True, gc=False):
    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, Field(since=9, is_ignorable=True)] = -1
    fetch_offset: Int64 = 0
    last_fetched_epoch: Annotated[Int32, Field(since=12)] = -1
    log_start_offset: Annotated[Int64, Field(since=5, is_ignorable=True)] = -1
    partition_max_bytes: Int32 = 0
    replica_directory_id: Annotated[OptionalUuid, Field(since=17, tag=0, is_ignorable=True)] = None
    high_watermark: Annotated[Int64, Field(since=18, tag=1, is_ignorable=True)] = (
        9_223_372_036_854_775_807
    )


class FetchTopic(msgspec.Struct, frozen=True, gc=False):
    topic: Annotated[str, Field(until=12, is_ignorable=True)] = ""
    topic_id: Annotated[OptionalUuid, Field(since=13, is_ignorable=True)] = None
    partitions: tuple[FetchPartition, ...] = ()


class ForgottenTopic(msgspec.Struct, frozen=True, gc=False):
    topic: Annotated[str, Field(since=7, until=12, is_ignorable=True)] = ""
    topic_id: Annotated[OptionalUuid, Field(since=13, is_ignorable=True)] = None
    partitions: Annotated[tuple[Int32, ...], Field(since=7)] = ()


class FetchRequest(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(4, 18, flexible=12)
    cluster_id: Annotated[str | None, Field(since=12, tag=0, is_ignorable=True)] = None
    replica_id: Annotated[Int32, Field(until=14)] = -1
    replica_state: Annotated[ReplicaState, Field(since=15, tag=1)] = ReplicaState()
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 2_147_483_647
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, Field(since=7, is_ignorable=True)] = 0
    session_epoch: Annotated[Int32, Field(since=7, is_ignorable=True)] = -1
    topics: tuple[FetchTopic, ...] = ()
    forgotten_topics_data: Annotated[tuple[ForgottenTopic, ...], Field(since=7)] = ()
    rack_id: Annotated[str, Field(since=11, is_ignorable=True)] = ""


class EpochEndOffset(msgspec.Struct, frozen=True, gc=False):
    epoch: Annotated[Int32, Field(since=12)] = -1
    end_offset: Annotated[Int64, Field(since=12)] = -1


class LeaderIdAndEpoch(msgspec.Struct, frozen=True, gc=False):
    leader_id: Annotated[Int32, Field(since=12)] = -1
    leader_epoch: Annotated[Int32, Field(since=12)] = -1


class SnapshotId(msgspec.Struct, frozen=True, gc=False):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(msgspec.Struct, frozen=True, gc=False):
    producer_id: Int64 = 0
    first_offset: Int64 = 0


class PartitionData(msgspec.Struct, frozen=True, gc=False):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, Field(since=5, is_ignorable=True)] = -1
    diverging_epoch: Annotated[EpochEndOffset, Field(since=12, tag=0)] = EpochEndOffset()
    current_leader: Annotated[LeaderIdAndEpoch, Field(since=12, tag=1)] = LeaderIdAndEpoch()
    snapshot_id: Annotated[SnapshotId, Field(since=12, tag=2)] = SnapshotId()
    aborted_transactions: tuple[AbortedTransaction, ...] | None = ()
    preferred_read_replica: Annotated[Int32, Field(since=11)] = -1
    records: Records | None = b""


class FetchableTopicResponse(msgspec.Struct, frozen=True, gc=False):
    topic: Annotated[str, Field(until=12, is_ignorable=True)] = ""
    topic_id: Annotated[OptionalUuid, Field(since=13, is_ignorable=True)] = None
    partitions: tuple[PartitionData, ...] = ()


class NodeEndpoint(msgspec.Struct, frozen=True, gc=False):
    node_id: Annotated[Int32, Field(since=16)] = 0
    host: Annotated[str, Field(since=16)] = ""
    port: Annotated[Int32, Field(since=16)] = 0
    rack: Annotated[str | None, Field(since=16)] = None


class FetchResponse(msgspec.Struct, frozen=True, gc=False):
    VERSIONS: ClassVar = Versions(4, 18, flexible=12)
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Field(since=7, is_ignorable=True)] = 0
    session_id: Annotated[Int32, Field(since=7)] = 0
    responses: tuple[FetchableTopicResponse, ...] = ()
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], Field(since=16, tag=0)] = ()
