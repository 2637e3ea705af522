"""Administration of groups and transactions against the fake coordinators."""

from __future__ import annotations

import pytest
from raftlog_client import Admin, FencedError, ServerError, TopicPartition

from tests.client.fake_groups import FakeOffset
from tests.client.fake_node import FakeCluster, Fault
from tests.client.groups.test_groups import fill, member, take
from tests.client.transactions.test_transactions import producer

GROUP = "a/b"
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def admin(cluster: FakeCluster) -> Admin:
    return Admin(bootstrap_servers=cluster.bootstrap)


async def test_a_group_is_listed_described_and_deleted(cluster: FakeCluster) -> None:
    fill(cluster, 3)
    async with admin(cluster) as administering:
        async with member(cluster, group_id=GROUP) as reader:
            await take(reader, 9)
            await reader.commit({P0: 1})
            [listed] = (await administering.list_groups()).groups
            assert (listed.group, listed.members) == (GROUP, 1)
            described = await administering.describe_group(GROUP)
            assert [one.lag for one in described.offsets] == [2]
            assert described.members[0].assignment[0].partitions == [0, 1, 2]
            with pytest.raises(ServerError, match="has members"):
                await administering.delete_group(GROUP)
        await administering.delete_group(GROUP)
        with pytest.raises(ServerError, match="not found"):
            await administering.describe_group(GROUP)


async def test_offsets_are_reset_and_deleted(cluster: FakeCluster) -> None:
    fill(cluster, 3)
    offsets = cluster.coordinator.group(GROUP).offsets
    offsets["t", 0], offsets["t", 1] = FakeOffset(1), FakeOffset(2)
    async with admin(cluster) as administering:
        planned = await administering.reset_offsets(GROUP, to="latest", validate_only=True)
        assert [(row.before, row.offset) for row in planned.partitions] == [(1, 3), (2, 3)]
        assert not planned.is_done
        assert offsets["t", 0].offset == 1
        done = await administering.reset_offsets(GROUP, ["t", P0], shift_by=-1)
        assert done.is_done
        assert [found.offset for found in offsets.values()] == [0, 1]
        await administering.delete_offsets(GROUP, [P1])
        assert list(offsets) == [("t", 0)]
        with pytest.raises(ValueError, match="exactly one target"):
            await administering.reset_offsets(GROUP, to="latest", shift_by=1)
        cluster.fail("/v1/groups/{group}/reset", Fault(drop_after=True))
        with pytest.raises(Exception, match="broke") as failed:
            await administering.reset_offsets(GROUP, shift_by=1)
        assert failed.value.outcome_unknown  # type: ignore[attr-defined]  # RaftlogClientError
        assert offsets["t", 0].offset == 1


async def test_an_open_transaction_is_found_and_aborted(single: FakeCluster) -> None:
    async with admin(single) as administering, producer(single) as sending:
        with pytest.raises(FencedError):
            async with sending.transaction():
                await sending.send_and_wait("t", b"x")
                [listed] = (await administering.list_transactions()).transactions
                assert (listed.transactional_id, listed.state) == ("x", "ongoing")
                described = await administering.describe_transaction("x")
                assert [(one.topic, one.partition) for one in described.partitions] == [P0]
                await administering.abort_transaction("x")
        assert single.topics["t"].partitions[0].committed_values() == []
