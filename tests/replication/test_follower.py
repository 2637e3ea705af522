"""The follower's side alone: what it makes of what a leader says, however wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from raftlog.metadata.image import BrokerImage
from raftlog.record.errors import CORRUPT_BATCH, NO_LEADER, NOT_READY, LogError
from raftlog.record.types import BrokerEpoch, BrokerId, LeaderEpoch, Offset, PartitionId
from raftlog.replication.follower import FollowerStreams
from raftlog.replication.follower_replica import FollowState
from raftlog.replication.protocol import (
    CONTINUES,
    MORE,
    PROTOCOL,
    Acks,
    Diverged,
    FromFollower,
    FromLeader,
    Hello,
    Marks,
    Ping,
    Refused,
    Restart,
    Subscribe,
    Unsubscribe,
    decode_from_follower,
    encode,
    encode_data,
    encode_hello,
)
from raftlog.replication.stream_settings import StreamSettings
from raftlog.world.network import Acceptor, NetworkError, Opened, Receiver, RejectedError
from raftlog.world.real_clock import SystemClock
from raftlog.world.real_randomness import SystemRandomness
from tests.replication.streams_world import TOPIC_ID, Batch, FakePartition, row

LEADER = BrokerImage(
    broker_id=BrokerId(1),
    broker_epoch=BrokerEpoch(3),
    directory_id="d1",
    incarnation="x",
    host="::1",
    port=8082,
    rack=None,
    software_version="1",
    command_version=1,
    fenced=False,
)
THEIR_HELLO = Hello(PROTOCOL, BrokerId(1), BrokerEpoch(3), "d1", "c")
FAST = StreamSettings(retry_s_min=0.001, retry_s_max=0.002, redial_s_min=0.001, redial_s_max=0.002)


REDIALS = StreamSettings(redial_s_min=0.001, redial_s_max=0.01, ping_s=3600)
DELAYS_S = (0.001, 0.002, 0.004, 0.008, 0.01, 0.01, 0.01)
"""Between calls that fail, by these settings."""


class Clock(SystemClock):
    """Remembers what was slept."""

    def __init__(self) -> None:
        self.slept_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        if seconds < 3600:
            self.slept_s.append(seconds)
        await super().sleep(seconds)

    def has_doubled(self) -> bool:
        """Whether the first sleep was none, and each other one longer, up to the limit."""
        first, *others = self.slept_s[: 1 + len(DELAYS_S)]
        # Jitter takes up to half of a delay.
        return first == 0 and all(
            longest / 2 <= slept <= longest for slept, longest in zip(others, DELAYS_S, strict=True)
        )


class Connection:
    def __init__(self, hello: bytes) -> None:
        self.hello = hello
        self.address = "there"
        self.queued_bytes = 0
        self.sent: list[bytes] = []
        self.is_closed = False

    def send(self, message: bytes) -> None:
        if not self.is_closed:
            self.sent.append(message)

    def close(self) -> None:
        self.is_closed = True


class Network:
    """Opens every connection at once, unless told otherwise."""

    def __init__(self) -> None:
        self.hello = THEIR_HELLO
        self.failure: Exception | None = None
        self.calls: list[tuple[str, str, Hello]] = []
        self.opened: list[tuple[Connection, Receiver]] = []
        self.rejections: list[RejectedError] = []

    def has_opened(self, number: int) -> bool:
        return len(self.opened) == number

    def accept(self, channel: str, acceptor: Acceptor) -> None:
        raise AssertionError

    async def is_refused(self, address: str, *, timeout_s: float) -> bool:
        raise AssertionError

    async def connect(
        self, address: str, channel: str, hello: bytes, opened: Opened, *, timeout_s: float
    ) -> None:
        self.calls.append((address, channel, msgspec.json.decode(hello, type=Hello)))
        if self.failure is not None:
            raise self.failure
        connection = Connection(encode_hello(self.hello))
        try:
            self.opened.append((connection, opened(connection)))
        except RejectedError as error:
            self.rejections.append(error)
            raise


class Stage:
    """A node that follows some partitions of one leader."""

    def __init__(self, partitions: int = 1, settings: StreamSettings = FAST) -> None:
        self.network = Network()
        self.clock = Clock()
        self.epoch: int | None = 7
        self.streams = FollowerStreams(
            network=self.network,
            clock=self.clock,
            randomness=SystemRandomness(),
            broker_id=BrokerId(2),
            directory_id="d2",
            cluster_id=lambda: "c",
            own_epoch=lambda: None if self.epoch is None else BrokerEpoch(self.epoch),
            settings=settings,
        )
        self.replicas = [FakePartition(2, row(1, 1, number=each)) for each in range(partitions)]
        for replica in self.replicas:
            replica.sync_s = None
        self.heard: list[FromFollower] = []

    async def follow(self) -> None:
        for replica in self.replicas:
            self.streams.follow(replica, LEADER)
        await self.until(lambda: len(self.subscribed()) == len(self.replicas))

    async def until(self, condition: Callable[[], object]) -> None:
        for _ in range(5000):
            if condition():
                return
            await asyncio.sleep(0.0005)
        raise AssertionError("it does not come about")

    @property
    def connection(self) -> Connection:
        return self.network.opened[-1][0]

    def say(self, message: FromLeader | bytes) -> None:
        content = message if isinstance(message, bytes) else encode(message)
        self.network.opened[-1][1].received(content)

    def take(self) -> list[FromFollower]:
        """What it has said since the last time, without pings."""
        if not self.network.opened:
            return []
        sent, self.connection.sent = self.connection.sent, []
        new = [each for each in map(decode_from_follower, sent) if each != Ping()]
        self.heard += new
        return new

    def subscribed(self) -> list[int]:
        """The handles of all subscriptions so far."""
        self.take()
        return [
            each.handle
            for message in self.heard
            if isinstance(message, Subscribe)
            for each in message.subscriptions
        ]

    def state(self, number: int = 0) -> FollowState | None:
        return self.streams.state_of(TOPIC_ID, PartitionId(number))


def batch(base: int, content: bytes = b"x", count: int = 1) -> bytes:
    return Batch(base, base + count, 1, content).data


def data(handle: int, base: int, following: int, payload: bytes, flags: int = 0) -> bytes:
    return encode_data(
        handle,
        Offset(base),
        Offset(following),
        Offset(0),
        Offset(0),
        [payload],
        flags,
    )


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
    # What still comes for the old handle is not heard.
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
    await stage.until(lambda: len(stage.network.opened) == 2 and stage.subscribed())
    # The old connection has nothing to say any more, nor does its end.
    first.received(data(1, 0, 1, batch(0)))
    first.closed()
    assert stage.replicas[0].log_end_offset == 0
    stage.say(data(1, 0, 1, batch(0)))
    assert stage.replicas[0].log_end_offset == 1
    await stage.streams.close()


@pytest.mark.parametrize(
    "end", [Refused(1, NO_LEADER.code, "x"), Diverged(1, LeaderEpoch(0), 0), Restart(1, 0)]
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
    """The log has lost its end since it was asked for: what comes does not belong behind it."""
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
    # Without a pause for what the task met: on the new connection nothing was wrong.
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


async def test_a_replica_that_changes_leaders_is_asked_for_at_the_new_one_only() -> None:
    stage = Stage()
    await stage.follow()
    first = stage.connection
    replica = stage.replicas[0]
    # Another partition's stream to the other leader is open.
    other = FakePartition(2, row(3, 1, number=9))
    stage.network.hello = msgspec.structs.replace(
        THEIR_HELLO, broker_id=BrokerId(3), directory_id="d3"
    )
    third = msgspec.structs.replace(LEADER, broker_id=BrokerId(3), directory_id="d3")
    stage.streams.follow(other, third)
    await stage.until(lambda: len(stage.network.opened) == 2 and stage.take())
    stage.heard.clear()
    first.sent.clear()
    # In one turn: it is asked for anew, has something to acknowledge, and moves on.
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
        ("[::1]:8082", "replication", Hello(PROTOCOL, BrokerId(2), BrokerEpoch(8), "d2", "c"))
    ]
    await stage.streams.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"broker_id": 3},
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
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: failures.append(context)
    )
    stage = Stage(settings=StreamSettings(linger_s=0.001))
    await stage.follow()
    await stage.streams.close()
    stage.streams.unfollow(stage.replicas[0])
    await asyncio.sleep(0.02)
    assert failures == []


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
