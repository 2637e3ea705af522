"""Sends due batches to their leaders, with many partitions in a request.

produce/delivery.py decides the next frame and the meaning of a response, routing.py follows the
leaders. This module does the I/O. It chooses the node, the number of requests, and the time to get
a producer id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from struct import Struct
from typing import Final
from urllib.parse import quote

from raftlog.api.common import Empty
from raftlog.api.records import ProduceResult
from raftlog.api.records import ProducerIdentity as AllocatedIdentity
from raftlog.record.errors import BODY_TOO_LARGE, STORAGE_FAILED, UNKNOWN_TOPIC
from raftlog.record.types import ProducerEpoch, ProducerId
from raftlog_client.errors import (
    ConnectionLostError,
    RaftlogClientError,
    ServerError,
    TopicNotFoundError,
    server_error,
)
from raftlog_client.metadata import ClusterMetadata
from raftlog_client.produce.accumulator import ACKS, ProducerSettings, TopicQueues
from raftlog_client.produce.batches import Acknowledged, ProducerIdentity
from raftlog_client.produce.delivery import PartitionQueue
from raftlog_client.routing import LeaderCall, LeaderCalls
from raftlog_client.transport import NodeAddress, Part, Transport

PRODUCE_FRAME_HEAD: Final = Struct(">HiI")
"""Topic length, partition, data length (raftlog.record.frames). Packed here so that batches go to
the socket without a copy."""
SERVER_TIMEOUT_SHARE: Final = 0.9
"""Share of the request timeout that a node may wait for its replicas. The response must arrive
before the client stops listening."""
IDENTITY_PATIENCE_SHARE: Final = 0.5
"""Share of the request timeout for a producer id before the next node is tried."""
TIMES_MISSING_MAX: Final = 3
"""Consecutive metadata responses without the topic, after which the topic counts as deleted."""

logger = logging.getLogger("raftlog_client")

Outcome = Acknowledged | RaftlogClientError


@dataclass(slots=True)
class NodeState:
    """Partitions queued for one node, and requests under way."""

    address: NodeAddress
    request_bytes_max: int
    queued: dict[PartitionQueue, None] = field(default_factory=dict)
    """Partitions with something to send, in turn."""
    requests: set[asyncio.Task[None]] = field(default_factory=set)


class Sender:
    """Sends the accumulator's batches. `start` before use, `close` after."""

    def __init__(
        self, transport: Transport, metadata: ClusterMetadata, settings: ProducerSettings
    ) -> None:
        """Nothing is sent before `use_identity` with a transactional or fencing id."""
        self.topics: dict[str, TopicQueues] = {}
        self._transport = transport
        self._metadata = metadata
        self._leaders = LeaderCalls(metadata, on_view=self._view_changed)
        self.is_idempotent = settings.idempotent and settings.acks != 0
        self._request_bytes_max = settings.request_bytes_max
        self._in_flight_requests_max = settings.in_flight_requests_max
        timeout_ms = int(settings.request_timeout_ms * SERVER_TIMEOUT_SHARE)
        acks = ACKS[settings.acks]
        acks_text = "all" if acks == -1 else str(acks)
        transactional_id = settings.transactional_id
        self._path = f"/v1/produce?acks={acks_text}&timeout={timeout_ms}"
        self._allocates_identity = transactional_id is None and settings.fencing_id is None
        if transactional_id is not None:
            self._path += f"&transactional_id={quote(transactional_id, safe='')}"
        self.judge: Callable[[ServerError], RaftlogClientError] | None = None
        """Maps a refused frame's error to its meaning for the producer."""
        self.has_sent = False
        """Whether a batch was sent since the last `use_identity`."""
        self._broken: RaftlogClientError | None = None
        """Error that ended all sending."""
        self._nodes: dict[NodeAddress, NodeState] = {}
        self._identity: ProducerIdentity | None = None
        self._identity_task: asyncio.Task[None] | None = None
        self._is_scheduled = False
        self._is_abandoning = False
        self._is_closed = False

    async def start(self) -> None:
        """Get a producer id, which also proves the cluster reachable."""
        if self.is_idempotent and self._allocates_identity:
            self._identity = await self._allocate_identity()

    def use_identity(self, identity: ProducerIdentity | None) -> None:
        """Send the next batches with this identity. Every sequence restarts at 0."""
        self._identity = identity
        self.has_sent = False
        for topic in self.topics.values():
            for queue in topic.queues:
                queue.forget_identity()
        if identity is not None:
            # Partitions of an aborted transaction that had sent nothing may still be queued.
            self._schedule()

    def break_off(self, error: RaftlogClientError) -> None:
        """Send nothing more. Batches in flight get their outcome, all others this error."""
        self._broken = error
        # Not in this turn, because the caller is a batch of one of these partitions.
        self._schedule()

    async def abandon_all(self, error: RaftlogClientError) -> None:
        """Give up all batches, including those in flight, which their transaction's end fences."""
        tasks = [task for node in self._nodes.values() for task in node.requests]
        for task in tasks:
            task.cancel()
        # A request that starts during the abort would settle batches of the next transaction.
        self._is_abandoning = True
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._is_abandoning = False
        for topic in self.topics.values():
            for queue in topic.queues:
                queue.abandon(error)
        self._schedule()

    async def close(self) -> None:
        """Stop sending. Requests in flight are given up, their batches' outcome unknown."""
        self._is_closed = True
        tasks = [task for node in self._nodes.values() for task in node.requests]
        tasks += [] if self._identity_task is None else [self._identity_task]
        for task in tasks:
            task.cancel()
        await self._leaders.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def ready(self, queue: PartitionQueue) -> None:
        """Queue a partition that has something to send."""
        if self._is_closed or not queue.can_be_queued:
            return
        if self._broken is not None:
            self._schedule()
            return
        topic, partition = queue.target
        address = self._metadata.leader_address(topic, partition)
        if address is None:
            self._leaders.refresh_soon(topic)
            self._park(queue)
            return
        node = self._nodes.get(address)
        if node is None:
            # Bounded by the cluster's size, because addresses come only from its metadata.
            node = self._nodes[address] = NodeState(address, self._request_bytes_max)
        queue.is_queued = True
        node.queued[queue] = None
        self._schedule()

    def apply_metadata(self) -> None:
        """Apply added partitions of known topics, and new leaders."""
        self._view_changed(())
        self._leaders.resume_moved()

    def _view_changed(self, names: Collection[str]) -> None:
        """Apply a new view of the metadata, after a refresh of the topics `names`."""
        topics = self._metadata.view.topics
        for name, topic in self.topics.items():
            description = topics.get(name)
            if description is not None:
                topic.times_missing = 0
                topic.grow(description, is_idempotent=self.is_idempotent)
        for name in names:
            if name not in topics and name in self.topics:
                self._topic_is_missing(self.topics[name])

    def _schedule(self) -> None:
        """Send all records of this turn of the loop at its end."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_queued)

    def _send_queued(self) -> None:
        self._is_scheduled = False
        if self._is_closed or self._is_abandoning:
            return
        if self._broken is not None:
            for topic in self.topics.values():
                for queue in topic.queues:
                    queue.fail_all(self._broken)
            return
        if self.is_idempotent and self._identity is None:
            self._want_identity()
            return
        # A partition that has moved in the meantime may add its new leader.
        for node in list(self._nodes.values()):
            while node.queued and len(node.requests) < self._in_flight_requests_max:
                queues = self._collect(node)
                if not queues:
                    break
                task = asyncio.ensure_future(
                    self._request(node, queues, self._follow(node, queues))
                )
                node.requests.add(task)
                task.add_done_callback(node.requests.discard)

    def _collect(self, node: NodeState) -> list[PartitionQueue]:
        """Fill one request with frames, from each partition in turn."""
        now = asyncio.get_running_loop().time()
        queues: list[PartitionQueue] = []
        room = node.request_bytes_max
        while node.queued and (room > 0 or not queues):
            queue = next(iter(node.queued))
            if queues and queue.sealed and queue.sealed[0].size_bytes() > room:
                break
            del node.queued[queue]
            queue.is_queued = False
            if self._metadata.leader_address(*queue.target) != node.address:
                self.ready(queue)
                continue
            self._expire(queue, now)
            if not queue.has_due:
                continue
            if self.is_idempotent and queue.identity is None and self._identity is None:
                # Given up a moment ago, by this partition or an earlier partition.
                self.ready(queue)
                self._want_identity()
                break
            taken = queue.take(room, identity=self._identity)
            room -= sum(batch.size_bytes() for batch in taken)
            queues.append(queue)
            self.has_sent = True
        return queues

    def _follow(self, node: NodeState, queues: Sequence[PartitionQueue]) -> LeaderCall:
        """Return the call that carries a request, abandoned when other nodes lead.

        Its frames are sent again to the new leaders, which recognise a repeat if the old leader
        wrote them. Without idempotence a repeat is not recognised, and the frames count as lost.
        Such a request is abandoned only once all its partitions have moved.
        """
        count_min = 1 if self.is_idempotent else len(queues)
        return self._leaders.follow(
            node.address,
            [queue.target for queue in queues],
            on_moved=lambda moved: len(moved) >= count_min,
            is_write=True,
        )

    async def _request(
        self, node: NodeState, queues: Sequence[PartitionQueue], call: LeaderCall
    ) -> None:
        parts: list[Part] = []
        size = 0
        for queue in queues:
            topic = queue.target.topic.encode()
            frame = [batch.data() for batch in queue.in_flight]
            frame_size = sum(map(len, frame))
            head = PRODUCE_FRAME_HEAD.pack(len(topic), queue.target.partition, frame_size) + topic
            parts += (head, *frame)
            size += len(head) + frame_size
        outcomes: Sequence[Outcome]
        try:
            with call:
                answer = await self._transport.produce(node.address, self._path, parts, size)
            outcomes = outcomes_of(answer.results, queues)
        except RaftlogClientError as error:
            outcomes = [self._request_error(error, node, queues)] * len(queues)
        except asyncio.CancelledError:
            for queue in queues:
                for batch in queue.in_flight:
                    batch.outcome_unknown = True
            raise
        finally:
            task = asyncio.current_task()
            assert task is not None
            node.requests.discard(task)
        self._settle(queues, outcomes)

    def _request_error(
        self, error: RaftlogClientError, node: NodeState, queues: Sequence[PartitionQueue]
    ) -> RaftlogClientError:
        """Return the outcome of each frame of a failed request."""
        if isinstance(error, ConnectionLostError):
            self._metadata.suspect(node.address)
        is_too_large = isinstance(error, ServerError) and error.entry is BODY_TOO_LARGE
        if is_too_large and sum(len(queue.in_flight) for queue in queues) > 1:
            node.request_bytes_max = max(node.request_bytes_max // 2, 1)
            logger.info("%s takes no request that large: %s", node.address, error)
            return RaftlogClientError(str(error), retriable=True)
        return error

    def _settle(self, queues: Sequence[PartitionQueue], outcomes: Sequence[Outcome]) -> None:
        now = asyncio.get_running_loop().time()
        for queue, outcome in zip(queues, outcomes, strict=True):
            identity = queue.identity
            settlement = queue.settle(self._judged(queue, outcome), now)
            if settlement.must_refresh:
                self._leaders.refresh_soon(queue.target.topic)
            self._check_identity(queue, identity)
            if settlement.must_retry:
                self._park(queue)
            else:
                self.ready(queue)
        self._schedule()

    def _judged(self, queue: PartitionQueue, outcome: Outcome) -> Outcome:
        """Treat a leader with failed storage as lost, if other nodes hold the partition."""
        if self.judge is not None and isinstance(outcome, ServerError):
            outcome = self.judge(outcome)
        if (
            isinstance(outcome, ServerError)
            and outcome.entry is STORAGE_FAILED
            and self._metadata.is_replicated(*queue.target)
        ):
            return ConnectionLostError(str(outcome), outcome_unknown=True)
        return outcome

    def _park(self, queue: PartitionQueue) -> None:
        """Retry the partition after its back-off, or when another node leads it."""
        queue.is_waiting = True
        self._leaders.park(queue, queue.target, queue.attempts, partial(self._resume, queue))

    def _resume(self, queue: PartitionQueue) -> None:
        queue.is_waiting = False
        if self._is_closed:
            return
        self._expire(queue, asyncio.get_running_loop().time())
        if queue.has_due:
            if self._metadata.leader_address(*queue.target) is None:
                queue.attempts += 1
            self.ready(queue)

    def _expire(self, queue: PartitionQueue, now: float) -> None:
        identity = queue.identity
        queue.expire(now)
        self._check_identity(queue, identity)

    def _check_identity(self, queue: PartitionQueue, before: ProducerIdentity | None) -> None:
        """Get another identity if the partition gave up the present identity.

        The sequence restarts at 0. Under the same identity the batches would count as repeats.
        """
        if before is not None and queue.identity is None and before == self._identity:
            self._identity = None

    def _topic_is_missing(self, topic: TopicQueues) -> None:
        topic.times_missing += 1
        if topic.times_missing >= TIMES_MISSING_MAX:
            del self.topics[topic.name]
            for queue in topic.queues:
                if not queue.in_flight:
                    queue.fail_all(
                        TopicNotFoundError(
                            UNKNOWN_TOPIC, f"Topic {topic.name!r} does not exist any more."
                        )
                    )

    def _want_identity(self) -> None:
        if not self._allocates_identity:
            # The transaction or the producer is broken. All batches are about to be given up.
            return
        if self._identity_task is None or self._identity_task.done():
            self._identity_task = asyncio.ensure_future(self._get_identity())

    async def _get_identity(self) -> None:
        attempt = 0
        while self._identity is None:
            try:
                self._identity = await self._allocate_identity()
            except RaftlogClientError as error:
                logger.warning("No producer id: %s", error)
                self._expire_queued()
                await asyncio.sleep(self._metadata.backoff.delay_s(attempt))
                attempt += 1
        self._schedule()

    def _expire_queued(self) -> None:
        """Give up expired batches among those waiting for a producer id."""
        now = asyncio.get_running_loop().time()
        for node in self._nodes.values():
            for queue in node.queued:
                self._expire(queue, now)

    async def _allocate_identity(self) -> ProducerIdentity:
        # The id of a lost response is merely never used.
        patience_s = self._metadata.request_timeout_s * IDENTITY_PATIENCE_SHARE
        answer = await self._metadata.call_any(
            "POST", "/v1/producer-ids", AllocatedIdentity, Empty(), patience_s=patience_s
        )
        return ProducerIdentity(
            ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch)
        )


def outcomes_of(
    results: Sequence[ProduceResult], queues: Sequence[PartitionQueue]
) -> list[Outcome]:
    """Return one outcome per frame of a produce response, in the frames' order.

    A response for other frames leaves every outcome unknown.
    """
    if [(result.topic, result.partition) for result in results] != [
        queue.target for queue in queues
    ]:
        malformed = ConnectionLostError(
            "Malformed produce answer: its results are not those of the request's frames",
            outcome_unknown=True,
        )
        return [malformed] * len(queues)
    return [_outcome(result) for result in results]


def _outcome(result: ProduceResult) -> Outcome:
    if result.error_code:
        return server_error(result.error_code, result.message)
    return Acknowledged(result.base_offset, result.last_offset, result.log_append_time)
