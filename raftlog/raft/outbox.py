"""What was said but must not leave yet. Pure.

Every message rests on what is in the sender's log at that moment: a vote on the term and vote
written before it, an answer on the entries it acknowledges, an append on the leader's own copy. So
it leaves only once the log is durable up to there, in the order in which all was said, and on the
connection that it was said on: on the next one the peer may be another, or know more.

One kind may go ahead: an append (Ongaro 2014, section 10.2.1). Its entries are on their way while
the leader's own disk writes them, because a leader counts itself only for what is durable there
(`RaftCore._entries`), whatever the others have. What an append does rest on is that the leader's
term is durable: else, after a crash, another entry could come to have its index and term. And a
leader whose disk is stuck must fall silent, or it would keep others from leading: then appends
wait, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from raftlog.raft.log import RaftLog
from raftlog.raft.messages import Append, Message

HELD_MAX: Final = 100_000
"""Messages. More come together only while the disk is full for very long; further ones are lost,
as on a connection that breaks."""


class Outbox:
    """Holds messages back until they may leave."""

    def __init__(
        self,
        log: RaftLog,
        transmit: Callable[[int, Message], None],
        is_disk_stuck: Callable[[], bool] = lambda: False,
    ) -> None:
        self._log = log
        self._is_disk_stuck = is_disk_stuck
        self._transmit = transmit
        self._held: deque[tuple[int, int, int, Message]] = deque()
        self._connections: dict[int, int] = {}
        self._connection_count = 0

    def connected(self, peer: int) -> None:
        """A new connection to the peer: what was said on an earlier one is for nobody."""
        self._connection_count += 1
        self._connections[peer] = self._connection_count

    def disconnected(self, peer: int) -> None:
        """The connection to the peer has ended."""
        self._connections.pop(peer, None)

    def send(self, peer: int, message: Message) -> None:
        """Say something to a peer; dropped if it is not connected."""
        connection = self._connections.get(peer)
        if connection is None:
            return
        log, lsn = self._log, self._log.lsn
        if lsn <= log.durable_lsn:
            # What was held back until now goes first.
            self.release()
            may_leave = True
        else:
            has_term = log.term_lsn <= log.durable_lsn
            may_leave = isinstance(message, Append) and has_term and not self._is_disk_stuck()
        if may_leave:
            self._transmit(peer, message)
            return
        if len(self._held) < HELD_MAX:
            self._held.append((lsn, peer, connection, message))

    def release(self) -> None:
        """Send what may leave by now."""
        held, durable_lsn = self._held, self._log.durable_lsn
        while held and held[0][0] <= durable_lsn:
            _, peer, connection, message = held.popleft()
            if self._connections.get(peer) == connection:
                self._transmit(peer, message)

    def clear(self) -> None:
        """Drop all: this member says nothing any more."""
        self._held.clear()
        self._connections.clear()
