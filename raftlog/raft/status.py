"""The state of a member and of its peers, for operators and metrics."""

from __future__ import annotations

from raftlog.raft.core import RaftCore
from raftlog.raft.interface import PeerStatus, QuorumStatus, Role, SyncTimes
from raftlog.raft.log.store import QuorumStore
from raftlog.raft.peers.keep_alive import KeepAlive
from raftlog.raft.peers.peers import Peers


def peer_statuses(core: RaftCore, peers: Peers, keep_alive: KeepAlive) -> dict[int, PeerStatus]:
    """The connected members, by node id."""
    voters = core.log.voters.ids
    return {
        node_id: PeerStatus(
            node_id=node_id,
            address=hello.address,
            is_voter=node_id in voters,
            match_index=core.match_index(node_id),
            last_heard_s=keep_alive.heard_ago_s(node_id),
            confirmed_age_s=core.confirmed_age_s(node_id),
        )
        for node_id, hello in sorted(peers.connected.items())
    }


def member_status(
    core: RaftCore,
    store: QuorumStore,
    *,
    leader_id: int | None,
    is_active: bool,
    syncs: SyncTimes,
    failure: str | None,
) -> QuorumStatus:
    """The present state of a member. The member provides `leader_id` and `is_active`."""
    snapshot = store.snapshot
    return QuorumStatus(
        role=_role(core),
        leader_id=leader_id,
        is_active=is_active,
        term=core.term,
        last_index=core.log.last_index,
        commit_index=max(core.applied_index, min(core.commit_index, core.log.durable_index)),
        applied_index=core.applied_index,
        snapshot_index=0 if snapshot is None else snapshot.index,
        journal_bytes=store.journal_bytes,
        elections=core.elections,
        syncs=syncs,
        failure=failure,
    )


def _role(core: RaftCore) -> Role:
    if not core.is_voter:
        return Role.OBSERVER
    if core.is_leader:
        return Role.LEADER
    return Role.FOLLOWER if core.leader_id is not None else Role.CANDIDATE
