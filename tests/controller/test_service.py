"""Leases and fencings: see cluster.py for the faked parts."""

from __future__ import annotations

import math

import pytest

from raftlog.controller import RefusalReason
from raftlog.controller.heartbeat import RETRY_S
from raftlog.controller.messages import HEARTBEAT_S
from raftlog.metadata.commands import (
    ClusterCreated,
    FenceBroker,
    UnfenceBroker,
    UnregisterBroker,
    encode_command,
)
from raftlog.metadata.image import NO_LEADER_ID
from raftlog.raft import ConnectionEvent
from raftlog.record.types import BrokerEpoch, BrokerId
from tests.controller.clock import settle
from tests.controller.cluster import Cluster
from tests.controller.running import SESSION_S, past_grace, running

LATE_S = SESSION_S + HEARTBEAT_S


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
        assert stopped_at < cluster.fenced_at(2) <= cut_at + SESSION_S
        assert cluster.leaders(1) == [3]


async def test_end_of_a_lease_is_notified_in_time() -> None:
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
        await cluster.clock.advance(HEARTBEAT_S)
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
        await cluster.clock.advance(SESSION_S + 1.0)
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
        assert cluster.fenced_at(3) == elected_at + SESSION_S


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


async def test_older_incarnation_is_rejected_and_must_end() -> None:
    async with running() as cluster:
        old = cluster.nodes[2].service
        epoch = old.permit.broker_epoch
        await cluster.register(2)
        assert epoch is not None
        assert cluster.nodes[2].refusals == []
        old.registered(epoch)
        await settle()
        await cluster.clock.advance(1.0)
        assert cluster.nodes[2].refusals == [RefusalReason.STALE_EPOCH]
        assert old.permit.is_cut_off


async def test_unregistered_broker_is_rejected_and_must_register() -> None:
    async with running() as cluster:
        cluster.cut_off.add(3)
        await past_grace(cluster)
        epoch = cluster.nodes[3].service.permit.broker_epoch
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


async def test_controller_term_grants_no_lease_before_its_earlier_proposals_are_applied() -> None:
    async with running() as cluster:
        await past_grace(cluster)
        quorum = cluster.nodes[1].quorum
        assert quorum.is_active

        def become(active: bool) -> None:
            quorum.claims_activity = active
            for handler in quorum.role_handlers:
                handler()

        become(False)
        quorum.unapplied = 1
        become(True)
        await cluster.clock.advance(3.0)
        assert cluster.holders() == set()
        quorum.unapplied = 0
        cluster.commit(encode_command(ClusterCreated(cluster_id="c", created_ms=0)))
        await cluster.clock.advance(1.0)
        assert cluster.holders() == {1, 2, 3}


async def test_restart_is_not_fenced_for_the_death_of_the_process_before() -> None:
    async with running() as cluster:
        for handler in cluster.nodes[1].quorum.connection_handlers:
            handler(2, ConnectionEvent.DOWN)
        # The broker registers by way of another node, before the probe of its old address has
        # ended.
        await cluster.register(2)
        for handler in cluster.nodes[1].quorum.connection_handlers:
            handler(2, ConnectionEvent.REFUSED)
        await settle()
        assert cluster.fenced() == set()


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
        cluster.clock.jump(SESSION_S)
        assert cluster.holders() == set()


async def test_lapse_of_a_lease_is_notified_though_the_next_answer_renews_it() -> None:
    """Commits withheld meanwhile go on with the notification that the lease has begun."""
    async with running() as cluster:
        await cluster.clock.advance(5.0)
        cluster.clock.jump(SESSION_S)
        await cluster.clock.advance(HEARTBEAT_S)
        for node in cluster.nodes.values():
            assert [valid for _, valid in node.lease] == [True, False, True]


async def test_unregistered_node_has_no_lease() -> None:
    cluster = Cluster(1)
    cluster.boot(1)
    await cluster.elect(1)
    await cluster.clock.advance(1.0)
    assert cluster.nodes[1].service.permit.is_cut_off
    await cluster.close()


async def test_controller_that_cannot_know_of_a_successor_grants_no_leases() -> None:
    async with running() as cluster:
        cluster.fallback_s = 10.0
        cluster.heard_s = SESSION_S + 0.1
        await cluster.clock.advance(SESSION_S)
        assert cluster.holders() == set()
        cluster.heard_s = 1.0
        await cluster.clock.advance(HEARTBEAT_S)
        assert cluster.holders() == {1, 2, 3}
        assert all(node.lease[-1][0] > 1000.3 for node in cluster.nodes.values())
        cluster.cut_off = {2}
        await cluster.clock.advance(0.35)
        # A lease of 1.35 s, less the second for which the controller could not prove itself.
        assert 2 not in cluster.holders()


async def test_controller_without_a_majority_refuses_heartbeats_until_it_has_one() -> None:
    async with running() as cluster:
        cluster.fallback_s = cluster.heard_s = math.inf
        await cluster.clock.advance(SESSION_S)
        assert cluster.holders() == set()
        cluster.heard_s = 0.0
        await cluster.clock.advance(2 * RETRY_S)
        assert cluster.holders() == {1, 2, 3}
