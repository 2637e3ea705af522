"""Snapshots that committed, cleared, mixed or acknowledged too much.

Each defect has a trace, run with the shipped code and with its guard switched off. A chunk of
raftlog's carries no commit index at all, and a transmission to a peer ends with its connection; for
the first the switch feeds pysyncobj's commit index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from raftlog.raft.interface import Applied
from raftlog.raft.messages import Message, SnapshotChunk
from raftlog.raft.snapshots.format import SnapshotMeta
from raftlog.record.errors import LogError
from tests.simulation.quorum.core_cluster import CoreCluster
from tests.simulation.quorum.member_world import SNAPSHOTS, MemberWorld
from tests.simulation.quorum.switches import (
    chunks_commit,
    covered_is_never_said,
    failed_load_is_installed,
    install_clears,
    older_snapshots_are_placed,
    received_unverified,
    streams_are_mixed,
    violation,
)
from tests.simulation.world import World, run

Patch = pytest.MonkeyPatch
COMMANDS = 40
"""More than three snapshots' worth."""


async def started(world: World) -> tuple[MemberWorld, int, int, int]:
    """Three members with many snapshots: the leader, and its two followers."""
    members = MemberWorld(world, 3, settings=SNAPSHOTS)
    members.start_all()
    leader = await members.elected()
    one, other = (node_id for node_id in members.node_ids if node_id != leader)
    return members, leader, one, other


async def propose_many(members: MemberWorld, node_id: int) -> None:
    for _ in range(COMMANDS):
        assert isinstance(await members.propose(node_id), Applied)


# The commit index


async def a_deposed_leader_needs_the_snapshot(world: World) -> None:
    members, leader, one, other = await started(world)
    await members.settle()
    world.network.partition([leader], [one, other])
    lost = [asyncio.ensure_future(members.propose(leader, b"stale-%d" % n)) for n in range(5)]
    await members.until(lambda: members.leader() not in (None, leader))
    successor = await members.elected()
    await propose_many(members, successor)
    for node_id in (one, other):
        # Messages sent meanwhile are lost.
        world.network.reset(leader, node_id)
    world.network.heal()
    await members.settle()
    await asyncio.gather(*lost)
    members.checker.check_outcomes()


def test_snapshot_for_a_deposed_leader_holds() -> None:
    """pysyncobj's receiver commits its own stale tail at the first chunk of a snapshot."""
    run(1, a_deposed_leader_needs_the_snapshot)


def test_snapshot_for_a_deposed_leader_without_guard_fails(monkeypatch: Patch) -> None:
    chunks_commit(monkeypatch)
    with violation(match="node 1 commits 4 of 1, others of 2"):
        run(1, a_deposed_leader_needs_the_snapshot)


# Entries after the snapshot's


def a_snapshot_is_late() -> None:
    cores = CoreCluster((1, 2, 3))
    cores.elect(1, 2, 3)
    cores.exchange()
    cores.propose(1, b"a", b"b", b"c", b"d")
    cores.exchange(1, 2, until=lambda: cores[1].core.commit_index == 6)
    cores.isolate(1)
    # 1 has sent this to 3, where the verification lasts while 2 is elected; 2 needs no snapshot to
    # bring 3 up to date, and commits two more entries with 3, without 3's knowledge.
    meta = cores.snapshot(1)
    cores.elect_briefly(2, 3)
    cores.propose(2, b"e")
    cores.exchange(2, 3, until=lambda: cores[2].core.commit_index == 8)
    cores.isolate(2)
    assert cores[3].core.applied_index < meta.index < cores[3].log.last_index
    cores.install(1, 3)
    cores.isolate(1)
    # 2 is gone. 1 lacks the committed entries, and must not be elected.
    cores.campaign(1, 3)
    cores.exchange(1, 3)
    cores.isolate(1)
    cores.elect(3, 1)
    cores.settle(3)


def test_late_snapshot_below_acknowledged_entries_holds() -> None:
    """pysyncobj clears the log when it installs a snapshot, with acknowledged entries after it.

    Source: the Raft paper, figure 13, step 6 ("retain log
    entries following it").
    """
    a_snapshot_is_late()


def test_late_snapshot_below_acknowledged_entries_without_guard_fails(monkeypatch: Patch) -> None:
    install_clears(monkeypatch)
    with violation(match="leader 1 of term 3 lacks committed 7"):
        a_snapshot_is_late()


# Covered snapshots


async def a_member_needs_the_snapshot(
    world: World, before: Callable[[MemberWorld, int], None] = lambda _members, _node_id: None
) -> MemberWorld:
    members, leader, behind, _ = await started(world)
    world.crash(behind)
    await propose_many(members, leader)
    members.start(behind)
    await members.until(lambda: behind in members.members)
    before(members, behind)
    newest = members.ledgers[leader]
    await members.until(
        lambda: members.failures or members.ledgers[behind].digest == newest.digest, 3.0
    )
    return members


def test_installed_snapshot_is_answered_as_covered_holds() -> None:
    """A receiver with all entries of a snapshot must answer so, however it got these.

    Else the snapshot is sent for ever.
    """
    assert not run(1, a_member_needs_the_snapshot).failures


def test_installed_snapshot_is_answered_as_covered_without_guard_fails(
    monkeypatch: Patch,
) -> None:
    covered_is_never_said(monkeypatch)

    async def trace(world: World) -> None:
        members = await a_member_needs_the_snapshot(world)
        # The rest of the snapshot never comes.
        await members.propose(await members.elected(), b"after")
        await members.until(members._agree, 3.0)

    with violation(match="not within"):
        run(1, trace)


# One's own snapshot, and a leader's


def ones_own_snapshot_is_finished_late() -> None:
    cores = CoreCluster((1, 2, 3))
    cores.elect(1, 2, 3)
    cores.propose(1, b"a")
    cores.settle(1)
    seat = cores[3]
    # 3 begins a snapshot, which takes long to encode.
    meta = SnapshotMeta(3, 1, cores.voters)
    encode = seat.ledger.snapshot()
    cores.propose(1, b"b", b"c")
    cores.exchange(1, 2)
    cores.isolate(3)
    cores.snapshot(1)

    def pieces() -> Iterator[bytes]:
        # Meanwhile the leader's newer one arrives, is installed, and trims the journal.
        cores.install(1, 3)
        yield from encode()

    seat.store.save_snapshot(meta, pieces())
    cores.restart(3)
    cores.settle(1)


def test_own_snapshot_finished_after_a_newer_one_holds() -> None:
    """pysyncobj's forked child puts its old snapshot in place of a newer, installed one."""
    ones_own_snapshot_is_finished_late()


def test_own_snapshot_finished_after_a_newer_one_without_guard_fails(monkeypatch: Patch) -> None:
    older_snapshots_are_placed(monkeypatch)
    with pytest.raises(LogError, match="begins after entry 5, but the snapshot ends with entry 3"):
        ones_own_snapshot_is_finished_late()


# Streams


async def a_sender_dies_half_way(world: World) -> bool:
    """One member sends half of its snapshot and dies; another sends its own, which is longer."""
    members, leader, other, behind = await started(world)
    world.crash(behind)
    # Theirs are of different entries.
    members.members[other]._snapshots._due_index += 5
    await propose_many(members, leader)
    dead: list[int] = []

    def on_message(source: int, target: int, message: Message) -> bool:
        is_half = isinstance(message, SnapshotChunk) and message.position > message.size / 2
        if target == behind and is_half and not dead:
            dead.append(source)
            world.loop.call_soon(lambda: world.crash(source))
        return True

    members.on_message = on_message
    members.start(behind)
    await members.until(lambda: dead)
    successor = await members.elected()
    await members.until(lambda: successor != leader and members.leader() == successor, 5.0)
    await members.until(
        lambda: members.ledgers[behind].digest == members.ledgers[successor].digest, 5.0
    )
    members.start(leader)
    await members.until(lambda: len(members.members) == 3)
    await members.settle()
    return True


DAMAGED = "a snapshot from node"


def test_snapshot_of_two_senders_holds(caplog: pytest.LogCaptureFixture) -> None:
    """pysyncobj puts the chunks of two snapshots into one file."""
    assert run(1, a_sender_dies_half_way)
    assert DAMAGED not in caplog.text


def test_snapshot_of_two_senders_without_guard_fails(
    monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    """The second line holds: the received file is verified as a whole, and requested again."""
    streams_are_mixed(monkeypatch)
    assert run(1, a_sender_dies_half_way)
    assert DAMAGED in caplog.text


def test_snapshot_of_two_senders_without_both_guards_fails(monkeypatch: Patch) -> None:
    streams_are_mixed(monkeypatch)
    received_unverified(monkeypatch)
    with violation(match="snapshot is damaged"):
        run(1, a_sender_dies_half_way)


# A snapshot with a load failure


def does_not_load(members: MemberWorld, node_id: int) -> None:
    def restore(_index: int, _pieces: Any) -> None:
        raise ValueError("a defect of the state machine")

    members.ledgers[node_id].restore = restore  # type: ignore[method-assign, assignment]


def test_snapshot_that_does_not_load_holds() -> None:
    """pysyncobj acknowledges a snapshot after a load failure; the states differ from then on.

    The member must stop, and acknowledge nothing.
    """
    members = run(1, lambda world: a_member_needs_the_snapshot(world, does_not_load))
    assert "ValueError('a defect of the state machine')" in members.failures[0]


def test_snapshot_that_does_not_load_without_guard_fails(monkeypatch: Patch) -> None:
    failed_load_is_installed(monkeypatch)

    async def trace(world: World) -> MemberWorld:
        members = await a_member_needs_the_snapshot(world, does_not_load)
        await members.propose(await members.elected(), b"after")
        await members.until(lambda: members.failures)
        return members

    members = run(1, trace)
    assert "InvariantError: different states after entry" in members.failures[0]
