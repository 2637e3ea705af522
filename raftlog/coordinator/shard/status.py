"""The coordinators of a node in its metrics, with groups, their lags and transactions.

**Lags.** A group's offsets are here. The ends of its partitions are with their leaders, on any
node. So no scrape can compute a lag. A task queries the leaders, once for all groups, and adds up
the lags by group and topic. A long round is followed by a longer pause, so the task's part of the
processor is bounded, however many offsets there are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from raftlog.coordinator.groups.shard import GroupShard
from raftlog.coordinator.shard.decision import Event
from raftlog.coordinator.shard.service import Coordinators
from raftlog.coordinator.transactions.shard import TransactionShard
from raftlog.metadata.image import MetadataImage
from raftlog.record.errors import LogError
from raftlog.record.types import Offset, TopicId
from raftlog.routing.handle import PartitionHandle
from raftlog.routing.many import bounds_of_many
from raftlog.routing.router import PartitionRouter
from raftlog.world import Clock

PAUSE_S: Final = 10.0
"""Shortest pause between two rounds, in seconds."""
PAUSES_PER_ROUND: Final = 50
"""A pause is at least so many times as long as the round before."""
ENDS_MAX: Final = 5_000
"""Partitions of one question to the leaders."""
SLICE: Final = 1_000
"""Offsets in one turn of the event loop of two milliseconds."""
LAGS_MAX: Final = 10_000
"""Largest lags kept separately. The others are added up."""


class GroupLag(NamedTuple):
    """Records of a topic that a group has not committed yet."""

    group: str
    topic: str
    records: int


@dataclass(slots=True)
class CoordinatorStatus:
    """Sums over all coordinators of a node."""

    groups: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Groups by kind and state."""
    consumer_instances: int = 0
    """REST consumer instances, subscribed or not."""
    transactions: Counter[str] = field(default_factory=Counter)
    """That are open, or without all of their markers, by state."""
    oldest_transaction_ms: int = 0
    """Age of the oldest one of these."""
    parked_transactions: int = 0
    """Decided transactions with a marker that a partition's leader rejects."""
    lags: Sequence[GroupLag] = ()
    """Largest lags, in falling order."""
    other_lags: int = 0
    """Sum of all lags that are not in `lags`."""
    rebalances: int = 0
    """These count since the start of the node."""
    offset_commits: int = 0
    transaction_timeouts: int = 0
    producers_fenced: int = 0


class CoordinatorWatch:
    """Measures lags, and sums up all other numbers on request. Lives in the event loop."""

    def __init__(
        self,
        coordinators: Coordinators,
        router: PartitionRouter,
        image: Callable[[], MetadataImage],
        clock: Clock,
    ) -> None:
        self._coordinators = coordinators
        self._router = router
        self._image = image
        self._clock = clock
        self._lags: tuple[GroupLag, ...] = ()
        self._other_lags = 0
        self._known_ends: dict[tuple[str, int], tuple[TopicId, Offset]] = {}

    def status(self) -> CoordinatorStatus:
        """All numbers, as of now, with lags of the last round."""
        counts = self._coordinators.counts()
        status = CoordinatorStatus(
            lags=self._lags,
            other_lags=self._other_lags,
            rebalances=counts[Event.REBALANCE],
            offset_commits=counts[Event.OFFSET_COMMIT],
            transaction_timeouts=counts[Event.TRANSACTION_TIMEOUT],
            producers_fenced=counts[Event.PRODUCER_FENCED],
        )
        for shard in self._coordinators.shards():
            if isinstance(shard.state, GroupShard):
                status.groups += shard.state.group_states()
                status.consumer_instances += len(shard.state.instances.table.by_id)
            elif isinstance(shard.state, TransactionShard):
                open_now = shard.state.unfinished()
                time_ms = shard.moment().time_ms
                status.transactions.update(transaction.state.label for transaction in open_now)
                status.parked_transactions += shard.state.parked()
                ages_ms = (transaction.open_ms(time_ms) for transaction in open_now)
                oldest_ms = max(ages_ms, default=0)
                status.oldest_transaction_ms = max(status.oldest_transaction_ms, oldest_ms)
        return status

    async def run(self) -> None:
        """Measure lags until cancelled."""
        while True:
            begun_s = self._clock.monotonic()
            await self.measure()
            took_s = self._clock.monotonic() - begun_s
            await self._clock.sleep(max(PAUSE_S, PAUSES_PER_ROUND * took_s))

    async def measure(self) -> None:
        """One round of lags."""
        states = [
            shard.state
            for shard in self._coordinators.shards()
            if isinstance(shard.state, GroupShard)
        ]
        ends = await self._ends({name for state in states for name in state.offsets.topics()})
        lags: Counter[tuple[str, str]] = Counter()
        looked_at = 0
        for state in states:
            for group in state.offsets.group_ids():
                for topic, lag in _lags_of(state, group, ends):
                    lags[group, topic] += lag
                    looked_at += 1
                if looked_at >= SLICE:
                    looked_at = 0
                    await asyncio.sleep(0)
        ranked = lags.most_common()
        self._lags = tuple(GroupLag(*key, lag) for key, lag in ranked[:LAGS_MAX])
        self._other_lags = sum(lag for _, lag in ranked[LAGS_MAX:])

    async def _ends(self, names: Iterable[str]) -> Mapping[tuple[str, int], tuple[TopicId, Offset]]:
        """Id of the topic and last stable offset, by partition.

        A partition whose leader does not respond keeps the values of the round before.
        """
        topics = self._image().topics_by_name
        handles = [
            PartitionHandle(self._router, name, topics[name].topic_id, row.partition, None)
            for name in sorted(names)
            if name in topics
            for row in topics[name].partitions
        ]
        found: dict[tuple[str, int], tuple[TopicId, Offset]] = {}
        for begin in range(0, len(handles), ENDS_MAX):
            some = handles[begin : begin + ENDS_MAX]
            for handle, bounds in zip(some, await bounds_of_many(self._router, some), strict=True):
                place = handle.topic, int(handle.partition)
                if not isinstance(bounds, LogError):
                    found[place] = handle.topic_id, bounds.last_stable_offset
                elif place in self._known_ends:
                    found[place] = self._known_ends[place]
        self._known_ends = found
        return found


def _lags_of(
    state: GroupShard, group: str, ends: Mapping[tuple[str, int], tuple[TopicId, Offset]]
) -> Iterator[tuple[str, int]]:
    """Topic and lag of each partition with a committed offset."""
    for topic, number, committed in state.offsets.offsets(group):
        end = ends.get((topic, number))
        # Offsets of a topic that was created again do not apply to the new topic.
        if end is not None and committed.topic_id in (None, end[0]):
            yield topic, max(0, end[1] - committed.offset)
