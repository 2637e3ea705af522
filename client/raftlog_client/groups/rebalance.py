"""What an application may hear of its group: listener, committed offsets, membership."""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from typing import NamedTuple

from raftlog_client.types import TopicPartition


class RebalanceListener:
    """Called inside the consumer's read calls when partitions come and go. Override any method.

    A method may be sync or async. An exception reaches the read call, after the change is done.
    """

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> Awaitable[None] | None:
        """These are about to go to other members: the last moment to commit their offsets."""

    def on_partitions_assigned(
        self, assigned: Collection[TopicPartition]
    ) -> Awaitable[None] | None:
        """These are new. `seek` here takes the place of the committed offset."""

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> Awaitable[None] | None:
        """The session ended, and other members may read these already: commits are too late."""


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next one to read. `metadata` is the application's own text."""

    offset: int
    metadata: str = ""


class GroupMetadata(NamedTuple):
    """A consumer's membership, for offsets committed in a producer's transaction."""

    group_id: str
    member_id: str
    member_epoch: int
