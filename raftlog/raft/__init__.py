"""The metadata quorum keeps one log of commands that all its members agree on.

Purpose: order command bytes by Raft, make them durable on a majority of the voters, and only then
apply them, in order, to each member's state machine. pysyncobj is inside, with its unsafe parts
replaced (DESIGN.md). Only kernel.py knows of pysyncobj.

Rules: nothing leaves a member, is applied or is acknowledged before the log it rests on is durable.
Every proposal ends as `Applied`, `Refused` (it never happened and never will) or `Unknown`. A
failed sync, a damaged journal or an exception in the state machine stops the member for good.
Nothing is retried, skipped or repaired by guessing.

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
