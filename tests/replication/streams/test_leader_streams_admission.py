"""Admission of followers, and the ends of their connections."""

from __future__ import annotations

import msgspec
import pytest

from raftlog.metadata.image import BrokerImage
from raftlog.peer.hello import encode_hello
from raftlog.record.errors import (
    ILLEGAL_STATE,
    NOT_READY,
    ErrorEntry,
)
from raftlog.record.types import BrokerEpoch, BrokerId
from raftlog.replication.streams.leader_streams import LeaderStreams
from raftlog.replication.streams.protocol import (
    PROTOCOL,
    StreamHello,
    Subscribe,
    encode,
)
from raftlog.world.network import Acceptor, Opened, RejectedError
from raftlog.world.time import SystemClock
from tests.replication.leader_streams_world import Connection, asks
from tests.replication.streams_world import FakePartition, row
from tests.waiting import until


class Network:
    acceptor: Acceptor

    def accept(self, channel: str, acceptor: Acceptor) -> None:
        assert channel == "replication"
        self.acceptor = acceptor

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


def leader_feeds(
    own_epoch: int | None = 3, cluster_id: str | None = "c"
) -> tuple[LeaderStreams, Acceptor, list[str]]:
    network = Network()
    fatal: list[str] = []
    feeds = LeaderStreams(
        network=network,
        clock=SystemClock(),
        broker_id=BrokerId(1),
        directory_id="d1",
        cluster_id=lambda: cluster_id,
        own_epoch=lambda: None if own_epoch is None else BrokerEpoch(own_epoch),
        brokers=broker,
        find=lambda _topic_id, _number: None,
        on_fatal=fatal.append,
    )
    feeds.start()
    return feeds, network.acceptor, fatal


HELLO = StreamHello(node_id=2, broker_epoch=BrokerEpoch(5), directory_id="d2", cluster_id="c")


async def test_a_registered_broker_is_answered_and_let_in() -> None:
    feeds, acceptor, _ = leader_feeds()
    content = encode_hello(HELLO)
    answer = msgspec.json.decode(acceptor.hello(content), type=StreamHello)
    assert answer == StreamHello(
        node_id=1, broker_epoch=BrokerEpoch(3), directory_id="d1", cluster_id="c"
    )
    acceptor.opened(Connection(content))
    (status,) = feeds.describe()
    assert (status.broker_id, status.broker_epoch, status.address) == (2, 5, "somewhere")
    await feeds.close()
    assert feeds.describe() == []
    with pytest.raises(RejectedError):
        acceptor.hello(content)


async def test_a_newer_connection_of_a_broker_ends_the_older_one() -> None:
    feeds, acceptor, _ = leader_feeds()
    replica = FakePartition(1, row(1, 1))
    feeds._find = lambda _topic_id, _number: replica
    older, newer = Connection(encode_hello(HELLO)), Connection(encode_hello(HELLO))
    first = acceptor.opened(older)
    first.received(encode(Subscribe([asks(1)])))
    second = acceptor.opened(newer)
    assert older.is_closed
    assert not newer.is_closed
    assert replica.feeds == {}
    second.received(encode(Subscribe([asks(1)])))
    # The late end of the older one does not end the newer one.
    first.closed()
    assert len(replica.feeds) == 1
    assert len(feeds.describe()) == 1
    await feeds.close()


@pytest.mark.parametrize(
    ("changes", "entry"),
    [
        ({"node_id": 3}, NOT_READY),
        ({"broker_epoch": 4}, ILLEGAL_STATE),
        ({"broker_epoch": 6}, NOT_READY),
        ({"directory_id": "d3"}, ILLEGAL_STATE),
        ({"cluster_id": "other"}, ILLEGAL_STATE),
        ({"node_id": 1, "directory_id": "d1"}, ILLEGAL_STATE),
        ({"protocol": PROTOCOL + 1}, ILLEGAL_STATE),
    ],
)
async def test_everybody_else_is_rejected_also_between_hello_and_opening(
    changes: dict[str, object], entry: ErrorEntry
) -> None:
    feeds, acceptor, _ = leader_feeds()
    content = encode_hello(msgspec.structs.replace(HELLO, **changes))
    with pytest.raises(RejectedError) as told:
        acceptor.hello(content)
    assert told.value.code == entry.code
    with pytest.raises(RejectedError):
        acceptor.opened(Connection(content))
    await feeds.close()


@pytest.mark.parametrize(("own_epoch", "cluster_id"), [(None, "c"), (3, None)])
async def test_nobody_is_let_in_before_this_broker_is_registered(
    own_epoch: int | None, cluster_id: str | None
) -> None:
    feeds, acceptor, _ = leader_feeds(own_epoch, cluster_id)
    with pytest.raises(RejectedError) as told:
        acceptor.hello(encode_hello(HELLO))
    assert told.value.code == NOT_READY.code
    await feeds.close()


async def test_a_failure_in_the_pump_is_not_swallowed() -> None:
    replica = FakePartition(1, row(1, 1))
    replica.append(b"x")
    replica.read_failures = [AssertionError("broken")]  # type: ignore[list-item]
    feeds, acceptor, fatal = leader_feeds()
    feeds._find = lambda _topic_id, _number: replica
    session = acceptor.opened(Connection(encode_hello(HELLO)))
    session.received(encode(Subscribe([asks(1)])))
    await until(lambda: bool(fatal))
    assert fatal == ["replication-pump-2 failed: AssertionError('broken')"]
    await feeds.close()
