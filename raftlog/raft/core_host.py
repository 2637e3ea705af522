"""What surrounds a core: its times, its owner, and the place of pysyncobj's transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

from raftlog.raft.messages import Message


@dataclass(frozen=True, slots=True)
class Timing:
    """When members lose patience. A message takes far less than `heartbeat_s`."""

    election_min_s: float = 0.3
    """Without a word from a leader for this long, at least, a voter asks for an election."""
    election_max_s: float = 0.6
    heartbeat_s: float = 0.08
    """From a leader to each other member, if there is nothing else to say."""
    fallback_s: float = 0.6
    """A leader that has not heard a majority for this long steps down."""
    tick_s: float = 0.05
    """How often a member looks at the time. What happens is acted on at once."""

    def patience_s(self, before: int, others: int, chance: float) -> float:
        """Without a word for so long, a voter asks for an election.

        Those who could succeed a leader, `others` in number, each have a part of the range between
        the two election times, in the order of their ids (`before`: those of lower ones), and draw
        (`chance`: 0 to 1) from the first half of it: two that begin together split the votes, and
        lose a whole election time.
        """
        step_s = (self.election_max_s - self.election_min_s) / max(others, 1)
        return self.election_min_s + step_s * (before + chance / 2)


AFTER_DEATH_STEP_S: Final = 0.08
AFTER_DEATH_STEPS_MAX: Final = 3


def after_death_s(before: int) -> float:
    """How long a voter waits that learns of its leader's death, as do all others, at this moment.

    Each gives those of lower ids (`before` in number) a start. An election takes some milliseconds,
    and the time is looked at once in a tick.
    """
    return min(before, AFTER_DEATH_STEPS_MAX) * AFTER_DEATH_STEP_S


class UnknownEntryError(Exception):
    """The log holds an entry of a kind that this version does not know: the node must stop."""


class CoreHost(Protocol):
    """What a core asks of its owner. None of it may call back into the core."""

    def send_message(self, peer: int, message: Message) -> None:
        """Send once everything in the log is durable; drop it if the connection ends before."""
        ...

    def apply(self, index: int, term: int, command: bytes) -> None:
        """Apply a committed entry: the kind's byte, then the command."""
        ...

    def snapshot_wanted(self, peer: int) -> None:
        """The peer's next entry is only in the snapshot. Told at each heartbeat until it is not."""
        ...


class _Speaker(Protocol):
    def say(self, peer: int, message: dict[str, Any]) -> None: ...


class Outlet:
    """In place of pysyncobj's transport: what SyncObj says goes out by the core."""

    ready = True

    def __init__(self, speaker: _Speaker) -> None:
        self._speaker = speaker

    def _hook(self, *_arguments: Any) -> None:
        """Calls back into SyncObj are made by the core, which knows its methods."""

    setOnNodeConnectedCallback = setOnNodeDisconnectedCallback = _hook  # noqa: N815
    setOnReadonlyNodeConnectedCallback = setOnReadonlyNodeDisconnectedCallback = _hook  # noqa: N815
    setOnMessageReceivedCallback = setOnUtilityMessageCallback = _hook  # noqa: N815

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        """Called by SyncObj for votes and answers to appends; all else is sent by the core."""
        self._speaker.say(node.id, message)
        return True
