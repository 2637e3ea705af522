"""Leaders and followers over the simulated network: replicas come to agree, whatever happens."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from raftlog.metadata.image import BrokerImage
from raftlog.record.types import BrokerId
from raftlog.replication.streams.replica_fetcher import FollowState
from raftlog.replication.streams.settings import StreamSettings
from tests.replication.streams_world import Cluster, FakePartition, play
from tests.simulation.world import World
from tests.waiting import until

SEEDS = range(12)

SMALL = StreamSettings(
    window_bytes=4000,
    chunk_bytes=1000,
    live_bytes_max=1500,
    piece_bytes=2000,
    queued_bytes_max=4000,
    batch_bytes_max=100_000,
)


def leader_and_follower(cluster: Cluster) -> tuple[FakePartition, FakePartition]:
    return cluster[1].replicas[0], cluster[2].replicas[0]


async def connected(cluster: Cluster) -> None:
    """Return when all follow all."""
    nodes = [node for node in cluster.nodes.values() if node.node_id != 1]

    def all_follow() -> bool:
        return all(
            node.streams is not None and node.state(number) is FollowState.FOLLOWING
            for node in nodes
            for number in node.replicas
        )

    await until(all_follow, deadline_s=5)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_appended_reaches_the_follower_and_is_committed(seed: int) -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        await connected(cluster)
        for number in range(20):
            cluster.append(b"%d" % number)
            await asyncio.sleep(0.001)
        await until(cluster.agree, deadline_s=0.1)
        leader, follower = leader_and_follower(cluster)
        assert leader.reads == 0, "live appends are sent from memory"
        await until(lambda: follower.high_watermark == 20, deadline_s=0.1)

    play(seed, main)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_that_is_behind_catches_up_and_goes_live(seed: int) -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, nodes=3, settings=SMALL)
        await until(lambda: cluster[1].feeds is not None, deadline_s=1)
        for number in range(100):
            cluster.append(b"%d" % number * 100)
        for number in range(100):
            # While it catches up.
            cluster.append(b"%d" % number * 100)
            await asyncio.sleep(0.001)
        await until(cluster.agree, deadline_s=5)
        leader = cluster[1].replicas[0]
        reads = leader.reads
        assert reads < 150, "read in chunks, not batch by batch"
        cluster.append(b"live")
        await until(cluster.agree, deadline_s=0.1)
        assert leader.reads == reads
        assert [status.feeds_behind for status in cluster[1].leader.describe()] == [0, 0]

    play(seed, main)


def test_no_more_than_the_window_is_in_flight() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, settings=SMALL)
        await connected(cluster)
        leader, follower = leader_and_follower(cluster)
        follower.sync_s = None
        for number in range(200):
            cluster.append(b"%03d" % number * 30)
            (status,) = cluster[1].leader.describe()
            assert status.bytes_in_flight <= SMALL.window_bytes
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.5)
        (status,) = cluster[1].leader.describe()
        assert 3000 <= status.bytes_in_flight <= SMALL.window_bytes
        assert len(follower.batches) < 50
        follower.sync_s = 0.001
        cluster[2].do(follower.sync)
        await until(cluster.agree, deadline_s=2)
        (status,) = cluster[1].leader.describe()
        assert status.bytes_in_flight == 0
        assert status.bytes_sent == sum(len(batch.data) for batch in leader.batches)

    play(0, main)


def test_one_partition_that_is_far_behind_does_not_hold_up_the_others() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, partitions=3, settings=SMALL)
        await until(lambda: cluster[1].feeds is not None, deadline_s=1)
        for _ in range(2000):
            cluster.append(b"x" * 500, 0)
        for _ in range(20):
            cluster.append(b"y" * 500, 1)
            cluster.append(b"z" * 500, 2)
        await until(lambda: cluster.agree(1) and cluster.agree(2), deadline_s=1)
        assert len(cluster[2].replicas[0].batches) < 200
        await until(cluster.agree, deadline_s=20)

    play(0, main)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_longer_than_a_message_goes_in_pieces(seed: int) -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, settings=SMALL, partitions=2)
        await connected(cluster)
        cluster.append(b"before")
        cluster.append(bytes(range(256)) * 100)
        cluster.append(b"after")
        for _ in range(50):
            # In between the pieces.
            cluster.append(b"other", 1)
            await asyncio.sleep(0.0005)
        await until(lambda: cluster.agree(0) and cluster.agree(1), deadline_s=2)
        (status,) = cluster[2].follower.describe()
        assert status.bytes_held == 0
        assert status.corrupt_count == 0

    play(seed, main)


@pytest.mark.parametrize("seed", SEEDS)
def test_lost_connections_are_replaced_at_once(seed: int) -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, nodes=3)
        await connected(cluster)
        for number in range(100):
            cluster.append(b"%d" % number)
            if number % 25 == 10:
                world.network.reset(1, 2)
            await asyncio.sleep(0.02)
        await until(cluster.agree, deadline_s=2)

    play(seed, main)


def test_a_connection_that_lasted_is_replaced_without_a_pause_however_often_that_happens() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        await connected(cluster)
        node = cluster[2]
        link = node.follower._links[BrokerId(1)]
        for _ in range(8):
            await asyncio.sleep(1.5)
            assert link.stream is not None
            node.do(link.stream.end, "for a test")
            await until(lambda: node.state() is FollowState.FOLLOWING, deadline_s=0.1)

    play(0, main)


@pytest.mark.parametrize("seed", SEEDS)
def test_both_sides_end_a_silent_connection_and_the_follower_calls_again(seed: int) -> None:
    async def main(world: World) -> None:
        world.network.give_up_s = (60.0, 60.0)
        cluster = Cluster(world)
        await connected(cluster)
        await asyncio.sleep(5)
        connections = world.network.connections
        assert cluster[1].leader.describe(), "pings keep an idle connection"
        one_way = seed % 3
        if one_way != 1:
            world.network.block(1, 2)
        if one_way != 2:
            world.network.block(2, 1)
        cluster.append(b"unheard")
        # Its own undelivered pings do not count as messages of the peer.
        await until(lambda: not cluster[1].leader.describe(), deadline_s=4 if one_way else 3)
        await until(lambda: not cluster[2].follower.describe()[0].is_connected, deadline_s=3)
        world.network.heal()
        await until(cluster.agree, deadline_s=5)
        assert world.network.connections > connections

    play(seed, main)


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_that_starts_again_goes_on_from_what_it_has(seed: int, power: bool) -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, nodes=3)
        await connected(cluster)
        for number in range(40):
            cluster.append(b"%d" % number)
            if number == 10:
                cluster[2].crash(power=power)
            if number == 30:
                cluster[2].start()
            await asyncio.sleep(0.01)
        await until(cluster.agree, deadline_s=5)

    play(seed, main)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_former_leader_cuts_what_the_new_one_does_not_have(seed: int) -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, nodes=3)
        await connected(cluster)
        for number in range(10):
            cluster.append(b"old %d" % number)
        await until(cluster.agree, deadline_s=1)
        world.network.partition([1], [2, 3])
        for number in range(5):
            cluster.append(b"lost %d" % number)
        await asyncio.sleep(0.05)
        cluster[1].crash()
        cluster.lead(2, 2)
        cluster.append(b"new")
        world.network.heal()
        cluster[1].start()
        await until(cluster.agree, deadline_s=5)
        first = cluster[1].replicas[0]
        assert first.truncations == [10]
        assert first.contents == [b"old %d" % number for number in range(10)] + [b"new"]

    play(seed, main)


@pytest.mark.parametrize("seed", SEEDS)
def test_several_cuts_if_the_histories_part_more_than_once(seed: int) -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, nodes=2)
        one, two = leader_and_follower(cluster)
        await until(lambda: cluster[2].streams is not None, deadline_s=1)
        world.network.partition([1], [2])
        # Node 1 led epochs 1, 3 and 5, node 2 led 2 and 4; each missed the epochs of the other.
        for epoch in range(1, 6):
            node = 1 if epoch % 2 else 2
            cluster.lead(node, epoch, nodes=[node])
            cluster.append(b"%d" % epoch)
            cluster.append(b"%d" % epoch)
        await asyncio.sleep(0.1)
        world.network.heal()
        cluster.lead(1, 6)
        await until(cluster.agree, deadline_s=5)
        assert one.truncations == []
        assert len(two.truncations) >= 1
        assert two.contents == [b"1", b"1", b"3", b"3", b"5", b"5"]

    play(seed, main)


def test_a_follower_below_the_log_start_begins_there() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, settings=SMALL)
        one, two = leader_and_follower(cluster)
        await until(lambda: cluster[1].feeds is not None, deadline_s=1)
        for number in range(10):
            cluster.append(b"%d" % number)
        cluster[1].do(one.delete_before, 4)
        await until(cluster.agree, deadline_s=2)
        assert two.restarts == [4]
        assert two.log_start_offset == 4

    play(3, main)


def test_marks_move_without_data() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        await connected(cluster)
        one, two = leader_and_follower(cluster)
        for number in range(10):
            cluster.append(b"%d" % number)
        await until(cluster.agree, deadline_s=1)
        await until(lambda: two.high_watermark == 10, deadline_s=0.05)
        cluster[1].do(one.delete_before, 4)
        await until(lambda: two.log_start_offset == 4, deadline_s=0.05)
        # And the leader gets the acknowledgement.
        await until(lambda: one.ends[2][2] == 4, deadline_s=0.05)

    play(1, main)


def test_what_compaction_left_out_is_no_gap() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, settings=SMALL)
        one, two = leader_and_follower(cluster)
        await until(lambda: cluster[1].feeds is not None, deadline_s=1)
        for number in range(30):
            cluster.append(b"%d" % number)
        del one.batches[3:7]
        del one.batches[-5:-1]
        await until(cluster.agree, deadline_s=2)
        # Nothing is left behind: no data can say where the log ends, until some is appended.
        end = one.log_end_offset
        cluster[2].crash()
        cluster.append(b"more")
        one.batches.pop()
        one.empty_end = end
        cluster[2].start()
        await connected(cluster)
        cluster.append(b"at last")
        await until(cluster.agree, deadline_s=2)
        assert cluster[2].follower.describe()[0].corrupt_count == 0
        assert len(two.batches) == 23

    play(1, main)


def test_a_thousand_partitions_share_one_connection() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, partitions=1000)
        await connected(cluster)
        assert world.network.connections <= 2
        for number in range(1000):
            cluster.append(b"%d" % number, number)
        await until(lambda: all(cluster.agree(number) for number in range(1000)), deadline_s=1)
        world.network.reset(1, 2)
        await asyncio.sleep(2)
        for number in range(1000):
            cluster.append(b"again %d" % number, number)
        await until(lambda: all(cluster.agree(number) for number in range(1000)), deadline_s=1)
        for number in range(1000):
            cluster.lead(2, 2, number)
        await asyncio.sleep(1)
        for number in range(1000):
            cluster.append(b"turned %d" % number, number)
        await until(lambda: all(cluster.agree(number) for number in range(1000)), deadline_s=1)

    play(0, main)


def test_what_is_said_of_many_partitions_is_gathered() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, partitions=1000)
        await connected(cluster)
        to_leader = [line for line in world.lines if "2>1" in line and "received" in line]
        assert len(to_leader) <= 6, "500 subscriptions in a message"
        for number in range(1000):
            cluster.append(b"%d" % number, number)
        await until(lambda: cluster.agree(999), deadline_s=1)
        acks = [line for line in world.lines if "2>1" in line and "received" in line]
        assert len(acks) < 300

    play(0, main)


@pytest.mark.parametrize("seed", SEEDS)
def test_metadata_may_come_to_the_leader_or_to_the_follower_first(seed: int) -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, nodes=3)
        await connected(cluster)
        cluster.append(b"1")
        await until(cluster.agree, deadline_s=1)
        # The follower first: its leader does not know yet.
        cluster.lead(1, 2, nodes=[2])
        await asyncio.sleep(0.3)
        assert cluster[2].state() in (FollowState.BACKOFF, FollowState.SUBSCRIBING)
        cluster.apply(1)
        # The leader first.
        await asyncio.sleep(0.1)
        assert cluster[3].state() is FollowState.STALE
        cluster.append(b"2")
        cluster.apply(3)
        await until(cluster.agree, deadline_s=2)

    play(seed, main)


def test_a_stale_subscription_is_asked_for_again_after_a_while() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        one, _ = leader_and_follower(cluster)
        await until(lambda: cluster[1].feeds is not None, deadline_s=1)
        # The leader is behind the follower and does not know that it is: it follows, says its
        # metadata, in the very epoch in which the follower's says that it leads.
        image = one.image
        one.image = msgspec.structs.replace(image, leader=2)
        await until(lambda: cluster[2].state() is FollowState.STALE, deadline_s=2)
        one.image = image
        await until(lambda: cluster[2].state() is FollowState.FOLLOWING, deadline_s=3)

    play(0, main)


@pytest.mark.parametrize("seed", SEEDS)
def test_leadership_goes_round(seed: int) -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, nodes=3, partitions=3)
        await connected(cluster)
        for epoch in range(2, 12):
            for number in range(3):
                cluster.append(b"%d" % epoch, number)
                cluster.append(b"%d" % epoch, number)
            await until(lambda: all(cluster.agree(number) for number in range(3)), deadline_s=3)
            for number in range(3):
                cluster.lead((epoch + number) % 3 + 1, epoch, number)
        await asyncio.sleep(10)
        assert world.network.connections < 40

    play(seed, main)


def test_a_connection_ends_some_time_after_nothing_is_followed_on_it() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        await connected(cluster)
        one, two = leader_and_follower(cluster)
        cluster[2].do(cluster[2].follower.unfollow, two)
        assert two.on_durable is None
        await until(lambda: 2 not in one.feeds, deadline_s=0.1)
        await asyncio.sleep(1)
        assert cluster[1].leader.describe()
        await until(lambda: not cluster[1].leader.describe(), deadline_s=6)
        assert cluster[2].follower.describe() == []
        cluster[2].do(cluster[2].follow, two)
        cluster.append(b"x")
        await until(cluster.agree, deadline_s=1)
        # A shorter pause keeps the connection.
        cluster[2].do(cluster[2].follower.unfollow, two)
        await asyncio.sleep(1)
        connections = world.network.connections
        cluster[2].do(cluster[2].follow, two)
        await asyncio.sleep(10)
        assert world.network.connections == connections
        assert cluster.agree()

    play(0, main)


def test_a_leader_at_another_address_is_called_there() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        await connected(cluster)
        cluster[1].crash()
        await asyncio.sleep(3)
        world.network.move(1, "moved.test:9")
        cluster[1].start()
        await until(lambda: cluster[2].state() is FollowState.FOLLOWING, deadline_s=0.5)

    play(0, main)


def test_a_leader_that_returns_is_followed_soon() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        await connected(cluster)
        cluster[1].crash()
        await asyncio.sleep(20)
        cluster[1].start()
        await until(lambda: cluster[2].state() is FollowState.FOLLOWING, deadline_s=0.3)

    play(0, main)


# Admission


def test_an_earlier_start_of_a_broker_is_not_let_in() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        await connected(cluster)
        (before,) = cluster[1].leader.describe()
        # Registered again by another process; this one does not know.
        follower = cluster[2]
        epoch = follower.epoch
        follower.epoch = epoch + 1
        cluster[1].do(cluster[1].leader.broker_changed, 2)
        assert cluster[1].leader.describe() == []
        # After the new metadata the next call has the new epoch.
        await asyncio.sleep(2)
        (after,) = cluster[1].leader.describe()
        assert (before.broker_epoch, after.broker_epoch) == (epoch, epoch + 1)

    play(0, main)


@pytest.mark.parametrize(
    ("known", "reason"),
    [(None, "not known"), (-1, "not known"), (+1, "started again"), (0, None)],
)
def test_only_the_registered_start_of_a_broker_follows(
    known: int | None, reason: str | None
) -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        real = cluster.broker
        epoch = cluster[2].epoch

        def broker(broker_id: BrokerId) -> BrokerImage | None:
            image = real(broker_id)
            if broker_id != 2 or image is None:
                return image
            if known is None:
                return None
            return msgspec.structs.replace(image, broker_epoch=epoch + known)

        cluster.broker = broker  # type: ignore[method-assign]
        await asyncio.sleep(1)
        (status,) = cluster[2].follower.describe()
        assert status.is_connected == (reason is None)
        if reason is not None:
            assert status.rejection is not None
            assert reason in status.rejection
        cluster.broker = real  # type: ignore[method-assign]
        await until(lambda: cluster[2].state() is FollowState.FOLLOWING, deadline_s=2)

    play(0, main)


def test_a_newer_connection_takes_the_place_of_the_older_one() -> None:
    async def main(world: World) -> None:
        world.network.give_up_s = (60.0, 60.0)
        world.network.half_open = 1.0
        cluster = Cluster(world, settings=StreamSettings(silent_pings_max=1000))
        await connected(cluster)
        cluster.append(b"1")
        await until(cluster.agree, deadline_s=1)
        follower = cluster[2]
        link = follower.follower._links[BrokerId(1)]
        # The leader cannot hear of the end.
        world.network.block(2, 1)
        assert link.stream is not None
        follower.do(link.stream.end, "for a test")
        await asyncio.sleep(1)
        assert len(cluster[1].leader.describe()) == 1
        world.network.heal()
        await until(lambda: follower.state() is FollowState.FOLLOWING, deadline_s=3)
        assert len(cluster[1].leader.describe()) == 1
        cluster.append(b"2")
        await until(cluster.agree, deadline_s=1)

    play(0, main)


# The end


def test_nothing_is_left_when_both_sides_are_closed() -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world, nodes=2, partitions=3)
        await connected(cluster)
        for node in cluster.nodes.values():
            await node.wait(node.follower.close())
            await node.wait(node.leader.close())
            await node.wait(node.follower.close())
        await asyncio.sleep(0.1)
        assert all(not node.process.ends for node in cluster.nodes.values())
        assert all(not node.leader._tasks for node in cluster.nodes.values())
        assert all(not node.follower._tasks for node in cluster.nodes.values())
        assert all(replica.on_durable is None for replica in cluster[2].replicas.values())
        assert cluster[1].replicas[0].feeds == {}
        await asyncio.sleep(20)
        assert all(not node.process.ends for node in cluster.nodes.values())

    play(0, main)
