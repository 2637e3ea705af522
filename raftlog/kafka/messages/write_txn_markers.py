"""WriteTxnMarkers, by scripts/generate_kafka_messages.py: do not edit."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from raftlog.schema.fields import Field, Int8, Int16, Int32, Int64, Versions


class WritableTxnMarkerTopic(msgspec.Struct, frozen=True, gc=False):
    """A part of WriteTxnMarkersRequest."""

    name: str = ""
    partition_indexes: tuple[Int32, ...] = ()


class WritableTxnMarker(msgspec.Struct, frozen=True, gc=False):
    """A part of WriteTxnMarkersRequest."""

    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: bool = False
    topics: tuple[WritableTxnMarkerTopic, ...] = ()
    coordinator_epoch: Int32 = 0
    transaction_version: Annotated[Int8, Field(since=2, is_ignorable=True)] = 0


class WriteTxnMarkersRequest(msgspec.Struct, frozen=True, gc=False):
    """API 27."""

    VERSIONS: ClassVar = Versions(1, 2, flexible=1)

    markers: tuple[WritableTxnMarker, ...] = ()


class WritableTxnMarkerPartitionResult(msgspec.Struct, frozen=True, gc=False):
    """A part of WriteTxnMarkersResponse."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class WritableTxnMarkerTopicResult(msgspec.Struct, frozen=True, gc=False):
    """A part of WriteTxnMarkersResponse."""

    name: str = ""
    partitions: tuple[WritableTxnMarkerPartitionResult, ...] = ()


class WritableTxnMarkerResult(msgspec.Struct, frozen=True, gc=False):
    """A part of WriteTxnMarkersResponse."""

    producer_id: Int64 = 0
    topics: tuple[WritableTxnMarkerTopicResult, ...] = ()


class WriteTxnMarkersResponse(msgspec.Struct, frozen=True, gc=False):
    """API 27."""

    VERSIONS: ClassVar = Versions(1, 2, flexible=1)

    markers: tuple[WritableTxnMarkerResult, ...] = ()
