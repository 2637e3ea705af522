"""Committed offsets of a group, to commit, to look up, and to start from.

Commits of one consumer are sent in order. A member's commit names the offset that it replaces, so
an older commit never overwrites a newer commit. A commit is bound to the membership in which it
started, and is never sent for another membership.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final
from urllib.parse import quote

from raftlog.api.groups import (
    ANY_OFFSET,
    NO_MEMBER_EPOCH,
    CommitRequest,
    CommitResponse,
    CommittedOffset,
    CommittedRequest,
    CommittedResponse,
    OffsetCommit,
)
from raftlog.record import errors
from raftlog.record.coordinators import OFFSETS_TOPIC
from raftlog.record.types import Offset
from raftlog_client.errors import CommitFailedError, RaftlogClientError, ServerError, server_error
from raftlog_client.fetch.assignment import Assignment
from raftlog_client.fetch.fetcher import Fetcher
from raftlog_client.fetch.subscription import OffsetReset, PartitionState
from raftlog_client.groups.member import GroupMember
from raftlog_client.metadata import COORDINATOR_PATIENCE_S, ClusterMetadata, CoordinatorKey
from raftlog_client.types import OffsetAndMetadata, TopicPartition

NO_OFFSET: Final = -1

logger = logging.getLogger("raftlog_client")


class GroupOffsets:
    """Offsets of one consumer in its group."""

    def __init__(
        self,
        group_id: str,
        metadata: ClusterMetadata,
        assignment: Assignment,
        fetcher: Fetcher,
        *,
        on_stale_epoch: Callable[[], None],
    ) -> None:
        """`on_stale_epoch` is called when the coordinator knows a newer epoch of the member."""
        self.group_id = group_id
        self.member: GroupMember | None = None
        """Member, or None if `assign` chooses partitions and commits name no member."""
        self.lost_uncommitted: set[TopicPartition] = set()
        """Partitions taken away with records given out and not committed."""
        self.must_place = False
        """Whether some partition's committed offset must be looked up again."""
        self._path = f"/v1/groups/{quote(group_id, safe='')}"
        self._coordinator = CoordinatorKey(OFFSETS_TOPIC, group_id)
        self._metadata = metadata
        self._assignment = assignment
        self._fetcher = fetcher
        self._on_stale_epoch = on_stale_epoch
        self._lock = asyncio.Lock()
        self._placing: asyncio.Task[None] | None = None
        self._auto: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """End lookups and automatic commits."""
        tasks = [task for task in (self._placing, self._auto) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Commits

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return positions after all records given out that differ from the committed offsets."""
        return self._changed(self._assignment.position)

    def processed_positions(
        self, only: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return positions after the certainly processed records that differ."""
        return self._changed(self._assignment.processed_position, only)

    def _changed(
        self,
        position_of: Callable[[TopicPartition], int],
        only: Collection[TopicPartition] | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for source, state in self._assignment.states.items():
            if only is not None and source not in only:
                continue
            position = position_of(source)
            if position not in {NO_OFFSET, state.committed}:
                found[source] = OffsetAndMetadata(position)
        return found

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit these offsets. Raises CommitFailedError, ServerError, ….

        Repeated until `request_timeout_ms` if that may help.
        """
        incarnation = 0 if self.member is None else self.member.incarnation
        async with self._lock:
            await self._commit(dict(offsets), incarnation)

    async def _commit(
        self, left: dict[TopicPartition, OffsetAndMetadata], incarnation: int
    ) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._metadata.request_timeout_s
        attempt = 0
        superseded: set[TopicPartition] = set()
        while left:
            member_id, member_epoch = self._identity(left, incarnation)
            request = CommitRequest(
                offset_commits(left, self._assignment, self._expected(left, superseded)),
                member_id,
                member_epoch,
            )
            error: ServerError | None = None
            superseded_before = len(superseded)
            try:
                answer = await self._metadata.call_any(
                    "POST",
                    f"{self._path}/offsets",
                    CommitResponse,
                    request,
                    patience_s=COORDINATOR_PATIENCE_S,
                    coordinator=self._coordinator,
                )
            except ServerError as refusal:
                error = self._judged(refusal)
            else:
                for row in answer.results:
                    source = TopicPartition(row.topic, row.partition)
                    if row.error_code == errors.OFFSET_SUPERSEDED.code and source not in superseded:
                        superseded.add(source)
                    elif row.error_code:
                        error = self._judged(server_error(row.error_code, row.message))
                    elif (done := left.pop(source, None)) is not None:
                        self.committed_now(source, done.offset)
                if error is None and len(superseded) > superseded_before:
                    continue
                if error is None and left:
                    raise RaftlogClientError("A node's answer lacks offsets of the commit.")
            if error is None:
                return
            delay_s = self._metadata.backoff.delay_s(attempt)
            attempt += 1
            if loop.time() + delay_s >= deadline:
                raise error
            if error.entry is errors.STALE_MEMBER_EPOCH:
                self._on_stale_epoch()
            await asyncio.sleep(delay_s)

    def _expected(
        self, sources: Iterable[TopicPartition], superseded: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the committed offsets as a member knows them, for each first attempt.

        A copy of a commit that reaches the coordinator late, after newer commits, then changes
        nothing. If another offset proved to be committed, the commit replaces any offset. The
        partition is this member's, and no commit of the member is newer.
        """
        if self.member is None:
            return {}
        states = self._assignment.states
        return {
            source: states[source].committed
            for source in sources
            if source in states and source not in superseded
        }

    def _judged(self, error: ServerError) -> ServerError:
        """Return the error if a repeat of the commit may help. Raises otherwise."""
        if error.entry in (errors.UNKNOWN_MEMBER, errors.FENCED_MEMBER_EPOCH):
            # The next heartbeat also detects it and rejoins.
            self._on_stale_epoch()
            raise CommitFailedError(
                f"Not committed: {error} The consumer joins again by itself."
            ) from error
        if error.retriable or error.entry is errors.STALE_MEMBER_EPOCH:
            return error
        raise error

    def committed_now(self, source: TopicPartition, offset: int) -> None:
        """Note that the offset is committed."""
        state = self._assignment.states.get(source)
        if state is not None:
            state.committed = offset

    def _identity(self, offsets: Iterable[TopicPartition], incarnation: int) -> tuple[str, int]:
        """Return member id and epoch for a commit. Raises CommitFailedError once it is too late."""
        if self.member is None:
            return "", NO_MEMBER_EPOCH
        identity = self.member.identity()
        allowed = self.member.committable(incarnation)
        gone = [source for source in offsets if source not in allowed]
        if identity is None or gone:
            names = ", ".join(f"{partition.topic}-{partition.partition}" for partition in gone[:5])
            raise CommitFailedError(
                f"Group {self.group_id!r}: not committed, this consumer does not own {names}"
                f"{', …' if len(gone) > 5 else ''} (any more): the group has given the partitions "
                "to other members, or the session was lost. Their readers begin at the last commit."
            )
        return identity.member_id, identity.member_epoch

    def start_auto_commit(self, interval_s: float, *, wake: Callable[[], None]) -> None:
        """Commit processed positions at each interval until `close`.

        `wake` is called when the commits have ended. `check_auto_commit` then raises the reason.
        """
        self._auto = asyncio.ensure_future(self._keep_committing(interval_s))
        self._auto.add_done_callback(lambda _: wake())

    def check_auto_commit(self) -> None:
        """Raise the error that ended automatic commits, so that their end is noticed."""
        if self._auto is not None and self._auto.done():
            self._auto.result()

    async def _keep_committing(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await self.commit_processed()

    async def commit_processed(self, only: Collection[TopicPartition] | None = None) -> None:
        """Commit processed positions. A failure is logged, and the records are read again."""
        # Other commits come first. An earlier commit may be of partitions that are then given up.
        async with self._lock:
            offsets = self.processed_positions(only)
            incarnation = 0
            if self.member is not None:
                incarnation = self.member.incarnation
                allowed = self.member.committable(incarnation)
                offsets = {
                    partition: offset
                    for partition, offset in offsets.items()
                    if partition in allowed
                }
            if not offsets:
                return
            try:
                await self._commit(dict(offsets), incarnation)
            except RaftlogClientError as error:
                logger.warning(
                    "group %s: automatic commit of %d partitions failed, records since the last "
                    "commit will be read again if the partitions move: %s",
                    self.group_id,
                    len(offsets),
                    error,
                )

    # Lookups

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets, or None where there is none.

        Waits up to `request_timeout_ms` for open transactions that may change them. Raises the last
        error of a partition without a response.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._metadata.request_timeout_s
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        attempt = 0
        while left := [partition for partition in partitions if partition not in found]:
            error: RaftlogClientError | None = None
            for source, row in (await self._look_up(left)).items():
                if row.error_code:
                    error = server_error(row.error_code, row.message)
                    if not error.retriable:
                        raise error
                else:
                    is_none = row.offset == NO_OFFSET
                    found[source] = None if is_none else OffsetAndMetadata(row.offset, row.metadata)
            delay_s = self._metadata.backoff.delay_s(attempt)
            attempt += 1
            if error is not None:
                if loop.time() + delay_s >= deadline:
                    raise error
                await asyncio.sleep(delay_s)
        return found

    async def _look_up(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        topics: dict[str, list[int]] = {}
        for partition in partitions:
            topics.setdefault(partition.topic, []).append(partition.partition)
        answer = await self._metadata.call_any(
            "POST",
            f"{self._path}/committed",
            CommittedResponse,
            CommittedRequest(topics),
            patience_s=COORDINATOR_PATIENCE_S,
            coordinator=self._coordinator,
        )
        rows = {TopicPartition(row.topic, row.partition): row for row in answer.offsets}
        return {
            partition: rows.get(partition) or CommittedOffset(*partition, NO_OFFSET)
            for partition in (TopicPartition(*partition) for partition in partitions)
        }

    # Positions

    def place_soon(self) -> None:
        """Look up the start of the partitions that await the group's committed offset."""
        self.must_place = False
        if self._placing is None or self._placing.done():
            self._placing = asyncio.ensure_future(self._place())

    async def _place(self) -> None:
        """Return once every partition has a position or an error to raise.

        A partition whose offset an open transaction may change waits for its end. The others are
        read in the meantime.
        """
        attempt = 0
        while waiting := [s for s in self._assignment.states.values() if _awaits_commit(s)]:
            try:
                rows = await self._look_up([state.source for state in waiting])
            except RaftlogClientError as error:
                if error.retriable:
                    self._fetcher.position_error = error
                else:
                    for state in waiting:
                        self._fail(state, error)
            else:
                for state in waiting:
                    if _awaits_commit(state):
                        self._placed(state, rows[state.source])
            if any(map(_awaits_commit, self._assignment.states.values())):
                await asyncio.sleep(self._metadata.backoff.delay_s(attempt))
                attempt += 1

    def _placed(self, state: PartitionState, row: CommittedOffset) -> None:
        if row.error_code:
            error = server_error(row.error_code, row.message)
            if error.retriable:
                self._fetcher.position_error = error
            else:
                self._fail(state, error)
            return
        if self._assignment.states.get(state.source) is not state:
            return
        is_of_former = bool(row.topic_id and state.topic_id and row.topic_id != state.topic_id)
        if is_of_former:
            logger.warning(
                "group %s: the committed offset of %s-%d is of a deleted topic of that name",
                self.group_id,
                *state.source,
            )
            if state.reset is not OffsetReset.NONE:
                state.reset = OffsetReset.EARLIEST
        elif row.offset != NO_OFFSET:
            state.committed = row.offset
            self._assignment.jump(state, row.offset)
        self._fetcher.placed(state)

    def _fail(self, state: PartitionState, error: RaftlogClientError) -> None:
        self.must_place = True
        self._fetcher.failed_to_place(state, error)


async def commit_for_group(
    metadata: ClusterMetadata, group_id: str, commits: list[OffsetCommit]
) -> None:
    """Commit offsets of a group without members, for a program that keeps its position elsewhere.

    Raises ServerError for the first refusal. The other offsets are committed.
    """
    answer = await metadata.call_any(
        "POST",
        f"/v1/groups/{quote(group_id, safe='')}/offsets",
        CommitResponse,
        CommitRequest(commits),
        patience_s=COORDINATOR_PATIENCE_S,
        coordinator=CoordinatorKey(OFFSETS_TOPIC, group_id),
    )
    for row in answer.results:
        if row.error_code:
            raise server_error(row.error_code, row.message)


def offset_commits(
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    assignment: Assignment | None = None,
    expected: Mapping[TopicPartition, int] | None = None,
) -> list[OffsetCommit]:
    """Return offsets as requests carry them, with the ids of assigned topics.

    `expected` has the offsets that they replace, where known.
    """
    states = {} if assignment is None else assignment.states
    return [
        OffsetCommit(
            source.topic,
            source.partition,
            Offset(value.offset),
            topic_id=states[source].topic_id if source in states else None,
            metadata=value.metadata,
            expected=ANY_OFFSET if expected is None else expected.get(source, ANY_OFFSET),
        )
        for source, value in offsets.items()
    ]


def _awaits_commit(state: PartitionState) -> bool:
    return state.awaits_commit and state.reset is not None and state.error is None
