"""A member of a group in a process of its own, to be killed.

python -m bench.coordination.member SERVERS TOPIC GROUP SESSION_MS

It writes a line per assignment: the numbers of its partitions.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection

import uvloop
from raftlog_client import Consumer, RebalanceListener, TopicPartition


class _Printer(RebalanceListener):
    def __init__(self) -> None:
        self._owned: set[int] = set()

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._owned |= {place.partition for place in assigned}
        print(*sorted(self._owned), flush=True)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._owned -= {place.partition for place in revoked}
        print(*sorted(self._owned), flush=True)


async def _consume(servers: str, topic: str, group: str, session_ms: int) -> None:
    async with Consumer(
        bootstrap_servers=servers, group_id=group, session_timeout_ms=session_ms
    ) as consumer:
        await consumer.subscribe([topic], listener=_Printer())
        while True:
            await consumer.getmany(timeout_ms=500)


def main() -> None:
    servers, topic, group, session_ms = sys.argv[1:]
    try:
        uvloop.run(_consume(servers, topic, group, int(session_ms)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return


if __name__ == "__main__":
    main()
