"""The right to a transactional id is checked before a request reaches a coordinator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.broker.authorize import ANONYMOUS, Operation, Principal, Resource
from raftlog.broker.groups import Committer, GroupService, OpenTransaction
from raftlog.broker.shared import Closing
from raftlog.broker.transactions import Producer, TransactionService
from raftlog.record.errors import FORBIDDEN, LogError
from raftlog.record.types import ProducerEpoch, ProducerId

PRODUCER = Producer(ProducerId(4), ProducerEpoch(0))


class Coordinators:
    """Fails on each request."""

    async def call(self, *_arguments: object, **_named: object) -> bytes:
        pytest.fail("a request without the right")


def refuse(_principal: Principal, operation: Operation, resource: Resource) -> None:
    raise LogError(FORBIDDEN, f"{operation} {resource.name}")


@pytest.mark.parametrize(
    ("act", "wanted"),
    [
        (
            lambda service: service.init(
                ANONYMOUS, "t", timeout_ms=1, known=PRODUCER, keep_prepared=False
            ),
            "WRITE t",
        ),
        (lambda service: service.end(ANONYMOUS, "t", PRODUCER, is_commit=True), "WRITE t"),
        (lambda service: service.prepare(ANONYMOUS, "t", PRODUCER), "WRITE t"),
        (lambda service: service.fence(ANONYMOUS, "t"), "WRITE t"),
        (lambda service: service.describe(ANONYMOUS, "t"), "DESCRIBE t"),
        (lambda service: service.commit_sink_epoch(ANONYMOUS, "s", (), epoch=1), "WRITE sink/s"),
        (lambda service: service.describe_sink(ANONYMOUS, "s"), "DESCRIBE sink/s"),
    ],
)
async def test_each_call_needs_the_right_to_its_id(
    act: Callable[[TransactionService], Awaitable[object]], wanted: str
) -> None:
    services: Any = SimpleNamespace(coordinators=Coordinators())
    with pytest.raises(LogError) as refused:
        await act(TransactionService(services, refuse))
    assert (refused.value.entry, refused.value.message) == (FORBIDDEN, wanted)


@pytest.mark.parametrize("refused", ["WRITE t", "READ g"])
async def test_offsets_in_a_transaction_need_the_right_to_its_id_and_to_the_group(
    refused: str,
) -> None:
    def authorize(_principal: Principal, operation: Operation, resource: Resource) -> None:
        if f"{operation} {resource.name}" == refused:
            raise LogError(FORBIDDEN, refused)

    services: Any = SimpleNamespace(coordinators=Coordinators())
    nothing: Any = None
    service = GroupService(services, nothing, authorize, Closing())
    with pytest.raises(LogError) as raised:
        await service.commit(ANONYMOUS, "g", (), Committer(), OpenTransaction("t", PRODUCER))
    assert (raised.value.entry, raised.value.message) == (FORBIDDEN, refused)
