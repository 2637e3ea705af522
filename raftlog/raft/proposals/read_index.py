"""Reads waiting for the leader to confirm its leadership by Raft's ReadIndex. Pure.

A reader must apply up to an index which covers every response given before its request (Ongaro
2014, section 6.4). The leader's commit index is this index, on two conditions. First, the leader
has committed an entry of its current term. Otherwise its commit index may be behind commits of
earlier leaders. Second, no later term had a leader when the request came. The proof is that a
majority of the voters has responded to appends of this term *sent after* the request. Each response
proves that its voter had voted in no later term until then, so no candidate had the votes.

Appends before and after the request differ by their numbers, not by times. Many events happen at
one instant, of a clock with slow ticks or of a simulated clock.

All waiting reads share rounds. At most one round is under way, and reads submitted during it wait
for the next round. So the cost does not depend on the number of reads, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from raftlog.raft.core import RaftCore
from raftlog.record.errors import OVERLOADED, LogError

READS_MAX: Final = 10_000
"""Reads waiting at the leader, as many as one member's node may have pending (`PENDING_MAX`)."""


@dataclass(frozen=True, slots=True)
class _Read:
    deadline: float
    reply: Callable[[int | None], None]


@dataclass(frozen=True, slots=True)
class _Round:
    """Appends sent to all, and the reads waiting for the answers."""

    term: int
    index: int
    """The commit index when the round began. It covers the last of its reads."""
    after: int
    """Highest append number sent before all of its reads had come. Higher numbers confirm the
    round."""
    reads: list[_Read]


class ReadRounds:
    """The reads waiting at this member, as the leader."""

    def __init__(self, core: RaftCore) -> None:
        self._core = core
        self._next_reads: list[_Read] = []
        self._round: _Round | None = None

    def __len__(self) -> int:
        return len(self._next_reads) + (0 if self._round is None else len(self._round.reads))

    def submit(self, deadline: float, reply: Callable[[int | None], None]) -> None:
        """Call `reply` with an index that covers every commit before this call.

        None: this member cannot confirm it, and has done nothing. `reply` is not called from within
        `submit`. Deadlines do not fall from one call to the next. Raises LogError(OVERLOADED).
        """
        if len(self) >= READS_MAX:
            raise LogError(OVERLOADED, "Too many read barriers wait for the controller.")
        self._next_reads.append(_Read(deadline, reply))

    def advance(self) -> None:
        """Settle confirmed reads and start the next round, if either is possible by now."""
        core = self._core
        if not core.is_leader or (self._round is not None and self._round.term != core.term):
            self.give_up()
            return
        while True:
            if self._round is None:
                if not self._next_reads or not core.is_active:
                    return
                reads, self._next_reads = self._next_reads, []
                self._round = _Round(core.term, core.commit_index, core.send_round(), reads)
            if not core.is_confirmed(self._round.after):
                return
            confirmed, self._round = self._round, None
            for read in confirmed.reads:
                read.reply(confirmed.index)

    def give_up(self) -> None:
        """Reply None to all reads, as another member leads and must serve these."""
        reads = self._next_reads if self._round is None else self._round.reads + self._next_reads
        self._next_reads, self._round = [], None
        for read in reads:
            read.reply(None)

    def expire(self, now: float) -> None:
        """Reply None to reads past their deadline.

        A round continues without these, since its obstacle also keeps the next round from being
        confirmed.
        """
        late = [read for read in self._next_reads if read.deadline <= now]
        del self._next_reads[: len(late)]
        if self._round is not None:
            waiting = self._round.reads
            first = [read for read in waiting if read.deadline <= now]
            del waiting[: len(first)]
            late = first + late
        for read in late:
            read.reply(None)
