"""For how long a node may act as a leader without hearing more: its side of the session. Pure.

DESIGN.md has the argument why a lease ends before the controller, any controller, may fence its
holder for being silent. In short: a lease begins when the heartbeat was *sent*, less the time for
which the controller cannot prove that it was the only one, and is shorter than a session.
"""

from __future__ import annotations

import math
from typing import Final

from raftlog.controller.messages import HeartbeatAnswer, answered_timeout_s

LEASE_SHARE: Final = 0.9
"""A lease's length, as a share of the session timeout. The rest is a margin: see DESIGN.md."""
HEARTBEATS_IN_FLIGHT_MAX: Final = 64
"""Heartbeats whose answers are waited for; the oldest are given up first."""


class Lease:
    """What the answers to one incarnation's heartbeats amount to."""

    def __init__(self) -> None:
        self._until = -math.inf
        self._term = 0
        self._sequence = 0
        self._sent: dict[int, tuple[int, float]] = {}
        """By sequence number: the node it was sent to, and when."""

    @property
    def until(self) -> float:
        """The monotonic time at which the lease ends, or has ended."""
        return self._until

    def is_valid(self, now: float) -> bool:
        """Whether the node may act as a leader at this time."""
        return now < self._until

    def sent(self, node_id: int, now: float) -> int:
        """A heartbeat is about to be sent; return its number. The time must not be later."""
        self._sequence += 1
        self._sent[self._sequence] = (node_id, now)
        if len(self._sent) > HEARTBEATS_IN_FLIGHT_MAX:
            del self._sent[next(iter(self._sent))]
        return self._sequence

    def refused(self, sender: int, sequence: int) -> bool:
        """A refusal has come; return whether it is one that was waited for."""
        return self._take(sender, sequence) is not None

    def answered(self, sender: int, answer: HeartbeatAnswer) -> bool:
        """An answer has come; return whether it counts."""
        sent_at = self._take(sender, answer.sequence)
        if sent_at is None or answer.term < self._term:
            return False
        self._term = answer.term
        if answer.fenced:
            # Others may lead by now what this node leads as far as it knows.
            self._until = -math.inf
        else:
            lease_s = LEASE_SHARE * answered_timeout_s(answer)
            self._until = max(self._until, sent_at - answer.confirmed_age_s + lease_s)
        return True

    def _take(self, sender: int, sequence: int) -> float | None:
        node_id, sent_at = self._sent.get(sequence, (None, 0.0))
        if node_id != sender:
            return None
        del self._sent[sequence]
        return sent_at
