"""Forwarding: many requests on one connection, and the ways in which each may end."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.peer.hello import encode_hello
from raftlog.record.errors import (
    BODY_TOO_LARGE,
    INTERNAL,
    MAYBE_WRITTEN,
    NOT_READY,
    OVERLOADED,
    RETRIABLE,
    UNKNOWN_TOPIC,
    UNSUPPORTED_FORMAT,
    LogError,
)
from raftlog.record.types import BrokerId, Offset
from raftlog.routing import forwarding, forwarding_messages, forwarding_server
from raftlog.routing.forwarding import IDLE_S, Reply
from raftlog.routing.forwarding_messages import (
    Append,
    Bounds,
    Marks,
    Operation,
    Read,
    Wait,
    Waited,
    own_hello,
)
from raftlog.world.network import Connection

from .forwarding_world import TOPIC_ID, Cluster, Node, batch, simulate

BOUNDS = Bounds(TOPIC_ID, 0)
READ = Read(TOPIC_ID, 0, 0, 1_000, None)
WAIT = Wait(((TOPIC_ID, 0, 0),))
APPEND = Append(TOPIC_ID, 0, -1)


async def ask(
    node: Node, operation: Operation, body: bytes = b"", *, timeout_s: float = 5.0
) -> Reply:
    async def asking() -> Reply:
        return await node.forwarder.call(
            BrokerId(1), operation, [body] if body else [], timeout_s=timeout_s
        )

    return await node.run(asking())


async def refusal(
    node: Node, operation: Operation, body: bytes = b"", *, timeout_s: float = 5.0
) -> LogError:
    with pytest.raises(LogError) as caught:
        await ask(node, operation, body, timeout_s=timeout_s)
    return caught.value


def now() -> float:
    return asyncio.get_running_loop().time()


async def settled(cluster: Cluster) -> None:
    """Nothing is held any more on either side."""
    await asyncio.sleep(0.1)
    for node in cluster.nodes.values():
        for link in node.forwarder._links.values():
            assert (link._in_flight, link._unsent, link._bytes, link._waits) == ({}, {}, 0, 0)
        for session in node.server._channel.sessions.values():
            assert (session._running, session._assembling) == ({}, {})
            assert (session._body_bytes, session._waits) == (0, 0)
        assert not node.fatal


def test_many_requests_share_one_connection_and_none_waits_for_another() -> None:
    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[2], cluster.nodes[1]
        waiting = asyncio.ensure_future(ask(node, WAIT, timeout_s=30.0))
        await asyncio.gather(*(ask(node, BOUNDS) for _ in range(100)))
        assert not waiting.done()
        leader.replicas.wake.set()
        assert (await waiting).outcome == Waited()
        assert cluster.world.network.connections == 1
        await settled(cluster)

    simulate(test)


def test_a_timeout_of_years_does_not_break_the_protocol() -> None:
    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[2], cluster.nodes[1]
        waiting = asyncio.ensure_future(ask(node, WAIT, timeout_s=2**31 - 1))
        await ask(node, BOUNDS)
        assert not waiting.done()
        leader.replicas.wake.set()
        assert (await waiting).outcome == Waited()
        assert cluster.world.network.connections == 1
        await settled(cluster)

    simulate(test)


def test_bodies_over_a_message_come_in_pieces_both_ways() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        content = bytes(range(256)) * (5 * 4096)
        one = batch(content)
        await node.append(one)
        fetched = await node.read(max_bytes=32 << 20)
        assert bytes(fetched.data) == bytes(one.data)
        await settled(cluster)

    simulate(test)


def test_a_connection_that_breaks_leaves_appends_in_doubt_and_reads_undone() -> None:
    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[2], cluster.nodes[1]
        await ask(node, BOUNDS)
        leader.mine.gate = asyncio.Event()
        data = bytes(batch(b"a").data)
        append = asyncio.ensure_future(refusal(node, APPEND, data))
        read = asyncio.ensure_future(refusal(node, READ))
        await asyncio.sleep(0.1)
        cluster.world.network.reset(1, 2)
        told = await append
        assert told.entry is RETRIABLE
        assert told.message.startswith(MAYBE_WRITTEN)
        told = await read
        assert told.entry is NOT_READY
        assert MAYBE_WRITTEN not in told.message
        leader.mine.gate.set()
        assert (await ask(node, BOUNDS)).outcome == Marks(0, 1, 0, 1), "what had begun was finished"
        await settled(cluster)

    simulate(test)


@pytest.mark.parametrize("seed", range(20))
def test_a_killed_leader_fails_what_it_was_asked(seed: int) -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        data = bytes(batch(b"a").data)
        asked = [asyncio.ensure_future(refusal(node, READ)) for _ in range(3)]
        asked += [asyncio.ensure_future(refusal(node, APPEND, data)) for _ in range(3)]
        cluster.nodes[1].mine.gate = asyncio.Event()
        await asyncio.sleep(cluster.world.random("when").uniform(0, 0.005))
        cluster.world.crash(1)
        entries = {(await one).entry for one in asked}
        assert entries <= {NOT_READY, RETRIABLE}
        cluster.lead(1, 1)
        assert (await refusal(node, APPEND, data)).entry is NOT_READY, "nobody listens"
        await cluster.restart(1)
        cluster.lead(1, 2)
        await ask(node, BOUNDS)
        await settled(cluster)

    simulate(test, seed)


def test_what_was_not_sent_was_not_carried_out() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.world.crash(1, power=True)
        began = now()
        error = await refusal(cluster.nodes[2], APPEND, b"x", timeout_s=30.0)
        assert error.entry is NOT_READY
        assert now() - began < 3.0

    simulate(test)


def test_silence_ends_a_request_and_the_connection() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        await ask(node, BOUNDS)
        cluster.world.pause(1)
        began = now()
        assert (await refusal(node, APPEND, b"x", timeout_s=3.0)).entry is RETRIABLE
        assert 3.0 <= now() - began < 4.0
        assert not node.forwarder._links
        cluster.world.resume(1)
        await ask(node, BOUNDS)
        await settled(cluster)

    simulate(test)


def test_a_caller_that_leaves_breaks_off_a_read_but_no_append() -> None:
    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[2], cluster.nodes[1]
        leader.mine.gate = asyncio.Event()
        data = bytes(batch(b"a").data)
        asked = [
            asyncio.ensure_future(ask(node, READ)),
            asyncio.ensure_future(ask(node, APPEND, data)),
            asyncio.ensure_future(ask(node, WAIT)),
        ]
        await asyncio.sleep(0.1)
        for one in asked:
            one.cancel()
        await asyncio.sleep(0.1)
        (session,) = leader.server._channel.sessions.values()
        assert [type(one.operation) for one in session._running.values()] == [Append]
        leader.mine.gate.set()
        await settled(cluster)
        assert len(cluster.records.batches) == 1

    simulate(test)


def test_an_idle_connection_is_closed_and_opened_again() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        await ask(node, BOUNDS)
        await asyncio.sleep(IDLE_S - 1)
        await ask(node, BOUNDS)
        await asyncio.sleep(IDLE_S - 1)
        assert cluster.world.network.connections == 1
        await asyncio.sleep(2)
        assert not node.forwarder._links
        assert not cluster.nodes[1].server._channel.sessions
        await ask(node, BOUNDS)
        assert cluster.world.network.connections == 2

    simulate(test)


def test_a_caller_that_vanished_is_forgotten() -> None:
    async def test(cluster: Cluster) -> None:
        await ask(cluster.nodes[2], BOUNDS)
        cluster.world.crash(2, power=True)
        await asyncio.sleep(forwarding_server.SILENT_S_MAX + 10)
        assert not cluster.nodes[1].server._channel.sessions

    simulate(test)


def test_a_caller_that_comes_again_has_forgotten_its_first_connection() -> None:
    async def test(cluster: Cluster) -> None:
        leader = cluster.nodes[1]
        leader.mine.gate = asyncio.Event()
        reading = asyncio.ensure_future(ask(cluster.nodes[2], READ))
        await asyncio.sleep(0.1)
        (old,) = leader.server._channel.sessions.values()
        # No event tells the leader of the caller's power loss.
        cluster.world.crash(2, power=True)
        await asyncio.gather(reading, return_exceptions=True)
        await cluster.restart(2)
        cluster.lead(1, 1)
        leader.mine.gate = None
        await ask(cluster.nodes[2], BOUNDS)
        assert old.is_ended
        assert not old._running
        await settled(cluster)

    simulate(test)


def test_another_start_of_a_node_is_another_connection() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        await ask(node, BOUNDS)
        cluster.broker_epochs[1] = 2
        cluster.lead(1, 2)
        await ask(node, BOUNDS)
        assert cluster.world.network.connections == 2
        assert len(cluster.nodes[1].server._channel.sessions) == 1
        await settled(cluster)

    simulate(test)


def test_too_many_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "REQUESTS_MAX", 3)
    monkeypatch.setattr(forwarding, "WAITS_MAX", 2)

    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        cluster.nodes[1].mine.gate = asyncio.Event()
        reads = [asyncio.ensure_future(ask(node, READ)) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert (await refusal(node, READ)).entry is OVERLOADED
        waits = [asyncio.ensure_future(ask(node, WAIT)) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert (await refusal(node, WAIT)).entry is OVERLOADED
        cluster.nodes[1].mine.gate.set()
        cluster.nodes[1].replicas.wake.set()
        await asyncio.gather(*reads, *waits)
        await settled(cluster)

    simulate(test)


def test_too_many_bytes_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "BYTES_MAX", 2_500)
    monkeypatch.setattr(forwarding, "BODY_BYTES_MAX", 10_000)

    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        cluster.nodes[1].mine.gate = asyncio.Event()
        reads = [asyncio.ensure_future(ask(node, READ)) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert (await refusal(node, READ)).entry is OVERLOADED
        assert (await refusal(node, APPEND, bytes(600))).entry is OVERLOADED
        cluster.nodes[1].mine.gate.set()
        await asyncio.gather(*reads)
        large = Read(TOPIC_ID, 0, 0, 5_000, None)
        await ask(node, large)  # admitted alone
        assert (await refusal(node, APPEND, bytes(10_001))).entry is BODY_TOO_LARGE
        await settled(cluster)

    simulate(test)


def test_the_other_side_has_the_same_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding_server, "REQUESTS_MAX", 2)
    monkeypatch.setattr(forwarding_server, "WAITS_MAX", 1)

    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        cluster.nodes[1].mine.gate = asyncio.Event()
        held = [asyncio.ensure_future(ask(node, one)) for one in (READ, READ, WAIT)]
        await asyncio.sleep(0.1)
        assert (await refusal(node, READ)).entry is OVERLOADED
        assert (await refusal(node, WAIT)).entry is OVERLOADED
        cluster.nodes[1].mine.gate.set()
        cluster.nodes[1].replicas.wake.set()
        await asyncio.gather(*held)
        await settled(cluster)

    simulate(test)


def test_who_sends_more_than_was_agreed_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding_server, "ASSEMBLED_BYTES_MAX", 100)

    async def test(cluster: Cluster) -> None:
        assert (await refusal(cluster.nodes[2], APPEND, bytes(101))).entry is RETRIABLE
        await settled(cluster)

    simulate(test)


def test_answers_that_nobody_takes_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        await node.append(batch(bytes(1_000)))
        with monkeypatch.context() as patch:
            patch.setattr(forwarding_server, "UNSENT_BYTES_MAX", 500)
            assert (await refusal(node, READ)).entry is OVERLOADED
        with monkeypatch.context() as patch:
            # No retry can deliver this batch.
            patch.setattr(forwarding_server, "BODY_BYTES_MAX", 500)
            assert (await refusal(node, READ)).entry is UNSUPPORTED_FORMAT
        await ask(node, READ)

    simulate(test)


def test_a_failure_there_is_told_here_and_a_broken_invariant_to_the_node() -> None:
    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[2], cluster.nodes[1]
        leader.mine.errors += [ValueError("?"), AssertionError("broken")]  # type: ignore[list-item]
        assert (await refusal(node, READ)).entry is INTERNAL
        assert not leader.fatal
        assert (await refusal(node, READ)).entry is INTERNAL
        assert leader.fatal == ["An invariant broke: broken"]

    simulate(test)


def test_a_topic_that_the_leader_does_not_know_may_come_unless_it_was_deleted() -> None:
    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[2], cluster.nodes[1]
        other = Bounds("b" * 32, 0)
        assert (await refusal(node, other)).entry is NOT_READY
        leader.replicas.image.deleted_topic_ids["b" * 32] = None  # type: ignore[index]
        assert (await refusal(node, other)).entry is UNKNOWN_TOPIC

    simulate(test)


def test_a_node_of_another_cluster_is_not_served() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.nodes[1].server._cluster_id = lambda: "other"
        error = await refusal(cluster.nodes[2], BOUNDS)
        assert error.entry is NOT_READY
        assert "cluster" in error.message

    simulate(test)


def test_closing_ends_what_is_asked_and_what_is_carried_out() -> None:
    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[2], cluster.nodes[1]
        leader.mine.gate = asyncio.Event()
        reading = asyncio.ensure_future(refusal(node, READ))
        await asyncio.sleep(0.1)
        node.process.context.run(node.forwarder.close)
        assert (await reading).entry is NOT_READY
        assert (await refusal(node, READ)).entry is NOT_READY
        other = asyncio.ensure_future(refusal(cluster.nodes[3], READ))
        await asyncio.sleep(0.1)
        await leader.run(leader.server.close())
        assert (await other).entry is NOT_READY
        await settled(cluster)

    simulate(test)


def test_what_is_not_understood_ends_the_connection() -> None:
    class Receiver:
        def __init__(self) -> None:
            self.is_closed = False

        def received(self, message: bytes) -> None:
            pass

        def closed(self) -> None:
            self.is_closed = True

    async def test(cluster: Cluster) -> None:
        caller = cluster.nodes[3].process
        hello = encode_hello(own_hello("cluster", 3, 1))
        head = forwarding_messages.Request(1, 1_000, BOUNDS)
        piece = next(iter(forwarding_messages.encode(forwarding_messages.Piece(9), [b"x"])))
        answer = next(iter(forwarding_messages.encode(forwarding_messages.Answer(1, Waited()))))
        request = next(iter(forwarding_messages.encode(head)))
        for messages in ([b""], [piece], [answer], [request, request]):
            receiver = Receiver()

            async def connect(receiver: Receiver = receiver, some: list[bytes] = messages) -> None:
                def opened(connection: Connection) -> Receiver:
                    for message in some:
                        connection.send(message)
                    return receiver

                await caller.network.connect(
                    cluster.world.address(1), "data", hello, opened, timeout_s=1.0
                )

            await caller.run(connect())
            await asyncio.sleep(0.5)
            assert receiver.is_closed
        await settled(cluster)

    simulate(test)


def test_offsets_are_asked_without_reading() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.nodes[1].append(batch(b"a"))
        assert (await ask(cluster.nodes[2], BOUNDS)).outcome == Marks(0, 1, 0, 1)
        assert await cluster.nodes[2].run(cluster.nodes[2].find().bounds()) == (Offset(0), 1)

    simulate(test)
