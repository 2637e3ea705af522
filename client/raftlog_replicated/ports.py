"""The world of a replica has a log, a lease and snapshots. The simulator has its own.

Calls with I/O raise RaftlogClientError.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple, Protocol

from raftlog_client import LeaseListener

from raftlog_replicated.snapshots.snapshots import Manifest


class LogRecord(NamedTuple):
    """An entry of the log, not decoded yet."""

    offset: int
    """Counts the entries of the log, without gaps, from 0."""
    timestamp_ms: int
    value: bytes


class LogTrimmedError(Exception):
    """The log has no record at the offset that was to be read."""


class Writer(Protocol):
    """The right to append. The first append of a later writer ends an earlier writer."""

    async def append(self, values: Sequence[bytes], timestamp_ms: int) -> Sequence[int]:
        """Append records, and return their offsets once all are committed. After an error the
        writer is of no use, and the outcome is unknown."""

    async def close(self) -> None:
        """Give up what is under way, its outcome unknown."""


class LeaseMember(NamedTuple):
    """A replica, as the coordinator knows it."""

    instance_id: str
    endpoint: str | None
    position: int
    is_primary: bool


class Lease(Protocol):
    """The membership of one replica."""

    @property
    def is_primary(self) -> bool:
        """Whether the lease is held, by the clock of now."""

    @property
    def is_exclusive(self) -> bool:
        """Whether no other replica is chosen now. Also holds if the clocks of both sides run at
        rates that differ by a fifth."""

    async def start(self) -> None:
        """Join in the background, however long the coordinator is away. Also after `close`."""

    async def close(self) -> None:
        """Leave: another replica is chosen at once. A held lease is lost first."""

    async def hand_over(self, instance_id: str) -> None:
        """Have the coordinator choose that replica in this replica's place."""


class Snapshots(Protocol):
    """The topic of a state's snapshots."""

    async def changes(self) -> list[tuple[bytes | None, bytes | None]]:
        """Keys and values of manifests since the last call. Empty if none remain. The first call
        starts with all."""

    def read(self, manifest: Manifest) -> AsyncIterator[bytes]:
        """The chunks of a snapshot that are there, in order."""

    async def write_chunk(self, key: bytes, chunk: bytes) -> int:
        """Append a chunk. Returns its offset once it is committed."""

    async def write_manifest(self, key: bytes, value: bytes | None) -> None:
        """Append a manifest, or delete a manifest."""

    async def delete_chunks(self, below_offset: int) -> None:
        """Delete chunks that no snapshot needs."""


class StateLog(Protocol):
    """The log of one state."""

    @property
    def snapshots(self) -> Snapshots:
        """Snapshots of this state."""

    async def start(self) -> None:
        """Find or make the topics. Raises LayoutError for topics that are not a state's."""

    async def close(self) -> None:
        """End all that was started."""

    async def run(self, call: Callable[[], None]) -> None:
        """Run a long call beside the event loop."""

    def now_ms(self) -> int:
        """The wall clock, for the first timestamp of a term."""

    def clock(self) -> float:
        """A monotonic clock in seconds, not cached, so a paused process notices at once."""

    async def end(self) -> int:
        """The committed end, from a leader that is one at a moment after the call."""

    def seek(self, offset: int) -> None:
        """Read from there on, also in a `read` under way. Ends a pause."""

    def pause(self) -> None:
        """Fetch nothing until the next `seek`."""

    async def read(self) -> list[LogRecord]:
        """The next committed records. Raises LogTrimmedError."""

    async def open_writer(self) -> Writer:
        """A new writer. Its first append ends all writers before."""

    async def trim(self, offset: int) -> None:
        """Delete the records below an offset."""

    def lease(self, listener: LeaseListener) -> Lease:
        """A membership that is not started."""

    async def members(self) -> list[LeaseMember]:
        """The replicas of the state."""
