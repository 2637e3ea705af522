"""Reads that wait at the leader until it is sure that it still leads: Raft's ReadIndex. Pure.

Who asks wants to know how far it must apply to know all that anybody was told of before it asked
(Ongaro 2014, section 6.4). The leader's commit index is that, on two conditions. The leader has
committed an entry of its own term: else its commit index may be behind what the leaders before it
committed. And nobody led a later term when the question came: a majority of the voters has answered
appends of this term that were *sent after* it came. Each answer says that its voter had voted in no
later term until then; so nobody had the votes.

What was sent before is told from what was sent after by the numbers of appends, not by times: many
things happen at one instant, of a clock that ticks slowly or of a simulated one.

All who wait share rounds: one is under way at most, and who comes meanwhile waits for the next. So
it costs the same how many ask, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from raftlog.raft.core import RaftCore
from raftlog.record.errors import OVERLOADED, LogError

READS_MAX: Final = 10_000
"""Questions that wait at the leader; as many as one member's node may wait for (`WISHES_MAX`)."""


@dataclass(frozen=True, slots=True)
class _Read:
    deadline: float
    tell: Callable[[int | None], None]


@dataclass(frozen=True, slots=True)
class _Round:
    """Appends that were sent to all, and who waits for their answers."""

    term: int
    index: int
    """The commit index when it began: not below the one when the last of its reads came."""
    after: int
    """Only appends of higher numbers than this were sent after all of its reads had come."""
    reads: list[_Read]


class ReadRounds:
    """The reads that wait at this member, as the core."""

    def __init__(self, core: RaftCore) -> None:
        self._core = core
        self._gathering: list[_Read] = []
        self._round: _Round | None = None

    def __len__(self) -> int:
        return len(self._gathering) + (0 if self._round is None else len(self._round.reads))

    def ask(self, deadline: float, tell: Callable[[int | None], None]) -> None:
        """Have `tell` given the index up to which all that was committed is.

        None: this member cannot say, and has done nothing. Not called from within `ask`.
        Deadlines do not fall from one to the next. Raises LogError(OVERLOADED).
        """
        if len(self) >= READS_MAX:
            raise LogError(OVERLOADED, "Too many read barriers wait for the controller.")
        self._gathering.append(_Read(deadline, tell))

    def advance(self) -> None:
        """Answer what is confirmed and begin the next round, if either can be done by now."""
        core = self._core
        if not core.is_leader or (self._round is not None and self._round.term != core.term):
            self.give_up()
            return
        while True:
            if self._round is None:
                if not self._gathering or not core.is_active:
                    return
                reads, self._gathering = self._gathering, []
                self._round = _Round(core.term, core.commit_index, core.send_round(), reads)
            if not core.is_confirmed(self._round.after):
                return
            confirmed, self._round = self._round, None
            for read in confirmed.reads:
                read.tell(confirmed.index)

    def give_up(self) -> None:
        """This member leads no more: who asked must ask another."""
        reads = self._gathering if self._round is None else self._round.reads + self._gathering
        self._gathering, self._round = [], None
        for read in reads:
            read.tell(None)

    def expire(self, now: float) -> None:
        """Let go of those who have waited for too long.

        A round goes on without them: whatever keeps it from being confirmed keeps the next, too.
        """
        late = [read for read in self._gathering if read.deadline <= now]
        del self._gathering[: len(late)]
        if self._round is not None:
            waiting = self._round.reads
            first = [read for read in waiting if read.deadline <= now]
            del waiting[: len(first)]
            late = first + late
        for read in late:
            read.tell(None)
