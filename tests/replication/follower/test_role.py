"""Appends, truncations and restarts of a follower, and the ones it refuses."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.record.errors import ILLEGAL_STATE, NO_LEADER, NOT_READY, LogError
from raftlog.record.types import LeaderEpoch, Offset
from raftlog.replication.follower.divergence import Diverging
from raftlog.replication.partition import Acks
from raftlog.storage.compaction.plan import NO_HORIZON
from raftlog.storage.leader_epochs import EpochEntry
from raftlog.storage.types import FlushMode, LogConfig
from tests.replication.pair import Node, catch_up, nodes, one, row, send


async def put(leader: Node, *values: bytes) -> None:
    await leader.partition.append(one(*values), acks=Acks.LEADER, timeout_s=60)
    await leader.partition.log.flush()


async def cluster(*, flush: FlushMode = FlushMode.SYNC) -> tuple[Node, Node]:
    """A leader and a follower with two common records, both known to be committed."""
    leader, follower = nodes(1, 2, flush=flush)
    await leader.open(row(1, 1))
    await follower.open(row(1, 1))
    await put(leader, b"a", b"b")
    await catch_up(leader, follower)
    follower.partition.follower_role.update_watermarks(
        leader_epoch=LeaderEpoch(1),
        high_watermark=leader.partition.high_watermark,
        log_start_offset=Offset(0),
    )
    assert follower.partition.high_watermark == 2
    return leader, follower


async def test_it_has_what_its_leader_has() -> None:
    leader, follower = await cluster()
    assert await follower.values() == [b"a", b"b"]
    assert (
        follower.partition.log.leader_epochs.entries == leader.partition.log.leader_epochs.entries
    )
    assert not follower.partition.is_leader


async def test_it_serves_only_those_who_ask_for_any_replica() -> None:
    _, follower = await cluster()
    with pytest.raises(LogError) as refused:
        await follower.partition.read(Offset(0), max_bytes=100)
    assert refused.value.entry is NO_LEADER
    fetched = await follower.partition.read(Offset(0), max_bytes=100, any_replica=True)
    assert fetched.next_offset == 2


async def test_it_knows_no_more_to_be_committed_than_it_has() -> None:
    _, follower = await cluster()
    follower.partition.follower_role.update_watermarks(
        leader_epoch=LeaderEpoch(1), high_watermark=Offset(9), log_start_offset=Offset(0)
    )
    assert follower.partition.high_watermark == 2


@pytest.mark.parametrize("epoch", [0, 2])
async def test_it_takes_nothing_of_another_epoch(epoch: int) -> None:
    leader, follower = await cluster()
    await put(leader, b"c")
    data = (await leader.partition.require_leader().read_uncommitted(Offset(2), max_bytes=100)).data
    with pytest.raises(LogError) as refused:
        follower.partition.follower_role.append_fetched_now(
            data,
            leader_epoch=LeaderEpoch(epoch),
            high_watermark=Offset(0),
            log_start_offset=Offset(0),
        )
    assert refused.value.entry is NO_LEADER
    with pytest.raises(LogError):
        await follower.partition.follower_role.truncate_for(
            Diverging(LeaderEpoch(1), Offset(0)), leader_epoch=LeaderEpoch(epoch)
        )
    assert follower.partition.log_end_offset == 2


async def test_it_cuts_what_was_never_committed() -> None:
    first, second = await cluster()
    await put(first, b"lost")
    for node in (second, first):
        node.partition.update(row(2, 2), 2)
    await put(second, b"c")
    await catch_up(second, first)
    assert await first.values() == [b"a", b"b", b"c"]
    assert first.partition.log.leader_epochs.entries == second.partition.log.leader_epochs.entries


async def test_it_never_cuts_what_was_committed() -> None:
    _, follower = await cluster()
    with pytest.raises(LogError) as refused:
        await follower.partition.follower_role.truncate_for(
            Diverging(LeaderEpoch(1), Offset(1)), leader_epoch=LeaderEpoch(1)
        )
    assert refused.value.entry is ILLEGAL_STATE
    with pytest.raises(LogError) as refused:
        await follower.partition.follower_role.restart_at(
            Offset(1),
            producers=b"",
            leader_epoch=LeaderEpoch(1),
            horizon=NO_HORIZON,
            is_outrun=False,
        )
    assert refused.value.entry is ILLEGAL_STATE
    assert await follower.values() == [b"a", b"b"]


async def test_it_cuts_what_the_metadata_says_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    first, second = await cluster()
    third = nodes(1, 2, 3)[2]
    third.number = 2
    await third.open(row(2, 5, replicas=(1, 2), unclean_epoch=5))
    await put(third, b"z")
    first.partition.update(row(2, 5, unclean_epoch=5), 2)
    second.partition.close(LogError(NOT_READY))
    await catch_up(third, first)
    assert await first.values() == [b"z"]
    assert first.partition.high_watermark <= 1
    assert "are lost" in caplog.text


async def test_an_unclean_election_that_it_has_followed_excuses_no_second_cut() -> None:
    first, second = await cluster()
    first.partition.update(row(1, 5, unclean_epoch=5), 2)
    second.partition.update(row(1, 5, unclean_epoch=5), 2)
    await put(first, b"c")
    await catch_up(first, second)
    second.partition.follower_role.update_watermarks(
        leader_epoch=LeaderEpoch(5), high_watermark=Offset(3), log_start_offset=Offset(0)
    )
    with pytest.raises(LogError) as refused:
        await second.partition.follower_role.truncate_for(
            Diverging(LeaderEpoch(1), Offset(2)), leader_epoch=LeaderEpoch(5)
        )
    assert refused.value.entry is ILLEGAL_STATE


async def test_an_answer_that_cuts_nothing_is_refused_rather_than_asked_again_for_ever() -> None:
    _, follower = await cluster()
    with pytest.raises(LogError) as refused:
        await follower.partition.follower_role.truncate_for(
            Diverging(LeaderEpoch(1), Offset(2)), leader_epoch=LeaderEpoch(1)
        )
    assert refused.value.entry is ILLEGAL_STATE


async def test_it_begins_anew_where_the_leaders_log_begins() -> None:
    leader, follower = await cluster()
    for value in (b"c", b"d"):
        await put(leader, value)
    await leader.partition.log.operations.delete_records_before(Offset(3))
    follower.partition.close(LogError(NOT_READY))
    # Meanwhile, elsewhere: this replica has had no message since its start.
    other = nodes(1, 2)[1]
    await other.open(row(1, 1))
    await catch_up(leader, other)
    assert other.partition.log_start_offset == 3
    assert await other.values() == [b"d"]


async def test_it_tells_no_log_start_before_that_is_written_down() -> None:
    """The answer to delete-records counts on this acknowledgement."""
    leader, follower = await cluster()
    await catch_up(leader, follower)
    follower.partition.follower_role.update_watermarks(
        leader_epoch=LeaderEpoch(1), high_watermark=Offset(2), log_start_offset=Offset(1)
    )
    told: dict[int, int] = {}
    while follower.partition.follower_role.position().log_start_offset < 1:
        told[follower.partition.log_start_offset] = (
            follower.partition.follower_role.position().log_start_offset
        )
        await asyncio.sleep(0)
    assert told[1] == 0, "it has begun there for a while, and not said so"


async def test_a_log_start_by_its_own_retention_is_told_once_it_is_written_down() -> None:
    """An idle leader sends nothing more, and waits for this log start before the ISR takes it."""
    _, follower = await cluster()
    told: list[Offset] = []
    follower.partition.follower_role.attach_fetcher(
        lambda: told.append(follower.partition.follower_role.position().log_start_offset)
    )
    log = follower.partition.log
    log.configure(LogConfig(retention_bytes=0))
    assert await log.operations.apply_retention(None) == 1
    assert told == [2]


async def test_an_epoch_that_wrote_nothing_is_not_in_the_way_of_an_older_one() -> None:
    first, second = await cluster()
    await put(first, b"c")
    # `second` leads without the record of epoch 1, and writes none in epoch 2.
    for node in (first, second):
        node.partition.update(row(2, 2), 2)
    assert second.partition.log.leader_epochs.latest == EpochEntry(LeaderEpoch(2), Offset(2))
    for node in (first, second):
        node.partition.update(row(1, 3), 2)
    await catch_up(first, second)
    assert await second.values() == [b"a", b"b", b"c"]


async def test_metadata_that_is_older_than_its_log_makes_no_leader_of_it_and_ends_nothing() -> None:
    """As after a start on a full disk, without the newest metadata."""
    leader, follower = await cluster()
    for node in (leader, follower):
        node.partition.update(row(2, 2), 2)
    await put(follower, b"c")
    await catch_up(follower, leader)
    await leader.logs.close()
    again = await leader.open(row(1, 1))
    assert not again.is_leader
    with pytest.raises(LogError) as refused:
        await again.append(one(b"x"), acks=Acks.LEADER, timeout_s=60)
    assert refused.value.entry is NOT_READY
    again.update(row(2, 2), 2)
    await put(follower, b"d")
    await catch_up(follower, leader)
    assert await leader.values() == [b"a", b"b", b"c", b"d"]


async def test_it_does_not_lead_before_a_cut_is_over() -> None:
    leader, follower = await cluster()
    await put(leader, b"c")
    await send(leader, follower)
    cut = asyncio.ensure_future(
        follower.partition.follower_role.truncate_for(
            Diverging(LeaderEpoch(1), Offset(2)), leader_epoch=LeaderEpoch(1)
        )
    )
    await asyncio.sleep(0)
    follower.partition.update(row(2, 2), 2)
    assert not follower.partition.is_leader
    with pytest.raises(LogError) as refused:
        await follower.partition.append(one(b"d"), acks=Acks.LEADER, timeout_s=60)
    assert refused.value.entry is NOT_READY
    await cut
    assert follower.partition.is_leader
    state = follower.partition.require_leader().state
    assert state.epoch_start == 2


async def test_it_changes_its_log_in_one_place_at_a_time() -> None:
    leader, follower = nodes(1, 2)
    follower.config = LogConfig(segment_bytes=100)
    await leader.open(row(1, 1))
    await follower.open(row(1, 1))
    await put(leader, b"x" * 80)
    await put(leader, b"y")
    first = (await leader.partition.require_leader().read_uncommitted(Offset(0), max_bytes=1)).data
    rest = (await leader.partition.require_leader().read_uncommitted(Offset(1), max_bytes=1)).data
    marks = {"high_watermark": Offset(0), "log_start_offset": Offset(0)}
    epoch = LeaderEpoch(1)
    assert follower.partition.follower_role.append_fetched_now(first, leader_epoch=epoch, **marks)
    assert not follower.partition.follower_role.append_fetched_now(
        rest, leader_epoch=epoch, **marks
    )
    waiting = asyncio.ensure_future(
        follower.partition.follower_role.append_fetched(rest, leader_epoch=epoch, **marks)
    )
    await asyncio.sleep(0)
    for attempt in (
        follower.partition.follower_role.position,
        lambda: follower.partition.follower_role.append_fetched_now(
            rest, leader_epoch=epoch, **marks
        ),
    ):
        with pytest.raises(LogError) as refused:
            attempt()
        assert refused.value.entry is NOT_READY
    await waiting
    assert follower.partition.follower_role.position().offset == 2


async def test_it_says_what_has_become_durable() -> None:
    leader, follower = await cluster()
    moved: list[int] = []
    follower.partition.follower_role.attach_fetcher(
        lambda: moved.append(follower.partition.durable_end)
    )
    await put(leader, b"c")
    await send(leader, follower)
    assert moved[-1] == 3


class TestDistrusted:
    """A replica that may lack acknowledged records (KIP-966)."""

    async def lost(self, *, replicas: tuple[int, ...] = (1, 2)) -> Node:
        node = nodes(1, 2, flush=FlushMode.ASYNC)[0]
        await node.open(row(1, 1, replicas=replicas, isr=replicas))
        await node.partition.append(one(b"a"), acks=Acks.LEADER, timeout_s=60)
        node.disk.crash(power=True)
        await node.open(row(1, 2, replicas=replicas, isr=replicas))
        assert node.partition.log.possible_loss is not None
        return node

    async def test_it_neither_leads_nor_follows(self) -> None:
        node = await self.lost()
        assert node.partition.loss_gate.may_have_lost_data
        assert not node.partition.is_leader
        node.partition.update(row(2, 3), 2)
        with pytest.raises(LogError) as refused:
            node.partition.follower_role.position()
        assert refused.value.entry is NOT_READY

    async def test_it_does_once_the_metadata_knows(self) -> None:
        node = await self.lost()
        node.partition.update(row(2, 3, isr=(2,)), 2)
        await node.partition.loss_gate.clear_loss()
        await asyncio.sleep(0)
        assert node.partition.follower_role.position().offset == 0
        assert node.partition.log.possible_loss is None

    async def test_it_leads_if_it_is_elected_all_the_same(self) -> None:
        node = await self.lost()
        node.partition.update(row(1, 3, isr=(1,), unclean_epoch=3), 2)
        assert not node.partition.is_leader, "not before a restart would know of it"
        await node.partition.loss_gate.clear_loss()
        await asyncio.sleep(0)
        assert node.partition.is_leader
        assert not node.partition.loss_gate.may_have_lost_data

    async def test_alone_it_waits_like_any_other(self) -> None:
        node = await self.lost(replicas=(1,))
        assert not node.partition.is_leader
        node.partition.update(row(1, 2, isr=(1,), replicas=(1, 2), partition_epoch=21), 2)
        assert not node.partition.is_leader
        assert node.partition.log.possible_loss is not None

    async def test_it_does_not_lead_on_in_the_epoch_that_it_may_have_lost_of(self) -> None:
        # A node with a full disk opens its replicas without a new registration, in the epoch of its
        # unclean election, in which it has acknowledged records since.
        node = nodes(1, 2, flush=FlushMode.ASYNC)[0]
        await node.open(row(1, 3, isr=(1,), unclean_epoch=3))
        await node.partition.append(one(b"a"), acks=Acks.LEADER, timeout_s=60)
        node.disk.crash(power=True)
        await node.open(row(1, 3, isr=(1,), unclean_epoch=3))
        assert node.partition.loss_gate.may_have_lost_data
        assert not node.partition.is_leader
        node.partition.update(row(1, 4, isr=(1,), unclean_epoch=3), 2)
        assert node.partition.loss_gate.may_have_lost_data

    async def test_an_older_unclean_election_that_is_applied_again_accepts_nothing(self) -> None:
        # The metadata of a start without registration may be older than the log (data 207090).
        node = await self.lost(replicas=(1,))
        node.is_registered = False
        node.partition.update(row(1, 3, isr=(1,), unclean_epoch=3), 2)
        await asyncio.sleep(0)
        assert not node.partition.is_leader
        node.is_registered = True
        node.partition.update(row(1, 3, isr=(1,), unclean_epoch=3, partition_epoch=31), 2)
        assert node.partition.loss_gate.may_have_lost_data
        node.partition.update(row(1, 4, isr=(1,), unclean_epoch=4), 2)
        await node.partition.loss_gate.clear_loss()
        await asyncio.sleep(0)
        assert node.partition.is_leader


async def test_its_log_start_follows_though_it_moves_on_meanwhile() -> None:
    _, follower = await cluster()
    for start in (1, 2):
        follower.partition.follower_role.update_watermarks(
            leader_epoch=LeaderEpoch(1), high_watermark=Offset(2), log_start_offset=Offset(start)
        )
        await asyncio.sleep(0)
    # Nothing more is heard of the leader.
    await follower.partition.follower_role.until_idle()
    assert follower.partition.log_start_offset == 2


async def test_until_idle_waits_for_a_cut() -> None:
    first, second = await cluster()
    await put(first, b"lost")
    for node in (second, first):
        node.partition.update(row(2, 2), 2)
    cut = asyncio.ensure_future(
        first.partition.follower_role.truncate_for(
            Diverging(LeaderEpoch(1), Offset(2)), leader_epoch=LeaderEpoch(2)
        )
    )
    await asyncio.sleep(0)
    first.partition.close(LogError(NOT_READY))
    assert first.partition.log_end_offset == 3
    await first.partition.follower_role.until_idle()
    assert first.partition.log_end_offset == 2
    await cut
