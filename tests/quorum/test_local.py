from __future__ import annotations

import asyncio
import json
import re

import pytest

from raftlog.quorum import Applied, LocalQuorum, LocalQuorumLimits, Quorum, Refused, Unknown
from raftlog.quorum.snapshot import Snapshot, encode_snapshot
from raftlog.record.errors import (
    BODY_TOO_LARGE,
    DISK_FULL,
    NOT_READY,
    OVERLOADED,
    STORAGE_FAILED,
    LogError,
)
from raftlog.world import DiskError, DiskFullError
from tests.quorum.machine import RecordingMachine
from tests.simulation.disk import MachineStoppedError, SimulatedDisk

JOURNAL = "metadata/journal"
SNAPSHOT = "metadata/snapshot"
SMALL = LocalQuorumLimits(snapshot_entries=4)


async def opened(
    disk: SimulatedDisk, limits: LocalQuorumLimits | None = None
) -> tuple[LocalQuorum[str], RecordingMachine]:
    machine = RecordingMachine()
    return await LocalQuorum.open(disk, "metadata", machine, limits), machine


async def propose_all(quorum: Quorum[str], *commands: bytes) -> None:
    for command in commands:
        assert isinstance(await quorum.propose(command), Applied)


async def snapshot_taken(quorum: LocalQuorum[str], index: int) -> None:
    """Until the snapshot is durable and the journal trimmed; the disk does all of it in steps."""
    for _ in range(100):
        if quorum.status().snapshot_index >= index and not quorum._trim_due:
            return
        await asyncio.sleep(0)
    raise AssertionError("no snapshot was taken")


async def test_proposals_are_applied_in_order_from_index_one() -> None:
    quorum, machine = await opened(SimulatedDisk())
    assert await quorum.propose(b"a") == Applied(1, "result 1")
    assert await quorum.propose(b"b") == Applied(2, "result 2")
    assert machine.commands == [(1, b"a"), (2, b"b")]
    assert quorum.applied_index == await quorum.read_barrier() == 2
    await quorum.close()


async def test_restart_replays_what_was_applied() -> None:
    disk = SimulatedDisk()
    quorum, _ = await opened(disk)
    await propose_all(quorum, b"a", b"b")
    await quorum.close()
    quorum, machine = await opened(disk)
    assert machine.values == [b"a", b"b"]
    assert await quorum.propose(b"c") == Applied(3, "result 3")
    await quorum.close()


async def test_term_grows_by_one_at_each_start() -> None:
    disk = SimulatedDisk()
    for start in range(1, 5):
        quorum, _ = await opened(disk)
        assert quorum.status().term == start
        await quorum.close()
        disk.crash(power=True)


async def test_nothing_is_applied_before_it_is_durable() -> None:
    disk = SimulatedDisk()
    quorum, machine = await opened(disk)
    synced: list[int] = []
    apply = machine.apply

    def spy(index: int, command: bytes) -> str:
        synced.append(disk.syncs[JOURNAL])
        return apply(index, command)

    machine.apply = spy  # type: ignore[method-assign]  # a spy, for this one test
    await propose_all(quorum, b"a", b"b")
    assert synced == [1, 2]
    await quorum.close()


async def test_concurrent_proposals_share_a_sync() -> None:
    disk = SimulatedDisk()
    quorum, machine = await opened(disk)
    commands = [str(number).encode() for number in range(500)]
    outcomes = await asyncio.gather(*(quorum.propose(command) for command in commands))
    assert [outcome.index for outcome in outcomes if isinstance(outcome, Applied)] == list(
        range(1, 501)
    )
    assert machine.values == commands
    assert disk.syncs[JOURNAL] <= 2
    await quorum.close()


async def test_round_is_bounded_by_bytes() -> None:
    disk = SimulatedDisk()
    quorum, _ = await opened(disk, LocalQuorumLimits(round_bytes_max=100))
    await asyncio.gather(*(quorum.propose(b"x" * 40) for _ in range(6)), quorum.propose(b"y" * 300))
    assert disk.syncs[JOURNAL] == 4
    await quorum.close()


async def test_the_event_loop_never_waits_for_the_disk() -> None:
    disk = SimulatedDisk(yields=True)
    quorum, _ = await opened(disk, SMALL)
    await propose_all(quorum, *(b"%d" % number for number in range(20)))
    await quorum.close()
    quorum, _ = await opened(disk, SMALL)
    await quorum.close()
    assert disk.slow_outside_run == []


async def test_cancelled_wait_does_not_withdraw_the_command() -> None:
    quorum, machine = await opened(SimulatedDisk())
    waiting = asyncio.create_task(quorum.propose(b"a"))
    await asyncio.sleep(0)
    waiting.cancel()
    assert await quorum.propose(b"b") == Applied(2, "result 2")
    assert machine.values == [b"a", b"b"]
    await quorum.close()


async def test_failed_sync_stops_for_good() -> None:
    disk = SimulatedDisk(yields=True)
    quorum, machine = await opened(disk)
    told: list[str] = []
    quorum.on_failed(told.append)
    await propose_all(quorum, b"a")
    disk.fail_next("sync", JOURNAL)
    first = asyncio.create_task(quorum.propose(b"b"))
    for _ in range(20):
        if disk.syncs[JOURNAL] == 2:
            break
        await asyncio.sleep(0)
    second = asyncio.create_task(quorum.propose(b"c"))
    assert isinstance(await first, Unknown)
    outcome = await second
    assert isinstance(outcome, Refused) and outcome.entry is STORAGE_FAILED
    later = await quorum.propose(b"d")
    assert isinstance(later, Refused) and later.entry is STORAGE_FAILED
    assert machine.values == [b"a"]
    assert disk.syncs[JOURNAL] == 2, "a failed sync must not be tried again"
    assert told == [quorum.status().failure]
    quorum.on_failed(told.append)
    assert len(told) == 2
    with pytest.raises(LogError):
        await quorum.read_barrier()
    await quorum.close()
    assert disk.syncs[JOURNAL] == 2


async def test_entries_of_a_failed_sync_are_not_trusted_from_the_cache() -> None:
    # The kernel counts the pages of a failed sync as clean: reading and syncing them again after a
    # restart succeeds, and a power cut then loses them all the same.
    disk = SimulatedDisk()
    quorum, _ = await opened(disk)
    disk.fail_next("sync", JOURNAL)
    assert isinstance(await quorum.propose(b"a"), Unknown)
    await quorum.close()
    disk.crash(power=False)
    quorum, machine = await opened(disk)
    seen = machine.values
    await propose_all(quorum, b"b")
    disk.crash(power=True)
    quorum, machine = await opened(disk)
    assert machine.values == [*seen, b"b"]
    await quorum.close()


async def test_exception_of_the_state_machine_stops_for_good() -> None:
    disk = SimulatedDisk()
    quorum, machine = await opened(disk)
    machine.fail_at = b"b"
    outcomes = await asyncio.gather(*(quorum.propose(command) for command in (b"a", b"b", b"c")))
    assert outcomes[0] == Applied(1, "result 1")
    assert [type(outcome) for outcome in outcomes[1:]] == [Unknown, Unknown]
    assert re.search("a defect in the state machine", quorum.status().failure or "")
    await quorum.close()


async def test_command_that_cannot_be_replayed_keeps_the_quorum_from_starting() -> None:
    disk = SimulatedDisk()
    quorum, _ = await opened(disk)
    await propose_all(quorum, b"a", b"new kind", b"c")
    await quorum.close()
    old = RecordingMachine()
    old.fail_at = b"new kind"
    with pytest.raises(RuntimeError):
        await LocalQuorum.open(disk, "metadata", old)
    # The upgraded one finds everything.
    quorum, machine = await opened(disk)
    assert machine.values == [b"a", b"new kind", b"c"]
    await quorum.close()


async def test_full_disk_refuses_and_recovers() -> None:
    disk = SimulatedDisk()
    quorum, machine = await opened(disk)
    await propose_all(quorum, b"a")
    disk.capacity_bytes = disk.used_bytes()
    refused = await quorum.propose(b"b")
    assert isinstance(refused, Refused) and refused.entry is DISK_FULL
    disk.capacity_bytes = None
    assert await quorum.propose(b"c") == Applied(2, "result 2")
    assert machine.values == [b"a", b"c"]
    await quorum.close()


async def test_quorum_starts_on_a_full_disk_and_writes_once_there_is_room() -> None:
    disk = SimulatedDisk()
    quorum, _ = await opened(disk)
    await propose_all(quorum, b"a")
    term = quorum.status().term
    disk.crash(power=False)
    disk.capacity_bytes = disk.used_bytes()
    quorum, machine = await opened(disk)
    assert machine.values == [b"a"]
    refused = await quorum.propose(b"b")
    assert isinstance(refused, Refused) and refused.entry is DISK_FULL
    disk.capacity_bytes = None
    assert await quorum.propose(b"c") == Applied(2, "result 2")
    assert quorum.status().term == term + 1
    await quorum.close()
    quorum, machine = await opened(disk)
    assert machine.values == [b"a", b"c"]
    await quorum.close()


async def test_what_a_start_on_a_full_disk_has_shown_is_durable() -> None:
    for seed in range(20):
        disk = SimulatedDisk(seed)
        quorum, _ = await opened(disk)
        await propose_all(quorum, b"a")
        disk.crash_in(2)  # the entry is written; the machine stops in the sync
        assert isinstance(await quorum.propose(b"b"), Unknown)
        disk.crash(power=False)
        disk.capacity_bytes = disk.used_bytes()
        quorum, machine = await opened(disk)
        shown = machine.values
        disk.crash(power=True)
        disk.capacity_bytes = None
        quorum, machine = await opened(disk)
        assert machine.values == shown == [b"a", b"b"]
        await quorum.close()


async def test_close_leaves_a_durable_witness_of_the_last_entry() -> None:
    for seed in range(20):
        disk = SimulatedDisk(seed)
        quorum, _ = await opened(disk)
        start = quorum.status().journal_bytes
        await propose_all(quorum, b"a")
        await quorum.close()
        disk.crash(power=True)
        disk.flip_bit(JOURNAL, start * 8)
        assert f"damaged at byte {start}" in await damaged_start(disk)


async def test_no_room_for_a_mark_is_no_failure() -> None:
    disk = SimulatedDisk()
    quorum, _ = await opened(disk)
    disk.fail_next("append", JOURNAL, DiskFullError)
    quorum._store.mark()
    await propose_all(quorum, b"a")
    await quorum.close()


async def test_snapshot_shortens_the_journal_and_restores() -> None:
    disk = SimulatedDisk()
    quorum, _ = await opened(disk, SMALL)
    before = quorum.status().journal_bytes
    await propose_all(quorum, b"a", b"b", b"c", b"d")
    await snapshot_taken(quorum, 4)
    assert quorum.status().journal_bytes == before
    await propose_all(quorum, b"e")
    await quorum.close()
    quorum, machine = await opened(disk, SMALL)
    assert machine.restored_index == 4
    assert machine.values == [b"a", b"b", b"c", b"d", b"e"]
    assert quorum.status().snapshot_index == 4
    await quorum.close()


async def test_snapshot_is_taken_after_bytes_too() -> None:
    disk = SimulatedDisk()
    quorum, _ = await opened(disk, LocalQuorumLimits(snapshot_bytes=1000))
    await propose_all(quorum, b"x" * 2000)
    await snapshot_taken(quorum, 1)
    assert quorum.status().journal_bytes < 1000
    await quorum.close()


async def test_proposals_go_on_while_a_snapshot_is_written() -> None:
    disk = SimulatedDisk(seed=3, yields=True)
    quorum, _ = await opened(disk, SMALL)
    commands = [b"%d" % number for number in range(60)]
    for first in range(0, 60, 3):
        await asyncio.gather(*(quorum.propose(c) for c in commands[first : first + 3]))
    await quorum.close()
    assert quorum.status().snapshot_index > 0
    quorum, machine = await opened(disk, SMALL)
    assert machine.values == commands
    await quorum.close()


async def test_failed_snapshot_stops_for_good() -> None:
    disk = SimulatedDisk()
    quorum, _ = await opened(disk, SMALL)
    disk.fail_next("sync", SNAPSHOT)
    await propose_all(quorum, b"a", b"b", b"c", b"d")
    await asyncio.sleep(0)
    assert isinstance(await quorum.propose(b"e"), Refused)
    await quorum.close()
    quorum, machine = await opened(disk)
    assert machine.values == [b"a", b"b", b"c", b"d"]
    await quorum.close()


async def test_snapshot_without_room_is_tried_again() -> None:
    disk = SimulatedDisk()
    limits = LocalQuorumLimits(snapshot_entries=2, journal_bytes_max=700)
    quorum, machine = await opened(disk, limits)
    for number in range(10):
        # Room for the journal, none for the snapshot.
        disk.fail_next("append", SNAPSHOT, DiskFullError)
        outcome = await quorum.propose(b"%d" % number)
        await asyncio.sleep(0)
    assert isinstance(outcome, Refused) and outcome.entry is DISK_FULL
    disk._failures.clear()
    for _ in range(20):
        if isinstance(await quorum.propose(b"again"), Applied):
            break
        await asyncio.sleep(0)
    assert quorum.status().snapshot_index > 0
    values = machine.values
    await quorum.close()
    quorum, machine = await opened(disk, limits)
    assert machine.values == values
    await quorum.close()


async def test_too_large_and_too_many_proposals_are_refused() -> None:
    limits = LocalQuorumLimits(command_bytes_max=10, proposals_max=3, proposal_bytes_max=25)
    quorum, _ = await opened(SimulatedDisk(), limits)
    large = await quorum.propose(b"x" * 11)
    assert isinstance(large, Refused) and large.entry is BODY_TOO_LARGE
    many = await asyncio.gather(*(quorum.propose(b"x") for _ in range(5)))
    assert [type(outcome) for outcome in many] == [Applied] * 3 + [Refused] * 2
    heavy = await asyncio.gather(*(quorum.propose(b"x" * 10) for _ in range(3)))
    assert [type(outcome) for outcome in heavy] == [Applied] * 2 + [Refused]
    assert isinstance(heavy[2], Refused) and heavy[2].entry is OVERLOADED
    await quorum.close()


async def test_close_finishes_what_was_proposed_and_refuses_the_rest() -> None:
    quorum, machine = await opened(SimulatedDisk(yields=True))
    proposals = [asyncio.create_task(quorum.propose(b"%d" % number)) for number in range(5)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(quorum.close())
    await asyncio.sleep(0)
    late = await quorum.propose(b"late")
    assert isinstance(late, Refused) and late.entry is NOT_READY
    await closing
    for proposal in proposals:
        assert isinstance(await proposal, Applied)
    assert len(machine.values) == 5
    await quorum.close()


async def damaged_start(disk: SimulatedDisk) -> str:
    machine = RecordingMachine()
    before = {path: disk.contents(path) for path in (JOURNAL, SNAPSHOT) if disk.exists(path)}
    with pytest.raises(LogError) as raised:
        await LocalQuorum.open(disk, "metadata", machine)
    assert raised.value.entry is STORAGE_FAILED
    assert machine.values == []
    after = {path: disk.contents(path) for path in (JOURNAL, SNAPSHOT) if disk.exists(path)}
    assert after == before, "evidence must not be changed"
    return raised.value.message


async def test_every_flipped_bit_keeps_all_that_was_acknowledged_or_stops() -> None:
    source = SimulatedDisk()
    quorum, _ = await opened(source)
    await propose_all(quorum, b"a", b"b")
    await quorum.close()
    content = source.contents(JOURNAL)
    stopped = 0
    for bit in range(len(content) * 8):
        disk = SimulatedDisk()
        disk.make_directory("metadata")
        disk.put(JOURNAL, content)
        disk.flip_bit(JOURNAL, bit)
        machine = RecordingMachine()
        try:
            quorum = await LocalQuorum.open(disk, "metadata", machine)
        except LogError:
            stopped += 1
        else:
            assert machine.values == [b"a", b"b"]
            await quorum.close()
    assert stopped > len(content) * 4


async def test_lost_parts_stop() -> None:
    disk = SimulatedDisk()
    quorum, _ = await opened(disk, SMALL)
    await propose_all(quorum, *(b"%d" % number for number in range(4)))
    await snapshot_taken(quorum, 4)
    await propose_all(quorum, b"5")
    await quorum.close()
    journal, snapshot = disk.contents(JOURNAL), disk.contents(SNAPSHOT)

    disk.put(JOURNAL, b"")
    assert "no valid header" in await damaged_start(disk)
    disk.remove(JOURNAL)
    assert "is missing" in await damaged_start(disk)
    disk.put(JOURNAL, journal)
    disk.remove(SNAPSHOT)
    assert "begins after entry 4" in await damaged_start(disk)
    disk.put(SNAPSHOT, snapshot[:-1])
    assert "snapshot is damaged" in await damaged_start(disk)
    other = SimulatedDisk()
    quorum, _ = await opened(other)
    await propose_all(quorum, b"1")
    await quorum.close()
    disk.put(SNAPSHOT, snapshot)
    disk.put(JOURNAL, other.contents(JOURNAL))
    assert "ends with entry 1" in await damaged_start(disk)

    disk.put(JOURNAL, journal)
    quorum, machine = await opened(disk, SMALL)
    assert machine.values == [b"0", b"1", b"2", b"3", b"5"]
    await quorum.close()


async def test_start_builds_on_no_name_that_is_not_durable() -> None:
    # The process died after the snapshot's rename and before the directory's sync; the next start
    # trims the journal by that snapshot, and then the power goes.
    snapshot = encode_snapshot(Snapshot(2, json.dumps([[1, "a"], [2, "b"]]).encode()))
    for seed in range(10):
        for steps in range(1, 9):
            disk = SimulatedDisk(seed)
            quorum, _ = await opened(disk)
            await propose_all(quorum, b"a", b"b")
            await quorum.close()
            file = disk.open("metadata/snapshot.tmp", create=True)
            file.append([snapshot])
            file.sync()
            disk.rename("metadata/snapshot.tmp", SNAPSHOT)
            disk.crash(power=False)
            disk.crash_in(steps)
            try:
                quorum, _ = await opened(disk)
            except MachineStoppedError:
                pass
            else:
                await quorum.propose(b"c")
                await quorum.close()
            disk.crash(power=True)
            quorum, machine = await opened(disk)
            assert machine.values[:2] == [b"a", b"b"]
            await quorum.close()


async def test_new_quorum_cannot_start_without_a_working_disk() -> None:
    disk = SimulatedDisk(capacity_bytes=10)
    with pytest.raises(DiskFullError):
        await opened(disk)
    disk.capacity_bytes = None
    disk.fail_next("sync", JOURNAL)
    with pytest.raises(DiskError):
        await opened(disk)
    quorum, machine = await opened(disk)
    assert machine.values == []
    await quorum.close()
