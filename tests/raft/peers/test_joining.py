from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest

from raftlog.peer.hello import encode_hello
from raftlog.raft.peers.hello import QuorumHello
from raftlog.raft.peers.joining import JOIN_CHANNEL, JOINERS_MAX, find_cluster, join_hello
from raftlog.raft.voters import NO_VOTERS
from raftlog.record.errors import ILLEGAL_STATE, NOT_FOUND, NOT_READY, UNAUTHORIZED, LogError
from raftlog.world.network import Connection, Receiver, RejectedError
from tests.raft.peers_world import Member, cluster, hello_of, voter_set
from tests.simulation.clock import ManualClock
from tests.simulation.world import Process, World

ADDRESSES = ["n1.test:8082", "n2.test:8082", "n3.test:8082"]


def play(main: Callable[[World], Coroutine[Any, Any, None]], seed: int = 0) -> None:
    World(seed).run(main)


async def ask(
    world: World, hello: QuorumHello, addresses: list[str] = ADDRESSES, *, timeout_s: float = 10.0
) -> QuorumHello:
    """Ask from a machine of its own."""

    async def idle(process: Process) -> None:
        await asyncio.get_running_loop().create_future()

    asker = world.start(9, idle)
    try:
        answer = await asker.run(
            find_cluster(asker.network, addresses, hello, clock=asker.clock, timeout_s=timeout_s)
        )
        assert not asker.ends, "the question is over"
        return answer
    finally:
        world.crash(9)


def newcomer(**changes: object) -> QuorumHello:
    return hello_of(9, cluster_id=None, **changes)


def test_any_live_node_tells_the_cluster() -> None:
    async def main(world: World) -> None:
        members = cluster(world, voters=2, observers=1)
        await asyncio.sleep(1)
        members[1].crash()
        members[2].crash(power=True)
        answer = await ask(world, newcomer())
        assert (answer.node_id, answer.cluster_id) == (3, "cluster")
        assert answer.voters == voter_set(1, 2)

    play(main)


def test_who_only_asks_is_no_peer() -> None:
    async def main(world: World) -> None:
        one = cluster(world, voters=1)[1]
        await asyncio.sleep(1)
        await ask(world, newcomer())
        await asyncio.sleep(3)
        assert one.events == []
        assert one.known is not None
        assert one.known.directory_id(9) is None
        assert not world.processes[1].ends, "the question is over"

    play(main)


def test_a_cluster_that_is_not_there_yet_is_waited_for() -> None:
    async def main(world: World) -> None:
        async def later() -> None:
            await asyncio.sleep(3)
            cluster(world, voters=1)

        starting = asyncio.create_task(later())
        assert (await ask(world, newcomer())).cluster_id == "cluster"
        await starting

    play(main)


def test_a_node_that_does_not_know_its_cluster_itself_is_no_answer_yet() -> None:
    async def main(world: World) -> None:
        no_cluster = Member(world, 1, voter_set(1), is_voter=True, changes={"cluster_id": None})
        no_voters = Member(world, 2, NO_VOTERS, is_voter=False)
        no_cluster.start()
        no_voters.start()
        asking = asyncio.create_task(ask(world, newcomer(), ADDRESSES[:2]))
        await asyncio.sleep(3)
        assert not asking.done()
        no_cluster.changes.clear()
        assert (await asking).node_id == 1

    play(main)


def test_without_any_answer_the_error_names_every_address_and_what_came_from_it() -> None:
    async def main(world: World) -> None:
        one = Member(world, 1, voter_set(1), is_voter=True)
        two = Member(world, 2, NO_VOTERS, is_voter=False)
        one.start()
        two.start()
        world.network.machine(3)
        world.network.block(9, 1)
        with pytest.raises(LogError) as caught:
            await ask(world, newcomer(), [*ADDRESSES, "n4.test:8082"], timeout_s=7)
        assert caught.value.entry is NOT_READY
        text = caught.value.message
        assert "within 7 s" in text
        assert "n1.test:8082: n1.test:8082 did not answer" in text
        assert "n2.test:8082: Node 2 does not know its cluster itself yet" in text
        assert "n3.test:8082: connection refused" in text
        assert "n4.test:8082: no such host" in text

    play(main)


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        (newcomer(directory_id="other", bootstrap_id=None), "another data directory than before"),
        (hello_of(9, cluster_id="other"), "belongs to cluster"),
        (newcomer(protocol=3), "speaks protocol 3"),
    ],
)
def test_who_is_not_wanted_is_told_at_once_why(hello: QuorumHello, words: str) -> None:
    async def main(world: World) -> None:
        one = cluster(world, voters=1)[1]
        nine = Member(world, 9, voter_set(1), is_voter=False)
        nine.start()
        await asyncio.sleep(1)
        assert one.connected == [9]
        nine.crash()
        await asyncio.sleep(1)
        began = world.loop.now
        with pytest.raises(LogError, match=words) as caught:
            await ask(world, hello, ADDRESSES[:1])
        assert caught.value.entry is ILLEGAL_STATE
        assert world.loop.now - began < 1

    play(main)


def test_an_id_that_is_in_use_is_told_so() -> None:
    async def main(world: World) -> None:
        members = cluster(world, voters=1, observers=1)
        await asyncio.sleep(1)
        with pytest.raises(LogError, match="Node id 2 is in use twice"):
            await ask(world, hello_of(2, directory_id="other", cluster_id=None), ADDRESSES[:1])
        assert members[1].told(2) == ["up"]

    play(main)


def test_one_node_that_rejects_does_not_hide_another_that_answers() -> None:
    async def main(world: World) -> None:
        Member(world, 1, voter_set(1), is_voter=True, changes={"cluster_id": "other"}).start()
        Member(world, 2, voter_set(2), is_voter=True).start()
        answer = await ask(world, hello_of(9), ADDRESSES[:2])
        assert answer.node_id == 2

    play(main)


class _Answering:
    """An acceptor with one rejection for all."""

    def __init__(self, code: int) -> None:
        self.code = code

    def hello(self, hello: bytes) -> bytes:
        raise RejectedError(self.code, "no")

    def opened(self, connection: Connection) -> Receiver:
        raise AssertionError


@pytest.mark.parametrize(("code", "at_once"), [(UNAUTHORIZED.code, True), (NOT_FOUND.code, False)])
def test_a_rejection_keeps_its_code_unless_it_may_pass(code: int, at_once: bool) -> None:
    async def main(world: World) -> None:
        async def reject(process: Process) -> None:
            process.network.accept(JOIN_CHANNEL, _Answering(code))
            await asyncio.get_running_loop().create_future()

        world.start(1, reject)
        began = world.loop.now
        with pytest.raises(LogError) as caught:
            await ask(world, newcomer(), ADDRESSES[:1], timeout_s=5)
        assert caught.value.entry.code == (code if at_once else NOT_READY.code)
        assert (world.loop.now - began < 1) is at_once

    play(main)


def test_questions_that_nobody_ends_are_bounded() -> None:
    async def main(world: World) -> None:
        cluster(world, voters=1)
        await asyncio.sleep(1)

        class Quiet:
            def received(self, message: bytes) -> None:
                raise AssertionError

            def closed(self) -> None:
                pass

        async def idle(process: Process) -> None:
            await asyncio.get_running_loop().create_future()

        asker = world.start(9, idle)
        for _ in range(JOINERS_MAX + 10):
            await asker.run(
                asker.network.connect(
                    ADDRESSES[0],
                    JOIN_CHANNEL,
                    encode_hello(join_hello(newcomer())),
                    lambda connection: Quiet(),
                    timeout_s=2,
                )
            )
        await asyncio.sleep(1)
        assert len(world.processes[1].ends) == JOINERS_MAX

    play(main)


class RejectingNetwork:
    """Every address answers with the next of some rejections."""

    def __init__(self, *rejections: RejectedError) -> None:
        self.rejections = list(rejections)
        self.calls_s: list[float] = []
        self.clock = ManualClock()

    async def connect(
        self, address: str, channel: str, hello: bytes, opened: object, *, timeout_s: float
    ) -> None:
        self.calls_s.append(self.clock.monotonic())
        raise self.rejections[min(len(self.calls_s), len(self.rejections)) - 1]

    async def is_refused(self, address: str, *, timeout_s: float) -> bool:
        raise AssertionError

    def accept(self, channel: str, acceptor: object) -> None:
        raise AssertionError


def bare(code: int) -> RejectedError:
    """An answer by anything on the way, such as a proxy's 401."""
    return RejectedError(code, f"HTTP {code // 100}", is_proven=False)


@pytest.mark.parametrize("code", [UNAUTHORIZED.code, ILLEGAL_STATE.code, NOT_FOUND.code])
async def test_rejection_without_a_proof_is_retried_with_backoff(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    network = RejectingNetwork(bare(code))
    with pytest.raises(LogError, match=f"within 30 s. a:1: HTTP {code // 100}") as failed:
        await find_cluster(network, ["a:1"], newcomer(), clock=network.clock, timeout_s=30)
    assert failed.value.entry is NOT_READY
    pauses_s = [after - before for before, after in pairwise(network.calls_s)]
    assert pauses_s[:5] == pytest.approx([0.2, 0.4, 0.8, 1.6, 2.0])
    assert max(pauses_s) == pytest.approx(2.0)
    assert len(caplog.records) == 1, "one cause once"


async def test_only_a_proven_rejection_ends_a_join() -> None:
    proven = RejectedError(ILLEGAL_STATE.code, "Node id 9 is in use twice.")
    network = RejectingNetwork(*[bare(UNAUTHORIZED.code)] * 4, proven)
    with pytest.raises(LogError, match="in use twice") as failed:
        await find_cluster(network, ["a:1"], newcomer(), clock=network.clock, timeout_s=30)
    assert failed.value.entry is ILLEGAL_STATE
    assert len(network.calls_s) == 5
