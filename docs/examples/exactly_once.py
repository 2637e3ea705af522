"""Exactly once: work and position are one transaction. A crash leaves both or none of them."""

import asyncio
import os

from raftlog_client import Consumer, Producer

SERVERS = os.environ.get("RAFTLOG_SERVERS", "localhost:8082")


async def main() -> None:
    async with (
        Consumer(
            "orders",
            bootstrap_servers=SERVERS,
            group_id="exactly-once",
            auto_offset_reset="earliest",
            auto_commit_interval_ms=None,
            session_timeout_ms=2_000,
        ) as consumer,
        Producer(bootstrap_servers=SERVERS, transactional_id="exactly-once-1") as producer,
    ):
        while True:
            batch = await consumer.getmany(timeout_ms=500, max_records=100)
            async with producer.transaction() as tx:
                for record in (one for records in batch.values() for one in records):
                    await producer.send_and_wait("invoices.exactly-once", record.value)
                await tx.commit_offsets(consumer)


asyncio.run(main())
