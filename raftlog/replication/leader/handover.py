"""A leader that cannot reach its followers hands its lead to another replica. Pure.

A leader may reach the controller, and so keep its lease, while its links to the followers are cut.
Its ISR then shrinks below the minimum, and it takes no `acks=all` writes, although the followers
may be whole and reach each other. Only the leader sees which followers live by the metadata and
have no stream. Only replicas of ISR and ELR are elected (KIP-966). The election is clean, because
nothing is committed while the ISR is below the minimum.

| the partition led here | the leader |
|---|---|
| has enough members in sync | keeps the lead, forgets earlier handovers after `MEMORY_S` |
| is below the minimum, all living followers have streams | keeps it, they catch up or are slow |
| is below, no replica of ISR and ELR could reach enough others | keeps it, no other is better |
| is below, and such a replica exists for longer than the patience | hands over, in order |

A link that this leader found broken also counts as broken for the successor. Other links are
unknown, so the successor may fare no better, and hands over in turn to the next replica in the
order of assignment, so that all are tried. Each node doubles its patience with each handover of the
partition, so a partition without any good leader changes ever more seldom.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from raftlog.metadata.image import BrokerImage, PartitionImage
from raftlog.record.types import BrokerId, LeaderEpoch, PartitionId, TopicId
from raftlog.world import Backoff

PATIENCE_S_MAX: Final = 300.0
MEMORY_S: Final = 600.0
"""Time without a handover after which the patience is back at its start."""


def successor(
    row: PartitionImage,
    *,
    min_insync_replicas: int,
    brokers: Mapping[BrokerId, BrokerImage],
    attached: Collection[BrokerId],
) -> BrokerId | None:
    """The replica to lead instead of the present leader, None to keep the lead. `attached` are the
    followers with a stream of the present leader epoch."""
    needed = min(min_insync_replicas, len(row.replicas))
    if len(row.isr) >= needed:
        return None
    alive = [each for each in row.replicas if each in brokers and brokers[each].is_available]
    unreachable = {each for each in alive if each not in attached and each != row.leader}
    if not unreachable:
        return None
    at = row.replicas.index(row.leader)
    for candidate in (*row.replicas[at + 1 :], *row.replicas[:at]):
        if candidate not in alive or candidate not in {*row.isr, *row.elr}:
            continue
        lost = {row.leader} if candidate in unreachable else set()
        if len(set(alive) - lost) >= needed:
            return candidate
    return None


@dataclass(slots=True)
class _Wait:
    leader_epoch: LeaderEpoch
    since_s: float
    """Time since when, without a break, another replica should lead."""


@dataclass(slots=True)
class _Tries:
    count: int
    last_s: float


class Handovers:
    """The patience of one node's leaders. Holds an entry for a partition below its minimum."""

    def __init__(self) -> None:
        self._waits: dict[tuple[TopicId, PartitionId], _Wait] = {}
        self._tries: dict[tuple[TopicId, PartitionId], _Tries] = {}

    def is_due(
        self,
        key: tuple[TopicId, PartitionId],
        leader_epoch: LeaderEpoch,
        candidate: BrokerId | None,
        *,
        now: float,
        patience_s: float,
    ) -> bool:
        """Whether to hand over to the candidate now. True counts as a handover. Call it regularly
        for each led partition. `patience_s` is the first patience."""
        if candidate is None:
            self._waits.pop(key, None)
            return False
        wait = self._waits.get(key)
        if wait is None or wait.leader_epoch != leader_epoch:
            wait = self._waits[key] = _Wait(leader_epoch, now)
        tries = self._tries.get(key)
        if tries is not None and now - tries.last_s > MEMORY_S:
            del self._tries[key]
            tries = None
        count = 0 if tries is None else tries.count
        if now - wait.since_s < Backoff(patience_s, PATIENCE_S_MAX).delay_s(count):
            return False
        del self._waits[key]
        self._tries[key] = _Tries(count + 1, now)
        return True

    def retain(self, led: Collection[tuple[TopicId, PartitionId]], now: float) -> None:
        """Forget partitions that are not led here any more, and old handovers."""
        for key in [each for each in self._waits if each not in led]:
            del self._waits[key]
        for key in [each for each, tries in self._tries.items() if now - tries.last_s > MEMORY_S]:
            del self._tries[key]
