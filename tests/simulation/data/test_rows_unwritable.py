"""Rows 18 and 19 of FAULTS.md, for leaders: a full or hanging disk costs its node the lead.

Only the node itself knows its disk. So the node reports it, and others take over leadership where
possible, though the node lives, answers, and stays a member of the quorum.
"""

from __future__ import annotations

import asyncio

import pytest

from raftlog.storage.disk_health import STEADY_S
from tests.simulation.data.data_world import DataWorld, Part, simulate_data
from tests.simulation.data.test_rows_processes import written

T, U = Part("t", 0), Part("u", 0)
FULL_RESUME_S = 6.0
"""Until the leader is another, and the full replica is not waited for any more."""
HANG_RESUME_S = 10.0
"""Likewise, plus the time until the sync counts as too slow."""
ROOMS = [0, 3_000, 4 << 20]
"""Bytes that fit on a full disk: metadata at most, since appends leave a reserve."""


async def _led_by_controller(data: DataWorld, *, is_controller: bool) -> int:
    """Let the leader of T, or another node, lead the quorum; return the leader of T."""
    leader = await data.led(T)
    wanted = leader if is_controller else data.nodes.others(leader)[0]
    controller = await data.nodes.until(data.nodes.controller)
    if controller != wanted:
        await data.nodes.call(controller, lambda core: core.quorum.transfer_leadership(wanted))
        await data.nodes.until(lambda: data.nodes.controller() == wanted)
    return leader


@pytest.mark.parametrize("is_controller", [False, True])
@pytest.mark.parametrize("room", ROOMS)
def test_row_18_a_leader_whose_disk_is_full_gives_the_lead_to_one_with_room(
    room: int, *, is_controller: bool
) -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        await data.create("u", [[2, 3, 1]])
        leader = await _led_by_controller(data, is_controller=is_controller)
        clients = await written(data, 12.0)
        disk = data.world.disk(leader)
        disk.capacity_bytes = disk.used_bytes() + room
        await data.led(T, *data.nodes.others(leader), seconds=FULL_RESUME_S)
        await data.write(T, within_s=FULL_RESUME_S)
        assert data.row(T).leader != leader
        # Still there: no broker was fenced, and the node gets no lead without space.
        assert not data.nodes.is_fenced(leader)
        await data.write(U, within_s=FULL_RESUME_S)
        disk.capacity_bytes = None
        await clients

    simulate_data(test)


@pytest.mark.parametrize("is_controller", [False, True])
def test_row_19_a_leader_whose_disk_hangs_gives_the_lead_to_another(*, is_controller: bool) -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        leader = await _led_by_controller(data, is_controller=is_controller)
        clients = await written(data, 16.0)
        data.world.times(leader).stick(20.0)
        await data.led(T, *data.nodes.others(leader), seconds=HANG_RESUME_S)
        await data.write(T, within_s=HANG_RESUME_S)
        assert not data.nodes.is_fenced(leader)
        # The node may not know the new leaders yet, and must not accept records that would be lost.
        assert not data.nodes.takes_writes(leader, "t")
        await clients

    simulate_data(test)


def test_leaderships_return_once_there_has_been_room_for_a_while() -> None:
    async def test(data: DataWorld) -> None:
        delay = {"leader.rebalance.delay.ms": "500"}
        await data.nodes.call(1, lambda core: core.services.metadata.alter_cluster_settings(delay))
        await data.create("t", [[1, 2, 3]])
        await data.write(T)
        disk = data.world.disk(1)
        disk.capacity_bytes = disk.used_bytes()
        await data.led(T, 2, 3, seconds=FULL_RESUME_S)
        epoch = data.row(T).leader_epoch
        # Space that comes and goes moves no leader.
        for _ in range(4):
            disk.capacity_bytes = None
            await asyncio.sleep(STEADY_S - 1.0)
            assert data.row(T).leader_epoch == epoch
            disk.capacity_bytes = disk.used_bytes()
            await asyncio.sleep(1.0)
        disk.capacity_bytes = None
        await data.led(T, 1)

    simulate_data(test)


def test_new_topics_are_led_by_those_with_room() -> None:
    async def test(data: DataWorld) -> None:
        full = data.nodes.others(await data.nodes.until(data.nodes.controller))[0]
        disk = data.world.disk(full)
        disk.capacity_bytes = disk.used_bytes()
        await data.nodes.until(
            lambda: all(
                data.nodes.cores[n].controller.unwritable == {full} for n in data.nodes.others(full)
            )
        )
        asked = data.nodes.others(full)[0]
        topic = await data.nodes.call(
            asked, lambda core: core.services.metadata.create_topic("n", partitions=4)
        )
        assert full not in {row.replicas[0] for row in topic.partitions}
        data.parts += [Part("n", number) for number in range(4)]
        disk.capacity_bytes = None

    simulate_data(test)


def test_the_only_one_in_sync_leads_on_with_a_full_disk_and_its_records_stay() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2]], {"min.insync.replicas": "1"})
        await data.write(T, 3)
        data.nodes.kill(2)
        await data.isr(T, 1)
        disk = data.world.disk(1)
        disk.capacity_bytes = disk.used_bytes()
        await asyncio.sleep(3.0)
        assert data.leader(T) == 1
        disk.capacity_bytes = None
        await data.write(T)
        data.nodes.start(2)

    simulate_data(test, voter_count=3)
