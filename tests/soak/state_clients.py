"""Clients of replicated states over HTTP, which record every operation.

Registers of the key-value store: each value is written once. Half of the writes have an id, and are
repeated until their outcome is known; the other half are sent once. A client of the bank owns two
accounts, and moves coins between them one transfer at a time, each until it is acknowledged: so it
knows what a linearizable read must give.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import aiohttp

from tests.verification.register_history import Kind, Operation, Outcome

T = TypeVar("T")

KEYS: Final = ("k0", "k1", "k2", "k3")
ATTEMPT_S: Final = 1.0
PATIENCE_S: Final = 60.0
"""An operation with an id is repeated for so long."""
RETRY_S: Final = 0.05
POLL_S: Final = 0.02
POLL_TIMEOUT_S: Final = 60.0
TOKEN_HEADER: Final = "X-State-Token"
FIRST_BALANCE: Final = 1_000_000


async def until(condition: Callable[[], Awaitable[T]]) -> T:
    """The first true result. Raises TimeoutError."""
    async with asyncio.timeout(POLL_TIMEOUT_S):
        while not (found := await condition()):  # noqa: ASYNC110 (of other processes)
            await asyncio.sleep(POLL_S)
    return found


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    body: bytes
    token: str | None = None
    location: str | None = None


class LostError(Exception):
    """No whole answer: the request may have had an effect."""


class Service:
    """HTTP calls to the replicas of one state: each request is sent once."""

    def __init__(self, addresses: Sequence[str], randomness: random.Random) -> None:
        self.addresses = list(addresses)
        self._randomness = randomness
        # Kept connections would have aiohttp repeat requests.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True),
            timeout=aiohttp.ClientTimeout(total=ATTEMPT_S),
        )
        self.primary = self.any()

    def any(self) -> str:
        """Any replica."""
        return self._randomness.choice(self.addresses)

    async def call(
        self,
        method: str,
        address: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request. Raises LostError."""
        try:
            async with self._session.request(
                method,
                f"http://{address}{path}",
                data=body,
                headers=headers,
                allow_redirects=False,
            ) as response:
                return Answer(
                    response.status,
                    await response.read(),
                    response.headers.get(TOKEN_HEADER),
                    response.headers.get("Location"),
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise LostError(repr(error)) from error

    async def write(self, method: str, path: str, body: bytes, request_id: str | None) -> Answer:
        """A command, at the primary. Raises LostError: its outcome is unknown.

        Refusals that say that nothing happened are followed; with an id all others, too.
        """
        deadline = time.monotonic() + PATIENCE_S
        headers = {} if request_id is None else {"Idempotency-Key": request_id}
        while True:
            try:
                answer = await self.call(method, self.primary, path, body, headers)
            except LostError:
                self.primary = self.any()
                if request_id is None or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY_S)
                continue
            if answer.status in {200, 409}:
                return answer
            if answer.status == 307 and answer.location is not None:
                self.primary = answer.location.split("/")[2]
                continue
            self.primary = self.any()
            may_have_happened = json.loads(answer.body).get("outcome_unknown", True)
            if (may_have_happened and request_id is None) or time.monotonic() > deadline:
                raise LostError(answer.body.decode())
            await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


@dataclass(slots=True)
class RegisterClient:
    """Reads, writes, compares and sets registers of the key-value store."""

    number: int
    service: Service
    record: Callable[[Operation], None]
    randomness: random.Random
    next_value: Callable[[], int]
    process_step: int
    anomalies: list[str] = field(default_factory=list)
    token: str | None = None

    async def run(self, rate: float, stop: asyncio.Event) -> None:
        """Operate about `rate` times a second until `stop` is set."""
        while not stop.is_set():
            key = self.randomness.choice(KEYS)
            if self.randomness.random() < 0.5:
                await self.write(key)
            else:
                await self.read(key, self.service.any())
            await asyncio.sleep(self.randomness.uniform(0, 2 / rate))

    async def write(self, key: str) -> None:
        """Write a new value, or compare and set."""
        value, expected, kind = self.next_value(), None, Kind.WRITE
        query = ""
        if self.randomness.random() < 0.3:
            kind, expected = Kind.CAS, max(0, value - self.randomness.randint(1, 8))
            query = f"?expected={expected}"
        request_id = f"{self.number}-{value}" if self.randomness.random() < 0.5 else None
        begun, outcome, note = time.monotonic_ns(), Outcome.UNKNOWN, ""
        path, body = f"/kv/{key}{query}", str(value).encode()
        try:
            answer = await self.service.write("PUT", path, body, request_id)
        except LostError as error:
            note = str(error)
        else:
            outcome = Outcome.OK if answer.status == 200 else Outcome.FAIL
            self._saw(answer.token)
        self._add(kind, key, value, begun, outcome=outcome, note=note, expected=expected)

    async def read(self, key: str, address: str, consistency: str | None = None) -> bool:
        """Read from one replica; whether it answered."""
        if consistency is None:
            kinds = ["linearizable", "linearizable", "lease", "session"]
            consistency = self.randomness.choice(kinds)
        begun, sent = time.monotonic_ns(), self.token
        headers = {} if sent is None else {TOKEN_HEADER: sent}
        path = f"/kv/{key}?consistency={consistency}"
        try:
            answer = await self.service.call("GET", address, path, headers=headers)
            if answer.status == 307 and answer.location is not None:
                primary = answer.location.split("/")[2]
                answer = await self.service.call("GET", primary, path, headers=headers)
        except LostError:
            return False
        if answer.status not in {200, 404}:
            return False
        if consistency == "session":
            if position_of(answer.token) < position_of(sent):
                self.anomalies.append(f"session read at {answer.token} after {sent}")
        else:
            value = int(answer.body) if answer.status == 200 else None
            note = f"{consistency} {address}"
            self._add(Kind.READ, key, value, begun, outcome=Outcome.OK, note=note)
        self._saw(answer.token)
        return True

    def _saw(self, token: str | None) -> None:
        if position_of(token) > position_of(self.token):
            self.token = token

    def _add(
        self,
        kind: Kind,
        key: str,
        value: int | None,
        begun: int,
        *,
        outcome: Outcome,
        note: str = "",
        expected: int | None = None,
    ) -> None:
        self.record(
            Operation(
                process=self.number,
                kind=kind,
                key=key,
                value=value,
                expected=expected,
                invoked_ns=begun,
                returned_ns=time.monotonic_ns(),
                outcome=outcome,
                note=note,
            )
        )
        if outcome is Outcome.UNKNOWN:
            # It may take effect later, beside the next ones: those need a new process.
            self.number += self.process_step


def position_of(token: str | None) -> int:
    """Of a token; -1 without one."""
    return -1 if token is None else int(token.split("-")[1])


@dataclass(slots=True)
class BankClient:
    """Moves coins from one account of its own to another, and reads both."""

    number: int
    service: Service
    randomness: random.Random
    transfers: int = 0
    moved: int = 0
    """Coins of acknowledged transfers."""
    anomalies: list[str] = field(default_factory=list)

    @property
    def accounts(self) -> tuple[str, str]:
        """Source and target."""
        return f"from-{self.number}", f"to-{self.number}"

    async def run(self, rate: float, stop: asyncio.Event) -> None:
        """Open both accounts, then transfer about `rate` times a second until `stop` is set."""
        for account, coins in zip(self.accounts, (FIRST_BALANCE, 0), strict=True):
            body = str(coins).encode()
            await self.service.write("POST", f"/accounts/{account}", body, f"open-{account}")
        while not stop.is_set():
            await self.transfer()
            if self.randomness.random() < 0.2:
                await self.check(self.service.any())
            await asyncio.sleep(self.randomness.uniform(0, 2 / rate))

    async def transfer(self) -> None:
        """One transfer, until it is acknowledged; now and then one that must be refused."""
        self.transfers += 1
        is_overdraft = self.randomness.random() < 0.05
        amount = 2 * FIRST_BALANCE if is_overdraft else self.randomness.randint(1, 9)
        source, target = self.accounts
        body = json.dumps({"source": source, "target": target, "amount": amount}).encode()
        request_id = f"transfer-{self.number}-{self.transfers}"
        answer = await self.service.write("POST", "/transfers", body, request_id)
        if (answer.status == 409) != is_overdraft:
            self.anomalies.append(f"{request_id} of {amount}: {answer.status} {answer.body!r}")
        if answer.status == 200:
            self.moved += amount

    async def check(self, address: str) -> bool:
        """Read both balances, linearizably; whether the replica answered."""
        wanted = (FIRST_BALANCE - self.moved, self.moved)
        for account, balance in zip(self.accounts, wanted, strict=True):
            try:
                answer = await self.service.call("GET", address, f"/accounts/{account}")
            except LostError:
                return False
            if answer.status != 200:
                return False
            found = json.loads(answer.body)["balance"]
            if found != balance:
                self.anomalies.append(f"{account} has {found} at {address}, not {balance}")
        return True
