"""The effect of metadata changes on one node's replicas: roles, opening, removal."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from raftlog.metadata.commands import AlterClusterSettings, AlterTopicConfigs
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.record.errors import NO_LEADER, NOT_READY, UNKNOWN_TOPIC, LogError
from raftlog.record.types import LeaderEpoch, Offset, PartitionId
from raftlog.replication.follower.divergence import Diverging
from raftlog.replication.manager import PARTITIONS_PER_TURN_MAX
from raftlog.replication.partition import Acks, Partition
from raftlog.storage.checkpoints.checkpoint_file import CHECKPOINT_NAME
from raftlog.storage.log.core import LogCore
from raftlog.world import DiskError, DiskFullError
from tests.replication.one_node import OneNode, topic_id
from tests.replication.pair import one
from tests.storage.logs import read_all


@pytest.fixture
async def node() -> AsyncIterator[OneNode]:
    made = OneNode()
    await made.open()
    yield made
    await made.close()


async def put(partition: Partition, *values: bytes) -> None:
    await partition.append(one(*values), acks=Acks.LEADER, timeout_s=60)
    await partition.log.flush()


async def test_roles_follow_the_metadata_at_once(node: OneNode) -> None:
    node.create(1, 2)
    await node.settled()
    partition = node.here()
    assert partition.is_leader
    assert node.replicas.partition("t", 0) is partition
    node.change(leader=2)
    assert not partition.is_leader
    assert node.streams.followed == {partition: (2, 1)}
    with pytest.raises(LogError) as refused:
        node.replicas.partition("t", 0)
    assert refused.value.entry is NO_LEADER
    node.change(leader=1)
    assert partition.is_leader
    assert node.streams.followed == {}
    assert partition.image.leader_epoch == 2


async def test_a_leader_that_was_started_again_is_followed_in_its_new_epoch(node: OneNode) -> None:
    node.create(2, 1)
    await node.settled()
    assert node.streams.followed == {node.here(): (2, 0)}
    node.register(2, "again")
    assert node.streams.followed == {node.here(): (2, 1)}


async def test_nobody_is_followed_while_nobody_leads(node: OneNode) -> None:
    node.create(2, 1)
    await node.settled()
    node.change(leader=-1)
    assert node.streams.followed == {}


async def test_what_moves_elsewhere_is_removed_once_the_metadata_says_so(node: OneNode) -> None:
    node.create(1, 2)
    await node.settled()
    partition = node.here()
    await put(partition, b"a")
    node.change(replicas=(2,), isr=(2,), leader=2)
    assert node.replica() is None
    assert partition.is_closed
    with pytest.raises(LogError) as refused:
        node.replicas.partition("t", 0)
    assert refused.value.entry is NO_LEADER
    await node.settled()
    assert not node.files("replicas")


async def test_what_the_metadata_does_not_name_is_kept(node: OneNode) -> None:
    node.create(1)
    await node.settled()
    await put(node.here(), b"a")
    await node.close()
    # A node without its metadata: lost, or of another cluster.
    node.state_machine = MetadataStateMachine()
    await node.open()
    assert node.files("replicas")
    assert node.logs.strays() == [f"{topic_id(0)}/0"]


async def test_what_moved_elsewhere_while_the_node_was_down_is_kept(node: OneNode) -> None:
    node.create(1, 2)
    await node.settled()
    await node.close()
    node.change(replicas=(2,), isr=(2,), leader=2)
    await node.open()
    assert node.replica() is None
    assert node.files("replicas")


async def test_what_was_deleted_while_the_node_was_down_is_removed(node: OneNode) -> None:
    node.create(1)
    await node.settled()
    await node.close()
    node.delete()
    await node.open()
    assert not node.files("replicas")


async def test_a_start_on_a_full_disk_removes_what_was_deleted(node: OneNode) -> None:
    node.create(1)
    await node.settled()
    await put(node.here(), b"a")
    await node.close()
    node.delete()
    node.disk.capacity_bytes = node.disk.used_bytes()
    await node.open()
    assert not node.files("replicas")
    node.disk.capacity_bytes = None


async def test_a_start_goes_on_though_what_was_deleted_cannot_be_removed(
    node: OneNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.create(1)
    node.create(1, number=1, name="u")
    node.create(1, number=2, name="v")
    await node.settled()
    await node.close()
    node.delete()
    node.delete(1)
    node.disk.fail_next("rename", f"replicas/{topic_id(0)}", DiskFullError)
    await node.open()
    assert f"topic {topic_id(0)} cannot be deleted, its files stay" in caplog.text
    assert {path.split("/")[1] for path in node.files("replicas")} == {topic_id(0), topic_id(2)}
    assert node.here(2).is_leader
    await node.close()
    await node.open()
    assert {path.split("/")[1] for path in node.files("replicas")} == {topic_id(2)}


async def test_a_topic_created_again_has_nothing_of_the_one_before(node: OneNode) -> None:
    node.create(1)
    await node.settled()
    before = node.here()
    await put(before, b"a")
    node.delete()
    node.create(1, number=1)
    with pytest.raises(LogError) as refused:
        node.replicas.partition("t", 0)
    assert refused.value.entry is NOT_READY
    await node.settled()
    assert before.is_closed
    assert node.replicas.partition("t", 0) is node.here(1)
    assert node.here(1).log_end_offset == 0
    with pytest.raises(LogError) as refused:
        await before.read(Offset(0), max_bytes=1)
    assert refused.value.entry is UNKNOWN_TOPIC


class TestAwayAndBack:
    async def test_it_goes_on_with_what_it_has(self, node: OneNode) -> None:
        node.create(1, 2)
        await node.settled()
        before = node.here()
        await put(before, b"a")
        node.change(replicas=(2,), isr=(2,), leader=2)
        node.change(replicas=(2, 1))
        await node.settled()
        assert before.is_closed
        assert await read_all(node.here().log) == [b"a"]
        assert node.streams.followed == {node.here(): (2, 1)}

    async def test_nothing_is_asked_for_before_an_earlier_cut_is_over(self) -> None:
        # The truncation goes on after its replica has left. Data fetched by the position before
        # would leave a hole that looks like a gap of compaction.
        node = OneNode()
        node.disk.yields = True
        await node.open()
        node.create(1, 2)
        await node.settled()
        before = node.here()
        await put(before, b"a", b"b")
        await put(before, b"c")
        node.change(leader=2)
        cut = asyncio.ensure_future(
            before.follower_role.truncate_for(
                Diverging(LeaderEpoch(0), Offset(2)), leader_epoch=LeaderEpoch(1)
            )
        )
        await asyncio.sleep(0)
        node.change(replicas=(2,), isr=(2,))
        node.change(replicas=(2, 1))
        await node.until(lambda: node.replica() is not None)
        assert node.here().follower_role.position().offset == 2
        await cut
        await node.settled()
        await node.close()

    async def test_one_log_never_serves_two_replicas(self, node: OneNode) -> None:
        node.create(1, 2)
        await node.settled()
        partition = node.here()
        topic = node.state_machine.image.topics_by_id[topic_id(0)]
        node.replicas._serve(topic, topic.partitions[0], partition.log)
        assert node.here() is partition
        assert partition.is_leader


async def test_what_cannot_be_removed_keeps_nothing_else_from_being_followed(
    node: OneNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.create(1)
    await node.settled()
    node.disk.fail_next("rename", f"replicas/{topic_id(0)}", DiskError)
    node.delete()
    await node.settled()
    assert "its files stay" in caplog.text
    node.create(1, number=1, name="other")
    await node.settled()
    assert node.here(1).is_leader


async def test_a_node_that_cannot_follow_the_metadata_ends(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise AssertionError("broken")

    monkeypatch.setattr(node.logs, "delete_topic", broken)
    node.create(1)
    node.delete()
    with pytest.raises(LogError):
        await node.settled()
    assert "broken" in node.fatal.pop()


async def test_a_topic_that_nobody_remembers_is_served_no_more_and_kept(
    node: OneNode, caplog: pytest.LogCaptureFixture
) -> None:
    """A snapshot may have forgotten the deletion; or the other cluster never had the topic."""
    node.create(1)
    node.create(1, number=1, name="deleted")
    await node.settled()
    await put(node.here(), b"a")
    before = node.here()
    other = OneNode()
    other.create(1, number=1, name="deleted")
    other.delete(1)
    node.index += 100
    node.state_machine.restore(node.index, other.state_machine.snapshot()())()
    assert before.is_closed
    await node.settled()
    assert node.logs.strays() == [f"{topic_id(0)}/0"]
    assert [path for path in node.files("replicas") if path.endswith(".log")] == [
        f"replicas/{topic_id(0)}/0/00000000000000000000.log"
    ]
    assert "are kept" in caplog.text
    await node.logs.tick()
    # If the topic comes back, its records are unchanged.
    node.create(1)
    await node.settled()
    assert node.here() is not before
    assert await read_all(node.here().log) == [b"a"]
    assert node.here().is_leader
    await put(node.here(), b"b")
    node.disk.crash(power=True)
    await node.repairs.close()
    await node.replicas.close()
    await node.open()
    assert await read_all(node.here().log) == [b"a", b"b"]


async def test_a_topic_of_many_partitions_costs_few_syncs_and_few_checkpoint_writes(
    node: OneNode,
) -> None:
    before = node.disk.operations.copy()
    node.create_many(1_000)
    assert node.replicas.opening_count == 1_000
    await node.settled()
    assert node.replicas.opening_count == 0
    counts = node.disk.operations - before
    assert sum(1 for _ in node.replicas.led()) == 1_000
    assert counts["sync"] + counts["sync_directory"] < 100
    assert counts["make_directory"] == 1_001


async def test_a_topic_deleted_while_its_partitions_are_opened_leaves_none_in_opening(
    node: OneNode,
) -> None:
    node.create_many(1_000)
    await node.turns(3)
    node.delete()
    await node.settled()
    assert node.replicas.opening_count == 0
    assert not list(node.replicas.replicas())
    assert not node.files("replicas")


async def test_the_partitions_of_a_large_deleted_topic_close_in_slices(node: OneNode) -> None:
    node.create_many(1_000)
    await node.settled()
    led = list(node.replicas.led())
    node.delete()
    # None is found from now on, and the name is free for another topic.
    assert not list(node.replicas.replicas())
    node.create(1, 2, number=1)
    assert 0 < sum(partition.is_closed for partition in led) < 1_000
    await node.settled()
    assert all(partition.is_closed for partition in led)
    assert node.replicas.partition("t", 0) is node.here(1)
    assert {path.split("/")[1] for path in node.files("replicas")} == {topic_id(1)}


@pytest.mark.parametrize("of_cluster", [False, True])
async def test_many_logs_are_configured_over_several_turns(
    node: OneNode, monkeypatch: pytest.MonkeyPatch, *, of_cluster: bool
) -> None:
    node.create_many(1_000)
    await node.settled()
    led = list(node.replicas.led())
    configured: list[int] = []
    configure = LogCore.configure
    monkeypatch.setattr(
        LogCore, "configure", lambda *args: configured.append(turn) or configure(*args)
    )
    turn = 0
    values = {"retention.ms": "1000", "min.insync.replicas": "2"}
    if of_cluster:
        node.run(AlterClusterSettings(values=values))
    else:
        node.run(AlterTopicConfigs(topic_id=topic_id(0), values=values))
    # The metadata counts on the minimum from the apply on.
    assert {each.min_insync_replicas for each in led} == {2}
    settling = asyncio.ensure_future(node.settled())
    while not settling.done():
        turn += 1
        await asyncio.sleep(0)
        assert turn < 1_000
    # A change is answered once it has reached all logs, each once.
    assert {each.log.config.retention_ms for each in led} == {1000}
    assert len(configured) == 1_000
    assert max(Counter(configured).values()) == PARTITIONS_PER_TURN_MAX


async def test_a_lower_minimum_commits(node: OneNode) -> None:
    node.create(1, 2, 3, min_insync_replicas="2")
    await node.settled()
    node.change(isr=(1,))
    await put(node.here(), b"a")
    assert node.here().high_watermark == 0
    node.run(AlterTopicConfigs(topic_id=topic_id(0), values={"min.insync.replicas": "1"}))
    assert node.here().high_watermark == 1


async def test_a_setting_that_changes_no_log_configures_none(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create(1, 2)
    await node.settled()
    monkeypatch.setattr(LogCore, "configure", None)
    node.run(AlterClusterSettings(values={"broker.session.timeout.ms": "3000"}))
    await node.settled()


async def test_many_partitions_learn_of_the_lease_over_several_turns(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create_many(1_000)
    await node.settled()
    led = list(node.replicas.led())
    notified: list[int] = []
    moved = Partition.write_gate_moved
    monkeypatch.setattr(
        Partition, "write_gate_moved", lambda *args: notified.append(turn) or moved(*args)
    )
    turn = 0
    cut_off = LogError(NO_LEADER, "cut off")
    node.replicas.refuse_writes(cut_off)
    # No append passes from now on; readers wake soon.
    assert all(each.host.write_gate.refusal is cut_off for each in led)
    # The lease is back before all have learned of its end.
    node.replicas.refuse_writes(None)
    assert all(each.host.write_gate.refusal is None for each in led)
    while len(notified) < 2_000:
        turn += 1
        await asyncio.sleep(0)
        assert turn < 1_000
    assert max(Counter(notified).values()) == 2 * PARTITIONS_PER_TURN_MAX
    assert all(each.host.write_gate.refusal is None for each in led)


async def test_files_of_a_large_deleted_topic_are_removed_little_by_little(node: OneNode) -> None:
    node.create_many(1_000)
    await node.settled()
    for partition in list(node.replicas.led())[:20]:
        await put(partition, b"a")
    node.delete()
    await node.settled()
    ticks = 0
    while node.files("deleted"):
        before = node.disk.operations["remove"]
        await node.logs.tick()
        ticks += 1
        assert node.disk.operations["remove"] - before <= 16 + 256 + 1
        assert ticks < 100
    assert ticks > 3


async def test_a_start_without_a_checkpoint_file_lasts_until_every_replica_is_opened(
    node: OneNode,
) -> None:
    node.create(1)
    await node.settled()
    await put(node.here(), b"a")
    await node.close()
    node.disk.flip_bit(CHECKPOINT_NAME, 8 * 40)
    node.disk.fail_next("sync_directory", topic_id(0))
    await node.open()
    assert node.replica() is None
    node.disk.crash(power=True)
    # The new checkpoint file does not name the replica, which must not count as a new one now.
    node.disk.remove_tree(f"replicas/{topic_id(0)}")
    await node.open()
    assert node.replica() is None
    assert node.replicas.is_lost(topic_id(0), PartitionId(0))


async def test_emptied_replica_without_a_checkpoint_file_is_a_loss_not_a_new_replica(
    node: OneNode,
) -> None:
    node.create(1, 2)
    await node.settled()
    await put(node.here(), b"a")
    await node.close()
    for path in node.files("replicas"):
        node.disk.remove(path)
    node.disk.remove(CHECKPOINT_NAME)
    await node.open()
    assert node.replica() is None
    assert node.replicas.is_lost(topic_id(0), PartitionId(0))
    node.change(leader=2, isr=(2,))
    await node.replicas.renew(topic_id(0), PartitionId(0))
    assert node.here().log_end_offset == 0
    assert node.streams.followed == {node.here(): (2, node.row().leader_epoch)}


async def test_only_replicas_that_the_metadata_does_not_assign_here_are_called_strays(
    node: OneNode, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        node.create(1, 2, number=number, name=f"t{number}")
    await node.settled()
    await put(node.here(0), b"a")
    await node.close()
    node.disk.fail_next("sync_directory", topic_id(0))  # cannot be opened
    node.change(replicas=(2,), isr=(2,), leader=2, number=1)  # moved while the node was down
    node.disk.remove(CHECKPOINT_NAME)
    with caplog.at_level(logging.WARNING):
        await node.open()
    assert node.replica(0) is None
    strays = [each.getMessage() for each in caplog.records if "stray" in each.getMessage()]
    assert strays == [
        f"stray replica {topic_id(1)}/0: the metadata does not assign it to this node; its files "
        "are kept"
    ]
