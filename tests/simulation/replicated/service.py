"""A model of the service below replicas: one log with fencing, leases, snapshots, and bad networks.

The log is linearizable, as raftlog's is; each call may be late, and its request or its answer may
get lost. Effects happen outside of the lives of replicas: a killed one's request may still arrive.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Final, TypeVar

from raftlog_client import ConnectionLostError, FencedError, LeaseListener
from raftlog_replicated.ports import LeaseMember, LogRecord, LogTrimmedError
from raftlog_replicated.snapshots.snapshots import Manifest

from tests.simulation.life import current_life

T = TypeVar("T")

TIMEOUT_S: Final = 1.0
LEASE_S: Final = 1.5
DISCONNECT_S: Final = 0.3
HEARTBEAT_S: Final = 0.1
LATE_S_MAX: Final = 2.5
"""A late request arrives so much later, long after its caller has given up."""


@dataclass
class _Session:
    position: int
    renewed: float
    ends: float
    member: object
    """A late call of an earlier membership changes nothing."""
    number: int
    """Of the newest heartbeat."""


@dataclass
class Service:
    """Log, coordinator and topic of snapshots, and their faults."""

    random: Random
    records: list[LogRecord] = field(default_factory=list)
    all_records: list[LogRecord] = field(default_factory=list)
    """Trimmed ones, too."""
    start_offset: int = 0
    epoch: int = 0
    written_epoch: int = 0
    manifests: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    chunks: list[tuple[bytes, bytes]] = field(default_factory=list)
    chunks_start: int = 0
    sessions: dict[str, _Session] = field(default_factory=dict)
    primary: str | None = None
    grant: int = 0
    """Counts primaries: a late release of an earlier one changes nothing."""
    target: str | None = None
    also: str | None = None
    """A fault of the coordinator: this replica gets the lease besides the primary."""
    lost: float = 0.0
    """Share of requests, and of answers, that are late, or so late that they are lost."""
    slow: set[str] = field(default_factory=set)
    """Replicas that get answers of the log late."""
    cut: set[str] = field(default_factory=set)
    """Replicas without a network."""
    wrong_clocks: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """Changes of a replica's wall clock, each with its lead in milliseconds."""
    fences: bool = True
    """Planted mistake if False: appends of old writers are taken."""
    lease_s: float = LEASE_S
    """Lease of a primary, in seconds. Replicas in real time need a long lease on a busy machine."""

    async def call(self, replica_id: str, effect: Callable[[], T]) -> T:
        """Do it at the service, after a while, and return the answer. ConnectionLostError."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        nothing = contextvars.Context()
        random = self.random

        def arrive() -> None:
            if replica_id in self.cut:
                return
            try:
                result, error = effect(), None
            except Exception as raised:
                result, error = None, raised
            delay = random.uniform(1e-4, 1e-3)
            if random.random() < self.lost:
                delay = random.uniform(0.0, LATE_S_MAX)
            loop.call_later(delay, deliver, result, error, context=nothing)

        def deliver(result: T, error: Exception | None) -> None:
            if answer.done() or replica_id in self.cut:
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        delay = random.uniform(1e-4, 1e-3)
        if random.random() < self.lost:
            delay = random.uniform(0.0, LATE_S_MAX)
        loop.call_later(delay, arrive, context=nothing)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise ConnectionLostError("no answer", outcome_unknown=True) from None

    # The log

    def open_writer(self) -> int:
        """The next epoch."""
        self.epoch += 1
        return self.epoch

    def append(self, epoch: int, values: Sequence[bytes], timestamp_ms: int) -> int:
        """Append, unless a newer epoch has written."""
        if self.fences and epoch < self.written_epoch:
            raise FencedError("a newer writer has written")
        self.written_epoch = max(epoch, self.written_epoch)
        first = self.end()
        new = [
            LogRecord(first + number, timestamp_ms, value) for number, value in enumerate(values)
        ]
        self.records += new
        self.all_records += new
        return first

    def end(self) -> int:
        """The committed end."""
        return self.start_offset + len(self.records)

    def fetch(self, offset: int) -> list[LogRecord]:
        """Some records from an offset on."""
        if not self.start_offset <= offset <= self.end():
            raise LogTrimmedError(f"the log has {self.start_offset} to {self.end()}, not {offset}")
        begin = offset - self.start_offset
        return self.records[begin : begin + self.random.randint(1, 20)]

    def trim(self, offset: int) -> None:
        """Delete records below."""
        count = min(offset - self.start_offset, len(self.records))
        if count > 0:
            del self.records[:count]
            self.start_offset += count

    # The coordinator

    def _expire(self) -> None:
        now = asyncio.get_running_loop().time()
        for name in [name for name, one in self.sessions.items() if one.ends <= now]:
            self.leave(name)

    def leave(self, name: str, member: object = None) -> None:
        """End a session."""
        one = self.sessions.get(name)
        if one is not None and member in {None, one.member}:
            del self.sessions[name]
            if self.primary == name:
                self.primary = None

    def heartbeat(
        self, name: str, member: object, position: int, number: int, *, holds: bool
    ) -> int:
        """Renew a session; the number of the replica's grant, or 0 if another is the primary.

        `number` grows with each heartbeat of a membership; `holds`: the member has the lease. A
        process waits for the session of the one before (UNRELEASED_INSTANCE_ID), and a late copy of
        an earlier membership changes nothing (UNKNOWN_MEMBER).
        """
        self._expire()
        now = asyncio.get_running_loop().time()
        one = self.sessions.get(name)
        if one is not None and one.member is not member:
            return 0
        newest = number if one is None else max(number, one.number)
        self.sessions[name] = _Session(position, now, now + self.lease_s, member, newest)
        if self.target is not None and self.target not in self.sessions:
            self.target = None
        if self.primary == name and not holds and number == newest and self.target:
            self.primary = None  # it has nothing to give up
        if self.primary is None:
            best = self.target or max(
                self.sessions, key=lambda one: (self.sessions[one].position, one)
            )
            self.primary, self.target = best, None
            self.grant += 1
        if name == self.also:
            return self.grant
        return self.grant if self.primary == name and self.target in {None, name} else 0

    def release(self, name: str, grant: int) -> None:
        """The primary has given up."""
        if self.primary == name and self.grant == grant:
            self.primary = None

    def disconnected(self, name: str, member: object = None) -> None:
        """The held heartbeat's connection has ended."""
        one = self.sessions.get(name)
        if one is not None and member in {None, one.member}:
            one.ends = min(one.ends, one.renewed + DISCONNECT_S)

    def hand_over(self, name: str, to: str) -> None:
        """Choose another."""
        self._expire()
        if self.primary != name or to not in self.sessions:
            raise ConnectionLostError("no such member", outcome_unknown=False)
        self.target = to

    def restart_coordinator(self) -> None:
        """Another node goes on: members and primary are in records, positions and times are not."""
        now = asyncio.get_running_loop().time()
        for one in self.sessions.values():
            one.position, one.renewed, one.ends = 0, now, now + self.lease_s

    def members(self) -> list[LeaseMember]:
        """All sessions."""
        self._expire()
        return [
            LeaseMember(name, name, one.position, name == self.primary)
            for name, one in self.sessions.items()
        ]

    # Snapshots

    def add_chunk(self, key: bytes, chunk: bytes) -> int:
        """Append a chunk."""
        self.chunks.append((key, chunk))
        return self.chunks_start + len(self.chunks) - 1

    def delete_chunks(self, below: int) -> None:
        """Delete chunks below an offset."""
        count = below - self.chunks_start
        if count > 0:
            del self.chunks[:count]
            self.chunks_start += count

    def chunks_of(self, manifest: Manifest) -> list[bytes]:
        """Those that are there."""
        prefix = manifest.snapshot_id.encode() + b"/"
        begin = max(0, manifest.first_chunk - self.chunks_start)
        return [chunk for key, chunk in self.chunks[begin:] if key.startswith(prefix)]


class SimulatedWriter:
    """A writer of one epoch."""

    def __init__(self, service: Service, replica_id: str, epoch: int) -> None:
        self._service = service
        self._replica_id = replica_id
        self._epoch = epoch

    async def append(self, values: Sequence[bytes], timestamp_ms: int) -> list[int]:
        kept, service = list(values), self._service
        first = await service.call(
            self._replica_id, lambda: service.append(self._epoch, kept, timestamp_ms)
        )
        if self._replica_id in service.slow:
            await asyncio.sleep(service.random.uniform(0.0, 0.1))
        return list(range(first, first + len(kept)))

    async def close(self) -> None:
        return


class SimulatedSnapshots:
    """The topic of snapshots for one replica."""

    def __init__(self, service: Service, replica_id: str) -> None:
        self._service = service
        self._replica_id = replica_id
        self._seen = 0

    async def changes(self) -> list[tuple[bytes | None, bytes | None]]:
        seen = self._seen
        found = await self._service.call(
            self._replica_id, lambda: list(self._service.manifests[seen:])
        )
        self._seen += len(found)
        return [*found]

    async def read(self, manifest: Manifest) -> AsyncIterator[bytes]:
        for chunk in await self._service.call(
            self._replica_id, lambda: self._service.chunks_of(manifest)
        ):
            yield chunk

    async def write_chunk(self, key: bytes, chunk: bytes) -> int:
        return await self._service.call(
            self._replica_id, lambda: self._service.add_chunk(key, chunk)
        )

    async def write_manifest(self, key: bytes, value: bytes | None) -> None:
        await self._service.call(
            self._replica_id, lambda: self._service.manifests.append((key, value))
        )

    async def delete_chunks(self, below_offset: int) -> None:
        await self._service.call(
            self._replica_id, lambda: self._service.delete_chunks(below_offset)
        )


class SimulatedLease:
    """A membership with heartbeats, by the client's own rules."""

    def __init__(self, service: Service, replica_id: str, listener: LeaseListener) -> None:
        self._service = service
        self._replica_id = replica_id
        self._listener = listener
        self._grant = 0
        self._member = object()
        self._sent = float("-inf")
        self._task: asyncio.Task[None] | None = None

    @property
    def is_primary(self) -> bool:
        ends = self._sent + self._service.lease_s
        return self._grant > 0 and asyncio.get_running_loop().time() < ends

    @property
    def is_exclusive(self) -> bool:
        return asyncio.get_running_loop().time() < self._sent + 0.8 * DISCONNECT_S

    async def start(self) -> None:
        if self._task is None:
            self._member = object()
            self._task = asyncio.get_running_loop().create_task(self._run())
            life = current_life()
            if life is not None:
                life.on_end(self._disconnected)

    def _disconnected(self) -> None:
        asyncio.get_running_loop().call_later(
            1e-3,
            self._service.disconnected,
            self._replica_id,
            self._member,
            context=contextvars.Context(),
        )

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._lose(None)
            try:
                member = self._member
                await self._service.call(
                    self._replica_id, lambda: self._service.leave(self._replica_id, member)
                )
            except ConnectionLostError:
                return

    async def hand_over(self, instance_id: str) -> None:
        await self._service.call(
            self._replica_id, lambda: self._service.hand_over(self._replica_id, instance_id)
        )

    def _lose(self, error: Exception | None) -> None:
        if self._grant:
            self._grant = 0
            self._listener.lease_lost(error)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        service, name = self._service, self._replica_id
        member = self._member
        for number in count():
            sent = loop.time()
            beat = partial(
                service.heartbeat,
                name,
                member,
                self._listener.position(),
                number,
                holds=self._grant > 0,
            )
            try:
                grant = await service.call(name, beat)
            except ConnectionLostError as error:
                if not self.is_primary:
                    self._lose(error)
                continue
            if grant and self._grant not in {0, grant}:
                self._lose(None)
            if grant:
                self._sent = sent
                if not self._grant:
                    self._grant = grant
                    self._listener.lease_granted()
            elif self._grant:
                held = self._grant
                self._lose(None)
                try:
                    await service.call(name, lambda given=held: service.release(name, given))
                except ConnectionLostError:
                    continue
            await asyncio.sleep(HEARTBEAT_S)


class SimulatedLog:
    """The log for one replica."""

    def __init__(self, service: Service, replica_id: str) -> None:
        self._service = service
        self._replica_id = replica_id
        self._offset = 0
        self._is_paused = asyncio.Event()
        self.snapshots = SimulatedSnapshots(service, replica_id)

    async def start(self) -> None:
        return

    async def close(self) -> None:
        return

    async def run(self, call: Callable[[], None]) -> None:
        await asyncio.sleep(0.01)
        call()

    def now_ms(self) -> int:
        now = asyncio.get_running_loop().time()
        changes = self._service.wrong_clocks.get(self._replica_id, [])
        leads_ms = [ahead_ms for at, ahead_ms in changes if at <= now]
        return int(now * 1000) + (leads_ms[-1] if leads_ms else 0)

    def clock(self) -> float:
        return asyncio.get_running_loop().time()

    async def end(self) -> int:
        found = await self._service.call(self._replica_id, self._service.end)
        if self._replica_id in self._service.slow:
            await asyncio.sleep(self._service.random.uniform(0.0, 0.5))
        return found

    def seek(self, offset: int) -> None:
        self._offset = offset

    def pause(self) -> None:
        return

    async def read(self) -> list[LogRecord]:
        while True:
            offset = self._offset
            found = await self._service.call(
                self._replica_id, lambda at=offset: self._service.fetch(at)
            )
            if found and offset == self._offset:
                self._offset = found[-1].offset + 1
                return found
            await asyncio.sleep(0.005)
            if self._replica_id in self._service.slow:
                await asyncio.sleep(self._service.random.uniform(0.0, 0.5))

    async def open_writer(self) -> SimulatedWriter:
        epoch = await self._service.call(self._replica_id, self._service.open_writer)
        return SimulatedWriter(self._service, self._replica_id, epoch)

    async def trim(self, offset: int) -> None:
        await self._service.call(self._replica_id, lambda: self._service.trim(offset))

    def lease(self, listener: LeaseListener) -> SimulatedLease:
        return SimulatedLease(self._service, self._replica_id, listener)

    async def members(self) -> list[LeaseMember]:
        return await self._service.call(self._replica_id, self._service.members)
