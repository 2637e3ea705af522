"""Failures end the node, malformed messages do not, and a closed service does nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftlog.controller import active
from raftlog.controller.messages import HEARTBEAT_S, Heartbeat, encode_message
from raftlog.controller.sessions import Sessions
from raftlog.record.types import BrokerEpoch, BrokerId
from tests.controller.cluster import Cluster
from tests.controller.running import running


async def test_failure_of_a_decision_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(image: object, broker_id: object, *, unwritable: object) -> None:
        raise AssertionError("broken plan")

    cluster = Cluster()
    await cluster.start()
    monkeypatch.setattr(active, "plan_fencing", broken)
    await cluster.kill(2)
    assert len(cluster.nodes[1].fatal) == 1
    assert "broken plan" in cluster.nodes[1].fatal[0]
    assert cluster.nodes[3].fatal == []
    await cluster.close()


async def test_failure_of_a_handler_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    await cluster.start()
    monkeypatch.setattr(Sessions, "heartbeat_received", None)
    await cluster.clock.advance(HEARTBEAT_S)
    assert cluster.nodes[1].fatal
    await cluster.close()


def unreadable() -> bytes:
    return b"\x00" * 5_000


def in_the_name_of_broker_3() -> bytes:
    return encode_message(
        Heartbeat(
            sequence=1,
            broker_id=BrokerId(3),
            broker_epoch=BrokerEpoch(3),
            applied_index=10,
            stopping=True,
        )
    )


@pytest.mark.parametrize("message", [unreadable, in_the_name_of_broker_3])
async def test_message_that_makes_no_sense_is_ignored_and_reported_once(
    message: Callable[[], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as cluster:
        caplog.clear()
        for _ in range(3):
            cluster.deliver(2, 1, message())
        await cluster.clock.advance(1.0)
        assert len([each for each in caplog.records if "is ignored" in each.message]) == 1
        assert not cluster.image.brokers[BrokerId(3)].controlled_shutdown
        assert cluster.holders() == {1, 2, 3}


async def test_closed_service_does_nothing() -> None:
    async with running() as cluster:
        for node in cluster.nodes.values():
            await node.service.close()
        del cluster.proposals[:]
        cluster.deliver(2, 1, unreadable())
        await cluster.elect(2)
        await cluster.clock.advance(10.0)
        assert cluster.proposals == []
