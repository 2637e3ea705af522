"""Elections and moves of partitions that are due in one controller term. Pure.

Deltas mark work as due. A plan examines the partitions named by deltas. It examines all of them at
the start of a term, after the return of a broker, and after a failure of unknown extent. So nothing
must be remembered exactly, and the next controller finds all of it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

from raftlog.metadata.commands import ChangePartitions
from raftlog.metadata.configs.broker import REBALANCE_DELAY, rebalance_delay_s
from raftlog.metadata.configs.topic import UNCLEAN_ELECTION
from raftlog.metadata.decisions.decommission import plan_evacuation
from raftlog.metadata.decisions.elections import (
    PLANNED_CHANGES_MAX,
    PartitionKey,
    brokers_in_maintenance,
    plan_elections,
    plan_preferred_leaders,
    plan_relief,
    undecided_elections,
)
from raftlog.metadata.decisions.reassignment import plan_completions
from raftlog.metadata.delta import MetadataDelta, TopicChange
from raftlog.metadata.image import NO_LEADER_ID, MetadataImage
from raftlog.record.types import BrokerId

PREFERRED_CHECK_S_MAX: Final = 10.0
PREFERRED_CHECK_S_MIN: Final = 0.5
"""Bounds of the seconds between two checks for preferred leaders, the rebalance delay."""
KEYS_MAX: Final = 10_000
"""Most partitions remembered for one kind of work. Beyond, all are examined."""

PartitionPlan: TypeAlias = Callable[[MetadataImage], Iterator[ChangePartitions]]


class _Due:
    """Some or all partitions, due for one kind of work."""

    def __init__(self) -> None:
        self._all = True
        self._keys: dict[PartitionKey, None] = {}

    def add(self, key: PartitionKey) -> None:
        self._keys[key] = None
        if len(self._keys) > KEYS_MAX:
            self.add_all()

    def add_each(self, keys: Collection[PartitionKey] | None) -> None:
        """Add what an earlier `take` returned."""
        if keys is None:
            self.add_all()
        for key in keys or ():
            self.add(key)

    def add_all(self) -> None:
        self._all = True
        self._keys = {}

    def __bool__(self) -> bool:
        return self._all or bool(self._keys)

    def take(self) -> Collection[PartitionKey] | None:
        """Take the due partitions, which are due no more. None for all."""
        keys = None if self._all else tuple(self._keys)
        self._all = False
        self._keys = {}
        return keys


class PartitionWork:
    """The work due in one controller term. Times are monotonic seconds."""

    def __init__(self, image: MetadataImage, now: float) -> None:
        self._elections = _Due()
        self._undecided = _Due()
        """Examined by an elections' plan, and perhaps left without a leader."""
        self._relief = _Due()
        self._completions = _Due()
        self._evacuation = True
        self._decommissioning = False
        self._relieved: frozenset[BrokerId] = frozenset()
        """Brokers to be relieved of leaderships where possible, in maintenance or `_unwritable`."""
        self._unwritable: frozenset[BrokerId] = frozenset()
        self._back_since: dict[BrokerId, float] = {}
        """Available brokers, and since when, as far as this controller term knows."""
        self._preferred_at = now + _preferred_check_s(image)
        self._observe_brokers(image, image.brokers, now)

    def mark_all_due(self) -> None:
        """Mark all partitions as due, because the progress of earlier work is unknown."""
        self._elections.add_all()
        self._relief.add_all()
        self._completions.add_all()
        self._evacuation = True

    def applied(self, delta: MetadataDelta, image: MetadataImage, now: float) -> bool:
        """Note changed metadata. Returns whether something is due."""
        if delta.brokers or delta.brokers_gone:
            self._observe_brokers(image, (*delta.brokers, *delta.brokers_gone), now)
            # A broker that is back may lead leaderless partitions, or take over from a leaving
            # broker.
            self.mark_all_due()
        if REBALANCE_DELAY in delta.cluster_settings:
            self._preferred_at = min(self._preferred_at, now + _preferred_check_s(image))
        if UNCLEAN_ELECTION in delta.cluster_settings:
            self._elections.add_all()
        for change in delta.changed:
            self._observe_topic(change)
        for topic in delta.created:
            # The placement may have been made without knowledge of the unwritable brokers.
            for row in topic.partitions:
                if row.leader in self._relieved:
                    self._relief.add((topic.topic_id, row.partition))
        return bool(self._elections or self._relief or self._completions or self._evacuation)

    def note_unwritable(
        self, unwritable: frozenset[BrokerId], image: MetadataImage, now: float
    ) -> bool:
        """Replace the set of unwritable brokers. Returns whether it changed. A broker with a
        writable disk again counts as back from now on."""
        if unwritable == self._unwritable:
            return False
        changed = unwritable ^ self._unwritable
        self._unwritable = unwritable
        self._observe_brokers(image, changed, now)
        # Also after a recovery, when the broker may take over from a broker still unwritable.
        self._relief.add_all()
        return True

    def next_at(self) -> float:
        """When the preferred leaders are to be looked at."""
        return self._preferred_at

    def due(self, image: MetadataImage, now: float) -> Iterator[PartitionPlan]:
        """Plans for due work, the most urgent first. Carry out each plan before taking the next, or
        call `mark_all_due`."""
        if self._elections:
            keys = self._elections.take()
            yield partial(plan_elections, keys=keys, unwritable=self._unwritable)
            self._undecided.add_each(keys)
        if self._relief:
            keys = self._relief.take()
            yield partial(plan_relief, keys=keys, unwritable=self._unwritable)
        if self._completions:
            yield partial(plan_completions, keys=self._completions.take())
        if self._evacuation:
            self._evacuation = False
            yield partial(plan_evacuation, unwritable=self._unwritable)
        if now >= self._preferred_at:
            delay_s = rebalance_delay_s(image.cluster_settings)
            if delay_s is not None:
                steady_since = now - delay_s
                unsteady = frozenset(
                    broker_id
                    for broker_id in image.brokers
                    if self._back_since.get(broker_id, math.inf) > steady_since
                )
                yield partial(plan_preferred_leaders, excluding=unsteady)
            # After an interruption the check is due again at once.
            self._preferred_at = now + _preferred_check_s(image)

    def undecided(self, image: MetadataImage) -> Collection[PartitionKey]:
        """Take the partitions whose next leader depends on the ends of logs. As many as one command
        may change. Others stay due."""
        if not self._undecided:
            return ()
        keys = self._undecided.take()
        found = list(islice(undecided_elections(image, keys), PLANNED_CHANGES_MAX + 1))
        if len(found) > PLANNED_CHANGES_MAX:
            self._undecided.add_all()
        return found[:PLANNED_CHANGES_MAX]

    def _observe_brokers(
        self, image: MetadataImage, broker_ids: Collection[BrokerId], now: float
    ) -> None:
        for broker_id in broker_ids:
            broker = image.brokers.get(broker_id)
            may_lead = broker is not None and broker.is_available and not broker.maintenance
            if not may_lead or broker_id in self._unwritable:
                self._back_since.pop(broker_id, None)
            else:
                self._back_since[broker_id] = now
        self._decommissioning = any(broker.decommissioning for broker in image.brokers.values())
        self._relieved = brokers_in_maintenance(image) | self._unwritable

    def _observe_topic(self, change: TopicChange) -> None:
        if change.configs_changed and (
            change.before.configs.get(UNCLEAN_ELECTION)
            != change.after.configs.get(UNCLEAN_ELECTION)
        ):
            self._elections.add_all()
        known = len(change.before.partitions)
        for number in change.partitions:
            row = change.after.partitions[number]
            key = (change.after.topic_id, number)
            if row.leader == NO_LEADER_ID:
                self._elections.add(key)
            elif row.leader in self._relieved:
                self._relief.add(key)
            if row.adding or row.removing:
                self._completions.add(key)
            elif (
                self._decommissioning
                and number < known
                and change.before.partitions[number].removing
            ):
                # A move has finished, so another can start.
                self._evacuation = True


def _preferred_check_s(image: MetadataImage) -> float:
    delay_s = rebalance_delay_s(image.cluster_settings)
    if delay_s is None:
        return PREFERRED_CHECK_S_MAX
    return min(max(delay_s, PREFERRED_CHECK_S_MIN), PREFERRED_CHECK_S_MAX)
