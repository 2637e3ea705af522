"""A quorum of one voter: what its own disk holds durably is committed.

One task does all the writing, in rounds: take what was proposed, append it, sync once for all,
apply in order, answer. What is proposed during a round waits for the next, so that under load one
sync serves many. Between rounds the journal is trimmed, if a snapshot has become durable meanwhile.

What can go wrong, and what becomes of a proposal:

- no room: the round's proposals are Refused, nothing was written, and the next round tries again;
- any other failure of the disk, or an exception of the state machine: the quorum stops for good.
  The round's proposals are Unknown, later ones Refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic

from raftlog.quorum.interface import (
    Applied,
    Outcome,
    QuorumStatus,
    R,
    Refused,
    StateMachine,
    Unknown,
)
from raftlog.quorum.snapshot import Snapshot
from raftlog.quorum.store import QuorumStore
from raftlog.record.errors import (
    BODY_TOO_LARGE,
    DISK_FULL,
    NOT_READY,
    OVERLOADED,
    STORAGE_FAILED,
    LogError,
)
from raftlog.world import Disk, DiskFullError

FAILURE_CALLBACKS_MAX: Final = 64

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalQuorumLimits:
    """Bounds of a quorum member. The defaults are right for all but tests."""

    command_bytes_max: int = 1024 * 1024
    """Of one command: 10,000 partitions of ten replicas fit."""
    proposals_max: int = 10_000
    """Waiting proposals; more are refused."""
    proposal_bytes_max: int = 64 * 1024 * 1024
    """Waiting proposals together; more are refused."""
    round_bytes_max: int = 4 * 1024 * 1024
    """Written before one sync, unless a single command is larger."""
    snapshot_entries: int = 10_000
    """Entries after which a snapshot is taken."""
    snapshot_bytes: int = 16 * 1024 * 1024
    """Growth of the journal after which a snapshot is taken."""
    journal_bytes_max: int = 256 * 1024 * 1024
    """The journal, if snapshots fail for lack of room; proposals are refused above it."""


@dataclass(frozen=True, slots=True)
class _Proposal(Generic[R]):
    command: bytes
    outcome: asyncio.Future[Outcome[R]]

    def answer(self, outcome: Outcome[R]) -> None:
        # Whoever stopped waiting has cancelled the future; the command is in the log all the same.
        if not self.outcome.done():
            self.outcome.set_result(outcome)


class LocalQuorum(Generic[R]):
    """The only voter of its quorum. Lives in the event loop; not for other threads.

    Made by `open`. Satisfies `raftlog.quorum.Quorum[R]`.
    """

    def __init__(
        self,
        disk: Disk,
        store: QuorumStore,
        state_machine: StateMachine[R],
        limits: LocalQuorumLimits,
    ) -> None:
        self._disk = disk
        self._store = store
        self._state_machine = state_machine
        self._limits = limits
        self._waiting: deque[_Proposal[R]] = deque()
        self._waiting_bytes = 0
        self._round: list[_Proposal[R]] = []
        self._wake = asyncio.Event()
        self._applied_index = 0
        self._failure: str | None = None
        self._failure_callbacks: list[Callable[[str], None]] = []
        self._closing = False
        self._snapshot_task: asyncio.Task[None] | None = None
        self._trim_due = False
        self._snapshot_due_index = 0
        self._snapshot_due_bytes = 0
        self._writer: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        disk: Disk,
        directory: str,
        state_machine: StateMachine[R],
        limits: LocalQuorumLimits | None = None,
    ) -> LocalQuorum[R]:
        """Recover what `directory` holds (created if missing) into `state_machine`, and start.

        Raises LogError(STORAGE_FAILED) if what was durable is damaged or missing, DiskError, and
        whatever the state machine raises at a command or snapshot that it does not understand.
        Nothing was changed for the worse then: a later or repaired version can open it.
        """
        store = QuorumStore(disk, directory)
        quorum = cls(disk, store, state_machine, limits or LocalQuorumLimits())
        try:
            snapshot, entries = await disk.run(store.load)
            if snapshot is not None:
                state_machine.restore(snapshot.index, snapshot.state)
                quorum._applied_index = snapshot.index
            for entry in entries:
                assert entry.index == quorum._applied_index + 1
                state_machine.apply(entry.index, entry.command)
                quorum._applied_index = entry.index
        except BaseException:
            store.close()
            raise
        quorum._snapshot_due_index = store.snapshot_index + quorum._limits.snapshot_entries
        quorum._snapshot_due_bytes = quorum._limits.snapshot_bytes
        quorum._writer = asyncio.create_task(quorum._write_rounds(), name="quorum-writer")
        return quorum

    @property
    def applied_index(self) -> int:
        """Index of the newest applied command; 0 if there is none."""
        return self._applied_index

    async def propose(self, command: bytes) -> Outcome[R]:
        """Put a command into the log and wait until it is durable and applied."""
        refused = self._refusal(command)
        if refused is not None:
            return refused
        outcome: asyncio.Future[Outcome[R]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Proposal(command, outcome))
        self._waiting_bytes += len(command)
        self._wake.set()
        return await outcome

    async def read_barrier(self) -> int:
        """The applied index: a single voter tells nobody of what it has not applied.

        Raises LogError(STORAGE_FAILED) after a failure.
        """
        if self._failure is not None:
            raise LogError(STORAGE_FAILED, self._failure)
        return self._applied_index

    def status(self) -> QuorumStatus:
        """The member's present state."""
        return QuorumStatus(
            term=self._store.term,
            last_index=self._store.last_index,
            applied_index=self._applied_index,
            snapshot_index=self._store.snapshot_index,
            journal_bytes=self._store.journal_bytes,
            failure=self._failure,
        )

    def on_failed(self, callback: Callable[[str], None]) -> None:
        """Have `callback` told the reason, once, when this member stops for good."""
        assert len(self._failure_callbacks) < FAILURE_CALLBACKS_MAX
        self._failure_callbacks.append(callback)
        if self._failure is not None:
            callback(self._failure)

    async def close(self) -> None:
        """Finish what was proposed, refuse the rest, release the disk."""
        self._closing = True
        self._wake.set()
        if self._writer is not None:
            await self._writer
        if self._snapshot_task is not None:
            await self._snapshot_task
        self._store.close()

    def _refusal(self, command: bytes) -> Refused | None:
        limits = self._limits
        if self._failure is not None:
            return Refused(STORAGE_FAILED, self._failure)
        if self._closing:
            return Refused(NOT_READY, "The node is stopping.")
        if len(command) > limits.command_bytes_max:
            return Refused(
                BODY_TOO_LARGE,
                f"A metadata change of {len(command)} bytes is over the limit of "
                f"{limits.command_bytes_max}.",
            )
        if self._store.journal_bytes > limits.journal_bytes_max:
            # Only a snapshot can help, and nothing else would ask for one while all is refused.
            self._snapshot_due_index = 0
            self._wake.set()
            return Refused(
                DISK_FULL, "The metadata cannot be changed: there is no room to trim its journal."
            )
        if (
            len(self._waiting) >= limits.proposals_max
            or self._waiting_bytes + len(command) > limits.proposal_bytes_max
        ):
            return Refused(OVERLOADED, "Too many metadata changes wait to be written.")
        return None

    async def _write_rounds(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while True:
                    if self._waiting:
                        self._take_round()
                        await self._commit_round()
                    await self._trim_if_due()
                    self._start_snapshot_if_due()
                    if not self._waiting and not self._trim_due:
                        break
                if self._closing:
                    await self._seal()
                    return
                if self._failure is not None:
                    return
        except Exception as error:
            # Whatever it was, the state of disk or state machine is no longer known.
            self._fail(error)

    def _take_round(self) -> None:
        size = 0
        while self._waiting:
            size += len(self._waiting[0].command)
            if self._round and size > self._limits.round_bytes_max:
                return
            proposal = self._waiting.popleft()
            self._waiting_bytes -= len(proposal.command)
            self._round.append(proposal)

    async def _commit_round(self) -> None:
        try:
            if not self._store.term_begun:
                await self._disk.run(self._store.begin_term)
            self._store.append([proposal.command for proposal in self._round])
        except DiskFullError as error:
            logger.warning("metadata change refused: %s", error)
            for proposal in self._round:
                proposal.answer(Refused(DISK_FULL, f"The metadata cannot be changed: {error}."))
            self._round.clear()
            return
        await self._disk.run(self._store.sync)
        if self._failure is not None:
            # A snapshot failed meanwhile, and everyone was told "unknown".
            return
        for proposal in self._round:
            index = self._applied_index + 1
            result = self._state_machine.apply(index, proposal.command)
            self._applied_index = index
            proposal.answer(Applied(index, result))
        self._round.clear()
        if not self._waiting:
            self._store.mark()

    async def _trim_if_due(self) -> None:
        if not self._trim_due or self._failure is not None:
            return
        self._trim_due = False
        try:
            await self._disk.run(self._store.trim)
        except DiskFullError as error:
            logger.warning("metadata journal not trimmed: %s", error)
        self._snapshot_due_bytes = self._store.journal_bytes + self._limits.snapshot_bytes

    def _start_snapshot_if_due(self) -> None:
        if self._snapshot_task is not None or self._failure is not None:
            return
        if (
            self._applied_index < self._snapshot_due_index
            and self._store.journal_bytes < self._snapshot_due_bytes
        ):
            return
        # Set before the outcome is known: after a failure for lack of room, try again that late.
        self._snapshot_due_index = self._applied_index + self._limits.snapshot_entries
        self._snapshot_due_bytes = self._store.journal_bytes + self._limits.snapshot_bytes
        if self._applied_index > self._store.snapshot_index:
            encode = self._state_machine.snapshot()
            self._snapshot_task = asyncio.create_task(
                self._save_snapshot(self._applied_index, encode), name="quorum-snapshot"
            )

    async def _save_snapshot(self, index: int, encode: Callable[[], bytes]) -> None:
        try:
            await self._disk.run(lambda: self._store.save_snapshot(Snapshot(index, encode())))
            self._trim_due = True
        except DiskFullError as error:
            logger.warning("metadata snapshot not written: %s", error)
        except Exception as error:
            self._fail(error)
        finally:
            self._snapshot_task = None
            self._wake.set()

    async def _seal(self) -> None:
        """Leave a durable witness of everything that was written, for the next start."""
        if self._failure is None and self._store.term_begun:
            self._store.mark()
            await self._disk.run(self._store.sync)

    def _fail(self, error: Exception) -> None:
        """Stop for good: nothing is retried, because nothing is known of the disk any more."""
        if self._failure is not None:
            return
        reason = f"The metadata log has stopped until the node is restarted: {error!r}."
        self._failure = reason
        logger.critical("%s", reason, exc_info=error)
        for proposal in self._round:
            proposal.answer(Unknown(reason))
        for proposal in self._waiting:
            proposal.answer(Refused(STORAGE_FAILED, reason))
        self._round.clear()
        self._waiting.clear()
        self._waiting_bytes = 0
        self._wake.set()
        for callback in self._failure_callbacks:
            callback(reason)
