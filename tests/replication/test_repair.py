"""Repair: no file is touched while ISR or ELR may count on the replica."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from raftlog.metadata.image import NO_LEADER_ID, PartitionImage
from raftlog.record.errors import DISK_FULL, NO_CONTROLLER, STORAGE_FAILED, LogError
from raftlog.record.types import Offset, PartitionId
from raftlog.replication.partition import Acks, Partition
from raftlog.replication.repair import (
    RENEWALS_MAX,
    RENEWALS_S,
    ROWS_PER_TURN_MAX,
    SEARCH_S,
    SEARCHES_MAX,
    ReplicaKey,
)
from raftlog.storage.log.derived_state import MARKS_NAME
from raftlog.storage.types import LogState
from raftlog.world import DiskError, DiskFullError
from tests.replication.one_node import OneNode, topic_id
from tests.replication.pair import one
from tests.storage.logs import read_all

KEY = (topic_id(0), PartitionId(0))
LOG = f"replicas/{topic_id(0)}/0/00000000000000000000.log"


@pytest.fixture
async def node() -> AsyncIterator[OneNode]:
    made = OneNode()
    await made.open()
    yield made
    await made.close()


async def put(partition: Partition, *values: bytes) -> None:
    await partition.append(one(*values), acks=Acks.LEADER, timeout_s=60)
    await partition.log.flush()


async def filled(node: OneNode, *replicas: int, **configs: str) -> Partition:
    node.create(*replicas, **configs)
    await node.settled()
    await put(node.here(), b"a")
    await put(node.here(), b"b")
    return node.here()


async def fail(node: OneNode, partition: Partition) -> None:
    """Have a sync fail: the log is out of service for good."""
    node.disk.fail_next("sync", LOG, DiskError)
    with pytest.raises(LogError):
        await put(partition, b"c")
    assert partition.log.state is LogState.FAILED


async def repaired(node: OneNode, before: Partition) -> Partition:
    await node.until(lambda: node.replica() not in (None, before) and not node.repairs.under_way)
    return node.here()


class TestLostFiles:
    async def lost(self, node: OneNode, partitions: int) -> None:
        """Start without the files of a topic; the start has reported the loss."""
        node.create_many(partitions)
        await node.settled()
        await node.close()
        node.disk.remove_tree(f"replicas/{topic_id(0)}")
        await node.open()
        assert len(node.replicas.lost()) == partitions
        await node.repairs.report_losses()
        assert node.repairs.under_way == partitions

    async def test_many_wait_in_one_sweep_of_bounded_steps(
        self, node: OneNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The other replica is fenced, so that no broker leads.
        node.fence(2)
        await self.lost(node, 1_000)
        await node.turns(20)
        sleeps = examined = 0
        sleep, row = node.clock.sleep, node.repairs._row

        async def counted_sleep(seconds: float) -> None:
            nonlocal sleeps
            sleeps += 1
            await sleep(seconds)

        def counted_row(key: ReplicaKey) -> PartitionImage | None:
            nonlocal examined
            examined += 1
            return row(key)

        monkeypatch.setattr(node.clock, "sleep", counted_sleep)
        monkeypatch.setattr(node.repairs, "_row", counted_row)
        most = 0
        while sleeps < 10:
            before = examined
            await asyncio.sleep(0)
            most = max(most, examined - before)
        assert most == ROWS_PER_TURN_MAX
        assert examined <= 10 * 1_000
        assert len(node.replicas.lost()) == 1_000

    async def test_they_are_renewed_once_another_broker_leads(self, node: OneNode) -> None:
        node.fence(2)
        await self.lost(node, 1)
        await node.turns()
        assert node.replica() is None
        node.unfence(2)
        node.change(leader=2, isr=(2,), unclean=True)
        await node.until(lambda: not node.repairs.under_way)
        assert node.here().log_end_offset == 0
        assert not node.replicas.lost()

    async def test_accepted_loss_is_tried_again_when_the_disk_was_full(
        self, node: OneNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        node.fence(2)
        await self.lost(node, 1)
        await node.turns()
        renew = node.replicas.renew
        full = [LogError(DISK_FULL), LogError(DISK_FULL)]

        async def fails_first(*key: Any) -> None:
            if full:
                raise full.pop()
            await renew(*key)

        monkeypatch.setattr(node.replicas, "renew", fails_first)
        node.change(leader=1, isr=(1,), unclean=True)
        await node.until(lambda: not node.repairs.under_way)
        assert not full
        assert node.here().is_leader

    async def test_deleted_topic_ends_the_wait(self, node: OneNode) -> None:
        node.fence(2)
        await self.lost(node, 10)
        await node.turns()
        node.delete()
        await node.until(lambda: not node.repairs.under_way)


class TestFailedWhileServing:
    async def test_it_leaves_and_is_begun_anew_under_another_leader(self, node: OneNode) -> None:
        before = await filled(node, 1, 2, 3)
        await fail(node, before)
        assert before.is_closed
        after = await repaired(node, before)
        assert node.failed == [[KEY]]
        assert node.row().isr == (2, 3)
        assert node.row().leader == 2
        assert after.log_end_offset == 0
        assert node.streams.followed == {after: (2, 1)}
        assert len(node.files("damaged")) > 0

    async def test_nothing_is_touched_before_the_change_is_committed(self, node: OneNode) -> None:
        before = await filled(node, 1, 2)
        files = node.files("replicas")
        node.refusals = [LogError(NO_CONTROLLER, "nobody") for _ in range(3)]
        seen: list[tuple[list[str], list[str]]] = []
        node.on_fail = lambda: seen.append((node.files("replicas"), node.files("damaged")))
        await fail(node, before)
        await repaired(node, before)
        assert len(node.failed) == 4
        assert seen == [(files, [])]

    async def test_who_is_in_no_set_leaves_all_the_same(self, node: OneNode) -> None:
        # The leader may be about to add the replica to the ISR, by older acknowledgements.
        before = await filled(node, 1, 2)
        node.change(leader=2, isr=(2,))
        epoch = node.row().leader_epoch
        seen: list[list[str]] = []
        node.on_fail = lambda: seen.append(node.files("damaged"))
        before.log.fail(DiskError("as ordered"))
        await repaired(node, before)
        assert node.failed == [[KEY]]
        assert seen == [[]]
        assert node.row().leader_epoch == epoch + 1

    async def test_it_waits_while_nobody_leads(self, node: OneNode) -> None:
        before = await filled(node, 1, 2)
        files = node.files("replicas")
        node.shut_down(2)
        await fail(node, before)
        await node.turns()
        assert node.row().isr == (2,)
        assert node.row().leader == NO_LEADER_ID
        assert (node.files("replicas"), node.files("damaged")) == (files, [])
        node.register(2, "again")
        node.change(leader=2)
        after = await repaired(node, before)
        assert node.streams.followed == {after: (2, node.row().leader_epoch)}


class TestTheLastOne:
    async def test_the_only_replica_is_left_alone(self, node: OneNode) -> None:
        before = await filled(node, 1)
        files = node.files("replicas")
        await fail(node, before)
        await node.turns()
        assert node.failed == []
        assert node.files("replicas") == files
        with pytest.raises(LogError) as refused:
            await node.here().read(Offset(0), max_bytes=1)
        assert refused.value.entry is STORAGE_FAILED

    async def test_so_is_the_last_one_with_all_records(self, node: OneNode) -> None:
        before = await filled(node, 1, 2)
        node.change(isr=(1,))
        assert node.row().elr == ()
        await fail(node, before)
        await node.turns()
        assert node.failed == []
        assert node.row().isr == (1,)
        # A restart brings the acknowledged records back.
        await node.close()
        await node.open()
        assert (await read_all(node.here().log))[:2] == [b"a", b"b"]
        assert node.here().is_leader

    async def test_who_is_eligible_and_gone_is_nobody_to_count_on(self, node: OneNode) -> None:
        before = await filled(node, 1, 2, 3, min_insync_replicas="2")
        node.change(isr=(1,))
        assert node.row().elr == (2, 3)
        for other in (2, 3):
            node.fence(other)
        await fail(node, before)
        await node.turns()
        assert node.failed == []
        node.unfence(3)
        await node.until(lambda: node.failed)
        assert node.row().leader == 3
        await repaired(node, before)

    async def test_who_is_in_sync_and_gone_is_not_either(self, node: OneNode) -> None:
        before = await filled(node, 1, 2)
        node.fence(2)
        await fail(node, before)
        await node.turns()
        assert node.failed == [], "it may report yet that a power cut took records from it"
        assert node.row().isr == (1, 2)
        node.unfence(2)
        await node.until(lambda: node.failed)
        assert node.row().leader == 2
        await repaired(node, before)

    async def test_it_goes_on_once_another_has_them(self, node: OneNode) -> None:
        before = await filled(node, 1, 2)
        node.change(isr=(1,))
        await fail(node, before)
        await node.turns(20)
        node.change(isr=(1, 2), unclean=True)
        after = await repaired(node, before)
        assert node.row().leader == 2
        assert after.log_end_offset == 0

    async def test_who_asks_for_unclean_elections_gets_one(self, node: OneNode) -> None:
        before = await filled(node, 1, 2, unclean_leader_election_enable="true")
        node.change(isr=(1,))
        await fail(node, before)
        await repaired(node, before)
        assert node.row().leader == 2
        assert node.row().unclean_epoch == node.row().leader_epoch


class TestDamaged:
    async def test_what_cannot_be_opened_at_the_start_is_begun_anew(self, node: OneNode) -> None:
        await filled(node, 1, 2)
        await node.repairs.close()
        await node.replicas.close()
        node.disk.crash(power=False)
        node.disk.fail_next("read", LOG, DiskError)
        await node.open()
        await node.until(lambda: node.failed and not node.repairs.under_way)
        assert node.failed == [[KEY]]
        assert node.row().isr == (2,)
        assert node.here().log_end_offset == 0
        assert node.files("damaged")

    async def test_it_is_found_again_after_a_restart(self, node: OneNode) -> None:
        before = await filled(node, 1, 2)
        node.refusals = [LogError(NO_CONTROLLER, "nobody")] * 10_000
        before.log.declare_damaged("a bit has flipped")
        await node.turns(20)
        await node.close()
        node.refusals = []
        node.disk.crash(power=False)
        await node.open()
        await node.until(lambda: node.failed and not node.repairs.under_way)
        assert node.row().isr == (2,)
        assert node.here().log.state is LogState.ONLINE
        assert node.here().log_end_offset == 0

    async def test_damage_that_a_reader_meets_is_repaired(self, node: OneNode) -> None:
        before = await filled(node, 1, 2)
        states: list[tuple[bool, LogState]] = []
        node.on_fail = lambda: states.append((before.is_leaving, before.log.state))
        node.disk.flip_bit(LOG, 8 * 65)
        with pytest.raises(LogError):
            await before.log.reader.read(Offset(0), end=Offset(2), max_bytes=1000)
        after = await repaired(node, before)
        # It must not follow while it leaves, or would enter the ISR again. It is closed later.
        assert states == [(True, LogState.ONLINE)]
        assert node.row().isr == (2,)
        assert after.log_end_offset == 0

    async def test_member_that_another_one_forestalls_goes_on_serving(self, node: OneNode) -> None:
        before = await filled(node, 1, 2)
        # The other member, damaged too, leaves first.
        node.on_fail = lambda: node.change(isr=(1,)) if node.row().isr == (1, 2) else None
        node.disk.flip_bit(LOG, 8 * 65)
        with pytest.raises(LogError):
            await before.log.reader.read(Offset(0), end=Offset(2), max_bytes=1000)
        await node.until(lambda: bool(node.failed))
        await node.turns()
        assert (node.row().isr, node.here()) == ((1,), before)
        assert before.is_leader
        assert not before.is_leaving
        await put(before, b"c")

    async def test_the_last_one_goes_on_serving_what_is_whole(self, node: OneNode) -> None:
        before = await filled(node, 1)
        node.disk.flip_bit(LOG, 8 * 65)
        with pytest.raises(LogError):
            await before.log.reader.read(Offset(0), end=Offset(2), max_bytes=1000)
        await node.turns()
        assert node.here() is before
        assert before.is_leader
        fetched = await before.read(Offset(1), max_bytes=1000)
        assert fetched.next_offset == 2
        await put(before, b"c")


class TestBatches:
    async def damaged(self, node: OneNode) -> tuple[Partition, bytes]:
        before = await filled(node, 1, 2, 3)
        before.high_watermark = Offset(2)
        whole = await before.read(Offset(0), max_bytes=1000)
        node.disk.flip_bit(LOG, 8 * 65)
        return before, bytes(whole.data)

    async def read(self, replica: Partition) -> list[bytes | None]:
        return await read_all(replica.log)

    async def test_a_damaged_batch_is_taken_from_another_replica_by_the_leader_itself(
        self, node: OneNode
    ) -> None:
        before, good = await self.damaged(node)
        is_reached = False

        async def copy(offset: Offset) -> bytes:
            nonlocal is_reached
            if not is_reached:
                is_reached = True
                raise LogError(NO_CONTROLLER, "not reached")
            return good

        node.copy = copy
        assert (await before.read(Offset(0), max_bytes=1000)).data == good, "the reader waits"
        await node.until(lambda: not node.repairs.under_way)
        assert node.here() is before
        assert before.is_leader
        assert before.log.damage_found is None
        assert await self.read(before) == [b"a", b"b"]
        assert not node.failed, "it stays in sync"
        assert {broker for broker, _ in node.asked} == {2, 3}
        await put(before, b"c")

    async def test_damage_found_while_a_repair_ends_is_repaired_by_the_next(
        self, node: OneNode
    ) -> None:
        """Readers that waited for the repair read on at once, and may meet damage elsewhere."""
        before, good = await self.damaged(node)

        async def copy(_offset: Offset) -> bytes:
            return good

        async def read(offset: int) -> None:
            with suppress(LogError):
                await before.log.reader.read(Offset(offset), end=Offset(2), max_bytes=1000)

        async def read_on() -> None:
            assert await before.log.wait_repaired(60)
            node.disk.flip_bit(LOG, 8 * 65)
            await read(0)

        node.copy = copy
        await read(0)
        assert before.log.damage_found is not None
        await read_on()
        await node.until(lambda: before.log.damage_found is None and not node.repairs.under_way)
        assert await self.read(before) == [b"a", b"b"]

    async def test_nothing_is_replaced_before_every_replica_has_answered(
        self, node: OneNode
    ) -> None:
        before, _ = await self.damaged(node)

        async def copy(_offset: Offset) -> bytes:
            code = NO_CONTROLLER if node.asked[-1][0] == 3 else STORAGE_FAILED
            raise LogError(code, "no copy")

        node.copy = copy
        with pytest.raises(LogError):
            await before.read(Offset(0), max_bytes=1000)
        await node.until(lambda: len(node.asked) > 2 * 2 * SEARCHES_MAX)
        assert node.here() is before
        assert not node.failed
        node.copy = None
        await node.until(lambda: node.failed)
        assert before.log.state is LogState.DAMAGED

    async def test_what_is_not_committed_is_asked_of_no_replica(self, node: OneNode) -> None:
        before, _ = await self.damaged(node)
        before.high_watermark = Offset(0)
        with pytest.raises(LogError):
            await before.log.reader.read(Offset(0), end=Offset(2), max_bytes=1000)
        await node.until(lambda: node.failed)
        assert not node.asked


class TestOffline:
    async def damaged_at_the_start(self, node: OneNode, *isr: int) -> tuple[PartitionImage, bytes]:
        """The first of two batches is damaged, as the next start finds; its bytes before."""
        before = await filled(node, 1, 2)
        node.change(isr=isr)
        good = bytes((await before.log.reader.read(Offset(0), end=Offset(2), max_bytes=1)).data)
        await node.repairs.close()
        await node.replicas.close()
        node.disk.crash(power=False)
        node.disk.flip_bit(LOG, 8 * 65)
        return node.row(), good

    async def test_the_last_replica_is_repaired_and_leads_on(self, node: OneNode) -> None:
        row, good = await self.damaged_at_the_start(node, 1)
        searches: list[float] = []

        async def copy(_offset: Offset) -> bytes:
            searches.append(node.clock.now)
            if len(searches) == 1:
                raise LogError(NO_CONTROLLER, "not reached")
            return good if len(searches) == 3 else b""

        node.copy = copy
        await node.open()
        assert node.here().is_closed
        await node.until(lambda: not node.repairs.under_way)
        assert await read_all(node.here().log) == [b"a", b"b"]
        assert (node.row(), node.failed, node.here().is_leader) == (row, [], True)
        assert [name for name in node.files("damaged") if "-batches/" not in name] == []
        assert all(b - a >= SEARCH_S for a, b in pairwise(searches))
        await put(node.here(), b"c")

    async def test_one_that_another_can_replace_is_replaced(self, node: OneNode) -> None:
        await self.damaged_at_the_start(node, 1, 2)
        await node.open()
        await node.until(lambda: node.failed and not node.repairs.under_way)
        assert (node.row().isr, node.here().log_end_offset) == ((2,), 0)
        assert not node.asked

    async def test_it_is_replaced_as_soon_as_another_has_all_records(self, node: OneNode) -> None:
        await self.damaged_at_the_start(node, 1)
        await node.open()
        await node.until(lambda: len(node.asked) > 2)
        assert node.here().is_closed
        node.change(isr=(1, 2), unclean=True)
        await node.until(lambda: node.failed and not node.repairs.under_way)
        assert (node.row().isr, node.here().log_end_offset) == ((2,), 0)

    async def test_a_disk_that_is_full_when_it_opens_again_is_waited_for(
        self, node: OneNode
    ) -> None:
        _, good = await self.damaged_at_the_start(node, 1)

        async def copy(_offset: Offset) -> bytes:
            node.disk.fail_next("create", MARKS_NAME, DiskFullError)
            return good

        node.copy = copy
        await node.open()
        await node.until(lambda: not node.repairs.under_way)
        assert await read_all(node.here().log) == [b"a", b"b"]


class TestBounds:
    async def test_it_is_begun_anew_only_so_many_times(self, node: OneNode) -> None:
        partition = await filled(node, 1, 2)
        node.change(leader=2)
        for _ in range(RENEWALS_MAX):
            partition.log.declare_damaged("again")
            partition = await repaired(node, partition)
        partition.log.declare_damaged("once more")
        await node.until(lambda: node.repairs.postponed == 1)
        await node.turns()
        assert node.here() is partition
        # Later a replacement is allowed again, without a restart.
        node.clock.now += RENEWALS_S + 1
        await repaired(node, partition)
        assert node.repairs.postponed == 0

    async def test_a_full_disk_is_waited_for(self, node: OneNode) -> None:
        before = await filled(node, 1, 2)
        node.change(leader=2)
        node.disk.capacity_bytes = node.disk.used_bytes()
        before.log.declare_damaged("a bit has flipped")
        await node.turns(500)
        assert node.repairs.under_way == 1
        assert len({path.split("/")[2] for path in node.files("damaged")}) <= 1
        node.disk.capacity_bytes = None
        after = await repaired(node, before)
        assert after.log.state is LogState.ONLINE
        assert after.log_end_offset == 0

    async def test_what_found_no_room_does_not_count(self, node: OneNode) -> None:
        before = await filled(node, 1, 2)
        for _ in range(RENEWALS_MAX + 1):
            node.disk.fail_next("rename", f"replicas/{topic_id(0)}/0", DiskFullError)
        before.log.declare_damaged("a bit has flipped")
        await node.until(lambda: node.files("damaged") and not node.repairs.under_way)
        assert node.here().log.state is LogState.ONLINE
        assert node.here().log_end_offset == 0

    async def test_a_replica_that_found_no_room_to_begin_begins_later(self, node: OneNode) -> None:
        node.disk.capacity_bytes = node.disk.used_bytes()
        node.create(1, 2)
        await node.settled()
        with pytest.raises(LogError) as refused:
            node.replicas.partition("t", 0)
        assert refused.value.entry is DISK_FULL or node.row().leader == 2
        await node.until(lambda: node.row().leader == 2)
        node.disk.capacity_bytes = None
        await node.until(lambda: node.replica() is not None)
        assert node.streams.followed == {node.here(): (2, 1)}
        await node.until(lambda: not node.repairs.under_way)

    async def test_so_does_the_only_one(self, node: OneNode) -> None:
        node.disk.fail_next("append", "", DiskFullError)
        node.disk.fail_next("replace", "", DiskFullError)
        node.create(1)
        await node.settled()
        await node.until(lambda: node.replica() is not None)
        assert node.failed == []
        assert node.here().is_leader

    async def test_what_is_deleted_meanwhile_is_not_repaired(self, node: OneNode) -> None:
        before = await filled(node, 1)
        await fail(node, before)
        await node.turns(20)
        assert node.repairs.under_way == 1
        node.delete()
        await node.until(lambda: not node.repairs.under_way)
        await node.settled()


class TestLosses:
    async def lost(self, node: OneNode, *replicas: int) -> None:
        """A power cut took acknowledged records that were not synced."""
        node.defaults["flush"] = "async"
        await node.close()
        await node.open()
        node.create(*replicas)
        await node.settled()
        await node.here().append(one(b"a"), acks=Acks.LEADER, timeout_s=60)
        await node.repairs.close()
        await node.replicas.close()
        node.disk.crash(power=True)

    async def test_it_is_out_of_all_sets_before_it_takes_part(self, node: OneNode) -> None:
        await self.lost(node, 1, 2)
        await node.open()
        assert node.here().loss_gate.may_have_lost_data
        assert not node.here().is_leader
        node.refusals = [LogError(NO_CONTROLLER, "nobody")]
        node.on_fail = lambda: (
            None if node.here().loss_gate.may_have_lost_data else node.fatal.append("early")
        )
        await node.repairs.report_losses()
        assert node.failed == [[KEY], [KEY]]
        assert node.row().isr == (2,)
        assert not node.here().loss_gate.may_have_lost_data
        assert node.streams.followed == {node.here(): (2, node.row().leader_epoch)}

    async def test_it_takes_part_once_a_restart_would_know_that_it_may(self, node: OneNode) -> None:
        await self.lost(node, 1, 2)
        await node.open()
        for _ in range(3):
            node.disk.fail_next("append", "checkpoints", DiskFullError)
        follows: list[bool] = []
        publish = node.here().log._publish

        async def watched() -> None:
            follows.append(
                bool(node.streams.followed) or not node.here().loss_gate.may_have_lost_data
            )
            await publish()

        node.here().log._publish = watched
        await node.repairs.report_losses()
        await node.until(lambda: not node.here().loss_gate.may_have_lost_data)
        assert follows == [False] * 4
        assert node.failed == [[KEY]], "a leader epoch each time"
        assert node.streams.followed == {node.here(): (2, node.row().leader_epoch)}
        await node.repairs.close()
        await node.replicas.close()
        node.disk.crash(power=False)
        await node.open()
        assert not node.here().loss_gate.may_have_lost_data

    async def test_what_comes_back_later_is_reported_then(self, node: OneNode) -> None:
        # No replica at the start; the files were kept as a stray.
        await self.lost(node, 1, 2)
        node.change(replicas=(2,), isr=(2,), leader=2)
        await node.open()
        await node.repairs.report_losses()
        assert node.failed == []
        node.change(replicas=(2, 1))
        await node.settled()
        await node.until(lambda: node.failed and not node.repairs.under_way)
        assert node.failed == [[KEY]]
        assert not node.here().loss_gate.may_have_lost_data
        assert node.streams.followed == {node.here(): (2, node.row().leader_epoch)}

    async def test_the_only_replica_is_reported_too_and_leads_once_elected(
        self, node: OneNode
    ) -> None:
        await self.lost(node, 1)
        await node.open()
        await node.repairs.report_losses()
        assert node.failed == [[KEY]]
        assert node.row().isr == ()
        assert node.here().log.possible_loss is None
        assert not node.here().is_leader
        node.change(leader=1, isr=(1,), unclean=True)
        assert node.here().is_leader


async def test_what_it_did_not_expect_ends_the_node(node: OneNode) -> None:
    before = await filled(node, 1, 2)

    def broken() -> None:
        raise AssertionError("broken")

    node.on_fail = broken
    await fail(node, before)
    await node.until(lambda: node.fatal)
    assert "broken" in node.fatal.pop()


async def test_nothing_begins_once_it_is_closed(node: OneNode) -> None:
    before = await filled(node, 1, 2)
    await node.repairs.close()
    await fail(node, before)
    await node.turns(20)
    assert node.failed == []
    assert not node.repairs.under_way
