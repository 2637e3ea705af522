"""Wrong deliveries: answers to an earlier life, exceptions, and pickles.

Each defect has a trace, run with the shipped code and with its guard switched off.
"""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from raftlog.raft.interface import Applied
from raftlog.raft.kernel import PickleForbiddenError, Scoped
from raftlog.raft.log.log import NO_OP
from raftlog.raft.messages import MessageError, decode_message
from tests.simulation.quorum.core_cluster import CoreCluster
from tests.simulation.quorum.member_world import QUICK, MemberWorld
from tests.simulation.quorum.switches import (
    exceptions_are_swallowed,
    pickle_is_back,
    replaced_entries_are_acknowledged,
    request_ids_restart,
    violation,
)
from tests.simulation.world import World, run

Patch = pytest.MonkeyPatch


# Answers to an earlier life


async def an_answer_is_for_the_life_before(world: World) -> None:
    """An observer requests a slow transfer, dies, and submits another request."""
    members = MemberWorld(world, 3, 1, settings=QUICK)
    members.start_all()
    leader = await members.elected()
    await members.until(lambda: members.members[4].leader_id == leader)
    absent = leader % 3 + 1
    world.crash(absent)
    # No voter takes over from the leader: 2 s later the transfer fails.
    transfer = members.ask(4, lambda member: member.transfer_leadership(absent))
    asked = asyncio.ensure_future(transfer)
    start = world.loop.time()
    await members.until(lambda: world.loop.time() > start + 0.5)
    world.crash(4)
    assert not await asked
    members.start(4)
    await members.until(lambda: 4 in members.members and members.members[4].leader_id == leader)
    # The next request is under way for long enough to be overtaken by that answer.
    await members.until(lambda: world.loop.time() > start + 1.8)
    world.network.block(4, leader)
    proposed = asyncio.ensure_future(members.propose(4, b"a"))
    await members.until(lambda: world.loop.time() > start + 2.3)
    world.network.unblock(4, leader)
    await proposed
    await members.until(lambda: b"a" in members.ledgers[leader].commands)
    members.start(absent)
    await members.until(lambda: len(members.members) == 4)
    await members.settle()


def test_answer_to_an_earlier_life_holds() -> None:
    """Numbers of requests that begin with 1 in each life make an old answer fit a new request.

    Here a command is refused, says the member, and is carried out.
    """
    run(1, an_answer_is_for_the_life_before)


def test_answer_to_an_earlier_life_without_guard_fails(monkeypatch: Patch) -> None:
    request_ids_restart(monkeypatch)
    with violation(match="b'a' was refused, and applied at"):
        run(1, an_answer_is_for_the_life_before)


# Answers about replaced entries


async def a_proposal_is_replaced(world: World) -> None:
    members = MemberWorld(world, 3, settings=QUICK)
    members.start_all()
    leader = await members.elected()
    await members.settle()
    others = [node_id for node_id in members.node_ids if node_id != leader]
    world.network.partition([leader], others)
    # A no-op, where the next leader will have its own; and a command.
    members.core(leader).append(NO_OP, b"")
    proposed = asyncio.ensure_future(members.propose(leader, b"replaced"))
    await members.until(lambda: members.leader() in others)
    for number in range(3):
        await members.propose(await members.elected(), b"instead %d" % number)
    world.network.heal()
    outcome = await proposed
    assert not isinstance(outcome, Applied)
    await members.settle()


def test_proposal_whose_entry_was_replaced_holds() -> None:
    """The entry at a proposal's index is the proposal's only if its term is the same, too.

    Source: Ongaro 2014, section 6.1 and 3.5 (an entry is known by its index and term).
    """
    run(1, a_proposal_is_replaced)


def test_proposal_whose_entry_was_replaced_without_guard_fails(monkeypatch: Patch) -> None:
    replaced_entries_are_acknowledged(monkeypatch)
    with violation(match="b'replaced' was acknowledged at 5, where it was not applied"):
        run(1, a_proposal_is_replaced)


# Exceptions


async def a_state_machine_fails_once(world: World) -> MemberWorld:
    members = MemberWorld(world, 3, settings=QUICK)
    members.start_all()
    leader = await members.elected()
    follower = leader % 3 + 1
    ledger = members.ledgers[follower]
    apply = ledger.apply

    def failing(index: int, command: bytes) -> int:
        if command == b"a":
            raise ValueError("a defect of the state machine")
        return apply(index, command)

    ledger.apply = failing  # type: ignore[method-assign]
    assert isinstance(await members.propose(leader, b"a"), Applied)
    assert isinstance(await members.propose(leader, b"b"), Applied)
    await members.until(lambda: members.failures or ledger.commands)
    return members


def test_exception_in_the_state_machine_holds() -> None:
    """A command with an exception on one member leaves another state there than elsewhere.

    pysyncobj's thread logs the exception and goes on. Source: the quorum's design ("an exception in
    apply, handler or callback is fail stop").
    """
    members = run(1, a_state_machine_fails_once)
    assert "ValueError: a defect of the state machine" in members.failures[0]


def test_exception_in_the_state_machine_without_guard_fails(monkeypatch: Patch) -> None:
    exceptions_are_swallowed(monkeypatch)
    members = run(1, a_state_machine_fails_once)
    assert "InvariantError: different states after entry" in members.failures[0]


# Pickles


class Evil:
    """Runs code where it is unpickled."""

    unpickled = 0

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _was_unpickled, ()


def _was_unpickled() -> str:
    Evil.unpickled += 1
    return "unpickled"


def append_in_parts(core: Any) -> None:
    """pysyncobj's way of sending a long entry: unpickled once complete."""
    data = pickle.dumps(Evil())
    message = {
        "type": "append_entries",
        "term": core.term,
        "commit_index": 0,
        "prevLogIdx": 1,
        "prevLogTerm": 0,
    }
    core._so._SyncObj__recvTransmission = data
    core._deliver(1, {**message, "transmission": "finish", "data": b""})


def change_of_members(core: Any) -> None:
    """pysyncobj's way of changing voters: unpickled from the log."""
    core._so._SyncObj__doApplyCommand(b"\x02" + pickle.dumps(Evil()))


def new_code_version(core: Any) -> None:
    """pysyncobj's way of changing versions."""
    core._so._SyncObj__doApplyCommand(b"\x03" + pickle.dumps(Evil()))


def regular_command(core: Any) -> None:
    """pysyncobj's way of applying a command."""
    core._so._SyncObj__doApplyCommand(b"\x00" + pickle.dumps(Evil()))


def pickling(reach: Any) -> None:
    cores = CoreCluster((1, 2, 3))
    core = cores[2].core
    Evil.unpickled = 0
    try:
        with Scoped(core._clock, core._randomness):
            reach(core)
    except (TypeError, KeyError, IndexError):
        # The library's later errors do not matter.
        pass


PATHS = [append_in_parts, change_of_members, new_code_version, regular_command]


@pytest.mark.parametrize("reach", PATHS)
def test_pickle_in_the_library_holds(reach: Any) -> None:
    """pysyncobj unpickles bytes from the network in four places: all end the process."""
    with pytest.raises(PickleForbiddenError):
        pickling(reach)
    assert Evil.unpickled == 0


@pytest.mark.parametrize("reach", PATHS)
def test_pickle_in_the_library_without_guard_fails(monkeypatch: Patch, reach: Any) -> None:
    pickle_is_back(monkeypatch)
    pickling(reach)
    assert Evil.unpickled == 1


FRAMES = [
    pickle.dumps(Evil()),
    pickle.dumps({"type": "append_entries", "transmission": "finish", "data": Evil()}),
    pickle.dumps(("status", [])),
    b"",
    b"\x93\x05",
    b"\x92\x63\x01",
]


@pytest.mark.parametrize("frame", FRAMES)
def test_unknown_frames_are_rejected(frame: bytes) -> None:
    """No bytes from the network are anything but a message of ours, or an error."""
    with pytest.raises(MessageError):
        decode_message(frame)


async def a_peer_sends_pickles(world: World) -> MemberWorld:
    members = MemberWorld(world, 3, settings=QUICK)
    members.start_all()
    leader = await members.elected()
    liar = leader % 3 + 1
    for frame in FRAMES:
        await members.until(lambda: leader in members.members[liar]._peers.connected)
        # Not by `connected`: the next connection may open within one interval of `until`.
        link = members.members[liar]._peers._links[leader]
        link.connection.send(frame)
        await members.until(lambda link=link: link.is_ended)
    await members.settle()
    return members


def test_peer_that_sends_pickles_is_cut_off_and_no_more() -> None:
    """The connection ends, nothing is unpickled, and the members go on."""
    Evil.unpickled = 0
    members = run(1, a_peer_sends_pickles)
    assert not members.failures
    assert Evil.unpickled == 0
