"""A start after a power cut uses the flush modes in effect before, not the present setting."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from raftlog.storage.checkpoints.checkpoints import (
    NodeCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from raftlog.storage.log.log import Log
from raftlog.storage.manager import LogManager
from raftlog.storage.types import FlushMode, LogConfig
from raftlog.world import DiskFullError
from tests.simulation.clock import ManualClock
from tests.simulation.disk import SimulatedDisk
from tests.storage.logs import EPOCH, PARTITION, TOPIC, batch
from tests.waiting import until

SYNC = LogConfig(flush=FlushMode.SYNC)
ASYNC = LogConfig(flush=FlushMode.ASYNC)


class Node:
    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.clock = ManualClock()

    async def open(self, config: LogConfig) -> Log:
        self.manager = await LogManager.open(self.disk, self.clock)
        return await self.manager.open_replica(TOPIC, PARTITION, config, create=True)

    async def cut_power(self, config: LogConfig) -> Log:
        """The log after the next start, with the given setting."""
        self.disk.crash(power=True)
        return await self.open(config)

    async def tick(self) -> None:
        self.clock.advance(60)
        await self.manager.tick()

    async def until(self, log: Log, mode: FlushMode) -> None:
        await until(lambda: log.flush_mode is mode)


async def append(log: Log) -> None:
    await log.appender.append([batch([b"x"])], EPOCH)


async def test_a_change_to_sync_does_not_hide_what_async_had_acknowledged() -> None:
    node = Node()
    log = await node.open(ASYNC)
    await append(log)
    assert (await node.cut_power(SYNC)).possible_loss is not None


async def test_a_change_to_sync_holds_once_all_is_flushed_and_known() -> None:
    node = Node()
    log = await node.open(ASYNC)
    await append(log)
    log.configure(SYNC)
    assert log.flush_mode is FlushMode.SYNC
    await log.publish()
    assert log.flushed_offset == log.log_end_offset
    await append(log)
    await log.publish()
    assert (await node.cut_power(ASYNC)).possible_loss is None


async def test_what_async_had_acknowledged_is_not_forgotten_before_it_is_flushed() -> None:
    node = Node()
    log = await node.open(ASYNC)
    await append(log)
    # The sync started by the change does not end.
    log.shared.flusher.request = lambda *_: None  # type: ignore[assignment, method-assign]
    log.configure(SYNC)
    await log.publish()
    assert log.flushed_offset < log.log_end_offset
    assert (await node.cut_power(SYNC)).possible_loss is not None


async def test_a_change_to_async_during_a_power_cut_invents_no_loss() -> None:
    node = Node()
    log = await node.open(SYNC)
    await append(log)
    await log.flush()
    log = await node.cut_power(ASYNC)
    assert log.possible_loss is None
    assert log.flush_mode is FlushMode.ASYNC
    await append(log)
    assert (await node.cut_power(SYNC)).possible_loss is not None


async def test_async_holds_once_the_next_start_would_know_of_it() -> None:
    node = Node()
    log = await node.open(SYNC)
    await append(log)
    await log.flush()
    node.disk.fail_next("append", "checkpoints", DiskFullError)
    log.configure(ASYNC)
    await asyncio.sleep(0.01)
    assert log.flush_mode is FlushMode.SYNC
    await append(log)
    for _ in range(20):
        await asyncio.sleep(0)
    assert log.flushed_offset == log.log_end_offset, "it is synced as before"
    await node.tick()
    await node.until(log, FlushMode.ASYNC)
    await append(log)
    assert (await node.cut_power(SYNC)).possible_loss is not None


async def test_async_that_was_not_known_yet_is_as_if_it_had_never_been() -> None:
    node = Node()
    log = await node.open(SYNC)
    await append(log)
    await log.flush()
    log.configure(ASYNC)
    assert log.flush_mode is FlushMode.SYNC
    log = await node.cut_power(ASYNC)
    assert log.possible_loss is None


async def test_a_start_on_a_full_disk_is_sync_until_there_is_room() -> None:
    node = Node()
    await append(await node.open(SYNC))
    node.disk.crash(power=False)
    node.manager = await LogManager.open(node.disk, node.clock)
    node.disk.fail_next("append", "checkpoints", DiskFullError)
    log = await node.manager.open_replica(TOPIC, PARTITION, ASYNC, create=True)
    assert log.flush_mode is FlushMode.SYNC
    await append(log)
    await node.tick()
    await node.until(log, FlushMode.ASYNC)


async def test_changes_back_and_forth_end_with_the_last_one() -> None:
    node = Node()
    log = await node.open(ASYNC)
    for config in (SYNC, ASYNC, SYNC, ASYNC, SYNC):
        log.configure(config)
    await append(log)
    await log.flush()
    await log.publish()
    assert log.flush_mode is FlushMode.SYNC
    assert log.current_checkpoint().flush is FlushMode.SYNC


async def test_what_was_written_down_in_between_says_nothing_of_the_last_change() -> None:
    node = Node()
    log = await node.open(SYNC)
    await append(log)
    await log.flush()
    collect = node.manager._file._collect

    def back_and_forth() -> NodeCheckpoint:
        # The file is about to say SYNC when the setting changes for the last time.
        log.configure(SYNC)
        collected = collect()
        node.manager._file._collect = collect
        log.configure(ASYNC)
        return collected

    node.manager._file._collect = back_and_forth
    log.configure(ASYNC)
    for _ in range(200):
        stored = decode_checkpoint(node.disk.contents("checkpoints.json"))
        assert isinstance(stored, NodeCheckpoint)
        if log.flush_mode is FlushMode.ASYNC:
            assert stored.replicas[f"{TOPIC}/{PARTITION}"].flush is FlushMode.ASYNC
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come into force")


async def test_a_cut_takes_along_what_was_acknowledged_beyond_it() -> None:
    node = Node()
    log = await node.open(ASYNC)
    for _ in range(3):
        await append(log)
    log.configure(SYNC)
    await log.operations.truncate_to(log.log_start_offset)
    assert log.current_checkpoint().flush is FlushMode.SYNC


@pytest.mark.parametrize(("config", "is_lost"), [(SYNC, False), (ASYNC, True)])
async def test_without_a_stored_mode_of_an_older_version_the_setting_decides(
    config: LogConfig, is_lost: bool
) -> None:
    node = Node()
    log = await node.open(config)
    await append(log)
    await log.flush()
    await log.publish()
    path = "checkpoints.json"
    found = decode_checkpoint(node.disk.contents(path))
    assert isinstance(found, NodeCheckpoint)
    assert found.replicas[f"{TOPIC}/{PARTITION}"].flush is config.flush
    node.disk.crash(power=True)
    older = {
        name: msgspec.structs.replace(each, flush=None) for name, each in found.replicas.items()
    }
    node.disk.put(path, encode_checkpoint(NodeCheckpoint(found.clean_shutdown, older)))
    log = await node.open(config)
    assert (log.possible_loss is not None) == is_lost


async def idle(node: Node, log: Log) -> None:
    """Let time pass without appends until the checkpoint file says that the log rests."""
    for _ in range(3):
        await node.tick()
    await log.publish()
    assert log.flush_mode is FlushMode.SYNC
    assert log.current_checkpoint().flush is FlushMode.SYNC


async def test_a_power_cut_takes_nothing_from_an_idle_log_and_the_start_knows() -> None:
    node = Node()
    log = await node.open(ASYNC)
    await append(log)
    assert log.flush_mode is FlushMode.ASYNC
    await idle(node, log)
    log = await node.cut_power(ASYNC)
    assert log.possible_loss is None
    assert log.log_end_offset == 1


async def test_an_idle_log_opened_again_rests_too() -> None:
    node = Node()
    log = await node.open(ASYNC)
    await append(log)
    await node.manager.close()
    log = await node.open(ASYNC)
    await idle(node, log)
    assert (await node.cut_power(ASYNC)).possible_loss is None


async def test_the_append_that_ends_the_idle_time_is_synced_and_async_follows() -> None:
    node = Node()
    log = await node.open(ASYNC)
    await append(log)
    await idle(node, log)
    await append(log)
    assert log.flush_mode is FlushMode.SYNC
    for _ in range(20):
        await asyncio.sleep(0)
    assert log.flushed_offset == log.log_end_offset == 2
    await node.until(log, FlushMode.ASYNC)
    await append(log)
    assert log.flushed_offset == 2
    assert (await node.cut_power(ASYNC)).possible_loss is not None


async def test_an_append_while_the_file_is_about_to_say_that_the_log_rests() -> None:
    node = Node()
    log = await node.open(ASYNC)
    await append(log)
    await log.flush()
    collect = node.manager._file._collect

    async def resting_and_awake() -> NodeCheckpoint:
        log.rest()
        collected = await collect()
        node.manager._file._collect = collect
        log.effective_flush.wake()
        return collected

    node.manager._file._collect = resting_and_awake
    await log.publish()
    assert log.flush_mode is FlushMode.SYNC
    stored = decode_checkpoint(node.disk.contents("checkpoints.json"))
    assert isinstance(stored, NodeCheckpoint)
    assert stored.replicas[f"{TOPIC}/{PARTITION}"].flush is FlushMode.SYNC
    await log.publish()
    assert log.flush_mode is FlushMode.ASYNC


async def test_a_log_with_appends_does_not_rest() -> None:
    node = Node()
    log = await node.open(ASYNC)
    for _ in range(5):
        await append(log)
        await node.tick()
        await append(log)
        await node.until(log, FlushMode.ASYNC)


async def test_a_change_of_the_setting_ends_the_rest() -> None:
    node = Node()
    log = await node.open(ASYNC)
    await append(log)
    await idle(node, log)
    log.configure(ASYNC)
    assert log.flush_mode is FlushMode.SYNC
    log.configure(SYNC)
    await append(log)
    for _ in range(50):
        await asyncio.sleep(0)
    assert log.flush_mode is FlushMode.SYNC
    assert log.current_checkpoint().flush is FlushMode.SYNC
