"""The calling side of the channel `data`, which forwards requests to partition leaders.

One connection goes to each called node, dialled on demand, closed after IDLE_S. Requests have ids,
so none waits for another. Promises:

- A future fails with NOT_READY if the request certainly had no effect, or only reads. It fails with
  RETRIABLE if an append or another change may have been executed. Errors of the other side pass
  unchanged.
- A future is settled within its timeout and ANSWER_SLACK_S. If the caller settles it before (by
  cancellation), the other side gets a `Cancel`.
- Requests above the bounds are refused (OVERLOADED), never queued.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from raftlog.metadata.image import BrokerImage
from raftlog.peer.channel import Channel, ChannelSettings, Session
from raftlog.peer.dial import join_address
from raftlog.peer.hello import Hello, ProtocolError
from raftlog.peer.tasks import TaskGroup
from raftlog.record.errors import (
    BODY_TOO_LARGE,
    ERROR_TABLE,
    INTERNAL,
    NOT_READY,
    OVERLOADED,
    LogError,
)
from raftlog.record.types import BrokerId, Buffer, Offset, PartitionId, TopicId
from raftlog.routing.forwarding_messages import (
    BODY_BYTES_MAX,
    CHANNEL,
    REMAINING_MS_MAX,
    REQUESTS_MAX,
    WAITS_MAX,
    Answer,
    Assembly,
    Cancel,
    Failure,
    Operation,
    Outcome,
    Piece,
    Read,
    ReadMany,
    ReadReplica,
    Request,
    check_hello,
    decode,
    encode,
    is_held,
    outcome_unknown_if_changing,
    own_hello,
)
from raftlog.world import Clock
from raftlog.world.network import Connection, Network, NetworkError, RejectedError

BYTES_MAX: Final = 56 * 1024 * 1024
"""Bytes in flight to one node, in bodies and in the bounds of reads. Below the 64 MiB at which the
network ends a connection."""
SETTINGS: Final = ChannelSettings(connect_timeout_s=2.0)
IDLE_S: Final = 60.0
ANSWER_SLACK_S: Final = 0.5
"""Seconds from a request's timeout to its expiry. The leader's own error arrives first."""
REPAIR_BYTES_MAX: Final = 1 << 20
"""Bytes of one read for a repair, or one batch if larger."""
REPAIR_S_MAX: Final = 5.0
"""Longest wait for such a read. A truncation of the damaged log waits as long."""
SILENCE_S_MIN: Final = 2.0
"""When a request times out, a connection silent for so long also ends."""

logger = logging.getLogger(__name__)


class Reply(NamedTuple):
    """The answer of the other side."""

    outcome: Outcome
    body: memoryview


class Forwarder:
    """Requests to the other nodes. Lives in the event loop."""

    def __init__(
        self,
        network: Network,
        *,
        clock: Clock,
        node_id: BrokerId,
        cluster_id: Callable[[], str | None],
        broker: Callable[[BrokerId], BrokerImage | None],
        on_fatal: Callable[[str], None],
    ) -> None:
        """`broker`: a node's row of the applied metadata."""
        self._tasks = TaskGroup(on_fatal)
        self._channel: Channel[_Link] = Channel(
            CHANNEL,
            node_id=node_id,
            network=network,
            clock=clock,
            tasks=self._tasks,
            settings=SETTINGS,
            keeps_alive=False,
        )
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._broker = broker
        self._links: dict[BrokerId, _Link] = {}
        self._closed = False
        self.requests = 0
        """Requests forwarded since the start."""

    def call(
        self,
        broker_id: BrokerId,
        operation: Operation,
        body: Sequence[Buffer] = (),
        *,
        timeout_s: float,
    ) -> asyncio.Future[Reply]:
        """Have a node execute an operation. `body` must not change before the response.

        Raises LogError NOT_READY, OVERLOADED or BODY_TOO_LARGE at once. The future fails with
        LogError only.
        """
        broker = self._broker(broker_id)
        if broker is None or self._closed:
            raise LogError(NOT_READY, f"Node {broker_id} cannot be reached at the moment.")
        link = self._links.get(broker_id)
        if link is not None and not link.is_of(broker):
            # Another incarnation of the node, or another address.
            link.end(f"node {broker_id} was started again")
            link = None
        if link is None:
            hello = own_hello(self._cluster_id(), self._node_id, broker_id)
            # Bounded by the cluster's size.
            link = self._links[broker_id] = _Link(
                self._channel, self._tasks, broker, hello, self._forget
            )
        self.requests += 1
        return link.call(operation, body, timeout_s)

    async def read_replica(
        self, broker_id: BrokerId, topic_id: TopicId, partition: PartitionId, offset: Offset
    ) -> Buffer:
        """Committed batches of a node's replica, from the batch that holds `offset`. May be empty.

        Raises LogError.
        """
        operation = ReadReplica(topic_id, partition, offset, REPAIR_BYTES_MAX)
        reply = await self.call(broker_id, operation, timeout_s=REPAIR_S_MAX)
        return reply.body

    def close(self) -> None:
        """End all connections, which fails requests in flight. May be repeated."""
        self._closed = True
        for link in list(self._links.values()):
            link.end("this node is stopping")

    def _forget(self, link: _Link) -> None:
        if self._links.get(link.broker_id) is link:
            del self._links[link.broker_id]


@dataclass(slots=True)
class _InFlight:
    """A request in flight."""

    operation: Operation
    future: asyncio.Future[Reply]
    size_bytes: int
    timer: asyncio.TimerHandle
    begun_s: float
    is_sent: bool = False
    assembly: Assembly | None = None
    """The answer's body, as far as received."""


class _Link(Session):
    """One connection to one node, which is dialled, then open, then ended. Also its `Opener`."""

    def __init__(
        self,
        channel: Channel[_Link],
        tasks: TaskGroup,
        broker: BrokerImage,
        hello: Hello,
        on_end: Callable[[_Link], None],
    ) -> None:
        super().__init__(broker.broker_id)
        self.broker_id = broker.broker_id
        self._broker = broker
        self._hello = hello
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._in_flight: dict[int, _InFlight] = {}
        self._unsent: dict[int, tuple[Request, Sequence[Buffer]]] = {}
        """Requests and bodies from before the connection opened."""
        self._last_id = 0
        self._waits = 0
        self._bytes = 0
        self._received_s = self._loop.time()
        self._idle: asyncio.TimerHandle | None = None
        self._dialling = tasks.spawn(self._dial(channel), f"forwarding-to-{self.broker_id}")

    def is_of(self, broker: BrokerImage) -> bool:
        """Whether this link goes to that incarnation of the node, at its address."""
        mine = self._broker
        return (mine.broker_epoch, mine.host, mine.port) == (
            broker.broker_epoch,
            broker.host,
            broker.port,
        )

    def call(
        self, operation: Operation, body: Sequence[Buffer], timeout_s: float
    ) -> asyncio.Future[Reply]:
        """See `Forwarder.call`."""
        body_bytes = sum(memoryview(buffer).nbytes for buffer in body)
        if body_bytes > BODY_BYTES_MAX:
            raise LogError(
                BODY_TOO_LARGE,
                f"{body_bytes} bytes are too many to be passed on: {BODY_BYTES_MAX} may be. Send "
                f"them to the partition's leader, node {self.broker_id}, or send less at once.",
            )
        is_wait = is_held(operation)
        size_bytes = body_bytes
        if isinstance(operation, Read | ReadReplica | ReadMany):
            size_bytes = operation.max_bytes
        self._require_room(size_bytes, is_wait=is_wait)
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._last_id += 1
        number = self._last_id
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._in_flight[number] = _InFlight(
            operation=operation,
            future=future,
            size_bytes=size_bytes,
            timer=self._loop.call_later(timeout_s + ANSWER_SLACK_S, self._time_is_up, number),
            begun_s=self._loop.time(),
        )
        self._bytes += size_bytes
        self._waits += is_wait
        future.add_done_callback(lambda _: self._settled(number))
        remaining_ms = min(max(0, int(timeout_s * 1000)), REMAINING_MS_MAX)
        request = Request(number, remaining_ms, operation, body_bytes)
        if self.is_open:
            self._send(self.connection, request, body)
        else:
            self._unsent[number] = request, body
        return future

    # Session

    def on_ended(self, reason: str) -> None:
        """All requests in flight fail."""
        self._on_end(self)
        self._dialling.cancel()
        if self._idle is not None:
            self._idle.cancel()
        for pending in list(self._in_flight.values()):
            if not pending.future.done():
                pending.future.set_exception(self._lost(pending, reason))

    def received(self, message: bytes) -> None:
        """Settle the answered request."""
        if self.is_ended:
            return
        self._received_s = self._loop.time()
        try:
            self._take(message)
        except ProtocolError as error:
            logger.error("node %d broke the protocol of forwarding: %s", self.broker_id, error)
            self.end("its answer was malformed")

    def closed(self) -> None:
        """The connection has ended."""
        self.end("the connection broke")

    def _take(self, message: bytes) -> None:
        head, part = decode(message)
        if not isinstance(head, Answer | Piece):
            raise ProtocolError(f"a {type(head).__name__} is not for the calling side")
        pending = self._in_flight.get(head.id)
        if pending is None:
            # Settled here before the `Cancel` arrived. Ids are not used twice.
            if head.id > self._last_id:
                raise ProtocolError("an answer to nothing")
            return
        if isinstance(head, Answer):
            if pending.assembly is not None:
                raise ProtocolError("two answers to one request")
            pending.assembly = Assembly(head)
        if pending.assembly is None:
            raise ProtocolError("a piece of nothing")
        body = pending.assembly.take(part)
        if body is None:
            return
        answer = pending.assembly.head
        assert isinstance(answer, Answer)
        # An answered request needs no `Cancel`.
        pending.is_sent = False
        if pending.future.done():
            return
        outcome = answer.outcome
        if isinstance(outcome, Failure):
            entry = ERROR_TABLE.get(outcome.code, INTERNAL)
            pending.future.set_exception(LogError(entry, outcome.message))
        else:
            pending.future.set_result(Reply(outcome, body))

    # Requests

    def _require_room(self, size_bytes: int, *, is_wait: bool) -> None:
        count, count_max = (
            (self._waits, WAITS_MAX)
            if is_wait
            else (len(self._in_flight) - self._waits, REQUESTS_MAX)
        )
        # A single request is always admitted.
        if count >= count_max or (self._bytes and self._bytes + size_bytes > BYTES_MAX):
            raise LogError(OVERLOADED, f"Too many requests are in flight to node {self.broker_id}.")

    def _send(self, connection: Connection, request: Request, body: Sequence[Buffer]) -> None:
        self._in_flight[request.id].is_sent = True
        for message in encode(request, body):
            connection.send(message)

    def _settled(self, number: int) -> None:
        """The future is done."""
        pending = self._in_flight.pop(number)
        pending.timer.cancel()
        self._bytes -= pending.size_bytes
        self._waits -= is_held(pending.operation)
        self._unsent.pop(number, None)
        if self.is_ended:
            return
        if pending.is_sent:
            for message in encode(Cancel(number)):
                self.connection.send(message)
        if not self._in_flight:
            self._idle = self._loop.call_later(IDLE_S, self.end, "it was idle")

    def _time_is_up(self, number: int) -> None:
        pending = self._in_flight[number]
        if pending.future.done():
            return
        now = self._loop.time()
        reason = "it did not answer in time"
        pending.future.set_exception(self._lost(pending, reason))
        if now - max(pending.begun_s, self._received_s) >= SILENCE_S_MIN:
            # The node may have vanished. If it is only slow, a new connection costs little.
            self.end(reason)

    def _lost(self, pending: _InFlight, reason: str) -> LogError:
        lost = LogError(NOT_READY, f"Node {self.broker_id} leads the partition, but {reason}.")
        return outcome_unknown_if_changing(pending.operation, lost) if pending.is_sent else lost

    # Dialling

    async def _dial(self, channel: Channel[_Link]) -> None:
        address = join_address(self._broker.host, self._broker.port)
        try:
            await channel.connect(address, self._hello, self)
        except NetworkError as error:
            self.end(str(error))
        except RejectedError as error:
            self.end(f"it rejects this node: {error.message}")

    # Opener

    def admit(self, content: bytes) -> Hello:
        """The other side's hello, if sent by the called node. Raises RejectedError."""
        if self.is_ended:
            raise RejectedError(NOT_READY.code, "The connection is no longer needed.")
        return check_hello(content, self._hello)

    def opened(self, connection: Connection, theirs: Hello) -> _Link:
        """Send the requests that have waited for the connection."""
        unsent, self._unsent = self._unsent, {}
        for request, body in unsent.values():
            self._send(connection, request, body)
        return self
