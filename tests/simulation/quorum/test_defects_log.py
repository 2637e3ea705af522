"""Losses by pysyncobj's journal, and its haste.

Each defect has a trace, run with the shipped code and with its guard switched off. `Outbox` holds
every message until the log is durable; its rule to drop a message with its connection has no test
here: with random first numbers of requests, and answers that count in their own term only, no trace
goes wrong without the rule.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftlog.raft import core
from raftlog.raft.interface import Applied
from raftlog.raft.messages import Append
from raftlog.record.errors import LogError
from tests.simulation.quorum.core_cluster import CoreCluster
from tests.simulation.quorum.member_world import DIRECTORY, QUICK, SNAPSHOTS, MemberWorld
from tests.simulation.quorum.switches import (
    appends_truncate,
    applied_before_durable,
    damage_is_cut_off,
    failed_writes_pass,
    hold_off,
    leader_counts_itself_early,
    names_are_not_synced,
    violation,
    votes_kept_in_memory,
)
from tests.simulation.world import World, run

Patch = pytest.MonkeyPatch
STUCK_S = 1.0


# Messages that leave before the log is durable


async def acknowledged_by_slow_disks(world: World) -> None:
    members = MemberWorld(world, 3, settings=QUICK)
    members.start_all()
    leader = await members.elected()
    followers = [node_id for node_id in members.node_ids if node_id != leader]
    for node_id in followers:
        world.times(node_id).stick(STUCK_S)
    before = world.loop.time()
    outcome = await members.propose(leader, b"a")
    assert isinstance(outcome, Applied)
    # It took a follower's disk to come back.
    assert world.loop.time() >= before + STUCK_S / 2
    await members.settle()


def test_answer_before_it_is_durable_holds() -> None:
    """pysyncobj never syncs: a power cut may take entries that a follower acknowledged.

    Source: the Raft paper, figure 2 ("Updated on stable storage
    before responding to RPCs").
    """
    run(1, acknowledged_by_slow_disks)


def test_answer_before_it_is_durable_without_guard_fails(monkeypatch: Patch) -> None:
    hold_off(monkeypatch)
    with violation(match=r"commits \d of term \d, durable on \[\d\] of"):
        run(1, acknowledged_by_slow_disks)


def a_voter_loses_power_while_its_disk_works() -> None:
    cores = CoreCluster((1, 2, 3))
    cores[2].syncs_at_once = False
    cores.campaign(1, 2)
    cores.deliver(1, 2)
    cores.deliver(2, 1, len(cores.on_way[2, 1]))
    cores.restart(2)
    cores[2].syncs_at_once = True
    cores.elect(3, 2)
    cores.settle(3)


def test_vote_of_a_voter_that_loses_power_holds() -> None:
    """A vote that leaves before it is durable can be given twice in one term.

    Source: the Raft paper, section 5.2.
    """
    a_voter_loses_power_while_its_disk_works()


@pytest.mark.parametrize("switch", [hold_off, votes_kept_in_memory])
def test_vote_of_a_voter_that_loses_power_without_guard_fails(
    monkeypatch: Patch, switch: Callable[[Patch], None]
) -> None:
    switch(monkeypatch)
    with violation(match="node 2 recovered term 0 after 1"):
        a_voter_loses_power_while_its_disk_works()


# Entries removed by an append


def an_append_begins_far_behind() -> None:
    cores = CoreCluster((1, 2, 3, 4, 5))
    cores.elect(1, 2, 3, 4, 5)
    cores.propose(1, b"a", b"b", b"c", b"d")
    for follower in (2, 3):
        cores.exchange(1, follower)
    assert cores[1].core.commit_index == 6
    # 4 and 5 received none of these. Two more entries stay with 1 alone.
    cores.propose(1, b"stale-1", b"stale-2")
    cores.isolate(1)
    cores.restart(1, connect=False)
    cores.elect_briefly(2, 3, 4)
    cores.propose(2, b"e", b"f")
    cores.isolate(4)
    cores.exchange(2, 3)
    cores.elect_briefly(3, 2, 4)
    cores.isolate(4)
    # 1 does not match at the end of 3's log, and lacks the commit index: it is sent everything
    # again, and the first append brings two entries.
    cores.connect(1, 3)
    cores.exchange(1, 3, until=lambda: is_sent_what_it_has(cores))
    # 2 and 3 are cut off. 1 is one of the members with the committed entries.
    cores.disconnect(1, 3)
    for node_id in (2, 3):
        cores.isolate(node_id)
    cores.connect(1, 4)
    cores.connect(1, 5)
    cores.elect(1, 4, 5)
    assert cores.commands(1)[:4] == [b"a", b"b", b"c", b"d"]


def is_sent_what_it_has(cores: CoreCluster) -> bool:
    return any(
        (source, target) == (3, 1) and isinstance(message, Append) and message.previous_index < 6
        for source, target, message in cores.delivered
    )


def test_append_that_begins_far_behind_holds(monkeypatch: Patch) -> None:
    """pysyncobj truncates at any append, also where the entries are the same.

    What the receiver had acknowledged is gone until it is sent again. Source: the Raft paper,
    figure 2, AppendEntries rule 3 ("if an existing entry conflicts").
    """
    monkeypatch.setattr(core, "ENTRIES_PER_APPEND_MAX", 2)
    an_append_begins_far_behind()


def test_append_that_begins_far_behind_without_guard_fails(monkeypatch: Patch) -> None:
    monkeypatch.setattr(core, "ENTRIES_PER_APPEND_MAX", 2)
    appends_truncate(monkeypatch)
    with violation(match="leader 1 of term 4 lacks committed 4"):
        an_append_begins_far_behind()


# The leader's own copy


def a_single_voter_grows_while_its_disk_works() -> None:
    cores = CoreCluster((1,), (2,))
    cores.campaign(1)
    seat = cores[1]
    assert seat.core.is_leader
    seat.syncs_at_once = False
    cores.propose(1, b"a")
    seat.begin_write()
    cores.append_voters(1, 1, 2)
    seat.end_write()
    cores.pump(1)
    assert seat.core.commit_index < seat.log.voters_index - 1, "a needs a majority of two by now"
    seat.syncs_at_once = True
    cores.pump(1)
    cores.settle(1)


def test_commit_by_what_is_not_durable_on_the_leader_holds() -> None:
    """A leader that counts itself before its disk has the entry commits with too few copies.

    Here the single voter commits an entry by itself, and while its disk writes the entry a second
    one gets a vote. Source: the quorum's design ("A single voter syncs inside add"); Ongaro 2014,
    section 10.2.1.
    """
    a_single_voter_grows_while_its_disk_works()


def test_commit_by_what_is_not_durable_on_the_leader_without_guard_fails(
    monkeypatch: Patch,
) -> None:
    leader_counts_itself_early(monkeypatch)
    with violation(match=r"commits 3 of term 1, durable on \[1\] of \[1, 2\]"):
        a_single_voter_grows_while_its_disk_works()


def test_what_never_became_durable_never_was() -> None:
    """A single voter leads a term without a durable record, loses power, and leads it again.

    No peer received a message of the first time, so the second vote is no double vote.
    """
    cores = CoreCluster((1,))
    cores[1].syncs_at_once = False
    cores.campaign(1)
    cores.propose(1, b"forgotten")
    cores.restart(1)
    assert cores[1].core.term == 0
    cores[1].syncs_at_once = True
    cores.campaign(1)
    cores.propose(1, b"a")
    assert cores[1].core.term == 1
    assert cores[1].ledger.commands == [b"a"]


async def a_single_voter_loses_power(world: World) -> None:
    members = MemberWorld(world, 1, settings=QUICK)
    members.start_all()
    await members.elected()
    world.times(1).stick(STUCK_S)
    outcome = await members.propose(1, b"a")
    assert isinstance(outcome, Applied)
    world.crash(1, power=True)
    members.start(1)
    await members.until(lambda: 1 in members.members)
    assert members.ledgers[1].commands == [b"a"], "an acknowledged command is lost"


def test_command_of_a_single_voter_that_loses_power_holds() -> None:
    """An entry applied before it is durable is acknowledged, and lost with the power.

    Source: the quorum's design ("or it applies before durability").
    """
    run(1, a_single_voter_loses_power)


def test_command_of_a_single_voter_that_loses_power_without_guard_fails(
    monkeypatch: Patch,
) -> None:
    leader_counts_itself_early(monkeypatch)
    applied_before_durable(monkeypatch)
    with violation(match="before it was committed"):
        run(1, a_single_voter_loses_power)


# Recovery


async def a_bit_rots(world: World) -> None:
    members = MemberWorld(world, 3, settings=QUICK)
    members.start_all()
    leader = await members.elected()
    for number in range(5):
        await members.propose(leader, b"command %d" % number)
    damaged = leader % 3 + 1
    await members.until(lambda: len(members.ledgers[damaged].commands) == 5)
    world.crash(damaged, power=True)
    disk, path = world.disk(damaged), f"{DIRECTORY}/journal"
    disk.flip_bit(path, 8 * disk.contents(path).index(b"command 2"))
    members.start(damaged)
    await members.until(lambda: len(members.members) == 3)


def test_damaged_journal_holds() -> None:
    """pysyncobj reads damaged records, or cuts the journal there: it loses acknowledged entries."""
    with pytest.raises(Exception, match="journal is damaged at byte") as caught:
        run(1, a_bit_rots)
    assert isinstance(caught.value.__cause__, LogError)


def test_damaged_journal_without_guard_fails(monkeypatch: Patch) -> None:
    damage_is_cut_off(monkeypatch)
    with violation(match="lost durable entry"):
        run(1, a_bit_rots)


async def power_fails_after_a_rewrite(world: World) -> None:
    members = MemberWorld(world, 3, settings=SNAPSHOTS)
    members.start_all()
    for _ in range(40):
        await members.propose(await members.elected())
    await members.settle()
    for node_id in members.node_ids:
        world.crash(node_id, power=True)
    members.start_all()
    await members.until(lambda: len(members.members) == 3)
    await members.settle()


def test_names_after_a_power_cut_hold() -> None:
    """A renamed file has its old name again after a power cut, without a sync of the directory.

    Then the entries of the new journal are gone.
    """
    run(1, power_fails_after_a_rewrite)


def test_names_after_a_power_cut_without_guard_fails(monkeypatch: Patch) -> None:
    names_are_not_synced(monkeypatch)
    with violation(match="lost durable entry|journal is missing|recovered term"):
        run(1, power_fails_after_a_rewrite)


# Errors of the disk


async def a_sync_fails(world: World) -> MemberWorld:
    members = MemberWorld(world, 3, settings=QUICK)
    members.start_all()
    leader = await members.elected()
    follower = leader % 3 + 1
    await members.settle()
    world.disk(follower).fail_next("sync", "journal")
    assert isinstance(await members.propose(leader, b"a"), Applied)
    assert isinstance(await members.propose(leader, b"b"), Applied)
    if not members.failures:
        world.crash(follower, power=True)
        members.start(follower)
        await members.until(lambda: follower in members.members)
    return members


def test_sync_that_fails_holds() -> None:
    """After a failed sync the durable length is unknown: the member sends nothing any more.

    A second sync would succeed, and the bytes are lost all the same. Source: the quorum's design
    ("any I/O error sets a failed flag"); fault 17 of the fault matrix
    (tests/simulation/data/FAULTS.md).
    """
    assert "DiskError" in run(1, a_sync_fails).failures[0]


def test_sync_that_fails_without_guard_fails(monkeypatch: Patch) -> None:
    failed_writes_pass(monkeypatch)
    with violation(match="lost durable entry|journal is damaged"):
        run(1, a_sync_fails)
