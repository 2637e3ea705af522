"""What replication says of itself, for metrics: sums over all replicas of a node, as of now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from raftlog.record.types import BrokerId
from raftlog.replication.partition import Partition


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """Counts since the start, and states of now."""

    isr_shrinks: int = 0
    """Changes after which somebody was in sync no more, of partitions that this node led."""
    isr_expands: int = 0
    under_min_isr: int = 0
    """Partitions led here that take no `acks=all` writes: too few are in sync."""
    at_min_isr: int = 0
    """Partitions led here of which nobody more may be missed."""
    bytes_in: int = 0
    """Of record batches, received from leaders."""
    bytes_out: int = 0
    """Of record batches, sent to followers."""
    leaders_connected: int = 0
    """Connections to nodes that this one follows."""
    followers_connected: int = 0
    """Connections of nodes that follow this one."""
    lag_records: Mapping[BrokerId, int] = field(default_factory=dict)
    """By follower: the most that it lacks, durably, of any one partition led here."""
    offline: int = 0
    """Replicas of this node that serve nobody: they failed, are damaged, or were not opened."""
    distrusted: int = 0
    """Those that may lack what they acknowledged, and take no part before that is known."""
    repairs: int = 0
    """Replicas under repair, or in line for it."""
    requests_forwarded: int = 0
    """Passed on to the node that leads."""
    requests_taken: int = 0
    """Carried out for other nodes."""


class LedCounts(NamedTuple):
    """Of the partitions that this node leads: see ReplicationStatus."""

    lag_records: dict[BrokerId, int]
    under_min_isr: int
    at_min_isr: int


def count_led(led: Iterable[Partition]) -> LedCounts:
    """One pass over partitions that are led here."""
    lags: dict[BrokerId, int] = {}
    under_min_isr = at_min_isr = 0
    for partition in led:
        state = partition.state
        if state is None:
            continue
        spare = len(partition.image.isr) - partition.min_insync_replicas
        under_min_isr += spare < 0
        at_min_isr += spare == 0
        end_offset, start_offset = partition.log_end_offset, partition.log_start_offset
        for broker_id, follower in state.followers.items():
            lag = end_offset - max(follower.durable_end, start_offset)
            if lag > lags.get(broker_id, -1):
                lags[broker_id] = max(lag, 0)
    return LedCounts(lags, under_min_isr, at_min_isr)
