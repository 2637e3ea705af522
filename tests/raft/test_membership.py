"""Changes of voters and leader: refusals, their texts, and the log's entries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from raftlog.raft.kernel import Node
from raftlog.raft.membership import CATCH_UP_S, LAG_ENTRIES_MAX, TRANSFER_S, VoterChanges
from raftlog.raft.messages import TimeoutNow
from raftlog.raft.peers.hello import QuorumHello
from raftlog.raft.voters import NO_VOTERS, VOTERS_MAX, decode_voters
from raftlog.record.errors import ILLEGAL_STATE, NO_CONTROLLER, RETRIABLE, ErrorEntry, LogError
from tests.simulation.quorum.core_cluster import CoreCluster


class Table:
    """A cluster around a table; waiting lets its time pass and its messages arrive."""

    def __init__(self, *voters: int, observers: tuple[int, ...] = (), leader: int = 1) -> None:
        self.cores = CoreCluster(voters, observers)
        self.cores.elect(leader, *(voter for voter in voters if voter != leader))
        self.addresses = {node: f"n{node}.test:8082" for node in self.cores.seats}
        self.on_sleep: Callable[[], object] = lambda: None
        self.slept_s = 0.0
        self.mute: set[int] = set()
        self.rest()
        changes: Any = VoterChanges
        self.changes: VoterChanges = changes(
            self.core.core, self, self.hello_of, lambda: self.cores.pump(leader)
        )

    @property
    def core(self) -> Any:
        return self.cores[1]

    @property
    def voters(self) -> list[int]:
        return sorted(self.core.log.voters.ids)

    def hello_of(self, node_id: int) -> QuorumHello | None:
        if node_id != 1 and node_id not in self.core.connected:
            return None
        address = self.addresses[node_id]
        return QuorumHello(
            node_id=node_id,
            directory_id=f"directory-{node_id}",
            cluster_id=None,
            bootstrap_id=None,
            address=address,
            voters=NO_VOTERS,
        )

    def rest(self, seconds: float = 0.06) -> None:
        for seat in self.cores.seats.values():
            seat.clock.now += seconds
        for node_id in sorted(self.cores.seats.keys() - self.mute):
            self.cores.pump(node_id)
        talking = sorted(self.cores.seats.keys() - self.mute)
        self.cores.exchange(*talking)

    # Clock

    def time_ms(self) -> int:
        raise AssertionError

    def monotonic(self) -> float:
        return float(self.core.clock.now)

    async def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self.on_sleep()
        self.rest(seconds)
        await asyncio.sleep(0)

    async def refused(self, change: Any, entry: ErrorEntry, words: str) -> None:
        before = self.core.log.last_index
        with pytest.raises(LogError) as raised:
            await change
        assert raised.value.entry is entry
        assert words in raised.value.message
        assert self.core.log.last_index == before, "nothing was begun"


async def test_observer_becomes_a_voter_at_the_address_of_its_hello() -> None:
    table = Table(1, observers=(2,))
    table.addresses[2] = "elsewhere.test:9"
    index, term = await table.changes.add(2)
    table.rest()
    assert (index, term) == (table.core.log.voters_index, table.core.core.term)
    voter = table.core.log.voters.find(2)
    assert (voter.address, voter.directory_id) == ("elsewhere.test:9", "directory-2")
    assert table.core.core.commit_index >= index
    table.cores.settle(1)


async def test_a_voter_becomes_an_observer() -> None:
    table = Table(1, 2, 3)
    index, _ = await table.changes.remove(3)
    table.rest()
    assert table.voters == [1, 2]
    assert table.core.core.commit_index >= index


@pytest.mark.parametrize("what", ["add", "remove", "transfer_leadership"])
async def test_only_a_leader_changes_voters(what: str) -> None:
    table = Table(1, 2, 3, observers=(4,))
    changes = VoterChanges(table.cores[2].core, table, table.hello_of, lambda: None)
    if what == "transfer_leadership":
        await changes.transfer_leadership(3)
        assert not table.cores.on_way[2, 3], "nobody was asked to lead"
    elif what == "add":
        await table.refused(changes.add(4), NO_CONTROLLER, "")
    else:
        await table.refused(changes.remove(3), NO_CONTROLLER, "")


async def test_a_voter_is_not_added_again() -> None:
    table = Table(1, 2, 3)
    await table.refused(table.changes.add(3), ILLEGAL_STATE, "Node 3 is a voter already.")


async def test_unconnected_node_is_not_added() -> None:
    table = Table(1, observers=(2,))
    table.cores.disconnect(1, 2)
    await table.refused(table.changes.add(2), ILLEGAL_STATE, "start it with --join first")


@pytest.mark.parametrize(
    "address", ["nonsense", "host:", "host:port", "host:99999", "a b:1", "h" * 280 + ":8082"]
)
async def test_unusable_address_gets_no_vote(address: str) -> None:
    table = Table(1, observers=(2,))
    table.addresses[2] = address
    await table.refused(table.changes.add(2), ILLEGAL_STATE, "Node 2 cannot be a voter")


async def test_there_is_a_limit_to_voters() -> None:
    table = Table(*range(1, VOTERS_MAX + 1), observers=(10,))
    await table.refused(table.changes.add(10), ILLEGAL_STATE, "which is the limit")


async def test_observer_is_not_removed() -> None:
    table = Table(1, 2, 3, observers=(4,))
    await table.refused(table.changes.remove(4), ILLEGAL_STATE, "Node 4 is not a voter.")


async def test_the_last_voter_stays() -> None:
    table = Table(1, observers=(2,))
    await table.refused(table.changes.remove(1), ILLEGAL_STATE, "is the only voter")


async def test_a_change_waits_for_the_one_before() -> None:
    table = Table(1, 2, 3, observers=(4,))
    table.mute |= {2, 3}
    await table.changes.add(4)
    assert table.voters == [1, 2, 3, 4], "in force at once"
    await table.refused(table.changes.remove(3), ILLEGAL_STATE, "not committed yet; try again")
    await table.refused(table.changes.add(4), ILLEGAL_STATE, "not committed yet; try again")
    table.mute.clear()
    table.rest()
    await table.changes.remove(3)


async def test_a_leader_that_has_committed_nothing_yet_changes_nothing() -> None:
    table = Table(1, 2, 3, observers=(4,))
    cores = table.cores
    cores.campaign(2, 3)
    cores.deliver(2, 3, len(cores.on_way[2, 3]))
    cores.deliver(3, 2, len(cores.on_way[3, 2]))
    assert cores[2].core.is_leader
    assert not cores[2].core.is_active
    changes = VoterChanges(cores[2].core, table, table.hello_of, lambda: None)
    before = cores[2].log.last_index
    with pytest.raises(LogError, match="has just been elected") as raised:
        await changes.remove(3)
    assert raised.value.entry is NO_CONTROLLER
    assert cores[2].log.last_index == before


async def test_a_change_that_could_not_be_committed_is_not_begun() -> None:
    table = Table(1, 2, 3)
    table.cores.disconnect(1, 3)
    await table.refused(
        table.changes.remove(2),
        ILLEGAL_STATE,
        "Of the voters [1, 3] that would be left, only 1 answer, and 2 must",
    )


async def test_a_silent_voter_counts_as_dead_for_a_change() -> None:
    table = Table(1, 2, 3)
    table.mute.add(3)
    for _ in range(20):
        table.rest()
    assert 3 in table.core.connected
    await table.refused(table.changes.remove(2), ILLEGAL_STATE, "only 1 answer")
    await table.changes.remove(3)


async def test_a_newcomer_that_lags_is_waited_for() -> None:
    table = Table(1, observers=(2,))
    table.mute.add(2)
    table.cores.propose(1, *[b"%d" % number for number in range(LAG_ENTRIES_MAX + 5)])

    def wake_up() -> None:
        if table.slept_s > 1.0:
            table.mute.clear()

    table.on_sleep = wake_up
    table.cores.reconnect(1, 2)
    await table.changes.add(2)
    assert 1.0 <= table.slept_s < 2.0


async def test_a_newcomer_that_never_catches_up_is_refused() -> None:
    table = Table(1, observers=(2,))
    table.cores.reconnect(1, 2)
    table.cores.isolate(2)
    table.mute.add(2)
    table.core.core._match_indexes.clear()
    table.core.core.refresh_members()
    await table.refused(table.changes.add(2), ILLEGAL_STATE, "Node 2 has not caught up in 10 s")
    assert table.slept_s == pytest.approx(CATCH_UP_S, abs=0.5)


async def test_of_two_that_wait_for_the_same_newcomer_one_is_refused() -> None:
    table = Table(1, observers=(2,))
    results = await asyncio.gather(
        table.changes.add(2), table.changes.add(2), return_exceptions=True
    )
    assert isinstance(results[0], tuple)
    assert isinstance(results[1], LogError)


async def test_a_change_that_was_begun_while_one_waited_comes_first() -> None:
    table = Table(1, 2, 3, observers=(4,))
    table.cores.reconnect(1, 4)
    table.core.core._match_indexes.pop(Node(4))
    table.core.core.refresh_members()
    table.cores.isolate(4)

    def meanwhile() -> None:
        # An unanswered change, and the newcomer has caught up.
        table.on_sleep = lambda: None
        table.mute |= {2, 3}
        table.cores.append_voters(1, 1, 2)

    table.on_sleep = meanwhile
    with pytest.raises(LogError, match="Another change of voters") as raised:
        await table.changes.add(4)
    assert raised.value.entry is ILLEGAL_STATE
    assert table.voters == [1, 2]


async def test_a_leader_that_loses_its_lead_while_it_waits_gives_up() -> None:
    table = Table(1, 2, 3, observers=(4,))
    table.cores.reconnect(1, 4)
    table.core.core._match_indexes.clear()
    table.core.core.refresh_members()
    table.mute.add(4)
    table.on_sleep = lambda: table.cores[1].core.hear_term(99)
    with pytest.raises(LogError) as raised:
        await table.changes.add(4)
    assert raised.value.entry is NO_CONTROLLER
    assert table.voters == [1, 2, 3]


async def test_leadership_is_handed_to_the_one_asked_for() -> None:
    table = Table(1, 2, 3)
    table.cores.candidate = 3
    await table.changes.transfer_leadership(3)
    table.rest()
    assert table.cores[3].core.is_leader


async def test_without_a_name_the_one_that_is_furthest_leads() -> None:
    table = Table(1, 2, 3)
    table.cores.disconnect(1, 2)
    table.cores.propose(1, b"x")
    table.rest()
    table.cores.candidate = 3
    await table.changes.transfer_leadership(None)
    table.rest()
    assert table.cores[3].core.is_leader


async def test_handing_over_to_oneself_is_done_already() -> None:
    table = Table(1, 2, 3)
    await table.changes.transfer_leadership(1)
    assert table.core.core.is_leader
    assert table.slept_s == 0


async def test_only_a_voter_can_lead() -> None:
    table = Table(1, 2, 3, observers=(4,))
    await table.refused(
        table.changes.transfer_leadership(4), ILLEGAL_STATE, "Node 4 is not a voter"
    )
    await table.refused(
        table.changes.transfer_leadership(9), ILLEGAL_STATE, "Node 9 is not a voter"
    )


async def test_single_voter_has_no_successor() -> None:
    table = Table(1)
    await table.refused(table.changes.transfer_leadership(None), ILLEGAL_STATE, "no other voter")


async def test_transfer_without_takeover_names_the_target() -> None:
    table = Table(1, 2, 3)
    table.cores.disconnect(1, 3)
    with pytest.raises(LogError, match=r"Node 3 did not take over in 2\.0 s") as raised:
        await table.changes.transfer_leadership(3)
    assert raised.value.entry is RETRIABLE
    assert table.slept_s == pytest.approx(TRANSFER_S, abs=0.1)
    assert table.core.core.is_leader


async def test_an_order_to_lead_that_is_lost_is_given_again_but_not_at_once() -> None:
    table = Table(1, 2, 3)
    # No election timeout expires here: the order has no effect.
    with pytest.raises(LogError, match="did not take over"):
        await table.changes.transfer_leadership(2)
    orders = [each for each in table.cores.delivered if isinstance(each[2], TimeoutNow)]
    assert 3 <= len(orders) <= 5


async def test_a_leader_hands_over_before_it_is_removed() -> None:
    table = Table(1, 2, 3)
    table.cores.candidate = 2
    with pytest.raises(LogError, match="Another member leads now") as raised:
        await table.changes.remove(1)
    assert raised.value.entry is NO_CONTROLLER
    assert table.voters == [1, 2, 3], "the next leader removes it"
    assert not table.core.core.is_leader


# Refreshing


def test_what_connected_voters_say_of_themselves_goes_into_the_log() -> None:
    table = Table(1, 2, 3)
    table.addresses[2] = "moved.test:1"
    table.cores.disconnect(1, 3)
    table.changes.refresh()
    table.rest()
    voters = table.core.log.voters
    assert [voter.directory_id for voter in voters.voters] == ["directory-1", "directory-2", None]
    assert voters.find(2).address == "moved.test:1"
    assert table.voters == [1, 2, 3]
    assert decode_voters(table.core.log.entry(table.core.log.voters_index)[0][1:]) == voters


def test_nothing_is_written_that_is_known() -> None:
    table = Table(1, 2, 3)
    table.changes.refresh()
    table.rest()
    before = table.core.log.last_index
    table.changes.refresh()
    assert table.core.log.last_index == before


def test_only_an_active_leader_refreshes_and_one_change_at_a_time() -> None:
    table = Table(1, 2, 3)
    other = VoterChanges(table.cores[2].core, table, table.hello_of, lambda: None)
    other.refresh()
    table.mute |= {2, 3}
    table.changes.refresh()
    before = table.core.log.last_index
    table.addresses[2] = "moved.test:1"
    table.changes.refresh()
    assert table.core.log.last_index == before, "the change before is not committed yet"


def test_what_must_not_be_in_a_voter_set_stays_out() -> None:
    table = Table(1, 2, 3)
    table.addresses[2] = "nonsense"
    table.changes.refresh()
    table.rest()
    assert table.core.log.voters.find(2).address == "n2.test:8082"
    assert table.core.log.voters.find(3).directory_id == "directory-3"
