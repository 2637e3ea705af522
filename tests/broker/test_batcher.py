from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from raftlog.broker.batcher import Placed, SmallRequestBatcher
from raftlog.broker.produce import _pack_shared
from raftlog.record.batch import RecordBatch
from raftlog.record.errors import INVALID_BODY, NOT_ENOUGH_REPLICAS, LogError
from raftlog.replication.partition import Acks
from raftlog.storage.types import LogConfig
from tests.broker.data_fakes import DataNode, contents


class BatcherHarness:
    def __init__(self, max_message_bytes: int = 1_048_588) -> None:
        self.node = DataNode()
        self.batcher = SmallRequestBatcher(_pack_shared)
        self.configs = {"max.message.bytes": str(max_message_bytes)}

    async def start(self) -> BatcherHarness:
        await self.node.metadata.create_topic("one", configs=self.configs)
        self.partition = self.node.partitions.find("one", 0)
        self.log = self.node.log()
        return self

    def configure(self, config: LogConfig) -> None:
        """Change the log's settings."""
        self.log.config = config

    def append(
        self,
        *values: str,
        key: bytes | None = None,
        headers: Any = None,
        acks: Acks = Acks.ALL,
        timeout_s: float = 5.0,
    ) -> Any:
        return self.batcher.append(
            self.partition,
            [(0, key, value.encode(), headers) for value in values],
            acks=acks,
            timeout_s=timeout_s,
        )


async def test_requests_of_one_iteration_share_one_append_and_one_batch() -> None:
    one = await BatcherHarness().start()
    futures = [one.append("a"), one.append("b", "c"), one.append("d")]
    assert await asyncio.gather(*futures) == [Placed(0, -1), Placed(1, -1), Placed(3, -1)]
    assert one.log.appends == 1
    assert len(one.log.batches) == 1
    assert [value for _, value in contents(one.log)] == [b"a", b"b", b"c", b"d"]
    assert await one.append("e") == Placed(4, -1)
    assert one.log.appends == 2


async def test_more_than_a_batch_holds_stays_one_append_with_right_offsets() -> None:
    one = await BatcherHarness(max_message_bytes=1024).start()
    futures = [one.append(str(n) * 300, "x") for n in range(6)]
    places = await asyncio.gather(*futures)
    assert [place.base_offset for place in places] == [0, 2, 4, 6, 8, 10]
    assert one.log.appends == 1
    assert len(one.log.batches) > 1


async def test_only_those_who_want_the_same_share() -> None:
    one = await BatcherHarness().start()
    await asyncio.gather(
        one.append("a"),
        one.append("b", acks=Acks.LEADER),
        one.append("c", timeout_s=1.0),
        one.append("d"),
    )
    assert one.log.appends == 3
    assert sorted(value or b"" for _, value in contents(one.log)) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("forwarded", [False, True])
async def test_a_record_without_a_key_fails_alone_in_a_compacted_topic(forwarded: bool) -> None:
    one = await BatcherHarness().start()
    one.configure(LogConfig(cleanup_policy=frozenset({"compact"})))
    if forwarded:
        # Whether the topic is compacted is for its leader to judge.
        one.partition._local = None
    good = [one.append("a", key=b"k"), one.append("b", "c", key=b"k")]
    bad = one.append("poison")
    good.append(one.append("d", key=b"k"))
    assert [place.base_offset for place in await asyncio.gather(*good)] == [0, 1, 3]
    with pytest.raises(LogError) as refused:
        await bad
    assert refused.value.entry is INVALID_BODY
    assert [value for _, value in contents(one.log)] == [b"a", b"b", b"c", b"d"]


async def test_records_that_cannot_be_packed_fail_alone() -> None:
    one = await BatcherHarness().start()
    good = [one.append("a"), one.append("b")]
    bad = one.append("c", headers=[("\ud800", b"")])
    with pytest.raises(UnicodeEncodeError):
        await bad
    assert [place.base_offset for place in await asyncio.gather(*good)] == [0, 1]


async def test_failure_reaches_everyone_who_shared_it_as_an_error_of_their_own() -> None:
    one = await BatcherHarness().start()
    one.log.append_error = LogError(NOT_ENOUGH_REPLICAS, "too few")
    results = await asyncio.gather(one.append("a"), one.append("b"), return_exceptions=True)
    assert [str(result) for result in results] == ["too few", "too few"]
    assert results[0] is not results[1]
    one.log.append_error = None
    assert await one.append("c") == Placed(0, -1)


async def test_broken_invariant_reaches_everyone_too() -> None:
    one = await BatcherHarness().start()

    async def broken(batches: Sequence[RecordBatch], epoch: int, **_: Any) -> Any:
        raise AssertionError("broken")

    one.log.append = broken  # type: ignore[method-assign,assignment]
    for future in (one.append("a"), one.append("b")):
        with pytest.raises(AssertionError, match="broken"):
            await future


async def test_one_who_left_does_not_disturb_the_others() -> None:
    one = await BatcherHarness().start()
    left, stayed = one.append("a"), one.append("b")
    left.cancel()
    assert await stayed == Placed(1, -1)
