"""Keeping connections honest, and finding the cluster again after a long absence.

A connection that only the other side knows to have ended looks like a quiet one. So everybody says
something on every connection now and then, and ends those on which the other has fallen silent.

With each sign of life goes the sender's newest voter set: a member that has missed changes of the
voters would else call those that have long gone, while the new ones do not know of it.
"""

from __future__ import annotations

from typing import Final

from raftlog.raft.core import RaftCore
from raftlog.raft.messages import Ping
from raftlog.raft.peers import Peers
from raftlog.raft.voters import NO_VOTERS, decode_voters, encode_voters
from raftlog.record.errors import LogError
from raftlog.world import Clock

LOOK_S: Final = 1.0
"""Between looks for missing voters."""
LONELY_S: Final = 2.0
"""Without a leader for so long, a voter calls all others itself."""


class KeepAlive:
    """Looks after the connections of one member."""

    def __init__(self, core: RaftCore, peers: Peers, clock: Clock) -> None:
        self._core = core
        self._peers = peers
        self._clock = clock
        self._heard_at: dict[int, float] = {}
        self._due_at = 0.0
        self._is_lonely = False
        self._heard = NO_VOTERS
        self._turn = 0
        self._committed: tuple[int, frozenset[int]] = (0, frozenset())
        """The newest committed voter set that was looked at: its index, its voters."""

    def heard(self, node_id: int) -> None:
        """Something has come from a peer."""
        self._heard_at[node_id] = self._clock.monotonic()

    def lost(self, node_id: int) -> None:
        """The connection to a peer has ended."""
        self._heard_at.pop(node_id, None)

    def heard_ago_s(self, node_id: int) -> float:
        """Seconds since something came from a connected peer."""
        now = self._clock.monotonic()
        return now - self._heard_at.get(node_id, now)

    def heard_of(self, node_id: int, ping: Ping) -> None:
        """Remember whom a peer takes for the voters, if this member has no leader by its own."""
        try:
            voters = decode_voters(ping.voters)
        except LogError as error:
            # The peer's fault, which says nothing of this member's log.
            self._peers.disconnect(node_id, error.message)
            return
        if self._is_lonely and ping.voters_index != self._core.log.voters_index:
            self._heard = voters

    def is_due(self) -> bool:
        """Whether it is time for `run`."""
        return self._clock.monotonic() >= self._due_at

    def run(self) -> None:
        """Call other voters than usual while this member is isolated, or leads without some."""
        self._due_at = self._clock.monotonic() + LOOK_S
        is_isolated = self._core.is_isolated(LONELY_S) or self._lacks_voters()
        if is_isolated or self._is_lonely:
            self._is_lonely = is_isolated
            self._turn += 1
            self.retarget()
        if not is_isolated:
            self._heard = NO_VOTERS

    def ping(self) -> Ping:
        """This member's sign of life."""
        log = self._core.log
        return Ping(self._core.term, log.voters_index, encode_voters(log.voters))

    def _lacks_voters(self) -> bool:
        """Whether this member leads, and a voter that is to follow it is not connected.

        That one may not know that it should call: by the newest set in its log, of which the entry
        is about to be replaced, this member may be none of the voters.
        """
        core = self._core
        return core.is_leader and any(
            node_id != core.me and not core.is_connected(node_id) for node_id in core.log.voters.ids
        )

    def forget_dropped_voters(self) -> None:
        """A voter that a committed set drops may come back with another data directory."""
        log = self._core.log
        index, known = self._committed
        if log.voters_index == index or log.voters_index > self._core.commit_index:
            return
        self._committed = (log.voters_index, log.voters.ids)
        for node_id in sorted(known - log.voters.ids):
            self._peers.forget(node_id)

    def retarget(self) -> None:
        """Call those whom a member in this one's place calls.

        Voters wait to be called by those of higher ids. A voter that was removed while it was away
        would wait for ever: nobody calls it any more, and nobody has told it. A leader does not
        wait for voters that it lacks, either.
        """
        log = self._core.log
        waits = self._core.is_voter and not self._is_lonely
        # Which of two sets is out of date, a member without a leader cannot know: not even a newer
        # one of its own, whose entry may never be committed. So it tries them in turns.
        tries_heard = self._is_lonely and self._heard.voters and self._turn % 2
        self._peers.retarget(waits, self._heard if tries_heard else log.voters)
