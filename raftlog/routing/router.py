"""Partitions wherever they are led: any node answers any request (rest.md).

`PartitionRouter.find` returns the handle that the listeners work with. If this node leads the
partition, the handle's operations are the partition's own; otherwise they are forwarded to the
leader that the applied metadata names.

Leaders change, and nodes learn of it one after the other. So an operation of which certainly
nothing was carried out (NO_LEADER, NOT_READY), or that may be repeated without harm (reads, and
appends with a producer id), is tried again: as soon as the metadata names another leader or epoch,
and after a short pause, as the leader may be the one that has not heard of it yet. That ends after
the request's own time, RETRY_S_MAX at most. An append whose outcome is unknown stays so, whatever a
repeat was answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from raftlog.metadata.image import NO_LEADER_ID, BrokerImage, TopicImage
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
from raftlog.replication.partition import Partition, not_led_here
from raftlog.routing.forwarding_messages import (
    WANTS_MAX,
    Operation,
    Outcome,
    Wait,
    outcome_unknown_if_changing,
)
from raftlog.routing.handle import LocalFollowerHandle, PartitionHandle
from raftlog.routing.types import LocalReplicas, PartitionAccess

if TYPE_CHECKING:
    from raftlog.routing.forwarding import Forwarder

__all__ = [
    "Leadership",
    "LocalFollowerHandle",
    "LocalReplicas",
    "PartitionAccess",
    "PartitionHandle",
    "PartitionRouter",
]

PAUSE_S: Final = 0.25
"""Of a reader whose partition has no leader that could tell it of records."""
ABANDON_S: Final = 0.25
"""Once the metadata names another leader, the old one has this long to answer what it was asked."""


class Leadership(NamedTuple):
    """Who leads a partition, and in which epoch."""

    leader: BrokerId
    epoch: LeaderEpoch


@dataclass(eq=False, slots=True)
class _Watch:
    """Who wants to know that a leadership is over."""

    topic_id: TopicId
    partition: PartitionId
    seen: Leadership
    callback: Callable[[], object]


class PartitionRouter:
    """All partitions of the cluster, as this node reaches them. Lives in the event loop."""

    def __init__(
        self,
        replicas: LocalReplicas,
        *,
        broker_id: BrokerId,
        max_message_bytes: Callable[[TopicImage], int],
        forwarder: Forwarder | None = None,
    ) -> None:
        """Without `forwarder`, only what this node leads can be reached."""
        self.replicas = replicas
        self.broker_id = broker_id
        self.forwarder = forwarder
        self.max_message_bytes = max_message_bytes
        # One for each request under way, which are bounded where they are made.
        self._watches: dict[_Watch, None] = {}

    def find(self, topic: str, partition: int, *, any_replica: bool = False) -> PartitionHandle:
        """The partition, wherever it is led. LogError: UNKNOWN_TOPIC, UNKNOWN_PARTITION.

        With `any_replica`, reads are served by this node's replica, if it has one that is far
        enough, even if it follows: up to what it knows to be committed.
        """
        try:
            local = self.replicas.partition(topic, partition)
        except LogError:
            # What that means is found out when something is to be done with it.
            pass
        else:
            return PartitionHandle(self, topic, local.topic_id, PartitionId(partition), local)
        image = self.replicas.image.topic(topic)
        number = image.partition(partition).partition
        near = self.replicas.replica(image.topic_id, number) if any_replica else None
        if near is None:
            return PartitionHandle(self, topic, image.topic_id, number, None)
        return LocalFollowerHandle(self, topic, image.topic_id, number, near)

    async def wait_for_data(
        self, wants: Sequence[tuple[PartitionHandle, Offset]], timeout_s: float
    ) -> None:
        """Return when any partition may have a committed record at its offset, or the time is up.

        Also when a partition's leader is not there or not known: whoever reads then, finds out.
        Raises LogError OVERLOADED.
        """
        local: list[tuple[Partition, Offset]] = []
        remote: dict[BrokerId, list[tuple[PartitionHandle, Offset]]] = {}
        for access, offset in wants:
            at_hand = access.at_hand(offset)
            if at_hand is not None:
                local.append((at_hand, offset))
            else:
                seen = self.leadership(access.topic_id, access.partition)
                remote.setdefault(seen.leader, []).append((access, offset))
        if not remote:
            await self.replicas.wait_for_data(local, min_bytes=1, timeout_s=timeout_s)
            return
        waits = [
            asyncio.ensure_future(
                self._wait_there(leader, some[start : start + WANTS_MAX], timeout_s)
            )
            for leader, some in remote.items()
            for start in range(0, len(some), WANTS_MAX)
        ]
        if local:
            waits.append(
                asyncio.ensure_future(
                    self.replicas.wait_for_data(local, min_bytes=1, timeout_s=timeout_s)
                )
            )
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for one in waits:
                if one.done():
                    one.result()
        finally:
            for one in waits:
                one.add_done_callback(_look_at)
                one.cancel()

    async def _wait_there(
        self, leader: BrokerId, wants: Sequence[tuple[PartitionHandle, Offset]], timeout_s: float
    ) -> None:
        operation = Wait(tuple((one.topic_id, one.partition, at) for one, at in wants))
        try:
            await self.ask(leader, operation, [one for one, _ in wants], timeout_s=timeout_s)
        except LogError as error:
            if error.entry not in {NO_LEADER, NOT_READY, UNKNOWN_TOPIC}:
                raise
            # Reading finds out. A pause, lest it go on in circles meanwhile.
            await asyncio.sleep(min(PAUSE_S, timeout_s))

    async def ask(
        self,
        leader: BrokerId,
        operation: Operation,
        of: Sequence[PartitionHandle],
        body: Sequence[Buffer] = (),
        *,
        timeout_s: float,
    ) -> tuple[Outcome, memoryview]:
        """Have a leader carry out an operation, once. Raises LogError.

        Given up soon after it is known that it leads one of the partitions no more.
        """
        if self.forwarder is None or leader in {NO_LEADER_ID, self.broker_id}:
            raise self.not_led(of[0])
        seen = [self.leadership(one.topic_id, one.partition) for one in of]
        reply = self.forwarder.call(leader, operation, body, timeout_s=timeout_s)
        loop = asyncio.get_running_loop()

        def give_up() -> None:
            if not reply.done():
                lost = LogError(
                    NOT_READY, f"Node {leader} leads {name} no more, and has not answered."
                )
                reply.set_exception(outcome_unknown_if_changing(operation, lost))

        name = f"{of[0].topic}-{of[0].partition}"
        watches = [
            self.watch(
                one.topic_id, one.partition, then, partial(loop.call_later, ABANDON_S, give_up)
            )
            for one, then in zip(of, seen, strict=True)
        ]
        try:
            return await reply
        finally:
            for watch in watches:
                self.unwatch(watch)

    # Leaders

    def leadership(self, topic_id: TopicId, partition: PartitionId) -> Leadership:
        """By the applied metadata. Raises LogError UNKNOWN_TOPIC if the topic was deleted."""
        row = self.topic(topic_id).partitions[partition]
        return Leadership(row.leader, row.leader_epoch)

    def topic(self, topic_id: TopicId) -> TopicImage:
        """By the applied metadata. Raises LogError UNKNOWN_TOPIC if the topic was deleted."""
        topic = self.replicas.image.topics_by_id.get(topic_id)
        if topic is None:
            raise LogError(UNKNOWN_TOPIC, "The topic was deleted.")
        return topic

    def not_led(self, access: PartitionHandle) -> LogError:
        """The error for a partition that is not led here, and cannot be reached elsewhere."""
        seen = self.leadership(access.topic_id, access.partition)
        broker: BrokerImage | None = self.replicas.image.brokers.get(seen.leader)
        return not_led_here(access.topic, access.partition, broker)

    def watch(
        self,
        topic_id: TopicId,
        partition: PartitionId,
        seen: Leadership,
        callback: Callable[[], object],
    ) -> _Watch:
        """Call `callback` once when the partition is led otherwise than `seen`. Never at once."""
        watch = _Watch(topic_id, partition, seen, callback)
        self._watches[watch] = None
        return watch

    def unwatch(self, watch: _Watch) -> None:
        """Forget it, told or not."""
        self._watches.pop(watch, None)

    def changed(self) -> None:
        """To be called whenever the applied metadata has changed."""
        for watch in list(self._watches):
            try:
                is_over = self.leadership(watch.topic_id, watch.partition) != watch.seen
            except LogError:
                is_over = True
            if is_over:
                self.unwatch(watch)
                watch.callback()

    async def moved(self, access: PartitionHandle, seen: Leadership, timeout_s: float) -> None:
        """Return once the partition is led otherwise than `seen`, or the time is up."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def settle() -> None:
            if not over.done():
                over.set_result(None)

        watch = self.watch(access.topic_id, access.partition, seen, settle)
        timer = loop.call_later(timeout_s, settle)
        try:
            await over
        finally:
            timer.cancel()
            self.unwatch(watch)


def _look_at(wait: asyncio.Task[None]) -> None:
    """Of waits that end together, one tells its error; those of the others are the same news."""
    if not wait.cancelled():
        wait.exception()
