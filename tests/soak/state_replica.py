"""One replica process of the soak of replicated states: a key-value store and a bank's ledger."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
import uvloop
from aiohttp import web
from raftlog_client import RaftlogClientError
from raftlog_replicated import Host, Replicated
from raftlog_replicated.examples import bank, kv

from tests.soak.orders import order_from_stdin, until_end

SNAPSHOT_BYTES: Final = 64 << 10
"""Small: a soak restores often."""
LEASE_MS: Final = 1_500
START_RETRY_S: Final = 0.5


class ReplicaOrder(msgspec.Struct, frozen=True):
    """What a replica process is to do."""

    name: str
    servers: str
    replica_id: str
    kv_listen: str
    bank_listen: str


async def serve(order: ReplicaOrder) -> None:
    """Serve both states until cancelled; an error of either ends the process."""
    options: dict[str, Any] = {
        "replica_id": order.replica_id,
        "bootstrap_servers": order.servers,
        "lease_ms": LEASE_MS,
        "snapshot_bytes": SNAPSHOT_BYTES,
        "host": Host(),
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


async def _persist(order: ReplicaOrder) -> None:
    """Serve; a process that starts while all nodes are down tries again, as a supervisor would."""
    while True:
        try:
            await serve(order)
        except RaftlogClientError as error:
            print(f"no cluster yet: {error}", flush=True)
            await asyncio.sleep(START_RETRY_S)


async def _main() -> None:
    order, reader = await order_from_stdin(ReplicaOrder)
    await until_end(_persist(order), reader)


if __name__ == "__main__":
    uvloop.run(_main())
