"""Deletions on request, and files that must survive missing metadata."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.record.errors import LogError
from raftlog.record.types import Offset
from tests.simulation.data.consumers import Consumer
from tests.simulation.data.data_world import DataWorld, Part, ask, simulate_data
from tests.simulation.data.test_rows_epochs import lone_write
from tests.verification.log_history import Deletion

T = Part("t", 0)


async def delete_records(data: DataWorld, before: int) -> None:
    """Have the records below an offset deleted."""
    data.history.append(Deletion(partition=str(T), before=before))
    leader = await data.led(T)
    await ask(
        data,
        leader,
        lambda core: core.services.partitions.find("t", 0).delete_records(Offset(before)),
    )


def test_a_log_that_parted_below_the_start_of_its_leader_shows_nothing_of_it() -> None:
    """The start of the epoch that replaced the records is not known any more."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        await data.write(T, 3)
        await data.in_sync()
        data.nodes.cut_off(1)
        for number in range(60):
            await lone_write(data, f"lone-{number}", 1, 1)
        leader = await data.led(T, 2, 3)
        for _ in range(60):
            await data.write(T)
        # Far enough to delete files.
        await delete_records(data, 40)
        assert data.paths(leader, T)[0].rpartition("/")[2] > f"{3:020}.log"
        data.world.network.heal()
        await data.in_sync()
        assert data.replica(1, T).log_start_offset == 40  # type: ignore[union-attr]

    simulate_data(test)


@pytest.mark.parametrize("power", [False, True])
def test_producers_are_known_though_their_records_are_deleted(power: bool) -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        producer = data.producer("p")
        for _ in range(30):
            await producer.send(T, 3)
        await data.in_sync()
        await delete_records(data, 90)
        for node_id in data.nodes.node_ids:
            data.nodes.kill(node_id, power=power)
        for node_id in data.nodes.node_ids:
            data.nodes.start(node_id)
        await data.nodes.ready()
        send = await producer.send(T, 1)
        assert send is not None and send.outcome == "ok", send

    simulate_data(test)


def test_a_topic_of_the_same_name_has_nothing_of_the_one_before() -> None:
    """Also on a node that was down during the deletion and the creation."""

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        first = data.topic("t").topic_id
        await data.write(T, 5)
        await data.in_sync()
        data.nodes.kill(3)
        await ask(data, 1, lambda core: core.services.metadata.delete_topic("t"))
        data.parts.clear()
        data.history.clear()
        await data.create("t", [[1, 2, 3]])
        await data.write(T, 2)
        data.nodes.start(3)
        await data.in_sync()
        reader = Consumer(data, "c", T, near=1.0)
        reader.seek(0)
        assert len(await reader.poll(3, near=True) or ()) == 2
        await data.nodes.until(lambda: not _under(data, 3, first))

    simulate_data(test)


def test_row_16_what_the_metadata_does_not_name_is_kept() -> None:
    """The broker was down during the reassignment: its replica may be the only copy by now."""

    async def test(data: DataWorld) -> None:
        topic = await data.create("t", [[1, 2, 3]])
        await data.write(T, 5)
        await data.in_sync()
        data.nodes.kill(3)
        kept = _under(data, 3, topic.topic_id)
        await data.isr(T, 1, 2)
        await data.reassign(T, [1, 2, 4])
        await data.nodes.until(lambda: set(data.row(T).replicas) == {1, 2, 4})
        data.nodes.start(3)
        await data.nodes.ready()
        await asyncio.sleep(2.0)
        assert _under(data, 3, topic.topic_id) == kept, "what nobody names was deleted"

    simulate_data(test, node_count=4)


def test_row_16_a_node_that_has_lost_its_metadata_touches_nothing() -> None:
    async def test(data: DataWorld) -> None:
        topic = await data.create("t", [[1, 2, 4]])
        await data.write(T, 5)
        await data.in_sync()
        data.nodes.kill(4)
        disk = data.world.disk(4)
        journal = disk.contents("metadata/journal")
        disk.remove("metadata/journal")
        kept = _under(data, 4, topic.topic_id)
        data.nodes.start(4)
        assert "its metadata/journal is missing" in await data.nodes.ended(4)
        assert _under(data, 4, topic.topic_id) == kept
        # Restored, the node serves as before.
        disk.put("metadata/journal", journal)
        data.nodes.start(4)
        await data.in_sync()

    simulate_data(test, node_count=4, may_end=True)


def test_deleted_records_are_out_of_range() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        await data.write(T, 5)
        await data.in_sync()
        await delete_records(data, 3)
        reader = Consumer(data, "c", T)
        reader.seek(2)
        assert await reader.poll(1) is None
        assert reader.position == 3
        with pytest.raises(LogError, match="can be deleted up to the high watermark"):
            await delete_records(data, 9)
        data.history.pop()

    simulate_data(test)


def _under(data: DataWorld, node_id: int, topic_id: str) -> dict[str, bytes]:
    """The files of a topic's replicas on a node."""
    disk = data.world.disk(node_id)
    return {
        path: disk.contents(path)
        for path in disk.paths()
        if path.startswith(f"replicas/{topic_id}/")
    }
