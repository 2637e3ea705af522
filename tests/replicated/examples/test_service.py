"""Errors as answers, and the end of a served replica."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from random import Random
from typing import Final

import pytest
from aiohttp import ClientError, ClientSession, web
from aiohttp.test_utils import TestClient, TestServer
from raftlog_client import ConnectionLostError
from raftlog_replicated import (
    BehindError,
    Host,
    NotPrimaryError,
    OutcomeUnknownError,
    OverloadedError,
    ReplicaEndedError,
    TooManyRequestsError,
)
from raftlog_replicated.examples.kv import CODEC, KeyValues, Outcome, Put, application
from raftlog_replicated.examples.service import AnyReplica, serve, translated
from raftlog_replicated.replica import Replica
from raftlog_replicated.types import At, Role

from bench.node import free_port
from tests.replicated.examples.conftest import WAIT_S_MAX
from tests.simulation.replicated.service import Service, SimulatedLog
from tests.waiting import until

ERRORS: Final = [
    (NotPrimaryError("host:2", 3), 307, {"Location": "http://host:2/fail?a=b"}),
    (NotPrimaryError(None, 3), 503, {"Retry-After": "1"}),
    (NotPrimaryError("host:1", 3), 503, {"Retry-After": "1"}),  # this replica
    (OutcomeUnknownError("late"), 504, {}),
    (TooManyRequestsError("full"), 429, {"Retry-After": "60"}),
    (BehindError(1, 2), 503, {"Retry-After": "1"}),
    (OverloadedError("full"), 503, {"Retry-After": "1"}),
    (ReplicaEndedError("closed"), 500, {}),
    (ConnectionLostError("no node", outcome_unknown=True), 503, {"Retry-After": "1"}),
    (ValueError("bad"), 400, {}),
]


def replica(endpoint: str, machine: KeyValues | None = None) -> AnyReplica:
    return Replica(
        machine or KeyValues(),
        SimulatedLog(Service(Random(1)), "a"),
        name="kv",
        replica_id="a",
        endpoint=endpoint,
        codec=CODEC,
        host=Host(),
        snapshot_bytes=1 << 20,
    )


@pytest.mark.parametrize(("error", "status", "headers"), ERRORS, ids=lambda one: str(one)[:20])
async def test_an_error_says_whether_and_where_to_try_again(
    error: Exception, status: int, headers: dict[str, str]
) -> None:
    async def fail(_: web.Request) -> web.Response:
        raise error

    app = web.Application(middlewares=[translated(replica("host:1"))])
    app.add_routes([web.put("/fail", fail)])
    async with TestClient(TestServer(app)) as client:
        answer = await client.put("/fail?a=b", allow_redirects=False)
        body = await answer.json()
    assert answer.status == status
    assert {name: answer.headers.get(name) for name in headers} == headers
    assert ("Retry-After" in answer.headers) == ("Retry-After" in headers)
    assert body["outcome_unknown"] == isinstance(error, OutcomeUnknownError)
    assert str(error) in body["error"]


class Failing(KeyValues):
    def apply(self, command: Put, at: At) -> Outcome:
        raise RuntimeError("planted")


async def test_an_ended_replica_ends_its_process() -> None:
    listen = f"127.0.0.1:{free_port()}"
    async with replica(listen, Failing()) as store:
        serving = asyncio.create_task(serve(application(store), store, listen))
        await until(lambda: store.role is Role.PRIMARY)
        async with ClientSession() as http:
            with suppress(ClientError):
                await http.put(f"http://{listen}/kv/lunch", data="soup")
        with pytest.raises(ReplicaEndedError):
            await asyncio.wait_for(serving, WAIT_S_MAX)


async def test_a_signal_ends_watchers_and_the_server() -> None:
    listen = f"127.0.0.1:{free_port()}"
    async with replica(listen) as store, ClientSession() as http:
        serving = asyncio.create_task(serve(application(store), store, listen))
        await until(lambda: store.role is Role.PRIMARY)
        begun = asyncio.get_running_loop().time()
        async with http.get(f"http://{listen}/watch") as watch:
            os.kill(os.getpid(), signal.SIGTERM)
            assert "shuts down" in (await watch.text())
        await serving
        assert asyncio.get_running_loop().time() - begun < 0.9
