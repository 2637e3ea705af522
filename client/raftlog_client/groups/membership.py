"""Keeps a consumer's membership, with the I/O around groups/member.py.

Heartbeats run in a separate task. A node holds each open until there is news. Changes of the
assignment are executed inside the application's read calls. All records given out before are
processed by then, and exactly these are committed before a partition is given up. No more of a
partition's records are handed out from the moment a response takes the partition away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final
from urllib.parse import quote

from raftlog.api.groups import HeartbeatRequest, HeartbeatResponse
from raftlog.record.coordinators import OFFSETS_TOPIC
from raftlog_client.errors import ConnectionLostError, RaftlogClientError, ServerError
from raftlog_client.fetch.assignment import Assignment
from raftlog_client.fetch.record_buffer import RecordBuffer
from raftlog_client.fetch.subscription import OffsetReset
from raftlog_client.groups.member import GroupMember, GroupPartition, MemberState, Refusal
from raftlog_client.groups.offsets import GroupOffsets
from raftlog_client.metadata import ClusterMetadata, CoordinatorKey
from raftlog_client.types import RebalanceListener, TopicPartition

ANSWER_SHARE: Final = 6
"""Divisor of the session for the delay until a late heartbeat goes to another node."""
WATCH_SHARE: Final = 10
"""Checks for stalls in each session or poll interval."""
WATCH_S_MAX: Final = 1.0
LEAVE_TIMEOUT_S: Final = 2.0
"""Seconds for the response to the last heartbeat. Without a response the session expires."""
NEWS_PAUSE_S: Final = 0.05
"""Seconds before a held heartbeat is repeated after an immediate response without news."""

logger = logging.getLogger("raftlog_client")


class GroupMembership:
    """One consumer's membership. `join` first, `leave` at the end."""

    def __init__(
        self,
        member: GroupMember,
        metadata: ClusterMetadata,
        assignment: Assignment,
        offsets: GroupOffsets,
        buffer: RecordBuffer,
        *,
        max_poll_interval_s: float,
        commits_itself: bool,
        reset: OffsetReset,
        wake: Callable[[], None],
    ) -> None:
        """`commits_itself` means commits without a call of the application.

        `wake` ends the wait of a read call, which then calls `poll`.
        """
        self.listener = RebalanceListener()
        self.is_due = False
        """Whether the next read call has to `poll`."""
        self.is_waiting = False
        """Whether a read call waits for records, so that the application is not stuck."""
        self.partition_counts: Mapping[str, int] = {}
        """Partitions of the topics when they were subscribed to. Later partitions are new."""
        self._member = member
        self._metadata = metadata
        self._assignment = assignment
        self._offsets = offsets
        self._buffer = buffer
        self._max_poll_interval_s = max_poll_interval_s
        self._commits_itself = commits_itself
        self._default_reset = reset
        self._wake_reader = wake
        self._group = offsets.group_id
        self._path = f"/v1/groups/{quote(self._group, safe='')}/heartbeat"
        self._coordinator = CoordinatorKey(OFFSETS_TOPIC, self._group)
        self._error: RaftlogClientError | None = None
        """Error raised by the next read call."""
        self._is_fatal = False
        self._lost: set[TopicPartition] = set()
        """Lost partitions that the listener has not received."""
        self._report = asyncio.Event()
        """Event that ends a held heartbeat or a pause, because there is something to report."""
        self._answered = asyncio.Event()
        """Set, and replaced, after each heartbeat's outcome."""
        self._must_leave = False
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._reconciling: asyncio.Task[None] | None = None
        self._heard_at = 0.0
        """Time at which the newest answered heartbeat was sent."""
        self._failing_since: float | None = None
        self._waiting_since: float | None = None
        """Time since which an earlier process holds the instance id."""
        self._stall_s = 0.0
        """Longest stall of the event loop since the last response."""

    # By the consumer

    async def join(self) -> None:
        """Become a member, or report a changed subscription. Executes the first assignment.

        Raises RaftlogClientError if no coordinator responds within `request_timeout_ms`.
        """
        if not self._tasks:
            self._heard_at = asyncio.get_running_loop().time()
            self._tasks = (
                asyncio.ensure_future(self._keep_alive()),
                asyncio.ensure_future(self._watch()),
            )
            for task in self._tasks:
                task.add_done_callback(self._task_ended)
        # The application is alive. No heartbeat leaves the group, because none would rejoin.
        self._must_leave = False
        self.is_waiting = True
        try:
            self._report.set()
            while self._member.has_report and self._error is None:
                await self._answered.wait()
        finally:
            self.is_waiting = False
        await self.poll()

    async def poll(self) -> None:
        """Raise a failure, rejoin if stuck before, execute a changed assignment."""
        self.is_due = False
        if self._error is not None:
            error = self._error
            if not self._is_fatal:
                self._error = self._failing_since = None
            self.is_due = self._is_fatal
            raise error
        if self._member.state is MemberState.LEFT:
            logger.warning("group %s: the application reads again and rejoins", self._group)
            self._member.rejoin()
            self._report.set()
        if self._offsets.must_place:
            self._offsets.place_soon()
        if self._reconciling is None:
            self._reconciling = asyncio.ensure_future(self._reconcile())
        task = self._reconciling
        try:
            # Continues if a timeout cancels the read call, for example. The next call waits.
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            self.is_due = True
            raise
        self._reconciling = None
        task.result()

    def report_soon(self) -> None:
        """Send a heartbeat now, because the epoch is not the newest."""
        self._member.unanswered()
        self._report.set()

    async def leave(self, *, is_clean: bool) -> None:
        """Give up all partitions and leave the group. Raises what the listener raises.

        With `is_clean`, all records given out are processed and are committed.
        """
        tasks, self._tasks = self._tasks, ()
        if not tasks:
            return
        watch = tasks[1]
        watch.cancel()
        try:
            if self._reconciling is not None:
                await asyncio.wait((self._reconciling,))
            if is_clean:
                self._buffer.begin_call()
            sources = {partition.source for partition in self._member.owned}
            if sources:
                await self._give_up(sources)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._leave()

    # Rebalances

    async def _reconcile(self) -> None:
        """Align the partitions read with the partitions assigned."""
        member = self._member
        while self._lost or member.to_revoke or member.to_add:
            lost, self._lost = self._lost, set()
            if lost:
                await _call(self.listener.on_partitions_lost, lost)
            if revoked := member.to_revoke:
                try:
                    await self._give_up({partition.source for partition in revoked})
                finally:
                    # A partition that was given back in the meantime restarts at its committed
                    # offset.
                    gone = revoked & member.owned
                    member.gave_up(gone)
                    self._assignment.drop(partition.source for partition in sorted(gone))
                    self._report.set()
            if added := sorted(member.to_add):
                member.took(added)
                self._assignment.add(
                    {partition.source: partition.topic_id for partition in added},
                    [self._reset(p) for p in added],
                )
                logger.info("group %s: assigned %s", self._group, _names(added))
                try:
                    await _call(
                        self.listener.on_partitions_assigned,
                        {partition.source for partition in added},
                    )
                finally:
                    self._offsets.place_soon()

    async def _give_up(self, sources: set[TopicPartition]) -> None:
        """Commit processed positions and notify the listener."""
        logger.info("group %s: giving up %d partitions", self._group, len(sources))
        if self._commits_itself:
            await self._offsets.commit_processed(sources)
        await _call(self.listener.on_partitions_revoked, sources)
        self._offsets.lost_uncommitted |= self._offsets.positions().keys() & sources

    def _reset(self, partition: GroupPartition) -> OffsetReset:
        """Return the start without a committed offset. New partitions start at their beginning."""
        reset = self._default_reset
        count = self.partition_counts.get(partition.topic, 0)
        if reset is OffsetReset.LATEST and partition.partition >= count:
            return OffsetReset.EARLIEST
        return reset

    def _apply(self) -> None:
        """Hand out no more of the revoked partitions, and wake the reader, after a response."""
        member = self._member
        self._assignment.hold_all_but({partition.source for partition in member.readable})
        if member.to_revoke or member.to_add:
            self._notify()

    def _notify(self) -> None:
        self.is_due = True
        self._wake_reader()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Pass a task's failure to read calls, so that no consumer lacks heartbeats."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        failure = RaftlogClientError(f"Group {self._group!r}: heartbeats have failed: {error!r}")
        failure.__cause__ = error
        self._fail(failure, is_fatal=True)
        self._answered.set()

    # Heartbeats

    async def _keep_alive(self) -> None:
        """Send heartbeats until cancelled or finally refused."""
        attempt = 0
        while not self._is_fatal:
            if self._must_leave:
                await self._leave_stuck()
            if self._member.state is MemberState.LEFT:
                await self._pause(None)
                continue
            self._report.clear()
            request = self._member.request()
            loop = asyncio.get_running_loop()
            sent_at = loop.time()
            pause_s: float | None = None
            try:
                response = await self._send(request)
            except RaftlogClientError as error:
                pause_s = self._failed(error, attempt)
                attempt += 1
            else:
                if response is None:
                    # Ended by a report, so its response may be lost.
                    self._member.unanswered()
                    continue
                attempt = 0
                is_news = self._take(request, response, sent_at)
                if not is_news and request.max_wait_ms and loop.time() - sent_at < NEWS_PAUSE_S:
                    # The node does not hold heartbeats open.
                    pause_s = min(request.max_wait_ms, response.heartbeat_interval_ms) / 1000
            answered, self._answered = self._answered, asyncio.Event()
            answered.set()
            if pause_s is not None:
                await self._pause(pause_s)

    async def _send(self, request: HeartbeatRequest) -> HeartbeatResponse | None:
        """Send one heartbeat. Returns None if a report ended it while it was held."""
        slack_s = max(self._member.session_timeout_s / ANSWER_SHARE, 0.1)
        call = asyncio.ensure_future(
            self._metadata.call_next(
                "POST",
                self._path,
                HeartbeatResponse,
                request,
                timeout_s=request.max_wait_ms / 1000 + slack_s,
                coordinator=self._coordinator,
            )
        )
        report = asyncio.ensure_future(self._report.wait())
        try:
            if request.max_wait_ms:
                await asyncio.wait((call, report), return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.wait((call,))
            return call.result() if call.done() else None
        finally:
            report.cancel()
            if not call.done():
                call.cancel()
                await asyncio.wait((call,))

    def _take(self, request: HeartbeatRequest, response: HeartbeatResponse, sent_at: float) -> bool:
        """Apply a response and return whether it has news."""
        before = self._member.epoch, self._member.assigned
        is_join = self._member.state is MemberState.JOINING
        self._member.answered(request, response)
        self._heard_at = sent_at
        self._failing_since = self._waiting_since = None
        self._stall_s = 0.0
        if is_join:
            logger.info(
                "group %s: joined as member %s, epoch %d",
                self._group,
                response.member_id,
                response.member_epoch,
            )
        self._apply()
        return before != (self._member.epoch, self._member.assigned)

    def _failed(self, error: RaftlogClientError, attempt: int) -> float:
        """Judge a heartbeat's error and return the pause before the next, in seconds."""
        now = asyncio.get_running_loop().time()
        delay_s = self._metadata.backoff.delay_s(attempt)
        refusal = Refusal.RETRY
        if isinstance(error, ServerError):
            refusal = self._member.refused(error.entry)
        else:
            self._member.unanswered()
            if not error.retriable:
                refusal = Refusal.FATAL
        match refusal:
            case Refusal.LOST:
                self._lose(error, now)
                return 0.0
            case Refusal.FATAL:
                self._fail(error, is_fatal=True)
            case Refusal.WAIT_FOR_INSTANCE:
                since = self._waiting_since = self._waiting_since or now
                if now - since > 2 * self._member.session_timeout_s:
                    self._fail(error, is_fatal=True)
                return max(delay_s, self._member.session_timeout_s / WATCH_SHARE)
            case Refusal.RETRY:
                if self._failing_since is None:
                    self._failing_since = now
                if now - self._failing_since + delay_s >= self._metadata.request_timeout_s:
                    self._fail(error, is_fatal=False)
        return delay_s

    def _fail(self, error: RaftlogClientError, *, is_fatal: bool) -> None:
        """Raise the error in the next read call. Without `is_fatal` heartbeats continue."""
        if isinstance(error, ConnectionLostError):
            error = ConnectionLostError(
                f"Group {self._group!r}: no coordinator has answered for "
                f"{self._metadata.request_timeout_s:.0f} s: {error}",
                outcome_unknown=False,
                reason=error.reason,
            )
        self._error = error
        self._is_fatal = is_fatal
        self._notify()

    def _lose(self, error: RaftlogClientError, now: float) -> None:
        """Drop all partitions and rejoin, because the coordinator has ended the session."""
        lost = self._member.lose()
        logger.warning(
            "group %s: session lost, joining again. The last answered heartbeat was sent %.1f s "
            "ago (session %.1f s), since then the event loop stalled for up to %.1f s. "
            "%d partitions are lost, uncommitted records will be read again: %s",
            self._group,
            now - self._heard_at,
            self._member.session_timeout_s,
            self._stall_s,
            len(lost),
            error,
        )
        self._drop(lost)

    def _drop(self, lost: Collection[GroupPartition]) -> None:
        sources = {partition.source for partition in lost}
        self._offsets.lost_uncommitted |= self._offsets.positions().keys() & sources
        self._assignment.drop(sorted(sources))
        self._lost |= sources
        self._notify()

    # Ends

    async def _leave_stuck(self) -> None:
        self._must_leave = False
        request, owned = self._member.leave()
        self._drop(owned)
        await self._send_last(request)

    async def _leave(self) -> None:
        if self._member.state is MemberState.JOINED:
            request, owned = self._member.leave()
            self._assignment.drop(partition.source for partition in sorted(owned))
            await self._send_last(request)

    async def _send_last(self, request: HeartbeatRequest) -> None:
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._metadata.call_any(
                    "POST", self._path, HeartbeatResponse, request, patience_s=LEAVE_TIMEOUT_S / 2
                )
        except (RaftlogClientError, TimeoutError) as error:
            logger.info(
                "group %s: leaving was not answered, the session ends by itself: %r",
                self._group,
                error,
            )

    async def _watch(self) -> None:
        """Measure stalls of the event loop and detect an application that stopped reading."""
        loop = asyncio.get_running_loop()
        interval_s = self._max_poll_interval_s
        tick_s = min(interval_s, self._member.session_timeout_s, 10 * WATCH_S_MAX) / WATCH_SHARE
        progress: object = None
        progress_at = loop.time()
        while True:
            before = loop.time()
            await asyncio.sleep(tick_s)
            now = loop.time()
            self._stall_s = max(self._stall_s, now - before - tick_s)
            if self.is_waiting or progress != self._buffer.progress:
                progress, progress_at = self._buffer.progress, now
            elif now - progress_at >= interval_s and self._member.state is MemberState.JOINED:
                logger.warning(
                    "group %s: the application has read nothing for %.1f s (max_poll_interval_ms): "
                    "leaving the group, its partitions go to other members. Process less at once "
                    "(max_poll_records), or allow more time.",
                    self._group,
                    now - progress_at,
                )
                self._must_leave = True
                self._report.set()

    async def _pause(self, timeout_s: float | None) -> None:
        """Wait for the timeout, or until there is something to report."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._report.wait()
        except TimeoutError:
            return
        self._report.clear()


async def _call(
    method: Callable[[Collection[TopicPartition]], Awaitable[None] | None],
    sources: set[TopicPartition],
) -> None:
    """Call a listener's method, sync or async."""
    result = method(frozenset(sources))
    if result is not None:
        await result


def _names(partitions: Collection[GroupPartition]) -> str:
    shown = sorted(partitions)[:10]
    text = ", ".join(f"{partition.topic}-{partition.partition}" for partition in shown)
    return text + (", …" if len(partitions) > len(shown) else "")
