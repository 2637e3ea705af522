"""What a quorum offers, and what it asks of the state machine it drives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Generic, Protocol, TypeAlias, TypeVar

from raftlog.raft.messages import CHUNK_BYTES_MAX, COMMAND_BYTES_MAX
from raftlog.raft.rules import Timing
from raftlog.raft.voters import VoterSet
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


class Role(StrEnum):
    """What a member is at the moment. An observer has no vote, whatever else it does."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    OBSERVER = "observer"


@dataclass(frozen=True, slots=True)
class SyncTimes:
    """How long the journal's syncs took since the member was opened."""

    count: int = 0
    seconds_sum: float = 0.0
    seconds_max: float = 0.0


@dataclass(frozen=True, slots=True)
class QuorumStatus:
    """A member's view of the quorum. `failure` is None unless the member has stopped for good."""

    role: Role
    leader_id: int | None
    """Whom it takes for the leader; None if it knows of none."""
    is_active: bool
    """Whether it acts for the cluster itself: see `Quorum.is_active`."""
    term: int
    last_index: int
    commit_index: int
    """Newest index known here to be committed; never below `applied_index`."""
    applied_index: int
    snapshot_index: int
    journal_bytes: int
    elections: int
    """Elections that this member has begun since it was opened."""
    syncs: SyncTimes
    failure: str | None


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """Another member that is connected to this one."""

    node_id: int
    address: str
    """Where it listens, `host:port`, as it says itself."""
    is_voter: bool
    match_index: int | None
    """Newest index known to be durable there; only a leader knows it of others."""
    last_heard_s: float
    """Seconds since anything came from it, whenever it was sent."""
    confirmed_age_s: float
    """For how long, at most, it can have followed another leader than this member: seconds since
    the newest append left that it has answered. inf if it has answered none."""


class ConnectionEvent(Enum):
    """What has become of the connection to another member."""

    UP = auto()
    DOWN = auto()
    """It has ended; why is not known (yet)."""
    REFUSED = auto()
    """It has ended and nobody listens at its address: the process is dead. May follow DOWN."""


class StateMachine(Protocol[R_co]):
    """What the commands are for. Called from the event loop, never concurrently, unless said."""

    def apply(self, index: int, command: bytes) -> R_co:
        """Carry out a committed command. Must be deterministic; an exception ends the quorum."""
        ...

    def snapshot(self) -> Callable[[], Iterator[bytes]]:
        """Capture the present state, in a few milliseconds; later commands must not change it.

        What is returned turns it into pieces of up to 1 MiB, on any thread, and must not keep the
        interpreter from others for more than about 2 ms at a time.
        """
        ...

    def restore(self, index: int, pieces: Iterable[bytes]) -> Callable[[], None]:
        """Prepare to become the state that a snapshot of all commands up to `index` holds.

        Called on any thread, while nothing is applied. What is returned is called on the event
        loop, and is quick: it takes the new state and tells who listens.
        """
        ...


class Quorum(Protocol[R]):
    """One member of the quorum, seen from its own node."""

    @property
    def applied_index(self) -> int:
        """Index of the newest applied command; 0 if there is none."""
        ...

    @property
    def leader_id(self) -> int | None:
        """Whom this member takes for the leader; None if it knows of none. May be out of date."""
        ...

    @property
    def term(self) -> int:
        """Raft's term, as far as this member knows. Never falls."""
        ...

    @property
    def is_active(self) -> bool:
        """Whether this member leads, knows all that was ever committed, and is not cut off.

        That is: it has applied an entry of its own term, and heard a majority within the fallback
        timeout. Only then does its node act as the controller; another member may, all the same,
        have become active already, so commands name the epochs that they were decided on.
        """
        ...

    @property
    def voters(self) -> VoterSet:
        """The voters by the newest voter set in this member's log, committed or not."""
        ...

    def peers(self) -> dict[int, PeerStatus]:
        """The members connected to this one, by node id; never itself."""
        ...

    def send(self, node_id: int, message: bytes) -> bool:
        """Send a control message (at most 1 MiB) to a connected member. Never blocks.

        False if it is not connected. True promises nothing: the message is lost with its
        connection.
        """
        ...

    async def propose(self, command: bytes) -> Outcome[R]:
        """Put a command into the log and wait until it is applied here.

        Cancelling the wait does not withdraw the command: its outcome is then unknown.
        """
        ...

    async def read_barrier(self) -> int:
        """Wait until everything is applied that anyone was told of before this call.

        Writes nothing, and needs no room on any disk: a round of heartbeats, shared by all who ask.
        Returns the applied index. Raises LogError if this member cannot know any more.
        """
        ...

    def status(self) -> QuorumStatus:
        """The member's present state."""
        ...

    async def add_voter(self, node_id: int) -> None:
        """Give a connected observer a vote; returns once that is committed.

        Any member forwards it to the leader. Raises LogError: ILLEGAL_STATE (it has a vote, is not
        connected, does not catch up, or another change is under way), NO_CONTROLLER (there is no
        leader; nothing was done), RETRIABLE (it may have happened: look).
        """
        ...

    async def remove_voter(self, node_id: int) -> None:
        """Take a voter's vote; it goes on as an observer. Raises as `add_voter` does."""
        ...

    async def transfer_leadership(self, node_id: int | None) -> None:
        """Let another voter lead: this one, or, without a number, the one that is furthest.

        Returns once it leads; at once if it does so already. Raises as `add_voter` does.
        """
        ...

    def on_role_changed(self, callback: Callable[[], None]) -> None:
        """Call back, from the event loop, when leader, term or `is_active` have changed."""
        ...

    def on_message(self, handler: Callable[[int, bytes], None]) -> None:
        """Give `handler` the control messages of others, each with its sender's id."""
        ...

    def on_connection(self, handler: Callable[[int, ConnectionEvent], None]) -> None:
        """Tell `handler` of connections to other members that begin and end."""
        ...

    def on_failed(self, callback: Callable[[str], None]) -> None:
        """Have `callback` told the reason, once, when this member stops for good."""
        ...

    async def close(self) -> None:
        """Finish what was proposed, refuse the rest, release the disk."""
        ...


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """Who a member is to the others."""

    node_id: int
    directory_id: str
    """Identity of the data directory: another one under the same node id is another node."""
    software_version: str
    bootstrap_id: str | None = None
    """Digest of the voters it was told to begin a cluster with; None if it was told none."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Bounds and times of a quorum member. The defaults are right for all but tests."""

    timing: Timing = field(default_factory=Timing)
    command_bytes_max: int = COMMAND_BYTES_MAX
    uncommitted_entries_max: int = 10_000
    """Entries a leader has in its log beyond the commit index; more are refused."""
    proposal_s: float = 10.0
    """How long a proposal is waited for."""
    snapshot_entries: int = 10_000
    """Entries after which a snapshot is taken."""
    snapshot_bytes: int = 16 * 1024 * 1024
    """Growth of the journal after which a snapshot is taken."""
    entries_kept: int = 1_000
    """Entries kept behind a snapshot, for members that lag a little."""
    journal_bytes_max: int = 256 * 1024 * 1024
    """The journal, if snapshots fail for lack of room; proposals are refused above it."""
    chunk_bytes: int = CHUNK_BYTES_MAX
    """Of a snapshot on its way to another member."""
    disk_reserve_bytes: int = 1024 * 1024
    """With less room than this, a leader refuses proposals: every entry must find room."""
