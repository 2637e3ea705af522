"""A channel: openings, the newest connection wins, redial, keep-alive, bodies in pieces.

`Talk` is the smallest protocol on a channel, the model for a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.peer.channel import (
    Channel,
    ChannelSettings,
    PieceBuffer,
    Session,
    keeps_old,
    redial_delay_s,
)
from raftlog.peer.hello import Hello, ProtocolError, decode_hello
from raftlog.peer.tasks import TaskGroup
from raftlog.record.errors import ILLEGAL_STATE, NOT_READY, OVERLOADED
from raftlog.world import Backoff
from raftlog.world.network import Connection, NetworkError, RejectedError
from tests.simulation.world import Process, World

TALK = "talk"


class Conversation(Session):
    """One connection on which each side may say anything."""

    def __init__(self, owner: Talk, peer_id: int) -> None:
        super().__init__(peer_id)
        self.owner = owner
        self.heard: list[bytes] = []
        self.reason = ""

    def received(self, message: bytes) -> None:
        self.has_heard = True
        if message:
            self.heard.append(message)

    def ping(self) -> None:
        if not self.owner.is_mute:
            self.connection.send(b"")

    def on_ended(self, reason: str) -> None:
        self.reason = reason


class Talk:
    """A node with one channel. Both its `Listener` and the `Opener` of its calls."""

    def __init__(self, world: World, node_id: int, settings: ChannelSettings) -> None:
        self.world = world
        self.node_id = node_id
        self.settings = settings
        self.is_mute = False
        self.refusal: RejectedError | None = None
        self.calls = 0
        self.opened_count = 0

    async def main(self, process: Process) -> None:
        self.process = process
        self.tasks = TaskGroup(self._fail)
        self.channel: Channel[Conversation] = Channel(
            TALK,
            node_id=self.node_id,
            network=process.network,
            clock=process.clock,
            tasks=self.tasks,
            settings=self.settings,
        )
        self.channel.listen(self)
        await asyncio.Event().wait()

    def _fail(self, reason: str) -> None:
        raise AssertionError(reason)

    # Listener

    def admit(self, content: bytes) -> Hello:
        theirs = decode_hello(content, Hello, TALK, 1)
        if self.refusal is not None:
            raise self.refusal
        return theirs

    def hello(self, theirs: Hello | None = None) -> Hello:
        return Hello(channel=TALK, protocol=1, node_id=self.node_id, cluster_id="c")

    def opened(self, connection: Connection, theirs: Hello) -> Conversation:
        self.opened_count += 1
        return Conversation(self, theirs.node_id)

    # Steps of tests

    def do(self, work: Callable[[], object]) -> None:
        self.process.context.copy().run(work)

    def session(self, peer_id: int) -> Conversation:
        return self.channel.sessions[peer_id]

    async def call(self, peer_id: int) -> None:
        await self.process.run(
            self.channel.connect(self.world.address(peer_id), self.hello(), self)
        )

    def keep(self, peer_id: int) -> None:
        async def call(failures: int) -> float | None:
            self.calls += 1
            with contextlib.suppress(NetworkError, RejectedError):
                await self.channel.connect(self.world.address(peer_id), self.hello(), self)
            return None

        self.do(
            lambda: self.tasks.spawn(
                self.channel.keep_connected(peer_id, call, self.process.randomness), "keep"
            )
        )


def play(
    test: Callable[[World, Talk, Talk], Coroutine[Any, Any, None]],
    settings: ChannelSettings | None = None,
) -> None:
    async def main(world: World) -> None:
        one, two = (Talk(world, number, settings or ChannelSettings()) for number in (1, 2))
        for node in (one, two):
            world.start(node.node_id, node.main)
        await asyncio.sleep(0.001)
        await test(world, one, two)

    World(1).run(main)


def test_a_call_opens_a_session_on_both_sides() -> None:
    async def test(world: World, one: Talk, two: Talk) -> None:
        await one.call(2)
        one.do(lambda: one.session(2).connection.send(b"x"))
        await asyncio.sleep(0.1)
        assert two.session(1).heard == [b"x"]
        assert one.session(2).is_dialled
        assert not two.session(1).is_dialled

    play(test)


def test_the_newest_connection_of_a_peer_wins() -> None:
    async def test(world: World, one: Talk, two: Talk) -> None:
        await one.call(2)
        await asyncio.sleep(0.1)
        mine, older = one.session(2), two.session(1)
        await one.call(2)
        await asyncio.sleep(0.1)
        assert mine.is_replaced
        assert older.is_ended
        assert two.session(1) is not older
        assert not two.session(1).is_ended
        assert len(one.channel.sessions) == len(two.channel.sessions) == 1

    play(test)


def test_an_end_is_noted_once_on_both_sides() -> None:
    async def test(world: World, one: Talk, two: Talk) -> None:
        await one.call(2)
        await asyncio.sleep(0.1)
        mine, theirs = one.session(2), two.session(1)
        one.do(lambda: mine.end("for a test"))
        one.do(lambda: mine.end("once more"))
        await asyncio.sleep(1)
        assert (mine.reason, theirs.reason) == ("for a test", "the connection has ended")
        assert one.channel.sessions == two.channel.sessions == {}
        assert not len(one.tasks)
        assert not len(two.tasks)

    play(test)


def test_a_refused_hello_opens_nothing() -> None:
    async def test(world: World, one: Talk, two: Talk) -> None:
        two.refusal = RejectedError(ILLEGAL_STATE.code, "not you")
        with pytest.raises(RejectedError, match="not you"):
            await one.call(2)
        assert one.channel.sessions == two.channel.sessions == {}

    play(test)


def test_a_closed_channel_rejects_calls_that_may_be_repeated() -> None:
    async def test(world: World, one: Talk, two: Talk) -> None:
        await one.call(2)
        await asyncio.sleep(0.1)
        two.do(lambda: two.channel.close("stopping"))
        with pytest.raises(RejectedError) as caught:
            await one.call(2)
        assert caught.value.code == NOT_READY.code
        assert two.channel.sessions == {}

    play(test)


def test_more_connections_than_the_bound_are_rejected() -> None:
    async def test(world: World, one: Talk, two: Talk) -> None:
        await one.call(2)
        await asyncio.sleep(0.1)
        three = Talk(world, 3, ChannelSettings())
        world.start(3, three.main)
        await asyncio.sleep(0.001)
        with pytest.raises(RejectedError) as caught:
            await three.call(2)
        assert caught.value.code == OVERLOADED.code
        # A connected peer may replace its own connection.
        await one.call(2)

    play(test, ChannelSettings(connections_max=1))


def test_a_lost_connection_is_called_again_at_once() -> None:
    async def test(world: World, one: Talk, two: Talk) -> None:
        one.keep(2)
        await asyncio.sleep(3)
        for number in range(1, 4):
            assert one.calls == number
            two.do(lambda: two.session(1).end("for a test"))
            await asyncio.sleep(3)
            assert not one.session(2).is_ended

    play(test)


def test_calls_that_fail_come_ever_less_often() -> None:
    async def test(world: World, one: Talk, two: Talk) -> None:
        two.refusal = RejectedError(NOT_READY.code, "later")
        one.keep(2)
        await asyncio.sleep(1)
        early = one.calls
        await asyncio.sleep(10)
        assert 4 <= early <= 8
        assert 9 <= one.calls - early <= 21
        two.refusal = None
        await asyncio.sleep(1.5)
        assert not one.session(2).is_ended

    play(test)


def test_a_quiet_connection_stays_and_a_dead_one_ends() -> None:
    async def test(world: World, one: Talk, two: Talk) -> None:
        world.network.give_up_s = (1000.0, 1000.0)
        await one.call(2)
        await asyncio.sleep(60)
        mine, theirs = one.session(2), two.session(1)
        assert not mine.is_ended
        assert not theirs.is_ended
        two.is_mute = True
        begun = world.loop.now
        await mine.ended.wait()
        assert 4 <= world.loop.now - begun <= 5
        assert mine.reason == "it has been silent for too long"

    play(test)


# Pure parts


def test_calls_come_at_once_first_and_then_ever_less_often() -> None:
    def delay(failures: int, jitter: float = 0.0) -> float:
        return redial_delay_s(failures, jitter, Backoff(0.05, 1.0))

    assert [delay(n) for n in range(8)] == [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert delay(1, 1.0) == 0.025
    assert delay(10**9) == 1.0


@pytest.mark.parametrize("high_first", [True, False])
def test_of_two_calls_at_once_both_sides_keep_that_of_the_higher_id(high_first: bool) -> None:
    # Each side meets both connections, in either order: the same one must be left.
    for me, other in ((1, 2), (2, 1)):
        high_is_mine = me > other
        first_is_mine = high_is_mine == high_first
        keeps_first = keeps_old(
            me, other, old_dialled=first_is_mine, new_dialled=not first_is_mine, old_is_young=True
        )
        assert keeps_first == high_first


def test_a_second_call_of_the_same_side_takes_the_place_of_the_first() -> None:
    for me, other, mine in ((1, 2, True), (1, 2, False), (2, 1, True), (2, 1, False)):
        assert not keeps_old(me, other, old_dialled=mine, new_dialled=mine, old_is_young=True)


def test_an_old_connection_gives_way_whoever_called() -> None:
    for me, other, mine in ((1, 2, True), (1, 2, False), (2, 1, True), (2, 1, False)):
        assert not keeps_old(me, other, old_dialled=mine, new_dialled=not mine, old_is_young=False)


@given(st.lists(st.binary(min_size=1, max_size=5), max_size=6), st.binary(max_size=5))
def test_pieces_make_the_body_that_was_cut(pieces: list[bytes], last: bytes) -> None:
    buffer = PieceBuffer(100)
    for piece in pieces:
        assert buffer.add(piece, is_last=False) is None
    whole = buffer.add(last, is_last=True)
    assert whole is not None
    assert bytes(whole) == b"".join(pieces) + last


def test_a_body_is_bounded_and_its_pieces_are_not_empty() -> None:
    buffer = PieceBuffer(3)
    with pytest.raises(ProtocolError, match="empty"):
        buffer.add(b"", is_last=False)
    buffer.add(b"ab", is_last=False)
    with pytest.raises(ProtocolError, match="longer than 3"):
        buffer.add(b"cd", is_last=True)
