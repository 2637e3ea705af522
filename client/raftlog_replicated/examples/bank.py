"""A bank's ledger over HTTP loses and makes no coin, whatever process dies. No overdraft.

    python -m raftlog_replicated.examples.bank --replica-id a --listen 127.0.0.1:9201
    curl -L -X POST localhost:9201/accounts/ann -d 100
    curl -L -X POST localhost:9201/accounts/bob -d 0
    curl -L -X POST localhost:9201/transfers -H 'Idempotency-Key: rent-may' \
         -d '{"source": "ann", "target": "bob", "amount": 40}'
    curl localhost:9201/accounts/bob
    curl localhost:9201/total
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Annotated, Final

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

Amount = Annotated[int, msgspec.Meta(ge=0, le=10**12)]

_FIELDS: Final = msgspec.json.Decoder(dict[str, str | int])
_AMOUNT: Final[msgspec.json.Decoder[int]] = msgspec.json.Decoder(Amount)


class Open(msgspec.Struct, tag=True, frozen=True):
    """Open an account with coins from outside."""

    account: str
    amount: Amount


class Transfer(msgspec.Struct, tag=True, frozen=True):
    """Move coins from one account to another."""

    source: str
    target: str
    amount: Amount


class Receipt(msgspec.Struct, frozen=True):
    """Whether the command took effect, and why not. A refusal is a result like any other."""

    done: bool
    reason: str = ""


CODEC: Final[StructCodec[Open | Transfer, Receipt]] = StructCodec(
    Open | Transfer,  # type: ignore[arg-type]
    Receipt,
)


class Ledger:
    """The state."""

    def __init__(self) -> None:
        self.balances = Table(int)

    def apply(self, command: Open | Transfer, at: At) -> Receipt:
        """Open an account once, or transfer what is there."""
        balances = self.balances
        if isinstance(command, Open):
            if balances.get(command.account) is not None:
                return Receipt(done=False, reason="the account exists")
            balances.set(command.account, command.amount)
            return Receipt(done=True)
        source, target = balances.get(command.source), balances.get(command.target)
        if source is None or target is None:
            return Receipt(done=False, reason="no such account")
        if source < command.amount:
            return Receipt(done=False, reason="no overdraft")
        if command.source != command.target:
            balances.set(command.source, source - command.amount)
            balances.set(command.target, target + command.amount)
        return Receipt(done=True)

    def total(self) -> int:
        """Total of all accounts, which transfers do not change."""
        return sum(amount for _, amount in self.balances.items())

    def snapshot(self) -> Iterator[bytes]:
        """All balances of this moment."""
        return self.balances.snapshot()

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Begin with a snapshot's balances."""
        self.balances.restore(chunks)

    def digest(self) -> bytes:
        """Equal for equal balances."""
        return self.balances.digest()


def application(bank: Replicated[Ledger, Open | Transfer, Receipt]) -> web.Application:
    """The HTTP surface."""

    async def execute(request: web.Request, command: Open | Transfer) -> web.Response:
        applied = await bank.submit(command, request_id=request.headers.get("Idempotency-Key"))
        body, status = msgspec.to_builtins(applied.result), 200 if applied.result.done else 409
        return web.json_response(body, status=status, headers={TOKEN_HEADER: str(applied.token)})

    async def transfer(request: web.Request) -> web.Response:
        fields = _FIELDS.decode(await request.read())
        return await execute(request, msgspec.convert(fields | {"type": "Transfer"}, Transfer))

    async def open_account(request: web.Request) -> web.Response:
        amount = _AMOUNT.decode(await request.read())
        return await execute(request, Open(request.match_info["account"], amount))

    async def balance(request: web.Request) -> web.Response:
        account = request.match_info["account"]
        found, seen = await bank.read(
            lambda ledger: (ledger.balances.get(account), bank.token), consistency_of(request)
        )
        status, headers = 404 if found is None else 200, {TOKEN_HEADER: str(seen)}
        return web.json_response({"balance": found}, status=status, headers=headers)

    async def total(request: web.Request) -> web.Response:
        found, seen = await bank.read(
            lambda ledger: (ledger.total(), bank.token), consistency_of(request)
        )
        return web.json_response({"total": found}, headers={TOKEN_HEADER: str(seen)})

    app = web.Application(middlewares=[translated(bank)])
    app.add_routes([web.post("/accounts/{account}", open_account), web.get("/total", total)])
    app.add_routes([web.post("/transfers", transfer), web.get("/accounts/{account}", balance)])
    app.add_routes(replica_routes(bank))
    return app


async def main(arguments: argparse.Namespace) -> None:
    """Serve one replica, until a signal."""
    async with Replicated(Ledger(), codec=CODEC, **replica_options(arguments)) as bank:
        await serve(application(bank), bank, arguments.listen)


if __name__ == "__main__":
    run(main(parse_arguments(__doc__, name="bank")))
