"""At least once: work, then commit the position. A crash repeats work, and never loses it."""

import asyncio
import os

from raftlog_client import Consumer, Producer

SERVERS = os.environ.get("RAFTLOG_SERVERS", "localhost:8082")


async def main() -> None:
    async with (
        Consumer(
            "orders",
            bootstrap_servers=SERVERS,
            group_id="at-least-once",
            auto_offset_reset="earliest",
            auto_commit_interval_ms=None,
            session_timeout_ms=2_000,
        ) as consumer,
        Producer(bootstrap_servers=SERVERS) as producer,
    ):
        while True:
            batch = await consumer.getmany(timeout_ms=500, max_records=100)
            for record in (one for records in batch.values() for one in records):
                await producer.send_and_wait("invoices.at-least-once", record.value)
            await consumer.commit()


asyncio.run(main())
