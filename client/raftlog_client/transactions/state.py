"""The pure state of a transactional producer, with allowed calls and errors' meaning.

| state | the producer may | leaves it by |
|---|---|---|
| IDLE | begin | begin → OPEN |
| OPEN | write, prepare, commit, abort | failed write → BROKEN, prepare → PREPARED, end → IDLE |
| BROKEN | abort only | abort → IDLE |
| PREPARED | commit, abort, also by another process | end → IDLE |
| COMMITTING | commit again, as the outcome of the commit is unknown | its response → IDLE |
| FENCED | nothing | never |

Every end gives the next epoch, so a late batch of an ended transaction is rejected (KIP-890).

PRODUCER_FENCED has two causes. Another producer has taken over, or the coordinator has aborted a
transaction that lasted too long. An abort distinguishes them, because it succeeds in the second
case.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Final

from raftlog.record import errors
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
    {errors.PRODUCER_FENCED, errors.INVALID_PRODUCER_EPOCH, errors.INVALID_PRODUCER_ID_MAPPING}
)
"""Refusals of a producer that another producer of the same id has replaced."""


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
        """Identity for the next or the open transaction."""
        self.error: RaftlogClientError | None = None
        """The first failure of the open transaction."""
        self.has_begun = False
        """Whether a write of the open transaction may have reached the cluster."""
        self.is_ending = False
        """Whether a commit, abort or prepare is under way and excludes writes."""
        self._writers = 0
        self._fenced: FencedError | None = None

    def started(self, identity: ProducerIdentity, *, is_prepared: bool) -> None:
        """Note that the coordinator made this the only producer of its transactional id."""
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
        """Raise unless records may be sent.

        Raises IllegalStateError, FencedError, or TransactionAbortableError after a failure.
        """
        self._check_fenced()
        if self.state is State.BROKEN:
            raise self.abortable()
        if self.state is not State.OPEN or self.is_ending:
            raise self._illegal("write")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Group consecutive writes, which exclude a commit."""
        self._writers += 1
        try:
            yield
        finally:
            self._writers -= 1

    def check_quiet(self) -> None:
        """Raise IllegalStateError while a task still writes."""
        if self._writers and self.state is State.OPEN:
            raise IllegalStateError(
                "Cannot end the transaction: a send_many of it is under way; await it first."
            )

    def fail(self, error: RaftlogClientError) -> bool:
        """Note a failed write, after which only an abort is possible. Returns whether it is new."""
        if self.state is not State.OPEN:
            return False
        self.state = State.BROKEN
        self.error = error
        return True

    def begin_commit(self) -> None:
        """Note that a commit is about to be sent. Only `ended` or `known_open` resolve its outcome.

        Raises IllegalStateError, FencedError, TransactionAbortableError.
        """
        self._check_fenced()
        if self.state is State.BROKEN:
            raise self.abortable()
        if self.state not in {State.OPEN, State.PREPARED, State.COMMITTING}:
            raise self._illegal("commit")

    def outcome_unknown(self) -> None:
        """Note that a commit may have been decided."""
        self.state = State.COMMITTING

    def check_abort(self) -> None:
        """Raise IllegalStateError or FencedError unless the transaction may be aborted."""
        self._check_fenced()
        if self.state not in {State.OPEN, State.BROKEN, State.PREPARED}:
            raise self._illegal("abort")

    def broken(self, error: RaftlogClientError) -> None:
        """Note that the coordinator does not commit, so the transaction must be aborted."""
        self.state = State.BROKEN
        self.error = error

    def prepared(self) -> None:
        """Note that the first phase is done."""
        self.state = State.PREPARED

    def ended(self, identity: ProducerIdentity) -> None:
        """Note a commit or abort. The next transaction has this identity."""
        self.identity = identity
        self.state = State.IDLE
        self.error = None
        self.has_begun = False

    def fence(self, cause: RaftlogClientError, *, outcome_unknown: bool) -> FencedError:
        """Fence the producer permanently. Returns the error to raise."""
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
        """Return the error for a transaction that cannot be committed."""
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
    """Classify an error of a commit, abort or prepare."""
    if isinstance(error, ServerError):
        if error.entry in FENCING_ENTRIES:
            return EndError.FENCED
        return EndError.RETRY if error.retriable else EndError.REFUSED
    return EndError.RETRY if isinstance(error, ConnectionLostError) else EndError.REFUSED


def is_not_open(error: RaftlogClientError) -> bool:
    """Return whether the coordinator has no such open transaction."""
    return isinstance(error, ServerError) and error.entry is errors.INVALID_TXN_STATE
