"""A lease held through a group whose coordinator chooses a member as primary.

All members are static and subscribe to one topic with the assignor `primary`. The owner of the
topic's partition 0 has the lease. The rules:

1. The lease counts from the moment at which the newest answered heartbeat was *sent*. The
   coordinator counts from the receipt. So the lease is over here before another member is chosen.
2. A lease that is taken away is given up here before that is acknowledged.
3. Heartbeats are held open for a fifteenth of the session. When the connection of a held heartbeat
   ends, the coordinator waits only a fifth of the session, from its receipt, so the end of a
   process is noticed at once. `is_exclusive` therefore counts that shorter time. The next heartbeat
   follows before the response to the previous heartbeat, so that one is held at each moment.
4. A revocation that is not acknowledged ends the membership after the rebalance timeout, which is
   longer than a session. Each response to a heartbeat after the decision carries the revocation. A
   member that does not know it has had no response for a session, and rule 1 applies.

The clock is read at each call, because the event loop's time may predate a pause of the process. It
counts the time for which the machine was suspended, as the coordinator's does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import quote
from uuid import uuid4

from msgspec.structs import replace

from raftlog.api.groups import LEAVE_EPOCH, HeartbeatRequest, HeartbeatResponse, MemberReport
from raftlog.record.coordinators import OFFSETS_TOPIC
from raftlog.record.errors import FENCED_INSTANCE_ID, ILLEGAL_STATE
from raftlog_client.errors import ConnectionLostError, RaftlogClientError, ServerError
from raftlog_client.groups.member import GroupMember, MemberSettings, MemberState, Refusal
from raftlog_client.metadata import Backoff, ClusterMetadata, CoordinatorKey
from raftlog_client.transport import Transport, parse_bootstrap

ASSIGNOR: Final = "primary"
LEASE_PARTITION: Final = 0
HOLD_SHARE: Final = 15
"""Divisor of the session for the hold of a heartbeat."""
DISCONNECT_SHARE: Final = 5
"""Divisor of the session that remains without a connection."""
CLOCK_SHARE: Final = 0.8
"""Share of the shorter session that counts. Clock rates differ by up to a fifth."""
ANSWER_SHARE: Final = 6
"""Divisor of the session for the delay until a late heartbeat goes to another node."""
JOIN_S: Final = 2.0
"""Seconds for the response to a join. The coordinator may have to load or make its topic."""
LEAVE_S: Final = 2.0
"""Seconds for the response to a leave. Without a response the session expires."""
REBALANCE_SHARE: Final = 2
"""Sessions in a rebalance timeout, more than one (rule 4)."""
OVERLAP: Final = 0.8
"""Share of a heartbeat's hold after which the next heartbeat follows."""
WAIT_SHARE: Final = 15
"""Divisor of the session for the pause while another process has the instance id."""
BACKOFF_MS: Final = (20.0, 250.0)
WARN_S: Final = 5.0
"""Seconds of failing heartbeats after which a log line is written."""

logger = logging.getLogger("raftlog_client")


class LeaseListener(Protocol):
    """Calls of a lease in the event loop, synchronous and without waits."""

    def position(self) -> int:
        """Return the number of entries applied. The most advanced member is chosen."""

    def primaries(self) -> int:
        """Return the number of other groups whose primary is this process."""

    def lease_granted(self) -> None:
        """Note that this member is chosen."""

    def lease_lost(self, error: Exception | None) -> None:
        """Note that the lease is over. The coordinator is notified after the return."""


class GroupLease:
    """One member's part in the choice of a primary."""

    def __init__(
        self,
        group_id: str,
        topic: str,
        instance_id: str,
        *,
        listener: LeaseListener,
        endpoint: str | None = None,
        bootstrap_servers: str | Sequence[str] = "localhost:8082",
        session_timeout_ms: int = 1_500,
        client_id: str = "raftlog-client",
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`topic` is subscribed to, and may not exist yet.

        - `instance_id`: id of this member, kept over restarts. If two processes have the same id,
          the
          later process waits for the session of the earlier to end.
        - `endpoint`: `host:port` of the service, for its clients.
        - `session_timeout_ms`: silence after which another member is chosen.
        - `clock`: monotonic, in seconds. Defaults to the system's.
        """
        self._group = group_id
        self._topic = topic
        self._instance_id = instance_id
        self._listener = listener
        self._endpoint = endpoint
        self._servers = bootstrap_servers
        self._session_ms = session_timeout_ms
        self._client_id = client_id
        self._clock = clock or elapsed_s
        self._path = f"/v1/groups/{quote(group_id, safe='')}/heartbeat"
        self._coordinator = CoordinatorKey(OFFSETS_TOPIC, group_id)
        self._member = self._new_member()
        self._is_held = False
        """Whether the listener has the lease."""
        self._sent = float("-inf")
        """Clock time at which the newest answered heartbeat was sent."""
        self._expiry: asyncio.TimerHandle | None = None
        self._heir: tuple[str, asyncio.Future[None]] | None = None
        """Hand-over that the coordinator has not accepted yet."""
        self._may_be_member = False
        """Whether a heartbeat was sent since the start."""
        self._silent_since: float | None = None
        """Clock time since which heartbeats have failed."""
        self._has_warned = False
        """Whether a log line has reported that heartbeats fail."""
        self._report = asyncio.Event()
        """Event that ends a held heartbeat or a pause, because there is something to report."""
        self._transport: Transport | None = None
        self._metadata: ClusterMetadata | None = None
        self._task: asyncio.Task[None] | None = None

    def _new_member(self) -> GroupMember:
        settings = MemberSettings(
            member_id=uuid4().hex,
            instance_id=self._instance_id,
            client_id=self._client_id,
            assignor=ASSIGNOR,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=REBALANCE_SHARE * self._session_ms,
        )
        return GroupMember(settings)

    @property
    def is_primary(self) -> bool:
        """Whether the lease is held at the clock's present time."""
        return self._is_held and self._left_s() > 0

    @property
    def is_exclusive(self) -> bool:
        """Whether no other member is chosen now, as clock rates differ by under a fifth.

        Shorter than the lease, because the coordinator may have noticed an end of the connection.
        """
        alone_s = self._session_ms / DISCONNECT_SHARE / 1000
        return self._is_held and self._clock() < self._sent + CLOCK_SHARE * alone_s

    async def start(self) -> None:
        """Join in the background, however long the coordinator is away. Also after `close`."""
        if self._task is not None:
            return
        self._transport = Transport(client_id=self._client_id, request_timeout_ms=1000 * JOIN_S)
        self._transport.start()
        self._metadata = ClusterMetadata(
            self._transport, parse_bootstrap(self._servers), Backoff(*BACKOFF_MS)
        )
        self._member = self._new_member()
        self._member.subscribe([self._topic], None)
        self._may_be_member = False
        self._task = asyncio.get_running_loop().create_task(self._run(self._metadata))
        self._task.add_done_callback(_log_failure)

    async def close(self) -> None:
        """Leave, so that another member is chosen at once. A held lease is lost first."""
        task, self._task = self._task, None
        transport, metadata = self._transport, self._metadata
        if task is None or transport is None or metadata is None:
            return
        self._transport = self._metadata = None
        self._lose(None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        try:
            await self._leave(metadata)
        finally:
            await metadata.close()
            await transport.close()

    async def hand_over(self, instance_id: str) -> None:
        """Make the coordinator choose another member in place of this member.

        Returns once the coordinator has accepted. The lease is lost by then, or soon. Raises
        ServerError (ILLEGAL_STATE) if the other is not a live member or this member has no lease.
        Raises ConnectionLostError if the lease ends before the response.
        """
        if not self.is_primary:
            raise ServerError(ILLEGAL_STATE, f"{self._instance_id} has no lease to hand over.")
        if self._heir is not None:
            raise ServerError(ILLEGAL_STATE, "Another hand-over is under way.")
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heir = self._heir = (instance_id, accepted)
        self._report.set()
        try:
            await accepted
        finally:
            if self._heir is heir:
                self._heir = None

    # Heartbeats

    async def _run(self, metadata: ClusterMetadata) -> None:
        attempt = 0
        following: _Heartbeat | None = None
        try:
            while True:
                self._report.clear()
                heartbeat = following or self._send(metadata)
                following = None
                pause_s = 0.0
                try:
                    response, following = await self._outcome(metadata, heartbeat)
                except RaftlogClientError as error:
                    pause_s = self._failed(metadata, heartbeat.request, error, attempt)
                    attempt += 1
                else:
                    if response is None:
                        self._member.unanswered()
                        continue
                    attempt, self._silent_since, self._has_warned = 0, None, False
                    is_news = self._answered(heartbeat.request, response, heartbeat.sent)
                    if following is not None and (is_news or self._member.has_report):
                        await following.cancel()  # Sent before this news.
                        following = None
                    hold_s = heartbeat.request.max_wait_ms / 1000
                    took_s = self._clock() - heartbeat.sent
                    if not is_news and took_s < hold_s / 2:
                        pause_s = hold_s - took_s  # The node holds no heartbeats open.
                if pause_s and not self._report.is_set():
                    await self._pause(pause_s)
        finally:
            if following is not None:
                await following.cancel()

    def _request(self) -> HeartbeatRequest:
        if self._heir is not None:
            # Ended by a report. The coordinator rejects late copies of a report.
            self._member.unanswered()
        request = self._member.request()
        listener = self._listener
        report = MemberReport(
            listener.position(),
            listener.primaries(),
            self._endpoint,
            self._session_ms // DISCONNECT_SHARE,
        )
        hold_ms = self._session_ms // HOLD_SHARE if request.max_wait_ms else 0
        is_joining = self._member.state is MemberState.JOINING
        heir = None if self._heir is None or is_joining else self._heir[0]
        return replace(request, max_wait_ms=hold_ms, report=report, hand_over_to=heir)

    def _send(self, metadata: ClusterMetadata) -> _Heartbeat:
        """Send the next heartbeat."""
        request = self._request()
        self._may_be_member = True
        timeout_s = (request.max_wait_ms + self._session_ms / ANSWER_SHARE) / 1000
        if self._member.state is MemberState.JOINING:
            timeout_s = JOIN_S
        sent = self._clock()
        call = asyncio.ensure_future(
            metadata.call_next(
                "POST",
                self._path,
                HeartbeatResponse,
                request,
                timeout_s=timeout_s,
                coordinator=self._coordinator,
            )
        )
        return _Heartbeat(request, sent, call)

    async def _outcome(
        self, metadata: ClusterMetadata, heartbeat: _Heartbeat
    ) -> tuple[HeartbeatResponse | None, _Heartbeat | None]:
        """Return the response (None if a report ended the wait) and the next sent heartbeat.

        A held heartbeat is followed by the next before its time is over. The coordinator then
        responds to the earlier heartbeat, and has a connection to watch at each moment.
        """
        call, hold_s = heartbeat.call, heartbeat.request.max_wait_ms / 1000
        if not hold_s:
            try:
                return await call, None
            finally:
                await heartbeat.cancel()
        following: _Heartbeat | None = None
        is_answered = False
        report = asyncio.ensure_future(self._report.wait())
        try:
            wait_s = max(0.0, heartbeat.sent + OVERLAP * hold_s - self._clock())
            await asyncio.wait((call, report), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if not call.done() and not report.done():
                following = self._send(metadata)
                await asyncio.wait((call, report), return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                return None, None
            response = call.result()
            is_answered = True
            return response, following
        finally:
            report.cancel()
            await heartbeat.cancel()
            if following is not None and not is_answered:
                await following.cancel()

    def _answered(
        self, request: HeartbeatRequest, response: HeartbeatResponse, sent: float
    ) -> bool:
        """Apply a response and return whether it has news."""
        member = self._member
        before = member.epoch, member.assigned
        member.answered(request, response)
        self._session_ms = response.session_timeout_ms
        self._sent = sent
        if self._heir is not None and request.hand_over_to == self._heir[0]:
            _settle(self._heir[1], None)
        is_assigned = any(
            (partition.topic, partition.partition) == (self._topic, LEASE_PARTITION)
            for partition in member.assigned
        )
        if not is_assigned:
            self._lose(None)
        member.gave_up(member.to_revoke)
        member.took(member.to_add)
        # The response may arrive after the time that it grants.
        if is_assigned and self._left_s() > 0:
            self._expire_later()
            if not self._is_held:
                self._is_held = True
                logger.info("group %s: member %s has the lease", self._group, self._instance_id)
                self._listener.lease_granted()
        return before != (member.epoch, member.assigned)

    def _failed(
        self,
        metadata: ClusterMetadata,
        request: HeartbeatRequest,
        error: RaftlogClientError,
        attempt: int,
    ) -> float:
        """Judge a heartbeat's error and return the pause before the next, in seconds."""
        delay_s = metadata.backoff.delay_s(attempt)
        if not isinstance(error, ServerError):
            self._member.unanswered()
            self._warn_once(error)
            return delay_s
        if error.entry is ILLEGAL_STATE and request.hand_over_to is not None:
            self._member.unanswered()
            if self._heir is not None:
                _settle(self._heir[1], error)
                self._heir = None
            return 0.0
        if error.entry is FENCED_INSTANCE_ID:
            # Another process with this instance id has joined since.
            self._lose(error)
            self._member.lose()
            self._warn_once(error)
            return self._session_ms / WAIT_SHARE / 1000
        match self._member.refused(error.entry):
            case Refusal.LOST:
                logger.warning("group %s: membership lost, joining again: %s", self._group, error)
                self._lose(error)
                self._member.lose()
                return delay_s if attempt else 0.0
            case Refusal.WAIT_FOR_INSTANCE:
                self._warn_once(error)
                return self._session_ms / WAIT_SHARE / 1000
            case Refusal.FATAL | Refusal.RETRY:
                self._warn_once(error)
        return delay_s

    def _warn_once(self, error: RaftlogClientError) -> None:
        """Log that heartbeats fail, once they have failed longer than usual failovers take."""
        now = self._clock()
        if self._silent_since is None:
            self._silent_since = now
        if not self._has_warned and now - self._silent_since >= WARN_S:
            self._has_warned = True
            logger.warning(
                "group %s: member %s: heartbeats have failed for %.0f s, and are repeated: %s",
                self._group,
                self._instance_id,
                now - self._silent_since,
                error,
            )

    # The lease

    def _left_s(self) -> float:
        """Return the seconds that the newest answered heartbeat still grants."""
        return self._sent + self._session_ms / 1000 - self._clock()

    def _expire_later(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        left_s = max(0.0, self._left_s())
        self._expiry = asyncio.get_running_loop().call_later(left_s, self._expire)

    def _expire(self) -> None:
        """End the lease if its time is over, even while a heartbeat hangs."""
        if self._left_s() > 0:
            self._expire_later()
            return
        self._lose(
            ConnectionLostError(
                f"Group {self._group!r}: no heartbeat sent in the last "
                f"{self._clock() - self._sent:.1f} s was answered.",
                outcome_unknown=True,
            )
        )

    def _lose(self, error: Exception | None) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._is_held:
            self._is_held = False
            logger.info("group %s: member %s gives up the lease", self._group, self._instance_id)
            self._listener.lease_lost(error)
        if self._heir is not None:
            _settle(
                self._heir[1],
                ConnectionLostError(
                    f"Group {self._group!r}: the lease ended before the hand-over was answered.",
                    outcome_unknown=True,
                ),
            )

    async def _leave(self, metadata: ClusterMetadata) -> None:
        if not self._may_be_member:
            return
        request, _ = self._member.leave()
        try:
            async with asyncio.timeout(LEAVE_S):
                await metadata.call_any(
                    "POST",
                    self._path,
                    HeartbeatResponse,
                    # A final leave, though static (KIP-1092), so that nothing waits for its
                    # session.
                    replace(request, member_epoch=LEAVE_EPOCH),
                    patience_s=LEAVE_S / 2,
                    coordinator=self._coordinator,
                )
        except (RaftlogClientError, TimeoutError) as error:
            logger.info(
                "group %s: the leave failed, a session ends by itself: %r", self._group, error
            )

    async def _pause(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._report.wait()
        except TimeoutError:
            return


def elapsed_s() -> float:
    """Return CLOCK_BOOTTIME where the kernel has it (Linux), else the best clock available."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


@dataclass(frozen=True, slots=True)
class _Heartbeat:
    """A heartbeat under way."""

    request: HeartbeatRequest
    sent: float
    """Time of sending, by the lease's clock."""
    call: asyncio.Future[HeartbeatResponse]

    async def cancel(self) -> None:
        """Cancel the heartbeat if no response has arrived."""
        if not self.call.done():
            self.call.cancel()
            await asyncio.wait((self.call,))
        elif not self.call.cancelled():
            self.call.exception()  # Retrieved, because its response is not awaited.


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _log_failure(task: asyncio.Task[None]) -> None:
    """Log a failure. Heartbeats end only by `close`, so this is a defect, and the lease expires."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("heartbeats of a lease have failed", exc_info=error)
