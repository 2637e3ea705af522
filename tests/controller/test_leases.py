"""Random cuts, deaths, restarts and elections: at most one leader with a lease, and then healing.

One seed is one history. A node's leaderships are those of its own applied metadata, which may be
old: only its lease keeps the node from acting by old metadata.
"""

from __future__ import annotations

import random

import pytest

from tests.controller.cluster import Cluster

SEEDS = range(12)
STEPS = 50
NODES = (1, 2, 3, 4, 5)
TICK_S = 0.05
ELECTION_MIN_S = 0.3
PARTITIONS = [(1, 2, 3), (2, 4, 5), (4, 5), (5, 1), (3,)]


class History:
    """One run."""

    def __init__(self, seed: int, *, timeouts_ms: tuple[int, ...] = ()) -> None:
        self.random = random.Random(seed)
        self.timeouts_ms = timeouts_ms
        """Session timeouts to change between, if any."""
        self.cluster = Cluster(3)
        self.leaderless_since: float | None = None

    async def run(self) -> None:
        cluster = self.cluster
        await cluster.start(4, 5)
        # A returned leadership comes from a living leader with a valid lease. For a moment there
        # are two leaders, in different epochs; the replicas sort that out.
        cluster.configure(leader_rebalance_delay_ms="-1")
        cluster.create_topic(1, *[p for p in PARTITIONS if len(p) == 3])
        cluster.create_topic(2, *[p for p in PARTITIONS if len(p) == 2])
        cluster.create_topic(3, *[p for p in PARTITIONS if len(p) == 1])
        for _ in range(STEPS):
            await self.step()
            for _ in range(self.random.randrange(1, 20)):
                await self.tick()
        cluster.severed.clear()
        for node_id in sorted(cluster.dead):
            await self.restart(node_id)
        for _ in range(100 + 2 * max(self.timeouts_ms, default=0) // int(1000 * TICK_S)):
            await self.tick()
        assert cluster.fenced() == set()
        assert cluster.holders() == set(NODES)
        for topic in cluster.image.topics_by_id.values():
            assert all(row.leader in row.replicas for row in topic.partitions)
        assert all(node.fatal == [] for node in cluster.nodes.values())
        await cluster.close()

    async def step(self) -> None:
        cluster = self.cluster
        if self.timeouts_ms and self.random.random() < 0.3 and cluster.leader_id is not None:
            outcomes = self.random.choices(["refused", "lost", "unknown"], k=8)
            cluster.outcomes.extend(outcomes[: self.random.randrange(8)])
            timeout_ms = self.random.choice(self.timeouts_ms)
            cluster.configure(broker_session_timeout_ms=str(timeout_ms))
        node_id = self.random.choice(NODES)
        match self.random.randrange(6):
            case 0:
                side = set(self.random.sample(NODES, self.random.randrange(1, 4)))
                for one in side:
                    for other in set(NODES) - side:
                        cluster.severed.setdefault(frozenset((one, other)), cluster.clock.now)
            case 1:
                pair = frozenset(self.random.sample(NODES, 2))
                cluster.severed.setdefault(pair, cluster.clock.now)
            case 2 | 3:
                cluster.severed.clear()
            case 4:
                if node_id not in cluster.dead and len(cluster.dead) < 2:
                    await cluster.kill(node_id)
            case 5:
                if node_id in cluster.dead:
                    await self.restart(node_id)

    async def restart(self, node_id: int) -> None:
        cluster = self.cluster
        cluster.boot(node_id)
        await self.register_unregistered()

    async def register_unregistered(self) -> None:
        """A registration needs a reachable leader."""
        cluster = self.cluster
        for node_id in NODES:
            node = cluster.nodes[node_id]
            if (
                node.service.permit.broker_epoch is None
                and node_id not in cluster.dead
                and cluster.leader_id is not None
                and (node_id == cluster.leader_id or cluster.reaches(cluster.leader_id, node_id))
            ):
                await cluster.register(node_id)

    async def tick(self) -> None:
        await self.cluster.clock.advance(TICK_S)
        await self.follow_raft()
        await self.register_unregistered()
        self.check()

    async def follow_raft(self) -> None:
        """The effects of Raft: catch up with the leader, miss the leader, elect another."""
        cluster = self.cluster
        leader_id = cluster.leader_id
        if leader_id is not None and self.has_majority(leader_id):
            self.leaderless_since = None
            for node_id in NODES:
                node = cluster.nodes[node_id]
                if node_id != leader_id and cluster.reaches(leader_id, node_id):
                    node.quorum.catch_up()
                    if node.quorum.leader_id != leader_id:
                        node.quorum.take_role(leader_id, cluster.term, active=False)
            return
        now = cluster.clock.now
        self.leaderless_since = self.leaderless_since or now
        if now - self.leaderless_since >= ELECTION_MIN_S:
            able = [n for n in cluster.voters if n != leader_id and self.has_majority(n)]
            if able:
                # The old leader, if alive, believes in its leadership for a while.
                await cluster.elect(self.random.choice(able))

    def has_majority(self, node_id: int) -> bool:
        cluster = self.cluster
        votes = sum(n == node_id or cluster.reaches(node_id, n) for n in cluster.voters)
        return node_id not in cluster.dead and votes >= 2

    def check(self) -> None:
        acting: dict[tuple[str, int], int] = {}
        for node_id in sorted(self.cluster.holders()):
            image = self.cluster.nodes[node_id].image
            for topic in image.topics_by_id.values():
                for row in topic.partitions:
                    if row.leader == node_id:
                        key = (topic.name, row.partition)
                        assert key not in acting, f"{key}: both {acting[key]} and {node_id}"
                        acting[key] = node_id


@pytest.mark.parametrize("seed", SEEDS)
async def test_at_most_one_leader_acts_and_all_serve_after_healing(seed: int) -> None:
    await History(seed).run()


@pytest.mark.parametrize("seed", range(24))
async def test_at_most_one_leader_acts_while_the_session_timeout_changes(seed: int) -> None:
    await History(seed, timeouts_ms=(1000, 1500, 4000, 9000)).run()


@pytest.mark.parametrize("offset_s", [0.0, 0.07, 0.14, 0.21, 0.28])
async def test_controller_that_was_replaced_does_not_keep_a_leader_acting(offset_s: float) -> None:
    """The controller answers until it misses its majority, for longer than its successor needs."""
    history = History(0)
    cluster = history.cluster
    await cluster.start(4, 5)
    cluster.create_topic(1, (4, 5))
    await cluster.clock.advance(5.0 + offset_s)
    for one in (1, 4):
        for other in (2, 3, 5):
            cluster.severed[frozenset((one, other))] = cluster.clock.now
    await cluster.clock.advance(ELECTION_MIN_S)
    assert cluster.nodes[1].quorum.is_active
    await cluster.elect(2)
    for _ in range(300):
        await cluster.clock.advance(0.01)
        history.check()
    assert cluster.leaders(1) == [5]
    await cluster.close()
