from __future__ import annotations

import asyncio

import pytest

from raftlog.peer.channel import PEERS_MAX
from raftlog.raft.peers.identity import KnownPeers, decode_peers, encode_peers
from raftlog.record.errors import ILLEGAL_STATE, OVERLOADED, STORAGE_FAILED, LogError
from raftlog.world import DiskError, DiskFullError
from tests.simulation.disk import MachineStoppedError, SimulatedDisk


async def opened(disk: SimulatedDisk) -> KnownPeers:
    return await KnownPeers.open(disk, "")


async def test_without_a_file_nobody_is_known() -> None:
    known = await opened(SimulatedDisk())
    assert known.directory_id(1) is None


async def test_the_file_is_in_the_given_directory() -> None:
    disk = SimulatedDisk()
    disk.make_directory("metadata")
    await (await KnownPeers.open(disk, "metadata")).pin(1, "a")
    assert disk.paths() == ["metadata/peers.json"]
    assert (await KnownPeers.open(disk, "metadata")).directory_id(1) == "a"


@pytest.mark.parametrize("seed", range(20))
async def test_what_was_pinned_survives_a_power_cut(seed: int) -> None:
    disk = SimulatedDisk(seed, yields=True)
    known = await opened(disk)
    await known.pin(2, "b")
    await asyncio.gather(*(known.pin(number, f"d{number}") for number in range(3, 9)))
    await known.pin(2, "c")
    disk.crash(power=True)
    known = await opened(disk)
    assert known.directory_id(2) == "c"
    assert [known.directory_id(number) for number in range(3, 9)] == [
        f"d{number}" for number in range(3, 9)
    ]


@pytest.mark.parametrize("step", range(1, 8))
async def test_a_crash_in_the_middle_keeps_what_was_pinned_before(step: int) -> None:
    for seed in range(20):
        disk = SimulatedDisk(seed)
        await (await opened(disk)).pin(1, "a")
        disk.crash_in(step)
        known = await opened(disk)
        try:
            await known.pin(2, "b")
        except MachineStoppedError:
            pass
        else:
            assert not disk.stopped
        disk.crash(power=True)
        known = await opened(disk)
        assert known.directory_id(1) == "a"
        assert known.directory_id(2) in (None, "b")


async def test_a_pin_counts_from_the_call_on_but_is_answered_when_durable() -> None:
    disk = SimulatedDisk(yields=True)
    known = await opened(disk)
    pin = asyncio.create_task(known.pin(2, "b"))
    await asyncio.sleep(0)
    assert known.directory_id(2) == "b"
    before = dict(disk.syncs)
    await pin
    assert before == {}
    assert dict(disk.syncs) == {"peers.json.tmp": 1}
    assert disk.slow_outside_run == []


async def test_what_is_pinned_already_costs_no_disk() -> None:
    disk = SimulatedDisk()
    known = await opened(disk)
    await known.pin(2, "b")
    operations = dict(disk.operations)
    await known.pin(2, "b")
    assert dict(disk.operations) == operations


async def test_many_pins_at_once_share_the_writing() -> None:
    disk = SimulatedDisk(yields=True)
    known = await opened(disk)
    await asyncio.gather(*(known.pin(number, "d") for number in range(1, 101)))
    assert disk.syncs["peers.json.tmp"] <= 2


async def test_a_forgotten_node_may_have_any_directory_also_after_a_power_cut() -> None:
    for seed in range(20):
        disk = SimulatedDisk(seed)
        known = await opened(disk)
        await known.pin(1, "a")
        await known.pin(2, "b")
        await known.forget(2)
        await known.forget(3)
        disk.crash(power=True)
        known = await opened(disk)
        assert known.directory_id(1) == "a"
        assert known.directory_id(2) is None


async def test_a_pin_that_is_overtaken_by_forgetting_is_not_answered_as_if_it_held() -> None:
    for seed in range(20):
        disk = SimulatedDisk(seed, yields=True)
        known = await opened(disk)
        await known.pin(1, "a")
        pin = asyncio.create_task(known.pin(2, "b"))
        await asyncio.sleep(0)
        await known.forget(2)
        try:
            await pin
        except LogError as error:
            assert error.entry is ILLEGAL_STATE
        await known.close()
        assert (await opened(disk)).directory_id(2) is None


@pytest.mark.parametrize("kind", [DiskError, DiskFullError])
async def test_a_failed_pin_is_told_and_can_be_tried_again(kind: type[DiskError]) -> None:
    disk = SimulatedDisk()
    known = await opened(disk)
    await known.pin(1, "a")
    disk.fail_next("append", "peers.json.tmp", kind)
    with pytest.raises(kind):
        await known.pin(2, "b")
    assert known.directory_id(1) == "a"
    assert known.directory_id(2) is None
    await known.pin(2, "c")
    assert (await opened(disk)).directory_id(2) == "c"


async def test_a_failed_pin_leaves_the_older_one_in_force() -> None:
    disk = SimulatedDisk()
    known = await opened(disk)
    await known.pin(2, "b")
    disk.fail_next("sync", "peers.json.tmp")
    with pytest.raises(DiskError):
        await known.pin(2, "c")
    assert known.directory_id(2) == "b"


async def test_who_stops_waiting_does_not_stop_the_writing_and_closing_waits_for_it() -> None:
    for seed in range(20):
        disk = SimulatedDisk(seed, yields=True)
        known = await opened(disk)
        pin = asyncio.create_task(known.pin(2, "b"))
        await asyncio.sleep(0)
        pin.cancel()
        await asyncio.gather(pin, return_exceptions=True)
        await known.close()
        assert disk.contents("peers.json") == encode_peers({2: "b"})


async def test_a_failure_that_nobody_waits_for_is_not_reported_as_lost() -> None:
    disk = SimulatedDisk(yields=True)
    known = await opened(disk)
    disk.fail_next("sync", "peers.json.tmp")
    pin = asyncio.create_task(known.pin(2, "b"))
    await asyncio.sleep(0)
    pin.cancel()
    await asyncio.gather(pin, return_exceptions=True)
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(loop))
    await known.close()
    del known, pin
    await asyncio.sleep(0)
    assert complaints == []


async def test_more_than_the_limit_are_refused_and_the_known_ones_are_not() -> None:
    disk = SimulatedDisk()
    disk.put("peers.json", encode_peers(dict.fromkeys(range(PEERS_MAX), "d" * 128)))
    known = await opened(disk)
    with pytest.raises(LogError) as caught:
        await known.pin(PEERS_MAX, "d")
    assert caught.value.entry is OVERLOADED
    await known.pin(0, "e")
    await known.forget(1)
    await known.pin(PEERS_MAX, "d")
    assert (await opened(disk)).directory_id(PEERS_MAX) == "d"


def test_the_file_does_not_depend_on_the_order_of_pinning() -> None:
    assert encode_peers({1: "a", 10: "c", 2: "b"}) == encode_peers({2: "b", 1: "a", 10: "c"})


def test_every_flipped_bit_and_every_cut_is_noticed_or_harmless() -> None:
    peers = {1: "a", 2: "b"}
    content = encode_peers(peers)
    assert decode_peers("f", content) == peers
    for cut in range(len(content)):
        with pytest.raises(LogError):
            decode_peers("f", content[:cut])
    for bit in range(len(content) * 8):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            assert decode_peers("f", bytes(flipped)) == peers
        except LogError as error:
            assert error.entry is STORAGE_FAILED


async def test_a_damaged_file_stops_the_start_and_says_what_to_do() -> None:
    disk = SimulatedDisk()
    await (await opened(disk)).pin(1, "a")
    disk.flip_bit("peers.json", 8 * 12)
    with pytest.raises(LogError, match=r"peers\.json is damaged.*remove the file") as caught:
        await opened(disk)
    assert caught.value.entry is STORAGE_FAILED
