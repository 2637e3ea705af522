"""Replication status of whole nodes."""

from __future__ import annotations

from raftlog.replication.manager import ReplicationStatus
from tests.simulation.data.data_world import DataWorld, Part, simulate_data

T = Part("t", 0)


def test_leader_and_followers_count_what_goes_between_them() -> None:
    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])

        def status(node_id: int) -> ReplicationStatus:
            return data.nodes.cores[node_id].services.replication()

        await data.write(T, 3)
        await data.in_sync()
        leader, follower = status(1), status(2)
        assert leader.bytes_out == status(2).bytes_in + status(3).bytes_in > 0
        assert (leader.followers_connected, leader.leaders_connected) == (2, 0)
        assert (follower.followers_connected, follower.leaders_connected) == (0, 1)
        assert leader.lag_records == {2: 0, 3: 0}
        assert (leader.under_min_isr, leader.at_min_isr) == (0, 0)
        for number in range(10):
            await data.producer(f"p{number}", routed=1.0).send(T)
        forwarded = sum(status(node_id).requests_forwarded for node_id in data.nodes.node_ids)
        assert forwarded == status(1).requests_taken > 0
        data.nodes.kill(3)
        await data.isr(T, 1, 2)
        await data.write(T)
        assert (status(1).isr_shrinks, status(1).at_min_isr) == (1, 1)
        assert status(1).lag_records == {2: 0, 3: 1}
        before = status(1).bytes_out
        data.nodes.start(3)
        await data.isr(T, 1, 2, 3)
        assert status(1).isr_expands == 1
        # Bytes sent on ended connections still count.
        assert status(1).bytes_out > before
        data.rot(2, T, segment=0)
        data.replica(2, T).log.declare_damaged("for a test")  # type: ignore[union-attr]
        assert (status(2).offline, status(2).repairs) == (1, 1)
        await data.in_sync()
        assert (status(2).offline, status(2).repairs) == (0, 0)

    simulate_data(test)
