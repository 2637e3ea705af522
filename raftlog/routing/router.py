"""The partition router, by which any node serves requests for any partition.

`PartitionRouter.find` returns a handle on one partition for one request (handle.py). The router
knows the leaders by the applied metadata, calls them, and lets handles wait for a change of
leadership. A long poll over partitions of several nodes becomes one wait per leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from raftlog.metadata.image import NO_LEADER_ID, TopicImage
from raftlog.record.errors import (
    NO_LEADER,
    NOT_READY,
    UNKNOWN_TOPIC,
    LogError,
)
from raftlog.record.types import (
    BrokerId,
    Buffer,
    LeaderEpoch,
    Offset,
    PartitionId,
    TopicId,
)
from raftlog.replication.leader.arrival_order import ArrivalOrder
from raftlog.replication.manager import ReplicaManager
from raftlog.replication.partition import Isolation, Partition, not_led_here
from raftlog.routing.forwarding_messages import (
    WANTS_MAX,
    Operation,
    Outcome,
    Wait,
    outcome_unknown_if_changing,
)
from raftlog.routing.handle import LocalFollowerHandle, PartitionHandle, ProducerKey
from raftlog.routing.leader_gate import LeaderGate

if TYPE_CHECKING:
    from raftlog.routing.forwarding import Forwarder

logger = logging.getLogger(__name__)

WAIT_LOGGED_S: Final = 2.0
"""A request that waits longer for a leader has the reason logged."""
WAIT_LOG_INTERVAL_S: Final = 10.0
"""Shortest time between two such log lines of a node."""
PAUSE_S: Final = 0.25
"""Pause of a long poll on a partition without a leader."""
ABANDON_S: Final = 0.25
"""Time for the old leader to answer open calls, once the metadata names another leader."""


class Leadership(NamedTuple):
    """A partition's leader and leader epoch."""

    leader: BrokerId
    epoch: LeaderEpoch


@dataclass(eq=False, slots=True)
class _Watch:
    """A callback for the end of a leadership."""

    topic_id: TopicId
    partition: PartitionId
    seen: Leadership
    callback: Callable[[], object]


class PartitionRouter:
    """Finds and calls the leaders of all partitions. Lives in the event loop."""

    def __init__(
        self,
        replicas: ReplicaManager,
        *,
        broker_id: BrokerId,
        max_message_bytes: Callable[[TopicImage], int],
        gate: LeaderGate,
        forwarder: Forwarder | None = None,
    ) -> None:
        """Only partitions led by this node can be reached if `forwarder` is None."""
        self.replicas = replicas
        self.broker_id = broker_id
        self.forwarder = forwarder
        self.max_message_bytes = max_message_bytes
        self.gate: Final = gate
        """The way into partitions led here."""
        # A few per request in flight. The listeners bound the requests.
        self._watches: dict[_Watch, None] = {}
        self._next_wait_log = 0.0
        self.appends: ArrivalOrder[ProducerKey] = ArrivalOrder()
        """Appends of producers by handles, in the order of their calls."""
        self.routed_appends: Counter[ProducerKey] = Counter()
        """Appends of `appends` that are forwarded or retried, one at a time for each producer."""

    def find(self, topic: str, partition: int, *, any_replica: bool = False) -> PartitionHandle:
        """A handle on the partition, for one request. LogError UNKNOWN_TOPIC, UNKNOWN_PARTITION.

        With `any_replica`, a follower on this node serves reads up to its own high watermark, if
        its log reaches the offset.
        """
        try:
            local = self.replicas.partition(topic, partition)
        except LogError:
            # The operation on the handle raises the reason, or finds the leader.
            pass
        else:
            return PartitionHandle(self, topic, local.topic_id, PartitionId(partition), local)
        image = self.replicas.image.topic(topic)
        number = image.partition(partition).partition
        follower = self.replicas.replica(image.topic_id, number) if any_replica else None
        if follower is None:
            return PartitionHandle(self, topic, image.topic_id, number, None)
        return LocalFollowerHandle(self, topic, image.topic_id, number, follower)

    async def wait_for_data(
        self,
        wants: Sequence[tuple[PartitionHandle, Offset]],
        timeout_s: float,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> None:
        """Return when any partition may have a record at its offset, or at the timeout.

        Also returns when a partition's leader is gone or unknown, because the caller's next read
        raises the reason. Raises LogError OVERLOADED.
        """
        local: list[tuple[Partition, Offset]] = []
        remote: dict[BrokerId, list[tuple[PartitionHandle, Offset]]] = {}
        for handle, offset in wants:
            local_replica = handle.local_replica(offset)
            if local_replica is not None:
                local.append((local_replica, offset))
            else:
                seen = self.leadership(handle.topic_id, handle.partition)
                remote.setdefault(seen.leader, []).append((handle, offset))
        wait_here = partial(
            self.replicas.wait_for_data,
            local,
            min_bytes=1,
            timeout_s=timeout_s,
            isolation=isolation,
        )
        if not remote:
            await wait_here()
            return
        waits = [
            asyncio.ensure_future(
                self._wait_at_leader(leader, some[start : start + WANTS_MAX], timeout_s, isolation)
            )
            for leader, some in remote.items()
            for start in range(0, len(some), WANTS_MAX)
        ]
        if local:
            waits.append(asyncio.ensure_future(wait_here()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                if wait.done():
                    wait.result()
        finally:
            for wait in waits:
                wait.add_done_callback(_retrieve_error)
                wait.cancel()

    async def _wait_at_leader(
        self,
        leader: BrokerId,
        wants: Sequence[tuple[PartitionHandle, Offset]],
        timeout_s: float,
        isolation: Isolation,
    ) -> None:
        operation = Wait(
            tuple((handle.topic_id, handle.partition, at) for handle, at in wants), int(isolation)
        )
        try:
            await self.call_leader(
                leader, operation, [handle for handle, _ in wants], timeout_s=timeout_s
            )
        except LogError as error:
            if error.entry not in {NO_LEADER, NOT_READY, UNKNOWN_TOPIC}:
                raise
            # The next read raises the reason. The pause prevents a busy loop.
            await asyncio.sleep(min(PAUSE_S, timeout_s))

    async def call_leader(
        self,
        leader: BrokerId,
        operation: Operation,
        of: Sequence[PartitionHandle],
        body: Sequence[Buffer] = (),
        *,
        timeout_s: float,
    ) -> tuple[Outcome, memoryview]:
        """Call a leader once. Raises LogError.

        Gives up ABANDON_S after the metadata names another leader for one of the partitions.
        """
        if self.forwarder is None or leader in {NO_LEADER_ID, self.broker_id}:
            raise self.not_led_error(of[0])
        seen = [self.leadership(handle.topic_id, handle.partition) for handle in of]
        reply = self.forwarder.call(leader, operation, body, timeout_s=timeout_s)
        loop = asyncio.get_running_loop()

        def give_up() -> None:
            if not reply.done():
                lost = LogError(
                    NOT_READY, f"Node {leader} no longer leads {name}, and has not answered."
                )
                reply.set_exception(outcome_unknown_if_changing(operation, lost))

        name = f"{of[0].topic}-{of[0].partition}"
        watches = [
            self.watch(
                handle.topic_id,
                handle.partition,
                then,
                partial(loop.call_later, ABANDON_S, give_up),
            )
            for handle, then in zip(of, seen, strict=True)
        ]
        try:
            return await reply
        finally:
            for watch in watches:
                self.unwatch(watch)

    def end_routed(self, keys: Sequence[ProducerKey]) -> None:
        """Count an append less among `routed_appends`."""
        for key in keys:
            self.routed_appends[key] -= 1
            if not self.routed_appends[key]:
                del self.routed_appends[key]

    # Leaders

    def leadership(self, topic_id: TopicId, partition: PartitionId) -> Leadership:
        """The leader by the applied metadata. Raises LogError UNKNOWN_TOPIC for a deleted topic."""
        row = self.topic(topic_id).partitions[partition]
        return Leadership(row.leader, row.leader_epoch)

    def topic(self, topic_id: TopicId) -> TopicImage:
        """The topic by the applied metadata. Raises LogError UNKNOWN_TOPIC for a deleted topic."""
        topic = self.replicas.image.topics_by_id.get(topic_id)
        if topic is None:
            raise LogError(UNKNOWN_TOPIC, "The topic was deleted.")
        return topic

    def not_led_error(self, handle: PartitionHandle) -> LogError:
        """The error for a partition without a leader in reach."""
        row = self.topic(handle.topic_id).partitions[handle.partition]
        return not_led_here(handle.topic, row, self.replicas.image.brokers)

    def watch(
        self,
        topic_id: TopicId,
        partition: PartitionId,
        seen: Leadership,
        callback: Callable[[], object],
    ) -> _Watch:
        """Call `callback` once when leader or epoch differ from `seen`. Never at once."""
        watch = _Watch(topic_id, partition, seen, callback)
        self._watches[watch] = None
        return watch

    def unwatch(self, watch: _Watch) -> None:
        """Remove a watch, called or not."""
        self._watches.pop(watch, None)

    def on_metadata_applied(self) -> None:
        """Call the watches that are due. Runs after each applied change."""
        for watch in list(self._watches):
            try:
                is_over = self.leadership(watch.topic_id, watch.partition) != watch.seen
            except LogError:
                is_over = True
            if is_over:
                self.unwatch(watch)
                watch.callback()

    def log_wait(self, handle: PartitionHandle, waited_s: float, error: LogError) -> None:
        """Log why a long request waits, in one line for many requests."""
        now = asyncio.get_running_loop().time()
        if waited_s >= WAIT_LOGGED_S and now >= self._next_wait_log:
            self._next_wait_log = now + WAIT_LOG_INTERVAL_S
            name = f"{handle.topic}-{handle.partition}"
            logger.info("requests to %s wait for its leader: %s", name, error.message)

    async def wait_moved(self, handle: PartitionHandle, seen: Leadership, timeout_s: float) -> None:
        """Return once leader or epoch differ from `seen`, or the time is up."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def settle() -> None:
            if not over.done():
                over.set_result(None)

        watch = self.watch(handle.topic_id, handle.partition, seen, settle)
        timer = loop.call_later(timeout_s, settle)
        try:
            await over
        finally:
            timer.cancel()
            self.unwatch(watch)


def _retrieve_error(wait: asyncio.Task[None]) -> None:
    """Mark an error as retrieved, because only the first of several waits raises its error."""
    if not wait.cancelled():
        wait.exception()
