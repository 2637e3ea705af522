"""The clients of a soak of records: the Python client, HTTP as `curl` speaks, fetches by replica.

Each client is a coroutine that runs until `stop` is set, and records every operation. Errors are
counted in `errors`; the checker decides whether an error was right.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import aiohttp
from raftlog_client import Consumer, Producer, TopicPartition
from raftlog_client.errors import RaftlogClientError
from raftlog_client.types import RecordMetadata

from bench.kept_connection import KeptConnection, NotSentError, OutcomeLostError
from raftlog.record.errors import ERROR_TABLE, LogError
from tests.soak.fetching import FetchPosition, fetch
from tests.soak.recording import Recorder, partition_name
from tests.verification.log_history import End, Outcome, Poll, Send

TICK_S: Final = 0.02
LINGER_MS: Final = 5
LANE_WAITING_MAX: Final = 400
"""Unacknowledged sends of one partition; a partition with more is skipped for a while."""
DELIVERY_TIMEOUT_MS: Final = 120_000
CLOSE_TIMEOUT_MS: Final = 60_000
KEY: Final = b"k" * 64
HTTP_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 5.0
PAUSE_S: Final = 0.1
"""After an error."""
HTTP_READERS: Final = 4
HTTP_READ_PERIOD_S: Final = 0.25
TEXT: Final = "application/vnd.kafka.text.v2+json"


@dataclass(slots=True)
class Task:
    """The work of one client, and its account."""

    name: str
    """Unique among the clients of the run: values begin with the name."""
    addresses: Mapping[int, str]
    topics: Mapping[str, int]
    """Names and numbers of partitions."""
    recorder: Recorder
    stop: asyncio.Event
    rate: float = 0.0
    """Of a writer: records a second."""
    errors: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0

    @property
    def servers(self) -> str:
        """All addresses, as `bootstrap_servers`."""
        return ",".join(self.addresses.values())

    @property
    def lanes(self) -> list[tuple[str, int]]:
        """All partitions, as topic and number."""
        return [(topic, n) for topic, count in self.topics.items() for n in range(count)]

    async def pause(self, seconds: float) -> None:
        """Sleep until the time is over or `stop` is set."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stop.wait()


Client = Callable[[Task], Awaitable[None]]


def _noted(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectionError):
        # The text names the port, in many ways.
        return type(error).__name__
    return f"{type(error).__name__}: {error!s:.90}"


# Writers


async def client_writer(task: Task) -> None:
    """Write by the Python client: idempotent, acks=all, all partitions in turn."""
    recorder, lanes = task.recorder, task.lanes
    waiting: Counter[int] = Counter()
    number = 0

    def settled(
        lane: int, value: str, invoked: int, future: asyncio.Future[RecordMetadata]
    ) -> None:
        waiting[lane] -= 1
        producer, outcome, offset = task.name, "ok", None
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or error is not None:
            is_unknown = not isinstance(error, RaftlogClientError) or error.outcome_unknown
            outcome = "unknown" if is_unknown else "refused"
            task.errors[f"{outcome} {_noted(error or asyncio.CancelledError())}"] += 1
            # The client goes on under another producer id, so later sends are not ordered after.
            producer = f"{task.name} {value}"
        else:
            offset = future.result().offset
            task.acknowledged += 1
        recorder.add(
            Send(
                partition=partition_name(*lanes[lane]),
                producer=producer,
                values=(value,),
                invoked=invoked,
                completed=recorder.step(),
                outcome=outcome,  # type: ignore[arg-type]
                offset=offset,
            )
        )

    producer: Producer[bytes, bytes] = Producer(
        bootstrap_servers=task.servers,
        linger_ms=LINGER_MS,
        delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
    )
    await producer.start()
    try:
        loop = asyncio.get_running_loop()
        turn, owed, due = 0, 0.0, loop.time()
        while not task.stop.is_set():
            owed = min(owed + task.rate * TICK_S, 2 * task.rate * TICK_S)
            for _ in lanes if owed < 1 else range(int(owed)):
                if owed < 1:
                    break
                owed -= 1
                for _ in lanes:
                    turn = (turn + 1) % len(lanes)
                    if waiting[turn] < LANE_WAITING_MAX:
                        break
                else:
                    break
                topic, partition = lanes[turn]
                value = f"{task.name}.{number}"
                number += 1
                invoked = recorder.step()
                try:
                    future = await producer.send(topic, value.encode(), KEY, partition)
                except RaftlogClientError as error:
                    task.errors[f"not sent {_noted(error)}"] += 1
                    continue
                waiting[turn] += 1
                future.add_done_callback(partial(settled, turn, value, invoked))
            due = max(due + TICK_S, loop.time())
            await asyncio.sleep(due - loop.time())
    except BaseException:
        await producer.close(timeout_ms=0)
        raise
    await producer.close(timeout_ms=CLOSE_TIMEOUT_MS)
    # Callbacks of sends that ended with the producer run in the next turn of the loop.
    await asyncio.sleep(0)


async def http_writer(task: Task) -> None:
    """Write as `curl` does: to any node, each request sent once, without idempotence."""
    connections = [KeptConnection(address) for address in task.addresses.values()]
    lanes = task.lanes
    number = 0
    try:
        while not task.stop.is_set():
            topic, partition = lanes[number % len(lanes)]
            # Each round pairs nodes and partitions differently.
            connection = connections[(number + number // len(lanes)) % len(connections)]
            await _post(task, connection, topic, partition, f"{task.name}.{number}")
            number += 1
            await task.pause(1 / task.rate)
    finally:
        for connection in connections:
            connection.close()


async def _post(
    task: Task, connection: KeptConnection, topic: str, partition: int, value: str
) -> None:
    body = json.dumps({"records": [{"value": value}]}).encode()
    invoked = task.recorder.step()
    outcome: Outcome
    offset: int | None = None
    # A JSON value is read as written: in quotes.
    written = json.dumps(value)
    try:
        answer = await connection.request(
            "POST", f"/topics/{topic}/partitions/{partition}", body, timeout_s=HTTP_TIMEOUT_S
        )
    except NotSentError:
        return
    except OutcomeLostError as error:
        outcome = "unknown"
        task.errors[f"unknown {_noted(error)}"] += 1
    else:
        outcome, offset, reason = _interpret(answer.status, answer.body)
        if outcome != "ok":
            task.errors[f"{outcome} {reason}"] += 1
    task.acknowledged += outcome == "ok"
    task.recorder.add(
        Send(
            partition=partition_name(topic, partition),
            producer=f"{task.name} {value}",
            values=(written,),
            invoked=invoked,
            completed=task.recorder.step(),
            outcome=outcome,
            offset=offset,
            idempotent=False,
        )
    )


def _interpret(status: int, body: bytes) -> tuple[Outcome, int | None, str]:
    """Outcome, offset and error text of a produce request, by its answer."""
    answer: dict[str, Any] = json.loads(body)
    if status == 200:
        answer = answer["offsets"][0]
        if answer.get("error_code") is None:
            return "ok", int(answer["offset"]), ""
    entry = ERROR_TABLE.get(int(answer["error_code"]))
    is_unknown = entry is None or entry.outcome_unknown
    reason = f"{answer['error_code']}: {answer.get('message') or answer.get('error')!s:.80}"
    return ("unknown" if is_unknown else "refused"), None, reason


# Readers


async def client_reader(task: Task) -> None:
    """Read by the Python client: each partition from its leader."""
    positions = dict.fromkeys(task.lanes, 0)
    consumer: Consumer[Any, Any] = Consumer(
        bootstrap_servers=task.servers, auto_offset_reset="earliest"
    )
    consumer.assign(TopicPartition(*lane) for lane in positions)
    await consumer.start()
    try:
        while not task.stop.is_set():
            invoked = task.recorder.step()
            try:
                taken = await consumer.getmany(timeout_ms=500)
            except RaftlogClientError as error:
                task.errors[_noted(error)] += 1
                await task.pause(PAUSE_S)
                continue
            for source, records in taken.items():
                lane = source.topic, source.partition
                next_offset = records[-1].offset + 1
                task.recorder.add(
                    Poll(
                        partition=partition_name(*lane),
                        consumer=task.name,
                        invoked=invoked,
                        completed=task.recorder.step(),
                        start=positions[lane],
                        next_offset=next_offset,
                        records=tuple((one.offset, (one.value or b"").decode()) for one in records),
                    )
                )
                positions[lane] = next_offset
            # As in a busy application: records that arrive meanwhile form one batch.
            await task.pause(0.02)
    finally:
        await consumer.close()


async def replica_reader(task: Task) -> None:
    """Fetch from one node after the other, from its own replicas."""
    positions = dict.fromkeys(task.lanes, 0)
    nodes = sorted(task.addresses)
    turn = 0
    async with aiohttp.ClientSession() as session:
        while not task.stop.is_set():
            node_id = nodes[turn % len(nodes)]
            turn += 1
            invoked = task.recorder.step()
            try:
                parts = await fetch(
                    session,
                    task.addresses[node_id],
                    [FetchPosition(*lane, offset) for lane, offset in positions.items()],
                    wait_ms=100,
                    timeout_s=READ_TIMEOUT_S,
                )
            except (aiohttp.ClientError, TimeoutError, LogError) as error:
                task.errors[_noted(error)] += 1
                await task.pause(PAUSE_S)
                continue
            for part in parts:
                lane = part.topic, part.partition
                if part.error_code:
                    task.errors[
                        f"fetch {part.error_code} of node {node_id}: {part.message:.60}"
                    ] += 1
                elif part.next_offset != positions[lane]:
                    task.recorder.add(
                        Poll(
                            partition=partition_name(*lane),
                            consumer=task.name,
                            invoked=invoked,
                            completed=task.recorder.step(),
                            start=positions[lane],
                            next_offset=part.next_offset,
                            records=part.records,
                            node=str(node_id),
                        )
                    )
                    positions[lane] = part.next_offset
            await task.pause(0.05)


async def http_reader(task: Task) -> None:
    """Read as `curl` does, any node's replica or the leader's; also read end offsets."""
    lanes = task.lanes
    async with aiohttp.ClientSession(headers={"Accept": TEXT}) as session, asyncio.TaskGroup() as g:
        for number in range(HTTP_READERS):
            g.create_task(_http_reader(task, session, lanes[number::HTTP_READERS]))


async def _http_reader(
    task: Task, session: aiohttp.ClientSession, lanes: list[tuple[str, int]]
) -> None:
    positions = dict.fromkeys(lanes, 0)
    nodes = sorted(task.addresses)
    turn = 0
    while not task.stop.is_set():
        for lane in lanes:
            node_id = nodes[turn % len(nodes)]
            turn += 1
            base = f"http://{task.addresses[node_id]}/topics/{lane[0]}/partitions/{lane[1]}"
            try:
                if turn % 4 == 0:
                    await _read_end(task, session, base, lane, node_id)
                positions[lane] = await _read(
                    task, session, base, lane, node_id, positions[lane], near=turn % 2 == 0
                )
            except (aiohttp.ClientError, TimeoutError) as error:
                task.errors[_noted(error)] += 1
                await task.pause(PAUSE_S)
        await task.pause(HTTP_READ_PERIOD_S)


async def _read_end(
    task: Task, session: aiohttp.ClientSession, base: str, lane: tuple[str, int], node_id: int
) -> None:
    invoked = task.recorder.step()
    timeout = aiohttp.ClientTimeout(READ_TIMEOUT_S)
    async with session.get(
        f"{base}/offsets", timeout=timeout, headers={"Accept": "application/json"}
    ) as answer:
        document = await answer.json(content_type=None)
        if answer.status != 200:
            task.errors[
                f"offsets {document.get('error_code')}: {document.get('message')!s:.60}"
            ] += 1
            return
    task.recorder.add(
        End(
            partition=partition_name(*lane),
            invoked=invoked,
            completed=task.recorder.step(),
            offset=document["end_offset"],
            node=str(node_id),
        )
    )


async def _read(  # noqa: PLR0917 - partition, node and position
    task: Task,
    session: aiohttp.ClientSession,
    base: str,
    lane: tuple[str, int],
    node_id: int,
    position: int,
    *,
    near: bool,
) -> int:
    """Read the next records; return the next position."""
    invoked = task.recorder.step()
    timeout = aiohttp.ClientTimeout(READ_TIMEOUT_S)
    query = {"offset": str(position), "replica": "any" if near else "leader"}
    async with session.get(f"{base}/records", params=query, timeout=timeout) as answer:
        document = await answer.json(content_type=None)
        if answer.status != 200:
            task.errors[
                f"records {document.get('error_code')}: {document.get('message')!s:.60}"
            ] += 1
            return position
        next_offset = int(answer.headers["X-Raftlog-Next-Offset"])
    if next_offset == position:
        return position
    task.recorder.add(
        Poll(
            partition=partition_name(*lane),
            consumer=f"{task.name}",
            invoked=invoked,
            completed=task.recorder.step(),
            start=position,
            next_offset=next_offset,
            records=tuple((one["offset"], one["value"]) for one in document),
            node=str(node_id),
        )
    )
    return next_offset


CLIENTS: Final[Mapping[str, Client]] = {
    "client-writer": client_writer,
    "http-writer": http_writer,
    "client-reader": client_reader,
    "replica-reader": replica_reader,
    "http-reader": http_reader,
}
