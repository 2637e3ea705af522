"""The right to a transactional id is checked before a request reaches a coordinator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog.broker.authorize import ANONYMOUS, Operation, Principal, Resource, allow_all
from raftlog.broker.groups import Committer, GroupService, OpenTransaction
from raftlog.broker.shared import Closing
from raftlog.broker.transactions import Producer, TransactionService
from raftlog.record.control import Marker
from raftlog.record.errors import FORBIDDEN, INVALID_BODY, LogError
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


@pytest.mark.parametrize("any_node", [True, False])
@pytest.mark.parametrize(
    ("producer_id", "epoch", "coordinator"), [(-1, 0, 0), (4, -1, 0), (4, 0, -1)]
)
async def test_a_marker_with_a_negative_number_reaches_no_leader(
    producer_id: int, epoch: int, coordinator: int, *, any_node: bool
) -> None:
    """Another node would end its connection, with all requests on it."""
    service = TransactionService(SimpleNamespace(), allow_all)  # type: ignore[arg-type]
    producer = Producer(ProducerId(producer_id), ProducerEpoch(epoch))
    with pytest.raises(LogError) as refused:
        await service.write_marker(
            ANONYMOUS, "t", 0, producer, Marker(True, coordinator), any_node=any_node
        )
    assert refused.value.entry is INVALID_BODY


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
