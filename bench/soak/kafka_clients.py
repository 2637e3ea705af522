"""The client processes of a soak of Kafka's clients: `python -m bench.soak.kafka_clients`.

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
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from msgspec.structs import replace

from bench.soak.client_processes import FENCED_EXIT
from bench.soak.kafka_history import Journal
from bench.soak.recording import partition_name
from tests.verification.log_history import Assign, Poll, Send
from tests.verification.transaction_history import CommittedOffset, Processed, Transaction

LONE: Final = "kafka-lone"
"""Written by the writers."""
INPUT: Final = "kafka-input"
SIDE: Final = "kafka-side"
"""Written by the transactors, with `INPUT`."""
PARTITIONS: Final = 6
"""Of each topic."""
Protocol = Literal["classic", "consumer"]
PROTOCOLS: Final[tuple[Protocol, ...]] = ("classic", "consumer")

TICK_S: Final = 0.05
WAITING_MAX: Final = 4_000
"""Unacknowledged values of one writer."""
RECORDS_MAX: Final = 40
"""Of one transaction of a transactor."""
ABORTED_SHARE: Final = 0.1
"""Of the transactions: these are aborted on purpose."""
POLL_RECORDS_MAX: Final = 200
POLL_S: Final = 0.5
CALL_S: Final = 10.0
"""Of one call of the transactional API; a call that takes longer is made again."""
INSIST_S: Final = 180.0
"""Of all repetitions of one call: then the session ends, with the outcome unknown."""
CLOSE_S: Final = 20.0
STDIN_BYTES: Final = 1 << 12
AGAIN_S: Final = 0.2
COMMON: Final[dict[str, Any]] = {
    "socket.timeout.ms": 10_000,
    "reconnect.backoff.max.ms": 1_000,
}
TRANSACTION_TIMEOUT_MS: Final = 60_000
SESSION_TIMEOUT_MS: Final = 6_000
FENCED: Final = frozenset(
    [KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH]
)

_T = TypeVar("_T")


def copies_of(protocol: str) -> str:
    """The topic that the processors of a protocol write."""
    return f"kafka-copies-{protocol}"


def group_of(protocol: str) -> str:
    """The group of the processors of a protocol."""
    return f"kafka-{protocol}"


TOPICS: Final = (LONE, INPUT, SIDE, *map(copies_of, PROTOCOLS))


class KafkaOrder(msgspec.Struct, frozen=True):
    """The work of a process."""

    name: str
    """Also the transactional id of a transactor or processor."""
    role: Literal["writer", "transactor", "processor"]
    servers: str
    """The Kafka listeners."""
    history: str
    rate: float = 0.0
    """Records a second of a writer or transactor."""
    message_timeout_ms: int = 120_000
    """Of a writer: a value that is not acknowledged by then has an unknown outcome."""
    is_once: bool = True
    """Whether every value must be in the log once, in order: no epoch of the producer ends."""
    protocol: Protocol = "classic"
    """Of a processor's group."""


class SessionOverError(Exception):
    """The session cannot go on; the next one begins where the records say."""


class FencedError(Exception):
    """Another process has the transactional id."""


def copy_value(tag: str, source: str) -> str:
    """A processor's copy: `tag` makes every attempt another value."""
    return f"{tag}={source}"


def source_of(copy: str) -> str:
    """The inverse of `copy_value`."""
    return copy.partition("=")[2]


def source_text(partition: int, offset: int, value: str) -> str:
    """An input record, in a copy."""
    return f"{value}@{partition}:{offset}"


class Writing:
    """A producer, with its deliveries in the journal."""

    def __init__(self, order: KafkaOrder, journal: Journal, **settings: Any) -> None:
        self.journal = journal
        self.waiting = 0
        self.transaction = ""
        self.fatal: KafkaError | None = None
        self._is_once = order.is_once
        self._producer = Producer(
            {
                "bootstrap.servers": order.servers,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "error_cb": self._failed,
                **COMMON,
                **settings,
            }
        )

    @property
    def producer(self) -> Any:
        """The confluent-kafka producer."""
        return self._producer

    def announce(self, topic: str, partition: int, value: str, transaction: str = "") -> Send:
        """Write a value to the journal; flush the journal before `produce`."""
        send = Send(
            partition=partition_name(topic, partition),
            producer=self.journal.session,
            values=(value,),
            invoked=self.journal.step(),
            idempotent=self._is_once,
            repeated=not self._is_once,
            transaction=transaction,
        )
        self.journal.add(send)
        return send

    def produce(self, send: Send) -> None:
        """Produce an announced value. Raises KafkaException, BufferError."""
        topic, _, partition = send.partition.rpartition("-")
        self._producer.produce(
            topic,
            send.values[0].encode(),
            partition=int(partition),
            on_delivery=lambda error, message: self._delivered(send, error, message),
        )
        self.waiting += 1

    def _delivered(self, send: Send, error: Any, message: Any) -> None:
        self.waiting -= 1
        if error is not None:
            self._failed(error, "delivery")
            # A batch may be in the log already, even if its last attempt was refused.
            self.journal.add(replace(send, completed=self.journal.step()))
            return
        offset = message.offset()
        self.journal.add(
            replace(
                send,
                completed=self.journal.step(),
                outcome="ok",
                # None: a repetition that the leader knew, without its offset.
                offset=offset if offset >= 0 else None,
            )
        )

    def _failed(self, error: Any, during: str = "background") -> None:
        # Messages of an aborted transaction end with these, by the hundred.
        if error.code() in {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}:
            return
        self.journal.error(during, error, self.transaction)
        if error.fatal():
            self.fatal = error

    def close(self) -> None:
        """End the producer at once: of what is not delivered yet the outcome is unknown."""
        # After a fatal error it cannot abort: that error is in the journal already.
        with suppress(KafkaException):
            self._producer.close(0)

    def end_if_fatal(self) -> None:
        """Raise FencedError or SessionOverError after a fatal error."""
        if self.fatal is not None:
            raise _ending(self.fatal)


def _ending(error: Any) -> Exception:
    if error.code() in FENCED:
        return FencedError(error.str())
    return SessionOverError(error.str())


# Writers


def write(order: KafkaOrder, journal: Journal, stop: threading.Event) -> None:
    """Write values until `stop` is set. Raises SessionOverError."""
    settings = {"message.timeout.ms": order.message_timeout_ms}
    writing = Writing(order, journal, **settings)
    numbers = itertools.count()
    owed = 0.0
    try:
        while not stop.is_set():
            owed = min(owed + order.rate * TICK_S, 2 * order.rate * TICK_S)
            count = max(min(int(owed), WAITING_MAX - writing.waiting), 0)
            owed -= count
            sends = [
                writing.announce(LONE, number % PARTITIONS, f"{journal.session}.{number}")
                for number in itertools.islice(numbers, count)
            ]
            journal.flush()
            for send in sends:
                writing.produce(send)
            _serve(writing, TICK_S)
            writing.end_if_fatal()
        writing.producer.flush(CLOSE_S)
    except KafkaException as error:
        raise _noted(journal, "produce", error) from error
    finally:
        writing.close()


def _serve(writing: Writing, seconds: float) -> None:
    """Serve the callbacks for so long."""
    end = time.monotonic() + seconds
    writing.producer.poll(0)
    while (left := end - time.monotonic()) > 0:
        writing.producer.poll(left)


def _noted(journal: Journal, during: str, error: KafkaException) -> Exception:
    journal.error(during, error.args[0])
    return _ending(error.args[0])


# Transactions


class Transacting(Writing):
    """A transactional producer: one transaction at a time, in the journal."""

    def __init__(self, order: KafkaOrder, journal: Journal) -> None:
        super().__init__(
            order,
            journal,
            **{
                "transactional.id": order.name,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            },
        )
        self._numbers = itertools.count()

    def begin(self) -> None:
        """Take the transactional id. Raises SessionOverError, FencedError."""
        self._call("init_transactions", lambda: self.producer.init_transactions(CALL_S))

    def run(
        self,
        values: Callable[[str], Sequence[tuple[str, int, str]]],
        *,
        is_aborted: bool,
        processed: Sequence[Processed] = (),
        send_offsets: Callable[[], None] | None = None,
    ) -> bool:
        """One transaction; whether it is committed.

        `values` makes topic, partition and value of each record, from a prefix for the values.
        Raises SessionOverError, FencedError.
        """
        name = self.transaction = f"{self.journal.session}.{next(self._numbers)}"
        transaction = Transaction(name=name, outcome="aborted")
        self.journal.transaction(transaction)
        sends = [self.announce(*each, transaction=name) for each in values(name)]
        self.journal.flush()
        try:
            self._call("begin_transaction", self.producer.begin_transaction)
            for send in sends:
                self._call("produce", lambda send=send: self.produce(send))
            self.producer.poll(0)
            if send_offsets is not None:
                self._call("send_offsets_to_transaction", send_offsets)
            if is_aborted:
                self._abort()
                return False
            transaction = replace(
                transaction,
                ending=self.journal.step(),
                outcome="unknown",
                processed=tuple(processed),
            )
            self.journal.transaction(transaction)
            self.journal.flush()
            self._call("commit_transaction", lambda: self.producer.commit_transaction(CALL_S))
        except _AbortableError:
            self._abort()
            self.journal.transaction(replace(transaction, outcome="aborted"))
            return False
        self.journal.transaction(
            replace(transaction, completed=self.journal.step(), outcome="committed")
        )
        return True

    def _abort(self) -> None:
        try:
            self._call("abort_transaction", lambda: self.producer.abort_transaction(CALL_S))
        except _AbortableError as error:
            raise SessionOverError(f"an abort is to be aborted: {error}") from error

    def _call(self, name: str, call: Callable[[], _T]) -> _T:
        """Make a call of the producer, again while it is retriable.

        Raises _AbortableError: abort. Raises SessionOverError, FencedError.
        """
        deadline = time.monotonic() + INSIST_S
        while True:
            try:
                return call()
            except KafkaException as raised:
                error = raised.args[0]
                self.journal.error(name, error, self.transaction)
                if error.fatal():
                    raise _ending(error) from raised
                if error.txn_requires_abort():
                    raise _AbortableError(error.str()) from raised
                if not error.retriable() or time.monotonic() > deadline:
                    raise SessionOverError(f"{name}: {error.str()}") from raised
                time.sleep(AGAIN_S)


class _AbortableError(Exception):
    """The transaction is to be aborted."""


def transact(order: KafkaOrder, journal: Journal, stop: threading.Event) -> None:
    """Write transactions until `stop` is set. Raises SessionOverError, FencedError."""
    with closing(Transacting(order, journal)) as transacting:
        transacting.begin()
        while not stop.is_set():
            count = random.randint(1, RECORDS_MAX)

            def values(name: str, count: int = count) -> list[tuple[str, int, str]]:
                return [
                    (random.choice((INPUT, SIDE)), random.randrange(PARTITIONS), f"{name}.{number}")
                    for number in range(count)
                ]

            transacting.run(values, is_aborted=random.random() < ABORTED_SHARE)
            _serve(transacting, count / order.rate)


# Processors


class Taken(NamedTuple):
    """Records of one poll, of one partition."""

    partition: int
    start: int
    """The position before."""
    records: list[tuple[int, str]]

    @property
    def end(self) -> int:
        """The position after."""
        return self.records[-1][0] + 1


class GroupMember:
    """A consumer of a group, with its polls and committed offsets in the journal."""

    def __init__(self, order: KafkaOrder, journal: Journal) -> None:
        self._journal = journal
        self._group = group_of(order.protocol)
        self._is_incremental = order.protocol == "consumer"
        self._positions: dict[int, int] = {}
        settings: dict[str, Any] = {
            "bootstrap.servers": order.servers,
            "group.id": self._group,
            "group.protocol": order.protocol,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            # The begin of each partition is given: no position is ever out of range.
            "auto.offset.reset": "error",
            "fetch.queue.backoff.ms": 10,
            "error_cb": lambda error: journal.error("background", error),
            **COMMON,
        }
        if order.protocol == "classic":
            settings["session.timeout.ms"] = SESSION_TIMEOUT_MS
            settings["heartbeat.interval.ms"] = 1_000
        self._consumer = Consumer(settings)
        self._consumer.subscribe(
            [INPUT], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )

    def poll(self) -> list[Taken]:
        """The next records of partitions that are assigned still. Raises KafkaException."""
        invoked = self._journal.step()
        found: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for row in self._consumer.consume(POLL_RECORDS_MAX, timeout=POLL_S):
            if row.error() is not None:
                self._journal.error("consume", row.error())
            elif row.partition() in self._positions:
                found[row.partition()].append((row.offset(), row.value().decode()))
        taken = []
        for partition, records in sorted(found.items()):
            one = Taken(partition, self._positions[partition], records)
            taken.append(one)
            self._positions[partition] = one.end
            self._journal.add(
                Poll(
                    partition=partition_name(INPUT, partition),
                    consumer=self._journal.session,
                    invoked=invoked,
                    completed=self._journal.step(),
                    start=one.start,
                    next_offset=one.end,
                    records=tuple(records),
                    is_committed=True,
                )
            )
        return taken

    def processed(self, taken: Sequence[Taken]) -> list[Processed]:
        """The input of a transaction with these records."""
        return [
            Processed(self._group, partition_name(INPUT, one.partition), one.start, one.end)
            for one in taken
        ]

    def send_offsets(self, producer: Any, taken: Sequence[Taken]) -> None:
        """Let the transaction commit the ends of these. Raises KafkaException."""
        producer.send_offsets_to_transaction(
            [TopicPartition(INPUT, one.partition, one.end) for one in taken],
            self._consumer.consumer_group_metadata(),
            CALL_S,
        )

    def go_back(self, taken: Sequence[Taken]) -> None:
        """Read these again, as far as they are assigned still. Raises KafkaException."""
        for one in taken:
            if one.partition in self._positions:
                self._consumer.seek(TopicPartition(INPUT, one.partition, one.start))
                self._begin(one.partition, one.start)

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def _begin(self, partition: int, offset: int) -> None:
        self._positions[partition] = offset
        self._journal.add(
            Assign(
                partition=partition_name(INPUT, partition),
                consumer=self._journal.session,
                offset=offset,
            )
        )

    def _assigned(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        invoked = self._journal.step()
        for found in consumer.committed(partitions, timeout=CALL_S) if partitions else []:
            if found.error is not None:
                raise KafkaException(found.error)
            found.offset = max(found.offset, 0)
            self._journal.offset(
                CommittedOffset(
                    group=self._group,
                    partition=partition_name(INPUT, found.partition),
                    invoked=invoked,
                    completed=self._journal.step(),
                    offset=found.offset,
                )
            )
            self._begin(found.partition, found.offset)
        given = [
            TopicPartition(INPUT, one.partition, self._positions[one.partition])
            for one in partitions
        ]
        if self._is_incremental:
            consumer.incremental_assign(given)
        else:
            consumer.assign(given)

    def _revoked(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self._positions.pop(one.partition, None)


def process(order: KafkaOrder, journal: Journal, stop: threading.Event) -> None:
    """Copy input until `stop` is set. Raises SessionOverError, FencedError."""
    with closing(Transacting(order, journal)) as transacting:
        transacting.begin()
        with closing(GroupMember(order, journal)) as member:
            try:
                while not stop.is_set():
                    taken = member.poll()
                    _serve(transacting, 0)
                    transacting.end_if_fatal()
                    if taken and not _copy(order, transacting, member, taken):
                        member.go_back(taken)
            except KafkaException as error:
                raise _noted(journal, "consumer", error) from error


def _copy(
    order: KafkaOrder, transacting: Transacting, member: GroupMember, taken: Sequence[Taken]
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

    return transacting.run(
        values,
        is_aborted=random.random() < ABORTED_SHARE,
        processed=member.processed(taken),
        send_offsets=lambda: member.send_offsets(transacting.producer, taken),
    )


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
