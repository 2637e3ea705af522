"""The leader's side alone: what it makes of what a follower says, however wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from raftlog.metadata.image import BrokerImage
from raftlog.record.errors import (
    BAD_REQUEST,
    ILLEGAL_STATE,
    NO_LEADER,
    NOT_READY,
    RETRIABLE,
    ErrorEntry,
    LogError,
)
from raftlog.record.types import BrokerEpoch, BrokerId, LeaderEpoch, Offset, TopicId
from raftlog.replication.feed_session import FeedSession
from raftlog.replication.feed_throttle import Throttle
from raftlog.replication.feeds import LeaderFeeds
from raftlog.replication.protocol import (
    PRODUCERS_PIECE_BYTES,
    PROTOCOL,
    Acks,
    Data,
    FromFollower,
    FromLeader,
    Hello,
    Marks,
    Ping,
    Refused,
    Restart,
    Subscribe,
    Subscription,
    Unsubscribe,
    decode_data,
    decode_from_leader,
    encode,
    encode_hello,
    is_data,
)
from raftlog.replication.stream_settings import StreamSettings
from raftlog.storage.results import ReadResult
from raftlog.world.network import Acceptor, Opened, RejectedError
from raftlog.world.real_clock import SystemClock
from tests.replication.streams_world import TOPIC_ID, FakePartition, row


class Connection:
    """Keeps what is sent."""

    def __init__(self, hello: bytes = b"") -> None:
        self.hello = hello
        self.address = "somewhere"
        self.queued_bytes = 0
        self.sent: list[bytes] = []
        self.is_closed = False

    def send(self, message: bytes) -> None:
        assert isinstance(message, bytes)
        if not self.is_closed:
            self.sent.append(message)

    def close(self) -> None:
        self.is_closed = True

    def take(self) -> list[FromLeader | Data]:
        sent, self.sent = self.sent, []
        return [decode_data(one) if is_data(one) else decode_from_leader(one) for one in sent]


class Stage:
    """One session, and the replicas that it finds."""

    def __init__(self, partitions: int = 2, settings: StreamSettings | None = None) -> None:
        self.replicas = {
            number: FakePartition(1, row(1, 1, number=number)) for number in range(partitions)
        }
        self.connection = Connection()
        self.tasks: list[asyncio.Task[None]] = []
        self.ended: list[FeedSession] = []
        clock = SystemClock()
        self.session = FeedSession(
            connection=self.connection,
            broker_id=BrokerId(2),
            broker_epoch=BrokerEpoch(5),
            clock=clock,
            find=lambda topic_id, number: (
                self.replicas.get(number) if topic_id == TOPIC_ID else None
            ),
            throttle=Throttle(clock, lambda: 0),
            settings=settings or StreamSettings(),
            spawn=self._spawn,
            on_ended=self.ended.append,
        )

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self.tasks.append(task)
        return task

    def say(self, message: FromFollower) -> None:
        self.session.received(encode(message))

    async def close(self) -> None:
        self.session.end("the test is over")
        await asyncio.gather(*self.tasks, return_exceptions=True)


def asks(
    handle: int,
    number: int = 0,
    *,
    offset: int = 0,
    last_epoch: int = -1,
    durable_end: int | None = None,
    leader_epoch: int = 1,
    topic_id: str = TOPIC_ID,
) -> Subscription:
    return Subscription(
        handle=handle,
        topic_id=TopicId(topic_id),
        partition=number,
        leader_epoch=LeaderEpoch(leader_epoch),
        offset=Offset(offset),
        last_epoch=LeaderEpoch(last_epoch),
        durable_end=Offset(offset if durable_end is None else durable_end),
        log_start_offset=Offset(0),
    )


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0.0005)
    raise AssertionError("it does not come about")


async def test_a_subscription_at_the_end_is_live_and_confirmed_at_once() -> None:
    stage = Stage()
    stage.say(Subscribe([asks(1), asks(2, 1)]))
    assert stage.connection.take() == [Marks([(1, 0, 0), (2, 0, 0)])]
    stage.replicas[1].append(b"x")
    (data,) = stage.connection.take()
    assert isinstance(data, Data)
    assert (data.handle, data.base_offset, data.next_offset, data.flags) == (2, 0, 1, 0)
    assert data.payload == stage.replicas[1].batches[0].data
    await stage.close()


async def test_each_refusal_names_its_reason() -> None:
    stage = Stage()
    stage.replicas[1].start = stage.replicas[1].empty_end = 7
    stage.say(
        Subscribe(
            [
                asks(1, 5),
                asks(2, topic_id="b" * 32),
                asks(3, leader_epoch=0),
                asks(4, leader_epoch=2),
                asks(5, 1),
                asks(6, 1, offset=9),
            ]
        )
    )
    await until(lambda: not stage.session.feed_count)
    answers = stage.connection.take()
    assert [(answer.handle, answer.code) for answer in answers if isinstance(answer, Refused)] == [
        (1, NOT_READY.code),
        (2, NOT_READY.code),
        (3, NO_LEADER.code),
        (4, NOT_READY.code),
    ]
    # The later one takes the earlier one's place.
    assert answers[4:] == [Restart(6, 7, b"", False)]
    await stage.close()


async def until_told(stage: Stage, number: int) -> list[FromLeader | Data]:
    await until(lambda: len(stage.connection.sent) >= number)
    return stage.connection.take()


async def test_a_long_restart_goes_in_pieces_as_the_connection_takes_them() -> None:
    stage = Stage()
    replica = stage.replicas[0]
    replica.start = replica.empty_end = 7
    replica.producers = bytes(range(256)) * 1500
    stage.connection.queued_bytes = stage.session.settings.queued_bytes_max + 1
    stage.say(Subscribe([asks(1)]))
    await asyncio.sleep(0.02)
    assert stage.connection.sent == []
    stage.connection.queued_bytes = 0
    await until(lambda: not stage.session.feed_count)
    pieces = stage.connection.take()
    assert [type(piece) for piece in pieces] == [Restart] * 3
    assert [piece.has_more for piece in pieces if isinstance(piece, Restart)] == [True, True, False]
    whole = b"".join(piece.producers for piece in pieces if isinstance(piece, Restart))
    assert whole == replica.producers
    # Nothing of it is in flight, and the follower is fed when it asks again.
    assert stage.session.bytes_in_flight == 0
    stage.say(Subscribe([asks(2, offset=7)]))
    assert stage.connection.take() == [Marks([(2, 0, 7)])]
    await stage.close()


@pytest.mark.parametrize("by", ["unsubscribing", "asking anew"])
async def test_a_restart_that_is_not_wanted_any_more_ends(by: str) -> None:
    stage = Stage()
    replica = stage.replicas[0]
    replica.start = replica.empty_end = 7
    replica.producers = bytes(3 * PRODUCERS_PIECE_BYTES)
    stage.connection.queued_bytes = stage.session.settings.queued_bytes_max + 1
    stage.say(Subscribe([asks(1)]))
    await asyncio.sleep(0.01)
    replica.start = 0
    stage.say(Unsubscribe([1]) if by == "unsubscribing" else Subscribe([asks(2, offset=7)]))
    stage.connection.queued_bytes = 0
    stage.say(Subscribe([asks(3, 1)]))
    await asyncio.sleep(0.01)
    assert not [each for each in stage.connection.take() if isinstance(each, Restart)]
    assert stage.session.feed_count == (1 if by == "unsubscribing" else 2)
    await stage.close()


async def test_who_leads_no_more_tells_of_no_producers() -> None:
    stage = Stage()
    replica = stage.replicas[0]
    replica.start = replica.empty_end = 7
    stage.say(Subscribe([asks(1)]))
    replica.update(row(3, 2))
    (answer,) = await until_told(stage, 1)
    assert isinstance(answer, Refused)
    assert (answer.handle, answer.code) == (1, NO_LEADER.code)
    assert stage.session.feed_count == 0
    await stage.close()


async def test_a_feed_that_ends_is_refused_and_its_bytes_are_not_in_flight() -> None:
    stage = Stage()
    stage.say(Subscribe([asks(1), asks(2, 1)]))
    stage.replicas[0].append(b"x")
    stage.replicas[1].append(b"y")
    in_flight = stage.session.bytes_in_flight
    stage.connection.take()
    stage.replicas[0].update(row(3, 2))
    (refused,) = stage.connection.take()
    assert isinstance(refused, Refused)
    assert (refused.handle, refused.code) == (1, NO_LEADER.code)
    assert stage.session.bytes_in_flight == in_flight // 2
    # What crosses with it is nobody's fault.
    stage.say(Acks([(1, 1, 0), (2, 1, 0)]))
    stage.say(Unsubscribe([1]))
    assert not stage.connection.is_closed
    assert stage.session.bytes_in_flight == 0
    await stage.close()


async def test_acknowledgements_free_the_window_and_reach_the_replica() -> None:
    stage = Stage()
    stage.say(Subscribe([asks(1)]))
    replica = stage.replicas[0]
    for _ in range(3):
        replica.append(b"x" * 100)
    size = len(replica.batches[0].data)
    assert stage.session.bytes_in_flight == 3 * size
    stage.say(Acks([(1, 2, 0)]))
    assert stage.session.bytes_in_flight == size
    assert replica.ends == {2: (5, 2, 0)}
    stage.say(Acks([(1, 2, 0)]))
    stage.say(Acks([(1, 3, 0)]))
    assert stage.session.bytes_in_flight == 0
    assert stage.session.bytes_sent == 3 * size
    await stage.close()


@pytest.mark.parametrize(
    "message",
    [
        Acks([(1, 4, 0)]),  # above what was sent
        Acks([(1, 1, 0)]),  # below what was acknowledged
        Acks([(9, 1, 0)]),  # a handle that was never given
        Unsubscribe([9]),
        Subscribe([asks(1, 1)]),  # a handle that was
        Subscribe([asks(8, 1), asks(8, 1)]),
        Subscribe([asks(8, 1, offset=0, durable_end=1)]),
    ],
)
async def test_what_a_follower_cannot_mean_ends_the_session(message: FromFollower) -> None:
    stage = Stage()
    stage.say(Subscribe([asks(1)]))
    for _ in range(3):
        stage.replicas[0].append(b"x")
    stage.say(Acks([(1, 2, 0)]))
    assert not stage.ended
    stage.say(message)
    assert stage.connection.is_closed
    assert stage.ended == [stage.session]
    assert stage.replicas[0].feeds == {}
    assert stage.replicas[0].ends == {2: (5, 2, 0)}, "nothing was believed"
    # What it says after that is not heard, and the end is told once.
    stage.say(Acks([(1, 3, 0)]))
    stage.session.closed()
    assert stage.ended == [stage.session]
    await stage.close()


async def test_bytes_that_are_no_message_end_the_session() -> None:
    stage = Stage()
    stage.session.received(b"")
    assert stage.ended == [stage.session]
    await stage.close()


async def test_a_partition_that_is_asked_for_again_has_one_feed() -> None:
    stage = Stage()
    stage.say(Subscribe([asks(1)]))
    stage.replicas[0].append(b"x")
    stage.say(Subscribe([asks(2)]))
    assert stage.session.feed_count == 1
    assert stage.session.bytes_in_flight == 0
    stage.connection.take()
    assert len(stage.replicas[0].feeds) == 1
    stage.say(Unsubscribe([1]))
    assert len(stage.replicas[0].feeds) == 1
    stage.say(Unsubscribe([2]))
    assert stage.replicas[0].feeds == {}
    await stage.close()


async def test_after_unsubscribing_nothing_is_sent() -> None:
    stage = Stage()
    stage.say(Subscribe([asks(1)]))
    stage.connection.take()
    stage.replicas[0].append(b"x")
    stage.say(Unsubscribe([1]))
    stage.connection.take()
    stage.replicas[0].append(b"y")
    assert stage.connection.take() == []
    assert stage.session.bytes_in_flight == 0
    await stage.close()


async def test_what_is_too_long_to_be_sent_at_once_is_read_back() -> None:
    settings = StreamSettings(live_bytes_max=1000, chunk_bytes=900, piece_bytes=2000)
    stage = Stage(settings=settings)
    stage.say(Subscribe([asks(1)]))
    stage.connection.take()
    replica = stage.replicas[0]
    replica.append(b"x" * 1500)
    replica.append(b"y")
    assert stage.connection.take() == []
    await until(lambda: not stage.session.behind_count)
    assert [data.next_offset for data in stage.connection.take() if isinstance(data, Data)] == [
        1,
        2,
    ]
    assert replica.reads == 2
    await stage.close()


async def test_pieces_wait_for_the_connection_to_take_them() -> None:
    settings = StreamSettings(
        live_bytes_max=1000, chunk_bytes=900, piece_bytes=1000, queued_bytes_max=5, pace_s=0.0001
    )
    stage = Stage(settings=settings)
    stage.say(Subscribe([asks(1)]))
    stage.connection.take()
    stage.connection.queued_bytes = 6
    stage.replicas[0].append(b"x" * 2900)
    for _ in range(5):
        await asyncio.sleep(0.001)
    assert stage.connection.take() == []
    stage.connection.queued_bytes = 5
    await until(lambda: not stage.session.behind_count)
    pieces = [data for data in stage.connection.take() if isinstance(data, Data)]
    assert [(data.flags, len(data.payload)) for data in pieces] == [
        (1, 1000),
        (3, 1000),
        (2, 928),
    ]
    assert {(data.base_offset, data.next_offset) for data in pieces} == {(0, 1)}
    await stage.close()


async def test_a_feed_that_ended_while_its_data_waited_is_sent_nothing() -> None:
    stage = Stage(settings=StreamSettings(queued_bytes_max=5, pace_s=0.0001))
    stage.connection.queued_bytes = 6
    stage.replicas[0].append(b"x")
    stage.say(Subscribe([asks(1)]))
    await until(lambda: stage.replicas[0].reads > 0)
    await asyncio.sleep(0.01)
    stage.say(Unsubscribe([1]))
    stage.connection.queued_bytes = 0
    stage.connection.take()
    await asyncio.sleep(0.01)
    assert stage.connection.take() == []
    await stage.close()


async def test_a_feed_that_ended_during_a_read_is_sent_nothing() -> None:
    stage = Stage()
    stage.replicas[0].append(b"x")
    stage.say(Subscribe([asks(1)]))
    await until(lambda: stage.replicas[0].reads > 0)
    stage.say(Unsubscribe([1]))
    stage.connection.take()
    await asyncio.sleep(0.01)
    assert stage.connection.take() == []
    await stage.close()


async def test_a_read_that_gives_nothing_is_refused_instead_of_repeated() -> None:
    stage = Stage()
    replica = stage.replicas[0]
    replica.append(b"x")

    async def nothing(offset: Offset, *, max_bytes: int) -> ReadResult:
        return ReadResult(b"", offset)

    replica.read_uncommitted = nothing  # type: ignore[method-assign]
    stage.say(Subscribe([asks(1)]))
    await until(lambda: not stage.session.feed_count)
    refused = stage.connection.take()[-1]
    assert isinstance(refused, Refused)
    assert refused.code == RETRIABLE.code
    assert replica.feeds == {}
    await stage.close()


async def test_marks_are_gathered_and_sent_only_if_data_has_not_carried_them() -> None:
    stage = Stage(settings=StreamSettings(marks_s=0.001))
    stage.say(Subscribe([asks(1), asks(2, 1)]))
    stage.connection.take()
    one, two = stage.replicas[0], stage.replicas[1]
    one.high_watermark = two.high_watermark = Offset(1)
    for replica in (one, two):
        for feed in replica.feeds.values():
            feed.marks_moved()
            feed.marks_moved()
    one.append(b"x")
    assert len(stage.connection.take()) == 1
    await asyncio.sleep(0.02)
    assert [sent for sent in stage.connection.take() if sent != Ping()] == [Marks([(2, 1, 0)])]
    await stage.close()


async def test_the_session_ends_when_its_connection_does() -> None:
    stage = Stage()
    stage.say(Subscribe([asks(1)]))
    stage.session.closed()
    assert stage.ended == [stage.session]
    assert stage.replicas[0].feeds == {}
    await stage.close()
    assert all(task.done() for task in stage.tasks)


# Admission


class Network:
    def accept(self, channel: str, acceptor: Acceptor) -> None:
        assert channel == "replication"

    async def connect(
        self, address: str, channel: str, hello: bytes, opened: Opened, *, timeout_s: float
    ) -> None:
        raise AssertionError

    async def is_refused(self, address: str, *, timeout_s: float) -> bool:
        raise AssertionError


def broker(broker_id: int) -> BrokerImage | None:
    if broker_id not in (1, 2):
        return None
    return BrokerImage(
        broker_id=BrokerId(broker_id),
        broker_epoch=BrokerEpoch(5),
        directory_id=f"d{broker_id}",
        incarnation="x",
        host="h",
        port=1,
        rack=None,
        software_version="1",
        command_version=1,
        fenced=False,
    )


def leader_feeds(own_epoch: int | None = 3, cluster_id: str | None = "c") -> LeaderFeeds:
    feeds = LeaderFeeds(
        network=Network(),
        clock=SystemClock(),
        broker_id=BrokerId(1),
        directory_id="d1",
        cluster_id=lambda: cluster_id,
        own_epoch=lambda: None if own_epoch is None else BrokerEpoch(own_epoch),
        brokers=broker,
        find=lambda _topic_id, _number: None,
    )
    feeds.start()
    return feeds


HELLO = Hello(PROTOCOL, BrokerId(2), BrokerEpoch(5), "d2", "c")


async def test_a_registered_broker_is_answered_and_let_in() -> None:
    feeds = leader_feeds()
    content = encode_hello(HELLO)
    answer = msgspec.json.decode(feeds.hello(content), type=Hello)
    assert answer == Hello(PROTOCOL, BrokerId(1), BrokerEpoch(3), "d1", "c")
    feeds.opened(Connection(content))
    (status,) = feeds.describe()
    assert (status.broker_id, status.broker_epoch, status.address) == (2, 5, "somewhere")
    await feeds.close()
    assert feeds.describe() == []
    with pytest.raises(RejectedError):
        feeds.hello(content)


async def test_a_newer_connection_of_a_broker_ends_the_older_one() -> None:
    feeds = leader_feeds()
    replica = FakePartition(1, row(1, 1))
    feeds._find = lambda _topic_id, _number: replica
    older, newer = Connection(encode_hello(HELLO)), Connection(encode_hello(HELLO))
    first = feeds.opened(older)
    first.received(encode(Subscribe([asks(1)])))
    second = feeds.opened(newer)
    assert older.is_closed
    assert not newer.is_closed
    assert replica.feeds == {}
    second.received(encode(Subscribe([asks(1)])))
    # The older one's end, told late, is not the newer one's.
    first.closed()
    assert len(replica.feeds) == 1
    assert len(feeds.describe()) == 1
    await feeds.close()


@pytest.mark.parametrize(
    ("changes", "entry"),
    [
        ({"broker_id": 3}, NOT_READY),
        ({"broker_epoch": 4}, ILLEGAL_STATE),
        ({"broker_epoch": 6}, NOT_READY),
        ({"directory_id": "d3"}, ILLEGAL_STATE),
        ({"cluster_id": "other"}, ILLEGAL_STATE),
        ({"broker_id": 1, "directory_id": "d1"}, ILLEGAL_STATE),
        ({"protocol": PROTOCOL + 1}, BAD_REQUEST),
    ],
)
async def test_everybody_else_is_rejected_also_between_hello_and_opening(
    changes: dict[str, object], entry: ErrorEntry
) -> None:
    feeds = leader_feeds()
    content = encode_hello(msgspec.structs.replace(HELLO, **changes))
    with pytest.raises(RejectedError) as told:
        feeds.hello(content)
    assert told.value.code == entry.code
    with pytest.raises(RejectedError):
        feeds.opened(Connection(content))
    await feeds.close()


@pytest.mark.parametrize(("own_epoch", "cluster_id"), [(None, "c"), (3, None)])
async def test_nobody_is_let_in_before_this_broker_is_registered(
    own_epoch: int | None, cluster_id: str | None
) -> None:
    feeds = leader_feeds(own_epoch, cluster_id)
    with pytest.raises(RejectedError) as told:
        feeds.hello(encode_hello(HELLO))
    assert told.value.code == NOT_READY.code
    await feeds.close()


async def test_a_failure_in_the_pump_is_not_swallowed() -> None:
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: failures.append(context.get("exception"))
    )
    replica = FakePartition(1, row(1, 1))
    replica.append(b"x")
    replica.read_failures = [AssertionError("broken")]  # type: ignore[list-item]
    feeds = leader_feeds()
    feeds._find = lambda _topic_id, _number: replica
    session = feeds.opened(Connection(encode_hello(HELLO)))
    session.received(encode(Subscribe([asks(1)])))
    await until(lambda: bool(failures))
    assert [str(failure) for failure in failures] == ["broken"]
    await feeds.close()


async def test_a_refusal_is_cut_to_what_a_message_takes() -> None:
    stage = Stage()
    stage.say(Subscribe([asks(1)]))
    stage.connection.take()
    (feed,) = stage.replicas[0].feeds.values()
    feed.ended(LogError(NO_LEADER, "ä" * 5000))
    (refused,) = stage.connection.take()
    assert isinstance(refused, Refused)
    assert len(refused.message) == 1000
    await stage.close()
