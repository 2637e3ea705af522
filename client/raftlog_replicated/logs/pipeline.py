"""The primary's commands on their way into the log. Decisions only, without I/O.

    queued ──next_batch──▶ sent ──applied──▶ result
       │                     ├──a later fence before it──▶ NotPrimaryError, did not happen
       │                     └──its deadline──▶ OutcomeUnknownError
       └──not the primary any longer, or its deadline──▶ NotPrimaryError, did not happen

After a failed append a batch stays sent, and only the log decides whether it happened. It happened
if applied. It did not if a later fence is applied first, as no batch of an older term counts behind
a fence.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic

from raftlog_replicated.codec import Commands
from raftlog_replicated.errors import (
    NotPrimaryError,
    OutcomeUnknownError,
    OverloadedError,
    ReplicatedError,
    TooManyRequestsError,
)
from raftlog_replicated.types import Applied, Command, Result, Term, Token

BATCH_BYTES_MAX: Final = 512 * 1024
"""Most bytes of payloads in one entry."""
COMMAND_BYTES_MAX: Final = 512 * 1024
QUEUED_MAX: Final = 100_000
QUEUED_BYTES_MAX: Final = 64 << 20
REQUEST_BYTES: Final = 16
"""Approximate bytes of an entry for each command."""


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
        """Hand out the results of the counted entry."""
        for pending, result in zip(self._submitted, results, strict=True):
            if pending.done.done():
                continue
            if isinstance(result, TooManyRequestsError):
                pending.done.set_exception(result)
            else:
                pending.done.set_result(Applied(result, token))

    def fail(self, error: ReplicatedError) -> None:
        """Fail all waiting callers."""
        for pending in self._submitted:
            if not pending.done.done():
                pending.done.set_exception(error)

    def expire(self, now: float) -> bool:
        """Fail callers past their deadline. Returns whether none waits."""
        waits = False
        for pending in self._submitted:
            if not pending.done.done():
                if pending.deadline > now:
                    waits = True
                else:
                    pending.done.set_exception(
                        OutcomeUnknownError("The log has not answered in time.")
                    )
        return not waits


class Pipeline(Generic[Command, Result]):
    """Queued commands and sent batches of one replica."""

    def __init__(self) -> None:
        self._queue: deque[_Submitted[Command, Result]] = deque()
        self._queued_bytes = 0
        self._sent: dict[tuple[Term, int], Batch[Command, Result]] = {}
        """Batches by term and number, one at a time, and those with unknown outcome."""
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
        """Queue a command. Raises OverloadedError, or ValueError for a too large command."""
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
        """Take queued commands, in their order, for an entry of the term. None without commands."""
        taken: list[_Submitted[Command, Result]] = []
        size = 0
        queue = self._queue
        while queue:
            pending = queue[0]
            size += len(pending.payload) + REQUEST_BYTES
            if taken and size > BATCH_BYTES_MAX:
                break
            queue.popleft()
            self._queued_bytes -= len(pending.payload)
            if not pending.done.done():  # else its caller has gone
                taken.append(pending)
        if not taken:
            return None
        if term != self._term:
            self._term, self._number = term, 0
        requests = {
            index: pending.request_id
            for index, pending in enumerate(taken)
            if pending.request_id is not None
        }
        entry = Commands(term, self._number, [pending.payload for pending in taken], requests)
        self._number += 1
        batch = Batch(entry, [pending.command for pending in taken], taken)
        self._sent[term, entry.number] = batch
        return batch

    def take_sent(self, entry: Commands) -> Batch[Command, Result] | None:
        """The sent batch of an applied entry. None for another replica's."""
        return self._sent.pop((entry.term, entry.number), None)

    def fenced(self, term: Term, error: NotPrimaryError) -> None:
        """Fail unapplied batches of older terms than a counted fence. They did not happen."""
        for key in [key for key in self._sent if key[0] < term]:
            self._sent.pop(key).fail(error)

    def skipped(self) -> None:
        """A part of the log was not applied. The outcome of sent commands stays unknown."""
        for batch in self._sent.values():
            batch.fail(OutcomeUnknownError("The log of the command's time is not read any more."))
        self._sent.clear()

    def refuse_queued(self, error: ReplicatedError) -> None:
        """Fail all unsent commands, which did not happen."""
        queue, self._queue = self._queue, deque()
        self._queued_bytes = 0
        for pending in queue:
            if not pending.done.done():
                pending.done.set_exception(error)

    def expire(self, now: float, error: NotPrimaryError) -> None:
        """Fail commands past their deadline, if sent as unknown, if queued with `error`."""
        for batch in list(self._sent.values()):
            # A batch without waiters is kept, as the log may still resolve others of its term.
            batch.expire(now)
        for pending in self._queue:
            if pending.deadline <= now and not pending.done.done():
                pending.done.set_exception(error)

    def end(self, error: ReplicatedError) -> None:
        """End with the replica. Sent commands have an unknown outcome."""
        self.refuse_queued(error)
        for batch in self._sent.values():
            batch.fail(OutcomeUnknownError(f"The replica has ended: {error}"))
        self._sent.clear()
