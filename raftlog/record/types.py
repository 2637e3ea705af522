"""Distinct types for numbers that must not be mixed, at no cost at run time."""

from __future__ import annotations

from typing import NamedTuple, NewType, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes for reading only. A memoryview has item size 1."""

Offset = NewType("Offset", int)
"""Position of a record in its partition, from 0."""
LeaderEpoch = NewType("LeaderEpoch", int)
"""Number of a leadership of one partition. It grows with every change of leader."""
PartitionEpoch = NewType("PartitionEpoch", int)
"""Version of one partition's metadata. It grows with every change."""
PartitionId = NewType("PartitionId", int)
"""Number of a partition in its topic, from 0."""
TopicId = NewType("TopicId", str)
"""32 hexadecimal digits. A topic deleted and created again gets another id."""
BrokerId = NewType("BrokerId", int)
"""A node's number, from 1, unique in its cluster."""
BrokerEpoch = NewType("BrokerEpoch", int)
"""Number of one start of a node (its incarnation). It grows with every start."""
ProducerId = NewType("ProducerId", int)
"""Identity of an idempotent producer, or NO_PRODUCER_ID."""
ProducerEpoch = NewType("ProducerEpoch", int)
"""Incarnation of a producer id, 0 to 32767. An older epoch is fenced."""

NO_PRODUCER_ID = ProducerId(-1)
NO_PRODUCER_EPOCH = ProducerEpoch(-1)
NO_SEQUENCE = -1
LEADER_EPOCH_MAX = LeaderEpoch(2**31 - 1)


class AbortedTransaction(NamedTuple):
    """An aborted transaction in a range of offsets.

    A reader skips the producer's transactional records from `first_offset` to its next marker.
    """

    producer_id: ProducerId
    first_offset: Offset
