"""The state of a transactional producer: what is allowed, what an error means. Pure.

| state | the producer may | leaves it by |
|---|---|---|
| IDLE | begin | begin → OPEN |
| OPEN | write, prepare, commit, abort | failed write → BROKEN; prepare → PREPARED; end → IDLE |
| BROKEN | abort only | abort → IDLE |
| PREPARED | commit, abort; another process, too | end → IDLE |
| COMMITTING | commit again: the outcome of the commit is unknown | its answer → IDLE |
| FENCED | nothing | never |

Every end gives the next epoch, so a late batch of an ended transaction is refused (KIP-890).

PRODUCER_FENCED has two causes: another producer has taken over, or the coordinator has aborted a
transaction that lasted too long. An abort tells them apart: for the second it succeeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Final

from raftlog.record.errors import (
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    PRODUCER_FENCED,
)
from raftlog_client.errors import (
    ConnectionLostError,
    FencedError,
    IllegalStateError,
    RaftlogClientError,
    ServerError,
    TransactionAbortableError,
)
from raftlog_client.produce.batches import ProducerIdentity

FENCING_ENTRIES: Final = frozenset(
    {PRODUCER_FENCED, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING}
)
"""Refusals of a producer that another one of the same id has replaced."""


class State(Enum):
    """See the table above."""

    IDLE = auto()
    OPEN = auto()
    BROKEN = auto()
    PREPARED = auto()
    COMMITTING = auto()
    FENCED = auto()


class EndError(Enum):
    """Meaning of an error of a commit, abort or prepare."""

    RETRY = auto()
    FENCED = auto()
    """Not this producer's transaction (any more)."""
    REFUSED = auto()
    """Not done, and no repeat helps."""


class TransactionState:
    """The state of one transactional producer."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.state = State.IDLE
        self.identity: ProducerIdentity | None = None
        """Of the next, or the open, transaction."""
        self.error: RaftlogClientError | None = None
        """The first failure of the open transaction."""
        self.has_begun = False
        """Whether a write of the open transaction may have reached the cluster."""
        self.is_ending = False
        """Whether a commit, abort or prepare is under way: no more writes."""
        self._writers = 0
        self._fenced: FencedError | None = None

    def started(self, identity: ProducerIdentity, *, is_prepared: bool) -> None:
        """The coordinator made this the one producer of its transactional id."""
        self.identity = identity
        self.state = State.PREPARED if is_prepared else State.IDLE
        self.has_begun = is_prepared

    def begin(self) -> None:
        """Begin a transaction. Raises IllegalStateError, FencedError."""
        self._check_fenced()
        if self.state is not State.IDLE:
            raise self._illegal("begin")
        self.state = State.OPEN
        self.error = None
        self.has_begun = False

    def check_write(self) -> None:
        """Raise unless records may be sent: IllegalStateError, FencedError, or
        TransactionAbortableError after a failure."""
        self._check_fenced()
        if self.state is State.BROKEN:
            raise self.abortable()
        if self.state is not State.OPEN or self.is_ending:
            raise self._illegal("write")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Many writes, one after the other: no commit meanwhile."""
        self._writers += 1
        try:
            yield
        finally:
            self._writers -= 1

    def check_quiet(self) -> None:
        """Raise IllegalStateError while some task still writes."""
        if self._writers and self.state is State.OPEN:
            raise IllegalStateError(
                "Cannot end the transaction: a send_many of it is under way; await it first."
            )

    def fail(self, error: RaftlogClientError) -> bool:
        """A write failed: the transaction can only be aborted. Whether this is news."""
        if self.state is not State.OPEN:
            return False
        self.state = State.BROKEN
        self.error = error
        return True

    def begin_commit(self) -> None:
        """A commit is about to be sent; from now on only `ended` or `known_open` end its doubt.

        Raises IllegalStateError, FencedError, TransactionAbortableError.
        """
        self._check_fenced()
        if self.state is State.BROKEN:
            raise self.abortable()
        if self.state not in {State.OPEN, State.PREPARED, State.COMMITTING}:
            raise self._illegal("commit")

    def outcome_unknown(self) -> None:
        """A commit may have been decided."""
        self.state = State.COMMITTING

    def check_abort(self) -> None:
        """Raise unless the transaction may be aborted: IllegalStateError, FencedError."""
        self._check_fenced()
        if self.state not in {State.OPEN, State.BROKEN, State.PREPARED}:
            raise self._illegal("abort")

    def broken(self, error: RaftlogClientError) -> None:
        """The coordinator does not commit: the transaction is to be aborted."""
        self.state = State.BROKEN
        self.error = error

    def prepared(self) -> None:
        """The first phase is done."""
        self.state = State.PREPARED

    def ended(self, identity: ProducerIdentity) -> None:
        """Committed or aborted; the next transaction has this identity."""
        self.identity = identity
        self.state = State.IDLE
        self.error = None
        self.has_begun = False

    def fence(self, cause: RaftlogClientError, *, outcome_unknown: bool) -> FencedError:
        """The producer is fenced for good; returns the error to raise."""
        doubt = " The outcome of its last commit is unknown." if outcome_unknown else ""
        error = FencedError(
            f"Another producer with transactional id {self.transactional_id!r} has taken over: "
            f"close this one.{doubt} ({cause})",
            outcome_unknown=outcome_unknown,
        )
        error.__cause__ = cause
        self.state = State.FENCED
        self._fenced = error
        return error

    def abortable(self) -> TransactionAbortableError:
        """The error for a transaction that cannot be committed."""
        error = TransactionAbortableError(
            "The transaction cannot be committed, and is to be aborted: "
            f"{self.error}. Read its input again (Consumer.seek_to_committed) for the next one."
        )
        error.__cause__ = self.error
        return error

    def _check_fenced(self) -> None:
        if self._fenced is not None:
            raise self._fenced

    def _illegal(self, verb: str) -> IllegalStateError:
        match self.state:
            case State.IDLE:
                advice = "no transaction is open: `async with producer.transaction():` begins one"
            case State.COMMITTING:
                advice = "the outcome of the last commit is unknown: call commit() again"
            case State.PREPARED:
                advice = "a prepared transaction waits: commit or abort it (prepared_transaction())"
            case _ if self.is_ending:
                advice = "the transaction is being ended"
            case _:
                advice = "a transaction is open: one at a time"
        return IllegalStateError(f"Cannot {verb}: {advice}.")


def judge_end(error: RaftlogClientError) -> EndError:
    """What to do about an error of a commit, abort or prepare."""
    if isinstance(error, ServerError):
        if error.entry in FENCING_ENTRIES:
            return EndError.FENCED
        return EndError.RETRY if error.retriable else EndError.REFUSED
    return EndError.RETRY if isinstance(error, ConnectionLostError) else EndError.REFUSED


def is_not_open(error: RaftlogClientError) -> bool:
    """Whether the coordinator has no such open transaction."""
    return isinstance(error, ServerError) and error.entry is INVALID_TXN_STATE
