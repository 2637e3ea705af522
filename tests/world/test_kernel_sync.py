"""Syncs by the kernel, on the machine's file system."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.world import DiskError, Sync, kernel_sync, real_disk
from raftlog.world.kernel_sync import NOT_BEGUN, SYNCS_MAX, KernelSyncError, KernelSyncs
from raftlog.world.real_disk import FileSystemDisk

TIMEOUT_S = 30.0


@pytest.fixture
def syncs() -> Iterator[KernelSyncs]:
    try:
        made = KernelSyncs()
    except KernelSyncError as reason:
        pytest.skip(f"the kernel or its sandbox has none: {reason}")
    yield made
    made.close()


@pytest.fixture
def descriptors(tmp_path: Path) -> Iterator[list[int]]:
    opened = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(10)]
    yield opened
    for descriptor in opened:
        os.close(descriptor)


async def test_files_are_synced_together(syncs: KernelSyncs, descriptors: list[int]) -> None:
    for _ in range(3 * SYNCS_MAX):
        for descriptor in descriptors:
            os.write(descriptor, b"x")
        async with asyncio.timeout(TIMEOUT_S):
            assert await syncs.begin(descriptors) == [0] * len(descriptors)


async def test_rounds_overlap(syncs: KernelSyncs, descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.write(descriptor, b"x" * 100_000)
    rounds = [syncs.begin([descriptor, descriptor]) for descriptor in descriptors]
    async with asyncio.timeout(TIMEOUT_S):
        assert await asyncio.gather(*rounds) == [[0, 0]] * len(descriptors)


async def test_each_file_has_its_own_error(syncs: KernelSyncs, descriptors: list[int]) -> None:
    """A refused request ends the kernel's count; those behind it have not begun."""
    reading, writing = os.pipe()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            found = await syncs.begin([descriptors[0], writing, descriptors[1]])
        assert found == [0, NOT_BEGUN, NOT_BEGUN]
        with pytest.raises(KernelSyncError):
            syncs.begin([writing])
    finally:
        os.close(reading)
        os.close(writing)
    async with asyncio.timeout(TIMEOUT_S):
        assert await syncs.begin(descriptors) == [0] * len(descriptors)


async def test_a_cancelled_wait_takes_no_other_result(
    syncs: KernelSyncs, descriptors: list[int]
) -> None:
    for descriptor in descriptors:
        os.write(descriptor, b"x" * 100_000)
    given_up = syncs.begin(descriptors[:5])
    waited_for = syncs.begin(descriptors[5:])
    given_up.cancel()
    async with asyncio.timeout(TIMEOUT_S):
        assert await waited_for == [0] * 5
        assert await syncs.begin(descriptors) == [0] * 10


async def test_there_is_a_bound(syncs: KernelSyncs, descriptors: list[int]) -> None:
    waits = [syncs.begin(descriptors[:8]) for _ in range(SYNCS_MAX // 8)]
    with pytest.raises(KernelSyncError, match="under way"):
        syncs.begin(descriptors[:1])
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*waits)
        await syncs.begin(descriptors[:1])


def test_another_event_loop_goes_on(syncs: KernelSyncs, descriptors: list[int]) -> None:
    async def sync() -> list[int]:
        async with asyncio.timeout(TIMEOUT_S):
            return await syncs.begin(descriptors)

    for _ in range(3):
        assert asyncio.run(sync()) == [0] * len(descriptors)


def test_closing_waits_for_what_is_under_way(syncs: KernelSyncs, descriptors: list[int]) -> None:
    async def begin() -> asyncio.Future[list[int]]:
        for descriptor in descriptors:
            os.write(descriptor, b"x" * 1_000_000)
        return syncs.begin(descriptors)

    begun = asyncio.run(begin())
    syncs.close()
    assert begun.result() == [0] * len(descriptors)
    syncs.close()


# The disk


class FailingSyncs:
    """Syncs that end with these results, or are refused."""

    def __init__(self, results: list[int] | None) -> None:
        self.results = results

    def begin(self, descriptors: list[int]) -> asyncio.Future[list[int]]:
        if self.results is None:
            raise KernelSyncError("refused")
        future = asyncio.get_running_loop().create_future()
        future.set_result(self.results[: len(descriptors)])
        return future

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize("kernel", ["as it is", "none", "refuses"])
async def test_a_disk_syncs_files_and_names(
    tmp_path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FileSystemDisk(tmp_path / "data")
    if kernel != "as it is" and disk._kernel_syncs is not None:
        disk._kernel_syncs.close()
        refusing = FailingSyncs(None) if kernel == "refuses" else None
        monkeypatch.setattr(disk, "_kernel_syncs", refusing)
    synced: list[str] = []
    monkeypatch.setattr(disk, "sync_directory", synced.append)
    disk.make_directory("d")
    files = [disk.open(f"d/{number}", create=True) for number in range(3)]
    for file in files:
        file.append([b"some"])
    begun: list[None] = []
    found = await disk.sync_all(
        [Sync(files[0]), Sync(files[1], "d"), Sync(files[2])], lambda: begun.append(None)
    )
    assert found == [None] * 3
    assert synced == ["d"]
    assert begun
    disk.close()


async def test_an_error_of_the_kernel_is_that_of_its_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FileSystemDisk(tmp_path / "data")
    results = [0, errno.EIO, errno.ENOSPC, NOT_BEGUN]
    monkeypatch.setattr(disk, "_kernel_syncs", FailingSyncs(results))
    named: list[str] = []
    monkeypatch.setattr(disk, "sync_directory", named.append)
    synced: list[str] = []
    monkeypatch.setattr(
        real_disk.FileSystemFile, "sync", lambda file: synced.append(Path(file.path).name)
    )
    files = [disk.open(str(number), create=True) for number in range(4)]
    first, failed, full, alone = await disk.sync_all(
        [Sync(file, "") for file in files], lambda: None
    )
    assert first is None
    assert type(failed) is type(full) is DiskError, "bytes were lost, whatever the cause"
    assert "cannot sync" in str(failed)
    assert str(files[1].path) in str(failed)
    assert alone is None
    assert synced == ["3"], "nothing that has begun is synced again"
    assert named == ["", ""], "the names of what is durable"
    disk.close()


async def test_a_name_that_cannot_be_synced_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FileSystemDisk(tmp_path / "data")
    file = disk.open("f", create=True)

    def fail(_path: str) -> None:
        raise DiskError("as ordered")

    monkeypatch.setattr(disk, "sync_directory", fail)
    [error] = await disk.sync_all([Sync(file, "")], lambda: None)
    assert isinstance(error, DiskError)
    disk.close()


def test_an_unknown_machine_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_sync.platform, "machine", lambda: "vax")
    with pytest.raises(KernelSyncError, match="machine"):
        KernelSyncs()
