"""The values of a replicated state, and the interfaces for services. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

Position: TypeAlias = int
"""Count of the entries in a state, which is the number of the next entry."""
Term: TypeAlias = int
"""Count of primaries. Each has a larger term than all before."""

Command = TypeVar("Command")
Result = TypeVar("Result")
Command_contra = TypeVar("Command_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)


class At(NamedTuple):
    """Where a command stands. All replicas see the same."""

    position: Position
    """Position of its entry."""
    number: int
    """Number in its entry."""
    term: Term
    timestamp_ms: int
    """Time of the log, in milliseconds since the Unix epoch. Never goes back."""


class StateMachine(Protocol[Command_contra, Result_co]):
    """A service's state. Equal commands in equal order make equal states (Schneider, 1990). A
    machine may also have `digest() -> bytes`. Equal states have equal digests."""

    def apply(self, command: Command_contra, at: At) -> Result_co:
        """Change the state, deterministically. No clock, no randomness, no I/O, no order of a set.
        A refusal is a result. An exception ends the replica, as the state may be half changed."""

    def snapshot(self) -> Iterator[bytes]:
        """The state at the moment of the call, in chunks of up to 512 KiB. Each chunk is made in at
        most 20 ms. `apply` is called in between."""

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Replace the state by a snapshot's, or by the empty state without chunks."""


@runtime_checkable
class Digesting(Protocol):
    """A state machine with digests, by which its replicas compare their states."""

    def digest(self) -> bytes:
        """Equal states, equal digests."""


class Codec(Protocol[Command, Result]):
    """Commands and results as bytes. `raftlog_replicated.codec.StructCodec` is one."""

    def encode_command(self, command: Command) -> bytes:
        """Encode a command for the log."""

    def decode_command(self, data: bytes) -> Command:
        """Raises UnknownEntryError for a command of an unknown version."""

    def encode_result(self, result: Result) -> bytes:
        """Encode a result for a snapshot. Results of requests are part of the state."""

    def decode_result(self, data: bytes) -> Result:
        """Raises UnknownEntryError."""


class Role(Enum):
    """The work of a replica."""

    CATCHING_UP = "catching up"
    """Has not reached the end of the log at its start. Serves no reads."""
    REPLICA = "replica"
    PRIMARY = "primary"
    QUARANTINED = "quarantined"
    """Its state differs from the primary's. Nothing is served until the state is built again."""


class RoleChange(NamedTuple):
    """A replica's new role, in the newest known term."""

    role: Role
    term: Term


class Token(NamedTuple):
    """A place that a client has seen, as text for an HTTP header."""

    term: Term
    position: Position

    def __str__(self) -> str:
        return f"{self.term}-{self.position}"

    @classmethod
    def parse(cls, text: str) -> Token:
        """Raises ValueError."""
        term, dash, position = text.partition("-")
        digits = term + position
        if not (dash and term and position and digits.isascii() and digits.isdigit()):
            raise ValueError(f"a token looks like 3-1041, not {text[:40]!r}")
        return cls(int(term), int(position))


@dataclass(frozen=True, slots=True)
class Applied(Generic[Result]):
    """A command that happened, for good."""

    result: Result
    token: Token
    """A session read with it sees the command."""


@dataclass(frozen=True, slots=True)
class Member:
    """A replica of the state, in the coordinator's view."""

    replica_id: str
    endpoint: str | None
    position: Position
    lag: int
    """Entries behind the furthest member."""
    is_primary: bool


@dataclass(frozen=True, slots=True)
class Read:
    """How new the state of a read is. See the constants and functions of this module."""

    kind: str
    token: Token | None = None
    lag_ms: float = 0.0


EVENTUAL = Read("eventual")
"""Whatever this replica has applied."""
LEASE = Read("lease")
"""Reads only on the primary, without a query to the log. Linearizable as long as clocks of both
sides run at rates that differ by less than a fifth."""
LINEARIZABLE = Read("linearizable")
"""Reads all that was acknowledged before the read began (Herlihy and Wing, 1990). Queries the log.
"""


def session(token: Token | str) -> Read:
    """Read at least the token's state, on any replica. Monotonic, and own writes are read. Raises
    ValueError for another text."""
    return Read("session", token if isinstance(token, Token) else Token.parse(token))


def within(lag_ms: float) -> Read:
    """All acknowledged more than `lag_ms` before the read. Raises ValueError below 0."""
    if not lag_ms >= 0:
        raise ValueError(f"lag_ms must be at least 0, not {lag_ms}")
    return Read("within", lag_ms=lag_ms)


class Host:
    """A process with replicas of several states. The coordinator spreads their primaries."""

    def __init__(self) -> None:
        self.primaries = 0
        """Count of states whose primary is a replica of this process."""
