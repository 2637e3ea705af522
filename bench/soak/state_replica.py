"""One replica process of the soak of replicated states: a key-value store and a bank's ledger."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

import msgspec
import uvloop
from aiohttp import web
from raftlog_replicated import Host, Replicated
from raftlog_replicated.examples import bank, kv

SNAPSHOT_BYTES: Final = 64 << 10
"""Small: a soak restores often."""
LEASE_MS: Final = 1_500


class ReplicaOrder(msgspec.Struct, frozen=True):
    """What a replica process is to do."""

    name: str
    servers: str
    replica_id: str
    kv_listen: str
    bank_listen: str
    layout: str = "shared"


async def serve(order: ReplicaOrder) -> None:
    """Serve both states until cancelled; an error of either ends the process."""
    host = Host()
    options: dict[str, Any] = {
        "replica_id": order.replica_id,
        "bootstrap_servers": order.servers,
        "lease_ms": LEASE_MS,
        "snapshot_bytes": SNAPSHOT_BYTES,
        "layout": order.layout,
        "host": host,
    }
    async with (
        Replicated(
            kv.KeyValues(), name="kv", codec=kv.CODEC, endpoint=order.kv_listen, **options
        ) as store,
        Replicated(
            bank.Ledger(), name="bank", codec=bank.CODEC, endpoint=order.bank_listen, **options
        ) as ledger,
    ):
        await listen(kv.application(store), order.kv_listen)
        await listen(bank.application(ledger), order.bank_listen)
        async with asyncio.TaskGroup() as tasks:
            for replica in (store, ledger):
                tasks.create_task(_follow(replica))


async def listen(app: web.Application, address: str) -> None:
    """Begin to serve."""
    host, _, port = address.rpartition(":")
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, int(port)).start()


async def _follow(replica: Replicated[Any, Any, Any]) -> None:
    """Print role changes. Raises ReplicaEndedError."""
    async for change in replica.changes():
        print(
            f"{replica.name}: {change.role.value} in term {change.term} at {replica.position}",
            flush=True,
        )


async def _main() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    order = msgspec.json.decode(await reader.readline(), type=ReplicaOrder)
    work, end = asyncio.ensure_future(_persist(order)), asyncio.ensure_future(reader.read())
    await asyncio.wait({work, end}, return_when=asyncio.FIRST_COMPLETED)
    end.cancel()
    if work.done():
        work.result()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


START_RETRY_S: Final = 0.5


async def _persist(order: ReplicaOrder) -> None:
    """A process that starts while all nodes are down is started again by its supervisor."""
    from raftlog_client import RaftlogClientError  # noqa: PLC0415

    while True:
        try:
            await serve(order)
        except RaftlogClientError as error:
            print(f"no cluster yet: {error}", flush=True)
            await asyncio.sleep(START_RETRY_S)


if __name__ == "__main__":
    uvloop.run(_main())
