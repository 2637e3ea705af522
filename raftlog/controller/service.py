"""A node's controller service sends its heartbeats, and acts as the active controller.

Start the service once the quorum member is open, call `registered` after the registration, and read
the lease. To stop, call `shut_down`, close the listeners of users, resign the quorum's leadership,
then `close`, then close the quorum.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Final

from raftlog.controller.active import ActiveController
from raftlog.controller.disk_watch import DiskWatch
from raftlog.controller.heartbeat import Heartbeats
from raftlog.controller.lead_permit import LeadPermit
from raftlog.controller.log_ends import LogEndQueries
from raftlog.controller.messages import (
    ControllerMessageError,
    Heartbeat,
    LogEndsMessage,
    RefusalReason,
    decode_message,
    encode_message,
)
from raftlog.metadata.apply.apply import ApplyResult
from raftlog.metadata.decisions.elections import LogEnd, LogEnds, PartitionKey
from raftlog.metadata.delta import MetadataDelta
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.raft import ConnectionEvent, RaftMember
from raftlog.record.types import BrokerEpoch, BrokerId
from raftlog.world import Clock, Randomness

UNREADABLE_PEERS_MAX: Final = 1_000
"""Most peers with reported unreadable messages. Beyond, none is reported."""

logger = logging.getLogger(__name__)


class ControllerService:
    """Lives in the event loop of one node."""

    def __init__(
        self,
        *,
        quorum: RaftMember[ApplyResult],
        state_machine: MetadataStateMachine,
        clock: Clock,
        randomness: Randomness,
        broker_id: BrokerId,
        permit: LeadPermit,
        on_fatal: Callable[[str], None],
        log_end: Callable[[PartitionKey], LogEnd],
        disk: DiskWatch,
        on_cluster_time: Callable[[int, int], None] = lambda _lower, _upper: None,
    ) -> None:
        """Heartbeats feed the `permit`. `on_fatal` receives the reason if the node must end.

        `log_end` returns the end of this node's log of a partition, NO_LOG_END without a usable
        log. If this node's `disk` takes no writes, other brokers should lead. `on_cluster_time`
        takes the lower and the upper cluster time, in milliseconds, of each response of the
        controller.
        """
        self._quorum = quorum
        self._state_machine = state_machine
        self._broker_id = broker_id
        self._permit = permit
        self._on_fatal = on_fatal
        self._log_ends = LogEndQueries(
            quorum=quorum,
            state_machine=state_machine,
            clock=clock,
            broker_id=broker_id,
            log_end=log_end,
        )
        self._active = ActiveController(
            quorum=quorum,
            state_machine=state_machine,
            clock=clock,
            randomness=randomness,
            broker_id=broker_id,
            log_ends=self._log_ends,
        )
        self._heartbeats = Heartbeats(
            quorum=quorum,
            clock=clock,
            randomness=randomness,
            broker_id=broker_id,
            permit=permit,
            deliver=self._active.handle_heartbeat,
            disk=disk,
            on_cluster_time=on_cluster_time,
        )
        self._unreadable: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    @property
    def permit(self) -> LeadPermit:
        """Whether this node may act as a leader."""
        return self._permit

    @property
    def unwritable(self) -> frozenset[BrokerId]:
        """The brokers without a writable disk, by the controller's newest answer."""
        return self._heartbeats.unwritable

    def start(self) -> None:
        """Receive messages, act while this node is the active controller, and send heartbeats once
        registered."""
        assert not self._tasks
        self._quorum.on_message(self._received)
        self._quorum.on_connection(self._connection_changed)
        self._quorum.on_role_changed(self._role_changed)
        self._state_machine.subscribe(self._applied)
        self._run(self._active.run(), "active-controller")
        self._run(self._heartbeats.run(), "heartbeats")

    async def close(self) -> None:
        """Stop listening and acting. A proposal under way may still be applied."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def registered(self, broker_epoch: BrokerEpoch) -> None:
        """Send heartbeats for this registered incarnation from now on."""
        self._heartbeats.registered(broker_epoch)

    def on_lease_changed(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` after the lease has begun (True) or ended. Check the permit before
        acting."""
        self._heartbeats.on_lease_changed(callback)

    def on_refused(self, callback: Callable[[RefusalReason, str], None]) -> None:
        """Call `callback`, with an explanation, when the cluster rejects this node's registration.

        STALE_EPOCH: another process has registered under this id, so this one must end.
        UNKNOWN_BROKER: the broker was unregistered, and may register again.
        """
        self._heartbeats.on_refused(callback)

    async def log_ends(self, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, LogEnds]:
        """Collect log ends as `LogEndQueries.collect`."""
        return await self._log_ends.collect(keys)

    async def shut_down(self, timeout_s: float) -> bool:
        """Hand over the led partitions before this node stops.

        True once each partition with an eligible successor is handed over and this node has applied
        the changes. False after `timeout_s`, when the controller fences the stopped node after the
        session timeout. Must not be cancelled and repeated for another outcome, because the cluster
        counts on the stop from now on.
        """
        alone = len(self._state_machine.image.brokers) <= 1
        if alone or self._permit.broker_epoch is None:
            return True
        return await self._heartbeats.drain(timeout_s)

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        assert error is not None
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        logger.critical("the controller failed", exc_info=error)
        self._on_fatal(f"The controller failed: {error!r}")

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do work for a caller that must not see exceptions of the controller."""
        if self._closed:
            return
        try:
            work()
        except Exception as error:
            self._fail(error)

    def _received(self, sender: int, message: bytes) -> None:
        self._guarded(lambda: self._take(sender, message))

    def _take(self, sender: int, encoded: bytes) -> None:
        try:
            message = decode_message(encoded)
        except ControllerMessageError as error:
            self._ignore(sender, str(error))
            return
        if isinstance(message, LogEndsMessage):
            self._log_ends.received(sender, message)
        elif not isinstance(message, Heartbeat):
            self._heartbeats.received(sender, message)
        elif message.broker_id == sender:
            # Lost with its connection, like any message. The broker queries again.
            self._quorum.send(sender, encode_message(self._active.handle_heartbeat(message)))
        else:
            self._ignore(sender, f"it speaks for broker {message.broker_id}")

    def _ignore(self, sender: int, reason: str) -> None:
        if sender not in self._unreadable and len(self._unreadable) < UNREADABLE_PEERS_MAX:
            self._unreadable.add(sender)
            logger.error("a message of node %d is ignored: %s", sender, reason)

    def _connection_changed(self, node_id: int, event: ConnectionEvent) -> None:
        def work() -> None:
            self._active.connection_changed(node_id, event)
            if event is ConnectionEvent.UP:
                self._unreadable.discard(node_id)
                if node_id == self._quorum.leader_id:
                    self._heartbeats.send_soon()

        self._guarded(work)

    def _role_changed(self) -> None:
        def work() -> None:
            self._active.role_changed()
            self._heartbeats.send_soon()

        self._guarded(work)

    def _applied(self, delta: MetadataDelta) -> None:
        # After a change of this broker's own row the next answer changes the lease.
        if self._broker_id in delta.brokers:
            self._guarded(self._heartbeats.send_soon)
        self._guarded(lambda: self._active.applied(delta))
