"""The verdict on an exactly-once chain: each mistake is found, and a sound chain has none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from raftlog_client import TopicPartition

from tests.soak.chain import ChainLogs, judge
from tests.soak.chain_clients import INPUT, PARTITIONS, input_value, output_value

COUNT = 60


def sound() -> ChainLogs:
    """Two generators, processed; offsets have gaps where markers are."""
    logs = ChainLogs({}, {}, {})
    for partition in range(PARTITIONS):
        source = TopicPartition(INPUT, partition)
        values = [
            input_value(generator, number)
            for number in range(partition, COUNT, PARTITIONS)
            for generator in (0, 1)
        ]
        logs.input[partition] = [(2 * place, value) for place, value in enumerate(values)]
        logs.output[partition] = [
            (3 * place, output_value(source, offset, value))
            for place, (offset, value) in enumerate(logs.input[partition])
        ]
        logs.watched[partition] = logs.output[partition][:-1]
    return logs


def test_a_sound_chain_has_no_anomaly() -> None:
    assert judge(sound()) == []


def lose_input(logs: ChainLogs) -> None:
    del logs.input[1][2], logs.output[1][2], logs.watched[1][2:]


def double_input(logs: ChainLogs) -> None:
    value = logs.input[1][4][1]
    logs.input[1].append((99, value))
    logs.output[1].append((99, output_value(TopicPartition(INPUT, 1), 99, value)))


def lose_output(logs: ChainLogs) -> None:
    del logs.output[2][3], logs.watched[2][3:]


def lose_the_last_output(logs: ChainLogs) -> None:
    del logs.output[2][-1]


def double_output(logs: ChainLogs) -> None:
    logs.output[2].append((99, logs.output[2][0][1]))


def swap_output(logs: ChainLogs) -> None:
    first, second = logs.output[3][4:6]
    logs.output[3][4:6] = [(first[0], second[1]), (second[0], first[1])]
    del logs.watched[3][4:]


def invent(logs: ChainLogs) -> None:
    logs.output[3].append((99, output_value(TopicPartition(INPUT, 3), 98, b"0:3")))


def see_an_aborted_record(logs: ChainLogs) -> None:
    logs.watched[4].insert(2, (5, b"aborted"))


def see_the_future(logs: ChainLogs) -> None:
    logs.watched[4] = [*logs.output[4], (99, b"aborted")]


def miss_a_record(logs: ChainLogs) -> None:
    del logs.watched[5][2]


@pytest.mark.parametrize(
    ("mistake", "kinds"),
    [
        (lose_input, {"lost"}),
        (double_input, {"doubled", "out of order"}),
        (lose_output, {"lost"}),
        (lose_the_last_output, {"lost"}),
        (double_output, {"doubled"}),
        (swap_output, {"out of order"}),
        (invent, {"from nowhere"}),
        (see_an_aborted_record, {"seen, not committed"}),
        (see_the_future, {"seen, not committed"}),
        (miss_a_record, {"seen, not committed"}),
    ],
)
def test_a_mistake_is_found(mistake: Callable[[ChainLogs], None], kinds: set[str]) -> None:
    logs = sound()
    mistake(logs)
    assert {anomaly.partition(":")[0] for anomaly in judge(logs)} == kinds
