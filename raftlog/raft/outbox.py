"""Messages held back until their part of the log is durable. Pure.

Every message rests on the sender's log as of that moment. A vote rests on the term and vote written
before it, a response on the entries it acknowledges, and an append on the leader's copy of the log.
So a message leaves only once the log is durable up to there, in order, and on the connection on
which it was sent, because on the next connection the peer may be another process, or have a newer
log.

An append may go ahead (Ongaro 2014, section 10.2.1). Its entries are under way while the leader's
disk writes the same entries, because a leader counts itself only for entries durable there
(`RaftCore._entries`), whatever its followers have. An append still rests on the durability of the
leader's term. Otherwise, after a crash, another entry could get its index and term. A leader whose
disk is stuck must also fall silent, or its heartbeats would keep other voters from leading. In that
case appends wait as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from raftlog.raft.log.log import RaftLog
from raftlog.raft.messages import Append, Message

HELD_MAX: Final = 100_000
"""Messages held per member. More are held only while the disk is full for very long. Further
messages are lost, as on a broken connection."""


class Outbox:
    """Holds messages back until their part of the log is durable."""

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
        """Take note of a new connection. Messages held for an earlier connection are dropped."""
        self._connection_count += 1
        self._connections[peer] = self._connection_count

    def disconnected(self, peer: int) -> None:
        """Take note of the end of the connection to the peer."""
        self._connections.pop(peer, None)

    def send(self, peer: int, message: Message) -> None:
        """Send a message to a peer now or later. Drop it without a connection to the peer."""
        connection = self._connections.get(peer)
        if connection is None:
            return
        log, lsn = self._log, self._log.lsn
        if lsn <= log.durable_lsn:
            # Held messages go first.
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
        """Send the messages that may leave by now."""
        held, durable_lsn = self._held, self._log.durable_lsn
        while held and held[0][0] <= durable_lsn:
            _, peer, connection, message = held.popleft()
            if self._connections.get(peer) == connection:
                self._transmit(peer, message)

    def clear(self) -> None:
        """Drop all messages, as this member sends no more."""
        self._held.clear()
        self._connections.clear()
