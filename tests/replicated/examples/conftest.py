"""Fixtures: replicas of an example in this process, over a model of the log, served by HTTP."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import pytest
from aiohttp import ClientSession, web
from raftlog_replicated.replica import Replica
from raftlog_replicated.types import Codec, Host, Role

from tests.simulation.replicated.service import Service, SimulatedLog
from tests.waiting import until

WAIT_S_MAX: Final = 10.0
LEASE_S: Final = 60.0
"""Lease of a primary. A busy machine must not end it."""


@dataclass(frozen=True)
class Served:
    """A replica, and its address."""

    replica: Replica[Any, Any, Any]
    url: str


@dataclass(frozen=True)
class Pair:
    """Two replicas, and a client."""

    service: Service
    primary: Served
    other: Served
    http: ClientSession


Start = Callable[
    [Callable[[], Any], Codec[Any, Any], Callable[[Any], web.Application]], Awaitable[Pair]
]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts two replicas of an example."""
    async with AsyncExitStack() as stack:
        service = Service(Random(1), lease_s=LEASE_S)
        http = await stack.enter_async_context(ClientSession())

        async def serve(
            name: str,
            machine: Any,
            codec: Codec[Any, Any],
            application: Callable[[Any], web.Application],
        ) -> Served:
            listening = socket.create_server(("127.0.0.1", 0))
            endpoint = f"127.0.0.1:{listening.getsockname()[1]}"
            replica = Replica(
                machine,
                SimulatedLog(service, name),
                name="example",
                replica_id=name,
                endpoint=endpoint,
                codec=codec,
                host=Host(),
                snapshot_bytes=1 << 20,
            )
            await stack.enter_async_context(replica)
            runner = web.AppRunner(application(replica), handler_cancellation=True)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.SockSite(runner, listening).start()
            return Served(replica, f"http://{endpoint}")

        async def start_pair(
            machine: Callable[[], Any],
            codec: Codec[Any, Any],
            application: Callable[[Any], web.Application],
        ) -> Pair:
            primary = await serve("a", machine(), codec, application)
            await until(lambda: primary.replica.role is Role.PRIMARY)
            other = await serve("b", machine(), codec, application)
            await until(lambda: other.replica.role is Role.REPLICA)
            return Pair(service, primary, other, http)

        yield start_pair
