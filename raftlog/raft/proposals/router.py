"""Routes proposals and reads from this member's node and, on the leader, from others.

A request's entry is applied here, on the caller's member, whichever member leads. So a leader
responds only with the entry's place in its log, and the rest follows from the log. For a read the
leader returns its commit index, once its leadership is confirmed (proposals/read_index.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic

from raftlog.raft.core import RaftCore
from raftlog.raft.interface import (
    DISK_RESERVE_BYTES,
    JOURNAL_BYTES_MAX,
    Applied,
    MemberSettings,
    Outcome,
    R,
    Refused,
)
from raftlog.raft.log.log import NO_OP, REGULAR
from raftlog.raft.log.store import QuorumStore
from raftlog.raft.membership import VoterChanges
from raftlog.raft.messages import READ, Forward, Forwarded, Message, RequestKind, is_read
from raftlog.raft.proposals.proposals import PendingProposals, PendingRequest, raise_unless_applied
from raftlog.raft.proposals.read_index import ReadRounds
from raftlog.record.errors import (
    BAD_REQUEST,
    DISK_FULL,
    ERROR_TABLE,
    INTERNAL,
    NO_CONTROLLER,
    OVERLOADED,
    RETRIABLE,
    ErrorEntry,
    LogError,
)
from raftlog.world import Clock

CHANGE_ATTEMPTS_MAX: Final = 3
CHANGES_AT_ONCE_MAX: Final = 64
"""Changes of voters or leader under way. The rules allow a single change, and the others wait."""

NODE_ID_DIGITS_MAX: Final = 10


class ProposalRouter(Generic[R]):
    """Handles requests of this node and, on the leader, of other members."""

    def __init__(
        self,
        *,
        core: RaftCore,
        store: QuorumStore,
        changes: VoterChanges,
        clock: Clock,
        settings: MemberSettings,
        send: Callable[[int, Message], None],
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
        wake: Callable[[], None],
        request_id: int,
    ) -> None:
        self._core = core
        self._store = store
        self._changes = changes
        self._clock = clock
        self._settings = settings
        self._send = send
        self._spawn = spawn
        self._wake = wake
        self._pending: PendingProposals[R] = PendingProposals(request_id)
        self._reads = ReadRounds(core)
        self._changes_at_once = 0
        self._barrier: asyncio.Future[Outcome[R | None]] | None = None
        self._ended: Refused | None = None

    # This node's requests

    def submit(self, kind: RequestKind, argument: bytes) -> asyncio.Future[Outcome[R | None]]:
        """Submit a request. Its outcome is set after `proposal_s` at the latest."""
        outcome: asyncio.Future[Outcome[R | None]] = asyncio.get_running_loop().create_future()
        refused = self._ended or self._pending.refusal(argument)
        if refused is not None:
            outcome.set_result(refused)
            return outcome
        deadline = self._clock.monotonic() + self._settings.proposal_s
        request = PendingRequest(kind, argument, deadline, outcome)
        self._pending.add(request)
        self._dispatch(request)
        return outcome

    async def barrier(self) -> Outcome[R | None]:
        """Wait until every entry committed before this call is applied here. Writes nothing.

        Barriers of the same turn of the event loop share one request to the leader.
        """
        if self._barrier is None:
            self._barrier = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(self._submit_barrier, self._barrier)
        return await asyncio.shield(self._barrier)

    def _submit_barrier(self, shared: asyncio.Future[Outcome[R | None]]) -> None:
        self._barrier = None

        def settle(done: asyncio.Future[Outcome[R | None]]) -> None:
            shared.set_result(done.result())

        self.submit(RequestKind.BARRIER, READ).add_done_callback(settle)

    async def _barrier_through_log(self) -> Outcome[R | None]:
        """Commit a no-op behind all entries of the leader's log, committed or not."""
        return await self.submit(RequestKind.BARRIER, b"")

    async def change(self, kind: RequestKind, node_id: int, is_done: Callable[[], bool]) -> None:
        """Change voters or leader.

        If the leader loses its leadership in this, retry at the next leader.

        A leader that is to lose its vote transfers its leadership instead, and leaves the change to
        the next leader.
        """
        for _ in range(CHANGE_ATTEMPTS_MAX):
            outcome = await self.submit(kind, b"%d" % node_id)
            if isinstance(outcome, Refused) and outcome.entry is not NO_CONTROLLER:
                break
            # The barrier goes through the log, so that this member knows the newest leader and
            # voters. A read does not cover voters that are in the leader's log and not committed
            # yet. On a second request, the leader would refuse a change that it is about to make.
            barrier = await self._barrier_through_log()
            if not isinstance(barrier, Applied) and not isinstance(outcome, Refused):
                # The message of a refused barrier, "nothing was changed", is true of itself only.
                raise LogError(RETRIABLE, f"The change may have been made. {barrier.message}")
            raise_unless_applied(barrier)
            if is_done():
                return
        raise_unless_applied(outcome)
        raise LogError(RETRIABLE, "The leader has changed; whether the change was made is open.")

    def tick(self) -> None:
        """Expire requests past their deadline. Retry those parked for want of a leader."""
        now = self._clock.monotonic()
        self._pending.expire(now)
        self._reads.expire(now)
        self.retry_parked()

    def advance(self) -> None:
        """Settle the reads that this leader has confirmed by now."""
        self._reads.advance()

    def retry_parked(self) -> None:
        """Dispatch the requests that were parked for want of a leader."""
        if self._core.leader_id is not None:
            for request in self._pending.unpark():
                self._dispatch(request)

    def leader_changed(self) -> None:
        """Settle or park requests at a former leader."""
        self._pending.leader_lost((self._core.leader_id, self._core.term))

    def leader_unreachable(self) -> None:
        """Settle or park all forwarded requests, as no response will come."""
        self._pending.leader_lost(None)

    def applied(self, index: int, term: int, result: R | None) -> None:
        """Settle requests at an entry that was applied."""
        self._pending.applied(index, term, result)

    def snapshot_installed(self, index: int) -> None:
        """Settle requests up to a snapshot that was installed."""
        self._pending.snapshot_installed(index)

    def end(self, entry: ErrorEntry, reason: str) -> None:
        """Refuse everything from now on."""
        self._ended = self._ended or Refused(entry, reason)
        self._pending.end(entry, reason)
        self._reads.give_up()

    def answered(self, answer: Forwarded) -> None:
        """Handle the leader's response to a request."""
        request = self._pending.answered(answer.request_id)
        if request is None:
            return
        if answer.error_code == NO_CONTROLLER.code and request.kind in (
            RequestKind.COMMAND,
            RequestKind.BARRIER,
        ):
            # That member leads no more, and has done nothing.
            request.request_id = None
            self._pending.park(request)
        elif answer.error_code:
            entry = ERROR_TABLE.get(answer.error_code, INTERNAL)
            self._pending.settle(request, Refused(entry, answer.message))
        elif answer.index:
            applied_index = self._core.applied_index
            if request.is_read and not answer.entry_term:
                self._pending.committed(request, answer.index, applied_index)
            else:
                self._pending.logged(request, answer.index, answer.entry_term, applied_index)
        else:
            self._pending.settle(request, Applied(self._core.applied_index, None))

    def _dispatch(self, request: PendingRequest[R]) -> None:
        core = self._core
        if core.is_leader:
            self._handle_own(request)
        elif core.leader_id is None or not core.is_connected(core.leader_id):
            self._pending.park(request)
        else:
            request_id = self._pending.forward(request, (core.leader_id, core.term))
            message = Forward(core.term, request_id, request.kind, request.argument)
            self._send(core.leader_id, message)

    def _handle_own(self, request: PendingRequest[R]) -> None:
        def reply(answer: Forwarded) -> None:
            # The path is the same as for the response of another member.
            self.answered(answer)
            self._wake()

        leader = self._core.leader_id, self._core.term
        request_id = self._pending.forward(request, leader)
        self._handle(request_id, request.kind, request.argument, reply)

    # As the leader

    def handle_forwarded(self, peer: int, message: Forward) -> None:
        """Execute a request of another member's node."""
        self._handle(
            message.request_id,
            message.kind,
            message.argument,
            lambda answer: self._send(peer, answer),
        )

    def _handle(
        self,
        request_id: int,
        kind: RequestKind,
        argument: bytes,
        reply: Callable[[Forwarded], None],
    ) -> None:
        try:
            if is_read(kind, argument):
                self._handle_read(request_id, reply)
                return
            self._check_may_append(argument)
            if kind in (RequestKind.COMMAND, RequestKind.BARRIER):
                entry_kind = REGULAR if kind is RequestKind.COMMAND else NO_OP
                index, term = self._core.append(entry_kind, argument)
                reply(
                    Forwarded(
                        term=self._core.term,
                        request_id=request_id,
                        index=index,
                        entry_term=term,
                        error_code=0,
                        message="",
                    )
                )
                self._wake()
            elif self._changes_at_once >= CHANGES_AT_ONCE_MAX:
                reply(self._refusal(request_id, LogError(OVERLOADED)))
            else:
                node_id = _node_id(argument)
                self._changes_at_once += 1
                self._spawn(self._change(request_id, kind, node_id, reply), "quorum-change")
        except LogError as error:
            reply(self._refusal(request_id, error))

    def _handle_read(self, request_id: int, reply: Callable[[Forwarded], None]) -> None:
        """Reply once the commit index is confirmed. Needs no room, since nothing is written."""

        def confirmed(index: int | None) -> None:
            if index is None:
                reply(self._refusal(request_id, LogError(NO_CONTROLLER)))
            else:
                reply(
                    Forwarded(
                        term=self._core.term,
                        request_id=request_id,
                        index=index,
                        entry_term=0,
                        error_code=0,
                        message="",
                    )
                )

        self._check_leads()
        self._reads.submit(self._clock.monotonic() + self._settings.proposal_s, confirmed)
        self._wake()

    async def _change(
        self,
        request_id: int,
        kind: RequestKind,
        node_id: int,
        reply: Callable[[Forwarded], None],
    ) -> None:
        try:
            index, term = 0, 0
            if kind is RequestKind.ADD_VOTER:
                index, term = await self._changes.add(node_id)
            elif kind is RequestKind.REMOVE_VOTER:
                index, term = await self._changes.remove(node_id)
            else:
                await self._changes.transfer_leadership(node_id or None)
        except LogError as error:
            reply(self._refusal(request_id, error))
        else:
            reply(
                Forwarded(
                    term=self._core.term,
                    request_id=request_id,
                    index=index,
                    entry_term=term,
                    error_code=0,
                    message="",
                )
            )
        finally:
            self._changes_at_once -= 1

    def _check_may_append(self, argument: bytes) -> None:
        """Raise LogError if this member can take no entry."""
        core, settings = self._core, self._settings
        self._check_leads()
        if core.log.last_index - core.commit_index >= settings.uncommitted_entries_max:
            raise LogError(OVERLOADED, "Too many metadata changes wait to be committed.")
        if self._store.free_bytes() < DISK_RESERVE_BYTES + len(argument):
            raise LogError(DISK_FULL, "The metadata cannot be changed: the disk is full.")
        if self._store.journal_bytes > JOURNAL_BYTES_MAX:
            raise LogError(
                DISK_FULL, "The metadata cannot be changed: there is no room to trim its journal."
            )

    def _check_leads(self) -> None:
        if self._ended is not None or not self._core.is_leader:
            raise LogError(NO_CONTROLLER)

    def _refusal(self, request_id: int, error: LogError) -> Forwarded:
        return Forwarded(
            term=self._core.term,
            request_id=request_id,
            index=0,
            entry_term=0,
            error_code=error.entry.code,
            message=error.message,
        )


def _node_id(argument: bytes) -> int:
    """The node id in a request's argument. Raises LogError."""
    if len(argument) > NODE_ID_DIGITS_MAX or not argument.isdigit():
        raise LogError(BAD_REQUEST, f"A node id is a number of 1 to {NODE_ID_DIGITS_MAX} digits.")
    return int(argument)
