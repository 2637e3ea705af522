"""The other clients: steady, modest writes and reads, with their times.

`python -m tests.attack.victims HOST:PORT,… KAFKA_HOST:PORT TOPIC` prints one line for each
operation, until terminated: name, time of its start (CLOCK_MONOTONIC) and seconds; or `failed` and
the error.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import aiohttp
import uvloop
from raftlog_client import Producer

from tests.attack.kafka_client import KafkaClient

EVERY_S: Final = 0.05
"""From one operation of a kind to the next."""
TIMEOUT_S: Final = 15.0


async def _steadily(name: str, operation: Callable[[], Awaitable[None]]) -> None:
    """Run the operation at its rate; a slow one delays the next, and counts from its due time."""
    due = time.monotonic()
    while True:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await operation()
        except Exception as error:  # an outcome like any other: the verdict counts it
            print(name, due, "failed", repr(error)[:200], flush=True)
        else:
            print(name, due, time.monotonic() - due, flush=True)
        due = max(due + EVERY_S, time.monotonic() - 1.0)
        await asyncio.sleep(max(0.0, due - time.monotonic()))


async def run(servers: str, kafka: str, topic: str) -> None:
    """Write by the Python client, by REST and by Kafka's protocol, and read, without end."""
    first = servers.split(",", maxsplit=1)[0]
    async with (
        Producer(bootstrap_servers=servers) as producer,
        aiohttp.ClientSession(f"http://{first}") as session,
    ):

        async def send() -> None:
            await producer.send_and_wait(topic, b"value")

        async def rest() -> None:
            body = {"records": [{"value": 1}]}
            async with session.post(f"/topics/{topic}", json=body) as answer:
                await answer.read()
                answer.raise_for_status()

        async def read() -> None:
            path = f"/topics/{topic}/partitions/0/offsets"
            async with session.get(path) as answer:
                await answer.read()
                answer.raise_for_status()

        async with asyncio.TaskGroup() as group:
            writer, reader = KafkaClient(kafka, topic, 0), KafkaClient(kafka, topic, 1)
            operations = (
                ("send", send),
                ("rest", rest),
                ("read", read),
                ("kafka-send", writer.send),
                ("kafka-read", reader.read),
            )
            for name, operation in operations:
                group.create_task(_steadily(name, operation))


def main(arguments: Sequence[str]) -> None:
    """Run the clients until the process is terminated."""
    servers, kafka, topic = arguments
    uvloop.run(run(servers, kafka, topic))


if __name__ == "__main__":
    main(sys.argv[1:])
