"""The follower's connection: the dialled leader, its checks, and changes of both."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import pairwise

import msgspec
import pytest

from raftlog.record.errors import NO_LEADER
from raftlog.record.types import BrokerEpoch, BrokerId
from raftlog.replication.streams.protocol import (
    ENTRIES_MAX,
    PROTOCOL,
    Acks,
    Marks,
    Refused,
    StreamHello,
    Subscribe,
    Unsubscribe,
    decode_from_follower,
)
from raftlog.replication.streams.replica_fetcher import FollowState
from raftlog.replication.streams.settings import StreamSettings
from raftlog.world.network import NetworkError, RejectedError
from tests.replication.follower_harness import LEADER, REDIALS, THEIR_HELLO, Stage, batch, data
from tests.replication.streams_world import FakePartition, row


async def test_refused_as_not_led_there_waits_for_metadata() -> None:
    stage = Stage()
    await stage.follow()
    stage.say(Refused(1, NO_LEADER.code, "not here"))
    assert stage.state() is FollowState.STALE
    await asyncio.sleep(0.02)
    assert stage.subscribed() == [1]
    # The same metadata again changes nothing.
    stage.streams.follow(stage.replicas[0], LEADER)
    assert stage.state() is FollowState.STALE
    stage.replicas[0].update(row(1, 2))
    stage.streams.follow(stage.replicas[0], LEADER)
    await stage.until(lambda: stage.subscribed() == [1, 2])
    await stage.streams.close()


async def test_many_partitions_are_subscribed_over_several_turns() -> None:
    stage = Stage(partitions=3 * ENTRIES_MAX)
    turns: list[int] = []

    def count() -> None:
        before = len(stage.subscribed())
        turns.append(before)
        if before < len(stage.replicas):
            asyncio.get_running_loop().call_soon(count)

    count()
    await stage.follow()
    assert sorted(stage.subscribed()) == list(range(1, 3 * ENTRIES_MAX + 1))
    assert max(later - earlier for earlier, later in pairwise(turns)) == ENTRIES_MAX
    # The same for acknowledgements, and for the end of the subscriptions.
    stage.heard.clear()
    for handle, replica in enumerate(stage.replicas, start=1):
        stage.say(data(handle, 0, 1, batch(0)))
        replica.sync()
    for kind in (Acks, Unsubscribe):
        for turn in range(3):
            await asyncio.sleep(0)
            assert [type(each) for each in stage.take()] == [kind], turn
        for replica in stage.replicas:
            stage.streams.unfollow(replica)
    await asyncio.sleep(0)
    assert stage.take() == []
    await stage.streams.close()


async def test_a_replica_that_changes_leaders_is_asked_for_at_the_new_one_only() -> None:
    stage = Stage()
    await stage.follow()
    first = stage.connection
    replica = stage.replicas[0]
    # Another partition's stream to the other leader is open.
    other = FakePartition(2, row(3, 1, number=9))
    stage.network.hello = msgspec.structs.replace(THEIR_HELLO, node_id=3, directory_id="d3")
    third = msgspec.structs.replace(LEADER, broker_id=BrokerId(3), directory_id="d3")
    stage.streams.follow(other, third)
    await stage.until(lambda: len(stage.network.opened) == 2 and stage.take())
    stage.heard.clear()
    first.sent.clear()
    # In one turn: subscribed again, an acknowledgement due, and moved on.
    replica.update(row(1, 2))
    stage.streams.follow(replica, LEADER)
    assert replica.on_durable is not None
    replica.on_durable()
    replica.update(row(3, 3))
    stage.streams.follow(replica, third)
    await stage.until(stage.subscribed)
    assert [decode_from_follower(each) for each in first.sent] == [Unsubscribe([1])]
    assert stage.subscribed() == [2]
    # And the same for acknowledgements only.
    stage.say(data(2, 0, 1, batch(0)))
    replica.sync()
    replica.update(row(1, 4))
    stage.streams.follow(replica, LEADER)
    await stage.until(lambda: len(first.sent) == 2)
    (subscribe,) = [decode_from_follower(each) for each in first.sent[1:]]
    assert isinstance(subscribe, Subscribe)
    await asyncio.sleep(0)
    assert stage.take() == [Unsubscribe([2])]
    await stage.streams.close()


async def test_metadata_that_comes_before_it_is_followed_makes_data_stale() -> None:
    stage = Stage()
    await stage.follow()
    stage.replicas[0].update(row(1, 2))
    stage.say(data(1, 0, 1, batch(0)))
    assert stage.state() is FollowState.STALE
    assert stage.replicas[0].log_end_offset == 0
    stage.streams.follow(stage.replicas[0], LEADER)
    await stage.until(lambda: stage.subscribed() == [1, 2])
    await stage.streams.close()


async def test_following_again_what_is_followed_says_nothing() -> None:
    stage = Stage()
    await stage.follow()
    stage.say(Marks([(1, 0, 0)]))
    stage.streams.follow(stage.replicas[0], LEADER)
    stage.streams.follow(stage.replicas[0], msgspec.structs.replace(LEADER, fenced=True))
    await asyncio.sleep(0.01)
    assert stage.take() == []
    assert len(stage.network.opened) == 1
    assert stage.state() is FollowState.FOLLOWING
    await stage.streams.close()


async def test_a_leader_that_has_started_again_is_called_anew() -> None:
    stage = Stage()
    await stage.follow()
    newer = msgspec.structs.replace(LEADER, broker_epoch=BrokerEpoch(9))
    stage.network.hello = msgspec.structs.replace(THEIR_HELLO, broker_epoch=BrokerEpoch(9))
    stage.streams.follow(stage.replicas[0], newer)
    assert stage.network.opened[0][0].is_closed
    await stage.until(lambda: len(stage.network.opened) == 2)
    # This one was called before its metadata came.
    stage.network.hello = msgspec.structs.replace(THEIR_HELLO, broker_epoch=BrokerEpoch(10))
    stage.network.opened[1][1].closed()
    await stage.until(lambda: len(stage.network.opened) == 3)
    stage.streams.follow(
        stage.replicas[0], msgspec.structs.replace(LEADER, broker_epoch=BrokerEpoch(10))
    )
    await asyncio.sleep(0.01)
    assert not stage.connection.is_closed
    assert len(stage.network.opened) == 3
    await stage.streams.close()


async def test_calls_name_this_node_and_its_epoch_and_wait_until_it_has_one() -> None:
    stage = Stage(settings=StreamSettings(redial_s_min=0.001, redial_s_max=1000, ping_s=3600))
    stage.epoch = None
    stage.streams.follow(stage.replicas[0], LEADER)
    await asyncio.sleep(0.02)
    assert stage.network.calls == []
    stage.epoch = 8
    await stage.until(lambda: stage.network.calls)
    assert max(stage.clock.slept_s) <= 0.001, "it is nobody's failure"
    assert stage.network.calls == [
        (
            "[::1]:8082",
            "replication",
            StreamHello(node_id=2, broker_epoch=BrokerEpoch(8), directory_id="d2", cluster_id="c"),
        )
    ]
    await stage.streams.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"node_id": 3},
        {"directory_id": "other"},
        {"cluster_id": "other"},
        {"protocol": PROTOCOL + 1},
    ],
)
async def test_nobody_else_is_taken_for_the_leader(changes: dict[str, object]) -> None:
    stage = Stage()
    stage.network.hello = msgspec.structs.replace(THEIR_HELLO, **changes)
    stage.streams.follow(stage.replicas[0], LEADER)
    await stage.until(lambda: len(stage.network.rejections) >= 2)
    assert stage.network.opened == []
    (status,) = stage.streams.describe()
    assert status.rejection == str(stage.network.rejections[0])
    stage.network.hello = THEIR_HELLO
    await stage.until(stage.subscribed)
    assert stage.streams.describe()[0].rejection is None
    await stage.streams.close()


@pytest.mark.parametrize("failure", [NetworkError("no way"), RejectedError(1, "no")])
async def test_a_leader_that_cannot_be_reached_is_called_again_less_and_less_often(
    failure: Exception,
) -> None:
    stage = Stage(settings=REDIALS)
    stage.network.failure = failure
    stage.streams.follow(stage.replicas[0], LEADER)
    await stage.until(lambda: len(stage.network.calls) >= 9)
    assert stage.clock.has_doubled()
    stage.network.failure = None
    await stage.until(stage.subscribed)
    await stage.streams.close()


async def test_a_connection_that_is_lost_at_once_is_not_called_again_at_once() -> None:
    stage = Stage(settings=REDIALS)
    stage.streams.follow(stage.replicas[0], LEADER)
    for number in range(1, 9):
        await stage.until(partial(stage.network.has_opened, number))
        stage.network.opened[-1][1].closed()
    await stage.until(partial(stage.network.has_opened, 9))
    assert stage.clock.has_doubled()
    await stage.streams.close()


async def test_after_the_end_nothing_is_followed() -> None:
    stage = Stage()
    await stage.follow()
    await stage.streams.close()
    assert stage.connection.is_closed
    stage.streams.follow(stage.replicas[0], LEADER)
    await asyncio.sleep(0.01)
    assert stage.state() is None
    assert len(stage.network.calls) == 1
    await stage.streams.close()


async def test_what_is_unfollowed_after_the_end_sets_nothing_off() -> None:
    stage = Stage(settings=StreamSettings(linger_s=0.001))
    await stage.follow()
    await stage.streams.close()
    stage.streams.unfollow(stage.replicas[0])
    await asyncio.sleep(0.02)
    assert stage.fatal == []


async def test_a_partition_that_is_not_followed_is_not_unfollowed() -> None:
    stage = Stage()
    await stage.follow()
    stage.streams.unfollow(FakePartition(2, row(1, 1)))
    assert stage.state() is FollowState.SUBSCRIBING
    stage.streams.unfollow(stage.replicas[0])
    stage.streams.unfollow(stage.replicas[0])
    assert stage.state() is None
    await asyncio.sleep(0)
    assert stage.take() == [Unsubscribe([1])]
    await stage.streams.close()
