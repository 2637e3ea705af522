"""The metadata quorum: one log of commands that all its members agree on.

Purpose: order command bytes by Raft, make them durable on a majority of the voters, and only then
apply them, in order, to each member's state machine. pysyncobj inside, with its unsafe parts
replaced (DESIGN.md); only kernel.py knows of it.

Rules: nothing leaves a member, is applied or answered before the log it rests on is durable. Every
proposal ends as one of three: `Applied`, `Refused` (it never happened and never will), `Unknown`. A
failed sync, a damaged journal or an exception in the state machine stops the member for good;
nothing is retried, skipped or repaired by guessing.

Must not know: the meaning of a command. Imports nothing of raftlog but record.errors and world.
"""

from raftlog.raft.interface import (
    Applied,
    ConnectionEvent,
    MemberIdentity,
    MemberSettings,
    Outcome,
    PeerStatus,
    QuorumStatus,
    Refused,
    Role,
    StateMachine,
    SyncTimes,
    Unknown,
)
from raftlog.raft.member import RaftMember

__all__ = [
    "Applied",
    "ConnectionEvent",
    "MemberIdentity",
    "MemberSettings",
    "Outcome",
    "PeerStatus",
    "QuorumStatus",
    "RaftMember",
    "Refused",
    "Role",
    "StateMachine",
    "SyncTimes",
    "Unknown",
]
