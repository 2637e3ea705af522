"""The asking side of the channel `data`: requests passed to the node that leads a partition.

One connection for each node that is asked, dialled when it is first needed, closed when it was idle
for long. Requests are told apart by ids, so none waits for another. What is promised:

- A future fails with NOT_READY if the request was certainly not carried out, or only reads; with
  RETRIABLE if an append or a deletion may have been. Refusals of the other side come as they are.
- It is settled within its timeout and ANSWER_SLACK_S. Whoever settles it before (a caller that is
  cancelled, one that knows better) has the other side told.
- Too much at once is refused (OVERLOADED), never queued.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from raftlog.record.types import BrokerId, Buffer
from raftlog.routing.forwarding_messages import (
    BODY_BYTES_MAX,
    CHANNEL,
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
    Request,
    Wait,
    check_hello,
    decode,
    encode,
    outcome_unknown_if_changing,
    own_hello,
)
from raftlog.world import Clock
from raftlog.world.network import Connection, Network, NetworkError, RejectedError

BYTES_MAX: Final = 56 * 1024 * 1024
"""Asked of one node at once, bodies and what reads may bring. Below the 64 MiB at which the network
ends a connection."""
SETTINGS: Final = ChannelSettings(connect_timeout_s=2.0)
IDLE_S: Final = 60.0
ANSWER_SLACK_S: Final = 0.5
"""How much later than its own time a request is given up: the other side's answer, that the time is
up, says more."""
SILENCE_S_MIN: Final = 2.0
"""A connection on which nothing came for so long, when a request on it times out, is ended."""

logger = logging.getLogger(__name__)


class Reply(NamedTuple):
    """What the other side answered."""

    outcome: Outcome
    body: memoryview


class Forwarder:
    """Connections to the other nodes, by need. Lives in the event loop."""

    def __init__(
        self,
        network: Network,
        *,
        clock: Clock,
        node_id: BrokerId,
        cluster_id: Callable[[], str],
        broker: Callable[[BrokerId], BrokerImage | None],
        on_fatal: Callable[[str], None],
    ) -> None:
        """`broker` is asked where a node is, as the applied metadata has it."""
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
        """Asked of other nodes since the start."""

    def ask(
        self,
        broker_id: BrokerId,
        operation: Operation,
        body: Sequence[Buffer] = (),
        *,
        timeout_s: float,
    ) -> asyncio.Future[Reply]:
        """Have a node carry out an operation. `body` must not change until it is answered.

        Raises LogError at once: NOT_READY, OVERLOADED, BODY_TOO_LARGE. The future fails with
        LogError only.
        """
        broker = self._broker(broker_id)
        if broker is None or self._closed:
            raise LogError(NOT_READY, f"Node {broker_id} cannot be reached at the moment.")
        link = self._links.get(broker_id)
        if link is not None and not link.is_of(broker):
            # It has been started again, or lives elsewhere now.
            link.end(f"node {broker_id} was started again")
            link = None
        if link is None:
            hello = own_hello(self._cluster_id(), self._node_id, broker_id)
            # Bounded by the cluster's size.
            link = self._links[broker_id] = _Link(
                self._channel, self._tasks, broker, hello, self._forget
            )
        self.requests += 1
        return link.ask(operation, body, timeout_s)

    def close(self) -> None:
        """End all connections; what was asked fails. Harmless if done already."""
        self._closed = True
        for link in list(self._links.values()):
            link.end("this node is stopping")

    def _forget(self, link: _Link) -> None:
        if self._links.get(link.broker_id) is link:
            del self._links[link.broker_id]


@dataclass(slots=True)
class _Asked:
    """A request under way."""

    operation: Operation
    future: asyncio.Future[Reply]
    size_bytes: int
    timer: asyncio.TimerHandle
    begun_s: float
    is_sent: bool = False
    assembly: Assembly | None = None
    """The answer's body, as far as it has come."""


@dataclass(slots=True)
class _Unsent:
    """What was asked before the connection was open."""

    request: Request
    body: Sequence[Buffer] = field(default=())


class _Link(Session):
    """One connection to one node: being dialled, then open, then over. Also its `Opener`."""

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
        self._asked: dict[int, _Asked] = {}
        self._unsent: dict[int, _Unsent] = {}
        self._last_id = 0
        self._waits = 0
        self._bytes = 0
        self._received_s = self._loop.time()
        self._idle: asyncio.TimerHandle | None = None
        self._dialling = tasks.spawn(self._dial(channel), f"forwarding-to-{self.broker_id}")

    def is_of(self, broker: BrokerImage) -> bool:
        """Whether this connects to that start of the node, and where it is."""
        mine = self._broker
        return (mine.broker_epoch, mine.host, mine.port) == (
            broker.broker_epoch,
            broker.host,
            broker.port,
        )

    def ask(
        self, operation: Operation, body: Sequence[Buffer], timeout_s: float
    ) -> asyncio.Future[Reply]:
        """See `Forwarder.ask`."""
        body_bytes = sum(memoryview(buffer).nbytes for buffer in body)
        if body_bytes > BODY_BYTES_MAX:
            raise LogError(
                BODY_TOO_LARGE,
                f"{body_bytes} bytes are too many to be passed on: {BODY_BYTES_MAX} may be. Send "
                f"them to the partition's leader, node {self.broker_id}, or send less at once.",
            )
        is_wait = isinstance(operation, Wait)
        size_bytes = operation.max_bytes if isinstance(operation, Read) else body_bytes
        self._require_room(size_bytes, is_wait=is_wait)
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._last_id += 1
        number = self._last_id
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._asked[number] = _Asked(
            operation,
            future,
            size_bytes,
            self._loop.call_later(timeout_s + ANSWER_SLACK_S, self._time_is_up, number),
            self._loop.time(),
        )
        self._bytes += size_bytes
        self._waits += is_wait
        future.add_done_callback(lambda _: self._settled(number))
        request = Request(number, max(0, int(timeout_s * 1000)), operation, body_bytes)
        if self.is_open:
            self._send(self.connection, request, body)
        else:
            self._unsent[number] = _Unsent(request, body)
        return future

    # Session

    def on_ended(self, reason: str) -> None:
        """All that was asked fails."""
        self._on_end(self)
        self._dialling.cancel()
        if self._idle is not None:
            self._idle.cancel()
        for asked in list(self._asked.values()):
            if not asked.future.done():
                asked.future.set_exception(self._lost(asked, reason))

    def received(self, message: bytes) -> None:
        """Settle the request that is answered."""
        if self.is_ended:
            return
        self._received_s = self._loop.time()
        try:
            self._take(message)
        except ProtocolError as error:
            logger.error("node %d sent what is not understood: %s", self.broker_id, error)
            self.end("its answer was malformed")

    def closed(self) -> None:
        """The connection has ended."""
        self.end("the connection broke")

    def _take(self, message: bytes) -> None:
        head, part = decode(message)
        if not isinstance(head, Answer | Piece):
            raise ProtocolError(f"a {type(head).__name__} is not for the asking side")
        asked = self._asked.get(head.id)
        if asked is None:
            # Given up here before the other side was told; ids are not used twice.
            if head.id > self._last_id:
                raise ProtocolError("an answer to nothing")
            return
        if isinstance(head, Answer):
            if asked.assembly is not None:
                raise ProtocolError("two answers to one request")
            asked.assembly = Assembly(head)
        if asked.assembly is None:
            raise ProtocolError("a piece of nothing")
        body = asked.assembly.take(part)
        if body is None:
            return
        answer = asked.assembly.head
        assert isinstance(answer, Answer)
        # From here on the other side has nothing to be told.
        asked.is_sent = False
        if asked.future.done():
            return
        outcome = answer.outcome
        if isinstance(outcome, Failure):
            entry = ERROR_TABLE.get(outcome.code, INTERNAL)
            asked.future.set_exception(LogError(entry, outcome.message))
        else:
            asked.future.set_result(Reply(outcome, body))

    # Requests

    def _require_room(self, size_bytes: int, *, is_wait: bool) -> None:
        count, count_max = (
            (self._waits, WAITS_MAX) if is_wait else (len(self._asked) - self._waits, REQUESTS_MAX)
        )
        # One alone may always be.
        if count >= count_max or (self._bytes and self._bytes + size_bytes > BYTES_MAX):
            raise LogError(
                OVERLOADED, f"Too much is being passed on to node {self.broker_id} at the moment."
            )

    def _send(self, connection: Connection, request: Request, body: Sequence[Buffer]) -> None:
        self._asked[request.id].is_sent = True
        for message in encode(request, body):
            connection.send(message)

    def _settled(self, number: int) -> None:
        """The future is done, whoever settled it."""
        asked = self._asked.pop(number)
        asked.timer.cancel()
        self._bytes -= asked.size_bytes
        self._waits -= isinstance(asked.operation, Wait)
        self._unsent.pop(number, None)
        if self.is_ended:
            return
        if asked.is_sent:
            for message in encode(Cancel(number)):
                self.connection.send(message)
        if not self._asked:
            self._idle = self._loop.call_later(IDLE_S, self.end, "it was idle")

    def _time_is_up(self, number: int) -> None:
        asked = self._asked[number]
        if asked.future.done():
            return
        now = self._loop.time()
        reason = "it did not answer in time"
        asked.future.set_exception(self._lost(asked, reason))
        if now - max(asked.begun_s, self._received_s) >= SILENCE_S_MIN:
            # It may be gone without a word. If it is only slow, a new connection costs little.
            self.end(reason)

    def _lost(self, asked: _Asked, reason: str) -> LogError:
        lost = LogError(NOT_READY, f"Node {self.broker_id} leads the partition, but {reason}.")
        return outcome_unknown_if_changing(asked.operation, lost) if asked.is_sent else lost

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
        """The other side's hello, if it is the node that was called. Raises RejectedError."""
        if self.is_ended:
            raise RejectedError(NOT_READY.code, "It is not wanted any more.")
        return check_hello(content, self._hello)

    def opened(self, connection: Connection, theirs: Hello) -> _Link:
        """Send what has waited for the connection."""
        unsent, self._unsent = self._unsent, {}
        for one in unsent.values():
            self._send(connection, one.request, one.body)
        return self
