"""Pings with the newest voter set, and finding the cluster again after a long absence.

The channel's keep-alive pings on every connection. Each ping carries the sender's newest voter set.
Otherwise a member that has missed changes of the voters would dial voters that are long gone, while
the new voters do not know the member.
"""

from __future__ import annotations

from typing import Final

from raftlog.raft.core import RaftCore
from raftlog.raft.messages import Ping
from raftlog.raft.peers.peers import Peers
from raftlog.raft.voters import NO_VOTERS, decode_voters, encode_voters
from raftlog.record.errors import LogError
from raftlog.world import Clock

LOOK_S: Final = 1.0
"""Interval of `run`."""
ISOLATED_S: Final = 2.0
"""A voter without a leader for so long dials all other voters itself."""


class KeepAlive:
    """Pings of one member, and the voters that it dials."""

    def __init__(self, core: RaftCore, peers: Peers, clock: Clock) -> None:
        self._core = core
        self._peers = peers
        self._clock = clock
        self._heard_at: dict[int, float] = {}
        self._due_at = 0.0
        self._is_isolated = False
        self._heard = NO_VOTERS
        self._turn = 0
        self._committed: tuple[int, frozenset[int]] = (0, frozenset())
        """Index and voters of the newest committed voter set seen by `forget_dropped_voters`."""

    def heard(self, node_id: int) -> None:
        """Note a message from a peer."""
        self._heard_at[node_id] = self._clock.monotonic()

    def lost(self, node_id: int) -> None:
        """Forget a peer after the end of its connection."""
        self._heard_at.pop(node_id, None)

    def heard_ago_s(self, node_id: int) -> float:
        """Seconds since the last message of a connected peer."""
        now = self._clock.monotonic()
        return now - self._heard_at.get(node_id, now)

    def learn_voters(self, node_id: int, ping: Ping) -> None:
        """Keep a peer's voter set while this member is isolated by its own set."""
        try:
            voters = decode_voters(ping.voters)
        except LogError as error:
            # The peer made the mistake, so there is no reason to distrust this member's log.
            self._peers.disconnect(node_id, error.message)
            return
        if self._is_isolated and ping.voters_index != self._core.log.voters_index:
            self._heard = voters

    def is_due(self) -> bool:
        """Whether `run` is due."""
        return self._clock.monotonic() >= self._due_at

    def run(self) -> None:
        """Dial other voters than usual while isolated, or while the leader lacks voters."""
        self._due_at = self._clock.monotonic() + LOOK_S
        is_isolated = self._core.is_isolated(ISOLATED_S) or self._lacks_voters()
        if is_isolated or self._is_isolated:
            self._is_isolated = is_isolated
            self._turn += 1
            self.retarget()
        if not is_isolated:
            self._heard = NO_VOTERS

    def ping(self) -> Ping:
        """This member's sign of life."""
        log = self._core.log
        return Ping(self._core.term, log.voters_index, encode_voters(log.voters))

    def _lacks_voters(self) -> bool:
        """Whether this member leads and some voter is not connected.

        The voter may not know to dial. By the newest set in its log, of an entry that is about to
        be replaced, this member may not be a voter.
        """
        core = self._core
        return core.is_leader and any(
            node_id != core.me and not core.is_connected(node_id) for node_id in core.log.voters.ids
        )

    def forget_dropped_voters(self) -> None:
        """Let voters dropped by a committed set come back with another data directory."""
        log = self._core.log
        index, known = self._committed
        if log.voters_index == index or log.voters_index > self._core.commit_index:
            return
        self._committed = (log.voters_index, log.voters.ids)
        for node_id in sorted(known - log.voters.ids):
            self._peers.forget(node_id)

    def retarget(self) -> None:
        """Dial the voters that a member with this role dials.

        Voters wait for the calls of voters with higher ids. A voter that was removed while it was
        away would wait for ever, since no voter dials it any more, and no message has reached it. A
        leader does not wait for missing voters either.
        """
        log = self._core.log
        waits = self._core.is_voter and not self._is_isolated
        # A member without a leader cannot know which of two sets is out of date. Even its newer set
        # may never be committed. So both sets have turns.
        tries_heard = self._is_isolated and self._heard.voters and self._turn % 2
        self._peers.retarget(waits, self._heard if tries_heard else log.voters)
