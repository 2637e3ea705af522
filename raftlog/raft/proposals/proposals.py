"""Pending requests of this member's own node, from submission to outcome. Pure.

A request is *parked* while no leader is known, then *forwarded* to the leader, then *in the log* at
an index, in a term, until an entry is applied there. An entry of the same term is the request's
entry. Otherwise the request's entry was replaced before its commit, and never will be committed. A
read has no entry. It waits for an index known to be committed, whatever entry is there.

Each request has a deadline. The outcome of a missed deadline follows from the request's progress. A
request still on this member is refused. For any other request the outcome is unknown, and this
member will never know it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final, Generic

from raftlog.raft.interface import Applied, Outcome, R, Refused, Unknown
from raftlog.raft.messages import RequestKind, is_read
from raftlog.record.errors import NO_CONTROLLER, OVERLOADED, RETRIABLE, ErrorEntry, LogError

PENDING_MAX: Final = 10_000
PENDING_BYTES_MAX: Final = 64 * 1024 * 1024

_REPLACED = "The controller changed before the change was committed; it was not carried out."
_UNKNOWN = "The controller changed, or did not answer; the change may have been carried out."
_NO_CONTROLLER = "The cluster has no active controller at the moment; nothing was changed."


@dataclass(slots=True, eq=False)
class PendingRequest(Generic[R]):
    """One request without an outcome yet."""

    kind: RequestKind
    argument: bytes
    deadline: float
    outcome: asyncio.Future[Outcome[R | None]]
    request_id: int | None = None
    """Set once forwarded."""
    sent_to: tuple[int | None, int] | None = None
    """The leader of the last forwarding, and its term."""
    index: int | None = None
    """Set once the request's entry is known to be in the log there."""

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing, not even the log."""
        return is_read(self.kind, self.argument)


@dataclass(slots=True)
class PendingProposals(Generic[R]):
    """All pending requests of one member, by how far each has come."""

    next_request_id: int
    """Random at first. A response to the process before this one must match no request."""
    _all: OrderedDict[PendingRequest[R], None] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _parked: OrderedDict[PendingRequest[R], None] = field(default_factory=OrderedDict)
    """Parked requests, a bounded subset of `_all`."""
    _forwarded: dict[int, PendingRequest[R]] = field(default_factory=dict)
    _in_log: dict[int, list[tuple[int | None, PendingRequest[R]]]] = field(default_factory=dict)
    """The entry's term (None for any entry there) and the request, by index."""

    def refusal(self, argument: bytes) -> Refused | None:
        """The refusal of a further request, or None if there is room for it."""
        if len(self._all) >= PENDING_MAX or self._bytes + len(argument) > PENDING_BYTES_MAX:
            return Refused(OVERLOADED, "Too many metadata changes wait to be written.")
        return None

    def add(self, request: PendingRequest[R]) -> None:
        """Add a request. Deadlines do not fall from one request to the next."""
        self._all[request] = None
        self._bytes += len(request.argument)

    def park(self, request: PendingRequest[R]) -> None:
        """Keep a request until a leader is known."""
        if request in self._all:
            self._parked[request] = None

    def unpark(self) -> list[PendingRequest[R]]:
        """Return the parked requests, for another attempt."""
        parked = [request for request in self._parked if not request.outcome.done()]
        self._parked.clear()
        return parked

    def forward(self, request: PendingRequest[R], leader: tuple[int | None, int]) -> int:
        """Return the id under which a request goes to the leader."""
        self.next_request_id += 1
        request.sent_to = leader
        request.request_id = self.next_request_id
        self._forwarded[request.request_id] = request
        return request.request_id

    def answered(self, request_id: int) -> PendingRequest[R] | None:
        """Return the request of a response, or None if it is no longer pending."""
        return self._forwarded.pop(request_id, None)

    def logged(self, request: PendingRequest[R], index: int, term: int, applied_index: int) -> None:
        """Wait for entry (index, term), which is the request's and may be replaced."""
        if index <= applied_index:
            # A snapshot has jumped over the entry applied there, so that it is not known here.
            self.settle(request, Unknown(_UNKNOWN))
            return
        request.index = index
        self._in_log.setdefault(index, []).append((term, request))

    def committed(self, request: PendingRequest[R], index: int, applied_index: int) -> None:
        """Settle a read once all up to `index`, which is committed, is applied."""
        if index <= applied_index:
            self.settle(request, Applied(applied_index, None))
            return
        request.index = index
        self._in_log.setdefault(index, []).append((None, request))

    def applied(self, index: int, term: int, result: R | None) -> None:
        """Settle the requests at `index`, where an entry of `term` was applied."""
        for expected, request in self._in_log.pop(index, ()):
            if expected is None:
                self.settle(request, Applied(index, None))
            elif expected == term:
                self.settle(request, Applied(index, result))
            else:
                self.settle(request, Refused(NO_CONTROLLER, _REPLACED))

    def snapshot_installed(self, index: int) -> None:
        """Settle the requests up to `index`, which a snapshot covers."""
        for position in sorted(self._in_log):
            if position <= index:
                for expected, request in self._in_log.pop(position):
                    is_known = expected is None
                    self.settle(request, Applied(index, None) if is_known else Unknown(_UNKNOWN))

    def leader_lost(self, now: tuple[int | None, int] | None) -> None:
        """Settle or park requests forwarded to another leader than `now`. It may have logged them.

        `now` is the present leader and its term, or None if the leader is out of reach. Requests to
        the present leader stay under way.
        """
        forwarded, self._forwarded = self._forwarded, {}
        for request_id, request in forwarded.items():
            if request.sent_to == now:
                self._forwarded[request_id] = request
            elif request.kind is RequestKind.BARRIER:
                # A second read does no harm.
                request.request_id = None
                self.park(request)
            else:
                self.settle(request, Unknown(_UNKNOWN))

    def expire(self, now: float) -> None:
        """Settle the requests whose deadline has passed."""
        while self._all:
            request = next(iter(self._all))
            if request.deadline > now and not request.outcome.done():
                return
            self._forget(request)
            self._settle_unfinished(request, NO_CONTROLLER, _NO_CONTROLLER, _UNKNOWN)

    def end(self, entry: ErrorEntry, reason: str) -> None:
        """Settle all requests, as this member stops."""
        while self._all:
            self._settle_unfinished(next(iter(self._all)), entry, reason, reason)
        self._parked.clear()
        self._forwarded.clear()
        self._in_log.clear()

    def settle(self, request: PendingRequest[R], outcome: Outcome[R | None]) -> None:
        """Give a request its outcome, unless its caller has cancelled the wait."""
        if request in self._all:
            del self._all[request]
            self._bytes -= len(request.argument)
        self._parked.pop(request, None)
        if not request.outcome.done():
            request.outcome.set_result(outcome)

    def _settle_unfinished(
        self, request: PendingRequest[R], entry: ErrorEntry, refused: str, unknown: str
    ) -> None:
        has_left = request.request_id is not None or request.index is not None
        # A read changes nothing, however far it has come.
        is_open = has_left and not request.is_read
        self.settle(request, Unknown(unknown) if is_open else Refused(entry, refused))

    def _forget(self, request: PendingRequest[R]) -> None:
        if request.request_id is not None:
            self._forwarded.pop(request.request_id, None)
        if request.index is not None and request.index in self._in_log:
            rest = [pair for pair in self._in_log[request.index] if pair[1] is not request]
            if rest:
                self._in_log[request.index] = rest
            else:
                del self._in_log[request.index]


def raise_unless_applied(outcome: Outcome[Any]) -> None:
    """Raise LogError for a refused (its own error) or unknown (RETRIABLE) outcome."""
    match outcome:
        case Refused(entry=entry, message=message):
            raise LogError(entry, message)
        case Unknown(message=message):
            raise LogError(RETRIABLE, message)
        case Applied():
            return
