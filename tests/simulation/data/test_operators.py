"""Unfinished operations are completed at the end of a history, in any order of their beginnings."""

from __future__ import annotations

from tests.simulation.data.data_world import DataWorld, simulate_data
from tests.simulation.data.nemesis import DataNemesis, DataRates
from tests.simulation.data.operators import REPEATED, OperatorRates, Operators


def test_a_wiped_broker_leaves_though_it_holds_a_topic_that_is_being_deleted() -> None:
    """The topic's replica was not reassigned, and the topic was to be deleted only after the broker
    had left, which the replica prevented (`data 41274`).
    """

    async def test(data: DataWorld) -> None:
        await data.create("t", [[1, 2, 3]])
        operators = Operators(data, OperatorRates(), DataNemesis(data, DataRates()))
        await operators._recreate()
        await data.nodes.until(operators._nemesis.is_calm)
        # Both are begun, and neither comes about.
        for node_id in data.nodes.node_ids:
            data.nodes.cut_off(node_id)
        operators.begin(((1e6, operators._recreate), (1e6, operators._wipe)))
        wiped = await data.nodes.until(lambda: operators._ending and operators._wiped)
        operators.stop()
        assert wiped in data.topic(REPEATED).partition(0).replicas

        data.heal()
        with data.supervised():
            await operators.finish()
        assert operators._is_back(wiped)
        assert data.replicas.newest is not None
        assert REPEATED not in data.replicas.newest.topics_by_name

    # A seed in which the wiped broker holds the deleted topic.
    simulate_data(test, seed=2, may_end=True, node_count=4)
