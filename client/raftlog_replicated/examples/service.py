"""The examples share the HTTP side of a replica, and its command line."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec
from aiohttp import web
from raftlog_client import RaftlogClientError

from raftlog_replicated import (
    EVENTUAL,
    LEASE,
    LINEARIZABLE,
    BehindError,
    NotPrimaryError,
    OutcomeUnknownError,
    OverloadedError,
    Read,
    ReplicatedError,
    TooManyRequestsError,
    session,
    within,
)
from raftlog_replicated.replica import Replica

TOKEN_HEADER: Final = "X-State-Token"
"""Send it back with `consistency=session`. Reads then never go back, and see own writes."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
AnyReplica = Replica[Any, Any, Any]


_READS: Final = {"eventual": EVENTUAL, "lease": LEASE, "linearizable": LINEARIZABLE}


def consistency_of(request: web.Request) -> Read:
    """Required consistency of a read by `?consistency=`. Raises ValueError."""
    consistency = request.query.get("consistency", "linearizable")
    if consistency.startswith("within:"):
        return within(float(consistency.removeprefix("within:")))
    if consistency == "session":
        token = request.headers.get(TOKEN_HEADER)
        return EVENTUAL if token is None else session(token)
    if consistency not in _READS:
        raise ValueError("consistency: eventual, session, lease, linearizable or within:MS")
    return _READS[consistency]


_STATUS: Final[tuple[tuple[type[Exception], int, int | None], ...]] = (
    (OutcomeUnknownError, 504, None),
    (TooManyRequestsError, 429, 60),
    (BehindError, 503, 1),
    (OverloadedError, 503, 1),
    (ReplicatedError, 500, None),
    (RaftlogClientError, 503, 1),
    (ValueError, 400, None),
    (msgspec.MsgspecError, 400, None),
)
"""Status of an error, and the seconds after which another attempt may succeed."""


def translated(replica: AnyReplica) -> Any:
    """Maps replica errors to responses, 307 to the primary, 503 to retry, 504 unknown."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except NotPrimaryError as error:
            if error.endpoint is None or error.endpoint == replica.endpoint:
                return _problem(503, error, {"Retry-After": "1"})
            location = f"http://{error.endpoint}{request.rel_url}"
            return _problem(307, error, {"Location": location})
        except tuple(kind for kind, _, _ in _STATUS) as error:
            status, retry_s = next(
                (status, retry_s) for kind, status, retry_s in _STATUS if isinstance(error, kind)
            )
            return _problem(status, error, {} if retry_s is None else {"Retry-After": str(retry_s)})

    return middleware


def _problem(status: int, error: Exception, headers: dict[str, str]) -> web.Response:
    body = {"error": str(error), "outcome_unknown": isinstance(error, OutcomeUnknownError)}
    return web.json_response(body, status=status, headers=headers)


def replica_routes(replica: AnyReplica) -> list[web.RouteDef]:
    """Routes that return, and change, the primary."""

    async def status(_: web.Request) -> web.Response:
        return web.json_response(
            {
                "replica": replica.replica_id,
                "role": replica.role.name,
                "term": replica.term,
                "position": replica.position,
            }
        )

    async def members(_: web.Request) -> web.Response:
        found = await replica.members()
        return web.json_response([_member(member) for member in found])

    async def hand_over(request: web.Request) -> web.Response:
        await replica.hand_over(request.match_info["replica_id"])
        return web.Response(status=204)

    return [
        web.get("/status", status),
        web.get("/members", members),
        web.post("/hand-over/{replica_id}", hand_over),
    ]


def _member(member: Any) -> dict[str, Any]:
    names = ("replica_id", "endpoint", "position", "lag", "is_primary")
    return {name: getattr(member, name) for name in names}


def parse_arguments(doc: str | None, *, name: str) -> argparse.Namespace:
    """The command line of one replica."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replica-id", required=True, help="of this process, kept over restarts")
    parser.add_argument("--listen", required=True, help="HOST:PORT of this process's HTTP server")
    parser.add_argument("--servers", default="localhost:8082", help="raftlog nodes: HOST:PORT,…")
    parser.add_argument("--name", default=name, help="of the state")
    parser.add_argument("--lease-ms", type=int, default=1_500)
    parser.add_argument("--layout", choices=["shared", "per-replica"], default="shared")
    return parser.parse_args()


def replica_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of `Replicated` on the command line."""
    return {
        "name": arguments.name,
        "replica_id": arguments.replica_id,
        "endpoint": arguments.listen,
        "bootstrap_servers": arguments.servers,
        "lease_ms": arguments.lease_ms,
        "layout": arguments.layout,
    }


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a replica, with uvloop if it is there."""
    loop = importlib.import_module("uvloop") if importlib.util.find_spec("uvloop") else asyncio
    with asyncio.Runner(loop_factory=loop.new_event_loop) as runner:
        runner.run(main)


async def serve(app: web.Application, replica: AnyReplica, listen: str) -> None:
    """Serve until SIGINT or SIGTERM. Raises ReplicaEndedError once the replica serves nothing."""
    logging.basicConfig(level=logging.INFO)
    host, _, port = listen.rpartition(":")
    # A watcher's handler has to end with its connection.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
    await runner.setup()
    ended = asyncio.create_task(_until_ended(replica))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.cancel)
    try:
        await web.TCPSite(runner, host, int(port)).start()
        await asyncio.wait({ended})
    finally:
        ended.cancel()
        await runner.cleanup()
    if not ended.cancelled():
        ended.result()


async def _until_ended(replica: AnyReplica) -> None:
    async for _ in replica.changes():
        pass
