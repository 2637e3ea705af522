"""The primary's commands on their way into the log. Decisions only: no I/O.

queued ──next_batch──▶ sent ──applied──▶ result
   │                     ├──a later fence before it──▶ NotPrimaryError: did not happen
   │                     └──its deadline──▶ OutcomeUnknownError
   └──not the primary any longer, or its deadline──▶ NotPrimaryError: did not happen

After a failed append a batch stays sent: only the log says whether it happened: yes if applied,
no if a later fence is applied first, as no batch of an older term counts behind a fence.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic

from raftlog_replicated.errors import (
    NotPrimaryError,
    OutcomeUnknownError,
    OverloadedError,
    ReplicatedError,
    TooManyRequestsError,
)
from raftlog_replicated.logs.entries import Commands
from raftlog_replicated.types import Applied, Command, Result, Term, Token

BATCH_BYTES_MAX: Final = 512 * 1024
"""Of payloads in one entry."""
COMMAND_BYTES_MAX: Final = 512 * 1024
QUEUED_MAX: Final = 100_000
QUEUED_BYTES_MAX: Final = 64 << 20
REQUEST_BYTES: Final = 16
"""Of an entry for each command, about."""


@dataclass(slots=True, eq=False)
class _Submitted(Generic[Command, Result]):
    command: Command
    payload: bytes
    request_id: str | None
    deadline: float
    done: asyncio.Future[Applied[Result]]


@dataclass(slots=True, eq=False)
class Batch(Generic[Command, Result]):
    """The commands of one entry."""

    entry: Commands
    commands: list[Command]
    _submitted: list[_Submitted[Command, Result]]

    def applied(self, results: Sequence[Result | TooManyRequestsError], token: Token) -> None:
        """The entry counted: hand out the results."""
        for one, result in zip(self._submitted, results, strict=True):
            if one.done.done():
                continue
            if isinstance(result, TooManyRequestsError):
                one.done.set_exception(result)
            else:
                one.done.set_result(Applied(result, token))

    def fail(self, error: ReplicatedError) -> None:
        """Fail all waiting callers."""
        for one in self._submitted:
            if not one.done.done():
                one.done.set_exception(error)

    def expire(self, now: float) -> bool:
        """Fail callers past their deadline; whether none waits."""
        waits = False
        for one in self._submitted:
            if not one.done.done():
                if one.deadline > now:
                    waits = True
                else:
                    one.done.set_exception(OutcomeUnknownError("The log has not answered in time."))
        return not waits


class Pipeline(Generic[Command, Result]):
    """Queued commands and sent batches of one replica."""

    def __init__(self) -> None:
        self._queue: deque[_Submitted[Command, Result]] = deque()
        self._queued_bytes = 0
        self._sent: dict[tuple[Term, int], Batch[Command, Result]] = {}
        """By term and number; one at a time, and those with unknown outcome."""
        self._term: Term = 0
        self._number = 0

    @property
    def has_queued(self) -> bool:
        """Whether there is a batch to send."""
        return bool(self._queue)

    def add(
        self,
        command: Command,
        payload: bytes,
        request_id: str | None,
        deadline: float,
        done: asyncio.Future[Applied[Result]],
    ) -> None:
        """Queue a command. Raises OverloadedError, ValueError for a too large one."""
        size = len(payload)
        if size > COMMAND_BYTES_MAX:
            raise ValueError(f"a command of {size} bytes; {COMMAND_BYTES_MAX} are allowed")
        if len(self._queue) >= QUEUED_MAX or self._queued_bytes + size > QUEUED_BYTES_MAX:
            raise OverloadedError(
                f"{len(self._queue)} commands of {self._queued_bytes} bytes wait for the log."
            )
        self._queued_bytes += size
        self._queue.append(
            _Submitted(
                command=command,
                payload=payload,
                request_id=request_id,
                deadline=deadline,
                done=done,
            )
        )

    def next_batch(self, term: Term) -> Batch[Command, Result] | None:
        """Take queued commands, in their order, for an entry of the term; None without any."""
        taken: list[_Submitted[Command, Result]] = []
        size = 0
        queue = self._queue
        while queue:
            one = queue[0]
            size += len(one.payload) + REQUEST_BYTES
            if taken and size > BATCH_BYTES_MAX:
                break
            queue.popleft()
            self._queued_bytes -= len(one.payload)
            if not one.done.done():  # else its caller has gone
                taken.append(one)
        if not taken:
            return None
        if term != self._term:
            self._term, self._number = term, 0
        requests = {
            index: one.request_id for index, one in enumerate(taken) if one.request_id is not None
        }
        entry = Commands(term, self._number, [one.payload for one in taken], requests)
        self._number += 1
        batch = Batch(entry, [one.command for one in taken], taken)
        self._sent[term, entry.number] = batch
        return batch

    def take_sent(self, entry: Commands) -> Batch[Command, Result] | None:
        """The sent batch of an applied entry; None for another replica's."""
        return self._sent.pop((entry.term, entry.number), None)

    def fenced(self, term: Term, error: NotPrimaryError) -> None:
        """A fence of the term counts: unapplied batches of older terms did not happen."""
        for key in [key for key in self._sent if key[0] < term]:
            self._sent.pop(key).fail(error)

    def skipped(self) -> None:
        """A part of the log was not applied: whether sent commands happened stays unknown."""
        for batch in self._sent.values():
            batch.fail(OutcomeUnknownError("The log of the command's time is not read any more."))
        self._sent.clear()

    def refuse_queued(self, error: ReplicatedError) -> None:
        """Fail all unsent commands: none happened."""
        queue, self._queue = self._queue, deque()
        self._queued_bytes = 0
        for one in queue:
            if not one.done.done():
                one.done.set_exception(error)

    def expire(self, now: float, error: NotPrimaryError) -> None:
        """Fail commands past their deadline: sent ones as unknown, queued ones with `error`."""
        for batch in list(self._sent.values()):
            # A batch without waiters is kept: the log may still resolve others of its term.
            batch.expire(now)
        for one in self._queue:
            if one.deadline <= now and not one.done.done():
                one.done.set_exception(error)

    def end(self, error: ReplicatedError) -> None:
        """The replica ends: sent commands have an unknown outcome."""
        self.refuse_queued(error)
        for batch in self._sent.values():
            batch.fail(OutcomeUnknownError(f"The replica has ended: {error}"))
        self._sent.clear()
