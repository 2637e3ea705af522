"""Changes of voters that let two majorities exist, and voters that forget.

Each defect has a trace, run with the shipped code and with its guard switched off.
"""

from __future__ import annotations

import pytest

from raftlog.raft.interface import Applied
from raftlog.raft.membership import VoterChanges
from raftlog.record.errors import LogError
from tests.simulation.quorum.core_cluster import CoreCluster
from tests.simulation.quorum.member_world import QUICK, MemberWorld
from tests.simulation.quorum.switches import (
    changes_at_any_time,
    strangers_are_let_in,
    violation,
    voters_count_from_commit,
)
from tests.simulation.world import World, run

Patch = pytest.MonkeyPatch


def a_voter_two_changes_behind_restarts() -> None:
    cores = CoreCluster((1, 2, 3), (4, 5))
    cores.elect(1, 2, 3)
    cores.exchange()
    # Two voters are added, one after the other. 3 hears of neither; 5 hears last of all.
    cores.append_voters(1, 1, 2, 3, 4)
    cores.exchange(1, 4)
    cores.exchange(1, 2)
    cores.append_voters(1, 1, 2, 3, 4, 5)
    cores.exchange(1, 4)
    cores.exchange(1, 5)
    cores.exchange(1, 2)
    assert cores[1].core.commit_index == cores[1].log.voters_index
    # 2 starts again, and does not know how much of its log is committed. 1, 4 and 5 go on.
    cores.restart(2)
    cores.propose(1, b"a")
    cores.exchange(1, 4)
    cores.exchange(1, 5)
    assert cores[1].core.commit_index == cores[1].log.last_index
    cores.isolate(2)
    cores.isolate(3)
    # 2 and 3 were a majority once.
    cores.campaign(2, 3)
    cores.exchange(2, 3)
    cores.drop(2, 1)
    cores.settle(1)


def test_voter_set_in_force_once_appended_holds() -> None:
    """A set that counts only from its commit on is unknown to lagging members.

    A member two changes behind, or one with an old commit index, is elected by a majority that is
    none. Source: Ongaro 2014, section 4.1 ("always uses the latest configuration in its log,
    regardless of whether the entry is committed").
    """
    a_voter_two_changes_behind_restarts()


def test_voter_set_in_force_once_appended_without_guard_fails(monkeypatch: Patch) -> None:
    voters_count_from_commit(monkeypatch)
    with violation(match="leader 2 of term 2 lacks committed 5"):
        a_voter_two_changes_behind_restarts()


def remove(cores: CoreCluster, leader: int, node_id: int) -> bool:
    """Have a leader remove a voter; return whether it began to."""
    changes = VoterChanges(
        cores[leader].core,
        cores[leader].clock,  # type: ignore[arg-type]
        lambda _node_id: None,
        lambda: cores.pump(leader),
    )
    try:
        # No await blocks in there, unless the leader is to remove itself.
        changes.remove(node_id).send(None)
    except StopIteration:
        return True
    except LogError:
        return False
    raise AssertionError("it waits")


def two_leaders_change_voters() -> None:
    cores = CoreCluster((1, 2, 3, 4), (5,))
    cores.elect(1, 2, 3, 4)
    cores.exchange()
    # 1 adds 5, of which only 5 hears.
    cores.append_voters(1, 1, 2, 3, 4, 5)
    cores.exchange(1, 5)
    cores.isolate(1)
    # 2 is elected by 3 and 4, and removes 1 before any commit of its own.
    cores.elect_briefly(2, 3, 4)
    cores.drop(2, 4)
    remove(cores, 2, 1)
    cores.drop(2, 4)
    cores.exchange(2, 3)
    # 1 is elected by 4 and 5, without knowledge of the removal.
    for node_id in (2, 3):
        cores.isolate(node_id)
    cores.elect(1, 4, 5)
    cores.exchange()
    cores.heartbeat(1)
    cores.exchange()
    assert cores.seats[1].core.is_leader
    assert remove(cores, 1, 4), "later, the change goes through"
    cores.settle(1)


def test_change_before_the_leader_has_committed_holds() -> None:
    """Two leaders, each with a change of its own, can have majorities that do not overlap.

    Unless a leader first commits an entry of its own term. Source: D. Ongaro, "bug in single-server
    membership changes", raft-dev, 2015.
    """
    two_leaders_change_voters()


def test_change_before_the_leader_has_committed_without_guard_fails(monkeypatch: Patch) -> None:
    changes_at_any_time(monkeypatch)
    with violation(match="leader 1 of term 3 lacks committed 3"):
        two_leaders_change_voters()


def a_leader_alone_removes_all_others() -> None:
    cores = CoreCluster((1, 2, 3))
    cores.elect(1, 2, 3)
    cores.settle(1)
    assert remove(cores, 1, 2), "the first change begins"
    remove(cores, 1, 3)
    cores.propose(1, b"alone")
    cores.isolate(1)
    cores.elect(2, 3)
    cores.propose(2, b"a")
    cores.exchange(2, 3)
    cores.settle(2)
    assert cores[1].ledger.commands == [b"a"]


def test_second_change_before_the_first_is_committed_holds() -> None:
    """An isolated leader can change itself into a majority, one voter after the other.

    Source: Ongaro 2014, section 4.1.
    """
    a_leader_alone_removes_all_others()


def test_second_change_before_the_first_is_committed_without_guard_fails(
    monkeypatch: Patch,
) -> None:
    changes_at_any_time(monkeypatch)
    with violation(match="leader 2 of term 2 lacks committed 3"):
        a_leader_alone_removes_all_others()


async def a_voter_loses_its_disk(world: World) -> None:
    members = MemberWorld(world, 3, settings=QUICK)
    members.start_all()
    leader = await members.elected()
    kept, absent = (node_id for node_id in members.node_ids if node_id != leader)
    await members.settle()
    world.crash(absent)
    # Committed by the leader and one other member; that one loses its disk, then the leader is
    # lost.
    assert isinstance(await members.propose(leader, b"a"), Applied)
    world.crash(kept, power=True)
    members.wipe(kept)
    world.crash(leader)
    members.start(kept)
    members.start(absent)
    end = world.loop.time() + 5.0
    await members.until(lambda: world.loop.time() > end)
    assert members.leader() is None, "nobody may lead that can have lost what was committed"
    # With the old leader there is a majority again.
    members.start(leader)
    await members.until(lambda: members.leader() == leader)
    await members.until(lambda: members.ledgers[absent].commands[-1:] == [b"a"])


def test_voter_with_an_empty_disk_under_a_known_id_holds() -> None:
    """A voter that lost its disk has lost its votes and its acknowledged entries.

    Source: the quorum's design ("a wiped one is refused"); fault 21 of the fault matrix
    (tests/simulation/data/FAULTS.md).
    """
    run(1, a_voter_loses_its_disk)


def test_voter_with_an_empty_disk_under_a_known_id_without_guard_fails(
    monkeypatch: Patch,
) -> None:
    strangers_are_let_in(monkeypatch)
    with violation(match="lacks committed"):
        run(1, a_voter_loses_its_disk)
