"""The simulated network: promises of connections, and their ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from raftlog.world import network as interface
from raftlog.world.network import (
    MESSAGE_BYTES_MAX,
    QUEUED_BYTES_MAX,
    Connection,
    NetworkError,
    RefusedError,
    RejectedError,
)
from tests.simulation.network import NodeNetwork
from tests.simulation.world import Process, World, run

CHANNEL = "test"
SEEDS = range(30)


class Inbox:
    """A recording receiver of one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.messages: list[bytes] = []
        self.closings = 0

    def received(self, message: bytes) -> None:
        assert not self.closings, "received after the end"
        self.messages.append(message)

    def closed(self) -> None:
        self.closings += 1


class Server:
    """An acceptor that takes every caller by default."""

    def __init__(self) -> None:
        self.inboxes: list[Inbox] = []
        self.reject_hello = False
        self.reject_opened = False

    def hello(self, hello: bytes) -> bytes:
        if self.reject_hello:
            raise RejectedError(40903, "not you")
        return b"answer to " + hello

    def opened(self, connection: Connection) -> Inbox:
        if self.reject_opened:
            raise RejectedError(40903, "not now")
        self.inboxes.append(Inbox(connection))
        return self.inboxes[-1]


class Net:
    """Two nodes, caller 1 and acceptor 2, driven from outside."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.server = Server()
        self.caller = world.start(1, self._idle)
        self.called = world.start(2, self._serve)

    async def _idle(self, process: Process) -> None:
        await asyncio.Event().wait()

    async def _serve(self, process: Process) -> None:
        process.network.accept(CHANNEL, self.server)
        await asyncio.Event().wait()

    async def connect(
        self, timeout_s: float = 1.0, opened: Callable[[Connection], Inbox] = Inbox
    ) -> Inbox:
        """A connection, open on both sides."""
        await asyncio.sleep(0.001)  # the processes have begun
        taken: list[Inbox] = []

        def take(connection: Connection) -> Inbox:
            taken.append(opened(connection))
            return taken[0]

        await self.caller.run(
            self.caller.network.connect(
                self.world.address(2), CHANNEL, b"hello", take, timeout_s=timeout_s
            )
        )
        await asyncio.sleep(0.1)
        return taken[0]

    async def refused(self, timeout_s: float = 1.0) -> bool:
        await asyncio.sleep(0.001)
        return await self.caller.run(
            self.caller.network.is_refused(self.world.address(2), timeout_s=timeout_s)
        )


def simulate(test: Callable[[Net], Coroutine[Any, Any, None]], seed: int = 0) -> None:
    async def main(world: World) -> None:
        await test(Net(world))

    run(seed, main)


def count(inbox: Inbox) -> list[int]:
    return [int(message) for message in inbox.messages]


def test_it_is_a_network() -> None:
    async def test(net: Net) -> None:
        network: interface.Network = net.caller.network
        assert isinstance(network, NodeNetwork)

    simulate(test)


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_arrive_whole_and_in_order_both_ways(seed: int) -> None:
    async def test(net: Net) -> None:
        def opened(connection: Connection) -> Inbox:
            connection.send(b"0")  # at once
            return Inbox(connection)

        mine = await net.connect(opened=opened)
        (theirs,) = net.server.inboxes
        assert (mine.connection.hello, theirs.connection.hello) == (b"answer to hello", b"hello")
        for number in range(1, 100):
            mine.connection.send(b"%d" % number)
            theirs.connection.send(b"%d" % number)
            if number % 10 == 0:
                await asyncio.sleep(0.001)
        await asyncio.sleep(1)
        assert count(theirs) == list(range(100))
        assert count(mine) == list(range(1, 100))
        assert (mine.closings, theirs.closings) == (0, 0)

    simulate(test, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_in_flight_at_a_close_arrives_as_a_prefix(seed: int) -> None:
    async def test(net: Net) -> None:
        mine = await net.connect()
        (theirs,) = net.server.inboxes
        for number in range(20):
            mine.connection.send(b"%d" % number)
            theirs.connection.send(b"%d" % number)
        mine.connection.close()
        mine.connection.close()
        mine.connection.send(b"99")
        await asyncio.sleep(1)
        assert count(theirs) == list(range(len(theirs.messages)))
        assert mine.messages == []
        assert (mine.closings, theirs.closings) == (1, 1)

    simulate(test, seed)


def test_all_prefixes_occur() -> None:
    lengths: set[int] = set()

    async def test(net: Net) -> None:
        mine = await net.connect()
        for number in range(3):
            mine.connection.send(b"%d" % number)
        mine.connection.close()
        await asyncio.sleep(1)
        lengths.add(len(net.server.inboxes[0].messages))

    for seed in SEEDS:
        simulate(test, seed)
    assert lengths == {0, 1, 2, 3}


def test_a_dead_process_refuses_at_once() -> None:
    async def test(net: Net) -> None:
        net.world.crash(2)
        began = net.world.loop.now
        with pytest.raises(RefusedError):
            await net.connect()
        assert await net.refused()
        assert net.world.loop.now - began < 0.1

    simulate(test)


def test_a_machine_without_power_does_not_answer_until_it_is_started_again() -> None:
    async def test(net: Net) -> None:
        net.world.crash(2, power=True)
        began = net.world.loop.now
        with pytest.raises(NetworkError) as caught:
            await net.connect()
        assert not isinstance(caught.value, RefusedError)
        assert net.world.loop.now - began >= 1
        assert not await net.refused()
        net.world.start(2, net._serve)
        await net.connect()

    simulate(test)


def test_a_process_that_does_not_listen_yet_refuses() -> None:
    async def test(net: Net) -> None:
        net.world.crash(2)
        net.world.start(2, net._idle)
        with pytest.raises(RefusedError):
            await net.connect()

    simulate(test)


@pytest.mark.parametrize("one_way", [(1, 2), (2, 1)])
def test_a_blocked_direction_gives_no_answer_and_opens_when_it_is_free_again(
    one_way: tuple[int, int],
) -> None:
    async def test(net: Net) -> None:
        net.world.network.block(*one_way)
        with pytest.raises(NetworkError) as caught:
            await net.connect()
        assert not isinstance(caught.value, RefusedError)
        assert not await net.refused()
        attempt = asyncio.create_task(net.connect(timeout_s=10))
        await asyncio.sleep(2)
        assert not attempt.done()
        net.world.network.heal()
        await attempt

    simulate(test)


def test_a_call_that_was_answered_in_vain_leaves_no_open_end_behind() -> None:
    taken: set[int] = set()

    async def test(net: Net) -> None:
        net.world.network.block(2, 1)
        with pytest.raises(NetworkError, match="did not answer"):
            await net.connect()
        await asyncio.sleep(1)
        taken.add(len(net.server.inboxes))
        assert all(inbox.closings == 1 for inbox in net.server.inboxes)
        assert not net.caller.ends
        assert not net.called.ends

    for seed in SEEDS:
        simulate(test, seed)
    assert taken == {0, 1}


def test_connections_have_the_same_place_in_sets_every_time() -> None:
    orders: set[tuple[int, ...]] = set()

    async def test(net: Net) -> None:
        mine = [await net.connect() for _ in range(20)]
        inboxes = {inbox.connection: number for number, inbox in enumerate(mine)}
        orders.add(tuple(inboxes[connection] for connection in set(inboxes)))

    for _ in range(5):
        simulate(test)
    assert len(orders) == 1


def test_a_paused_process_does_not_answer_and_refuses_nothing() -> None:
    async def test(net: Net) -> None:
        await asyncio.sleep(0.001)
        net.world.pause(2)
        assert not await net.refused()
        with pytest.raises(NetworkError, match="did not answer"):
            await net.connect()
        net.world.resume(2)
        await asyncio.sleep(1)
        assert all(inbox.closings for inbox in net.server.inboxes), "nobody is there any more"
        await net.connect()

    simulate(test)


def test_a_paused_process_receives_everything_when_it_goes_on() -> None:
    async def test(net: Net) -> None:
        mine = await net.connect()
        (theirs,) = net.server.inboxes
        net.world.pause(2)
        for number in range(10):
            mine.connection.send(b"%d" % number)
        await asyncio.sleep(60)
        assert theirs.messages == []
        net.world.resume(2)
        await asyncio.sleep(1)
        assert count(theirs) == list(range(10))
        assert theirs.closings == 0

    simulate(test)


def test_an_unknown_channel_or_address_is_not_reached() -> None:
    async def test(net: Net) -> None:
        await asyncio.sleep(0.001)
        network = net.caller.network
        with pytest.raises(RejectedError):
            await net.caller.run(
                network.connect(net.world.address(2), "other", b"", Inbox, timeout_s=1)
            )
        with pytest.raises(NetworkError):
            await net.caller.run(network.connect("nowhere:1", CHANNEL, b"", Inbox, timeout_s=1))
        assert not await net.caller.run(network.is_refused("nowhere:1", timeout_s=1))

    simulate(test)


def test_the_called_side_rejects_by_its_answer() -> None:
    async def test(net: Net) -> None:
        net.server.reject_hello = True
        with pytest.raises(RejectedError, match="not you") as caught:
            await net.connect()
        assert caught.value.code == 40903
        assert net.server.inboxes == []

    simulate(test)


def test_a_rejection_after_the_answer_arrives_or_shows_as_a_close() -> None:
    outcomes: set[bool] = set()

    async def test(net: Net) -> None:
        net.server.reject_opened = True
        try:
            mine = await net.connect()
        except RejectedError:
            outcomes.add(True)
        else:
            assert mine.closings == 1
            outcomes.add(False)

    for seed in SEEDS:
        simulate(test, seed)
    assert outcomes == {True, False}


def test_a_caller_that_rejects_leaves_no_open_end_behind() -> None:
    taken: set[bool] = set()

    def opened(connection: Connection) -> Inbox:
        raise RejectedError(40903, "not such an answer")

    async def test(net: Net) -> None:
        with pytest.raises(RejectedError, match="not such an answer"):
            await net.connect(opened=opened)
        await asyncio.sleep(1)
        taken.add(bool(net.server.inboxes))
        assert [inbox.closings for inbox in net.server.inboxes] in ([], [1])
        assert not net.caller.ends
        assert not net.called.ends

    for seed in SEEDS:
        simulate(test, seed)
    assert taken == {True, False}


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_blocked_direction_holds_back_arrives_when_it_is_free_soon(seed: int) -> None:
    async def test(net: Net) -> None:
        mine = await net.connect()
        (theirs,) = net.server.inboxes
        net.world.network.block(1, 2)
        for number in range(10):
            mine.connection.send(b"%d" % number)
            theirs.connection.send(b"%d" % number)
        await asyncio.sleep(1.5)
        assert theirs.messages == []
        assert count(mine) == list(range(10)), "the other direction is free"
        net.world.network.unblock(1, 2)
        mine.connection.send(b"10")
        await asyncio.sleep(3)
        assert count(theirs) == list(range(11))

    simulate(test, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sender_into_a_blocked_direction_gives_up_and_the_silent_side_does_not(
    seed: int,
) -> None:
    async def test(net: Net) -> None:
        mine = await net.connect()
        (theirs,) = net.server.inboxes
        net.world.network.partition([1], [2])
        await asyncio.sleep(60)
        assert (mine.closings, theirs.closings) == (0, 0), "nobody has sent anything"
        mine.connection.send(b"0")
        await asyncio.sleep(1.9)
        assert mine.closings == 0
        await asyncio.sleep(14)
        assert (mine.closings, theirs.closings) == (1, 0)
        assert theirs.messages == []
        net.world.network.heal()
        await asyncio.sleep(10)
        assert theirs.closings == 1, "the end is retransmitted too"

    simulate(test, seed)


def test_a_sender_whose_acknowledgements_are_blocked_gives_up_too() -> None:
    async def test(net: Net) -> None:
        mine = await net.connect()
        (theirs,) = net.server.inboxes
        net.world.network.block(2, 1)
        mine.connection.send(b"0")
        await asyncio.sleep(16)
        assert count(theirs) == [0]
        assert (mine.closings, theirs.closings) == (1, 1)

    simulate(test)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_kernel_of_a_killed_process_tells_its_peers(seed: int) -> None:
    async def test(net: Net) -> None:
        mine = await net.connect()
        (theirs,) = net.server.inboxes
        for number in range(10):
            theirs.connection.send(b"%d" % number)
        net.world.crash(2)
        await asyncio.sleep(0.5)
        assert mine.closings == 1
        assert count(mine) == list(range(len(mine.messages)))
        assert theirs.closings == 0
        assert not net.called.ends
        assert not net.caller.ends

    simulate(test, seed)


def test_the_peer_of_a_machine_without_power_learns_of_it_only_by_sending() -> None:
    async def test(net: Net) -> None:
        mine = await net.connect()
        net.world.crash(2, power=True)
        await asyncio.sleep(60)
        assert mine.closings == 0
        mine.connection.send(b"0")
        await asyncio.sleep(16)
        assert mine.closings == 1

    simulate(test)


def test_a_machine_that_is_back_denies_connections_of_the_past() -> None:
    async def test(net: Net) -> None:
        mine, other = await net.connect(), await net.connect()
        net.world.crash(2, power=True)
        other.connection.send(b"0")
        net.world.start(2, net._serve)
        await asyncio.sleep(1.5)
        assert (mine.closings, other.closings) == (0, 1)
        mine.connection.send(b"0")
        await asyncio.sleep(0.5)
        assert mine.closings == 1
        assert all(inbox.messages == [] for inbox in net.server.inboxes)

    simulate(test)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reset_ends_both_sides_and_nothing_arrives_twice_or_out_of_order(seed: int) -> None:
    async def test(net: Net) -> None:
        mine = await net.connect()
        (theirs,) = net.server.inboxes
        for number in range(10):
            mine.connection.send(b"%d" % number)
        net.world.network.reset(1, 2)
        mine.connection.send(b"99")
        await asyncio.sleep(1)
        assert (mine.closings, theirs.closings) == (1, 1)
        assert count(theirs) == list(range(len(theirs.messages)))

    simulate(test, seed)


def test_a_half_open_end_learns_late_or_when_it_sends() -> None:
    closings: set[tuple[int, int]] = set()

    async def test(net: Net) -> None:
        net.world.network.half_open = 1.0
        mine = await net.connect()
        (theirs,) = net.server.inboxes
        net.world.network.reset(1, 2)
        await asyncio.sleep(10)
        closings.add((mine.closings, theirs.closings))
        mine.connection.send(b"0")
        theirs.connection.send(b"0")
        await asyncio.sleep(1)
        assert (mine.closings, theirs.closings) == (1, 1)
        assert mine.messages == theirs.messages == []

    for seed in SEEDS:
        simulate(test, seed)
    assert closings == {(1, 1), (1, 0), (0, 1)}


def test_a_new_connection_can_be_made_beside_a_half_open_one() -> None:
    async def test(net: Net) -> None:
        net.world.network.half_open = 1.0
        old = await net.connect()
        net.world.network.reset(1, 2)
        new = await net.connect()
        new.connection.send(b"0")
        await asyncio.sleep(1)
        assert [count(inbox) for inbox in net.server.inboxes] == [[], [0]]
        assert old.messages == []

    simulate(test)


def test_slow_directions_are_slow() -> None:
    async def test(net: Net) -> None:
        mine = await net.connect()
        (theirs,) = net.server.inboxes
        net.world.network.slow(1, 2, 5.0)
        mine.connection.send(b"0")
        theirs.connection.send(b"0")
        await asyncio.sleep(4)
        assert (count(mine), count(theirs)) == ([0], [])
        net.world.network.heal()
        mine.connection.send(b"1")
        await asyncio.sleep(0.5)
        assert theirs.messages == [], "nothing overtakes"
        await asyncio.sleep(1)
        assert count(theirs) == [0, 1]

    simulate(test)


def test_too_long_a_message_and_too_much_that_waits_end_the_connection() -> None:
    async def test(net: Net) -> None:
        mine = await net.connect()
        mine.connection.send(bytes(MESSAGE_BYTES_MAX))
        await asyncio.sleep(1)
        assert len(net.server.inboxes[0].messages) == 1
        mine.connection.send(bytes(MESSAGE_BYTES_MAX + 1))
        await asyncio.sleep(1)
        assert mine.closings == 1

        mine = await net.connect()
        net.world.pause(2)
        message = bytes(MESSAGE_BYTES_MAX)
        for _ in range(QUEUED_BYTES_MAX // MESSAGE_BYTES_MAX + 1):
            mine.connection.send(message)
        assert mine.connection.queued_bytes > QUEUED_BYTES_MAX
        await asyncio.sleep(1)
        assert mine.closings == 0
        mine.connection.send(message)
        await asyncio.sleep(0.1)
        assert mine.closings == 1

    simulate(test)


def test_a_process_that_dies_while_it_is_called_breaks_the_call_off() -> None:
    async def test(net: Net) -> None:
        await asyncio.sleep(0.001)
        net.world.pause(2)
        attempt = asyncio.create_task(net.connect(timeout_s=100))
        await asyncio.sleep(1)
        net.world.crash(2)
        await asyncio.sleep(1)
        assert attempt.done()
        with pytest.raises(NetworkError):
            await attempt

    simulate(test)
