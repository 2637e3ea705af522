"""The history of Kafka's clients: operations ahead of their outcomes, and events of a session.

A session is one client object. Killed at any moment, it leaves what it has begun: each value is
written to the history before it is produced, each transaction before its beginning and again before
its commit. A later entry of the same value or transaction replaces the earlier one.

A directory holds the operations by partition (recording.py), and for each session a file of events.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from tests.soak.recording import Recorder, operations, partitions_in
from tests.verification.history_file import HistoryWriter, load
from tests.verification.log_history import Operation, Send
from tests.verification.transaction_history import CommittedOffset, Transaction

EVENTS: Final = ".events.jsonl"
"""Ending of the files of events; the name of the session comes first."""


class ClientError(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """An error that librdkafka reported to the application."""

    session: str
    process: int
    """The id of the client's process."""
    step: int
    during: str
    """The call, or "delivery", or "background"."""
    code: int
    name: str
    """Kafka's name of the code."""
    text: str
    is_fatal: bool = False
    """The client object is of no use any more."""
    transaction: str = ""
    """The transaction under way, by its name."""


class TransactionEvent(msgspec.Struct, frozen=True, tag="transaction"):
    """A transaction, as far as it is known."""

    transaction: Transaction


class OffsetEvent(msgspec.Struct, frozen=True, tag="offset"):
    """A group's committed offset."""

    offset: CommittedOffset


Event: TypeAlias = ClientError | TransactionEvent | OffsetEvent
EVENT_DECODER: Final[msgspec.json.Decoder[Event]] = msgspec.json.Decoder(Event)


class Journal:
    """Writes the history of one session."""

    def __init__(self, directory: Path, client: str) -> None:
        self.session = f"{client}-{os.getpid()}-{time.monotonic_ns() // 1_000_000}"
        """Unique in the history."""
        self._recorder = Recorder(directory, self.session)
        self._events = HistoryWriter(directory / f"{self.session}{EVENTS}")
        self.step = self._recorder.step

    def add(self, operation: Operation) -> None:
        """Append an operation of a partition."""
        self._recorder.add(operation)

    def transaction(self, transaction: Transaction) -> None:
        """Append the state of a transaction."""
        self._events.add(TransactionEvent(transaction))

    def offset(self, offset: CommittedOffset) -> None:
        """Append a committed offset."""
        self._events.add(OffsetEvent(offset))

    def error(self, during: str, error: Any, transaction: str = "") -> None:
        """Append an error of confluent-kafka (KafkaError), at once."""
        self._events.add(
            ClientError(
                session=self.session,
                process=os.getpid(),
                step=self.step(),
                during=during,
                code=error.code(),
                name=error.name(),
                text=error.str(),
                is_fatal=error.fatal(),
                transaction=transaction,
            )
        )
        self._events.flush()

    def flush(self) -> None:
        """Let what was added outlive a kill of this process."""
        self._recorder.flush()
        self._events.flush()

    def close(self) -> None:
        """Close all files."""
        self._recorder.close()
        self._events.close()


def events(directory: Path) -> Iterator[Event]:
    """The events of all sessions; of each transaction the last known state."""
    for path in sorted(directory.glob(f"*{EVENTS}")):
        transactions: dict[str, TransactionEvent] = {}
        for event in load(path, EVENT_DECODER):
            if isinstance(event, TransactionEvent):
                transactions[event.transaction.name] = event
            else:
                yield event
        yield from transactions.values()


def latest(history: Iterable[Operation]) -> Iterator[Operation]:
    """The operations of a partition, with one send for each value: the last known state."""
    sends: dict[str, Send] = {}
    for operation in history:
        if isinstance(operation, Send):
            sends[operation.values[0]] = operation
        else:
            yield operation
    yield from sends.values()


def all_operations(directory: Path) -> Iterator[Operation]:
    """The operations of all partitions."""
    for partition in partitions_in(directory):
        yield from latest(operations(directory, partition))
