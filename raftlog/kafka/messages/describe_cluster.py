"""DescribeCluster, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int8, Int16, Int32, Versions


class DescribeClusterRequest(msgspec.Struct, frozen=True, gc=False):
    """API 60."""

    VERSIONS: ClassVar = Versions(0, 2, flexible=0)

    include_cluster_authorized_operations: bool = False
    endpoint_type: Annotated[Int8, Field(since=1)] = 1
    include_fenced_brokers: Annotated[bool, Field(since=2)] = False


class DescribeClusterBroker(msgspec.Struct, frozen=True, gc=False):
    """A part of DescribeClusterResponse."""

    broker_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = None
    is_fenced: Annotated[bool, Field(since=2)] = False


class DescribeClusterResponse(msgspec.Struct, frozen=True, gc=False):
    """API 60."""

    VERSIONS: ClassVar = Versions(0, 2, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    endpoint_type: Annotated[Int8, Field(since=1)] = 1
    cluster_id: str = ""
    controller_id: Int32 = -1
    brokers: tuple[DescribeClusterBroker, ...] = ()
    cluster_authorized_operations: Int32 = -2_147_483_648
