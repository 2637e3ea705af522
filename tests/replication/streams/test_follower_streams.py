"""The follower's side alone, against any messages of a leader, however wrong."""

from __future__ import annotations

import asyncio
import logging

import pytest

from raftlog.record.errors import CORRUPT_BATCH, NO_LEADER, NOT_READY, LogError
from raftlog.record.types import LeaderEpoch, PartitionId
from raftlog.replication.streams import leader_connection
from raftlog.replication.streams.protocol import (
    CONTINUES,
    MORE,
    Acks,
    Diverged,
    FromLeader,
    Marks,
    Refused,
    Restart,
    Subscribe,
    Unsubscribe,
    encode,
)
from raftlog.replication.streams.replica_fetcher import FollowState
from raftlog.replication.streams.settings import StreamSettings
from raftlog.storage.compaction.plan import NO_HORIZON
from tests.replication.follower_harness import LEADER, Stage, batch, data
from tests.replication.streams_world import TOPIC_ID, Batch, row


async def test_the_fast_path_is_append_sync_and_one_acknowledgement() -> None:
    stage = Stage(2)
    await stage.follow()
    stage.say(data(1, 0, 1, batch(0)))
    stage.say(data(1, 1, 2, batch(1)))
    stage.say(data(2, 0, 1, batch(0)))
    assert [replica.log_end_offset for replica in stage.replicas] == [2, 1]
    assert stage.state() is FollowState.FOLLOWING
    for replica in stage.replicas:
        replica.sync()
    assert stage.take() == []
    await asyncio.sleep(0)
    assert stage.take() == [Acks([(1, 2, 0), (2, 1, 0)])]
    assert not stage.streams._replicas[TOPIC_ID, PartitionId(0)].is_working
    await stage.streams.close()


async def test_what_a_subscription_says_is_not_said_again() -> None:
    stage = Stage()
    replica = stage.replicas[0]
    replica.batches = [Batch(0, 5, 1, b"x")]
    replica.synced = 3
    await stage.follow()
    (subscribe,) = stage.heard
    assert isinstance(subscribe, Subscribe)
    (asked,) = subscribe.subscriptions
    assert (asked.offset, asked.last_epoch, asked.durable_end, asked.leader_epoch) == (5, 1, 3, 1)
    assert replica.on_durable is not None
    replica.on_durable()
    await asyncio.sleep(0)
    assert stage.take() == []
    replica.sync()
    await asyncio.sleep(0)
    assert stage.take() == [Acks([(1, 5, 0)])]
    await stage.streams.close()


async def test_what_is_acknowledged_never_falls_nor_goes_beyond_what_was_sent() -> None:
    stage = Stage()
    replica = stage.replicas[0]
    await stage.follow()
    stage.say(data(1, 0, 4, batch(0, count=4)))
    assert replica.on_durable is not None
    for durable_end, expected in ((3, 3), (2, None), (9, 4), (4, None)):
        replica.synced = durable_end
        replica.on_durable()
        await asyncio.sleep(0)
        assert stage.take() == ([] if expected is None else [Acks([(1, expected, 0)])])
    # The log start counts, too.
    replica.start = 2
    replica.on_durable()
    await asyncio.sleep(0)
    assert stage.take() == [Acks([(1, 4, 2)])]
    await stage.streams.close()


@pytest.mark.parametrize(
    "wrong",
    [
        [data(1, 5, 6, batch(5))],  # a gap
        [data(1, 0, 1, batch(0)), data(1, 0, 1, batch(0))],  # a repetition
        [data(1, 0, 3, batch(0))],  # the head and the batches disagree
        [data(1, 0, 1, b"not a batch")],
        [data(1, 0, 1, batch(0)[:10], flags=MORE), data(1, 0, 1, batch(0)[10:])],
        [data(1, 0, 1, batch(0)[10:], flags=CONTINUES)],
        [
            data(1, 0, 1, batch(0)[:10], flags=MORE),
            data(1, 0, 1, batch(0)[10:], flags=MORE),
        ],
    ],
)
async def test_data_that_does_not_belong_is_dropped_and_asked_for_anew(wrong: list[bytes]) -> None:
    stage = Stage(2)
    await stage.follow()
    for message in wrong:
        stage.say(message)
    assert stage.state() is FollowState.BACKOFF
    assert stage.streams.error_of(TOPIC_ID, PartitionId(0)) != ""
    # Late messages for the old handle have no effect.
    stage.say(data(1, 0, 1, batch(0)))
    stage.say(Marks([(1, 1, 0)]))
    stage.say(Refused(1, NOT_READY.code, "late"))
    stage.say(Diverged(1, 0, 0))
    await stage.until(lambda: len(stage.subscribed()) == 3)
    assert stage.subscribed() == [1, 2, 3]
    assert Unsubscribe([1]) in stage.heard
    end = stage.replicas[0].log_end_offset
    stage.say(data(3, end, end + 1, batch(end)))
    assert stage.state() is FollowState.FOLLOWING
    (status,) = stage.streams.describe()
    assert (status.corrupt_count, status.bytes_held) == (1, 0)
    assert not stage.connection.is_closed, "the other partition goes on"
    await stage.streams.close()


async def test_pieces_are_put_together() -> None:
    stage = Stage(2)
    await stage.follow()
    long = batch(0, b"0123456789" * 10)
    stage.say(data(1, 0, 1, long[:20], flags=MORE))
    stage.say(data(2, 0, 1, batch(0)))
    stage.say(data(1, 0, 1, long[20:50], flags=MORE | CONTINUES))
    assert stage.streams.describe()[0].bytes_held == 50
    assert stage.replicas[0].log_end_offset == 0
    stage.say(data(1, 0, 1, long[50:], flags=CONTINUES))
    assert stage.replicas[0].contents == [b"0123456789" * 10]
    stage.say(data(1, 1, 2, batch(1)))
    assert stage.replicas[0].log_end_offset == 2
    assert stage.streams.describe()[0].bytes_held == 0
    await stage.streams.close()


@pytest.mark.parametrize(
    "message",
    [
        data(9, 0, 1, b"x"),
        encode(Marks([(9, 0, 0)])),
        encode(Refused(9, 1, "")),
        encode(Acks([])),
        b"",
        b"\xc1",
    ],
)
async def test_what_a_leader_cannot_mean_ends_the_connection(message: bytes) -> None:
    stage = Stage()
    await stage.follow()
    stage.say(message)
    assert stage.connection.is_closed
    assert stage.state() is FollowState.IDLE
    first = stage.network.opened[0][1]
    await stage.until(lambda: len(stage.subscribed()) == 2)
    # The old connection has nothing to say any more, nor does its end.
    first.received(data(1, 0, 1, batch(0)))
    first.closed()
    assert stage.replicas[0].log_end_offset == 0
    stage.say(data(1, 0, 1, batch(0)))
    assert stage.replicas[0].log_end_offset == 1
    await stage.streams.close()


@pytest.mark.parametrize(
    "end",
    [
        Refused(1, NO_LEADER.code, "x"),
        Diverged(1, LeaderEpoch(0), 0),
        Restart(1, 0, b"", False, NO_HORIZON, False),
    ],
)
async def test_a_handle_that_the_leader_has_ended_is_heard_of_no_more(end: FromLeader) -> None:
    stage = Stage()
    await stage.follow()
    stage.say(end)
    state = stage.state()
    stage.say(data(1, 0, 1, batch(0)))
    stage.say(Marks([(1, 1, 0)]))
    stage.say(end)
    assert stage.state() is state
    assert stage.replicas[0].log_end_offset == 0
    assert not stage.connection.is_closed
    await stage.streams.close()


async def test_the_pieces_of_a_restart_are_put_together() -> None:
    stage = Stage(partitions=2)
    await stage.follow()
    stage.say(Restart(1, 5, b"ab", True, NO_HORIZON, False))
    stage.say(data(2, 0, 1, batch(0)))
    stage.say(Restart(1, 5, b"cd", True, NO_HORIZON, False))
    assert stage.state() is FollowState.SUBSCRIBING
    stage.say(Restart(1, 5, b"e", False, NO_HORIZON, False))
    await stage.until(lambda: stage.subscribed() == [1, 2, 3])
    assert stage.replicas[0].producers == b"abcde"
    assert stage.replicas[0].log_end_offset == 5
    assert stage.replicas[1].log_end_offset == 1
    await stage.streams.close()


async def test_pieces_of_what_is_not_wanted_any_more_are_dropped() -> None:
    stage = Stage(partitions=2)
    await stage.follow()
    stage.say(Restart(1, 5, b"ab", True, NO_HORIZON, False))
    stage.replicas[0].update(row(1, 2))
    stage.streams.follow(stage.replicas[0], LEADER)
    await stage.until(lambda: stage.subscribed() == [1, 2, 3])
    stage.say(Restart(1, 5, b"cd", False, NO_HORIZON, False))
    stage.say(Restart(2, 6, b"x", False, NO_HORIZON, False))
    stage.say(Restart(3, 7, b"y", False, NO_HORIZON, False))
    await stage.until(lambda: stage.subscribed() == [1, 2, 3, 4, 5])
    assert [replica.producers for replica in stage.replicas] == [b"y", b"x"]
    await stage.streams.close()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Restart(2, 5, b"cd", False, NO_HORIZON, False), "left in the middle"),
        (Restart(1, 5, b"", True, NO_HORIZON, False), "is empty"),
        (Restart(1, 5, b"x" * 99, True, NO_HORIZON, False), "longer than 100 bytes"),
    ],
)
async def test_pieces_that_do_not_go_together_end_the_connection(
    message: Restart, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leader_connection, "PRODUCERS_BYTES_MAX", 100)
    caplog.set_level(logging.INFO)
    stage = Stage(partitions=2)
    await stage.follow()
    stage.say(Restart(1, 5, b"ab", True, NO_HORIZON, False))
    stage.say(message)
    assert stage.network.opened[0][0].is_closed
    assert reason in caplog.text
    await stage.streams.close()


async def test_what_is_queued_ends_with_its_subscription() -> None:
    stage = Stage()
    await stage.follow()
    replica = stage.replicas[0]
    replica.append_s = 0.01
    for number in range(4):
        stage.say(data(1, number, number + 1, batch(number)))
    await stage.until(lambda: replica.log_end_offset == 1 and replica.working)
    replica.update(row(1, 2))
    stage.streams.follow(replica, LEADER)
    assert stage.streams.describe()[0].bytes_held == 0
    await stage.until(lambda: stage.subscribed() == [1, 2])
    assert replica.log_end_offset == 2
    assert stage.streams.describe()[0].bytes_held == 0
    await stage.streams.close()


async def test_a_timer_of_the_time_before_sets_nothing_off() -> None:
    stage = Stage(settings=StreamSettings(retry_s_min=0.01, retry_s_max=0.01))
    await stage.follow()
    stage.say(data(1, 5, 6, batch(5)))
    assert stage.state() is FollowState.BACKOFF
    stage.replicas[0].update(row(1, 2))
    stage.streams.follow(stage.replicas[0], LEADER)
    await asyncio.sleep(0)
    stage.say(Marks([(2, 0, 0)]))
    await asyncio.sleep(0.03)
    assert stage.subscribed() == [1, 2]
    assert stage.state() is FollowState.FOLLOWING
    await stage.streams.close()


@pytest.mark.parametrize("append_s", [None, 0.001])
async def test_a_hole_in_the_log_is_not_taken_for_what_compaction_left_out(
    append_s: float | None,
) -> None:
    """The log has lost its end since the subscription: the data does not fit behind."""
    stage = Stage()
    replica = stage.replicas[0]
    await stage.follow()
    for number in range(3):
        stage.say(data(1, number, number + 1, batch(number)))
    replica.append_s = append_s
    replica.cut(1)
    stage.say(data(1, 3, 4, batch(3)))
    await stage.until(lambda: stage.subscribed() == [1, 2])
    assert [each.base for each in replica.batches] == [0]
    assert Unsubscribe([1]) in stage.heard
    (asked,) = [each for each in stage.heard if isinstance(each, Subscribe)][-1].subscriptions
    assert asked.offset == 1
    # What the leader's position says was left out, was.
    stage.say(data(2, 1, 9, batch(8)))
    await stage.until(lambda: replica.log_end_offset == 9)
    await stage.streams.close()


async def test_an_error_of_a_task_that_served_a_lost_connection_is_nobodys() -> None:
    slow = StreamSettings(retry_s_min=100, retry_s_max=100, redial_s_min=0.001, redial_s_max=0.002)
    stage = Stage(settings=slow)
    replica = stage.replicas[0]
    await stage.follow()
    replica.append_s = 0.02
    replica.failures = [LogError(CORRUPT_BATCH, "of what the lost connection had sent")]
    stage.say(data(1, 0, 1, batch(0)))
    await stage.until(lambda: replica.working)
    stage.network.opened[-1][1].closed()
    await stage.until(lambda: stage.network.has_opened(2))
    assert replica.failures, "the task has not failed yet"
    # Without a back-off for the task's error: the new connection had none.
    await stage.until(lambda: stage.subscribed() == [1, 1])
    assert replica.failures == []
    assert stage.state() is FollowState.SUBSCRIBING
    await stage.streams.close()


async def test_marks_that_come_during_a_task_are_taken_when_it_is_over() -> None:
    stage = Stage()
    await stage.follow()
    replica = stage.replicas[0]
    replica.append_s = 0.01
    stage.say(data(1, 0, 1, batch(0)))
    await asyncio.sleep(0)
    stage.say(Marks([(1, 1, 0)]))
    await stage.until(lambda: replica.log_end_offset == 1)
    await stage.until(lambda: replica.high_watermark == 1)
    await stage.streams.close()
