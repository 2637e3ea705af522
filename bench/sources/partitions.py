"""Commands written by a plain producer: to N partitions in a transaction, or to one partition.

As in a replicated state, commands that are given while a batch is under way go with the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from raftlog_client import Producer

from bench.cluster import Cluster, cancelled

_encode: Final = msgspec.msgpack.Encoder().encode


class PartitionWriter:
    """A writer of whole batches to all partitions of a topic."""

    def __init__(self, producer: Producer, topic: str, partitions: int, *, is_atomic: bool) -> None:
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._is_atomic = is_atomic
        self._queue: list[tuple[bytes, asyncio.Future[None]]] = []
        self._given = asyncio.Event()

    async def put(self, payloads: Sequence[bytes]) -> None:
        """Return once the commands are committed in all partitions."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((_encode(payloads), done))
        self._given.set()
        await done

    async def run(self) -> None:
        """Write until cancelled. The first error fails all callers, and is raised."""
        batch: list[tuple[bytes, asyncio.Future[None]]] = []
        try:
            while True:
                await self._given.wait()
                self._given.clear()
                batch, self._queue = self._queue, []
                if self._is_atomic:
                    async with self._producer.transaction():
                        await self._send([value for value, _ in batch])
                else:
                    await self._send([value for value, _ in batch])
                for _, done in batch:
                    if not done.done():
                        done.set_result(None)
        except Exception as error:
            for _, done in [*batch, *self._queue]:
                if not done.done():
                    done.set_exception(error)
            raise

    async def _send(self, values: list[bytes]) -> None:
        sent = [
            await self._producer.send(self._topic, value, partition=partition)
            for partition in range(self._partitions)
            for value in values
        ]
        await asyncio.gather(*sent)


@asynccontextmanager
async def writing(
    cluster: Cluster, topic: str, partitions: int, *, is_atomic: bool
) -> AsyncIterator[PartitionWriter]:
    """A writer to a new topic; `is_atomic`: each batch is a transaction."""
    await cluster.create_topic(topic, partitions)
    producer: Producer = Producer(
        bootstrap_servers=cluster.servers, transactional_id=topic if is_atomic else None
    )
    async with producer:
        writer = PartitionWriter(producer, topic, partitions, is_atomic=is_atomic)
        running = asyncio.create_task(writer.run())
        try:
            yield writer
        finally:
            await cancelled(running)
