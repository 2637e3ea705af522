"""The leader's side alone, against any messages of a follower, however wrong."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.record.errors import (
    NO_LEADER,
    NOT_READY,
    RETRIABLE,
    LogError,
)
from raftlog.record.types import Offset
from raftlog.replication.streams.protocol import (
    PRODUCERS_PIECE_BYTES,
    Acks,
    Data,
    FromFollower,
    FromLeader,
    Marks,
    Ping,
    Refused,
    Restart,
    Subscribe,
    Unsubscribe,
)
from raftlog.replication.streams.settings import StreamSettings
from raftlog.storage.compaction.plan import NO_HORIZON
from raftlog.storage.types import ReadResult
from tests.replication.leader_streams_world import Stage, asks
from tests.replication.streams_world import row
from tests.waiting import until


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
    assert answers[4:] == [Restart(6, 7, b"", False, NO_HORIZON, False)]
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
    # No bytes stay in flight, and a new subscription gets data.
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
    # Messages that cross with the end are no protocol errors.
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
        Acks([(1, 4, 0)]),  # above the sent end
        Acks([(1, 1, 0)]),  # below the acknowledged end
        Acks([(9, 1, 0)]),  # an unknown handle
        Unsubscribe([9]),
        Subscribe([asks(1, 1)]),  # a used handle
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
    # Later messages have no effect, and the end is reported once.
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
            feed.on_watermarks()
            feed.on_watermarks()
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


async def test_a_refusal_is_cut_to_what_a_message_takes() -> None:
    stage = Stage()
    stage.say(Subscribe([asks(1)]))
    stage.connection.take()
    (feed,) = stage.replicas[0].feeds.values()
    feed.on_ended(LogError(NO_LEADER, "ä" * 5000))
    (refused,) = stage.connection.take()
    assert isinstance(refused, Refused)
    assert len(refused.message) == 1000
    await stage.close()
