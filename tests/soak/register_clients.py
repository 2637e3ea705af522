"""Clients that use the cluster's settings as registers, and record every operation.

Each register is a whole-number setting, and each value is written once. A write is a PUT to any
node, a read a fresh GET from any node. The clients trust the outcome in an error, so an error that
wrongly says "nothing was changed" becomes an anomaly of the history.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from bench.kept_connection import HttpAnswer, KeptConnection, NotSentError, OutcomeLostError
from raftlog.record.errors import ERROR_TABLE
from tests.verification.register_history import Kind, Operation, Outcome, Value

REGISTERS: Final = (
    "retention.ms",
    "retention.bytes",
    "delete.retention.ms",
    "min.compaction.lag.ms",
    "segment.ms",
)
FIRST_VALUE: Final = 1_000
"""Valid for every register, as is every larger value of a run."""
SETTINGS_PATH: Final = "/v1/cluster/settings"
OPERATION_TIMEOUT_S: Final = 2.0
READ_SHARE: Final = 0.5
REFUSED_PAUSE_S: Final = 0.02
"""Least pause after a failure, so that quick refusals do not fill the history."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one operation, as far as the client knows."""

    outcome: Outcome
    value: Value = None
    index: int | None = None
    note: str = ""


class RegisterClient:
    """One client: a connection to each node, one operation at a time."""

    def __init__(
        self,
        process: int,
        addresses: dict[int, str],
        record: Callable[[Operation], None],
        randomness: random.Random,
        next_value: Callable[[], int],
        *,
        process_step: int = 1,
    ) -> None:
        self._process = process
        self._process_step = process_step
        self._connections = {
            node_id: KeptConnection(address) for node_id, address in addresses.items()
        }
        self._record = record
        self._randomness = randomness
        self._next_value = next_value

    async def run(self, rate: float, stop: asyncio.Event) -> None:
        """Operate about `rate` times a second until `stop` is set."""
        try:
            while not stop.is_set():
                operation = await self.operate()
                pause_s = self._randomness.uniform(0, 2 / rate)
                if operation.outcome is Outcome.FAIL:
                    pause_s = max(pause_s, REFUSED_PAUSE_S)
                await asyncio.sleep(pause_s)
        finally:
            self.close()

    async def operate(self) -> Operation:
        """Read or write a random register through a random node."""
        node_id = self._randomness.choice(sorted(self._connections))
        key = self._randomness.choice(REGISTERS)
        if self._randomness.random() < READ_SHARE:
            return await self.read(key, node_id)
        return await self.write(key, node_id)

    async def read(self, key: str, node_id: int) -> Operation:
        """Read one register through this node."""
        return await self._operate(
            Kind.READ, key, None, node_id, ("GET", f"{SETTINGS_PATH}?fresh=true", b"")
        )

    async def write(self, key: str, node_id: int) -> Operation:
        """Write a new value to one register through this node."""
        value = self._next_value()
        body = json.dumps({"values": {key: str(value)}}).encode()
        return await self._operate(Kind.WRITE, key, value, node_id, ("PUT", SETTINGS_PATH, body))

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()

    async def _operate(
        self, kind: Kind, key: str, value: Value, node_id: int, request: tuple[str, str, bytes]
    ) -> Operation:
        invoked_ns = time.monotonic_ns()
        result: Result
        try:
            answer = await self._connections[node_id].request(
                *request, timeout_s=OPERATION_TIMEOUT_S
            )
            result = interpret(kind, key, answer)
        except NotSentError as error:
            result = Result(Outcome.FAIL, note=str(error))
        except OutcomeLostError as error:
            result = Result(Outcome.UNKNOWN, note=str(error))
        operation = Operation(
            process=self._process,
            kind=kind,
            key=key,
            value=result.value if kind is Kind.READ else value,
            invoked_ns=invoked_ns,
            returned_ns=time.monotonic_ns(),
            outcome=result.outcome,
            index=result.index,
            node=node_id,
            note=result.note,
        )
        self._record(operation)
        if result.outcome is Outcome.UNKNOWN:
            # The operation may take effect later, beside the next ones: those need a new process.
            self._process += self._process_step
        return operation


def interpret(kind: Kind, key: str, answer: HttpAnswer) -> Result:
    """The result of an operation, by its HTTP answer."""
    try:
        document: Any = json.loads(answer.body)
        if answer.status == 200:
            index = int(document["index"])
            if kind is Kind.WRITE:
                return Result(Outcome.OK, index=index)
            text = document["values"].get(key)
            return Result(Outcome.OK, None if text is None else int(text), index)
        code = int(document["error_code"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Result(Outcome.UNKNOWN, note=f"status {answer.status}, unreadable: {error!r}")
    entry = ERROR_TABLE.get(code)
    is_certain = entry is not None and not entry.outcome_unknown
    return Result(Outcome.FAIL if is_certain else Outcome.UNKNOWN, note=f"error {code}")
