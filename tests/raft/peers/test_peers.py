"""Connections of members, in the simulated world: every handler checks its contract all the time
(`peers_world.Member`)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar

import pytest

from raftlog.peer.hello import encode_hello
from raftlog.raft.peers.hello import CHANNEL, QuorumHello
from raftlog.raft.peers.identity import KnownPeers
from raftlog.raft.peers.peers import Peers, PeersLimits
from raftlog.raft.voters import VoterSet
from raftlog.world import DiskError
from raftlog.world.network import Acceptor, Opened, RefusedError
from raftlog.world.randomness import SystemRandomness
from raftlog.world.time import SystemClock
from tests.raft.peers_world import (
    Member,
    all_connected,
    cluster,
    hello_of,
    play,
    voter,
    voter_set,
)
from tests.simulation.disk import SimulatedDisk
from tests.simulation.world import World
from tests.waiting import until

T = TypeVar("T")

SEEDS = range(25)


# Connecting


@pytest.mark.parametrize("seed", SEEDS)
def test_each_pair_with_a_voter_gets_one_connection(seed: int) -> None:
    async def main(world: World) -> None:
        members = cluster(world, voters=3, observers=2)
        await until(lambda: all_connected(members, 3), deadline_s=3)
        await asyncio.sleep(5)
        assert all_connected(members, 3)
        for member in members.values():
            assert all(member.told(other) == ["up"] for other in member.connected)

    play(seed, main)


def test_what_is_sent_arrives_in_order_also_at_once_after_the_start() -> None:
    async def main(world: World) -> None:
        frames = [b"%d" % number for number in range(20)]
        one = Member(world, 1, voter_set(1, 2), is_voter=True, on_up=frames)
        two = Member(world, 2, voter_set(1, 2), is_voter=True, on_up=frames)
        # Node 1 is pinned already and may send long before the other side has pinned node 1.
        world.disk(1).times.slow = 40.0  # type: ignore[union-attr]
        one.start()
        two.start()
        await until(lambda: one.got(2) == frames == two.got(1), deadline_s=5)

    for seed in SEEDS:
        play(seed, main)


def test_a_member_that_is_not_connected_cannot_be_sent_to() -> None:
    async def main(world: World) -> None:
        one = cluster(world, voters=1)[1]
        await until(lambda: one.peers is not None, deadline_s=1)
        assert not one.live.send(2, b"x")

    play(0, main)


def test_too_much_before_the_pin_ends_the_connection_and_the_next_one_works() -> None:
    async def main(world: World) -> None:
        limits = PeersLimits(early_frames_max=3)
        frames = [b"x"] * 10
        one = Member(world, 1, voter_set(1, 2), is_voter=True, limits=limits)
        two = Member(world, 2, voter_set(1, 2), is_voter=True, on_up=frames)
        one.start()
        two.start()
        await until(lambda: one.peers is not None, deadline_s=1)
        world.disk(1).times.stick(0.5)  # type: ignore[union-attr]
        await until(lambda: one.got(2) == frames, deadline_s=3)
        assert one.told(2) == ["up"]
        assert len(two.told(1)) > 1

    play(1, main)


def test_more_than_the_limit_are_put_off() -> None:
    async def main(world: World) -> None:
        limits = PeersLimits(connections_max=1)
        one = Member(world, 1, voter_set(1), is_voter=True, limits=limits)
        others = [Member(world, node_id, voter_set(1), is_voter=False) for node_id in (2, 3)]
        for member in (one, *others):
            member.start()
        await asyncio.sleep(2)
        (first,) = one.connected
        (second,) = {2, 3} - {first}
        assert others[second - 2].connected == []
        others[first - 2].crash()
        await until(lambda: one.connected == [second], deadline_s=3)

    play(2, main)


def test_a_directory_that_cannot_be_noted_is_not_connected_until_it_can() -> None:
    async def main(world: World) -> None:
        one, two = (Member(world, node_id, voter_set(1, 2), is_voter=True) for node_id in (1, 2))
        for _ in range(3):
            world.disk(1).fail_next("sync", "peers.json.tmp", DiskError)
        one.start()
        two.start()
        await until(lambda: 2 in one.connected, deadline_s=10)
        assert one.told(2) == ["up"]

    play(3, main)


def test_a_closed_member_tells_nothing_more_and_leaves_no_task() -> None:
    async def main(world: World) -> None:
        members = cluster(world, voters=3)
        await until(lambda: all_connected(members, 3), deadline_s=3)
        two = members[2]
        # In its second life it has nothing to pin, so closing waits for its tasks alone.
        two.crash()
        two.start()
        await until(lambda: all_connected(members, 3), deadline_s=3)
        members[1].crash()

        async def close() -> None:
            mine = [task for task in asyncio.all_tasks() if "quorum-dial" in task.get_name()]
            await two.live.close()
            assert sum(task.done() for task in mine) == 1, "one of three: node 3 has two"

        await world.processes[2].run(close())
        two.forget_events()
        await until(lambda: members[3].told(2)[-1] == "down", deadline_s=1)
        await asyncio.sleep(3)
        assert two.events == []
        assert two.connected == []

    for seed in SEEDS:
        play(seed, main)


# Losing


@pytest.mark.parametrize("victim", [1, 2, 3])
def test_a_killed_process_is_known_to_be_dead_within_50_ms(victim: int) -> None:
    async def main(world: World) -> None:
        members = cluster(world, voters=3)
        await until(lambda: all_connected(members, 3), deadline_s=3)
        killed_at = world.loop.now
        members[victim].crash()
        await asyncio.sleep(2)
        for node_id, member in members.items():
            if node_id != victim:
                assert member.told(victim) == ["up", "down", "dead"]
                assert member.events[-1].at - killed_at < 0.05

    for seed in SEEDS:
        play(seed, main)


def test_an_observer_that_was_killed_is_known_to_be_dead_though_nobody_calls_it() -> None:
    async def main(world: World) -> None:
        members = cluster(world, voters=1, observers=1)
        await until(lambda: all_connected(members, 1), deadline_s=3)
        members[2].crash()
        await until(lambda: members[1].told(2) == ["up", "down", "dead"], deadline_s=0.05)

    play(0, main)


def test_a_broken_connection_is_replaced_at_once_and_nobody_is_called_dead() -> None:
    async def main(world: World) -> None:
        members = cluster(world, voters=2)
        await until(lambda: all_connected(members, 2), deadline_s=3)
        await asyncio.sleep(2)
        world.network.reset(1, 2)
        await asyncio.sleep(0.6)
        assert all_connected(members, 2)
        for me, other in ((1, 2), (2, 1)):
            assert members[me].told(other) == ["up", "down", "up"]

    for seed in SEEDS:
        play(seed, main)


def test_after_a_loss_the_peer_is_called_at_once() -> None:
    async def main(world: World) -> None:
        members = cluster(world, voters=2)
        await until(lambda: all_connected(members, 2), deadline_s=3)
        one, two = members[1], members[2]
        for _ in range(5):
            await asyncio.sleep(2)
            one.forget_events()
            two.forget_events()
            world.processes[1].context.copy().run(one.live.disconnect, 2, "silent")
            await until(lambda: two.told(1) == ["down", "up"], deadline_s=0.025)

    for seed in SEEDS:
        play(seed, main)


def test_a_peer_that_ends_every_connection_is_not_called_ever_faster() -> None:
    async def main(world: World) -> None:
        members = cluster(world, voters=2)
        one = members[1]
        for _ in range(20_000):
            await asyncio.sleep(0.001)
            if one.connected:
                world.processes[1].context.copy().run(one.live.disconnect, 2, "nonsense")
        assert 20 <= len(one.told(2)) / 2 <= 50

    play(0, main)


def test_a_machine_without_power_is_lost_but_not_called_dead() -> None:
    async def main(world: World) -> None:
        members = cluster(world, voters=2)
        await until(lambda: all_connected(members, 2), deadline_s=3)
        members[2].crash(power=True)
        one = members[1]
        world.processes[1].context.copy().run(one.live.disconnect, 2, "silent")
        await asyncio.sleep(5)
        assert one.told(2) == ["up", "down"]
        members[2].start()
        await until(lambda: all_connected(members, 2), deadline_s=5)

    play(0, main)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("victim", [1, 2])
def test_a_process_that_is_restarted_at_once_is_connected_again(seed: int, victim: int) -> None:
    async def main(world: World) -> None:
        members = cluster(world, voters=2, observers=1)
        await until(lambda: all_connected(members, 2), deadline_s=3)
        for _ in range(5):
            members[victim].crash()
            await asyncio.sleep(world.random(f"pause {world.loop.now}").uniform(0, 0.05))
            members[victim].start()
            await until(lambda: all_connected(members, 2), deadline_s=3)
        await asyncio.sleep(2)
        # Every handler checks: no peer is reported dead while connected, or connected since.
        assert all_connected(members, 2)

    play(seed, main)


def test_a_silent_connection_is_ended_by_its_owner_and_opened_anew() -> None:
    async def main(world: World) -> None:
        members = cluster(world, voters=2)
        await until(lambda: all_connected(members, 2), deadline_s=3)
        one = members[1]
        world.processes[1].context.copy().run(one.live.disconnect, 2, "silent")
        assert one.told(2) == ["up", "down"]
        await until(lambda: one.told(2) == ["up", "down", "up"], deadline_s=1)

    play(0, main)


class _LateNetwork:
    """A network: the test answers its calls."""

    def __init__(self) -> None:
        self.acceptors: dict[str, Acceptor] = {}
        self.calls: list[asyncio.Future[None]] = []

    def accept(self, channel: str, acceptor: Acceptor) -> None:
        self.acceptors[channel] = acceptor

    async def connect(
        self, address: str, channel: str, hello: bytes, opened: Opened, *, timeout_s: float
    ) -> None:
        self.calls.append(asyncio.get_running_loop().create_future())
        await self.calls[-1]

    async def is_refused(self, address: str, *, timeout_s: float) -> bool:
        return False


class _Call:
    """A connection dialled by node 1."""

    hello = encode_hello(hello_of(1))
    address = "n1.test:8082"
    queued_bytes = 0

    def send(self, message: bytes) -> None:
        pass

    def close(self) -> None:
        pass


class _Teller:
    """A handler with a record of its calls."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def hello(self) -> QuorumHello:
        return hello_of(2)

    def peer_up(self, node_id: int) -> None:
        self.told.append("up")

    def peer_down(self, node_id: int, *, refused: bool) -> None:
        self.told.append("dead" if refused else "down")

    def received(self, node_id: int, frame: bytes) -> None:
        raise AssertionError

    def ping(self, node_id: int) -> None:
        pass


class _HeldDisk(SimulatedDisk):
    """Disk work waits for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.free.set()

    async def run(self, work: Callable[[], T]) -> T:
        await self.free.wait()
        return await super().run(work)


async def turns(condition: Callable[[], bool]) -> None:
    """Let the loop turn until the condition holds."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("not in 1000 turns of the loop")


@pytest.mark.parametrize("comes_back", ["no", "connecting", "connected", "connected and lost"])
async def test_a_refusal_that_is_heard_of_late_counts_only_if_nobody_connected_since(
    comes_back: str,
) -> None:
    network, handler, disk = _LateNetwork(), _Teller(), _HeldDisk()
    known = await KnownPeers.open(disk, "")
    peers = Peers(
        network=network,
        clock=SystemClock(),
        randomness=SystemRandomness(),
        handler=handler,
        known=known,
        on_fatal=handler.told.append,
    )
    peers.start()
    acceptor = network.acceptors[CHANNEL]
    first = acceptor.opened(_Call())
    await turns(lambda: handler.told == ["up"])
    await known.forget(1)
    peers.retarget(True, voter_set(1, 2))
    first.closed()
    await turns(lambda: len(network.calls) > 0)
    if comes_back == "connecting":
        disk.free.clear()
    if comes_back != "no":
        second = acceptor.opened(_Call())
        if comes_back != "connecting":
            await turns(lambda: handler.told == ["up", "down", "up"])
        if comes_back == "connected and lost":
            second.closed()
    before = list(handler.told)
    network.calls[0].set_exception(RefusedError("late"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert handler.told == (["up", "down", "dead"] if comes_back == "no" else before)
    disk.free.set()
    await peers.close()


# Roles


@pytest.mark.parametrize("seed", range(100))
def test_two_sides_that_both_call_end_with_one_connection(seed: int) -> None:
    async def main(world: World) -> None:
        world.network.latency_s = world.random("latency").choice([0.001, 0.02, 0.2])
        voters = voter_set(1, 2)
        # Node 1 takes itself for an observer: nodes 1 and 2 dial each other.
        one = Member(world, 1, voters, is_voter=False)
        two = Member(world, 2, voters, is_voter=True)
        one.start()
        two.start()
        await until(lambda: one.peers is not None and two.peers is not None, deadline_s=1)
        await asyncio.sleep(6)
        assert (one.connected, two.connected) == ([2], [1])
        one.forget_events()
        two.forget_events()
        made = world.network.connections
        await asyncio.sleep(60)
        assert one.events == two.events == [], "no ping-pong"
        assert world.network.connections == made
        world.network.reset(1, 2)
        await until(
            lambda: "up" in one.told(2) and one.connected == [2] and two.connected == [1],
            deadline_s=10,
        )

    play(seed, main)


def test_a_side_that_calls_again_is_let_in_though_the_other_thinks_it_is_connected() -> None:
    async def main(world: World) -> None:
        world.network.half_open = 1.0
        voters = voter_set(1, 2)
        one, two = (Member(world, node_id, voters, is_voter=True) for node_id in (1, 2))
        one.start()
        two.start()
        await until(lambda: one.connected == [2] and two.connected == [1], deadline_s=3)
        # The connection is young, and of the call of the higher id. Now 1 would call, too.
        one.retarget(False, voters)
        world.network.reset(1, 2)
        await until(lambda: len(one.told(2)) + len(two.told(1)) > 2, deadline_s=1)
        # Of either side, the other one may notice seconds later or never.
        await until(
            lambda: one.told(2)[-1] == two.told(1)[-1] == "up" and "down" in one.told(2),
            deadline_s=1,
        )

    for seed in SEEDS:
        play(seed, main)


def test_a_new_voter_is_called_and_a_former_one_stays_connected() -> None:
    async def main(world: World) -> None:
        members = cluster(world, voters=2, observers=1)
        await until(lambda: all_connected(members, 2), deadline_s=3)
        for node_id, member in members.items():
            member.retarget(node_id != 1, voter_set(2, 3))
        await asyncio.sleep(1)
        for member in members.values():
            assert all(member.told(other) == ["up"] for other in member.connected)
        # Node 3 was an observer; a new observer calls it now.
        four = Member(world, 4, voter_set(2, 3), is_voter=False)
        four.start()
        await until(lambda: four.peers is not None, deadline_s=1)
        await until(lambda: four.connected == [2, 3], deadline_s=1)

    play(0, main)


def test_a_voter_is_found_by_the_voter_set_and_an_observer_by_its_hello() -> None:
    async def main(world: World) -> None:
        members = cluster(world, voters=2, observers=1)
        await until(lambda: all_connected(members, 2), deadline_s=3)
        one = members[1].live
        assert one.address(2) == "n2.test:8082"
        assert one.address(3) == "n3.test:8082"
        members[1].retarget(True, VoterSet((voter(1), *(voter_set(9).voters))))
        assert one.address(9) == "n9.test:8082"
        assert one.address(5) is None

    play(0, main)


# All faults together


def one_trouble(world: World, members: dict[int, Member], chance: random.Random) -> None:
    """A fault, or a recovery."""
    one, other = chance.sample(sorted(members), 2)
    match chance.randrange(8):
        case 0 | 1:
            world.network.reset(one, other)
        case 2:
            world.network.partition([one], [other], one_way=chance.random() < 0.5)
        case 3:
            world.network.heal()
        case 4 | 5:
            members[one].crash(power=chance.random() < 0.3)
        case 6:
            start_all(members)
        case _:
            members[one].retarget(chance.random() < 0.5, members[one].voters)


def start_all(members: dict[int, Member]) -> None:
    for node_id, member in members.items():
        if not member.world.is_up(node_id):
            member.start()


def send_to_all(members: dict[int, Member]) -> None:
    """Ends without news of a reset notice when sending."""
    for node_id, member in members.items():
        for peer in member.connected:
            member.world.processes[node_id].context.copy().run(member.live.send, peer, b"x")


async def trouble(world: World) -> None:
    voters, observers = 3, 2
    members = cluster(world, voters, observers)
    chance = world.random("trouble")
    world.network.half_open = 0.3
    for _ in range(40):
        await asyncio.sleep(chance.expovariate(10))
        one_trouble(world, members, chance)
    world.network.heal()
    start_all(members)
    for node_id, member in members.items():
        member.retarget(node_id <= voters, member.voters)
    deadline = world.loop.now + 20
    while not all_connected(members, voters):
        assert world.loop.now < deadline
        await asyncio.sleep(0.1)
        send_to_all(members)
    send_to_all(members)
    await asyncio.sleep(5)
    assert all_connected(members, voters)
    assert all(member.live.rejections == {} for member in members.values())


@pytest.mark.parametrize("seed", range(60))
def test_after_any_trouble_everybody_is_connected_again(seed: int) -> None:
    play(seed, trouble)


def test_one_seed_is_one_run() -> None:
    assert play(7, trouble) == play(7, trouble)
