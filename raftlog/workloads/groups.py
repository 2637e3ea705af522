"""Consumer groups under load, with time to rebalance, gaps of delivery and rate of commits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

from raftlog_client import Consumer, Producer, RebalanceListener, TopicPartition

from raftlog.workloads.load import Progress, no_progress

SETTLE_TIMEOUT_S: Final = 60.0
LOAD_PERIOD_S: Final = 0.05
"""Seconds between two records of a partition while the group is measured."""
CALM_S: Final = 0.3
"""Seconds of calm before each change."""
POLL_MS: Final = 500
WARM_UP_COMMITS: Final = 5


@dataclass(slots=True)
class Rebalances:
    """Seconds from a change until every partition has its owner again, by change."""

    joins: list[float] = field(default_factory=list)
    leaves: list[float] = field(default_factory=list)
    kept_gaps: list[float] = field(default_factory=list)
    """Longest time without a record in a partition that kept its owner, by change."""
    calm_gaps: list[float] = field(default_factory=list)
    """Longest time right before each change, as the share of the load and the machine."""


@dataclass(slots=True)
class Commits:
    """Offset commits of several clients, each in a closed loop."""

    seconds: float
    latencies: list[float]
    """Seconds of each commit."""


class Member(RebalanceListener):
    """A member that reads all the time, and its partitions."""

    def __init__(self, group: MeasuredGroup) -> None:
        self.owned: set[TopicPartition] = set()
        self.consumer: Consumer[Any, Any] = Consumer(
            bootstrap_servers=group.servers,
            group_id=group.name,
            auto_offset_reset="latest",
            auto_commit_interval_ms=1_000,
            session_timeout_ms=group.session_timeout_ms,
            fetch_max_wait_ms=100,
        )
        self._group = group
        self._reading: asyncio.Task[None] | None = None

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Count the partitions as owned."""
        self.owned.update(assigned)
        self._group.changed.set()

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Count the partitions as given up."""
        self.owned.difference_update(revoked)
        self._group.changed.set()

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        """Count the partitions as given up."""
        self.on_partitions_revoked(lost)

    async def join(self) -> None:
        """Subscribe, and read from now on."""
        await self.consumer.subscribe([self._group.topic], listener=self)
        self._reading = asyncio.create_task(self._read())

    async def leave(self) -> None:
        """Stop reading, and leave the group."""
        assert self._reading is not None
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._reading = None
        await self.consumer.unsubscribe()
        self.owned.clear()

    def check(self) -> None:
        """Raise the error of a member that stopped reading."""
        if self._reading is not None and self._reading.done():
            self._reading.result()

    async def close(self) -> None:
        """Leave the group, if a member, and close the connections."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self.consumer.close()

    async def _read(self) -> None:
        while True:
            for place in await self.consumer.getmany(timeout_ms=POLL_MS):
                self._group.delivered(place.partition)


class MeasuredGroup:
    """A group of members in this process. Use as an async context manager.

    With `with_load`, a producer gives each partition a record every LOAD_PERIOD_S.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        partitions: int,
        name: str,
        *,
        session_timeout_ms: int = 10_000,
        with_load: bool = True,
    ) -> None:
        self.servers = servers
        self.topic = topic
        self.name = name
        self.session_timeout_ms = session_timeout_ms
        self.changed = asyncio.Event()
        self.members: list[Member] = []
        self._partitions = partitions
        self._with_load = with_load
        self._places = {TopicPartition(topic, number) for number in range(partitions)}
        self._last_s = [time.perf_counter()] * partitions
        self._gap_s = [0.0] * partitions
        self._loading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> MeasuredGroup:
        if self._with_load:
            self._loading = asyncio.create_task(self._load())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._loading is not None:
            self._loading.cancel()
        for member in self.members:
            await member.close()
        if self._loading is not None:
            (error,) = await asyncio.gather(self._loading, return_exceptions=True)
            if isinstance(error, Exception):
                raise error

    async def add(self) -> Member:
        """Connect a client that has not joined yet."""
        member = self.new_member()
        await member.consumer.start()
        self.members.append(member)
        return member

    def new_member(self) -> Member:
        """Make a member that is not connected."""
        return Member(self)

    async def settled(self, others: int = 0) -> float:
        """Wait until all partitions have one owner each, in equal shares. Return when.

        `others` is the number of members in other processes. Raises TimeoutError.
        """
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while not self.is_settled(others):
                self.changed.clear()
                try:
                    async with asyncio.timeout(1.0):
                        await self.changed.wait()
                except TimeoutError:
                    for member in self.members:
                        member.check()
        return time.perf_counter()

    def owners(self) -> dict[int, Member]:
        """The owner of each partition, among the members here."""
        return {place.partition: member for member in self.members for place in member.owned}

    def delivered(self, partition: int) -> None:
        """Note records of a partition."""
        now = time.perf_counter()
        self._gap_s[partition] = max(self._gap_s[partition], now - self._last_s[partition])
        self._last_s[partition] = now

    def forget_gaps(self) -> None:
        """Start a new measurement of the gaps. A gap under way counts from its beginning."""
        self._gap_s = [0.0] * self._partitions

    def gaps(self, partitions: Collection[int]) -> float:
        """The longest gap in these partitions, with gaps under way. 0 without any."""
        now = time.perf_counter()
        return max(
            (max(self._gap_s[number], now - self._last_s[number]) for number in partitions),
            default=0.0,
        )

    def last_delivery(self, partition: int) -> float:
        """When the last record of a partition arrived."""
        return self._last_s[partition]

    def is_settled(self, others: int = 0) -> bool:
        """Whether all partitions have one owner each, in equal shares.

        With `others` in other processes, check whether each member here has its share.
        """
        active = [member.owned for member in self.members if member.owned]
        owned = sum(map(len, active))
        least, rest = divmod(self._partitions, len(active) + others or 1)
        most = least + (rest > 0)
        if others:
            return bool(active) and all(least <= len(partitions) <= most for partitions in active)
        return (
            owned == self._partitions
            and set().union(*active) == self._places
            and all(least <= len(partitions) <= most for partitions in active)
        )

    async def _load(self) -> None:
        async with Producer(bootstrap_servers=self.servers) as producer:
            due = time.perf_counter()
            while True:
                for number in range(self._partitions):
                    await producer.send(self.topic, b"x", partition=number)
                due = max(due + LOAD_PERIOD_S, time.perf_counter())
                await asyncio.sleep(due - time.perf_counter())


async def rebalances(
    servers: str,
    topic: str,
    partitions: int,
    group_name: str,
    *,
    members: int,
    trials: int,
    progress: Progress = no_progress,
) -> Rebalances:
    """Let the last of `members` join and leave, `trials` times, under a light load."""
    found = Rebalances()
    async with MeasuredGroup(servers, topic, partitions, group_name) as group:
        for _ in range(members):
            await group.add()
        last = group.members[-1]
        for member in group.members[:-1]:
            await member.join()
        await _expect(group, members - 1)
        for trial in range(trials):
            await _change(group, last.join(), members, found.joins, found)
            await _change(group, last.leave(), members - 1, found.leaves, found)
            progress((trial + 1) / trials, f"{trial + 1} of {trials} members joined and left")
    return found


async def _expect(group: MeasuredGroup, members: int) -> float:
    """Wait until so many members share the partitions."""
    while True:
        moment = await group.settled()
        if sum(bool(member.owned) for member in group.members) == members:
            return moment
        group.changed.clear()
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            await group.changed.wait()


async def _change(
    group: MeasuredGroup,
    change: Awaitable[None],
    members: int,
    taken: list[float],
    found: Rebalances,
) -> None:
    before = group.owners()
    group.forget_gaps()
    await asyncio.sleep(CALM_S)
    found.calm_gaps.append(group.gaps(before))
    group.forget_gaps()
    started = time.perf_counter()
    await change
    taken.append(await _expect(group, members) - started)
    after = group.owners()
    await asyncio.sleep(CALM_S)
    kept = [number for number, owner in before.items() if after.get(number) is owner]
    found.kept_gaps.append(group.gaps(kept))


async def commits(
    servers: str,
    topic: str,
    partitions: int,
    group_prefix: str,
    *,
    clients: int,
    seconds: float,
    progress: Progress = no_progress,
) -> Commits:
    """Commit one offset after the other, by clients with a group each, without members."""
    found = Commits(0.0, [])
    consumers: list[Consumer[Any, Any]] = [
        Consumer(
            bootstrap_servers=servers,
            group_id=f"{group_prefix}-{number}",
            auto_commit_interval_ms=None,
        )
        for number in range(clients)
    ]

    async def commit(consumer: Consumer[Any, Any], number: int, until: float) -> None:
        place = TopicPartition(topic, number % partitions)
        offset = 0
        while (started := time.perf_counter()) < until:
            offset += 1
            await consumer.commit({place: offset})
            found.latencies.append(time.perf_counter() - started)
            if number == 0:
                progress(1 - (until - started) / seconds, f"{len(found.latencies):,} commits")

    try:
        for number, consumer in enumerate(consumers):
            await consumer.start()
            # Nothing is assigned, so the consumers fetch nothing beside.
            for _ in range(WARM_UP_COMMITS):
                await consumer.commit({TopicPartition(topic, number % partitions): 0})
        started = time.perf_counter()
        until = started + seconds
        await asyncio.gather(
            *(commit(consumer, number, until) for number, consumer in enumerate(consumers))
        )
        found.seconds = time.perf_counter() - started
    finally:
        await asyncio.gather(*(consumer.close() for consumer in consumers))
    return found
