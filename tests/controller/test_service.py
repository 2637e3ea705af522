"""Whole controller services against real state machines: see cluster.py for what is fake."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from raftlog.controller import ControllerSettings, RefusalReason, active
from raftlog.controller.messages import Heartbeat, encode_message
from raftlog.controller.sessions import Sessions
from raftlog.metadata.commands import (
    PARTITION_CHANGES_MAX,
    ChangePartitions,
    Command,
    FenceBroker,
    PartitionChange,
    UnfenceBroker,
    UnregisterBroker,
    encode_command,
)
from raftlog.metadata.image import NO_LEADER_ID
from raftlog.quorum import ConnectionEvent
from raftlog.record.types import BrokerEpoch, BrokerId
from tests.controller.clock import settle
from tests.controller.cluster import Cluster

SETTINGS = ControllerSettings()
LATE_S = SETTINGS.session_timeout_s + SETTINGS.heartbeat_s


@asynccontextmanager
async def running(
    voters: int = 3, *others: int, settings: ControllerSettings | None = None
) -> AsyncIterator[Cluster]:
    cluster = Cluster(voters, settings)
    await cluster.start(*others)
    try:
        yield cluster
        assert all(node.fatal == [] for node in cluster.nodes.values())
    finally:
        await cluster.close()


async def past_grace(cluster: Cluster) -> None:
    await cluster.clock.advance(SETTINGS.grace_s + SETTINGS.heartbeat_s)


async def test_registered_brokers_serve_at_once() -> None:
    async with running(3, 4) as cluster:
        assert cluster.clock.now == 1000.0
        assert cluster.fenced() == set()
        assert cluster.holders() == {1, 2, 3, 4}


async def test_brokers_that_are_there_stay_unfenced_and_keep_their_leases() -> None:
    async with running(3, 4) as cluster:
        proposals = len(cluster.proposals)
        await cluster.clock.advance(60.0)
        assert len(cluster.proposals) == proposals
        assert [len(node.lease) for node in cluster.nodes.values()] == [1, 1, 1, 1]


async def test_killed_broker_is_replaced_at_once() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3), (3, 2), (2, 1))
        await cluster.kill(2)
        assert cluster.clock.now == 1000.0
        assert cluster.fenced() == {2}
        assert cluster.leaders(1) == [3, 3, 1]
        assert cluster.row(1).isr == (3,)


async def test_brokers_that_die_together_do_not_succeed_each_other() -> None:
    async with running(3, 4) as cluster:
        cluster.create_topic(1, (2, 3, 4), (3, 2, 4))
        # Were the others alive, they would be preferred.
        cluster.create_topic(2, (4,), (4,), (4,))
        for node_id in (2, 3):
            cluster.cut_off.add(node_id)
        await past_grace(cluster)
        assert cluster.fenced() == {2, 3}
        assert cluster.leaders(1) == [4, 4]
        assert [row.leader_epoch for row in cluster.image.topic("t1").partitions] == [1, 1]


@pytest.mark.parametrize("offset_s", [0.0, 0.05, 0.1, 0.15, 0.2, 0.25])
async def test_cut_off_broker_stops_before_it_is_fenced(offset_s: float) -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3))
        await cluster.clock.advance(5.0 + offset_s)
        cut_at = cluster.clock.now
        cluster.cut_off.add(2)
        await cluster.clock.advance(LATE_S)
        stopped_at, holds = cluster.nodes[2].lease[-1]
        assert not holds
        assert stopped_at < cluster.fenced_at(2) <= cut_at + SETTINGS.session_timeout_s
        assert cluster.leaders(1) == [3]


async def test_end_of_a_lease_is_told_when_it_comes() -> None:
    async with running() as cluster:
        cluster.cut_off.add(2)
        while 2 in cluster.holders():
            await cluster.clock.advance(0.01)
        told_at, holds = cluster.nodes[2].lease[-1]
        assert not holds
        assert told_at == pytest.approx(cluster.clock.now, abs=0.011)


async def test_broker_that_is_reachable_again_serves_again() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2,))
        cluster.cut_off.add(2)
        await past_grace(cluster)
        assert cluster.leaders(1) == [NO_LEADER_ID]
        cluster.cut_off.clear()
        cluster.nodes[2].quorum.catch_up()
        await cluster.clock.advance(SETTINGS.heartbeat_s)
        assert cluster.fenced() == set()
        assert cluster.leaders(1) == [2]
        assert 2 in cluster.holders()


async def test_broker_that_has_not_applied_its_fencing_has_no_lease_and_stays_fenced() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3))
        cluster.cut_off.add(2)
        await past_grace(cluster)
        cluster.cut_off.clear()
        await cluster.clock.advance(3.0)
        assert cluster.nodes[2].image.partition("t1", 0).leader == 2
        assert cluster.fenced() == {2}
        assert 2 not in cluster.holders()


async def test_dead_controller_is_fenced_by_its_successor_at_once() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (1, 2))
        await cluster.kill(1)
        await cluster.clock.advance(0.5)
        await cluster.elect(3)
        assert cluster.fenced() == {1}
        assert cluster.leaders(1) == [2]


async def test_leases_outlive_an_election() -> None:
    async with running() as cluster:
        await cluster.clock.advance(5.2)
        await cluster.kill(1)
        await cluster.clock.advance(0.9)
        assert cluster.holders() == {2, 3}
        await cluster.elect(3)
        await cluster.clock.advance(SETTINGS.grace_s + 1.0)
        assert cluster.fenced() == {1}
        assert [len(cluster.nodes[n].lease) for n in (2, 3)] == [1, 1]


async def test_new_controller_gives_silent_brokers_a_grace() -> None:
    async with running() as cluster:
        await cluster.clock.advance(5.0)
        cluster.cut_off.add(3)
        await cluster.clock.advance(1.0)
        await cluster.elect(2)
        elected_at = cluster.clock.now
        await cluster.clock.advance(LATE_S)
        assert cluster.fenced() == {3}
        assert cluster.fenced_at(3) == elected_at + SETTINGS.grace_s


async def test_new_controller_finishes_what_the_one_before_began() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (3, 2))
        cluster.create_topic(2, (3,))
        await cluster.depose()
        cluster.leader_id = 2
        broker = cluster.image.brokers[BrokerId(3)]
        cluster.cut_off.add(3)
        cluster.commit(
            encode_command(FenceBroker(broker_id=BrokerId(3), broker_epoch=broker.broker_epoch))
        )
        await cluster.elect(2)
        await past_grace(cluster)
        assert cluster.leaders(1) == [2]
        assert cluster.leaders(2) == [NO_LEADER_ID]
        # This one unfences the broker and dies before the elections.
        cluster.cut_off.clear()
        await cluster.depose()
        cluster.leader_id = 2
        cluster.commit(
            encode_command(UnfenceBroker(broker_id=BrokerId(3), broker_epoch=broker.broker_epoch))
        )
        await cluster.elect(1)
        assert cluster.leaders(2) == [3]


async def test_restarted_broker_keeps_what_it_led_and_serves_at_once() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3))
        cluster.cut_off.add(2)
        await cluster.nodes[2].service.close()
        cluster.boot(2)
        cluster.cut_off.clear()
        await cluster.register(2)
        assert cluster.fenced() == set()
        assert cluster.leaders(1) == [2]
        assert 2 in cluster.holders()


async def test_started_broker_that_does_not_report_loses_what_it_led() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3))
        await cluster.nodes[2].service.close()
        cluster.boot(2)
        cluster.cut_off.add(2)
        await cluster.register(2)
        await past_grace(cluster)
        assert cluster.leaders(1) == [3]


async def test_older_incarnation_is_told_to_end() -> None:
    async with running() as cluster:
        old = cluster.nodes[2].service
        epoch = old.broker_epoch
        await cluster.register(2)
        assert epoch is not None
        assert cluster.nodes[2].refusals == []
        old.registered(epoch)
        await settle()
        await cluster.clock.advance(1.0)
        assert cluster.nodes[2].refusals == [RefusalReason.STALE_EPOCH]
        assert old.is_cut_off


async def test_unregistered_broker_is_told_to_register() -> None:
    async with running() as cluster:
        cluster.cut_off.add(3)
        await past_grace(cluster)
        epoch = cluster.nodes[3].service.broker_epoch
        assert epoch is not None
        cluster.commit(encode_command(UnregisterBroker(broker_id=BrokerId(3), broker_epoch=epoch)))
        cluster.cut_off.clear()
        await cluster.clock.advance(1.0)
        assert cluster.nodes[3].refusals == [RefusalReason.UNKNOWN_BROKER]
        await cluster.register(3)
        assert 3 in cluster.holders()


async def test_controller_that_is_behind_a_registration_does_not_end_its_broker() -> None:
    async with running() as cluster:
        cluster.nodes[2].service.registered(BrokerEpoch(1_000))
        await cluster.clock.advance(1.0)
        assert cluster.nodes[2].refusals == []


async def test_restart_is_not_fenced_for_the_death_of_the_process_before() -> None:
    async with running() as cluster:
        for handler in cluster.nodes[1].quorum.connection_handlers:
            handler(2, ConnectionEvent.DOWN)
        # It registers by way of another node, before the probe of its old address has ended.
        await cluster.register(2)
        for handler in cluster.nodes[1].quorum.connection_handlers:
            handler(2, ConnectionEvent.REFUSED)
        await settle()
        assert cluster.fenced() == set()


async def test_controlled_shutdown_leaves_nothing_to_lead() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3), (2, 1), (3, 2))
        await cluster.clock.advance(5.0)
        stopping = asyncio.create_task(cluster.nodes[2].service.shut_down(10.0))
        await cluster.clock.advance(0.1)
        assert stopping.done() and await stopping
        assert cluster.leaders(1) == [3, 1, 3]
        assert cluster.nodes[2].image.brokers[BrokerId(2)].controlled_shutdown
        assert cluster.fenced() == set()


async def test_controlled_shutdown_does_not_wait_for_what_nobody_can_take_over() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2,))
        stopping = asyncio.create_task(cluster.nodes[2].service.shut_down(10.0))
        await cluster.clock.advance(0.1)
        assert stopping.done() and await stopping


async def test_controlled_shutdown_ends_when_the_node_itself_knows_what_it_lost() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3))
        await settle()
        cluster.lagging.add(2)
        stopping = asyncio.create_task(cluster.nodes[2].service.shut_down(10.0))
        await cluster.clock.advance(1.0)
        assert cluster.leaders(1) == [3]
        assert not stopping.done()
        cluster.nodes[2].quorum.catch_up()
        await cluster.clock.advance(0.1)
        assert stopping.done() and await stopping


async def test_controlled_shutdown_does_not_wait_for_the_next_ordinary_heartbeat() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3))
        cluster.outcomes.extend(["applied", "refused"])
        stopping = asyncio.create_task(cluster.nodes[2].service.shut_down(10.0))
        await cluster.clock.advance(0.12)
        assert cluster.outcomes == deque()
        assert stopping.done() and await stopping


async def test_controlled_shutdown_gives_up_in_time_without_a_controller() -> None:
    async with running() as cluster:
        await cluster.depose()
        stopping = asyncio.create_task(cluster.nodes[2].service.shut_down(2.0))
        await cluster.clock.advance(1.9)
        assert not stopping.done()
        await cluster.clock.advance(0.2)
        assert await stopping is False


async def test_controller_itself_can_be_shut_down() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (1, 2))
        stopping = asyncio.create_task(cluster.nodes[1].service.shut_down(10.0))
        await cluster.clock.advance(0.1)
        assert stopping.done() and await stopping
        assert cluster.leaders(1) == [2]


async def test_only_voter_holds_its_lease_while_its_quorum_is_active() -> None:
    async with running(1) as cluster:
        service = cluster.nodes[1].service
        assert await service.shut_down(0.0)
        await cluster.clock.advance(5.0)
        cluster.clock.jump(60.0)
        assert cluster.holders() == {1}
        await cluster.depose()
        assert cluster.holders() == set()
        assert cluster.nodes[1].lease[-1][1] is False


async def test_paused_node_finds_its_lease_ended_before_anybody_tells_it() -> None:
    async with running() as cluster:
        await cluster.clock.advance(5.0)
        cluster.clock.jump(SETTINGS.session_timeout_s)
        assert cluster.holders() == set()


async def test_unregistered_node_has_no_lease() -> None:
    cluster = Cluster(1)
    cluster.boot(1)
    await cluster.elect(1)
    await cluster.clock.advance(1.0)
    assert cluster.nodes[1].service.is_cut_off
    await cluster.close()


async def test_controller_that_cannot_know_of_a_successor_grants_no_leases() -> None:
    async with running() as cluster:
        cluster.fallback_s = 10.0
        cluster.heard_s = SETTINGS.session_timeout_s + 0.1
        await cluster.clock.advance(SETTINGS.session_timeout_s)
        assert cluster.holders() == set()
        cluster.heard_s = 1.0
        await cluster.clock.advance(SETTINGS.heartbeat_s)
        assert cluster.holders() == {1, 2, 3}
        assert all(node.lease[-1][0] > 1000.3 for node in cluster.nodes.values())
        cluster.cut_off = {2}
        await cluster.clock.advance(0.35)
        # A lease of 1.35 s, less the second for which the controller could not prove itself.
        assert 2 not in cluster.holders()


async def test_controller_without_a_majority_refuses_heartbeats_until_it_has_one() -> None:
    async with running() as cluster:
        cluster.fallback_s = cluster.heard_s = math.inf
        await cluster.clock.advance(SETTINGS.session_timeout_s)
        assert cluster.holders() == set()
        cluster.heard_s = 0.0
        await cluster.clock.advance(2 * SETTINGS.retry_s)
        assert cluster.holders() == {1, 2, 3}


async def test_preferred_leaders_get_their_leadership_back() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3))
        row = cluster.row(1)
        await move(cluster, 3)
        assert cluster.leaders(1) == [3]
        await cluster.clock.advance(29.0)
        assert cluster.leaders(1) == [3]
        await cluster.clock.advance(2.0)
        assert cluster.leaders(1) == [2]
        assert cluster.row(1).leader_epoch == row.leader_epoch + 2


async def test_preferred_leaders_can_be_left_alone() -> None:
    settings = ControllerSettings(preferred_leaders_s=None)
    async with running(settings=settings) as cluster:
        cluster.create_topic(1, (2, 3))
        await move(cluster, 3)
        await cluster.clock.advance(120.0)
        assert cluster.leaders(1) == [3]


async def move(cluster: Cluster, leader: int) -> None:
    """Let another replica lead t1."""
    commit_change(cluster, leader=BrokerId(leader))
    await settle()


def commit_change(
    cluster: Cluster, *, leader: BrokerId | None = None, isr: tuple[BrokerId, ...] | None = None
) -> None:
    """Change the partition t1-0."""
    row = cluster.row(1)
    change = PartitionChange(
        topic_id=cluster.image.topic("t1").topic_id,
        partition=row.partition,
        partition_epoch=row.partition_epoch,
        leader=leader,
        isr=isr,
    )
    assert cluster.commit(encode_command(ChangePartitions(changes=(change,)))).delta


def move_all(cluster: Cluster, leader: BrokerId) -> None:
    """Let another replica lead all of t1."""
    topic = cluster.image.topic("t1")
    changes = [
        PartitionChange(
            topic_id=topic.topic_id,
            partition=row.partition,
            partition_epoch=row.partition_epoch,
            leader=leader,
        )
        for row in topic.partitions
    ]
    while changes:
        batch = tuple(changes[:PARTITION_CHANGES_MAX])
        del changes[:PARTITION_CHANGES_MAX]
        assert cluster.commit(encode_command(ChangePartitions(changes=batch))).delta


async def test_many_partitions_are_moved_in_bounded_commands() -> None:
    async with running() as cluster:
        count = 2 * PARTITION_CHANGES_MAX + 1
        cluster.create_topic(1, *([(2, 3)] * count))
        del cluster.proposals[:]
        await cluster.kill(2)
        await settle()
        assert cluster.leaders(1) == [3] * count
        sizes = [len(c.changes) for c in cluster.proposals if isinstance(c, ChangePartitions)]
        assert max(sizes) <= PARTITION_CHANGES_MAX
        assert sum(sizes) == count


@pytest.mark.parametrize("outcome", ["refused", "lost", "unknown"])
@pytest.mark.parametrize("position", [0, 1, 2])
async def test_failed_proposals_are_repeated_with_growing_pauses(
    outcome: str, position: int
) -> None:
    async with running() as cluster:
        cluster.create_topic(1, *([(2, 3)] * (PARTITION_CHANGES_MAX + 1)))
        del cluster.proposals[:]
        cluster.outcomes.extend(["applied"] * position + [outcome] * 6)
        await cluster.kill(2)
        await cluster.clock.advance(0.01)
        assert len(cluster.proposals) == position + 1
        await cluster.clock.advance(1.0)
        assert cluster.outcomes
        await cluster.clock.advance(10.0)
        assert len(cluster.proposals) < 12
        assert cluster.fenced() == {2}
        assert set(cluster.leaders(1)) == {3}


async def test_change_that_came_too_late_is_planned_anew() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2, 3, 1))

        def leader_shrinks_isr(command: Command) -> None:
            if isinstance(command, ChangePartitions):
                cluster.before_commit = None
                commit_change(cluster, isr=(BrokerId(2), BrokerId(3)))

        cluster.before_commit = leader_shrinks_isr
        await cluster.kill(2)
        assert sum(isinstance(c, ChangePartitions) for c in cluster.proposals) == 2
        assert cluster.leaders(1) == [3]
        assert cluster.row(1).isr == (3,)


async def test_dead_broker_does_not_wait_for_the_return_of_many_leaders() -> None:
    async with running() as cluster:
        count = 3 * PARTITION_CHANGES_MAX
        cluster.create_topic(1, *([(2, 1)] * count))
        cluster.create_topic(2, (3, 1))
        move_all(cluster, BrokerId(1))
        assert set(cluster.leaders(1)) == {1}
        del cluster.proposals[:]

        def broker_dies(command: Command) -> None:
            cluster.before_commit = None
            assert isinstance(command, ChangePartitions)
            cluster.cut_off.add(3)
            for handler in cluster.nodes[1].quorum.connection_handlers:
                handler(3, ConnectionEvent.REFUSED)

        cluster.before_commit = broker_dies
        await cluster.clock.advance(31.0)
        assert isinstance(cluster.proposals[1], FenceBroker)
        assert cluster.leaders(2) == [1]
        assert set(cluster.leaders(1)) == {2}


async def test_elections_that_were_interrupted_are_held_after_what_was_more_urgent() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2,))
        cluster.cut_off.add(2)
        await past_grace(cluster)
        cluster.cut_off.clear()
        cluster.nodes[2].quorum.catch_up()
        del cluster.proposals[:]

        def broker_dies(command: Command) -> None:
            cluster.before_commit = None
            assert isinstance(command, UnfenceBroker)
            cluster.cut_off.add(3)
            for handler in cluster.nodes[1].quorum.connection_handlers:
                handler(3, ConnectionEvent.REFUSED)

        cluster.before_commit = broker_dies
        await cluster.clock.advance(SETTINGS.heartbeat_s)
        assert isinstance(cluster.proposals[1], FenceBroker)
        assert cluster.leaders(1) == [2]


async def test_rest_of_a_plan_does_not_follow_a_command_that_was_refused() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2,))
        cluster.cut_off.add(2)
        await past_grace(cluster)
        cluster.cut_off.clear()
        cluster.nodes[2].quorum.catch_up()
        del cluster.proposals[:]

        def broker_is_started_again(command: Command) -> None:
            cluster.before_commit = None
            assert isinstance(command, UnfenceBroker)
            cluster.commit_registration(2)

        cluster.before_commit = broker_is_started_again
        await cluster.clock.advance(SETTINGS.heartbeat_s)
        assert [type(command) for command in cluster.proposals] == [UnfenceBroker]
        assert cluster.fenced() == {2}


async def test_elections_are_held_although_they_failed_at_first() -> None:
    async with running() as cluster:
        cluster.create_topic(1, (2,))
        cluster.cut_off.add(2)
        await past_grace(cluster)
        cluster.cut_off.clear()
        cluster.nodes[2].quorum.catch_up()
        cluster.outcomes.extend(["applied", "refused"])
        await cluster.clock.advance(SETTINGS.heartbeat_s)
        assert cluster.outcomes == deque()
        await cluster.clock.advance(1.0)
        assert cluster.leaders(1) == [2]


async def test_fenced_broker_counts_as_fenced_while_nobody_knows_the_outcome() -> None:
    async with running() as cluster:
        await past_grace(cluster)
        cluster.outcomes.append("lost")
        cluster.cut_off.add(2)
        while not cluster.nodes[2].service.is_cut_off or cluster.outcomes:
            await cluster.clock.advance(0.01)
        cluster.cut_off.clear()
        cluster.nodes[2].service.registered(cluster.image.brokers[BrokerId(2)].broker_epoch)
        await settle()
        assert cluster.fenced() == set()
        assert 2 not in cluster.holders()
        await cluster.clock.advance(1.0)
        assert cluster.fenced() == set()
        assert 2 in cluster.holders()
        assert sum(isinstance(c, FenceBroker) for c in cluster.proposals) == 2


async def test_controller_that_is_replaced_proposes_nothing_more() -> None:
    async with running() as cluster:
        cluster.create_topic(1, *([(2, 3)] * (2 * PARTITION_CHANGES_MAX)))
        cluster.dead.add(2)
        del cluster.proposals[:]
        for handler in cluster.nodes[1].quorum.connection_handlers:
            handler(2, ConnectionEvent.REFUSED)
        while len(cluster.proposals) < 2:  # noqa: ASYNC110 - turns of the loop, not time
            await asyncio.sleep(0)
        # Its member has learnt of it, its controller has not been told.
        cluster.nodes[1].quorum.claims_activity = False
        await cluster.clock.advance(10.0)
        assert len(cluster.proposals) == 2


async def test_controller_that_was_replaced_in_between_begins_anew() -> None:
    async with running() as cluster:
        await past_grace(cluster)
        cluster.cut_off.add(2)
        await cluster.clock.advance(1.4)
        cluster.nodes[1].quorum.term += 2
        await cluster.clock.advance(1.4)
        assert cluster.fenced() == set()
        await cluster.clock.advance(0.5)
        assert cluster.fenced() == {2}


async def test_failure_of_a_decision_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(image: object, broker_id: object) -> None:
        raise AssertionError("broken plan")

    cluster = Cluster()
    await cluster.start()
    monkeypatch.setattr(active, "plan_fencing", broken)
    await cluster.kill(2)
    assert len(cluster.nodes[1].fatal) == 1
    assert "broken plan" in cluster.nodes[1].fatal[0]
    assert cluster.nodes[3].fatal == []
    await cluster.close()


async def test_failure_of_a_handler_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    await cluster.start()
    monkeypatch.setattr(Sessions, "heard", None)
    await cluster.clock.advance(SETTINGS.heartbeat_s)
    assert cluster.nodes[1].fatal
    await cluster.close()


def unreadable() -> bytes:
    return b"\x00" * 5_000


def in_the_name_of_broker_3() -> bytes:
    return encode_message(
        Heartbeat(
            sequence=1,
            broker_id=BrokerId(3),
            broker_epoch=BrokerEpoch(3),
            applied_index=10,
            stopping=True,
        )
    )


@pytest.mark.parametrize("message", [unreadable, in_the_name_of_broker_3])
async def test_message_that_makes_no_sense_is_ignored_and_reported_once(
    message: Callable[[], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as cluster:
        caplog.clear()
        for _ in range(3):
            cluster.deliver(2, 1, message())
        await cluster.clock.advance(1.0)
        assert len([each for each in caplog.records if "is ignored" in each.message]) == 1
        assert not cluster.image.brokers[BrokerId(3)].controlled_shutdown
        assert cluster.holders() == {1, 2, 3}


async def test_closed_service_does_nothing() -> None:
    async with running() as cluster:
        for node in cluster.nodes.values():
            await node.service.close()
        del cluster.proposals[:]
        cluster.deliver(2, 1, unreadable())
        await cluster.elect(2)
        await cluster.clock.advance(10.0)
        assert cluster.proposals == []
