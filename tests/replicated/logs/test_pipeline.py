"""Commands from call to result, and the errors on the way."""

from __future__ import annotations

import asyncio

import pytest
from raftlog_replicated.codec import Commands
from raftlog_replicated.errors import (
    NotPrimaryError,
    OutcomeUnknownError,
    OverloadedError,
    ReplicaEndedError,
    TooManyRequestsError,
)
from raftlog_replicated.logs import pipeline as pipeline_module
from raftlog_replicated.logs.pipeline import Pipeline
from raftlog_replicated.types import Applied, Token

MOVED = NotPrimaryError("h:1", 2)


class Calls:
    """A pipeline of text commands, and the futures of its callers."""

    def __init__(self) -> None:
        self.pipeline: Pipeline[str, str] = Pipeline()

    def add(
        self, text: str, *, request_id: str | None = None, deadline: float = 10.0
    ) -> asyncio.Future[Applied[str]]:
        done: asyncio.Future[Applied[str]] = asyncio.get_running_loop().create_future()
        self.pipeline.add(text, text.encode(), request_id, deadline, done)
        return done


async def test_queued_commands_are_one_batch_in_the_order_of_the_calls() -> None:
    calls = Calls()
    futures = [calls.add("a"), calls.add("b", request_id="r"), calls.add("c")]
    assert calls.pipeline.has_queued
    batch = calls.pipeline.next_batch(3)
    assert batch is not None
    assert batch.entry == Commands(3, 0, [b"a", b"b", b"c"], {1: "r"})
    assert batch.commands == ["a", "b", "c"]
    assert calls.pipeline.next_batch(3) is None
    assert calls.pipeline.take_sent(batch.entry) is batch
    batch.applied(["A", TooManyRequestsError("full"), "C"], Token(3, 9))
    assert await futures[0] == Applied("A", Token(3, 9))
    with pytest.raises(TooManyRequestsError):
        await futures[1]
    assert (await futures[2]).result == "C"


async def test_batches_are_numbered_in_their_term() -> None:
    calls = Calls()
    found = []
    for term in (1, 1, 2):
        calls.add("a")
        batch = calls.pipeline.next_batch(term)
        assert batch is not None
        found.append((batch.entry.term, batch.entry.number))
    assert found == [(1, 0), (1, 1), (2, 0)]


async def test_a_batch_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module, "BATCH_BYTES_MAX", 40)
    calls = Calls()
    for text in ("a" * 10, "b" * 10, "c" * 100):
        calls.add(text)
    sizes = []
    while (batch := calls.pipeline.next_batch(1)) is not None:
        sizes.append([len(one) for one in batch.entry.payloads])
    assert sizes == [[10], [10], [100]]


async def test_a_command_without_a_caller_is_not_sent() -> None:
    calls = Calls()
    calls.add("a").cancel()
    kept = calls.add("b")
    batch = calls.pipeline.next_batch(1)
    assert batch is not None
    assert batch.entry.payloads == [b"b"]
    assert not kept.done()


async def test_bounds_are_errors_and_nothing_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module, "QUEUED_MAX", 2)
    calls = Calls()
    with pytest.raises(ValueError, match="allowed"):
        calls.add("x" * (pipeline_module.COMMAND_BYTES_MAX + 1))
    assert not calls.pipeline.has_queued
    calls.add("a")
    calls.add("b")
    with pytest.raises(OverloadedError):
        calls.add("c")
    monkeypatch.setattr(pipeline_module, "QUEUED_MAX", 9)
    monkeypatch.setattr(pipeline_module, "QUEUED_BYTES_MAX", 3)
    with pytest.raises(OverloadedError):
        calls.add("cd")
    # Taken ones no longer count.
    calls.pipeline.next_batch(1)
    calls.add("cd")


async def test_a_later_fence_settles_unknown_outcomes() -> None:
    calls = Calls()
    old, newer = calls.add("a"), None
    calls.pipeline.next_batch(1)
    newer = calls.add("b")
    calls.pipeline.next_batch(2)
    calls.pipeline.fenced(2, MOVED)
    with pytest.raises(NotPrimaryError):
        await old
    assert not newer.done()


async def test_a_primary_no_longer_refuses_the_queue_and_keeps_the_sent() -> None:
    calls = Calls()
    sent = calls.add("a")
    batch = calls.pipeline.next_batch(1)
    queued = calls.add("b")
    calls.pipeline.refuse_queued(MOVED)
    with pytest.raises(NotPrimaryError):
        await queued
    assert not sent.done()
    assert not calls.pipeline.has_queued
    assert batch is not None
    taken = calls.pipeline.take_sent(batch.entry)
    assert taken is batch
    assert calls.pipeline.take_sent(batch.entry) is None


async def test_deadlines() -> None:
    calls = Calls()
    sent, patient = calls.add("a", deadline=5), calls.add("b", deadline=7)
    calls.pipeline.next_batch(1)
    queued = calls.add("c", deadline=5)
    calls.pipeline.expire(4.9, MOVED)
    assert not (sent.done() or queued.done())
    calls.pipeline.expire(5, MOVED)
    with pytest.raises(OutcomeUnknownError):
        await sent
    with pytest.raises(NotPrimaryError):
        await queued
    assert not patient.done()
    assert calls.pipeline.next_batch(1) is None, "an expired command did not happen"


async def test_the_end_settles_all() -> None:
    calls = Calls()
    sent = calls.add("a")
    calls.pipeline.next_batch(1)
    queued = calls.add("b")
    calls.pipeline.end(ReplicaEndedError("closed"))
    with pytest.raises(OutcomeUnknownError, match="closed"):
        await sent
    with pytest.raises(ReplicaEndedError):
        await queued
