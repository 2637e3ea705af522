"""What a quorum offers, and what it asks of the state machine it drives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from raftlog.record.errors import ErrorEntry

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Applied(Generic[R]):
    """The command is durable and was applied at `index`; `result` is what applying it returned."""

    index: int
    result: R


@dataclass(frozen=True, slots=True)
class Refused:
    """The command was not written and will never be applied. Proposing it again is safe."""

    entry: ErrorEntry
    message: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The command may have been applied, or be applied later. Only a harmless repeat is safe."""

    message: str


Outcome: TypeAlias = Applied[R] | Refused | Unknown


@dataclass(frozen=True, slots=True)
class QuorumStatus:
    """A member's view of the quorum. `failure` is None unless the member has stopped for good."""

    term: int
    last_index: int
    applied_index: int
    snapshot_index: int
    journal_bytes: int
    failure: str | None


class StateMachine(Protocol[R_co]):
    """What the commands are for. Called from the event loop only, never concurrently."""

    def apply(self, index: int, command: bytes) -> R_co:
        """Carry out a committed command. Must be deterministic; an exception ends the quorum."""
        ...

    def snapshot(self) -> Callable[[], bytes]:
        """Capture the present state, quickly; return what turns it into bytes, on any thread.

        Later commands must not change what was captured.
        """
        ...

    def restore(self, index: int, snapshot: bytes) -> None:
        """Become the state that a snapshot of all commands up to `index` holds."""
        ...


class Quorum(Protocol[R]):
    """One member of the quorum, seen from its own node."""

    @property
    def applied_index(self) -> int:
        """Index of the newest applied command; 0 if there is none."""
        ...

    async def propose(self, command: bytes) -> Outcome[R]:
        """Put a command into the log and wait until it is applied here.

        Cancelling the wait does not withdraw the command: its outcome is then unknown.
        """
        ...

    async def read_barrier(self) -> int:
        """Wait until everything is applied that anyone was told of before this call.

        Returns the applied index. Raises LogError if this member cannot know any more.
        """
        ...

    def status(self) -> QuorumStatus:
        """The member's present state."""
        ...

    def on_failed(self, callback: Callable[[str], None]) -> None:
        """Have `callback` told the reason, once, when this member stops for good."""
        ...

    async def close(self) -> None:
        """Finish what was proposed, refuse the rest, release the disk."""
        ...
