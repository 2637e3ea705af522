"""The log of a state in a real cluster, in both layouts: topics, entries, fences, snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from raftlog_client import Admin, FencedError, Producer, RaftlogClientError
from raftlog_replicated.errors import LayoutError
from raftlog_replicated.logs.per_replica_log import PerReplicaLog
from raftlog_replicated.logs.shared_log import SharedLog
from raftlog_replicated.logs.topics import Layout, StateTopics
from raftlog_replicated.ports import LogRecord, LogTrimmedError
from raftlog_replicated.snapshots.snapshots import Manifest

TIMEOUT_S = 20.0
Open = Callable[..., "Opened"]


class Opened:
    """Opens logs of one state."""

    def __init__(self, servers: str, name: str, layout: Layout) -> None:
        self.servers, self.name, self.layout = servers, name, layout

    def make(self, replica_id: str = "a") -> SharedLog:
        kind = SharedLog if self.layout == "shared" else PerReplicaLog
        topics = StateTopics(self.name, self.layout, self.servers)
        return kind(
            topics, self.servers, replica_id=replica_id, endpoint=f"{replica_id}:1", lease_ms=1_500
        )

    @asynccontextmanager
    async def log(self, replica_id: str = "a") -> AsyncIterator[SharedLog]:
        log = self.make(replica_id)
        await log.start()
        try:
            yield log
        finally:
            await log.close()


@pytest.fixture(params=["shared", "per-replica"])
def state(request: pytest.FixtureRequest, servers: str, name: str) -> Opened:
    return Opened(servers, name, request.param)


async def read_to(log: SharedLog, end: int, begin: int = 0) -> list[LogRecord]:
    found: list[LogRecord] = []
    log.seek(begin)
    async with asyncio.timeout(TIMEOUT_S):
        while not found or found[-1].offset + 1 < end:
            found += await log.read()
    return [one for one in found if one.offset >= begin]


async def write(log: SharedLog, *batches: list[bytes]) -> None:
    """Append as a new primary does: after the last entry, with its own entries not read."""
    writer = await log.open_writer()
    begin = await end_of(log)
    for batch in batches:
        offsets = await writer.append(batch, 7)
        assert list(offsets) == list(range(begin, begin + len(batch)))
        begin += len(batch)
    await writer.close()


async def end_of(log: SharedLog) -> int:
    """The end, while another task reads, as a replica does."""
    log.seek(0)
    reading = asyncio.create_task(_keep_reading(log))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await log.end()
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _keep_reading(log: SharedLog) -> None:
    while True:
        await log.read()


async def test_entries_are_read_in_order_by_another_replica(state: Opened) -> None:
    async with state.log("a") as first, state.log("b") as second:
        await write(first, [b"0"], [b"1", b"2"], [b"3"])
        assert await read_to(second, 4) == [LogRecord(n, 7, b"%d" % n) for n in range(4)]
        assert await end_of(second) == 4
        assert await read_to(second, 4, begin=2) == [LogRecord(n, 7, b"%d" % n) for n in (2, 3)]


async def test_a_seek_moves_a_read_under_way(state: Opened) -> None:
    async with state.log("a") as first, state.log("b") as second:
        await write(first, [b"0", b"1"])
        await read_to(second, 2)
        second.pause()
        waiting = asyncio.create_task(second.read())
        await asyncio.sleep(0)
        assert not waiting.done()
        second.seek(1)
        async with asyncio.timeout(TIMEOUT_S):
            assert await waiting == [LogRecord(1, 7, b"1")]


async def test_a_later_writer_ends_the_earlier_one(state: Opened) -> None:
    async with state.log("a") as first, state.log("b") as second:
        old = await first.open_writer()
        await end_of(first)
        await old.append([b"0"], 7)
        await write(second, [b"1"])
        with pytest.raises(RaftlogClientError) as ended:
            await old.append([b"late"], 7)
        assert isinstance(ended.value, FencedError) or isinstance(
            ended.value.__cause__, FencedError
        )
        assert [one.value for one in await read_to(second, 2)] == [b"0", b"1"]
        await old.close()


async def test_a_trimmed_entry_is_missed_by_type(state: Opened) -> None:
    async with state.log("a") as first, state.log("b") as second:
        await write(first, [b"0"], [b"1"], [b"2"], [b"3"])
        await first.trim(2)
        assert [one.offset for one in await read_to(second, 4, begin=2)] == [2, 3]
        second.seek(0)
        with pytest.raises(LogTrimmedError):
            async with asyncio.timeout(TIMEOUT_S):
                await second.read()


async def test_replicas_that_begin_at_once_make_the_topics_once(state: Opened) -> None:
    logs = [state.make(name) for name in "abc"]
    await asyncio.gather(*(log.start() for log in logs))
    try:
        await write(logs[1], [b"0"])
        for log in logs:
            assert [one.value for one in await read_to(log, 1)] == [b"0"]
    finally:
        await asyncio.gather(*(log.close() for log in logs))


async def test_another_layout_is_refused(state: Opened) -> None:
    async with state.log():
        pass
    other: Layout = "per-replica" if state.layout == "shared" else "shared"
    with pytest.raises(LayoutError, match=state.layout):
        await Opened(state.servers, state.name, other).make().start()


@pytest.mark.parametrize("suffix", ["", ".snapshots"])
async def test_a_topic_of_other_origin_is_refused(state: Opened, suffix: str) -> None:
    topic = f"state.{state.name}{suffix}"
    async with (
        Admin(bootstrap_servers=state.servers) as admin,
        Producer(bootstrap_servers=state.servers) as producer,
    ):
        configs = {"cleanup.policy": "compact"} if suffix else {}
        await admin.create_topic(topic, partitions=2, configs=configs)
        await producer.send_and_wait(topic, b"theirs", b"key", 0)
        with pytest.raises(LayoutError, match=topic):
            await state.make().start()
        assert (await admin.offsets([topic]))[topic, 0].end_offset == 1


async def test_each_replica_keeps_a_partition_of_its_own(servers: str, name: str) -> None:
    state = Opened(servers, name, "per-replica")
    logs = [state.make(replica) for replica in "abcd"]
    await asyncio.gather(*(log.start() for log in logs))
    owners = {log.source.partition for log in logs if isinstance(log, PerReplicaLog)}
    assert owners == {0, 1, 2, 3}
    await asyncio.gather(*(log.close() for log in logs))
    async with state.log("c") as again:
        assert isinstance(again, PerReplicaLog)
        before = logs[2]
        assert isinstance(before, PerReplicaLog)
        assert again.source == before.source


async def test_a_replica_that_joins_later_reads_what_was_before(servers: str, name: str) -> None:
    state = Opened(servers, name, "per-replica")
    async with state.log("a") as first:
        await write(first, [b"0"], [b"1"])
        async with state.log("b") as second:
            assert [one.value for one in await read_to(second, 2)] == [b"0", b"1"]
            await write(first, [b"2"])
            assert [one.value for one in await read_to(second, 3)] == [b"0", b"1", b"2"]
        # At its next start its own partition has what it wants.
        async with state.log("b") as again:
            assert isinstance(again, PerReplicaLog)
            assert [one.value for one in await read_to(again, 3, begin=2)] == [b"2"]
            assert again.source.partition == 1


async def test_snapshots_of_one_replica_are_read_by_another(state: Opened) -> None:
    async with state.log("a") as first, state.log("b") as second:
        chunks = [b"x" * 600_000, b"y", b"z" * 900_000]
        offsets = [
            await first.snapshots.write_chunk(b"s1/%08d" % number, chunk)
            for number, chunk in enumerate(chunks)
        ]
        await first.snapshots.write_chunk(b"other/00000000", b"not of it")
        await first.snapshots.write_manifest(b"s1", b"manifest")
        assert await second.snapshots.changes() == [(b"s1", b"manifest")]
        assert await second.snapshots.changes() == []
        manifest = Manifest("s1", 5, 5, 5, offsets[0], 3, sum(map(len, chunks)), b"")
        assert [chunk async for chunk in second.snapshots.read(manifest)] == chunks
        await first.snapshots.delete_chunks(offsets[1])
        assert [chunk async for chunk in second.snapshots.read(manifest)] == chunks[1:]
