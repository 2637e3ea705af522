"""The judgement of a group log: ownership and offsets in the order of the committed records.

| rule | violated by |
|---|---|
| one owner | a partition that two members hold, assigned or to be given up |
| fenced | an offset whose author is no member then, or in another epoch, or simple beside members |
| owner after owner | an offset of an earlier owner after one of the next owner |
| not back | an offset below the one before, without a reset or a deletion in between |
| not ahead | an offset other than its author sent |
| not lost | an acknowledged offset that the log lacks; a lookup that returns an older one |
| kept | an offset that is deleted beside members that subscribe to its topic |
| not expired | an offset that is deleted though no operator asked, within its retention |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from raftlog.coordinator.groups.consumer_group import held_pairs
from raftlog.coordinator.shard.decision import CoordinatorRecord
from raftlog.coordinator.shard.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tests.simulation.groups.ledger import NO_OFFSET, Attempt, Ledger, Lookup

Spot = tuple[str, str, int]
"""Group, topic and partition."""


class _Commit(NamedTuple):
    """An offset in the log."""

    position: int
    attempt: Attempt
    offset: int
    topic_id: str


@dataclass
class _Group:
    """A group as the log says so far."""

    members: set[str] = field(default_factory=set)
    epochs: dict[str, int] = field(default_factory=dict)
    held: dict[str, set[tuple[str, int]]] = field(default_factory=dict)


@dataclass
class LogChecker:
    """Judges the logs of all partitions of the topic, one after the other."""

    ledger: Ledger
    commits: int = 0
    _groups: dict[str, _Group] = field(default_factory=lambda: defaultdict(_Group))
    _last: dict[Spot, _Commit] = field(default_factory=dict)
    """The commit that counts now."""
    _owner: dict[tuple[str, str, int], Attempt] = field(default_factory=dict)
    """The last commit of a member, by group, topic id and partition."""
    _positions: dict[tuple[int, Spot], int] = field(default_factory=dict)
    """Of an attempt's offset: the first one, if the attempt was written twice."""
    _ends: dict[Spot, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Positions of tombstones, and of the first offset of another topic of the name."""

    def replay(self, position: int, record: CoordinatorRecord) -> None:
        """Judge the next record of a log."""
        key, value = record
        match key:
            case OffsetCommitKey():
                assert value is None or isinstance(value, OffsetCommitValue)
                self._replay_offset(position, key, value)
            case ConsumerGroupMemberMetadataKey():
                members = self._groups[key.group].members
                members.discard(key.member_id) if value is None else members.add(key.member_id)
            case ConsumerGroupCurrentMemberAssignmentKey():
                assert value is None or isinstance(value, ConsumerGroupCurrentMemberAssignmentValue)
                self._replay_current(position, key, value)
            case ConsumerGroupMetadataKey() if value is None:
                # A group of the same name begins with the first epoch again.
                self._groups.pop(key.group, None)
                for spot in [each for each in self._owner if each[0] == key.group]:
                    del self._owner[spot]

    def _replay_current(
        self,
        position: int,
        key: ConsumerGroupCurrentMemberAssignmentKey,
        value: ConsumerGroupCurrentMemberAssignmentValue | None,
    ) -> None:
        group, member_id = self._groups[key.group], key.member_id
        group.held.pop(member_id, None)
        group.epochs.pop(member_id, None)
        if value is None:
            return
        group.epochs[member_id] = value.member_epoch
        mine = group.held[member_id] = set(held_pairs(value))
        for other, held in group.held.items():
            if other != member_id and mine & held:
                self.ledger.complain(
                    f"at {position}: {sorted(mine & held)} of {key.group} are {member_id}'s and "
                    f"{other}'s"
                )

    def _replay_offset(
        self, position: int, key: OffsetCommitKey, value: OffsetCommitValue | None
    ) -> None:
        spot = (key.group, key.topic, key.partition)
        if value is None:
            self._last.pop(spot, None)
            self._ends[spot].append(position)
            if key.topic in self.ledger.kept and self._groups[key.group].members:
                self.ledger.complain(f"at {position}: {spot} is deleted beside members")
            is_asked = key.topic in self.ledger.deleted or spot[:2] in self.ledger.forgotten
            if not is_asked:
                self.ledger.complain(f"at {position}: {spot} has expired")
            return
        self.commits += 1
        where = f"at {position}: {spot} = {value.offset}"
        if not value.metadata:
            self._replay_reset(position, key, value)
            return
        attempt = self.ledger.attempts[int(value.metadata)]
        last = self._last.get(spot)
        if last is not None and last.attempt is attempt and last.topic_id == (value.topic_id or ""):
            # The coordinator has dated it again, or a copy of the request came late.
            return
        if attempt.group != key.group or attempt.offsets.get(spot[1:]) != value.offset:
            self.ledger.complain(f"{where} is not what was sent: {attempt}")
            return
        self._check_author(where, attempt)
        topic_id = value.topic_id or ""
        if last is not None and last.topic_id != topic_id:
            self._ends[spot].append(position - 1)
        elif last is not None and value.offset < last.offset and not attempt.is_reset:
            self.ledger.complain(f"{where} goes back from {last.offset}: {attempt}, {last.attempt}")
        if attempt.member_id:
            place = (key.group, topic_id, key.partition)
            owner = self._owner.get(place)
            if (
                owner is not None
                and owner.member_id != attempt.member_id
                and (
                    attempt.member_epoch < owner.member_epoch
                    # A static member that comes back goes on in its epoch, under another id.
                    or (
                        attempt.member_epoch == owner.member_epoch
                        and owner.member_id in self._groups[key.group].members
                    )
                )
            ):
                self.ledger.complain(
                    f"{where}: {attempt.member_id} in epoch {attempt.member_epoch} commits after "
                    f"{owner.member_id} in epoch {owner.member_epoch}"
                )
            self._owner[place] = attempt
        self._last[spot] = _Commit(position, attempt, value.offset, topic_id)
        self._positions.setdefault((attempt.number, spot), position)

    def _replay_reset(self, position: int, key: OffsetCommitKey, value: OffsetCommitValue) -> None:
        """An operator's offset: `GroupService.reset` names no attempt."""
        spot = (key.group, key.topic, key.partition)
        attempt = Attempt(-1, key.group, "", -1, {}, 0, is_reset=True)
        self._check_author(f"at {position}: {spot} = {value.offset}", attempt)
        self._last[spot] = _Commit(position, attempt, value.offset, value.topic_id or "")
        self._ends[spot].append(position)

    def _check_author(self, where: str, attempt: Attempt) -> None:
        group = self._groups[attempt.group]
        if not attempt.member_id:
            if group.members:
                self.ledger.complain(f"{where}: no member's, beside {sorted(group.members)}")
        elif attempt.member_id not in group.members:
            self.ledger.complain(f"{where}: {attempt.member_id} is no member")
        elif group.epochs.get(attempt.member_id) != attempt.member_epoch:
            self.ledger.complain(
                f"{where}: {attempt.member_id} has epoch {group.epochs.get(attempt.member_id)}, "
                f"not {attempt.member_epoch}"
            )

    def finish(self) -> None:
        """After all logs: acknowledged offsets are there, and lookups followed them."""
        known: dict[Spot, list[tuple[int, int]]] = defaultdict(list)
        """Step and position of each acknowledged offset, and of each lookup."""
        for attempt in self.ledger.attempts:
            for place, step in attempt.ended.items():
                spot = (attempt.group, *place)
                position = self._positions.get((attempt.number, spot))
                if position is None:
                    self.ledger.complain(f"{spot} = {attempt.offsets[place]} is lost: {attempt}")
                else:
                    known[spot].append((step, position))
        by_spot: dict[Spot, list[Lookup]] = defaultdict(list)
        for lookup in self.ledger.lookups:
            by_spot[lookup.group, lookup.topic, lookup.partition].append(lookup)
        for spot, lookups in by_spot.items():
            self._check_lookups(spot, lookups, known[spot])

    def _check_lookups(
        self, spot: Spot, lookups: Iterable[Lookup], known: list[tuple[int, int]]
    ) -> None:
        """Each lookup returns the newest offset known before it was sent, or a later one."""
        placed = {}
        for lookup in lookups:
            if lookup.offset == NO_OFFSET or not lookup.metadata:
                continue
            position = self._positions.get((int(lookup.metadata), spot))
            attempt = self.ledger.attempts[int(lookup.metadata)]
            if position is None:
                self.ledger.complain(f"{lookup} is not in the log")
            elif attempt.offsets.get(spot[1:]) != lookup.offset:
                self.ledger.complain(f"{lookup} is not what was sent: {attempt}")
            else:
                placed[lookup] = position
                known.append((lookup.ended, position))
        known.sort()
        for lookup in lookups:
            newest = max((at for step, at in known if step < lookup.sent), default=-1)
            position = placed.get(lookup)
            if position is None and lookup.offset == NO_OFFSET:
                # Deleted, or of a topic deleted since.
                is_ended = newest < 0 or spot[1] in self.ledger.deleted
                if not is_ended and not any(end > newest for end in self._ends[spot]):
                    self.ledger.complain(f"{lookup} forgets the offset at {newest}")
            elif position is not None and position < newest:
                self.ledger.complain(f"{lookup} at {position} is older than {newest}")
