"""A key-value store over HTTP that survives `kill -9` of any of its processes.

python -m raftlog_replicated.examples.kv --replica-id a --listen 127.0.0.1:9001
curl -L -X PUT localhost:9001/kv/lunch -d soup         # &expected=… compares and sets
curl 'localhost:9001/kv/lunch?consistency=linearizable' # session, lease, eventual, within:100
curl -N localhost:9001/watch
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import msgspec
from aiohttp import web

from raftlog_replicated import At, Replicated, StructCodec
from raftlog_replicated.examples.service import (
    TOKEN_HEADER,
    Changes,
    consistency_of,
    parse_arguments,
    replica_options,
    replica_routes,
    run,
    serve,
    translated,
)

CHUNK_KEYS: Final = 2_000
DIGEST_BITS: Final = 128


class Put(msgspec.Struct, tag=True, frozen=True):
    """Set a key, or delete it (None); with `expected` only if it has that value (None: any)."""

    key: str
    value: str | None
    expected: str | None = None


class Outcome(msgspec.Struct, frozen=True):
    """Whether the command took effect, and the value before it."""

    done: bool
    before: str | None


CODEC: Final[StructCodec[Put, Outcome]] = StructCodec(Put, Outcome)


class KeyValues:
    """The state: deterministic, and nothing but what the commands made it."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.changes = Changes()
        self._sum = 0
        """Of the hashes of all pairs: independent of their order, and cheap to keep."""

    def apply(self, command: Put, at: At) -> Outcome:
        """Put, delete, or compare and set."""
        before = self.values.get(command.key)
        if command.expected is not None and before != command.expected:
            return Outcome(done=False, before=before)
        if before is not None:
            self._sum -= _hash(command.key, before)
        if command.value is None:
            self.values.pop(command.key, None)
        else:
            self.values[command.key] = command.value
            self._sum += _hash(command.key, command.value)
        self.changes.publish({"key": command.key, "value": command.value, "position": at.position})
        return Outcome(done=True, before=before)

    def snapshot(self) -> Iterator[bytes]:
        """A shallow copy, of a few milliseconds for a million keys, encoded in pieces."""
        return _chunks(list(self.values.items()))

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Begin with a snapshot's keys."""
        pairs = (msgspec.msgpack.decode(chunk, type=list[tuple[str, str]]) for chunk in chunks)
        self.values = dict(chain.from_iterable(pairs))
        self._sum = sum(_hash(*pair) for pair in self.values.items())

    def digest(self) -> bytes:
        """Equal for equal keys and values."""
        return (self._sum % (1 << DIGEST_BITS)).to_bytes(DIGEST_BITS // 8, "big")


def _chunks(pairs: list[tuple[str, str]]) -> Iterator[bytes]:
    for begin in range(0, len(pairs), CHUNK_KEYS):
        yield msgspec.msgpack.encode(pairs[begin : begin + CHUNK_KEYS])


def _hash(key: str, value: str) -> int:
    data = f"{len(key)}:{key}{value}".encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=DIGEST_BITS // 8).digest(), "big")


Store = Replicated[KeyValues, Put, Outcome]


def application(store: Store) -> web.Application:
    """The HTTP surface."""

    async def write(request: web.Request) -> web.Response:
        value = (await request.read()).decode() if request.method == "PUT" else None
        command = Put(request.match_info["key"], value, request.query.get("expected"))
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

    app = web.Application(middlewares=[translated(store)])
    app.add_routes([web.put("/kv/{key}", write), web.delete("/kv/{key}", write)])
    app.add_routes([web.get("/kv/{key}", get), web.get("/watch", store.machine.changes.watch)])
    app.add_routes(replica_routes(store))
    return app


async def main(arguments: argparse.Namespace) -> None:
    """Serve one replica, until a signal."""
    async with Replicated(KeyValues(), codec=CODEC, **replica_options(arguments)) as store:
        await serve(application(store), arguments.listen)


if __name__ == "__main__":
    run(main(parse_arguments(__doc__, name="kv")))
