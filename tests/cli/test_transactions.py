"""`raftlog txn`, and writing in a transaction, on a real node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from click.testing import Result
from raftlog_client import (
    FencedError,
    PartitionOffsets,
    Producer,
    TopicPartition,
    TransactionDescription,
)

from raftlog.api.transactions import TransactionPartition
from raftlog.cli.transactions import HeldBack, duration, held_back_rows
from tests.cli.conftest import Run
from tests.cli.node import RunningNode
from tests.waiting import wait_until

T = TypeVar("T")


@pytest.fixture
def transactional_id() -> str:
    return f"txn-{uuid4().hex}"


def during_a_transaction(
    node: RunningNode, topic: str, transactional_id: str, look: Callable[[], T]
) -> T:
    """What a command shows while a transaction is open in partitions 0 and 2."""

    async def go() -> T:
        async with Producer(
            bootstrap_servers=node.address, transactional_id=transactional_id
        ) as producer:
            transaction = producer.transaction()
            await transaction.begin()
            for partition in (0, 2):
                await producer.send_and_wait(topic, b"open", partition=partition)
            found = await asyncio.to_thread(look)
            await aborted(transaction.abort)
            return found

    return asyncio.run(go())


async def aborted(abort: Callable[[], Awaitable[None]]) -> None:
    try:
        await abort()
    except FencedError:
        return


def wait_ended(run: Run, transactional_id: str) -> None:
    """Wait until the markers are written: the end is answered with the decision."""

    def is_complete() -> bool:
        described = run("txn", "describe", transactional_id, "--format", "json")
        return str(json.loads(described.stdout)["state"]).startswith("complete")

    wait_until(is_complete)


def test_open_transactions_and_what_they_hold_back_are_found(
    run: Run, produce: Run, node: RunningNode, topic: str, transactional_id: str
) -> None:
    produce(topic, "a\n", "--partition", "2")

    def look() -> tuple[Result, Result, Result, Result]:
        return (
            run("txn", "list", "--open"),
            run("txn", "list", "--held-back", "--topic", topic),
            run("txn", "list", "--held-back", "--format", "json"),
            run("txn", "describe", transactional_id),
        )

    listed, held, as_json, one = during_a_transaction(node, topic, transactional_id, look)
    rows = [line.split() for line in listed.stdout.splitlines()]
    assert rows[0] == [
        "TRANSACTIONAL-ID", "STATE", "OPEN", "PRODUCER-ID", "EPOCH", "COORDINATOR"
    ]  # fmt: skip
    assert [transactional_id, "ongoing"] in [row[:2] for row in rows]
    lines = [line.split() for line in held.stdout.splitlines()]
    assert [line[:7] for line in lines[1:]] == [
        [topic, "0", "0", "1", "1", transactional_id, "ongoing"],
        [topic, "2", "1", "2", "1", transactional_id, "ongoing"],
    ]
    assert lines[1][8] == "1m00s"
    found = json.loads(as_json.stdout)["partitions"]
    assert {(row["topic"], row["partition"]) for row in found} >= {(topic, 0), (topic, 2)}
    text = one.stdout.splitlines()
    assert text[0].startswith(f"{transactional_id}  (state ongoing, producer id ")
    assert "aborted after 1m00s without an end" in text[1]
    assert [line.split() for line in text[4:]] == [
        [topic, "0", "0", "1", "1"],
        [topic, "2", "1", "2", "1"],
    ]
    wait_ended(run, transactional_id)
    assert run("txn", "list", "--held-back", "-t", topic).stderr == (
        "No transaction holds a partition back.\n"
    )
    ids = [line.split()[0] for line in run("txn", "list").stdout.splitlines()]
    assert transactional_id in ids
    document = json.loads(run("txn", "describe", transactional_id, "--format", "json").stdout)
    assert document["state"] == "complete-abort"
    assert "no open transaction" in run("txn", "describe", transactional_id).stdout


def test_abort_fences_the_producer_after_a_confirmation(
    run: Run, produce: Run, node: RunningNode, topic: str, transactional_id: str
) -> None:
    def look() -> None:
        asked = run("txn", "abort", transactional_id, code=2)
        assert "--no-confirm" in asked.stderr
        run("txn", "abort", transactional_id, "--no-confirm")

    during_a_transaction(node, topic, transactional_id, look)
    wait_ended(run, transactional_id)
    again = run("txn", "abort", transactional_id, "--no-confirm", code=1)
    assert "`raftlog txn describe ID` shows the state" in again.stderr
    gone = run("txn", "describe", "nope", code=3)
    assert "`raftlog txn list` shows the transactional ids" in gone.stderr


def test_consume_ends_before_an_open_transaction(
    run: Run, produce: Run, node: RunningNode, topic: str, transactional_id: str
) -> None:
    produce(topic, "a\n", "--partition", "0")

    def look() -> tuple[str, str]:
        return (
            run("topic", "consume", topic).stdout,
            run("topic", "consume", topic, "--isolation", "read_uncommitted").stdout,
        )

    committed, all_records = during_a_transaction(node, topic, transactional_id, look)
    assert committed == "a\n"
    assert sorted(all_records.split()) == ["a", "open", "open"]


def test_input_is_written_in_one_transaction_or_not_at_all(
    run: Run, produce: Run, topic: str, transactional_id: str
) -> None:
    words = ("--transactional-id", transactional_id)
    bad = produce(topic, "1\n2\nno json\n", "-i", "ndjson", *words, code=2)
    assert "The transaction is aborted: nothing is written" in bad.stderr
    assert run("topic", "consume", topic).stdout == ""
    produce(topic, "1\n2\n", *words)
    wait_ended(run, transactional_id)
    assert sorted(run("topic", "consume", topic).stdout.split()) == ["1", "2"]
    produce(topic, "1\n", *words, "--acks", "1", code=2)


def test_flags_of_list_that_do_not_go_together(run: Run) -> None:
    run("txn", "list", "--topic", "t", code=2)
    run("txn", "list", "--held-back", "--open", code=2)


def offsets(last_stable: int, end: int) -> PartitionOffsets:
    return PartitionOffsets(0, end, end, "id", last_stable)


def description(name: str, open_ms: int, *partitions: int) -> Any:
    places = [TransactionPartition("t", number) for number in partitions]
    return TransactionDescription(name, 7, 3, "ongoing", 1, 60_000, 1, 2, open_ms, places)


def test_partition_without_a_known_transaction_is_shown_as_held_back() -> None:
    rows = held_back_rows(
        [description("young", 10, 0, 1), description("old", 99, 1)],
        {
            TopicPartition("t", 0): offsets(4, 5),
            TopicPartition("t", 1): offsets(0, 8),
            TopicPartition("t", 2): offsets(1, 3),
            TopicPartition("t", 3): offsets(3, 3),
        },
    )
    assert [(row.partition, row.transactional_id, row.waiting) for row in rows] == [
        (1, "old", 8),
        (0, "young", 1),
        (1, "young", 8),
        (2, None, 2),
    ]
    assert rows[3] == HeldBack("t", 2, 1, 3, 2, None, None, None, None)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0.000s"), (59_999, "59.999s"), (125_000, "2m05s"), (12_000_000, "3h20m")],
)
def test_durations_are_short(ms: int, text: str) -> None:
    assert duration(ms) == text
