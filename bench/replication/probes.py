"""Probers: constant writes to every partition, with the times of acknowledgements.

A probe leaves on schedule, whether or not earlier probes were answered: a probe that waits for a
dead node must not hide a node that would have served another.
"""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, Final, TypeAlias, TypeVar

from raftlog_client import Producer

from bench.cluster import NotWholeError, cancelled
from bench.kept_connection import KeptConnection, NoAnswerError

PERIOD_S: Final = 0.005
"""Of the client's probes of each partition."""
HTTP_PERIOD_S: Final = 0.09
"""Of each node's probes of each partition; those of the nodes alternate."""
HTTP_TIMEOUT_S: Final = 3.0
PROBES_WAITING_MAX: Final = 8
"""By node and partition: most unanswered HTTP requests at once."""
DELIVERY_TIMEOUT_MS: Final = 60_000
RECOVERY_S_MAX: Final = 30.0
"""A trial in which some partition acknowledges nothing for so long has failed."""
CHECK_S: Final = 0.005
VALUE: Final = b"0123456789" * 10

_T = TypeVar("_T")


class Acknowledgements:
    """By partition, the times of sent and acknowledged probes."""

    def __init__(self, partitions: int) -> None:
        self._acked: list[list[float]] = [[] for _ in range(partitions)]
        self._newest_sent = [0.0] * partitions
        self.errors: Counter[str] = Counter()
        """Errors of probes, shortened."""
        self.late_s_max = 0.0
        """The prober's own worst delay, which a busy machine adds to every figure."""

    def note(self, partition: int, sent: float, acked: float) -> None:
        """A probe is acknowledged. In the order of the acknowledgements."""
        self._acked[partition].append(acked)
        self._newest_sent[partition] = max(self._newest_sent[partition], sent)

    def clear(self) -> None:
        """Forget all acknowledgements but each partition's last."""
        for times in self._acked:
            del times[:-1]
        self.errors.clear()
        self.late_s_max = 0.0

    def has_all_since(self, moment: float) -> bool:
        """Whether every partition has acknowledged a probe sent after that moment."""
        return all(sent > moment for sent in self._newest_sent)

    def gaps(self, start: float, end: float) -> list[float]:
        """By partition, the longest gap between acknowledgements within reach of [start, end]."""
        found = []
        for times in self._acked:
            first = max(bisect_left(times, start) - 1, 0)
            inside = [*times[first : bisect_left(times, end)], end]
            if inside[0] > start:
                inside.insert(0, start)
            found.append(max(late - early for early, late in pairwise(inside)))
        return found


async def wait_all_since(
    seen: Acknowledgements, moment: float, timeout_s: float = RECOVERY_S_MAX
) -> None:
    """Wait until all partitions acknowledged a probe sent after `moment`. Raises NotWholeError."""
    deadline = time.perf_counter() + timeout_s
    while not seen.has_all_since(moment):
        if time.perf_counter() > deadline:
            raise NotWholeError(f"not every partition acknowledged anything in {timeout_s} s")
        await asyncio.sleep(CHECK_S)


async def while_probing(probing: asyncio.Future[Any], work: Coroutine[Any, Any, _T]) -> _T:
    """Await the work. Raises the error of the probers if they end first."""
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait({probing, working}, return_when=asyncio.FIRST_COMPLETED)
        if probing.done() and not working.done():
            probing.result()
        return await working
    finally:
        await cancelled(working)


Prober: TypeAlias = Callable[
    [dict[int, str], str, Acknowledgements, int], Coroutine[Any, Any, None]
]
"""Probes all partitions of a topic, at these addresses of nodes, until cancelled."""


async def by_client(
    addresses: dict[int, str], topic: str, seen: Acknowledgements, partitions: int
) -> None:
    """Probe as programs do: by the Python client, with all addresses."""

    def settled(partition: int, sent: float, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            seen.errors[f"{type(error).__name__}: {error!s:.80}"] += 1
        else:
            seen.note(partition, sent, time.perf_counter())

    servers = ",".join(addresses.values())
    async with Producer(
        bootstrap_servers=servers, delivery_timeout_ms=DELIVERY_TIMEOUT_MS
    ) as producer:
        due = time.perf_counter()
        try:
            while True:
                for partition in range(partitions):
                    sent = time.perf_counter()
                    future = await producer.send(topic, VALUE, partition=partition)
                    future.add_done_callback(partial(settled, partition, sent))
                due += PERIOD_S
                now = time.perf_counter()
                seen.late_s_max = max(seen.late_s_max, now - due)
                due = max(due, now - PERIOD_S)
                await asyncio.sleep(due - now)
        except asyncio.CancelledError:
            await producer.close(timeout_ms=1_000)
            raise


async def by_http(
    addresses: dict[int, str], topic: str, seen: Acknowledgements, partitions: int
) -> None:
    """Probe as `curl` does: through any node, leader or not, without retries."""
    body = json.dumps({"records": [{"value": "0123456789" * 10}]}).encode()
    idle: dict[tuple[int, int], list[KeptConnection]] = {}
    waiting: Counter[tuple[int, int]] = Counter()
    tasks: set[asyncio.Task[None]] = set()

    async def probe(node_id: int, partition: int) -> None:
        lane = node_id, partition
        kept = idle.setdefault(lane, [])
        connection = kept.pop() if kept else KeptConnection(addresses[node_id])
        sent = time.perf_counter()
        path = f"/topics/{topic}/partitions/{partition}"
        try:
            answer = await connection.request("POST", path, body, timeout_s=HTTP_TIMEOUT_S)
        except NoAnswerError as error:
            seen.errors[f"{type(error).__name__}: {error}"] += 1
            return
        except asyncio.CancelledError:
            connection.close()
            raise
        finally:
            waiting[lane] -= 1
        kept.append(connection)
        if (refusal := _refusal(answer.status, answer.body)) is None:
            seen.note(partition, sent, time.perf_counter())
        else:
            seen.errors[refusal] += 1

    try:
        due = time.perf_counter()
        while True:
            for node_id in addresses:
                for partition in range(partitions):
                    if waiting[node_id, partition] < PROBES_WAITING_MAX:
                        waiting[node_id, partition] += 1
                        task = asyncio.create_task(probe(node_id, partition))
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
                due += HTTP_PERIOD_S / len(addresses)
                now = time.perf_counter()
                seen.late_s_max = max(seen.late_s_max, now - due)
                due = max(due, now - HTTP_PERIOD_S)
                await asyncio.sleep(due - now)
    finally:
        for task in list(tasks):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        for connections in idle.values():
            for connection in connections:
                connection.close()


def _refusal(status: int, body: bytes) -> str | None:
    """The reason why a record was not written; None: written."""
    if status != 200:
        return f"{status}: {body[:80].decode(errors='replace')}"
    written = json.loads(body)["offsets"][0]
    if written.get("error_code") is None and written.get("offset") is not None:
        return None
    return f"{written.get('error_code')}: {written.get('error')!s:.60}"
