"""Whole nodes with failed, full or damaged disks: the others go on."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from raftlog.record.errors import DISK_FULL, LogError
from raftlog.replication.partition import Acks
from raftlog.storage.maintenance import CHECKPOINT_INTERVAL_S
from tests.simulation.node_world import POLL_S, NodeWorld, simulate_cluster
from tests.simulation.records import Ledger

ROOM_BYTES: Final = 64 * 1024


async def append(nodes: NodeWorld, node_id: int, number: int, ledger: Ledger) -> None:
    await nodes.call(
        node_id,
        lambda core: ledger.append(
            core.services.replicas.partition("t", number),
            Acks.ALL,
            nodes.world.random("append"),
        ),
    )


@pytest.mark.parametrize("is_controller", [False, True])
def test_a_node_whose_metadata_cannot_be_synced_ends(is_controller: bool) -> None:
    async def test(nodes: NodeWorld) -> None:
        controller = await nodes.until(nodes.controller)
        victim = controller if is_controller else nodes.others(controller)[0]
        nodes.world.disk(victim).fail_next("sync", "metadata/journal")
        other = nodes.others(victim)[0]
        # The others commit the victim's proposals without the victim.
        while nodes.world.is_up(victim):
            try:
                await nodes.call(other, lambda core: core.services.metadata.allocate_producer_id())
                await nodes.create_topic(other, f"t-{nodes.world.loop.steps}")
            except LogError as error:
                assert error.entry.outcome_unknown or error.entry.retriable, error
        assert "DiskError" in await nodes.ended(victim)
        await nodes.ready(*nodes.others(victim))
        nodes.start(victim)
        await nodes.ready()
        await nodes.agreed()

    simulate_cluster(test, may_end=True)


def test_a_node_with_a_damaged_journal_refuses_to_start() -> None:
    async def test(nodes: NodeWorld) -> None:
        await nodes.create_topic(1, "t", partitions=3)
        nodes.kill(3)
        size = len(nodes.world.disk(3).contents("metadata/journal"))
        nodes.world.disk(3).flip_bit("metadata/journal", 8 * (size // 2))
        before = nodes.world.disk(3).contents("metadata/journal")
        nodes.start(3)
        assert "damaged" in await nodes.ended(3)
        assert nodes.world.disk(3).contents("metadata/journal") == before, "the evidence is kept"
        await nodes.ready(1, 2)

    simulate_cluster(test, may_end=True)


async def fill(nodes: NodeWorld, victim: int) -> tuple[int, Ledger]:
    """Fill a node's disk with records; return their partition and values."""
    number = await nodes.create_led_by(victim, "t")
    await nodes.until(lambda: nodes.takes_writes(victim, "t", number))
    ledger, disk = Ledger(), nodes.world.disk(victim)
    disk.capacity_bytes = disk.used_bytes() + ROOM_BYTES
    with pytest.raises(LogError) as caught:
        while True:
            await append(nodes, victim, number, ledger)
    assert caught.value.entry is DISK_FULL
    return number, ledger


async def read(nodes: NodeWorld, node_id: int, number: int, ledger: Ledger) -> None:
    partition = nodes.cores[node_id].services.replicas.partition("t", number)
    await nodes.call(node_id, lambda _: ledger.check(partition))


async def has_room(nodes: NodeWorld, node_id: int, number: int, ledger: Ledger) -> None:
    """Append at last: the node looks for room from time to time."""
    for _ in range(100):
        try:
            await append(nodes, node_id, number, ledger)
        except LogError as error:
            assert error.entry is DISK_FULL
            await asyncio.sleep(POLL_S)
        else:
            return
    raise AssertionError(f"node {node_id} has not found that there is room")


async def is_changed(nodes: NodeWorld, node_id: int, name: str) -> bool:
    """Create a topic at a node, with retries while there is no leader; whether created."""
    for _ in range(50):
        try:
            await nodes.create_topic(node_id, name)
        except LogError as error:
            assert error.entry.retriable or error.entry.outcome_unknown or error.entry is DISK_FULL
            await asyncio.sleep(0.1)
        else:
            return True
    return False


def test_a_full_disk_stops_the_writes_of_its_node_alone_and_not_the_reads() -> None:
    async def test(nodes: NodeWorld) -> None:
        controller = await nodes.until(nodes.controller)
        victim = nodes.others(controller)[0]
        number, ledger = await fill(nodes, victim)
        for other in nodes.others(victim):
            assert await is_changed(nodes, other, f"from-{other}")
        await asyncio.sleep(5)
        await read(nodes, victim, number, ledger)
        nodes.world.disk(victim).capacity_bytes = None
        await nodes.ready()
        await has_room(nodes, victim, number, ledger)
        await read(nodes, victim, number, ledger)
        await nodes.agreed()
        nodes.check_endings()

    simulate_cluster(test, may_end=True)


@pytest.mark.parametrize("is_checkpointed", [True, False])
def test_a_node_with_a_full_disk_serves_reads_after_a_restart(is_checkpointed: bool) -> None:
    """Up to the checkpointed high watermark: only a lease may move it, and that takes room."""

    async def test(nodes: NodeWorld) -> None:
        controller = await nodes.until(nodes.controller)
        victim = nodes.others(controller)[0]
        number, ledger = await fill(nodes, victim)
        if is_checkpointed:
            await asyncio.sleep(2 * CHECKPOINT_INTERVAL_S)
        nodes.kill(victim)
        nodes.start(victim)
        await nodes.until(lambda: nodes.is_ready(victim))
        partition = nodes.cores[victim].services.replicas.partition("t", number)
        if is_checkpointed:
            await read(nodes, victim, number, ledger)
        else:
            assert partition.high_watermark == 0
            assert partition.log_end_offset > max(ledger.acknowledged)
        nodes.world.disk(victim).capacity_bytes = None
        await nodes.until(lambda: nodes.takes_writes(victim, "t", number))
        await read(nodes, victim, number, ledger)

    simulate_cluster(test, may_end=True)


def test_the_metadata_can_be_changed_though_the_controllers_disk_is_full() -> None:
    async def test(nodes: NodeWorld) -> None:
        controller = await nodes.until(nodes.controller)
        await fill(nodes, controller)
        for other in nodes.others(controller):
            assert await is_changed(nodes, other, f"from-{other}")

    simulate_cluster(test, may_end=True)
