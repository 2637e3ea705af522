"""What this member's own node waits for: each wish from being made to its outcome. Pure.

A wish is *parked* while no leader is known, then *asked* of the leader (another member), then *in
the log*: at an index, in a term, until an entry is applied there. If that entry has the term, it is
the wish's own; if not, the wish's entry was replaced before it was committed, and never will be. A
read has no entry: it waits for an index that is known to be committed, whatever is there.

Each has a deadline. What it means to miss it follows from how far the wish has come: one that never
left this member is refused; of any other the outcome is unknown, for good as far as this member
will ever tell.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final, Generic

from raftlog.raft.interface import Applied, Outcome, R, Refused, Unknown
from raftlog.raft.messages import RequestKind, is_read
from raftlog.record.errors import NO_CONTROLLER, OVERLOADED, RETRIABLE, ErrorEntry, LogError

WISHES_MAX: Final = 10_000
WISH_BYTES_MAX: Final = 64 * 1024 * 1024

_REPLACED = "The controller changed before the change was committed; it was not carried out."
_UNKNOWN = "The controller changed, or did not answer; the change may have been carried out."
_NOBODY = "The cluster has no active controller at the moment; nothing was changed."


@dataclass(slots=True, eq=False)
class Waiting(Generic[R]):
    """One wish that somebody waits for."""

    wish: RequestKind
    argument: bytes
    deadline: float
    outcome: asyncio.Future[Outcome[R | None]]
    request_id: int | None = None
    """Set once it was asked of another member."""
    asked_of: tuple[int | None, int] | None = None
    """The leader that was asked last, and its term."""
    index: int | None = None
    """Set once it is known to be in the log there."""

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing, not even the log."""
        return is_read(self.wish, self.argument)


@dataclass(slots=True)
class PendingProposals(Generic[R]):
    """All wishes of one member, by how far they have come."""

    next_request_id: int
    """Random at first: an answer to the process that ran here before must fit nothing."""
    _all: OrderedDict[Waiting[R], None] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _parked: OrderedDict[Waiting[R], None] = field(default_factory=OrderedDict)
    """Of `_all` only, which is bounded."""
    _asked: dict[int, Waiting[R]] = field(default_factory=dict)
    _in_log: dict[int, list[tuple[int | None, Waiting[R]]]] = field(default_factory=dict)
    """By index: the entry's term (None: whichever it has), and who waits for it."""

    def refusal(self, argument: bytes) -> Refused | None:
        """Why no further wish is taken, if so."""
        if len(self._all) >= WISHES_MAX or self._bytes + len(argument) > WISH_BYTES_MAX:
            return Refused(OVERLOADED, "Too many metadata changes wait to be written.")
        return None

    def add(self, waiting: Waiting[R]) -> None:
        """Take a wish. Deadlines do not fall from one to the next."""
        self._all[waiting] = None
        self._bytes += len(waiting.argument)

    def park(self, waiting: Waiting[R]) -> None:
        """Keep it until a leader is known."""
        if waiting in self._all:
            self._parked[waiting] = None

    def unpark(self) -> list[Waiting[R]]:
        """Those that were parked, to be tried again."""
        parked = [waiting for waiting in self._parked if not waiting.outcome.done()]
        self._parked.clear()
        return parked

    def ask(self, waiting: Waiting[R], leader: tuple[int | None, int]) -> int:
        """Give it the number under which it is asked of the leader (its id, its term)."""
        self.next_request_id += 1
        waiting.asked_of = leader
        waiting.request_id = self.next_request_id
        self._asked[waiting.request_id] = waiting
        return waiting.request_id

    def answered(self, request_id: int) -> Waiting[R] | None:
        """The wish that an answer is for; None if nobody waits for it any more."""
        return self._asked.pop(request_id, None)

    def logged(self, waiting: Waiting[R], index: int, term: int, applied_index: int) -> None:
        """It is the log's entry (index, term), which may not stay."""
        if index <= applied_index:
            # A snapshot has jumped over it, so that what was applied there is not known here.
            self.settle(waiting, Unknown(_UNKNOWN))
            return
        waiting.index = index
        self._in_log.setdefault(index, []).append((term, waiting))

    def committed(self, waiting: Waiting[R], index: int, applied_index: int) -> None:
        """It is done once all up to `index` is applied, which is committed."""
        if index <= applied_index:
            self.settle(waiting, Applied(applied_index, None))
            return
        waiting.index = index
        self._in_log.setdefault(index, []).append((None, waiting))

    def applied(self, index: int, term: int, result: R | None) -> None:
        """The entry (index, term) was applied."""
        for expected, waiting in self._in_log.pop(index, ()):
            if expected is None:
                self.settle(waiting, Applied(index, None))
            elif expected == term:
                self.settle(waiting, Applied(index, result))
            else:
                self.settle(waiting, Refused(NO_CONTROLLER, _REPLACED))

    def jumped_to(self, index: int) -> None:
        """A snapshot of everything up to `index` was installed."""
        for position in sorted(self._in_log):
            if position <= index:
                for expected, waiting in self._in_log.pop(position):
                    is_known = expected is None
                    self.settle(waiting, Applied(index, None) if is_known else Unknown(_UNKNOWN))

    def leader_lost(self, now: tuple[int | None, int] | None) -> None:
        """Whoever was asked leads no more, or cannot be heard: what was asked may be in its log.

        `now` is the present leader and its term, whose wishes are under way still; None: nobody.
        """
        asked, self._asked = self._asked, {}
        for request_id, waiting in asked.items():
            if waiting.asked_of == now:
                self._asked[request_id] = waiting
            elif waiting.wish is RequestKind.BARRIER:
                # A second one does no harm.
                waiting.request_id = None
                self.park(waiting)
            else:
                self.settle(waiting, Unknown(_UNKNOWN))

    def expire(self, now: float) -> None:
        """Settle those whose deadline has passed."""
        while self._all:
            waiting = next(iter(self._all))
            if waiting.deadline > now and not waiting.outcome.done():
                return
            self._forget(waiting)
            self._settle_late(waiting, NO_CONTROLLER, _NOBODY, _UNKNOWN)

    def end(self, entry: ErrorEntry, reason: str) -> None:
        """Settle all: this member stops."""
        while self._all:
            self._settle_late(next(iter(self._all)), entry, reason, reason)
        self._parked.clear()
        self._asked.clear()
        self._in_log.clear()

    def settle(self, waiting: Waiting[R], outcome: Outcome[R | None]) -> None:
        """Answer whoever waits, unless they have left."""
        if waiting in self._all:
            del self._all[waiting]
            self._bytes -= len(waiting.argument)
        self._parked.pop(waiting, None)
        if not waiting.outcome.done():
            waiting.outcome.set_result(outcome)

    def _settle_late(
        self, waiting: Waiting[R], entry: ErrorEntry, refused: str, unknown: str
    ) -> None:
        has_left = waiting.request_id is not None or waiting.index is not None
        # A read changes nothing, wherever it is by now.
        is_open = has_left and not waiting.is_read
        self.settle(waiting, Unknown(unknown) if is_open else Refused(entry, refused))

    def _forget(self, waiting: Waiting[R]) -> None:
        if waiting.request_id is not None:
            self._asked.pop(waiting.request_id, None)
        if waiting.index is not None and waiting.index in self._in_log:
            rest = [pair for pair in self._in_log[waiting.index] if pair[1] is not waiting]
            if rest:
                self._in_log[waiting.index] = rest
            else:
                del self._in_log[waiting.index]


def raise_unless_applied(outcome: Outcome[Any]) -> None:
    """Raise LogError for what was refused (as it says) or is unknown (RETRIABLE)."""
    match outcome:
        case Refused(entry=entry, message=message):
            raise LogError(entry, message)
        case Unknown(message=message):
            raise LogError(RETRIABLE, message)
        case Applied():
            return
