"""A key-value store over HTTP that survives `kill -9` of any of its processes.

python -m raftlog_replicated.examples.kv --replica-id a --listen 127.0.0.1:9001
curl -L -X PUT localhost:9001/kv/lunch -d soup                 # at any replica, -L redirects
curl -L -X PUT 'localhost:9001/kv/lunch?expected=soup' -d rice # 409 if it is no longer soup
curl -L -X PUT localhost:9001/kv/drink -d tea -H 'If-None-Match: *' # 409 if there is one
curl 'localhost:9001/kv/lunch?consistency=linearizable' # session, lease, eventual, within:100
curl -N localhost:9001/watch                            # all changes, or those of ?key=lunch
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from aiohttp import web

from raftlog_replicated import At, Replicated, StructCodec
from raftlog_replicated.examples.service import (
    TOKEN_HEADER,
    consistency_of,
    parse_arguments,
    replica_options,
    replica_routes,
    run,
    serve,
    translated,
)
from raftlog_replicated.examples.table import Table
from raftlog_replicated.examples.watch import Changes


class Put(msgspec.Struct, tag=True, frozen=True):
    """Set a key, or delete it (`value` None), if a condition holds."""

    key: str
    value: str | None
    expected: str | None = None
    """The value that the key must have. None for any."""
    is_new: bool = False
    """The key must have no value."""


class Outcome(msgspec.Struct, frozen=True):
    """Whether the command took effect, and the value before it."""

    done: bool
    before: str | None


CODEC: Final[StructCodec[Put, Outcome]] = StructCodec(Put, Outcome)


class KeyValues:
    """The state is deterministic, and a function of only the commands."""

    def __init__(self) -> None:
        self.values = Table(str)
        self.changes = Changes()

    def apply(self, command: Put, at: At) -> Outcome:
        """Put, delete, or compare and set. A refusal is a result like any other."""
        before = self.values.get(command.key)
        if command.expected is not None and before != command.expected:
            return Outcome(done=False, before=before)
        if command.is_new and before is not None:
            return Outcome(done=False, before=before)
        self.values.set(command.key, command.value)
        self.changes.publish(command.key, command.value, at.position)
        return Outcome(done=True, before=before)

    def snapshot(self) -> Iterator[bytes]:
        """All keys of this moment."""
        return self.values.snapshot()

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Begin with a snapshot's keys."""
        self.changes.interrupt("this replica has restored a snapshot")
        self.values.restore(chunks)

    def digest(self) -> bytes:
        """Equal for equal keys and values."""
        return self.values.digest()


Store = Replicated[KeyValues, Put, Outcome]


def application(store: Store) -> web.Application:
    """The HTTP surface."""

    async def write(request: web.Request) -> web.Response:
        value = await request.text() if request.method == "PUT" else None
        is_new = request.headers.get("If-None-Match") == "*"
        command = Put(request.match_info["key"], value, request.query.get("expected"), is_new)
        request_id = request.headers.get("Idempotency-Key")
        applied = await store.submit(command, request_id=request_id)
        body, status = msgspec.to_builtins(applied.result), 200 if applied.result.done else 409
        return web.json_response(body, status=status, headers={TOKEN_HEADER: str(applied.token)})

    async def get(request: web.Request) -> web.Response:
        key = request.match_info["key"]
        value, seen = await store.read(
            lambda state: (state.values.get(key), store.token), consistency_of(request)
        )
        headers = {TOKEN_HEADER: str(seen)}
        if value is None:
            return web.json_response({"error": "no such key"}, status=404, headers=headers)
        return web.Response(text=value, headers=headers)

    changes = store.machine.changes
    app = web.Application(middlewares=[translated(store)])
    app.on_shutdown.append(changes.close)
    app.add_routes([web.put("/kv/{key}", write), web.delete("/kv/{key}", write)])
    app.add_routes([web.get("/kv/{key}", get), web.get("/watch", changes.watch)])
    app.add_routes(replica_routes(store))
    return app


async def main(arguments: argparse.Namespace) -> None:
    """Serve one replica, until a signal."""
    async with Replicated(KeyValues(), codec=CODEC, **replica_options(arguments)) as store:
        await serve(application(store), store, arguments.listen)


if __name__ == "__main__":
    run(main(parse_arguments(__doc__, name="kv")))
