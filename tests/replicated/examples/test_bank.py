"""The bank's ledger over HTTP."""

from __future__ import annotations

import pytest
from raftlog_replicated.examples.bank import CODEC, Ledger, application

from tests.replicated.examples.conftest import Pair, Start


@pytest.fixture
async def pair(start: Start) -> Pair:
    return await start(Ledger, CODEC, application)


async def test_transfers_move_coins_and_overdraw_no_account(pair: Pair) -> None:
    http, url = pair.http, pair.primary.url
    for account, amount in [("ann", "100"), ("bob", "0")]:
        async with http.post(f"{url}/accounts/{account}", data=amount) as answer:
            assert (answer.status, await answer.json()) == (200, {"done": True, "reason": ""})
    async with http.post(f"{url}/accounts/ann", data="1") as answer:
        assert answer.status == 409
    rent = {"source": "ann", "target": "bob", "amount": 60}
    for _ in range(2):  # once, by its id
        headers = {"Idempotency-Key": "rent-may"}
        async with http.post(f"{pair.other.url}/transfers", json=rent, headers=headers) as answer:
            assert answer.status == 200
            token = answer.headers["X-State-Token"]
    async with http.post(f"{url}/transfers", json=rent) as answer:
        assert (answer.status, (await answer.json())["reason"]) == (409, "no overdraft")
    for account, amount in [("ann", 40), ("bob", 60)]:
        balance = f"{pair.other.url}/accounts/{account}?consistency=session"
        async with http.get(balance, headers={"X-State-Token": token}) as answer:
            assert await answer.json() == {"balance": amount}
    async with http.get(f"{pair.other.url}/total") as answer:
        assert await answer.json() == {"total": 100}
    async with http.get(f"{url}/accounts/eve") as answer:
        assert answer.status == 404


@pytest.mark.parametrize("body", [b"", b"{}", b'{"source": "a", "target": "b", "amount": -1}'])
async def test_a_malformed_transfer_is_refused_before_the_log(pair: Pair, body: bytes) -> None:
    end = pair.service.end()
    async with pair.http.post(f"{pair.primary.url}/transfers", data=body) as answer:
        assert answer.status == 400
    async with pair.http.post(f"{pair.primary.url}/accounts/a", data=b"-5") as answer:
        assert answer.status == 400
    assert pair.service.end() == end
