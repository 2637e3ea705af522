"""A follower's connection and the leader's session, for the tests of streams."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from raftlog.record.types import BrokerEpoch, BrokerId, LeaderEpoch, Offset, TopicId
from raftlog.replication.streams.protocol import (
    Data,
    FromFollower,
    FromLeader,
    Subscription,
    decode_data,
    decode_from_leader,
    encode,
    is_data,
)
from raftlog.replication.streams.session import StreamSession
from raftlog.replication.streams.settings import StreamSettings, Throttle
from raftlog.storage.compaction.plan import NO_HORIZON
from raftlog.world.time import SystemClock
from tests.replication.streams_world import TOPIC_ID, FakePartition, row


class Connection:
    """Keeps sent messages."""

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
    """One session with its replicas."""

    def __init__(self, partitions: int = 2, settings: StreamSettings | None = None) -> None:
        self.replicas = {
            number: FakePartition(1, row(1, 1, number=number)) for number in range(partitions)
        }
        self.connection = Connection()
        self.tasks: list[asyncio.Task[None]] = []
        self.ended: list[StreamSession] = []
        clock = SystemClock()
        self.session = StreamSession(
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
        settings = settings or StreamSettings()
        self.session.start(
            self.connection,
            is_dialled=False,
            opened_s=clock.monotonic(),
            keep_alive=self._spawn(
                self.session.watch(clock, settings.ping_s, settings.silent_pings_max), "watch"
            ),
            unregister=lambda: None,
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
        horizon=NO_HORIZON,
    )
