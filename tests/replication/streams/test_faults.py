"""Faults of a connected stream, and their outcomes."""

from __future__ import annotations

import asyncio
import random

import pytest

from raftlog.record.errors import (
    CORRUPT_BATCH,
    DISK_FULL,
    ILLEGAL_STATE,
    MALFORMED_BATCH,
    NOT_READY,
    OFFSET_OUT_OF_RANGE,
    STORAGE_FAILED,
    LogError,
)
from raftlog.record.types import PartitionId
from raftlog.replication.streams.replica_fetcher import FollowState
from raftlog.replication.streams.settings import StreamSettings
from tests.replication.streams.test_streams import SEEDS, SMALL, connected, leader_and_follower
from tests.replication.streams_world import (
    TOPIC_ID,
    Cluster,
    FakePartition,
    play,
    row,
)
from tests.simulation.world import World
from tests.waiting import until

# Failed appends


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("entry", [CORRUPT_BATCH, MALFORMED_BATCH, DISK_FULL, ILLEGAL_STATE])
@pytest.mark.parametrize("append_s", [None, 0.001])
def test_what_could_not_be_appended_is_asked_for_again(
    seed: int, entry: object, append_s: float | None
) -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, partitions=2)
        await connected(cluster)
        _, follower = leader_and_follower(cluster)
        follower.append_s = append_s
        follower.failures = [LogError(entry, "for a test")] * 3  # type: ignore[arg-type]
        began = world.loop.now
        for number in range(20):
            cluster.append(b"%d" % number)
            cluster.append(b"%d" % number, 1)
            await asyncio.sleep(0.0002)
        assert not cluster.agree()
        await until(lambda: cluster.agree(1), deadline_s=0.1)
        await until(cluster.agree, deadline_s=2)
        assert follower.failures == []
        assert world.loop.now - began > 0.04, "after a while, and after a longer one"
        (status,) = cluster[2].follower.describe()
        assert status.corrupt_count == (3 if entry in (CORRUPT_BATCH, MALFORMED_BATCH) else 0)
        assert status.bytes_held == 0
        assert cluster[2].follower.error_of(TOPIC_ID, PartitionId(0)) == ""

    play(seed, main)


def test_what_goes_on_failing_is_asked_for_less_and_less_often() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        await connected(cluster)
        leader, follower = leader_and_follower(cluster)
        follower.failures = [LogError(CORRUPT_BATCH, "for a test")] * 1000
        cluster.append(b"x")
        await asyncio.sleep(60)
        asked = 1000 - len(follower.failures)
        assert 50 < asked < 150, "once a second"
        assert "for a test" in cluster[2].follower.error_of(TOPIC_ID, PartitionId(0))
        assert leader.reads < 150
        follower.failures.clear()
        await until(cluster.agree, deadline_s=2)

    play(0, main)


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_new_leader_epoch_is_asked_for_at_once_however_often_the_last_one_failed(
    side: str,
) -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        await connected(cluster)
        leader, follower = leader_and_follower(cluster)
        asked = 0

        def refuse(*_: object) -> None:
            nonlocal asked
            asked += 1
            raise LogError(NOT_READY, "for a test")

        if side == "leader":
            leader.attach = refuse  # type: ignore[method-assign, assignment]
            cluster[1].do(leader.feeds[2].on_ended, LogError(NOT_READY, "for a test"))
        else:
            follower.failures = [LogError(CORRUPT_BATCH, "for a test")] * 1000
            cluster.append(b"x")

        def tries() -> int:
            return asked if side == "leader" else 1000 - len(follower.failures)

        await asyncio.sleep(30)
        often = tries()
        await asyncio.sleep(0.4)
        assert tries() - often <= 1, "once a second"
        cluster.lead(1, 2)
        await asyncio.sleep(0.4)
        assert tries() - often >= 3

    play(0, main)


def test_a_failed_storage_is_left_alone_until_there_is_another() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        await connected(cluster)
        leader, follower = leader_and_follower(cluster)
        node = cluster[2]
        follower.failures = [LogError(STORAGE_FAILED, "for a test")]
        cluster.append(b"1")
        await until(lambda: node.state() is FollowState.FAILED, deadline_s=1)
        await until(lambda: leader.feeds == {}, deadline_s=0.1)
        await asyncio.sleep(5)
        assert node.state() is FollowState.FAILED
        assert node.follower.describe()[0].failed == 1
        node.do(node.follow, follower)
        assert node.state() is FollowState.FAILED
        # Repaired: the files are quarantined, and an empty log is opened.
        node.replicas[0] = FakePartition(2, follower.image)
        node.do(node.follow, node.replicas[0])
        assert follower.on_durable is None
        await until(cluster.agree, deadline_s=1)

    play(0, main)


def test_the_leaders_failed_storage_is_not_the_followers() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, partitions=2)
        leader, _ = leader_and_follower(cluster)
        await until(lambda: cluster[1].feeds is not None, deadline_s=1)
        leader.read_failures = [LogError(STORAGE_FAILED, "for a test")] * 3
        cluster.append(b"x")
        cluster.append(b"x", 1)
        await until(lambda: cluster.agree(1), deadline_s=0.1)
        await until(cluster.agree, deadline_s=2)
        assert leader.read_failures == []

    play(0, main)


def test_a_feed_that_retention_has_overtaken_begins_anew() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, settings=SMALL)
        leader, follower = leader_and_follower(cluster)
        await until(lambda: cluster[1].feeds is not None, deadline_s=1)
        for number in range(100):
            cluster.append(b"%03d" % number * 100)
        await until(lambda: len(follower.batches) > 10, deadline_s=1)
        leader.read_failures = [LogError(OFFSET_OUT_OF_RANGE, "for a test")]
        cluster[1].do(leader.delete_before, 90)
        await until(lambda: follower.log_end_offset == 100, deadline_s=2)
        await until(lambda: follower.synced == 100, deadline_s=1)
        assert follower.restarts == [90]

    play(0, main)


def test_a_truncation_that_fails_is_tried_again_and_one_that_does_nothing_is_not_forever() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        await connected(cluster)
        _, follower = leader_and_follower(cluster)
        cluster.append(b"1")
        await until(cluster.agree, deadline_s=1)
        world.network.partition([1], [2])
        cluster.lead(2, 2, nodes=[2])
        cluster.append(b"2")
        await asyncio.sleep(0.1)
        follower.failures = [LogError(ILLEGAL_STATE, "below the high watermark")] * 5
        world.network.heal()
        cluster.lead(1, 3)
        cluster.append(b"3")
        await until(cluster.agree, deadline_s=5)
        assert follower.truncations == [1]
        # Now a follower that never truncates.
        world.network.partition([1], [2])
        cluster.lead(2, 4, nodes=[2])
        cluster.append(b"4")
        await asyncio.sleep(0.1)
        follower.cut = lambda offset: None  # type: ignore[method-assign]
        world.network.heal()
        cluster.lead(1, 5)
        cluster.append(b"5")
        await asyncio.sleep(30)
        assert 10 < len(follower.truncations) < 80

    play(0, main)


# Waits


@pytest.mark.parametrize("seed", SEEDS)
def test_what_comes_while_the_log_makes_wait_is_appended_in_order(seed: int) -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, partitions=2)
        await connected(cluster)
        _, follower = leader_and_follower(cluster)
        for number in range(100):
            if number % 20 == 5:
                follower.append_s = 0.003
            if number % 20 == 15:
                follower.append_s = None if number % 40 == 15 else 0.0001
            cluster.append(b"%d" % number)
            cluster.append(b"%d" % number, 1)
            await asyncio.sleep(0.0005)
        await until(lambda: cluster.agree(1), deadline_s=0.1)
        follower.append_s = follower.append_s and 0.0001
        await until(cluster.agree, deadline_s=2)
        (status,) = cluster[2].follower.describe()
        assert (status.bytes_held, status.corrupt_count) == (0, 0)

    play(seed, main)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", ["epoch", "reset", "unfollow", "leader"])
def test_a_subscription_waits_for_the_task_of_the_one_before(seed: int, how: str) -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, nodes=3)
        await connected(cluster)
        node = cluster[2]
        follower = node.replicas[0]
        for number in range(3):
            cluster.append(b"%d" % number)
        await until(cluster.agree, deadline_s=1)
        follower.append_s = 0.2
        for number in range(3, 10):
            cluster.append(b"%d" % number)
        await until(lambda: follower.working > 0, deadline_s=0.1)
        # The fake's `position` fails the run during a change of the log.
        if how == "epoch":
            cluster.lead(1, 2)
        elif how == "leader":
            cluster.lead(3, 2)
        elif how == "reset":
            world.network.reset(1, 2)
        else:
            node.do(node.follower.unfollow, follower)
            assert node.state() is None
            node.do(node.follow, follower)
        cluster.append(b"last")
        await asyncio.sleep(0.1)
        assert follower.working == 1
        follower.append_s = 0.001
        await until(lambda: follower.contents == cluster.leader().contents, deadline_s=2)
        await until(cluster.agree, deadline_s=1)
        assert all(status.bytes_held == 0 for status in node.follower.describe())

    play(seed, main)


def test_marks_that_come_while_the_log_makes_wait_are_taken_after_that() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        await connected(cluster)
        leader, follower = leader_and_follower(cluster)
        cluster.append(b"1")
        await until(cluster.agree, deadline_s=1)
        follower.append_s = 0.2
        cluster.append(b"2")
        await until(lambda: follower.working > 0, deadline_s=0.1)
        cluster[1].do(leader.delete_before, 1)
        await asyncio.sleep(0.1)
        assert cluster[2].state() is FollowState.FOLLOWING
        assert (follower.working, follower.start) == (1, 0)
        await until(lambda: follower.start == 1, deadline_s=0.12)
        await until(lambda: follower.synced == 2, deadline_s=0.01)
        assert cluster[2].follower.error_of(TOPIC_ID, PartitionId(0)) == ""

    play(0, main)


def test_a_replica_that_is_unfollowed_in_the_middle_is_forgotten_when_its_task_is_over() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        await connected(cluster)
        node = cluster[2]
        follower = node.replicas[0]
        follower.append_s = 0.2
        cluster.append(b"1")
        await until(lambda: follower.working > 0, deadline_s=0.1)
        node.do(node.follower.unfollow, follower)
        assert node.follower._replicas
        await asyncio.sleep(0.3)
        assert node.follower._replicas == {}
        assert node.state() is None

    play(0, main)


def test_a_link_that_has_closed_has_no_say_when_its_last_replica_moves_on() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        await connected(cluster)
        node = cluster[2]
        follower = node.replicas[0]
        follower.append_s = 6
        cluster.append(b"1")
        await until(lambda: follower.working > 0, deadline_s=0.1)
        node.do(node.follower.unfollow, follower)
        await asyncio.sleep(5.5)
        assert node.follower.describe() == []
        assert follower.working == 1
        node.do(node.follow, follower)
        follower.append_s = None
        await until(cluster.agree, deadline_s=2)
        await asyncio.sleep(10)
        assert len(node.follower.describe()) == 1
        cluster.append(b"2")
        await until(cluster.agree, deadline_s=1)

    play(0, main)


def test_a_replaced_replica_whose_task_ends_late_does_not_take_the_new_one_along() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        await connected(cluster)
        node = cluster[2]
        old = node.replicas[0]
        old.append_s = 0.2
        cluster.append(b"1")
        await until(lambda: old.working > 0, deadline_s=0.1)
        node.replicas[0] = FakePartition(2, old.image)
        node.do(node.follow, node.replicas[0])
        await until(cluster.agree, deadline_s=0.1)
        assert old.working == 1
        await asyncio.sleep(0.3)
        assert node.state() is FollowState.FOLLOWING
        cluster.lead(1, 2)
        cluster.append(b"2")
        await until(cluster.agree, deadline_s=1)
        assert len(node.follower._replicas) == 1

    play(0, main)


def test_an_old_task_does_not_end_what_follows_it() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        await connected(cluster)
        node = cluster[2]
        follower = node.replicas[0]
        follower.append_s = 0.2
        cluster.append(b"1")
        await until(lambda: follower.working > 0, deadline_s=0.1)
        follower.failures = [LogError(STORAGE_FAILED, "of the old task")]
        cluster.lead(1, 2)
        await until(lambda: follower.failures == [], deadline_s=1)
        follower.append_s = None
        await until(cluster.agree, deadline_s=1)

    play(0, main)


def test_no_more_is_held_than_a_leader_may_send() -> None:
    async def main(world: World) -> None:
        settings = StreamSettings(
            window_bytes=4000, chunk_bytes=1000, batch_bytes_max=1000, piece_bytes=4 << 20
        )
        cluster = Cluster(world, settings=settings)
        await connected(cluster)
        node = cluster[2]
        follower = node.replicas[0]
        follower.append_s = 5.0
        # The leader's window is another one than the follower's.
        cluster[1].leader._channel.sessions[2].settings = StreamSettings()
        connections = world.network.connections
        for _ in range(20):
            cluster.append(b"x" * 500)
        await asyncio.sleep(3)
        assert world.network.connections > connections
        follower.append_s = None
        await until(cluster.agree, deadline_s=20)

    play(0, main)


# Replicas added by a reassignment


def test_replicas_that_are_added_get_no_more_than_their_share() -> None:
    async def main(world: World) -> None:
        settings = StreamSettings(window_bytes=20_000, chunk_bytes=2000)
        cluster = Cluster(world, nodes=3, partitions=2, settings=settings)
        cluster[1].adding_bytes_per_s = 50_000
        one = cluster[1].replicas[0]
        one.image = row(1, 1, adding=(3,))
        await until(lambda: cluster[1].feeds is not None, deadline_s=1)
        for _ in range(100):
            cluster.append(b"x" * 1000)
            cluster.append(b"x" * 1000, 1)
        await until(
            lambda: cluster[2].replicas[0].log_end_offset == 100 and cluster.agree(1), deadline_s=1
        )
        added = cluster[3].replicas[0]
        began, first = world.loop.now, added.log_end_offset
        assert first < 50
        await asyncio.sleep(1)
        assert 40_000 <= (added.log_end_offset - first) * 1000 <= 60_000
        # Without a bound all bytes pass at once.
        cluster[1].adding_bytes_per_s = 0
        await until(cluster.agree, deadline_s=1)
        assert world.loop.now - began < 2

    play(0, main)


# All faults together


@pytest.mark.parametrize("seed", range(40))
def test_replicas_agree_in_the_end_whatever_happens(seed: int) -> None:
    """Leaders change to replicas with all committed records; no committed record is ever lost."""

    async def main(world: World) -> None:  # noqa: PLR0912 - a line or two for each event
        chance = random.Random(seed)
        partitions = 3
        cluster = Cluster(world, nodes=3, partitions=partitions, settings=SMALL)
        committed: dict[int, list[bytes]] = {number: [] for number in range(partitions)}

        def note(number: int) -> None:
            leader = cluster.leader(number)
            known = [batch.content for batch in leader.batches if batch.next <= everywhere(number)]
            if len(known) > len(committed[number]):
                committed[number] = known

        def everywhere(number: int) -> int:
            """Durable end of all replicas."""
            leader = cluster.leader(number)
            ends = [
                leader.ends[each][1] if each in leader.ends else 0
                for each in (1, 2, 3)
                if each != leader.node_id
            ]
            return min(leader.synced, *ends)

        def elect(number: int) -> None:
            best = max(
                chance.sample(cluster.replicas(number), 3),
                key=lambda each: (each.batches[-1].epoch if each.batches else 0, each.synced),
            )
            cluster.lead(best.node_id, cluster.rows[number].leader_epoch + 1, number)

        for step in range(150):
            number = chance.randrange(partitions)
            what = chance.random()
            node_id = chance.choice((1, 2, 3))
            if what < 0.6:
                leader = cluster.leader(number)
                if world.is_up(leader.node_id):
                    for _ in range(chance.randrange(1, 8)):
                        cluster.append(b"%d-%d" % (step, chance.randrange(10**9)) * 20, number)
            elif what < 0.66:
                world.network.reset(node_id, node_id % 3 + 1)
            elif what < 0.70:
                world.network.partition([node_id], [each for each in (1, 2, 3) if each != node_id])
            elif what < 0.78:
                world.network.heal()
            elif what < 0.82 and world.is_up(node_id):
                for each in range(partitions):
                    note(each)
                cluster[node_id].crash(power=chance.random() < 0.5)
            elif what < 0.86:
                for each in (1, 2, 3):
                    if not world.is_up(each):
                        cluster[each].start()
            elif what < 0.92:
                for each in range(partitions):
                    note(each)
                elect(number)
            elif what < 0.96:
                cluster[node_id].replicas[number].append_s = chance.choice((None, 0.002, 0.02))
            else:
                failure = LogError(chance.choice((CORRUPT_BATCH, DISK_FULL)), "for a test")
                cluster[node_id].replicas[number].failures.append(failure)
            await asyncio.sleep(chance.choice((0.0, 0.002, 0.02, 0.2)))
            for each in range(partitions):
                note(each)
        world.network.heal()
        for each in (1, 2, 3):
            if not world.is_up(each):
                cluster[each].start()
            for replica in cluster[each].replicas.values():
                replica.append_s = None
        for each in range(partitions):
            elect(each)
            cluster.append(b"end", each)
        await until(
            lambda: all(cluster.agree(number) for number in range(partitions)), deadline_s=10
        )
        for number in range(partitions):
            contents = cluster.leader(number).contents
            assert contents[: len(committed[number])] == committed[number]
        assert all(status.bytes_in_flight == 0 for status in cluster[1].leader.describe())
        for node in cluster.nodes.values():
            assert all(status.bytes_held == 0 for status in node.follower.describe())

    play(seed, main)


def test_the_same_seed_gives_the_same_run() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, nodes=3, partitions=5, settings=SMALL)
        await connected(cluster)
        for number in range(50):
            cluster.append(b"%d" % number * 50, number % 5)
            if number % 10 == 5:
                world.network.reset(1, number % 2 + 2)
            await asyncio.sleep(0.01)
        await until(lambda: all(cluster.agree(each) for each in range(5)), deadline_s=3)

    assert play(7, main) == play(7, main)
