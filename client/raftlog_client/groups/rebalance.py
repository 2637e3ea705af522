"""The application's view of its group, with listener, committed offsets and membership."""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from typing import NamedTuple

from raftlog_client.types import TopicPartition


class RebalanceListener:
    """Called inside the consumer's read calls when partitions change. Override any method.

    A method may be sync or async. An exception reaches the read call after the change is done.
    """

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> Awaitable[None] | None:
        """Commit offsets of partitions about to go to other members, at the last moment."""

    def on_partitions_assigned(
        self, assigned: Collection[TopicPartition]
    ) -> Awaitable[None] | None:
        """Handle new partitions. `seek` here takes the place of the committed offset."""

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> Awaitable[None] | None:
        """Handle partitions of an ended session. Others may read them, so commits are too late."""


class OffsetAndMetadata(NamedTuple):
    """A committed offset, which is the next to read. `metadata` is the application's text."""

    offset: int
    metadata: str = ""


class GroupMetadata(NamedTuple):
    """A consumer's membership, for offsets committed in a producer's transaction."""

    group_id: str
    member_id: str
    member_epoch: int
