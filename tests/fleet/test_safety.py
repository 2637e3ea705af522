"""May a node stop: by the in-sync replicas of its partitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftlog.fleet.safety import PartitionState, may_stop


def partition(replicas: str, isr: str, min_isr: int, topic: str = "t") -> PartitionState:
    numbers = [tuple(map(int, word)) for word in (replicas, isr)]
    return PartitionState(topic, 0, numbers[0], numbers[1], min_isr)


def judged(node_id: int, *states: PartitionState) -> tuple[list[str], list[str]]:
    verdict = may_stop(node_id, states)
    return [one.topic for one in verdict.blocked], [one.topic for one in verdict.passed]


def test_node_may_stop_while_enough_others_are_in_sync() -> None:
    assert judged(1, partition("123", "123", 2)) == ([], [])
    assert judged(1, partition("123", "12", 1)) == ([], [])


def test_partition_at_its_minimum_blocks_until_another_replica_is_back() -> None:
    assert judged(1, partition("123", "12", 2)) == (["t"], [])
    assert judged(1, partition("123", "123", 2)) == ([], [])


def test_partition_with_too_few_replicas_is_passed() -> None:
    # Waiting would last for ever (Strimzi 2964).
    assert judged(1, partition("1", "1", 1)) == ([], ["t"])
    assert judged(1, partition("12", "12", 2)) == ([], ["t"])
    assert judged(1, partition("123", "123", 3)) == ([], ["t"])
    assert judged(1, partition("12", "12", 5)) == ([], ["t"])


def test_partition_without_another_replica_in_sync_blocks_whatever_its_minimum() -> None:
    assert judged(1, partition("12", "1", 1)) == (["t"], [])
    assert judged(1, partition("12", "1", 0)) == (["t"], [])


def test_replica_out_of_sync_is_needed_where_too_few_others_are_in_sync() -> None:
    assert judged(3, partition("123", "1", 2)) == (["t"], [])
    assert judged(3, partition("123", "12", 2)) == ([], [])


def test_other_nodes_partitions_do_not_count() -> None:
    assert judged(4, partition("123", "1", 2)) == ([], [])


@st.composite
def partitions(draw: st.DrawFn) -> PartitionState:
    replicas = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=5, unique=True)))
    isr = tuple(draw(st.lists(st.sampled_from(replicas), unique=True)))
    return PartitionState("t", draw(st.integers(0, 9)), replicas, isr, draw(st.integers(1, 5)))


@given(st.integers(1, 7), st.lists(partitions(), max_size=5))
def test_verdict_keeps_the_promise_of_acks_all(node_id: int, states: list[PartitionState]) -> None:
    verdict = may_stop(node_id, states)
    for state in states:
        left = set(state.isr) - {node_id}
        if state in verdict.blocked:
            # All replicas in sync would unblock it.
            assert len(set(state.replicas) - {node_id}) >= state.min_isr
        elif state in verdict.passed:
            assert len(state.replicas) <= state.min_isr
        elif node_id in state.replicas:
            assert len(left) >= state.min_isr
