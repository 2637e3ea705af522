"""The client processes of a soak of Kafka's clients: `python -m tests.soak.kafka_clients`.

The first line on stdin is a `KafkaOrder`; the end of stdin ends the process. All are librdkafka's:

- a *writer* is an idempotent producer without transactions, several requests in flight;
- a *transactor* writes to several partitions of two topics in transactions;
- a *processor* is a member of a group. It copies the transactors' first topic, one transaction for
  each poll, together with the offsets.

Every session (kafka_history.py) records its operations. After an error that ends a session, the
process begins another one; a fenced process ends, with the exit code FENCED_EXIT.
"""

from __future__ import annotations

import io
import itertools
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import msgspec
from confluent_kafka import KafkaException

from tests.soak.client_processes import FENCED_EXIT
from tests.soak.kafka_group import GroupMember, Taken
from tests.soak.kafka_history import Journal
from tests.soak.kafka_producers import (
    AGAIN_S,
    FencedError,
    ProducerClient,
    SessionOverError,
    TransactionalClient,
    ending,
)
from tests.soak.kafka_topics import (
    INPUT,
    LONE,
    PARTITIONS,
    SIDE,
    KafkaOrder,
    copies_of,
    copy_value,
    source_text,
)

TICK_S: Final = 0.05
WAITING_MAX: Final = 4_000
"""Unacknowledged values of one writer."""
RECORDS_MAX: Final = 40
"""Of one transaction of a transactor."""
ABORTED_SHARE: Final = 0.1
"""Of the transactions: these are aborted on purpose."""
CLOSE_S: Final = 20.0
STDIN_BYTES: Final = 1 << 12


def write(order: KafkaOrder, journal: Journal, stop: threading.Event) -> None:
    """Write values until `stop` is set. Raises SessionOverError."""
    settings = {"message.timeout.ms": order.message_timeout_ms}
    client = ProducerClient(order, journal, **settings)
    numbers = itertools.count()
    owed = 0.0
    try:
        while not stop.is_set():
            owed = min(owed + order.rate * TICK_S, 2 * order.rate * TICK_S)
            count = max(min(int(owed), WAITING_MAX - client.waiting), 0)
            owed -= count
            sends = [
                client.announce(LONE, number % PARTITIONS, f"{journal.session}.{number}")
                for number in itertools.islice(numbers, count)
            ]
            journal.flush()
            for send in sends:
                client.produce(send)
            _serve(client, TICK_S)
            client.end_if_fatal()
        client.producer.flush(CLOSE_S)
    except KafkaException as error:
        raise _noted(journal, "produce", error) from error
    finally:
        client.close()


def transact(order: KafkaOrder, journal: Journal, stop: threading.Event) -> None:
    """Write transactions until `stop` is set. Raises SessionOverError, FencedError."""
    with closing(TransactionalClient(order, journal)) as client:
        client.begin()
        while not stop.is_set():
            count = random.randint(1, RECORDS_MAX)

            def values(name: str, count: int = count) -> list[tuple[str, int, str]]:
                return [
                    (random.choice((INPUT, SIDE)), random.randrange(PARTITIONS), f"{name}.{number}")
                    for number in range(count)
                ]

            client.run(values, is_aborted=random.random() < ABORTED_SHARE)
            _serve(client, count / order.rate)


def process(order: KafkaOrder, journal: Journal, stop: threading.Event) -> None:
    """Copy input until `stop` is set. Raises SessionOverError, FencedError."""
    with closing(TransactionalClient(order, journal)) as client:
        client.begin()
        with closing(GroupMember(order, journal)) as member:
            try:
                while not stop.is_set():
                    taken = member.poll()
                    _serve(client, 0)
                    client.end_if_fatal()
                    if taken and not _copy(order, client, member, taken):
                        member.go_back(taken)
            except KafkaException as error:
                raise _noted(journal, "consumer", error) from error


def _copy(
    order: KafkaOrder, client: TransactionalClient, member: GroupMember, taken: Sequence[Taken]
) -> bool:
    """Copy records in one transaction; whether it is committed."""

    def values(name: str) -> list[tuple[str, int, str]]:
        sources = [
            (one.partition, source_text(one.partition, offset, value))
            for one in taken
            for offset, value in one.records
        ]
        return [
            (copies_of(order.protocol), partition, copy_value(f"{name}.{number}", source))
            for number, (partition, source) in enumerate(sources)
        ]

    return client.run(
        values,
        is_aborted=random.random() < ABORTED_SHARE,
        processed=member.processed(taken),
        send_offsets=lambda: member.send_offsets(client.producer, taken),
    )


def _serve(client: ProducerClient, seconds: float) -> None:
    """Serve the callbacks for so long."""
    end = time.monotonic() + seconds
    client.producer.poll(0)
    while (left := end - time.monotonic()) > 0:
        client.producer.poll(left)


def _noted(journal: Journal, during: str, error: KafkaException) -> Exception:
    journal.error(during, error.args[0])
    return ending(error.args[0])


# The process

ROLES: Final = {"writer": write, "transactor": transact, "processor": process}


@contextmanager
def _journal(order: KafkaOrder) -> Iterator[Journal]:
    journal = Journal(Path(order.history), order.name)
    try:
        yield journal
    finally:
        journal.close()


def _note_end(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _wait_end(stdin: io.FileIO, stop: threading.Event) -> None:
    while stdin.read(STDIN_BYTES):
        pass
    stop.set()


def main() -> int:
    """Work until the end of stdin; the exit code."""
    # Without a buffer: the interpreter's end would wait for the lock of a buffer that is read.
    stdin = io.FileIO(0, closefd=False)
    order = msgspec.json.decode(stdin.readline(), type=KafkaOrder)
    stop = threading.Event()
    threading.Thread(target=_wait_end, args=(stdin, stop), daemon=True).start()
    while not stop.is_set():
        with _journal(order) as journal:
            try:
                ROLES[order.role](order, journal, stop)
            except SessionOverError as error:
                _note_end(f"{journal.session} is over: {error}")
            except FencedError as error:
                _note_end(f"{journal.session} is fenced: {error}")
                return FENCED_EXIT
        stop.wait(AGAIN_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
