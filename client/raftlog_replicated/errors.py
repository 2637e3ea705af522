"""Failures of a replicated state, by type. The type states whether the command happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raftlog_replicated.types import Position, Term


class ReplicatedError(Exception):
    """Base of the package's errors."""


class NotPrimaryError(ReplicatedError):
    """This replica is not the primary, and the command did not happen. Try `endpoint`."""

    def __init__(self, endpoint: str | None, term: Term) -> None:
        where = endpoint or "not known yet"
        super().__init__(f"This replica is not the primary; the primary of term {term} is {where}.")
        self.endpoint = endpoint
        """HOST:PORT of the newest primary known here. None if none or this replica."""
        self.term = term


class OutcomeUnknownError(ReplicatedError):
    """The command may or may not happen. With a `request_id`, a repeat is safe."""


class BehindError(ReplicatedError):
    """This replica did not apply enough of the log for the read in time."""

    def __init__(self, position: Position, wanted: Position | None) -> None:
        goal = "the end of the log" if wanted is None else f"position {wanted}"
        super().__init__(f"This replica is at position {position}, and has to reach {goal}.")
        self.position = position
        self.wanted = wanted
        """None: the end of the log is not known either."""


class OverloadedError(ReplicatedError):
    """Too many commands or bytes wait for the log. The command did not happen."""


class TooManyRequestsError(ReplicatedError):
    """The state keeps as many results of requests as allowed. The command did not happen."""


class ReplicaEndedError(ReplicatedError):
    """The replica has ended, and serves nothing. `__cause__` is its cause."""


class UnknownEntryError(ReplicatedError):
    """An entry, or a command, of an unknown version. Nothing is skipped."""


class ApplyError(ReplicatedError):
    """The state machine raised an exception in `apply`. The state may be half changed."""


class DivergedError(ReplicatedError):
    """The state differs from the primary's at the same position. No caller is served."""


class SnapshotError(ReplicatedError):
    """A snapshot is torn or damaged."""


class LayoutError(ReplicatedError):
    """A topic of the state's name was made for something else, or for another layout."""
