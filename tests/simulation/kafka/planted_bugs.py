"""Mistakes of a Kafka listener, planted one at a time: the histories must find each.

scripts/simulate planted-kafka out-of-order 0:50    which seeds find it
scripts/simulate planted-kafka all 0:50             each
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest import mock

from raftlog.kafka import listener
from raftlog.kafka.apis import APIS, PRODUCE
from raftlog.kafka.framing import parse_head
from raftlog.kafka.handlers import produce
from raftlog.kafka.listener import Connection
from raftlog.replication.partition import Acks
from raftlog.schema.codec import ELEMENTS_MAX
from raftlog.schema.errors import DecodeError
from tests.simulation import runner
from tests.simulation.kafka.histories import replay

FETCH: Final = 1


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """One planted mistake."""

    name: str
    promise: str
    """What it breaks."""
    plant: Callable[[], AbstractContextManager[Any]]
    seed: int
    """Finds it."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        with self.plant():
            yield


def _method(name: str, wrong: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch.object(Connection, name, wrong)


def _builtin(name: str, wrong: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch.object(listener, name, wrong, create=True)


def _api(key: int, **changes: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch.dict(APIS, {key: replace(APIS[key], **changes)})


async def _waiting(call: Any, request: Any) -> Any:
    """Wait before the append, for short requests longer than for long ones."""
    size = sum(
        len(row.records or b"") for topic in request.topic_data for row in topic.partition_data
    )
    await asyncio.sleep(1 / (100 + size))
    return await produce.produce(call, request)


def _any_first(one: Connection) -> None:
    """Give whatever is finished to the transport."""
    for slot in [slot for slot in one._slots if slot.is_done]:
        one._slots.remove(slot)
        if slot.answer and one._transport is not None:
            one._sending += slot.size
            one._written += slot.size
            one._transport.writelines(slot.answer)
    if not one._buffered():
        one._sent()
    one.proceed()


def _same(data: Any = b"") -> Any:
    """A view of the receive buffer in place of a copy; `bytes` otherwise."""
    return data if isinstance(data, memoryview) else bytes(data)


class _Reused:
    """Large buffers, but those of one size share their bytes."""

    def __init__(self) -> None:
        self._known: dict[int, bytearray] = {}

    def __call__(self, size: int) -> memoryview:
        return memoryview(self._known.setdefault(size, bytearray(size)))


_LOST: Final = Connection.connection_lost
_FILL: Final = Connection.buffer_updated


def _executed_in_part(one: Connection, error: Exception | None) -> None:
    """Begin a large request though its end has not come, where its head is enough."""
    if one._large is not None:
        frame, one._large = one._large, None
        api, version = APIS[frame[1]], frame[3]
        try:
            head = parse_head(frame, is_flexible=api.is_request_flexible(version))
            api.request_decoder(version)(frame, head.end, ELEMENTS_MAX)
        except DecodeError:
            one._give(len(frame))
        else:
            one._begin(frame, len(frame))
    _LOST(one, error)


def _forgotten(one: Connection) -> None:
    """Drop a large frame, and keep its bytes of the budget."""
    one._large = None


def _kept_counted(one: Connection, now: float) -> bool:
    """Notice no stall, and give nothing back: as `sweep` did before."""
    del one, now
    return False


def _torn(one: Connection, count: int) -> None:
    """A large frame is whole one byte too early."""
    if one._large is not None and one._filled + count == len(one._large) - 1:
        one._large[-1:] = b"\0"
        count += 1
    _FILL(one, count)


def _dropped_rest(one: Connection) -> None:
    """Forget what came behind a request."""
    one._parse(one._rest)
    one._rest.clear()


BUGS: Final = (
    PlantedBug(
        "waits-before-append", "order of one connection", _api(PRODUCE, handler=_waiting), 0
    ),
    PlantedBug("out-of-order", "answers in order", _method("_flush", _any_first), 2),
    PlantedBug("receive-buffer-shared", "records as they were sent", _builtin("bytes", _same), 0),
    PlantedBug(
        "large-buffer-shared",
        "records as they were sent",
        lambda: mock.patch.object(listener, "_large_buffer", _Reused()),
        2,
    ),
    PlantedBug(
        "executed-in-part",
        "a request that was not sent whole does not take place",
        _method("connection_lost", _executed_in_part),
        16,
    ),
    PlantedBug(
        "answered-before-commit",
        "acknowledged records stay",
        lambda: mock.patch.dict(produce.ACKS, {int(Acks.ALL): Acks.LEADER}),
        2,
    ),
    PlantedBug("forgotten-bytes", "nothing leaks", _method("_drop_large", _forgotten), 2),
    PlantedBug("no-stalls", "nothing leaks", _method("_reads_too_slowly", _kept_counted), 10),
    PlantedBug("torn-frame", "records as they were sent", _method("buffer_updated", _torn), 1),
    PlantedBug("dropped-rest", "every byte counts", _method("_parse_rest", _dropped_rest), 0),
    PlantedBug(
        "fetch-outlives-client", "nothing leaks", _api(FETCH, ends_with_connection=False), 0
    ),
)


def bug(name: str) -> PlantedBug:
    """The bug of that name."""
    return next(each for each in BUGS if each.name == name)


def find(name: str, seed: int) -> str | None:
    """What the history finds of the planted bug, if anything."""
    return runner.finding(bug(name).planted(), replay, seed)


if __name__ == "__main__":
    sys.exit(runner.run_planted([each.name for each in BUGS], find, sys.argv[1:]))
