"""raftlog's typed asyncio client, to produce, consume and administer.

Purpose: Give a Python program the log at the speed of whole batches, in the shape known from
aiokafka. `Producer`, `Consumer` and `Admin` are async context managers.

Rules: The client imports only `raftlog.record` (the batch format, the wire frames, the error table)
and `raftlog.api` (the wire shapes) from raftlog. Every buffer, wait and retry has a named bound. No
record is reported written without an acknowledgement, and an error shows whether the outcome is
known.

Must not know: How a node stores, replicates or elects. The client knows only addresses, leaders and
errors.
"""

from raftlog.api.cluster import ClusterSettings, NodeInfo, QuorumInfo, QuorumMember
from raftlog.api.groups import GroupDescription, GroupList, ResetResponse
from raftlog.api.transactions import TransactionDescription, TransactionList
from raftlog_client.admin import Admin
from raftlog_client.consumer import Consumer
from raftlog_client.errors import (
    BufferFullError,
    ClientClosedError,
    CommitFailedError,
    ConnectionLostError,
    CorruptDataError,
    DeliveryTimeoutError,
    FencedError,
    IllegalStateError,
    NoNodeAvailableError,
    NoOffsetError,
    OffsetOutOfRangeError,
    ProducerBrokenError,
    RaftlogClientError,
    RecordTooLargeError,
    SendManyError,
    SerializationError,
    ServerError,
    TopicChangedError,
    TopicNotFoundError,
    TransactionAbortableError,
)
from raftlog_client.groups.lease import GroupLease, LeaseListener
from raftlog_client.produce.record_encoder import (
    Partitioner,
    bytes_deserializer,
    bytes_serializer,
    json_deserializer,
    json_serializer,
    murmur2_partitioner,
    string_deserializer,
    string_serializer,
)
from raftlog_client.producer import Producer
from raftlog_client.transactions.transactions import Transaction
from raftlog_client.types import (
    BrokerInfo,
    ClusterInfo,
    ConfigEntry,
    GroupMetadata,
    Headers,
    NewTopic,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionInfo,
    PartitionOffsets,
    PartitionRange,
    ProducerRecord,
    RebalanceListener,
    Record,
    RecordMetadata,
    SendSummary,
    TopicDescription,
    TopicPartition,
)

__all__ = [
    "Admin",
    "BrokerInfo",
    "BufferFullError",
    "ClientClosedError",
    "ClusterInfo",
    "ClusterSettings",
    "CommitFailedError",
    "ConfigEntry",
    "ConnectionLostError",
    "Consumer",
    "CorruptDataError",
    "DeliveryTimeoutError",
    "FencedError",
    "GroupDescription",
    "GroupLease",
    "GroupList",
    "GroupMetadata",
    "Headers",
    "IllegalStateError",
    "LeaseListener",
    "NewTopic",
    "NoNodeAvailableError",
    "NoOffsetError",
    "NodeInfo",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetOutOfRangeError",
    "PartitionInfo",
    "PartitionOffsets",
    "PartitionRange",
    "Partitioner",
    "Producer",
    "ProducerBrokenError",
    "ProducerRecord",
    "QuorumInfo",
    "QuorumMember",
    "RaftlogClientError",
    "RebalanceListener",
    "Record",
    "RecordMetadata",
    "RecordTooLargeError",
    "ResetResponse",
    "SendManyError",
    "SendSummary",
    "SerializationError",
    "ServerError",
    "TopicChangedError",
    "TopicDescription",
    "TopicNotFoundError",
    "TopicPartition",
    "Transaction",
    "TransactionAbortableError",
    "TransactionDescription",
    "TransactionList",
    "bytes_deserializer",
    "bytes_serializer",
    "json_deserializer",
    "json_serializer",
    "murmur2_partitioner",
    "string_deserializer",
    "string_serializer",
]
