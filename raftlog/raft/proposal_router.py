"""Wishes on their way: from this member's own node to the leader, and as the leader's work.

The one who wishes waits for the entry to be applied here, on its own member, whoever leads. So a
leader only answers where in its log the entry is; the rest follows from the log. To a read it
answers how far its log is committed, once it is sure that it leads (read_index.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic

from raftlog.raft.core import RaftCore
from raftlog.raft.interface import Applied, Outcome, R, Refused
from raftlog.raft.membership import VoterChanges
from raftlog.raft.messages import READ, Forward, Forwarded, Message, RequestKind, is_read
from raftlog.raft.proposals import PendingProposals, Waiting, raise_unless_applied
from raftlog.raft.read_index import ReadRounds
from raftlog.raft.rules import NO_OP, REGULAR
from raftlog.raft.settings import DISK_RESERVE_BYTES, JOURNAL_BYTES_MAX, MemberSettings
from raftlog.raft.store import QuorumStore
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
"""Changes of voters or leader that are being carried out; the rules allow one, others wait."""

NODE_ID_DIGITS_MAX: Final = 10


class ProposalRouter(Generic[R]):
    """Takes wishes of this node and of other members."""

    def __init__(
        self,
        *,
        core: RaftCore,
        store: QuorumStore,
        changes: VoterChanges,
        clock: Clock,
        settings: MemberSettings,
        send: Callable[[int, Message], None],
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
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
        self._wishes: PendingProposals[R] = PendingProposals(request_id)
        self._reads = ReadRounds(core)
        self._changes_at_once = 0
        self._barrier: asyncio.Future[Outcome[R | None]] | None = None
        self._ended: Refused | None = None

    # This node's wishes

    def begin(self, wish: RequestKind, argument: bytes) -> asyncio.Future[Outcome[R | None]]:
        """Have a wish carried out; what became of it, at the latest after `proposal_s`."""
        outcome: asyncio.Future[Outcome[R | None]] = asyncio.get_running_loop().create_future()
        refused = self._ended or self._wishes.refusal(argument)
        if refused is not None:
            outcome.set_result(refused)
            return outcome
        deadline = self._clock.monotonic() + self._settings.proposal_s
        waiting = Waiting(wish, argument, deadline, outcome)
        self._wishes.add(waiting)
        self._try(waiting)
        return outcome

    async def barrier(self) -> Outcome[R | None]:
        """Once all is applied here that was committed before. It writes nothing.

        Those who ask in the same turn share one question to the leader.
        """
        if self._barrier is None:
            self._barrier = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(self._begin_barrier, self._barrier)
        return await asyncio.shield(self._barrier)

    def _begin_barrier(self, shared: asyncio.Future[Outcome[R | None]]) -> None:
        self._barrier = None

        def tell(done: asyncio.Future[Outcome[R | None]]) -> None:
            shared.set_result(done.result())

        self.begin(RequestKind.BARRIER, READ).add_done_callback(tell)

    async def _pass_log(self) -> Outcome[R | None]:
        """A no-op through the log: behind all that its leader has there, committed or not."""
        return await self.begin(RequestKind.BARRIER, b"")

    async def change(self, wish: RequestKind, node_id: int, is_done: Callable[[], bool]) -> None:
        """Have the leader change voters or leader; if it lost its leadership over that, the next.

        A leader that is to lose its vote hands over instead, and leaves the change to the next.
        """
        for _ in range(CHANGE_ATTEMPTS_MAX):
            outcome = await self.begin(wish, b"%d" % node_id)
            if isinstance(outcome, Refused) and outcome.entry is not NO_CONTROLLER:
                break
            # Through the log, so that this member knows the newest leader and voters. A read does
            # not tell of voters that are in the leader's log and not committed yet: asked again,
            # the leader would refuse a change that it is about to make.
            barrier = await self._pass_log()
            if not isinstance(barrier, Applied) and not isinstance(outcome, Refused):
                # What a refused barrier says, that nothing was changed, is true of itself only.
                raise LogError(RETRIABLE, f"The change may have been made. {barrier.message}")
            raise_unless_applied(barrier)
            if is_done():
                return
        raise_unless_applied(outcome)
        raise LogError(RETRIABLE, "The leader has changed; whether the change was made is open.")

    def tick(self) -> None:
        """Give up on what has waited for too long; try again what has found no leader."""
        now = self._clock.monotonic()
        self._wishes.expire(now)
        self._reads.expire(now)
        self.try_parked()

    def advance(self) -> None:
        """Time has passed, or something has come: answer the reads that can be, as the leader."""
        self._reads.advance()

    def try_parked(self) -> None:
        """Try again what has found no leader."""
        if self._core.leader_id is not None:
            for waiting in self._wishes.unpark():
                self._try(waiting)

    def leader_changed(self) -> None:
        """Who was asked may lead no more."""
        self._wishes.leader_lost((self._core.leader_id, self._core.term))

    def leader_unreachable(self) -> None:
        """Who was asked cannot answer any more."""
        self._wishes.leader_lost(None)

    def applied(self, index: int, term: int, result: R | None) -> None:
        """An entry was applied."""
        self._wishes.applied(index, term, result)

    def jumped_to(self, index: int) -> None:
        """A snapshot was installed."""
        self._wishes.jumped_to(index)

    def end(self, entry: ErrorEntry, reason: str) -> None:
        """Refuse everything from now on."""
        self._ended = self._ended or Refused(entry, reason)
        self._wishes.end(entry, reason)
        self._reads.give_up()

    def answered(self, answer: Forwarded) -> None:
        """The leader says what became of a wish."""
        waiting = self._wishes.answered(answer.request_id)
        if waiting is None:
            return
        if answer.error_code == NO_CONTROLLER.code and waiting.wish in (
            RequestKind.COMMAND,
            RequestKind.BARRIER,
        ):
            # It leads no more, and has done nothing.
            waiting.request_id = None
            self._wishes.park(waiting)
        elif answer.error_code:
            entry = ERROR_TABLE.get(answer.error_code, INTERNAL)
            self._wishes.settle(waiting, Refused(entry, answer.message))
        elif answer.index:
            applied_index = self._core.applied_index
            if waiting.is_read and not answer.entry_term:
                self._wishes.committed(waiting, answer.index, applied_index)
            else:
                self._wishes.logged(waiting, answer.index, answer.entry_term, applied_index)
        else:
            self._wishes.settle(waiting, Applied(self._core.applied_index, None))

    def _try(self, waiting: Waiting[R]) -> None:
        core = self._core
        if core.is_leader:
            self._lead(waiting)
        elif core.leader_id is None or not core.is_connected(core.leader_id):
            self._wishes.park(waiting)
        else:
            request_id = self._wishes.ask(waiting, (core.leader_id, core.term))
            message = Forward(core.term, request_id, waiting.wish, waiting.argument)
            self._send(core.leader_id, message)

    def _lead(self, waiting: Waiting[R]) -> None:
        def tell(answer: Forwarded) -> None:
            # As if another member had answered: one way for all.
            self.answered(answer)
            self._wake()

        leader = self._core.leader_id, self._core.term
        request_id = self._wishes.ask(waiting, leader)
        self._answer(request_id, waiting.wish, waiting.argument, tell)

    # As the leader

    def carry_out(self, peer: int, message: Forward) -> None:
        """A member forwards a wish of its node."""
        self._answer(
            message.request_id,
            message.wish,
            message.argument,
            lambda answer: self._send(peer, answer),
        )

    def _answer(
        self, request_id: int, wish: RequestKind, argument: bytes, tell: Callable[[Forwarded], None]
    ) -> None:
        try:
            if is_read(wish, argument):
                self._answer_read(request_id, tell)
                return
            self._check(argument)
            if wish in (RequestKind.COMMAND, RequestKind.BARRIER):
                kind = REGULAR if wish is RequestKind.COMMAND else NO_OP
                index, term = self._core.append(kind, argument)
                tell(Forwarded(self._core.term, request_id, index, term, 0, ""))
                self._wake()
            elif self._changes_at_once >= CHANGES_AT_ONCE_MAX:
                tell(self._refusal(request_id, LogError(OVERLOADED)))
            else:
                node_id = _node_id(argument)
                self._changes_at_once += 1
                self._spawn(self._change(request_id, wish, node_id, tell), "quorum-change")
        except LogError as error:
            tell(self._refusal(request_id, error))

    def _answer_read(self, request_id: int, tell: Callable[[Forwarded], None]) -> None:
        """Answer once it is sure how far is committed. No disk is asked: nothing is written."""

        def known(index: int | None) -> None:
            if index is None:
                tell(self._refusal(request_id, LogError(NO_CONTROLLER)))
            else:
                tell(Forwarded(self._core.term, request_id, index, 0, 0, ""))

        self._check_leads()
        self._reads.ask(self._clock.monotonic() + self._settings.proposal_s, known)
        self._wake()

    async def _change(
        self, request_id: int, wish: RequestKind, node_id: int, tell: Callable[[Forwarded], None]
    ) -> None:
        try:
            index, term = 0, 0
            if wish is RequestKind.ADD_VOTER:
                index, term = await self._changes.add(node_id)
            elif wish is RequestKind.REMOVE_VOTER:
                index, term = await self._changes.remove(node_id)
            else:
                await self._changes.hand_over(node_id or None)
        except LogError as error:
            tell(self._refusal(request_id, error))
        else:
            tell(Forwarded(self._core.term, request_id, index, term, 0, ""))
        finally:
            self._changes_at_once -= 1

    def _check(self, argument: bytes) -> None:
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
        return Forwarded(self._core.term, request_id, 0, 0, error.entry.code, error.message)


def _node_id(argument: bytes) -> int:
    """The node's number that a wish names. Raises LogError."""
    if len(argument) > NODE_ID_DIGITS_MAX or not argument.isdigit():
        raise LogError(BAD_REQUEST, f"A node id is a number of 1 to {NODE_ID_DIGITS_MAX} digits.")
    return int(argument)
