from __future__ import annotations

import random

import pytest

from raftlog.world import Disk, DiskError, DiskFullError
from tests.simulation.disk import PAGE_BYTES, MachineStoppedError, SimulatedDisk


def durable_file(disk: SimulatedDisk, path: str = "f") -> None:
    file = disk.open(path, create=True)
    file.append([b"synced"])
    file.sync()
    disk.sync_directory("")


def test_it_is_a_disk() -> None:
    disk: Disk = SimulatedDisk()
    assert disk.free_bytes() > 0


def test_a_process_crash_keeps_every_byte_and_name() -> None:
    disk = SimulatedDisk()
    file = disk.open("f", create=True)
    file.append([b"written"])
    boot_id = disk.boot_id()
    disk.crash(power=False)
    assert disk.contents("f") == b"written"
    assert disk.boot_id() == boot_id
    with pytest.raises(MachineStoppedError):
        file.read(0, 1)


def test_a_power_cut_keeps_what_was_synced() -> None:
    for seed in range(50):
        disk = SimulatedDisk(seed)
        durable_file(disk)
        disk.open("f").append([b"x" * 300])
        boot_id = disk.boot_id()
        disk.crash(power=True)
        assert disk.contents("f").startswith(b"synced")
        assert len(disk.contents("f")) <= 306
        assert disk.boot_id() != boot_id


def test_a_power_cut_may_keep_a_later_page_without_an_earlier_one() -> None:
    kinds = set()
    for seed in range(200):
        disk = SimulatedDisk(seed)
        durable_file(disk)
        disk.open("f").append([b"x" * (PAGE_BYTES * 4)])
        disk.crash(power=True)
        content = disk.contents("f")
        if len(content) == 6:
            kinds.add("nothing")
        elif content == b"synced" + b"x" * (PAGE_BYTES * 4):
            kinds.add("everything")
        elif b"\0x" in content:
            kinds.add("hole")
        elif 0 < len(content) - 6 < PAGE_BYTES * 4:
            kinds.add("prefix")
    assert kinds == {"nothing", "everything", "hole", "prefix"}


def test_a_power_cut_may_take_names_that_were_not_synced() -> None:
    outcomes = set()
    for seed in range(50):
        disk = SimulatedDisk(seed)
        durable_file(disk)
        file = disk.open("new", create=True)
        file.append([b"x"])
        file.sync()
        disk.rename("f", "g")
        disk.crash(power=True)
        outcomes.add(tuple(disk.list_directory("")))
    assert outcomes == {("f",), ("g",), ("f", "new"), ("g", "new")}


def test_no_change_of_a_name_survives_without_one_that_it_builds_upon() -> None:
    for seed in range(50):
        disk = SimulatedDisk(seed)
        disk.open("a", create=True)
        disk.rename("a", "b")
        disk.rename("b", "c")
        disk.crash(power=True)
        assert disk.list_directory("") in (["a"], ["b"], ["c"], [])


def test_a_synced_directory_keeps_its_names_and_no_older_ones() -> None:
    for seed in range(50):
        disk = SimulatedDisk(seed)
        disk.make_directory("x")
        disk.make_directory("y")
        disk.open("x/a", create=True)
        disk.rename("x/a", "y/b")
        disk.sync_directory("")
        disk.sync_directory("y")
        disk.crash(power=True)
        assert (disk.list_directory("x"), disk.list_directory("y")) == ([], ["b"])


def test_replace_gives_the_old_or_the_new_whenever_it_is_stopped() -> None:
    seen = set()
    for seed in range(30):
        for step in range(1, 8):
            disk = SimulatedDisk(seed)
            disk.replace("f", b"old" * 100)
            disk.crash_in(step)
            try:
                disk.replace("f", b"new" * 200)
            except MachineStoppedError:
                pass
            else:
                disk.crash(power=True)
                assert disk.contents("f") == b"new" * 200
            disk.crash(power=True)
            seen.add(disk.contents("f"))
    assert seen == {b"old" * 100, b"new" * 200}


def test_a_failed_sync_fails_once_and_loses_the_bytes_even_if_tried_again() -> None:
    disk = SimulatedDisk(3)
    durable_file(disk)
    file = disk.open("f")
    file.append([b"lost"])
    disk.fail_next("sync", "f")
    with pytest.raises(DiskError):
        file.sync()
    file.sync()
    assert disk.syncs["f"] == 3
    disk.crash(power=True)
    assert disk.contents("f") == b"synced"


def test_a_full_disk_writes_nothing() -> None:
    disk = SimulatedDisk(capacity_bytes=10)
    file = disk.open("f", create=True)
    file.append([b"12345678"])
    with pytest.raises(DiskFullError):
        file.append([b"9", b"abc"])
    assert disk.contents("f") == b"12345678"
    assert disk.free_bytes() == 2
    with pytest.raises(DiskFullError):
        disk.replace("g", b"123")
    assert disk.list_directory("") == ["f"]


def test_a_flipped_bit_is_flipped_in_memory_and_on_the_disk() -> None:
    disk = SimulatedDisk()
    durable_file(disk)
    disk.flip_bit("f", 0)
    assert disk.contents("f") == b"rynced"
    disk.crash(power=True)
    assert disk.contents("f") == b"rynced"


async def test_slow_work_on_the_loop_is_noticed() -> None:
    disk = SimulatedDisk(yields=True)
    file = disk.open("f", create=True)
    await disk.run(file.sync)
    assert disk.slow_outside_run == []
    file.sync()
    assert disk.slow_outside_run == ["sync f"]


def test_a_stop_in_the_middle_of_a_write_leaves_a_part_and_ends_everything() -> None:
    lengths = set()
    for seed in range(20):
        disk = SimulatedDisk(seed)
        file = disk.open("f", create=True)
        disk.crash_in(1)
        with pytest.raises(MachineStoppedError):
            file.append([b"123"])
        with pytest.raises(MachineStoppedError):
            disk.list_directory("")
        disk.crash(power=False)
        lengths.add(len(disk.contents("f")))
    assert lengths == {0, 1, 2, 3}


def test_one_seed_gives_one_behaviour() -> None:
    def run(seed: int) -> bytes:
        disk = SimulatedDisk(seed)
        durable_file(disk)
        disk.open("f").append([b"x" * 1000])
        disk.crash(power=True)
        return disk.contents("f")

    assert [run(seed) for seed in range(10)] == [run(seed) for seed in range(10)]


def test_an_open_file_outlives_its_name() -> None:
    disk = SimulatedDisk()
    durable_file(disk)
    file = disk.open("f")
    disk.make_directory("d")
    disk.rename("f", "d/f")
    disk.remove_tree("d")
    assert file.read(0, 6) == b"synced"
    assert not disk.exists("d/f")


def test_a_sync_makes_exactly_what_was_written_durable() -> None:
    chance = random.Random(1)
    for seed in range(50):
        disk = SimulatedDisk(seed)
        durable_file(disk)
        expected = b"synced"
        for _ in range(20):
            file = disk.open("f")
            written = expected
            for _ in range(chance.randint(0, 4)):
                if chance.random() < 0.3:
                    written = written[: chance.randint(0, len(written))]
                    file.truncate(len(written))
                else:
                    data = chance.randbytes(chance.randint(0, 100))
                    written += data
                    file.append([data])
            if chance.random() < 0.8:
                file.sync()
                expected = written
                disk.crash(power=True)
                assert disk.contents("f") == expected
            else:
                disk.crash(power=True)
                expected = disk.contents("f")
