"""A consumer's side of its group, with membership and committed offsets."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from raftlog.api.groups import GROUP_ID_PATTERN, NO_MEMBER_EPOCH
from raftlog_client.errors import CommitFailedError, IllegalStateError
from raftlog_client.fetch.assignment import Assignment
from raftlog_client.fetch.fetcher import Fetcher
from raftlog_client.fetch.record_buffer import RecordBuffer
from raftlog_client.fetch.subscription import OffsetReset, PartitionState, Subscription
from raftlog_client.groups.member import GroupMember, MemberSettings
from raftlog_client.groups.membership import GroupMembership
from raftlog_client.groups.offsets import GroupOffsets
from raftlog_client.metadata import ClusterMetadata
from raftlog_client.types import (
    GroupMetadata,
    OffsetAndMetadata,
    RebalanceListener,
    TopicPartition,
    require_at_least,
)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of a consumer's group. Raises ValueError for a setting out of bounds."""

    group_id: str | None
    instance_id: str | None
    client_id: str
    assignor: str | None
    session_timeout_ms: int
    max_poll_interval_ms: int
    auto_commit_interval_s: float | None
    reset: OffsetReset

    def __post_init__(self) -> None:
        if self.group_id is None:
            if self.instance_id is not None:
                raise ValueError("group_instance_id needs a group_id")
        elif not re.fullmatch(GROUP_ID_PATTERN, self.group_id):
            raise ValueError(
                f"group_id must have 1 to 255 printable characters, not {self.group_id!r}"
            )
        require_at_least(1, session_timeout_ms=self.session_timeout_ms)
        require_at_least(1, max_poll_interval_ms=self.max_poll_interval_ms)


class ConsumerGroup:
    """One consumer's group. A member once it subscribes, otherwise only committed offsets."""

    def __init__(
        self,
        settings: GroupSettings,
        metadata: ClusterMetadata,
        assignment: Assignment,
        fetcher: Fetcher,
        buffer: RecordBuffer,
        *,
        wake: Callable[[], None],
    ) -> None:
        """`wake` ends the wait of a read call."""
        assert settings.group_id is not None
        self._group_id = settings.group_id
        self._settings = settings
        self._metadata = metadata
        self._assignment = assignment
        self._fetcher = fetcher
        self._buffer = buffer
        self.offsets = GroupOffsets(
            self._group_id, metadata, assignment, fetcher, on_stale_epoch=self.report_soon
        )
        self._member = GroupMember(
            MemberSettings(
                member_id=str(uuid.uuid4()),
                instance_id=settings.instance_id,
                client_id=settings.client_id,
                assignor=settings.assignor,
                session_timeout_ms=settings.session_timeout_ms,
                rebalance_timeout_ms=settings.max_poll_interval_ms,
            )
        )
        self._wake = wake
        self._membership: GroupMembership | None = None

    @property
    def is_member(self) -> bool:
        """Whether the coordinator assigns the partitions."""
        return self._membership is not None

    @property
    def is_due(self) -> bool:
        """Whether a read call has work before it waits."""
        return self._membership is not None and self._membership.is_due

    def start(self) -> None:
        """Start automatic commits, and look up committed offsets of partitions chosen before."""
        if self._settings.auto_commit_interval_s is not None:
            self.offsets.start_auto_commit(self._settings.auto_commit_interval_s, wake=self._wake)
        self.assigned()

    def assigned(self) -> None:
        """Note that `assign` chose partitions."""
        if self._assignment.states:
            self.offsets.place_soon()

    async def subscribe(self, subscription: Subscription, listener: RebalanceListener) -> None:
        """Join the group, or change the member's subscription."""
        if self._membership is None:
            self._assignment.replace((), self._settings.reset)
            self._membership = GroupMembership(
                self._member,
                self._metadata,
                self._assignment,
                self.offsets,
                self._buffer,
                max_poll_interval_s=self._settings.max_poll_interval_ms / 1000,
                commits_itself=self._settings.auto_commit_interval_s is not None,
                reset=self._settings.reset,
                wake=self._wake,
            )
            self.offsets.member = self._member
        view = self._metadata.view
        self._membership.listener = listener
        self._membership.partition_counts = {
            name: len(view.topics[name].partitions)
            for name in subscription.topics(view)
            if name in view.topics
        }
        self._member.subscribe(subscription.names, subscription.pattern)
        await self._membership.join()

    async def leave(self, *, is_clean: bool = True) -> None:
        """Leave the group, if a member. Raises what the listener raises."""
        membership, self._membership = self._membership, None
        if membership is not None:
            try:
                await membership.leave(is_clean=is_clean)
            finally:
                self.offsets.member = None

    async def close(self, *, is_clean: bool) -> None:
        """Commit processed positions, if commits are automatic, and leave."""
        try:
            if self.is_member:
                await self.leave(is_clean=is_clean)
            elif self._settings.auto_commit_interval_s is not None:
                if is_clean:
                    self._buffer.begin_call()
                await self.offsets.commit_processed()
        finally:
            await self.offsets.close()

    async def begin_read(self) -> None:
        """Start a read call, or continue it after a wait."""
        self.offsets.check_auto_commit()
        if self._membership is None:
            if self.offsets.must_place:
                self.offsets.place_soon()
        elif self._membership.is_due:
            await self._membership.poll()

    def is_waiting(self, *, waits: bool) -> None:
        """Note whether a read call now waits for records."""
        if self._membership is not None:
            self._membership.is_waiting = waits

    async def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None
    ) -> None:
        """Commit these offsets, or for None the positions after all records given out."""
        await self.offsets.commit(
            self.offsets.positions() if offsets is None else with_metadata(offsets)
        )

    async def seek_to_committed(self, states: Sequence[PartitionState]) -> None:
        """Read these from their committed offsets, else from their reset position."""
        found = await self.offsets.committed([state.source for state in states])
        self.offsets.lost_uncommitted.clear()
        for state in states:
            committed = found[state.source]
            if committed is not None:
                state.committed = committed.offset
                self._assignment.jump(state, committed.offset, topic_id=state.topic_id)
            else:
                self._fetcher.restart(state, self._settings.reset)

    def offsets_for_transaction(
        self,
    ) -> tuple[GroupMetadata, dict[TopicPartition, OffsetAndMetadata]]:
        """Return membership and positions for a producer's transaction.

        Raises IllegalStateError if this consumer commits automatically, CommitFailedError once it
        has lost a partition with records that were given out and not committed.
        """
        if self._settings.auto_commit_interval_s is not None:
            raise IllegalStateError(
                "The consumer commits by itself, so records would count as processed before the "
                "transaction: make it with auto_commit_interval_ms=None."
            )
        if lost := self.offsets.lost_uncommitted:
            names = ", ".join(
                f"{partition.topic}-{partition.partition}" for partition in sorted(lost)[:5]
            )
            raise CommitFailedError(
                f"The group has given {names} to other members, with records given out here and "
                "not committed: these are read again there."
            )
        return self.metadata(), self.offsets.positions()

    def committed_elsewhere(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Note that a transaction has committed these offsets."""
        for source, value in offsets.items():
            self.offsets.committed_now(source, value.offset)

    def metadata(self) -> GroupMetadata:
        """Return the membership as commits in a transaction name it."""
        identity = self._member.identity()
        if identity is None:
            return GroupMetadata(self._group_id, "", NO_MEMBER_EPOCH)
        return GroupMetadata(self._group_id, identity.member_id, identity.member_epoch)

    def report_soon(self) -> None:
        """Send a heartbeat now, because the coordinator knows a newer epoch of the member."""
        if self._membership is not None:
            self._membership.report_soon()


def with_metadata(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return all offsets with metadata. Raises ValueError for a negative offset."""
    found = {
        TopicPartition(*partition): offset
        if isinstance(offset, OffsetAndMetadata)
        else OffsetAndMetadata(offset)
        for partition, offset in offsets.items()
    }
    for partition, value in found.items():
        if value.offset < 0:
            raise ValueError(
                f"{partition.topic}-{partition.partition}: no offset is {value.offset}"
            )
    return found
