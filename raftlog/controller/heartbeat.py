"""Every node sends heartbeats to the active controller, and earns a lease by them.

A heartbeat goes to the leader known to the quorum member, over the quorum's connection, or by a
call if this node leads. A node sends a heartbeat every HEARTBEAT_S, at once after a change of
leader, connection or registration, and every RETRY_S while no controller accepts. A stopping node
sends a heartbeat every 10 ms until its leaderships are handed over.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

from msgspec import UNSET

from raftlog.controller.disk_watch import DiskWatch
from raftlog.controller.lead_permit import LeadPermit
from raftlog.controller.messages import (
    HEARTBEAT_S,
    Heartbeat,
    HeartbeatAnswer,
    HeartbeatReply,
    RefusalReason,
    encode_message,
)
from raftlog.metadata.apply.apply import ApplyResult
from raftlog.raft import RaftMember
from raftlog.record.types import BrokerEpoch, BrokerId
from raftlog.world import Clock, Randomness, Wakeup

LISTENERS_MAX: Final = 64
RETRY_S: Final = 0.05
"""Seconds until the next heartbeat if no active controller took the last heartbeat."""
STOPPING_S: Final = 0.01
"""Seconds between two heartbeats of a stopping node, until its leaderships are handed over."""

logger = logging.getLogger(__name__)


class Heartbeats:
    """The heartbeats of one broker. Lives in the event loop."""

    def __init__(
        self,
        *,
        quorum: RaftMember[ApplyResult],
        clock: Clock,
        randomness: Randomness,
        broker_id: BrokerId,
        permit: LeadPermit,
        deliver: Callable[[Heartbeat], HeartbeatReply],
        disk: DiskWatch,
        on_cluster_time: Callable[[int, int], None],
    ) -> None:
        """`deliver` has this node's own controller take a heartbeat. Responses feed the `permit`.

        They report whether this node's `disk` takes writes. `on_cluster_time` takes the lower and
        the upper cluster time of each response.
        """
        self._quorum = quorum
        self._clock = clock
        self._randomness = randomness
        self._broker_id = broker_id
        self._permit = permit
        self._deliver = deliver
        self._disk = disk
        self._on_cluster_time = on_cluster_time
        self.unwritable: frozenset[BrokerId] = frozenset()
        """The brokers without a writable disk, by the newest answer."""
        self._notified_valid = False
        self._send_at = -math.inf
        self._stopping = False
        self._drained_index: int | None = None
        self._wakeup = Wakeup(clock)
        self._progress = Wakeup(clock)
        self._on_lease_changed: list[Callable[[bool], None]] = []
        self._on_refused: list[Callable[[RefusalReason, str], None]] = []

    def registered(self, broker_epoch: BrokerEpoch) -> None:
        """Begin to send heartbeats for this incarnation, which has no lease yet."""
        self._permit.registered(broker_epoch)
        self.send_soon()

    def send_soon(self) -> None:
        """Send a heartbeat now, because of a change."""
        self._send_at = -math.inf
        self._wakeup.set()

    def on_lease_changed(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` after the lease has begun or ended. The permit may lack the lease
        earlier."""
        assert len(self._on_lease_changed) < LISTENERS_MAX
        self._on_lease_changed.append(callback)

    def on_refused(self, callback: Callable[[RefusalReason, str], None]) -> None:
        """Call `callback` once per incarnation when the cluster rejects the incarnation."""
        assert len(self._on_refused) < LISTENERS_MAX
        self._on_refused.append(callback)

    def received(self, sender: int, reply: HeartbeatReply) -> None:
        """A reply to a heartbeat has come."""
        permit = self._permit
        if reply.broker_epoch != permit.broker_epoch:
            return
        # The lease may have ended unnoticed while this process was busy. Without a notification,
        # commits withheld since would wait for the next append.
        self._notify_lease()
        if isinstance(reply, HeartbeatAnswer):
            if permit.lease.answered(sender, reply):
                self.unwritable = frozenset(reply.unwritable)
                permit.controller_applied(reply.applied_index)
                if reply.cluster_time_ms is not UNSET:
                    time_ms, latest_ms = reply.cluster_time_ms, reply.cluster_latest_ms
                    self._on_cluster_time(time_ms, time_ms if latest_ms is UNSET else latest_ms)
                if reply.drained and self._stopping:
                    self._drained_index = reply.applied_index
                self._progress.set()
        elif permit.lease.refused(sender, reply.sequence):
            if reply.reason is RefusalReason.NOT_ACTIVE:
                self._retry_soon()
            else:
                self._void_registration(reply.reason, reply.explanation)
        self._notify_lease()

    async def drain(self, timeout_s: float) -> bool:
        """Hand over the led partitions. Returns whether the handover is complete and applied here.
        False after `timeout_s`."""
        self._stopping = True
        self.send_soon()
        deadline = self._clock.monotonic() + timeout_s
        while not self._is_drained():
            now = self._clock.monotonic()
            if now >= deadline:
                return False
            # Some applied entries come without a notification.
            await self._progress.wait(min(deadline, now + STOPPING_S))
        return True

    async def run(self) -> None:
        """Send heartbeats, for ever."""
        while True:
            now = self._clock.monotonic()
            if now >= self._send_at:
                self._send_at = now + self._interval_s()
                self._send(now)
            self._notify_lease()
            wake_at = self._send_at
            lease = self._permit.lease
            if self._notified_valid and lease.until > now:
                wake_at = min(wake_at, lease.until)
            await self._wakeup.wait(wake_at)

    def _interval_s(self) -> float:
        waits = self._stopping and self._drained_index is None
        return STOPPING_S if waits else HEARTBEAT_S

    def _send(self, now: float) -> None:
        permit = self._permit
        if permit.broker_epoch is None or permit.is_rejected:
            return
        leader_id = self._quorum.leader_id
        if leader_id is None:
            self._retry_soon()
            return
        heartbeat = Heartbeat(
            # The time is from before whatever the controller will take for its arrival.
            sequence=permit.lease.sent(leader_id, now),
            broker_id=self._broker_id,
            broker_epoch=permit.broker_epoch,
            applied_index=self._quorum.applied_index,
            stopping=self._stopping,
            can_write=self._disk.can_write(),
            time_ms=max(self._clock.time_ms(), 0),
        )
        if leader_id == self._broker_id:
            self.received(leader_id, self._deliver(heartbeat))
        elif not self._quorum.send(leader_id, encode_message(heartbeat)):
            self._retry_soon()

    def _retry_soon(self) -> None:
        # All brokers are rejected at about the same time, so spread their retries.
        delay_s = RETRY_S * self._randomness.uniform(0.5, 1.0)
        self._send_at = min(self._send_at, self._clock.monotonic() + delay_s)
        self._wakeup.set()

    def _void_registration(self, reason: RefusalReason, explanation: str) -> None:
        if self._permit.is_rejected:
            return
        self._permit.rejected()
        logger.error("the controller rejected this node's registration: %s", explanation)
        for callback in self._on_refused:
            callback(reason, explanation)

    def _is_drained(self) -> bool:
        # Before this node has applied the handover, it would continue as the leader.
        index = self._drained_index
        return index is not None and self._quorum.applied_index >= index

    def _notify_lease(self) -> None:
        valid = not self._permit.is_cut_off
        if valid != self._notified_valid:
            self._notified_valid = valid
            if not valid:
                logger.warning(
                    "lease expired: cut off from the controller, rejecting writes to led partitions"
                )
            # The callback may read the lease, and must see the notified state.
            for callback in self._on_lease_changed:
                callback(valid)
