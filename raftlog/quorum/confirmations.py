"""Since when, at least, each voter has known of no leader after this one. Pure.

An answer says what its sender knew when it was *sent*, and that time is not ours to know: a message
may have been on its way for long, in a stopped process's buffers for one. But an answer is sent
after what it answers. So what counts for a leader's lease is when the newest append left that the
voter has answered, not when the answer came (Ongaro 2014, section 6.4.1, makes the same of its
rounds of heartbeats).

The number of that append says the same without a clock: what a read waits for (read_index.py).
"""

from __future__ import annotations

import math
from typing import Final

from raftlog.quorum.voters import VoterSet

APPENDS_MAX: Final = 4096
"""Appends whose answers are waited for; the oldest are given up first. Giving one up can only make
a voter look longer unheard than it is."""


class Confirmations:
    """What a leader's appends were answered with, and when those had left."""

    def __init__(self) -> None:
        self._sent: dict[int, tuple[int, float]] = {}
        """By sequence number, ascending: the voter, and when the append was given to be sent."""
        self._confirmed_at: dict[int, float] = {}
        self._newest: dict[int, int] = {}
        """The highest number of an append that the peer has answered."""

    def sent(self, peer: int, sequence: int, now: float) -> None:
        """An append is about to leave. `sequence` ascends over all peers."""
        self._sent[sequence] = (peer, now)
        if len(self._sent) > APPENDS_MAX:
            del self._sent[next(iter(self._sent))]

    def answered(self, peer: int, sequence: int) -> None:
        """The peer has answered that append, in no higher term than this member's."""
        receiver, sent_at = self._sent.get(sequence, (None, 0.0))
        if receiver != peer:
            return
        del self._sent[sequence]
        self._confirmed_at[peer] = max(sent_at, self._confirmed_at.get(peer, -math.inf))
        self._newest[peer] = max(sequence, self._newest.get(peer, 0))

    def forget(self, peer: int) -> None:
        """The connection to the peer has ended: what it has not answered it never will."""
        self._sent = {key: value for key, value in self._sent.items() if value[0] != peer}

    def age_s(self, peer: int, now: float) -> float:
        """For how long, at most, the peer can have followed another leader; inf if nobody knows."""
        return now - self._confirmed_at.get(peer, -math.inf)

    def by_majority(self, voters: VoterSet, me: int, after: int) -> bool:
        """Whether most of the voters, of whom this member may be one, know of no later leader.

        What counts is an answer to an append of a higher number than `after`.
        """
        known = sum(peer == me or self._newest.get(peer, 0) > after for peer in voters.ids)
        return known >= voters.majority
