"""A led partition of an internal topic decides, replays, appends, and responds once committed.

A `Shard` is one load of one leader epoch, for good. It ends when the lead is over, an append failed
or has an unknown outcome, or the node stops. The service then loads another shard from the log, if
the partition is still led here. An ended shard never writes again (`_Batch.guard`).

A request costs one call of its decision and one future. The records of all decisions of one turn of
the event loop go into one batch. While IN_FLIGHT_MAX batches are in flight, the next batch
collects. A batch of a transaction has only its producer's records. It gains nothing by waiting, and
waits only for ALONE_IN_FLIGHT_MAX.

A batch is written only where the shard expects it, so the positions given to `replay` are the
offsets in the log, and no batch follows a failed batch.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Hashable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from raftlog.coordinator.shard.decision import (
    UNDATED_MS,
    CoordinatorRecord,
    Counts,
    Decision,
    Producer,
    Timers,
    weakly,
)
from raftlog.coordinator.shard.messages import Messages
from raftlog.metadata.image import MetadataImage
from raftlog.peer.tasks import TaskGroup
from raftlog.record.batch import RecordBatch
from raftlog.record.codec import BatchBuilder, Record
from raftlog.record.compression import Compression
from raftlog.record.errors import (
    ILLEGAL_STATE,
    MAYBE_CHANGED,
    NOT_COORDINATOR,
    OVERLOADED,
    RECORD_TOO_LARGE,
    LogError,
    outcome_unknown_error,
)
from raftlog.record.header import HEADER_SIZE, parse_header
from raftlog.record.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Offset,
    ProducerEpoch,
    ProducerId,
)
from raftlog.replication.leader.role import LeaderRole
from raftlog.replication.leader.verification import VerificationGuard
from raftlog.replication.partition import Acks, Partition
from raftlog.replication.replica import Origin
from raftlog.world import Clock
from raftlog.world.cluster_clock import ClusterClock
from raftlog.world.time import Wakeup

IN_FLIGHT_MAX: Final = 4
"""Uncommitted batches of a shard, to overlap a sync with a round trip."""
ALONE_IN_FLIGHT_MAX: Final = 64
"""Batches in flight before a batch or marker of a transaction. Nothing else could join it."""
BATCH_BYTES_MAX: Final = 256 << 10
"""Bytes at which the next decision begins another batch."""
PENDING_BYTES_MAX: Final = 16 << 20
PENDING_RECORDS_MAX: Final = 100_000
"""Uncommitted bytes and records of a shard above which requests are refused (OVERLOADED)."""
RECORD_BYTES: Final = 32
"""Most bytes of a record in a batch besides key and value."""
MARKER_BYTES: Final = 78
"""Bytes of a control batch with one marker."""
WAITERS_MAX: Final = 20_000
"""Requests held open by a shard. More are refused (OVERLOADED)."""
EXPIRED_PER_TURN_MAX: Final = 64
"""Timers that expire in one turn of some milliseconds."""
COMMIT_S: Final = 30.0
"""Longest wait in seconds for a commit. A late replica leaves the ISR before."""
DEADLINE_STEPS: Final = 16
"""Steps of the timeout of a held request. Idle members' heartbeats then end in few turns of the
event loop, and return together, because waking up a process costs more than a heartbeat."""
PAUSE_S: Final = 0.25
"""Pause of the timers while the partition takes no writes."""

WriteMarker: TypeAlias = Callable[[Callable[[], None]], Awaitable[object]]
"""Writes a marker with a guard that is called right before. Returns once committed. Raises
LogError."""

R = TypeVar("R")
Q = TypeVar("Q")
A = TypeVar("A")
K = TypeVar("K", bound=Hashable)

logger = logging.getLogger(__name__)


class Moment(NamedTuple):
    """A decision's surroundings. All else is in its request."""

    now_ms: int
    """Monotonic, for timers."""
    time_ms: int
    """The cluster's time, for stored times. UNDATED_MS while it is unknown."""
    expiry_ms: int | None
    """The cluster's time, for expiry. None while it is unknown."""
    image: MetadataImage
    """The applied metadata."""


class StateMachine(Protocol):
    """The state of one partition. Synchronous. Only replays change anything but timers."""

    def replay(
        self, record: CoordinatorRecord, *, position: int, producer: Producer | None
    ) -> None:
        """Apply the record at an offset of the log, in an open transaction of `producer`."""
        ...

    def replay_marker(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        *,
        committed: bool,
        position: int,
    ) -> None:
        """Apply the end of the producer's transaction in this partition."""
        ...


S = TypeVar("S", bound=StateMachine)


class Kind(ABC, Generic[S, K, Q, A]):
    """A kind of coordinator, with its topic, state machine and codecs. Shared by all shards."""

    name: ClassVar[str]
    """`group` or `transaction`, for calls and log lines."""
    topic: ClassVar[str]
    """The internal topic with its records."""
    messages: ClassVar[Messages[Any, Any]]
    """The requests and responses."""

    def __init__(self) -> None:
        self.counts: Final[Counts] = Counter()
        """Events of all shards of the node."""

    # State

    @abstractmethod
    def create(self, changed: Callable[[Hashable], None]) -> S:
        """An empty state, which calls `changed` with each key that a replay changes."""

    @abstractmethod
    def timers(self, state: S) -> Timers[K]:
        """The timers of the state."""

    @abstractmethod
    def loaded(self, state: S, moment: Moment) -> None:
        """Start all timers with their full length, after a load or a time without writes."""

    @abstractmethod
    def follow_settings(self, state: S, settings: Mapping[str, str]) -> None:
        """Adopt the cluster's settings, before the end of a load and when they change."""

    def topics_changed(self, state: S, names: Collection[str], moment: Moment) -> None:
        """Note topics that were created, deleted or enlarged. A timer may then decide."""
        return

    # Decisions

    @abstractmethod
    async def handle(self, shard: Shard[S, K], request: Q) -> A:
        """Carry out a checked request by `execute`, `query` and `wait_until`. Raises LogError."""

    @abstractmethod
    def expire(self, state: S, key: K, moment: Moment) -> Decision[object]:
        """Decide about a timer that is due."""

    @abstractmethod
    def refused(self, state: S, decision: Decision[object], moment: Moment) -> None:
        """Undo what else a decision changed, as timers. Its records are too large."""

    def beside(self, shard: Shard[S, K]) -> Coroutine[Any, Any, None] | None:
        """Work to run beside a loaded shard until the shard ends, or None."""
        return None

    # Records

    @abstractmethod
    def encode_record(self, record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
        """Encode a record as the key and the value of its log record."""

    @abstractmethod
    def decode_record(self, key: bytes, value: bytes | None) -> CoordinatorRecord | None:
        """Decode a record, or return None for a type of a newer version. Raises LogError."""

    def replay_usual(self, state: S, records: Sequence[Record], start: int) -> int:
        """Replay records without a transaction from `start`, in a log's usual form.

        The state ends as with `decode_record` and `replay`, in less time. Returns the index of the
        first record to decode.
        """
        return start


@dataclass(slots=True, eq=False)
class _Batch:
    """Records, or a marker, appended together, and the requests that wait for their commit."""

    base: Offset
    producer: Producer | None
    builder: BatchBuilder
    write_marker: WriteMarker | None = None
    """Writes a marker, instead of records."""
    verification: VerificationGuard | None = None
    """Guard of records that open their producer's transaction in this partition."""
    size_bytes: int = HEADER_SIZE
    record_count: int = 0
    waiters: list[tuple[asyncio.Future[None], bool]] = field(default_factory=list)
    """Futures, and whether the request has records here."""
    may_be_written: bool = False
    is_committed: bool = False


class Shard(Generic[S, K]):
    """A loaded partition. Lives in the event loop."""

    def __init__(
        self,
        kind: Kind[S, K, Any, Any],
        partition: Partition,
        role: LeaderRole,
        *,
        clock: Clock,
        cluster_clock: ClusterClock,
        image: Callable[[], MetadataImage],
        tasks: TaskGroup,
    ) -> None:
        """An empty shard. `load.load_shard` fills it, then calls `begin`."""
        self.kind = kind
        self.partition = partition
        self.role: Final = role
        """The leader epoch that this shard belongs to."""
        self.state: S = kind.create(weakly(self._changed))
        self._timers = kind.timers(self.state)
        self._clock = clock
        self._cluster_clock = cluster_clock
        self._image = image
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._next = Offset(0)
        """The offset of the next record."""
        self._unwritten: deque[_Batch] = deque()
        """The last one collects."""
        self._in_flight: deque[_Batch] = deque()
        self._pending_bytes = self._pending_records = 0
        """Bytes and records of both."""
        self._last_of: dict[ProducerId, _Batch] = {}
        """Each producer's last batch that is not committed yet."""
        self._is_flush_due = False
        self._ended: LogError | None = None
        self._held: dict[Hashable, list[asyncio.Future[None]]] = {}
        """Requests held open, by the key with the awaited change."""
        self._held_count = 0
        self._wakeup = Wakeup(clock)
        self._waits_until_ms: int | None = None
        """The deadline that the timers' task waits for."""

    # Life

    def begin(self, end: Offset) -> None:
        """Serve: everything below `end`, the log's end, has been replayed and is committed."""
        self._next = end
        self.settings_changed()
        self.kind.loaded(self.state, self.moment())

    async def run(self) -> None:
        """Run the timers until the shard ends."""
        while self._ended is None:
            due_ms = self._waits_until_ms = self._timers.next_ms()
            # A whole millisecond later, because the clock has more digits than the deadline.
            await self._wakeup.wait(None if due_ms is None else (due_ms + 1) / 1000)
            if self._ended is None:
                await self._expire_due()

    def end(self, error: LogError) -> None:
        """End for good. All waiting requests fail, with an unknown outcome if they have records."""
        if self._ended is not None:
            return
        self._ended = error.as_outcome()
        batches = (*self._in_flight, *self._unwritten)
        self._in_flight.clear()
        self._unwritten.clear()
        self._last_of.clear()
        for batch in batches:
            for future, has_records in batch.waiters:
                if not future.done():
                    lost = self._not_coordinator(error)
                    if has_records and batch.may_be_written:
                        lost = outcome_unknown_error(lost, MAYBE_CHANGED)
                    future.set_exception(lost)
            batch.waiters.clear()
        held, self._held = self._held, {}
        for futures in held.values():
            for future in futures:
                _settle(future)
        self._wakeup.set()

    @property
    def ended(self) -> LogError | None:
        """Why the shard has ended, or None while it serves."""
        return self._ended

    def _not_coordinator(self, error: LogError) -> LogError:
        return LogError(
            NOT_COORDINATOR, f"{self.partition.name} is not coordinated here now: {error.message}"
        )

    def _require_lead(self) -> None:
        if self._ended is not None:
            raise self._not_coordinator(self._ended)
        assert self.partition.leader_role is self.role, "the end of a leader epoch ends its shard"

    def moment(self) -> Moment:
        """The clocks and the metadata, for a decision."""
        time_ms = self._cluster_clock.time_ms()
        return Moment(
            now_ms=int(self._clock.monotonic() * 1000),
            time_ms=UNDATED_MS if time_ms is None else time_ms,
            expiry_ms=self._cluster_clock.expiry_ms(),
            image=self._image(),
        )

    def topics_changed(self, names: Collection[str]) -> None:
        """Follow the creation, deletion or growth of topics."""
        self.kind.topics_changed(self.state, names, self.moment())
        self.timers_changed()

    def settings_changed(self) -> None:
        """Follow a change of the cluster's settings."""
        self.kind.follow_settings(self.state, self._image().cluster_settings)

    # Requests

    async def execute(
        self,
        decide: Callable[[S], Decision[R]],
        *,
        verification: VerificationGuard | None = None,
    ) -> R:
        """Decide, replay and append the records, and return the response once all is committed.

        Cancelling the call does not undo the records. `decide` may raise LogError, which is
        returned like a response. For records in a transaction see `execute_in_transaction`. Raises
        LogError NOT_COORDINATOR, OVERLOADED and the errors of an append that wrote nothing, or
        RETRIABLE with an unknown outcome.
        """
        self._require_lead()
        self.partition.require_appendable()
        self._require_room()
        try:
            decision = decide(self.state)
        except LogError:
            await self._committed()
            raise
        if decision.records:
            await self._waited(self._take(decision, verification), has_records=True)
        else:
            await self._committed()
        return decision.response

    async def execute_in_transaction(
        self,
        producer: Producer,
        verification: VerificationGuard | None,
        decide: Callable[[S], Decision[R]],
    ) -> R:
        """Execute as `execute`, with records in the producer's transaction, if any.

        The caller has first queried the transaction's coordinator, after `verification` began, and
        the coordinator has confirmed the transaction (None if the transaction was open here). A
        batch that the log would refuse would end the shard, so this refuses first. Also raises
        LogError TRANSACTION_NOT_VERIFIED if a marker came in between, PRODUCER_FENCED and
        QUOTA_EXCEEDED.
        """
        while True:
            self._require_lead()
            last = self._last_of.get(producer.producer_id)
            if last is None or (last.write_marker is None and last.producer == producer):
                break
            # The log judges a marker, or a batch of another epoch, once it is there.
            await self._waited(last, has_records=False)
        if last is None:
            self.role.check_coordinator_append(
                *producer, verification, new_producers=self._new_producers(producer)
            )
        return await self.execute(decide, verification=None if last else verification)

    def _new_producers(self, producer: Producer) -> int:
        """Producers not in the log, with a batch on its way there, and this producer."""
        known = self.partition.log.producers
        if producer.producer_id in known:
            return 0
        return 1 + sum(producer_id not in known for producer_id in self._last_of)

    async def append_marker(
        self,
        producer: Producer,
        *,
        committed: bool,
        judge: Callable[[int], bool],
        write: WriteMarker,
    ) -> None:
        """Append a transaction's marker among the decisions, and return once committed.

        All batches of the partition go through its shard, so the replay has the log's order.
        `judge` decides by the log, once all earlier batches of the producer are in it. It returns
        False if the marker is there already, and raises LogError if it is refused. Its argument
        counts the producers not in the log that would be with all batches on their way there.
        Raises LogError as `execute`.
        """
        while True:
            self._require_lead()
            self.partition.require_appendable()
            self._require_room()
            earlier = self._last_of.get(producer.producer_id)
            if earlier is None:
                break
            await self._waited(earlier, has_records=False)
        if not judge(self._new_producers(producer)):
            await self._committed()
            return
        with self._ended_by_failure():
            self.state.replay_marker(*producer, committed=committed, position=self._next)
        batch = self._begin_batch(producer, write)
        self._count(batch, 1, MARKER_BYTES)
        await self._waited(batch, has_records=True)

    async def query(self, read: Callable[[S], R]) -> R:
        """Read the state. Returns once all of it is committed and the lead is confirmed.

        No response is older than a response that left before the call, on any node. `read` may
        raise LogError. Raises LogError as `execute`. Also responds while the partition takes no
        writes.
        """
        self._require_lead()
        error: LogError | None = None
        try:
            response = read(self.state)
        except LogError as raised:
            error = raised
        await self._committed()
        await self.partition.confirm()
        self._require_lead()
        if error is not None:
            raise error
        return response

    async def wait_until(
        self, keys: tuple[Hashable, ...], condition: Callable[[S], bool], timeout_s: float
    ) -> bool:
        """Wait until a replayed change of one of the keys makes the condition true.

        Returns False after the timeout, or up to a sixteenth of it earlier. The state that the
        condition saw may not be committed, so respond by `execute` or `query`. Raises LogError
        NOT_COORDINATOR or OVERLOADED.
        """
        self._require_lead()
        if condition(self.state):
            return True
        if self._held_count >= WAITERS_MAX:
            raise LogError(OVERLOADED, f"{self.partition.name}: too many requests are held open.")
        self._held_count += 1
        timer = None
        try:
            deadline = self._on_grid(timeout_s)
            while True:
                future: asyncio.Future[None] = self._loop.create_future()
                for key in keys:
                    self._held.setdefault(key, []).append(future)
                timer = self._loop.call_at(deadline, _settle, future)
                await future
                self._require_lead()
                timer.cancel()
                self._forget_held(keys)
                if condition(self.state):
                    return True
                if self._loop.time() >= deadline:
                    return False
        finally:
            self._held_count -= 1
            if timer is not None:
                timer.cancel()
            self._forget_held(keys)

    def _on_grid(self, timeout_s: float) -> float:
        """The deadline, up to a sixteenth earlier, on the grid of timeouts of this length."""
        now = self._loop.time()
        if timeout_s <= 0:
            return now
        step_s = timeout_s / DEADLINE_STEPS
        return (now + timeout_s) // step_s * step_s

    def _changed(self, key: Hashable) -> None:
        """Wake the requests of a key that a replay has changed. They look in a later turn."""
        for future in self._held.pop(key, ()):
            _settle(future)

    def _forget_held(self, keys: tuple[Hashable, ...]) -> None:
        for key in keys:
            left = [future for future in self._held.pop(key, ()) if not future.done()]
            if left:
                self._held[key] = left

    # Records

    def _require_room(self) -> None:
        if self._pending_bytes >= PENDING_BYTES_MAX or self._pending_records >= PENDING_RECORDS_MAX:
            raise LogError(OVERLOADED, f"{self.partition.name}: too many changes wait for commit.")

    def _take(self, decision: Decision[R], verification: VerificationGuard | None = None) -> _Batch:
        """Replay a decision's records, and add these to the batch that collects."""
        encode, kept = self.kind.encode_record, self.state
        encoded = [encode(record) for record in decision.records]
        size_bytes = sum(len(key) + len(value or b"") + RECORD_BYTES for key, value in encoded)
        bytes_max = self.partition.log.config.max_message_bytes
        if HEADER_SIZE + size_bytes > bytes_max:
            self.kind.refused(kept, decision, self.moment())
            raise LogError(
                RECORD_TOO_LARGE,
                f"{self.partition.name}: a change of {size_bytes} bytes is too large; "
                f"max.message.bytes is {bytes_max}.",
            )
        with self._ended_by_failure():
            for position, record in enumerate(decision.records, self._next):
                kept.replay(record, position=position, producer=decision.producer)
        batch = self._batch_for(size_bytes, bytes_max, decision.producer)
        batch.verification = batch.verification or verification
        time_ms, append = self._cluster_clock.estimate_ms(), batch.builder.append
        for key, value in encoded:
            append(time_ms, key, value)
        self._count(batch, len(encoded), size_bytes)
        return batch

    @contextmanager
    def _ended_by_failure(self) -> Iterator[None]:
        """End the shard if a replay fails, because the state may be half changed."""
        try:
            yield
        except BaseException:
            self.end(LogError(ILLEGAL_STATE, "A record could not be replayed."))
            raise

    def _count(self, batch: _Batch, record_count: int, size_bytes: int) -> None:
        """Count what a batch has got, and have it written."""
        batch.size_bytes += size_bytes
        batch.record_count += record_count
        self._next = Offset(self._next + record_count)
        self._pending_bytes += size_bytes
        self._pending_records += record_count
        if not self._is_flush_due and self._may_write():
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _batch_for(self, size_bytes: int, bytes_max: int, producer: Producer | None) -> _Batch:
        """The batch that collects, if the records belong there and fit, else a new batch."""
        if self._unwritten:
            batch = self._unwritten[-1]
            fits = batch.size_bytes + size_bytes <= min(BATCH_BYTES_MAX, bytes_max)
            if fits and batch.producer == producer and batch.write_marker is None:
                return batch
        return self._begin_batch(producer)

    def _begin_batch(
        self, producer: Producer | None, write_marker: WriteMarker | None = None
    ) -> _Batch:
        batch = _Batch(self._next, producer, _builder(producer), write_marker)
        self._unwritten.append(batch)
        if producer is not None:
            self._last_of[producer.producer_id] = batch
        return batch

    def _flush(self) -> None:
        """Write the collected batches, as far as the bound in flight allows."""
        self._is_flush_due = False
        while self._may_write():
            batch = self._unwritten.popleft()
            self._in_flight.append(batch)
            self._tasks.spawn(self._write(batch), "coordinator-append")

    def _may_write(self) -> bool:
        """Whether there is a next batch, and the bound in flight allows it."""
        if not self._unwritten:
            return False
        is_alone = self._unwritten[0].producer is not None
        return len(self._in_flight) < (ALONE_IN_FLIGHT_MAX if is_alone else IN_FLIGHT_MAX)

    async def _write(self, batch: _Batch) -> None:
        def guard() -> None:
            if self._ended is not None:
                raise LogError(NOT_COORDINATOR, "The shard has ended.")
            if self.partition.log_end_offset != batch.base:
                raise LogError(
                    ILLEGAL_STATE,
                    f"{self.partition.name} ends at {self.partition.log_end_offset}, not at "
                    f"{batch.base}: another append failed, or was none of the coordinator's.",
                )
            batch.may_be_written = True

        try:
            if batch.write_marker is not None:
                await batch.write_marker(guard)
            else:
                data = batch.builder.build()
                built = (RecordBatch(parse_header(data), memoryview(data)),)
                await self._append(built, guard, batch.verification)
        except LogError as error:
            if self._ended is None:
                logger.warning("%s: an append failed: %s", self.partition.name, error.message)
            if not error.entry.outcome_unknown:
                batch.may_be_written = False
            self.end(error)
            return
        batch.is_committed = True
        self._release()

    async def _append(
        self,
        batches: Sequence[RecordBatch],
        guard: Callable[[], None],
        verification: VerificationGuard | None,
    ) -> None:
        """Write to the log, as the only writer. Returns once committed."""
        await self.partition.append(
            batches,
            acks=Acks.ALL,
            timeout_s=COMMIT_S,
            guard=guard,
            origin=Origin.COORDINATOR,
            verification=verification,
        )

    def _release(self) -> None:
        """Let the responses of committed batches leave, in order."""
        in_flight = self._in_flight
        while in_flight and in_flight[0].is_committed:
            batch = in_flight.popleft()
            self._pending_bytes -= batch.size_bytes - HEADER_SIZE
            self._pending_records -= batch.record_count
            producer = batch.producer
            if producer is not None and self._last_of.get(producer.producer_id) is batch:
                del self._last_of[producer.producer_id]
            for future, _ in batch.waiters:
                _settle(future)
        self._flush()

    async def _waited(self, batch: _Batch, *, has_records: bool) -> None:
        """Return once the batch is committed, with the request's own records in it or not."""
        self.timers_changed()
        future: asyncio.Future[None] = self._loop.create_future()
        batch.waiters.append((future, has_records))
        try:
            await future
        finally:
            # An error refers to this frame. Without the circle it frees an ended shard at once.
            del future

    async def _committed(self) -> None:
        """Return once everything replayed so far is committed."""
        last = self._unwritten or self._in_flight
        if last:
            await self._waited(last[-1], has_records=False)
        else:
            self.timers_changed()

    # Timers

    def timers_changed(self) -> None:
        """Wake the timers' task if the first deadline has come nearer."""
        next_ms, until_ms = self._timers.next_ms(), self._waits_until_ms
        if next_ms is not None and (until_ms is None or next_ms < until_ms):
            self._waits_until_ms = next_ms
            self._wakeup.set()

    async def _expire_due(self) -> None:
        for count in range(1, len(self._timers) + 1):
            if not self._takes_writes():
                await self._wait_writable()
                return
            moment = self.moment()
            key = self._timers.pop_due(moment.now_ms)
            if key is None:
                return
            decision = self.kind.expire(self.state, key, moment)
            if decision.records:
                try:
                    self._take(decision)
                except LogError as error:
                    logger.error("%s: timer %r failed: %s", self.partition.name, key, error.message)
            if count % EXPIRED_PER_TURN_MAX == 0:
                await asyncio.sleep(0)
                if self._ended is not None:
                    return

    async def _wait_writable(self) -> None:
        """Wait until the partition takes writes, and start all timers again.

        Members could not renew their sessions during the wait.
        """
        while self._ended is None and not self._takes_writes():
            await self._clock.sleep(PAUSE_S)
        if self._ended is None:
            self.kind.loaded(self.state, self.moment())

    def _takes_writes(self) -> bool:
        try:
            self.partition.require_appendable()
            self._require_room()
        except LogError:
            return False
        return True


def _builder(producer: Producer | None) -> BatchBuilder:
    # The bound is `BATCH_BYTES_MAX`, decision by decision.
    if producer is None:
        return BatchBuilder(
            Compression.NONE,
            1 << 30,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
            base_sequence=NO_SEQUENCE,
        )
    return BatchBuilder(
        Compression.NONE,
        1 << 30,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=NO_SEQUENCE,
        transactional=True,
    )


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
