"""What a follower and a leader tell each other of one partition: plain values, and the feed.

A *feed* is one follower's stream of one partition, as its leader holds it (feeds.py).

Where two logs part: what a leader answers, and where a follower cuts. Pure.

A follower never decides by a high watermark what to cut (KIP-101): what it has below its own may
have been replaced elsewhere, what it has above may be committed. The two compare the epochs that
wrote their logs, and go on until they agree on the last one they share (KIP-279).
"""

from __future__ import annotations

from typing import NamedTuple

from raftlog.record.errors import ILLEGAL_STATE, LogError
from raftlog.record.types import LeaderEpoch, Offset
from raftlog.storage.leader_epochs import LeaderEpochs

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


def compare(
    history: LeaderEpochs, *, log_start: Offset, log_end: Offset, position: FetchPosition
) -> Diverging | BelowStart | None:
    """A leader's answer to a follower that stands at `position`; None: its log is a part of ours.

    A follower without records agrees with any leader whose log reaches its end: what it had below
    was committed when it was deleted, so it is that leader's, too, or deleted there. Raises
    LogError(ILLEGAL_STATE) if its log cannot be one of this partition.
    """
    if position.offset < log_start:
        return BelowStart(log_start)
    if position.last_epoch == NO_EPOCH:
        return BelowStart(log_start) if position.offset > log_end else None
    found = history.end_offset_for(position.last_epoch, log_end)
    if found is None:
        # Every epoch in its log began before ours did: a newer one cannot be explained, and what
        # cannot be explained is not cut.
        raise LogError(
            ILLEGAL_STATE,
            f"The follower has records of leader epoch {position.last_epoch}, which this leader "
            "does not know.",
        )
    oldest = history.epoch_for(log_start)
    if log_start > 0 and oldest is not None and position.last_epoch < oldest:
        # Where the oldest epoch that is left began went with what was deleted, and where the ones
        # before it ended: what the follower has may have parted below our start. It has nothing
        # that is to be kept.
        return BelowStart(log_start)
    if found.epoch != position.last_epoch or found.end_offset < position.offset:
        return Diverging(found.epoch, found.end_offset)
    return None


def truncation_point(
    history: LeaderEpochs, *, log_start: Offset, log_end: Offset, diverging: Diverging
) -> Offset:
    """Where a follower cuts its log after such an answer, to ask again."""
    end = diverging.end_offset
    own = history.end_offset_for(diverging.epoch, log_end)
    if own is not None:
        # What both share ends with the last epoch that both have, in the shorter of the two.
        end = min(own.end_offset, end)
    return min(max(end, log_start), log_end)
