"""A disk in memory that loses unsynced data, tears writes, flips bits, fills up and fails.

Harsher than real file systems where POSIX allows it: a new file's name is lost unless its directory
was synced; changes of names survive or not in any combination (each whole, as in journals, and none
without the changes before on which it depends); and unsynced pages reach the disk in any pattern.
After a failed sync the unsynced pages count as clean, as in Linux: a second sync succeeds and the
bytes are lost all the same. One seed gives one behaviour.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from raftlog.world import Buffer, DiskError, DiskFullError, Sync
from raftlog.world.disk import sync_each
from tests.simulation.disk_times import DiskTimes
from tests.simulation.disk_tree import (
    Directory,
    Inode,
    NameChange,
    parts_of,
    paths_of,
    used_by,
)
from tests.simulation.life import LifeEndedError, current_life

T = TypeVar("T")

PAGE_BYTES = 64
"""Small: a few records already span several pages."""
YIELDS_MAX = 3


class MachineStoppedError(Exception):
    """The machine stopped in the middle of an operation. Nothing works until `crash` is called."""


class SimulatedFile:
    """An open file of a SimulatedDisk. Dead after a crash."""

    def __init__(self, disk: SimulatedDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._boot = disk.boots
        self.closed = False

    def _alive(self) -> Inode:
        self._disk.check_alive()
        if self._boot != self._disk.boots:
            raise MachineStoppedError(self._path)
        assert not self.closed, f"{self._path} is closed"
        return self._inode

    @property
    def size(self) -> int:
        return len(self._inode.written)

    def append(self, buffers: Sequence[Buffer]) -> int:
        inode = self._alive()
        position = len(inode.written)
        data = b"".join(buffers)
        if self._disk.stops_now():
            # A crash in the middle of a write leaves the part copied so far.
            inode.written += data[: self._disk.random.randint(0, len(data))]
            self._disk.stop(self._path)
        self._disk.take("append", self._path)
        self._disk.need_room(len(data))
        inode.written += data
        return position

    def read(self, position: int, length: int) -> bytes:
        inode = self._alive()
        self._disk.slow("read", self._path)
        self._disk.take("read", self._path)
        return bytes(inode.written[position : position + length])

    def read_cached(self, position: int, length: int) -> Buffer | None:
        inode = self._alive()
        if self._disk.cold:
            return None
        return bytes(inode.written[position : position + length])

    def truncate(self, size: int) -> None:
        inode = self._alive()
        assert 0 <= size <= len(inode.written)
        self._disk.step("truncate", self._path)
        inode.truncate(size)

    def sync(self) -> None:
        inode = self._alive()
        self._disk.slow("sync", self._path)
        self._disk.step("sync", self._path, inode)
        inode.sync()

    def close(self) -> None:
        self.closed = True


class SimulatedDisk:
    """`Disk` in memory."""

    def __init__(
        self, seed: int = 0, *, capacity_bytes: int | None = None, yields: bool = False
    ) -> None:
        self.random = random.Random(seed)
        self.capacity_bytes = capacity_bytes
        self.yields = yields
        self.cold = False
        """Nothing is in memory: `read_cached` knows nothing."""
        self.boots = 0
        self.stopped = False
        self.operations: Counter[str] = Counter()
        self.syncs: Counter[str] = Counter()
        self.slow_outside_run: list[str] = []
        """Operations that may wait for the device, called on the event loop."""
        self.times: DiskTimes | None = None
        """Makes `run` take virtual time, in a simulated world."""
        self.on_stop: Callable[[], None] | None = None
        """Called at a crash point; must kill the process and call `crash`."""
        self._reboots = 0
        self._in_run = 0
        self._steps_left: int | None = None
        self._failures: list[tuple[str, str, type[DiskError]]] = []
        self._root = Directory()
        self._name_changes: list[NameChange] = []
        """Not durable yet, in order."""

    # Faults, for tests

    def crash(self, *, power: bool) -> None:
        """Stop everything at once and start again. Open files are dead afterwards."""
        self.boots += 1
        self.stopped = False
        self._steps_left = None
        self._failures.clear()
        if power:
            self._reboots += 1
            self._lose_names()
            self._lose_bytes_of(self._root)

    def crash_in(self, steps: int) -> None:
        """Stop in the middle of the `steps`-th change of the disk from now."""
        self._steps_left = steps

    def forget_orders(self) -> None:
        """Cancel ordered crashes and failures."""
        self._steps_left = None
        self._failures.clear()

    def fail_next(
        self, operation: str, path_part: str = "", error: type[DiskError] = DiskError
    ) -> None:
        """Fail the next operation of that name once, on a path containing `path_part`."""
        self._failures.append((operation, path_part, error))

    def flip_bit(self, path: str, bit: int) -> None:
        """Change one bit of a file, on the disk and in memory."""
        inode = self._inode(path)
        inode.written[bit // 8] ^= 1 << (bit % 8)
        if bit // 8 < len(inode.synced):
            inode.synced[bit // 8] ^= 1 << (bit % 8)

    def contents(self, path: str) -> bytes:
        """The whole file, as written."""
        return bytes(self._inode(path).written)

    def put(self, path: str, content: bytes) -> None:
        """Set a file's content, durably, to prepare a disk by hand."""
        directory, name = self._parent(path)
        inode = Inode.durable(content)
        directory.entries[name] = directory.durable[name] = inode

    def lose(self, path: str) -> None:
        """Remove a file or a directory with all below, for good, as if it had never been."""
        directory, name = self._parent(path)
        directory.entries.pop(name, None)
        directory.durable.pop(name, None)
        self._name_changes = [
            change
            for change in self._name_changes
            if not any(part[0] is directory and part[1] == name for part in change)
        ]

    def paths(self) -> list[str]:
        """Names of all files, sorted."""
        return sorted(paths_of(self._root, ""))

    def used_bytes(self) -> int:
        """Sum of all files' lengths."""
        return used_by(self._root)

    # Disk

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        self.check_alive()
        directory, name = self._parent(path)
        entry = directory.entries.get(name)
        if isinstance(entry, Directory):
            raise DiskError(f"{path} is a directory")
        if entry is None:
            if not create:
                raise DiskError(f"{path} does not exist")
            self.step("create", path)
            entry = Inode()
            self._change((directory, name, entry))
        return SimulatedFile(self, path, entry)

    def exists(self, path: str) -> bool:
        self.check_alive()
        return self._find(path) is not None

    def list_directory(self, path: str) -> list[str]:
        self.check_alive()
        found = self._find(path)
        return sorted(found.entries) if isinstance(found, Directory) else []

    def make_directory(self, path: str) -> None:
        self.check_alive()
        here = self._root
        for part in parts_of(path):
            there = here.entries.get(part)
            if there is None:
                self.step("make_directory", path)
                there = Directory()
                self._change((here, part, there))
            assert isinstance(there, Directory)
            here = there

    def rename(self, old: str, new: str) -> None:
        self.check_alive()
        self.step("rename", old)
        source, old_name = self._parent(old)
        target, new_name = self._parent(new)
        if old_name not in source.entries:
            raise DiskError(f"{old} does not exist")
        entry = source.entries[old_name]
        self._change((source, old_name, None), (target, new_name, entry))

    def remove(self, path: str) -> None:
        self.check_alive()
        if self._find(path) is None:
            return
        self.step("remove", path)
        directory, name = self._parent(path)
        self._change((directory, name, None))

    def remove_tree(self, path: str) -> None:
        self.remove(path)

    def sync_directory(self, path: str) -> None:
        self.check_alive()
        self.slow("sync_directory", path)
        self.step("sync_directory", path)
        found = self._find(path)
        if not isinstance(found, Directory):
            raise DiskError(f"{path} is not a directory")
        for change in [
            change for change in self._name_changes if any(part[0] is found for part in change)
        ]:
            self._make_durable(change)

    def replace(self, path: str, content: bytes) -> None:
        temporary = path + ".tmp"
        self.remove(temporary)
        file = self.open(temporary, create=True)
        try:
            file.append([content])
            file.sync()
        except DiskError:
            self.remove(temporary)
            raise
        self.rename(temporary, path)
        self.sync_directory(path.rpartition("/")[0])

    def free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return 1 << 40
        return max(0, self.capacity_bytes - self.used_bytes())

    def boot_id(self) -> str:
        return f"boot-{self._reboots}"

    async def sync_all(
        self, syncs: Sequence[Sync], on_begun: Callable[[], None]
    ) -> list[Exception | None]:
        return await self.run(lambda: sync_each(self, syncs, on_begun))

    async def run(self, work: Callable[[], T]) -> T:
        if self.times is not None:
            return await self.times.run(self, work)
        if self.yields:
            for _ in range(self.random.randint(0, YIELDS_MAX)):
                await asyncio.sleep(0)
        result = self.execute(work)
        if self.yields:
            for _ in range(self.random.randint(0, YIELDS_MAX)):
                await asyncio.sleep(0)
        return result

    def execute(self, work: Callable[[], T]) -> T:
        """Execute work passed to `run`, now."""
        self.check_alive()
        self._in_run += 1
        try:
            return work()
        finally:
            self._in_run -= 1

    # Called by its files

    def step(self, operation: str, path: str, inode: Inode | None = None) -> None:
        """One change of the disk, perhaps the one interrupted by a crash."""
        if self.stops_now():
            self.stop(path)
        try:
            self.take(operation, path)
        except DiskError:
            if inode is not None:
                inode.lost = True
            raise
        finally:
            if inode is not None:
                self.syncs[path] += 1

    def stops_now(self) -> bool:
        """Count down to an ordered crash."""
        if self._steps_left is None:
            return False
        self._steps_left -= 1
        return self._steps_left <= 0

    def stop(self, path: str) -> NoReturn:
        """Stop, as a test ordered: the machine, or in a simulated world the node's process."""
        self.stopped = True
        if self.on_stop is not None:
            self.on_stop()
            raise LifeEndedError(path)
        raise MachineStoppedError(path)

    def take(self, operation: str, path: str) -> None:
        """Count an operation, and fail if ordered."""
        self.operations[operation] += 1
        for order in self._failures:
            if order[0] == operation and order[1] in path:
                self._failures.remove(order)
                raise order[2](f"{operation} of {path} failed, as ordered")

    def slow(self, operation: str, path: str) -> None:
        """Record an operation that must not be called on the event loop."""
        if not self._in_run:
            self.slow_outside_run.append(f"{operation} {path}")

    def need_room(self, length: int) -> None:
        """Refuse a write beyond the free room."""
        if self.capacity_bytes is not None and self.used_bytes() + length > self.capacity_bytes:
            raise DiskFullError("no room, as ordered")

    # Inside

    def check_alive(self) -> None:
        """Raise if the calling process is dead."""
        life = current_life()
        if life is not None and not life.alive:
            raise LifeEndedError(repr(life))
        if self.stopped:
            raise MachineStoppedError("stopped")

    def _find(self, path: str) -> Inode | Directory | None:
        here: Inode | Directory | None = self._root
        for part in parts_of(path):
            if not isinstance(here, Directory):
                return None
            here = here.entries.get(part)
        return here

    def _inode(self, path: str) -> Inode:
        found = self._find(path)
        assert isinstance(found, Inode), f"{path} is not a file"
        return found

    def _parent(self, path: str) -> tuple[Directory, str]:
        above, _, name = path.rpartition("/")
        directory = self._find(above)
        if not isinstance(directory, Directory):
            raise DiskError(f"{above} is not a directory")
        return directory, name

    def _change(self, *parts: tuple[Directory, str, Inode | Directory | None]) -> None:
        """Change names together, in memory; durable or not together later."""
        self._name_changes.append(list(parts))
        for directory, name, entry in parts:
            directory.set(name, entry)

    def _make_durable(self, change: NameChange) -> None:
        number = next(at for at, known in enumerate(self._name_changes) if known is change)
        for directory, name, entry in change:
            directory.set_durable(name, entry)
            # An earlier change of the same name has nothing to say any more.
            for earlier in self._name_changes[:number]:
                earlier[:] = [
                    part for part in earlier if not (part[0] is directory and part[1] == name)
                ]
        del self._name_changes[number]

    def _lose_names(self) -> None:
        lost: set[tuple[int, str]] = set()
        for change in self._name_changes:
            names = {(id(directory), name) for directory, name, _ in change}
            if names & lost or self.random.random() < 0.5:
                lost |= names
                continue
            for directory, name, entry in change:
                directory.set_durable(name, entry)
        self._name_changes.clear()

    def _lose_bytes_of(self, directory: Directory) -> None:
        directory.entries = dict(directory.durable)
        for name in sorted(directory.entries):
            entry = directory.entries[name]
            if isinstance(entry, Directory):
                self._lose_bytes_of(entry)
            else:
                self._lose_bytes(entry)

    def _lose_bytes(self, inode: Inode) -> None:
        synced, written = bytes(inode.synced), bytes(inode.written)
        if synced != written:
            old = inode.lost or self.random.random() < 0.25
            survived = synced if old else self._mixture(synced, written)
            inode.synced, inode.written = bytearray(survived), bytearray(survived)
            inode.equal_bytes = len(survived)
        inode.lost = False

    def _mixture(self, synced: bytes, written: bytes) -> bytes:
        """Each page new, old, or torn; the length anything between old and new."""
        low, high = sorted((len(synced), len(written)))
        size = self.random.choice((low, high, self.random.randint(low, high)))
        old = synced.ljust(size, b"\0")
        new = written.ljust(size, b"\0")
        pages: list[bytes] = []
        for start in range(0, size, PAGE_BYTES):
            end = min(start + PAGE_BYTES, size)
            kind = self.random.random()
            if kind < 0.5:
                pages.append(new[start:end])
            elif kind < 0.8:
                pages.append(old[start:end])
            else:
                tear = self.random.randint(start, end)
                pages.append(new[start:tear] + old[tear:end])
        return b"".join(pages)
