"""Offsets without a protocol: bounds, timestamps, names, and rights."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.broker.offsets import NamedOffset, named_offset, offset_at_time
from raftlog.record.errors import (
    FORBIDDEN,
    INVALID_BODY,
    NO_LEADER,
    UNKNOWN_PARTITION,
    LogError,
)
from raftlog.record.types import PartitionId
from raftlog.routing.handle import PartitionHandle
from tests.broker.harness import ALICE, TOPIC, BrokerHarness, Operation
from tests.broker.test_fetch import put


async def test_bounds_of_whole_topics_and_of_some_partitions() -> None:
    one = await BrokerHarness.start()
    await put(one, "six", 3, b"a", b"b")
    whole = await one.broker.offsets.bounds_of(ALICE, ["six", "one"], any_node=False)
    assert {name: list(rows) for name, (_, rows) in whole.items()} == {
        "six": [*range(6)],
        "one": [0],
    }
    assert whole["six"][1][3] == (0, 2, 2)
    some = await one.broker.offsets.bounds_of(ALICE, {"six": [3, 3]}, any_node=True)
    assert some["six"][1] == {3: (0, 2, 2)}
    assert one.authorizer.taken() == [
        (Operation.DESCRIBE, TOPIC, name) for name in ("six", "one", "six")
    ]


async def test_one_failed_partition_fails_all_unless_any_node_may_answer() -> None:
    one = await BrokerHarness.start()
    one.node.replicas.offline["six", 2] = LogError(NO_LEADER)
    with pytest.raises(LogError) as caught:
        await one.broker.offsets.bounds_of(ALICE, ["six"], any_node=False)
    assert caught.value.entry is NO_LEADER
    rows = (await one.broker.offsets.bounds_of(ALICE, ["six"], any_node=True))["six"][1]
    assert [isinstance(row, LogError) for row in rows.values()] == [False, False, True] + [
        False
    ] * 3


async def test_offsets_at_times_and_by_name() -> None:
    one = await BrokerHarness.start()
    await put(one, "one", 0, b"a", b"b")
    found = await one.broker.offsets.at_times(ALICE, {"one": {PartitionId(0): 0}}, any_node=False)
    assert found["one"][1] == {0: (0, 0)}
    late = await one.broker.offsets.at_times(ALICE, {"one": {PartitionId(0): 1}}, any_node=True)
    assert late["one"][1] == {0: None}
    partition = one.broker.fetch.partition(ALICE, "one", 0)
    assert await named_offset(NamedOffset.EARLIEST, partition) == 0
    assert await named_offset(NamedOffset.LATEST, partition) == 2
    assert await offset_at_time(0, partition) == 0
    assert await offset_at_time(1, partition) == 2
    assert await one.broker.offsets.bounds(ALICE, "one", 0) == (0, 2)


@pytest.mark.parametrize("any_node", [False, True])
async def test_refusal_and_bounds_hold_for_every_call(any_node: bool) -> None:
    one = await BrokerHarness.start(partitions_per_request_max=5)
    one.refuse(Operation.DESCRIBE, "one")
    offsets = one.broker.offsets
    time = {PartitionId(0): 0}
    for call, entry in (
        (offsets.bounds_of(ALICE, ["one"], any_node=any_node), FORBIDDEN),
        (offsets.at_times(ALICE, {"one": time}, any_node=any_node), FORBIDDEN),
        (offsets.bounds_of(ALICE, ["six"], any_node=any_node), INVALID_BODY),
        (offsets.bounds_of(ALICE, ["one"] * 6, any_node=any_node), INVALID_BODY),
        (offsets.bounds_of(ALICE, {"six": [9]}, any_node=any_node), UNKNOWN_PARTITION),
    ):
        with pytest.raises(LogError) as caught:
            await call
        assert caught.value.entry is entry
    with pytest.raises(LogError) as caught:
        await offsets.bounds(ALICE, "one", 0)
    assert caught.value.entry is FORBIDDEN


async def test_a_reader_from_a_time_on_misses_no_record_committed_during_the_lookup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = await BrokerHarness.start()
    await put(one, "one", 0, b"a", b"b")
    partition = one.broker.fetch.partition(ALICE, "one", 0)
    lookup = PartitionHandle.offset_for_timestamp

    async def lookup_before_an_append(self: PartitionHandle, *arguments: Any) -> Any:
        found = await lookup(self, *arguments)
        await put(one, "one", 0, b"c")
        return found

    monkeypatch.setattr(PartitionHandle, "offset_for_timestamp", lookup_before_an_append)
    assert await offset_at_time(1, partition) == 2
