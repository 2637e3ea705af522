"""The metadata quorum: one log of commands that all its members agree on.

Purpose: take command bytes, order them, make them durable, and only then apply them, in order, to
a state machine. Today one voter, on its own disk (`LocalQuorum`); its successor is Raft behind the
same `Quorum` interface.

Rules: nothing is applied or answered before it is durable. Every proposal ends as one of three:
`Applied`, `Refused` (it never happened and never will), `Unknown`. A failed sync, a damaged journal
or an exception in the state machine stops the quorum for good; nothing is retried, skipped or
repaired by guessing.

Must not know: what a command means. Imports nothing of raftlog but record.errors and world.
"""

from raftlog.quorum.interface import (
    Applied,
    Outcome,
    Quorum,
    QuorumStatus,
    Refused,
    StateMachine,
    Unknown,
)
from raftlog.quorum.local import LocalQuorum, LocalQuorumLimits

__all__ = [
    "Applied",
    "LocalQuorum",
    "LocalQuorumLimits",
    "Outcome",
    "Quorum",
    "QuorumStatus",
    "Refused",
    "StateMachine",
    "Unknown",
]
