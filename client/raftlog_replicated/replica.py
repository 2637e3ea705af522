"""A replica of a state is the shell around applier and pipeline.

| role | reads the log | serves | ends when |
|---|---|---|---|
| CATCHING_UP | from the newest snapshot on | nothing | the log's end of its start is applied |
| REPLICA | yes | reads | lease granted and own fence counts, PRIMARY. Diverged, QUARANTINED |
| PRIMARY | no, own batches are applied once committed | reads, commands | lease or writer lost |
| QUARANTINED | from an older snapshot on | nothing | a digest from the divergence on is equal |

Two fences protect the state. The writer of a new primary ends its predecessor's in the log, and
entries of another term than the last fence's change no state. The second is enough for safety. The
first stops a zombie early.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, Final, Generic, Self, TypeVar, cast

from raftlog_client import RaftlogClientError
from raftlog_client.metadata import Backoff

from raftlog_replicated.applier import REQUEST_ID_CHARACTERS_MAX, Applier
from raftlog_replicated.codec import Commands, Digest, Entry, Fence, decode_entry, encode_entry
from raftlog_replicated.errors import (
    BehindError,
    DivergedError,
    NotPrimaryError,
    OverloadedError,
    ReplicaEndedError,
    ReplicatedError,
    UnknownEntryError,
)
from raftlog_replicated.logs.pipeline import Pipeline
from raftlog_replicated.ports import LogRecord, LogTrimmedError, StateLog, Writer
from raftlog_replicated.reads import Progress, SharedQuestions, TooManyWaitError
from raftlog_replicated.snapshots.snapshotter import Snapshotter
from raftlog_replicated.types import (
    EVENTUAL,
    Applied,
    Codec,
    Command,
    Host,
    Member,
    Position,
    Read,
    Result,
    Role,
    RoleChange,
    StateMachine,
    Term,
    Token,
)

_logger = logging.getLogger(__name__)

Machine = TypeVar("Machine")
T = TypeVar("T")

SUBMIT_TIMEOUT_MS: Final = 10_000
READ_TIMEOUT_MS: Final = 5_000
SWEEP_S: Final = 0.05
"""Deadlines of commands are looked at so often."""
PAUSE_S: Final = 1.0
"""Pause after a snapshot that was not taken."""
RETRIES: Final = Backoff(50, 1_000, jitter=0)
"""Pauses after errors of the log."""
RENEWAL_LOOK_S: Final = 0.01
"""A read by lease looks so often whether a late heartbeat has been answered."""
TURN_S: Final = 0.005
"""Seconds of applying after which the event loop has a turn."""
CHANGES_MAX: Final = 64
"""Role changes that wait for a reader of `changes`. Older changes are dropped."""
SERVING: Final = (Role.REPLICA, Role.PRIMARY)
"""Roles with a state fit for reads."""


class Replica(Generic[Machine, Command, Result]):
    """A replica over any log. Services use `Replicated`, which is one over raftlog's."""

    def __init__(
        self,
        machine: Machine,
        log: StateLog,
        *,
        name: str,
        replica_id: str,
        endpoint: str | None,
        codec: Codec[Command, Result],
        host: Host,
        snapshot_bytes: int,
    ) -> None:
        self.machine: Machine = machine
        self.name = name
        self.replica_id = replica_id
        self.endpoint = endpoint
        self._codec = codec
        self._host = host
        self._log = log
        typed = cast(StateMachine[Command, Result], machine)
        self._applier: Applier[Command, Result] = Applier(typed, codec)
        self._pipeline: Pipeline[Command, Result] = Pipeline()
        self._snapshotter = Snapshotter(self._applier, log, replica_id, snapshot_bytes)
        self._lease = log.lease(_Listener(self))
        self._snapshot_task: asyncio.Task[None] | None = None
        self._role = Role.CATCHING_UP
        self._offsets = Progress()
        """The next offset to apply."""
        self._positions = Progress()
        self._fence_offset = -1
        """Where the last fence that counts stands."""
        self._questions = SharedQuestions(log.end, log.clock)
        self._fresh_at = float("-inf")
        """All that was acknowledged before is applied, by the log's clock."""
        self._distrusted_until: Position | None = None
        """Position from which, while quarantined, a digest must be the primary's."""
        self._submitted = asyncio.Event()
        self._may_read = asyncio.Event()
        self._holds = False
        """A hand-over is under way, so no batch starts."""
        self._stamps_since_ms = 0
        """Wall clock minus monotonic time, as of the last own fence."""
        self._started = 0
        """Batches that the log may have taken."""
        self._settled = Progress()
        """Those of these batches that are applied, or left to the log."""
        self._leading: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._readers: list[deque[RoleChange]] = []
        self._changed = asyncio.Event()
        self._ended: ReplicaEndedError | None = ReplicaEndedError("The replica is not started.")

    # Life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Find the log, restore the newest snapshot, and start to follow.

        Returns before the replica has caught up, which `changes` reports. Raises
        RaftlogClientError without a cluster, LayoutError for topics that are not a state's.
        """
        await self._log.start()
        self._ended = None
        self._spawn(self._follow())
        self._spawn(self._sweep())

    async def close(self) -> None:
        """Leave: another replica becomes the primary at once. Closing twice is allowed."""
        self._end(ReplicaEndedError("The replica is closed."))
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._questions.close()
        await self._lease.close()
        await self._log.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        """End the replica on any failure, which all calls then raise."""
        try:
            await work
        except Exception as error:
            ended = ReplicaEndedError(
                f"Replica {self.replica_id} of {self.name} has ended: {error}"
            )
            ended.__cause__ = error
            _logger.error("%s", ended, exc_info=error)
            self._end(ended)
            for task in self._tasks - {asyncio.current_task()}:
                task.cancel()
            await self._lease.close()

    def _end(self, error: ReplicaEndedError) -> None:
        if self._ended is not None:
            return
        self._ended = error
        self._resign()
        self._pipeline.end(error)
        self._offsets.fail(error)
        self._positions.fail(error)
        self._changed.set()

    # What it is

    @property
    def role(self) -> Role:
        """What this replica does now."""
        return self._role

    @property
    def term(self) -> Term:
        """Term of the last primary that this replica knows."""
        return self._applier.term

    @property
    def position(self) -> Position:
        """Entries that the state contains."""
        return self._applier.position

    @property
    def token(self) -> Token:
        """The state seen by a reader now, for session reads on other replicas."""
        return Token(self._applier.term, self._applier.position)

    async def members(self) -> tuple[Member, ...]:
        """The replicas of the state, by their last heartbeats. Raises RaftlogClientError."""
        self._check()
        members = await self._log.members()
        newest = max((member.position for member in members), default=0)
        return tuple(
            Member(
                replica_id=member.instance_id,
                endpoint=member.endpoint,
                position=member.position,
                lag=newest - member.position,
                is_primary=member.is_primary,
            )
            for member in members
        )

    async def changes(self) -> AsyncGenerator[RoleChange]:
        """The present role and each later role. Raises ReplicaEndedError at the end."""
        self._check()
        queue = deque([RoleChange(self._role, self.term)], CHANGES_MAX)
        self._readers.append(queue)
        try:
            while True:
                while queue:
                    yield queue.popleft()
                self._check()
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._readers.remove(queue)

    def _set_role(self, role: Role) -> None:
        if role is self._role:
            return
        self._host.primaries += (role is Role.PRIMARY) - (self._role is Role.PRIMARY)
        self._role = role
        _logger.info(
            "replica %s of %s: %s in term %d at position %d",
            self.replica_id,
            self.name,
            role.value,
            self.term,
            self.position,
        )
        for queue in self._readers:
            queue.append(RoleChange(role, self.term))
        self._changed.set()

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended

    # Commands

    async def submit(
        self,
        command: Command,
        *,
        request_id: str | None = None,
        timeout_ms: float = SUBMIT_TIMEOUT_MS,
    ) -> Applied[Result]:
        """Have a command applied on all replicas, once it is in the log for good.

        With a `request_id` it happens once, however often it is submitted within ten minutes, to
        whichever primary. The first result is given again. Raises NotPrimaryError, OverloadedError,
        TooManyRequestsError, ValueError (it did not happen), OutcomeUnknownError (it may have),
        ReplicaEndedError.
        """
        self._check()
        if self._role is not Role.PRIMARY:
            raise self._not_primary()
        if request_id is not None and not 0 < len(request_id) <= REQUEST_ID_CHARACTERS_MAX:
            raise ValueError(f"a request id has 1 to {REQUEST_ID_CHARACTERS_MAX} characters")
        payload = self._codec.encode_command(command)
        try:
            # The others decode it. A command that cannot be decoded would end them all, at each
            # start.
            command = self._codec.decode_command(payload)
        except UnknownEntryError as error:
            raise ValueError(f"a command that cannot be decoded: {error}") from error
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Applied[Result]] = loop.create_future()
        deadline = loop.time() + timeout_ms / 1000
        self._pipeline.add(command, payload, request_id, deadline, done)
        self._submitted.set()
        return await done

    def _not_primary(self) -> NotPrimaryError:
        fence = self._applier.fence
        is_own = fence.replica == self.replica_id
        return NotPrimaryError(None if is_own else fence.endpoint, fence.term)

    async def hand_over(self, replica_id: str) -> None:
        """Make another replica the primary, once the batch under way is settled.

        Returns when this replica has given up the role. If the coordinator knows no such live
        replica, nothing changes. Raises NotPrimaryError or, in that case, ServerError.
        """
        self._check()
        if self._role is not Role.PRIMARY:
            raise self._not_primary()
        if replica_id == self.replica_id:
            return
        self._holds = True
        try:
            await self._settled.reach(self._started)
            await self._lease.hand_over(replica_id)
            async with asyncio.timeout(READ_TIMEOUT_MS / 1000):
                while self._role is Role.PRIMARY:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise ReplicatedError("The hand-over has not ended in time; it may go on.") from None
        finally:
            self._holds = False
            self._submitted.set()

    # The lease

    def _grant(self) -> None:
        """Become the primary."""
        if self._ended is None and self._leading is None:
            self._leading = self._spawn(self._lead())

    def _revoke(self, error: Exception | None) -> None:
        """Be none from this moment on."""
        leading, self._leading = self._leading, None
        if leading is not None:
            leading.cancel()
        self._resign()
        if error is not None:
            _logger.warning(
                "replica %s of %s lost its lease: %s", self.replica_id, self.name, error
            )

    def _resign(self) -> None:
        """Resign. Queued commands did not happen, and the log decides on sent commands."""
        if self._role is Role.PRIMARY:
            self._set_role(Role.REPLICA)
        self._settled.advance(self._started)
        self._pipeline.refuse_queued(self._not_primary())
        self._resume_reading()

    def _resume_reading(self) -> None:
        self._log.seek(self._offsets.value)
        self._may_read.set()

    async def _lead(self) -> None:
        failures = 0
        try:
            while self._lease.is_primary:
                writer: Writer | None = None
                try:
                    writer = await self._log.open_writer()
                    if await self._promote(writer):
                        failures = 0
                        await self._serve(writer)
                except RaftlogClientError as error:
                    _logger.warning(
                        "primary %s of %s lost its writer: %s", self.replica_id, self.name, error
                    )
                finally:
                    if self._leading is asyncio.current_task():
                        self._resign()
                    if writer is not None:
                        await writer.close()
                await asyncio.sleep(RETRIES.delay_s(failures))
                failures += 1
        finally:
            if self._leading is asyncio.current_task():
                self._leading = None

    async def _promote(self, writer: Writer) -> bool:
        """Fence the predecessor. Returns whether this replica is the primary now."""
        while self._may_serve():
            if not self._may_fence():
                await asyncio.sleep(RENEWAL_LOOK_S)
                continue
            # All earlier fences are applied, as far as possible, so that the term is the largest.
            await self._offsets.reach(await self._log.end())
            if not self._may_fence():
                continue
            fence = Fence(self._applier.term + 1, self.replica_id, self.endpoint)
            self._stamps_since_ms = self._log.now_ms() - self._elapsed_ms()
            stamp_ms = self._stamp_ms()
            offsets = await writer.append([encode_entry(fence)], stamp_ms)
            await self._committed(offsets, stamp_ms, [(fence, None)])
            if self._fence_offset == offsets[0] and self._may_serve():
                self._may_read.clear()
                self._log.pause()
                self._set_role(Role.PRIMARY)
                return True
        return False

    def _may_serve(self) -> bool:
        return self._lease.is_primary and self._role is Role.REPLICA and self._ended is None

    def _may_fence(self) -> bool:
        """Whether no other replica is chosen. Else a fence from here would end the primary, unseen
        by its reads by lease. The response to a heartbeat decides."""
        return self._lease.is_exclusive

    def _elapsed_ms(self) -> int:
        return int(self._log.clock() * 1000)

    def _stamp_ms(self) -> int:
        """The timestamp of an entry: the wall clock as of the fence, plus monotonic time."""
        return self._stamps_since_ms + self._elapsed_ms()

    async def _serve(self, writer: Writer) -> None:
        pipeline, term = self._pipeline, self._applier.term
        while True:
            # A caller with a result may submit again before the next batch is closed.
            await asyncio.sleep(0)
            while self._holds or not pipeline.has_queued:
                self._submitted.clear()
                await self._submitted.wait()
            if not self._lease.is_primary:
                return
            batch = pipeline.next_batch(term)
            if batch is None:
                continue
            entries: list[tuple[Entry, list[Command] | None]] = [(batch.entry, batch.commands)]
            digest = self._applier.digests.get(self._applier.position)
            if digest is not None:
                # Of the state before this batch.
                entries.insert(0, (Digest(term, self._applier.position, digest), None))
            stamp_ms = self._stamp_ms()
            self._started += 1
            values = [encode_entry(entry) for entry, _ in entries]
            offsets = await writer.append(values, stamp_ms)
            self._snapshotter.log_bytes += sum(map(len, values))
            await self._committed(offsets, stamp_ms, entries)
            self._settled.advance(self._started)

    async def _committed(
        self,
        offsets: Sequence[int],
        stamp_ms: int,
        entries: Sequence[tuple[Entry, list[Command] | None]],
    ) -> None:
        """Apply own entries at once if nothing stands between, else by reading the log."""
        for offset, (entry, commands) in zip(offsets, entries, strict=True):
            if offset == self._offsets.value:
                self._apply(offset, stamp_ms, entry, commands)
        if offsets[-1] >= self._offsets.value:
            self._resume_reading()
            await self._offsets.reach(offsets[-1] + 1)

    # The log

    def _apply(
        self, offset: int, timestamp_ms: int, entry: Entry, commands: list[Command] | None = None
    ) -> None:
        """Apply the entry at the next offset. Raises as `Applier.apply`."""
        applier = self._applier
        fence = applier.fence
        results = applier.apply(entry, timestamp_ms, commands)
        if isinstance(entry, Commands):
            batch = self._pipeline.take_sent(entry)
            if batch is not None:
                if results is None:
                    batch.fail(self._not_primary())
                else:
                    batch.applied(results, Token(entry.term, applier.position))
        elif applier.fence is not fence:
            self._fence_offset = offset
            self._pipeline.fenced(applier.term, self._not_primary())
            if self._role is Role.PRIMARY:
                self._revoke(None)
        elif self._distrusted_until is not None and isinstance(entry, Digest):
            own = applier.digests.get(entry.position)
            if own == entry.digest and entry.position >= self._distrusted_until:
                self._distrusted_until = None
        self._offsets.advance(offset + 1)
        self._positions.advance(applier.position)

    async def _follow(self) -> None:
        """Read and apply, for the replica's whole life."""
        failures = 0
        catching_up: asyncio.Task[None] | None = None
        is_restored = False
        below: Position | None = None
        while True:
            try:
                if not is_restored:
                    await self._restore(below)
                    is_restored, below = True, None
                    if catching_up is not None:
                        catching_up.cancel()
                    catching_up = self._spawn(self._catch_up())
                await self._may_read.wait()
                await self._apply_all(await self._log.read())
                failures = 0
                continue
            except LogTrimmedError as error:
                _logger.warning("replica %s of %s: %s", self.replica_id, self.name, error)
                await self._leave(Role.CATCHING_UP)
                is_restored = False
            except DivergedError as error:
                _logger.error("replica %s of %s: %s", self.replica_id, self.name, error)
                self._distrusted_until = self._applier.position
                restored = self._snapshotter.restored
                below = self._applier.position if restored is None else restored.position
                await self._leave(Role.QUARANTINED)
                is_restored = False
            except RaftlogClientError as error:
                _logger.warning(
                    "replica %s of %s cannot read: %s", self.replica_id, self.name, error
                )
                if self._may_read.is_set():
                    self._log.seek(self._offsets.value)
            await asyncio.sleep(RETRIES.delay_s(failures))
            failures += 1

    async def _apply_all(self, records: list[LogRecord]) -> None:
        clock = self._log.clock
        turn_ends = clock() + TURN_S
        for record in records:
            if record.offset < self._offsets.value:
                continue
            assert record.offset == self._offsets.value, "the log has no gaps"
            self._apply(record.offset, record.timestamp_ms, decode_entry(record.value))
            self._snapshotter.log_bytes += len(record.value)
            if clock() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = clock() + TURN_S

    async def _leave(self, role: Role) -> None:
        """Answer nothing, and be no candidate, until the state is built again."""
        self._set_role(role)
        if self._snapshot_task is not None:
            self._snapshot_task.cancel()
        await self._lease.close()

    async def _restore(self, below: Position | None) -> None:
        """Begin at a snapshot, or at the log's first entry."""
        # Also before, as a later fence is no proof of the entries in the part that is left out.
        self._pipeline.skipped()
        offset = await self._snapshotter.restore(below=below)
        self._fence_offset = -1
        self._offsets.advance(offset or 0)
        self._positions.advance(self._applier.position)
        self._resume_reading()

    async def _catch_up(self) -> None:
        """Wait until the state may be served, then be a candidate."""
        failures = 0
        while True:
            try:
                await self._offsets.reach(await self._log.end())
                break
            except RaftlogClientError as error:
                _logger.warning(
                    "replica %s of %s cannot see the log's end: %s",
                    self.replica_id,
                    self.name,
                    error,
                )
                await asyncio.sleep(RETRIES.delay_s(failures))
                failures += 1
        while self._distrusted_until is not None:
            await self._positions.reach(self._applier.position + 1)
        self._set_role(Role.REPLICA)
        await self._lease.start()

    # Reads

    async def read(
        self,
        query: Callable[[Machine], T],
        at: Read = EVENTUAL,
        *,
        timeout_ms: float = READ_TIMEOUT_MS,
    ) -> T:
        """Run the query on this replica's state, once that is new enough.

        `query` is a plain call that changes nothing. Raises BehindError if the state is not new
        enough in time, NotPrimaryError for LEASE without a lease, or ReplicaEndedError.
        """
        self._check()
        if not self._is_new_enough(at):
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._reach(at)
            except TimeoutError:
                if at.kind == "lease":
                    raise self._not_primary() from None
                wanted = None if at.token is None else at.token.position
                raise BehindError(self.position, wanted) from None
            except TooManyWaitError as error:
                raise OverloadedError(str(error)) from None
            self._check()
            if self._role not in SERVING:
                raise BehindError(self.position, None)
        return query(self.machine)

    def _is_new_enough(self, at: Read) -> bool:
        """Whether the state of this moment will do."""
        if self._role not in SERVING:
            return False
        match at.kind:
            case "eventual":
                return True
            case "session":
                assert at.token is not None
                return self._applier.position >= at.token.position
            case "lease":
                # Another replica may have read, and served, the batch under way before its
                # acknowledgement comes here.
                return (
                    self._role is Role.PRIMARY
                    and self._settled.value >= self._started
                    and self._lease.is_exclusive
                )
            case "within":
                return self._fresh_at >= self._log.clock() - at.lag_ms / 1000
            case _:
                return False

    async def _reach(self, at: Read) -> None:
        while self._role not in SERVING:
            self._changed.clear()
            await self._changed.wait()
            self._check()
        if at.token is not None:
            await self._positions.reach(at.token.position)
        elif at.kind == "lease":
            while not self._is_new_enough(at):
                await self._settled.reach(self._started)
                if self._role is not Role.PRIMARY:
                    raise self._not_primary()
                if not self._lease.is_exclusive:
                    await asyncio.sleep(RENEWAL_LOOK_S)
        elif not self._is_new_enough(at):
            begun, end = await self._ask_end()
            await self._offsets.reach(end)
            self._fresh_at = max(self._fresh_at, begun)

    async def _ask_end(self) -> tuple[float, int]:
        """The shared question, repeated until the read's time is over."""
        failures = 0
        while True:
            try:
                return await self._questions.ask()
            except RaftlogClientError as error:
                _logger.debug("the log's end is unknown: %s", error)
            await asyncio.sleep(RETRIES.delay_s(failures))
            failures += 1

    # Housekeeping

    async def _sweep(self) -> None:
        """Handle deadlines, entries of others that a primary has not read, and snapshots."""
        wanted_before: int | None = None
        while True:
            await asyncio.sleep(SWEEP_S)
            self._pipeline.expire(asyncio.get_running_loop().time(), self._not_primary())
            wanted = self._offsets.next_wanted
            if wanted is not None and wanted == wanted_before and not self._may_read.is_set():
                # Waited for since the last look, and no own batch has brought it.
                self._resume_reading()
            wanted_before = wanted
            is_own_turn = self._role is Role.REPLICA or (
                self._role is Role.PRIMARY and self._snapshotter.is_long_due
            )
            if is_own_turn and self._snapshotter.is_due and self._snapshot_task is None:
                self._snapshot_task = self._spawn(self._snapshot())
                self._snapshot_task.add_done_callback(self._snapshot_ended)
            if self._may_serve():
                self._grant()

    def _snapshot_ended(self, _: asyncio.Task[None]) -> None:
        self._snapshot_task = None

    async def _snapshot(self) -> None:
        try:
            await self._snapshotter.refresh()
            if self._snapshotter.is_due:
                await self._snapshotter.take(self._offsets.value)
        except RaftlogClientError as error:
            _logger.warning(
                "replica %s of %s took no snapshot: %s", self.replica_id, self.name, error
            )
            await asyncio.sleep(PAUSE_S)


class _Listener:
    """The replica as its lease knows it."""

    def __init__(self, replica: Replica[Any, Any, Any]) -> None:
        self._replica = replica

    def position(self) -> int:
        return self._replica.position

    def primaries(self) -> int:
        replica = self._replica
        return replica._host.primaries - (replica.role is Role.PRIMARY)

    def lease_granted(self) -> None:
        self._replica._grant()

    def lease_lost(self, error: Exception | None) -> None:
        self._replica._revoke(error)
