"""The called side of the channel `data`, which executes requests forwarded by other nodes.

A node executes them only as the partition's leader. This node's metadata refuses other requests
(NO_LEADER, or NOT_READY while the metadata is behind the caller's). A caller has one connection. A
second connection from the same node replaces the first, which the caller must have lost.

An append, a marker or a deletion that has started is never cancelled. Without its caller the
records may still be written. Other operations end with the request or the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias, assert_never

import msgspec

from raftlog.peer.channel import Channel, ChannelSettings, Session
from raftlog.peer.hello import Hello, ProtocolError
from raftlog.peer.tasks import TaskGroup
from raftlog.record.batch import split_batches
from raftlog.record.control import Marker
from raftlog.record.errors import (
    INTERNAL,
    NOT_READY,
    OVERLOADED,
    UNKNOWN_TOPIC,
    UNSUPPORTED_FORMAT,
    LogError,
)
from raftlog.record.types import (
    BrokerId,
    Buffer,
    LeaderEpoch,
    Offset,
    PartitionId,
    ProducerEpoch,
    ProducerId,
    TopicId,
)
from raftlog.replication.manager import ReplicaManager
from raftlog.replication.partition import Acks, Isolation, Partition
from raftlog.routing.forwarding_messages import (
    BODY_BYTES_MAX,
    CHANNEL,
    REQUESTS_MAX,
    WAITS_MAX,
    Answer,
    Append,
    Appended,
    Assembly,
    Bounds,
    BoundsOfMany,
    Cancel,
    Coordinate,
    Coordinated,
    Delete,
    DescribedProducers,
    DescribeProducers,
    Failure,
    FindEpochEnd,
    FindNewest,
    FindTime,
    FindTimeInMany,
    FoundEpochEnd,
    FoundTime,
    FoundTimes,
    MarkerWritten,
    Marks,
    MarksOfMany,
    Operation,
    Outcome,
    Piece,
    Read,
    ReadMany,
    ReadReplica,
    Request,
    Wait,
    Waited,
    WriteMarker,
    check_hello,
    decode,
    encode,
    encode_producers,
    is_held,
    own_hello,
    with_aborted,
)
from raftlog.routing.leader_gate import LeaderGate
from raftlog.routing.many import coded, local_bounds, local_times
from raftlog.routing.reads import local_reads, reads_answer
from raftlog.world import Clock
from raftlog.world.network import Connection, Network

ASSEMBLED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes held of one caller's bodies. A caller sends no more at once."""
UNSENT_BYTES_MAX: Final = 56 * 1024 * 1024
"""Bytes of unsent responses to one caller. Reads above the bound are refused. The network would end
the connection at 64 MiB."""
SILENT_S_MAX: Final = 180.0
"""Silence in seconds after which a caller is gone. A caller closes a connection idle for 60 s."""
_Query: TypeAlias = FindNewest | FindEpochEnd | DescribeProducers
SETTINGS: Final = ChannelSettings(ping_s=SILENT_S_MAX / 4, silent_pings_max=3)
"""The fourth interval is the one of the caller's last message."""

logger = logging.getLogger(__name__)


class ForwardingServer:
    """Takes the connections of all other nodes. `Listener` of the channel."""

    def __init__(
        self,
        replicas: ReplicaManager,
        gate: LeaderGate,
        *,
        network: Network,
        clock: Clock,
        node_id: BrokerId,
        cluster_id: Callable[[], str | None],
        on_fatal: Callable[[str], None],
    ) -> None:
        """`on_fatal` gets the reason if an invariant breaks in a request."""
        self._replicas = replicas
        self._gate = gate
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._on_fatal = on_fatal
        self._tasks = TaskGroup(on_fatal)
        self._channel: Channel[_Session] = Channel(
            CHANNEL,
            node_id=node_id,
            network=network,
            clock=clock,
            tasks=self._tasks,
            settings=SETTINGS,
        )
        self._requests = 0
        """Requests of ended sessions."""

    @property
    def requests(self) -> int:
        """Requests carried out for other nodes since the start."""
        sessions = self._channel.sessions.values()
        return self._requests + sum(session.requests for session in sessions)

    def start(self) -> None:
        """Accept other nodes."""
        self._channel.listen(self)

    async def close(self) -> None:
        """End all connections, and wait for running appends and deletions."""
        sessions = list(self._channel.sessions.values())
        self._channel.close("this node is stopping")
        await asyncio.gather(*(session.finished() for session in sessions))
        await self._tasks.close()

    # Listener

    def admit(self, content: bytes) -> Hello:
        """A caller's hello, if meant for this node. Raises RejectedError.

        The caller's own node id needs no check, because the caller holds the cluster's secret.
        """
        return check_hello(content, own_hello(self._cluster_id(), self._node_id, 0))

    def hello(self, theirs: Hello) -> Hello:
        """This node's hello, for an admitted caller."""
        return own_hello(self._cluster_id(), self._node_id, theirs.node_id)

    def opened(self, connection: Connection, theirs: Hello) -> _Session:
        """Take a caller's connection."""
        return _Session(theirs.node_id, self._gate, self._replicas, self._on_fatal, self._forget)

    def _forget(self, session: _Session) -> None:
        self._requests += session.requests


@dataclass(slots=True)
class _Running:
    task: asyncio.Task[None]
    operation: Operation
    body_bytes: int


class _Session(Session):
    """One caller's connection."""

    def __init__(
        self,
        node_id: int,
        gate: LeaderGate,
        replicas: ReplicaManager,
        on_fatal: Callable[[str], None],
        on_end: Callable[[_Session], None],
    ) -> None:
        super().__init__(node_id)
        self.requests = 0
        """Requests begun for the caller."""
        self._replicas = replicas
        self._gate = gate
        self._on_fatal = on_fatal
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._running: dict[int, _Running] = {}
        self._assembling: dict[int, Assembly] = {}
        self._waits = 0
        self._body_bytes = 0
        """Body bytes of requests that run or are still arriving."""
        self._last_id = 0

    async def finished(self) -> None:
        """Wait for the end of all running requests."""
        tasks = [running.task for running in self._running.values()]
        await asyncio.gather(*tasks, return_exceptions=True)

    # Session

    def received(self, message: bytes) -> None:
        """Take a message of the caller."""
        if self.is_ended:
            return
        self.has_heard = True
        try:
            self._take(message)
        except ProtocolError as error:
            logger.error("node %d broke the protocol of forwarding: %s", self.peer_id, error)
            self.end("it does not keep to the protocol")

    def on_ended(self, reason: str) -> None:
        """Cancel all requests but appends and deletions."""
        self._assembling.clear()
        for running in list(self._running.values()):
            _cancel_unless_changing(running)
        self._on_end(self)

    def ping(self) -> None:
        """Send nothing, because the caller may be silent for as long as a request runs."""
        self.has_heard = bool(self._running)

    def _take(self, message: bytes) -> None:
        head, part = decode(message)
        match head:
            case Request():
                if head.id <= self._last_id:
                    raise ProtocolError("an id was used twice")
                self._last_id = head.id
                self._body_bytes += head.body_bytes
                if self._body_bytes > ASSEMBLED_BYTES_MAX:
                    raise ProtocolError("the bodies of its requests exceed the bound")
                assembly = Assembly(head)
                body = assembly.take(part)
                if body is None:
                    self._assembling[head.id] = assembly
                else:
                    self._begin(head, body)
            case Piece():
                pieces = self._assembling.get(head.id)
                if pieces is None:
                    raise ProtocolError("a piece of nothing")
                body = pieces.take(part)
                if body is not None:
                    del self._assembling[head.id]
                    request = pieces.head
                    assert isinstance(request, Request)
                    self._begin(request, body)
            case Cancel():
                # All pieces of a body precede any other message of its request.
                running = self._running.get(head.id)
                if running is not None:
                    _cancel_unless_changing(running)
            case Answer():
                raise ProtocolError("an answer, from the calling side")
            case _:
                assert_never(head)

    def _begin(self, request: Request, body: memoryview) -> None:
        is_wait = is_held(request.operation)
        others = len(self._running) - self._waits
        if (self._waits >= WAITS_MAX) if is_wait else (others >= REQUESTS_MAX):
            self._body_bytes -= request.body_bytes
            self._answer(request.id, Failure(OVERLOADED.code, OVERLOADED.message))
            return
        self.requests += 1
        self._waits += is_wait
        task = self._loop.create_task(self._run(request, body))
        self._running[request.id] = _Running(task, request.operation, request.body_bytes)
        task.add_done_callback(lambda _: self._ended(request.id))

    def _ended(self, number: int) -> None:
        running = self._running.pop(number)
        self._waits -= is_held(running.operation)
        self._body_bytes -= running.body_bytes

    async def _run(self, request: Request, body: memoryview) -> None:
        outcome: Outcome
        data: Sequence[Buffer] = ()
        try:
            outcome, data = await self._carry_out(
                request.operation, body, request.remaining_ms / 1000
            )
        except LogError as error:
            outcome = Failure(error.entry.code, error.message)
        except Exception as error:
            logger.exception("a forwarded request of node %d failed", self.peer_id)
            if isinstance(error, AssertionError):
                self._on_fatal(f"An invariant broke: {error}")
            outcome = Failure(INTERNAL.code, INTERNAL.message)
        self._answer(request.id, outcome, data)

    def _answer(self, number: int, outcome: Outcome, body: Sequence[Buffer] = ()) -> None:
        if self.is_ended:
            return
        size = sum(map(len, body))
        if size > BODY_BYTES_MAX:
            outcome, body, size = _too_large(size), (), 0
        elif size and self.connection.queued_bytes + size > UNSENT_BYTES_MAX:
            outcome, body, size = Failure(OVERLOADED.code, OVERLOADED.message), (), 0
        for message in encode(Answer(number, outcome, size), body):
            self.connection.send(message)

    # Operations

    async def _carry_out(
        self, operation: Operation, body: memoryview, timeout_s: float
    ) -> tuple[Outcome, Sequence[Buffer]]:
        if isinstance(operation, Wait | BoundsOfMany | FindTimeInMany):
            return await self._of_many(operation, timeout_s), ()
        if isinstance(operation, ReadReplica):
            return await self._read_replica(operation)
        if isinstance(operation, ReadMany):
            return await self._read_many(operation)
        found = self._led(operation.topic_id, operation.partition)
        if isinstance(operation, Coordinate):
            return Coordinated(), (await self._gate.coordinate(found, body, timeout_s),)
        if isinstance(operation, FindNewest | FindEpochEnd | DescribeProducers):
            return await self._look_up(found, operation)
        return await self._at_leader(found, operation, body, timeout_s)

    async def _at_leader(
        self,
        found: Partition,
        operation: Append | Read | Bounds | FindTime | Delete | WriteMarker,
        body: memoryview,
        timeout_s: float,
    ) -> tuple[Outcome, Sequence[Buffer]]:
        match operation:
            case Append():
                # A batch that opens a transaction without verification is refused by the append.
                size_max = found.log.config.max_message_bytes
                batches = split_batches(body, max_message_bytes=size_max, allow_transactional=True)
                write = self._gate.open(
                    found,
                    operation.transactional_id,
                    adds_partition=operation.adds_partition,
                    may_start_anywhere=operation.may_start_anywhere,
                )
                results = await write(batches, acks=Acks(operation.acks), timeout_s=timeout_s)
                return Appended(
                    tuple(
                        (r.base_offset, r.last_offset, r.log_append_time_ms, r.duplicate)
                        for r in results
                    )
                ), ()
            case Read():
                end = operation.end_offset
                fetched = await found.read(
                    Offset(operation.offset),
                    max_bytes=operation.max_bytes,
                    end_offset=None if end is None else Offset(end),
                    isolation=Isolation(operation.isolation),
                )
                marks = Marks(
                    next_offset=fetched.next_offset,
                    high_watermark=fetched.high_watermark,
                    log_start_offset=fetched.log_start_offset,
                    last_stable_offset=fetched.last_stable_offset,
                    aborted_count=len(fetched.aborted),
                )
                return marks, with_aborted(fetched.aborted, fetched.data)
            case Bounds():
                await found.end_offset()
                return _marks(found), ()
            case FindTime():
                isolation = Isolation(operation.isolation)
                return FoundTime(
                    await found.offset_for_timestamp(operation.timestamp_ms, isolation)
                ), ()
            case Delete():
                start = await found.require_leader().delete_records(Offset(operation.before))
                return msgspec.structs.replace(_marks(found), log_start_offset=start), ()
            case WriteMarker(coordinator=coordinator):
                await self._gate.write_marker(
                    found,
                    ProducerId(operation.producer_id),
                    ProducerEpoch(operation.producer_epoch),
                    Marker(
                        operation.commit,
                        operation.coordinator_epoch,
                        operation.is_epoch_next,
                        None if coordinator is None else PartitionId(coordinator),
                    ),
                    timeout_s=timeout_s,
                )
                return MarkerWritten(), ()
            case _:
                assert_never(operation)

    async def _look_up(
        self, found: Partition, operation: _Query
    ) -> tuple[Outcome, Sequence[Buffer]]:
        match operation:
            case FindNewest():
                return FoundTime(await found.newest_record(Isolation(operation.isolation))), ()
            case FindEpochEnd():
                end = found.epoch_end(LeaderEpoch(operation.leader_epoch))
                return FoundEpochEnd(None if end is None else (end.epoch, end.end_offset)), ()
            case DescribeProducers():
                producers = found.producers(operation.count_max)
                return DescribedProducers(), (encode_producers(producers),)
            case _:
                assert_never(operation)

    async def _read_replica(self, operation: ReadReplica) -> tuple[Outcome, Sequence[Buffer]]:
        data = await self._replicas.read_copy(
            TopicId(operation.topic_id),
            PartitionId(operation.partition),
            Offset(operation.offset),
            operation.max_bytes,
        )
        return Marks(0, 0, 0, 0), (data,)

    async def _read_many(self, operation: ReadMany) -> tuple[Outcome, Sequence[Buffer]]:
        wanted = [
            (partial(self._led, topic_id, partition), Offset(offset), max_bytes)
            for topic_id, partition, offset, max_bytes in operation.wants
        ]
        isolation = Isolation(operation.isolation)
        return reads_answer(
            await local_reads(wanted, max_bytes=operation.max_bytes, isolation=isolation)
        )

    async def _of_many(
        self, operation: Wait | BoundsOfMany | FindTimeInMany, timeout_s: float
    ) -> Outcome:
        if isinstance(operation, Wait):
            wants = [
                (self._led(topic_id, partition), Offset(offset))
                for topic_id, partition, offset in operation.wants
            ]
            await self._replicas.wait_for_data(
                wants,
                min_bytes=1,
                timeout_s=timeout_s,
                isolation=Isolation(operation.isolation),
            )
            return Waited()
        if isinstance(operation, BoundsOfMany):
            marks = await local_bounds(
                [partial(self._led, topic_id, partition) for topic_id, partition in operation.wants]
            )
            return MarksOfMany(tuple(coded(outcome) for outcome in marks))
        found = await local_times(
            [
                (partial(self._led, topic_id, partition), timestamp_ms)
                for topic_id, partition, timestamp_ms in operation.wants
            ],
            Isolation(operation.isolation),
        )
        return FoundTimes(tuple(coded(outcome) for outcome in found))

    def _led(self, topic_id: str, partition: int) -> Partition:
        image = self._replicas.image
        topic = image.topics_by_id.get(TopicId(topic_id))
        if topic is None:
            if TopicId(topic_id) in image.deleted_topic_ids:
                raise LogError(UNKNOWN_TOPIC)
            raise LogError(NOT_READY, "The leader does not know the topic yet.")
        return self._replicas.partition(topic.name, partition)


def _marks(found: Partition) -> Marks:
    return Marks(0, found.high_watermark, found.log_start_offset, found.last_stable_offset)


def _cancel_unless_changing(running: _Running) -> None:
    if not isinstance(running.operation, Append | Delete | WriteMarker):
        running.task.cancel()


def _too_large(size: int) -> Failure:
    return Failure(
        UNSUPPORTED_FORMAT.code,
        f"The next batch has {size} bytes, too many to be passed on by another node; "
        "/v1/fetch at the partition's leader gives it.",
    )
