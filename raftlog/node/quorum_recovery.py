"""Quorum recovery makes one survivor of a lost majority the only voter.

For the data directory of a stopped node. Without a majority no change is committed, not even the
removal of a dead voter. So this writes a voter set of only the survivor into its journal, in a new
term. At its next start the node leads, and commits every entry that it has.

Entries that the lost majority committed without this node are gone. So the survivor with the newest
log is to be taken. It has the greatest term of the last entry, then the greatest index (Raft,
section 5.4.1). The lost voters must never start again from their old directories, because together
they would be a second cluster of the same id.
"""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.node.directory import METADATA_DIRECTORY, IdentityError, last_address, load_state
from raftlog.node.settings import split_address
from raftlog.raft.log.journal import VoteRecord
from raftlog.raft.log.log import RaftLog, voters_command
from raftlog.raft.log.store import QuorumStore
from raftlog.raft.voters import NO_VOTERS, Voter, VoterSet
from raftlog.world import Disk


@dataclass(frozen=True, slots=True)
class Survivor:
    """The quorum as a stopped node's journal has it."""

    node_id: int
    voters: VoterSet
    """Voter set in force by the journal."""
    last_term: int
    """Term of the last entry."""
    last_index: int
    sole_voter: Voter
    """The node as the only voter, at its last address."""


def describe_survivor(disk: Disk) -> Survivor:
    """Read a stopped node's journal without changes that count. Blocks. Raises IdentityError,
    LogError, DiskError."""
    survivor, store, _ = _open(disk)
    store.close()
    return survivor


def make_sole_voter(disk: Disk) -> Survivor:
    """Make the node the only voter, durably. Blocks. Raises as `describe_survivor` does. Harmless
    to repeat."""
    survivor, store, term = _open(disk)
    try:
        if survivor.voters != VoterSet((survivor.sole_voter,)):
            entry = (
                voters_command(VoterSet((survivor.sole_voter,))),
                survivor.last_index + 1,
                term + 1,
            )
            store.write((VoteRecord(term + 1, survivor.node_id), entry))
    finally:
        store.close()
    return survivor


def _open(disk: Disk) -> tuple[Survivor, QuorumStore, int]:
    """The survivor, its open store, and the newest term that it knows."""
    state = load_state(disk)
    if state.identity is None or not state.has_journal:
        raise IdentityError("The directory holds no node that was in a cluster.")
    store = QuorumStore(disk, METADATA_DIRECTORY)
    loaded = store.load(NO_VOTERS)
    journal, node_id = loaded.journal, state.identity.node_id
    voters = RaftLog(loaded).voters
    own = voters.find(node_id)
    host, port = (own.host, own.port) if own else split_address(last_address(disk, state.identity))
    survivor = Survivor(
        node_id=node_id,
        voters=voters,
        last_term=journal.term_at(journal.last_index),
        last_index=journal.last_index,
        sole_voter=Voter(node_id, host, port, state.identity.directory_id),
    )
    return survivor, store, journal.term
