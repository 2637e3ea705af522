"""The leader's question before the first batch of a transaction, over a real log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftlog.coordinator.transactions import verification
from raftlog.coordinator.transactions.messages import Done, Response, TopicPartition, Verified
from raftlog.coordinator.transactions.verification import VerifiedTransactions
from raftlog.peer.tasks import TaskGroup
from raftlog.record.control import Marker
from raftlog.record.errors import (
    CONCURRENT_TRANSACTIONS,
    INVALID_BODY,
    INVALID_TOPIC,
    NO_LEADER,
    PRODUCER_FENCED,
    TRANSACTION_NOT_VERIFIED,
    LogError,
)
from raftlog.record.types import ProducerEpoch, ProducerId
from raftlog.replication.partition import Acks
from raftlog.storage.types import AppendResult
from raftlog.world.time import SystemClock
from tests.coordinator.scripted_coordinator import ScriptedCoordinator
from tests.http.fakes import FakeMetadata
from tests.replication.pair import Node, one, row
from tests.storage.transactional import transactional
from tests.waiting import until


class Leader:
    """The partition t-0, led here."""

    def __init__(self, node: Node, tasks: TaskGroup, metadata: FakeMetadata) -> None:
        self.node = node
        self.coordinator = ScriptedCoordinator()
        coordinators: Any = self.coordinator
        image: Any = metadata
        self.transactions = VerifiedTransactions(coordinators, image, SystemClock(), tasks)

    @classmethod
    async def start(cls) -> Leader:
        metadata = FakeMetadata(brokers=1)
        await metadata.create_topic("__transaction_state", partitions=4)
        node = Node(1, {})
        await node.open(row(1, 1, isr=(1,), replicas=(1,)))
        return cls(node, TaskGroup(pytest.fail), metadata)

    def append(
        self, sequence: int, value: bytes = b"v", *, producer: int = 4, epoch: int = 0
    ) -> asyncio.Task[list[AppendResult]]:
        batch = transactional([value], producer, sequence, epoch=epoch)
        return asyncio.ensure_future(
            self.transactions.append(
                self.node.partition,
                [batch],
                transactional_id=f"t{producer}",
                acks=Acks.LEADER,
                timeout_s=5.0,
            )
        )

    async def end(self, *, producer: int = 4, epoch: int = 0) -> None:
        await self.transactions.write_marker(
            self.node.partition,
            ProducerId(producer),
            ProducerEpoch(epoch),
            Marker(commit=True, coordinator_epoch=1, is_epoch_next=epoch > 0),
            timeout_s=5.0,
        )


async def refusal(append: asyncio.Task[list[AppendResult]]) -> LogError:
    with pytest.raises(LogError) as raised:
        await append
    return raised.value


async def test_only_the_first_batch_of_a_transaction_asks() -> None:
    leader = await Leader.start()
    for sequence in range(3):
        await leader.append(sequence)
    (asked,) = leader.coordinator.asked
    (verification,) = asked.verifications
    assert verification.transactional_id == "t4"
    assert verification.producer == (4, 0)
    assert verification.partitions == (TopicPartition("t", 0),)
    assert verification.is_addition
    await leader.end()
    await leader.append(3)
    assert len(leader.coordinator.asked) == 2


async def test_a_coordinators_partition_takes_no_marker() -> None:
    """No transaction includes it, and its shard has no use for a marker."""
    leader = await Leader.start()
    leader.node.partition.topic = "__transaction_state"
    with pytest.raises(LogError) as raised:
        await leader.end()
    assert raised.value.entry is INVALID_TOPIC
    assert leader.node.partition.log_end_offset == 0


@pytest.mark.parametrize("response", [Done(), Verified(()), Verified((None, None))])
async def test_a_response_to_other_questions_confirms_nothing(response: Response) -> None:
    leader = await Leader.start()
    leader.coordinator.response = response
    for _ in range(2):
        assert (await refusal(leader.append(0))).entry is TRANSACTION_NOT_VERIFIED
    leader.coordinator.response = None
    await leader.append(0)


async def test_later_batches_wait_behind_the_first_in_the_order_of_the_calls() -> None:
    leader = await Leader.start()
    leader.coordinator.answers.clear()
    appends = [leader.append(sequence) for sequence in range(5)]
    await until(lambda: leader.coordinator.asked)
    assert leader.node.partition.log_end_offset == 0
    leader.coordinator.answers.set()
    offsets = [result[0].base_offset for result in await asyncio.gather(*appends)]
    assert offsets == list(range(5))


async def test_other_producers_do_not_wait_and_share_one_request() -> None:
    leader = await Leader.start()
    await asyncio.gather(*(leader.append(0, producer=producer) for producer in range(4, 20)))
    by_shard = [len(asked.verifications) for asked in leader.coordinator.asked]
    assert sum(by_shard) == 16
    assert len(by_shard) <= 4


async def test_a_refusal_writes_nothing_and_the_next_batch_asks_again() -> None:
    leader = await Leader.start()
    leader.coordinator.outcomes.append(LogError(PRODUCER_FENCED))
    first, second = leader.append(0), leader.append(1)
    assert (await refusal(first)).entry is PRODUCER_FENCED
    with pytest.raises(LogError):
        await second
    assert leader.node.partition.log_end_offset == 0
    await leader.append(0)
    assert len(leader.coordinator.asked) == 3


async def test_the_markers_of_the_transaction_before_are_waited_for() -> None:
    leader = await Leader.start()
    leader.coordinator.outcomes.extend(LogError(CONCURRENT_TRANSACTIONS) for _ in range(3))
    await leader.append(0)
    assert len(leader.coordinator.asked) == 4


async def test_a_next_transaction_asks_once_the_marker_of_the_one_before_is_here() -> None:
    leader = await Leader.start()
    await leader.append(0)
    following = leader.append(0, epoch=1)
    await leader.append(0, producer=5)
    asked = len(leader.coordinator.asked)
    await leader.end(epoch=1)
    (result,) = await following
    assert (result.base_offset, len(leader.coordinator.asked)) == (3, asked + 1)


async def test_without_the_marker_the_question_is_asked_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verification, "CONCURRENT_S_MAX", 0.05)
    leader = await Leader.start()
    await leader.append(0)
    leader.coordinator.outcomes.append(LogError(CONCURRENT_TRANSACTIONS))
    error = await refusal(leader.append(0, epoch=1))
    assert error.entry is CONCURRENT_TRANSACTIONS


async def test_without_an_answer_of_the_coordinator_nothing_is_written_for_sure() -> None:
    leader = await Leader.start()
    leader.coordinator.error = LogError(NO_LEADER, "Nobody leads it.")
    error = await refusal(leader.append(0))
    assert error.entry is TRANSACTION_NOT_VERIFIED
    assert error.entry.retriable
    assert not error.entry.outcome_unknown
    assert "Nobody leads it." in error.message


async def test_a_marker_between_question_and_answer_refuses_the_batch() -> None:
    leader = await Leader.start()
    leader.coordinator.answers.clear()
    late = leader.append(0)
    await until(lambda: leader.coordinator.asked)
    await leader.end()
    leader.coordinator.answers.set()
    assert (await refusal(late)).entry is TRANSACTION_NOT_VERIFIED
    # The marker alone.
    assert leader.node.partition.log_end_offset == 1


async def test_a_late_marker_does_not_end_the_next_transaction() -> None:
    leader = await Leader.start()
    await leader.append(0)
    await leader.end(epoch=1)
    await leader.append(0, epoch=1)
    with pytest.raises(LogError) as late:
        await leader.end(epoch=1)
    assert late.value.entry is PRODUCER_FENCED
    assert leader.node.partition.last_stable_offset == 2


async def test_batches_outside_of_a_transaction_are_refused() -> None:
    leader = await Leader.start()
    with pytest.raises(LogError) as raised:
        await leader.transactions.append(
            leader.node.partition,
            one(b"v"),
            transactional_id="t",
            acks=Acks.LEADER,
            timeout_s=1.0,
        )
    assert raised.value.entry is INVALID_BODY
