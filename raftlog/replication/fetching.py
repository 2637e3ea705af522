"""What a follower and a leader tell each other of one partition: plain values, and the feed.

A *feed* is one follower's stream of one partition, as its leader holds it (feeds.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from raftlog.record.errors import LogError
from raftlog.record.types import BrokerEpoch, BrokerId, Buffer, LeaderEpoch, Offset

NO_EPOCH = LeaderEpoch(-1)
"""Of the last record of an empty log."""


class FetchPosition(NamedTuple):
    """Where a follower stands when it asks for a partition (KIP-320)."""

    leader_epoch: LeaderEpoch
    """The epoch of the leader it asks, as it has applied it."""
    offset: Offset
    """Its log end."""
    last_epoch: LeaderEpoch
    """The epoch of its last record; NO_EPOCH if it has none."""
    durable_end: Offset
    """Everything below is durable there, as the topic's flush mode has it."""
    log_start_offset: Offset


class Diverging(NamedTuple):
    """The leader has no such epoch and offset: its `epoch`, the largest not above the one asked
    for, ended at `end_offset` (KIP-101, KIP-279)."""

    epoch: LeaderEpoch
    end_offset: Offset


class BelowStart(NamedTuple):
    """What the follower asks for is gone: the leader's log begins at `log_start_offset`."""

    log_start_offset: Offset


class Feed(Protocol):
    """One follower's stream of one partition, held by its leader. Must not raise, nor call back
    into the partition from within these."""

    @property
    def broker_id(self) -> BrokerId:
        """The follower."""
        ...

    @property
    def broker_epoch(self) -> BrokerEpoch:
        """Its incarnation."""
        ...

    def appended(
        self,
        base_offset: Offset,
        next_offset: Offset,
        buffers: Sequence[Buffer],
        size_bytes: int,
    ) -> None:
        """The leader's log has grown by these bytes, stamped batches in their order."""
        ...

    def marks_moved(self) -> None:
        """The high watermark or the log start offset has moved."""
        ...

    def ended(self, error: LogError) -> None:
        """The partition is not led here any more, or in another epoch. Told once."""
        ...
