"""The clients' side of a history: commits, lookups, processed records, heartbeats.

Each attempt of a commit has a number, which travels as the metadata of its offsets: so each record
of the log, and each offset that a lookup returns, names the attempt that wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

NO_OFFSET: Final = -1


class Place(NamedTuple):
    """A partition of a topic, in a group."""

    group: str
    topic: str
    topic_id: str
    partition: int


@dataclass
class Attempt:
    """One request to commit, as it was sent to one node."""

    number: int
    group: str
    member_id: str
    member_epoch: int
    offsets: Mapping[tuple[str, int], int]
    sent: int
    ended: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Step at which a node acknowledged the partition."""
    is_reset: bool = False
    """By an operator: offsets may go back, or over records."""


class Lookup(NamedTuple):
    """A committed offset, as a node returned it."""

    group: str
    topic: str
    partition: int
    offset: int
    metadata: str
    sent: int
    ended: int


@dataclass
class Progress:
    """The processed records of one partition, by a whole group."""

    end: int = 0
    """All records below are processed."""
    later: set[int] = field(default_factory=set)

    def add(self, offset: int) -> None:
        """A member has processed the record."""
        self.later.add(offset)
        while self.end in self.later:
            self.later.remove(self.end)
            self.end += 1

    def skip(self, offset: int) -> None:
        """An operator gave up all records below."""
        for each in range(self.end, offset):
            self.add(each)


class Heard(NamedTuple):
    """A heartbeat that was answered."""

    sent_s: float
    session_s: float


@dataclass
class Ledger:
    """All clients of one history."""

    attempts: list[Attempt] = field(default_factory=list)
    lookups: list[Lookup] = field(default_factory=list)
    progress: dict[Place, Progress] = field(default_factory=dict)
    heard: dict[tuple[str, str], Heard] = field(default_factory=dict)
    """The newest answered heartbeat of each member, by group and id."""
    newest: dict[tuple[str, str], int] = field(default_factory=dict)
    """Step at which each member sent its newest heartbeat."""
    removed: dict[tuple[str, str], str] = field(default_factory=dict)
    """Why a coordinator rightly ended a member, or the member itself did."""
    deposed: dict[tuple[str, str], float] = field(default_factory=dict)
    """When a deposed coordinator last answered a member."""
    kept: frozenset[str] = frozenset()
    """Topics that all members subscribe to and no operator deletes: offsets stay with members."""
    forgotten: set[tuple[str, str]] = field(default_factory=set)
    """Groups and topics whose offsets an operator has deleted, or tried to."""
    deleted: set[str] = field(default_factory=set)
    """Topics that an operator has deleted, or tried to: their offsets may go."""
    violations: list[str] = field(default_factory=list)
    _clock: int = 0

    def step(self) -> int:
        """The history's clock."""
        self._clock += 1
        return self._clock

    def complain(self, text: str) -> None:
        """Note a violation."""
        self.violations.append(text)

    def attempt(
        self,
        group: str,
        member_id: str,
        member_epoch: int,
        offsets: Mapping[tuple[str, int], int],
        *,
        is_reset: bool = False,
    ) -> Attempt:
        """A request to commit is about to be sent."""
        number = len(self.attempts)
        attempt = Attempt(
            number, group, member_id, member_epoch, offsets, self.step(), is_reset=is_reset
        )
        self.attempts.append(attempt)
        return attempt

    def processed(self, place: Place) -> Progress:
        """The group's progress in a partition."""
        return self.progress.setdefault(place, Progress())

    def answered(self, group: str, member_id: str, heard: Heard) -> None:
        """A heartbeat was answered."""
        known = self.heard.get((group, member_id))
        if known is None or known.sent_s < heard.sent_s:
            self.heard[group, member_id] = heard

    def fenced(self, group: str, member_id: str, now_s: float, error: str) -> None:
        """A heartbeat was refused: the member's session is over, the coordinator says."""
        key = (group, member_id)
        heard = self.heard.pop(key, None)
        if heard is None or key in self.removed or self.deposed.get(key, 0.0) >= heard.sent_s:
            return
        silent_s = now_s - heard.sent_s
        if silent_s < heard.session_s:
            self.complain(
                f"{member_id} of {group} was fenced {silent_s:.3f} s after a heartbeat that was "
                f"answered, with a session of {heard.session_s:g} s: {error}"
            )
