"""The producers of librdkafka, with a journal ahead of each value and transaction."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer
from msgspec.structs import replace

from tests.soak.kafka_history import Journal
from tests.soak.kafka_topics import COMMON, KafkaOrder
from tests.soak.recording import partition_name
from tests.verification.log_history import Send
from tests.verification.transaction_history import Processed, Transaction

CALL_S: Final = 10.0
"""Of one call of the transactional API; a call that takes longer is made again."""
INSIST_S: Final = 180.0
"""Of all repetitions of one call: then the session ends, with the outcome unknown."""
AGAIN_S: Final = 0.2
TRANSACTION_TIMEOUT_MS: Final = 60_000
FENCED: Final = frozenset(
    [KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH]
)
PURGED: Final = frozenset([KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT])
IN_DOUBT: Final = frozenset(
    [KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN]
)

_T = TypeVar("_T")


class SessionOverError(Exception):
    """The session cannot go on; the next one begins where the records say."""


class FencedError(Exception):
    """Another process has the transactional id."""


class ProducerClient:
    """A producer, with its deliveries in the journal."""

    def __init__(self, order: KafkaOrder, journal: Journal, **settings: Any) -> None:
        self.journal = journal
        self.waiting = 0
        self.transaction = ""
        self.fatal: KafkaError | None = None
        self.has_purged = self.is_in_doubt = False
        """Of the transaction: messages were given up; requests may have arrived without answer."""
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
        if error.code() in PURGED:
            self.has_purged = True
            return
        self._noted(during, error)
        if error.fatal():
            self.fatal = error

    def _noted(self, during: str, error: Any) -> None:
        self.is_in_doubt = self.is_in_doubt or error.code() in IN_DOUBT
        self.journal.error(during, error, self.transaction)

    def close(self) -> None:
        """Abort an open transaction, wait for what is not delivered yet, and end the producer."""
        # After a fatal error it cannot abort: that error is in the journal already.
        with suppress(KafkaException):
            self._producer.close()

    def end_if_fatal(self) -> None:
        """Raise FencedError or SessionOverError after a fatal error."""
        if self.fatal is not None:
            raise ending(self.fatal)


def ending(error: Any) -> Exception:
    """The exception for the fatal error of a client."""
    if error.code() in FENCED:
        return FencedError(error.str())
    return SessionOverError(error.str())


class TransactionalClient(ProducerClient):
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
        self.has_purged = self.is_in_doubt = False
        transaction = Transaction(name=name, outcome="aborted")
        self.journal.transaction(transaction)
        sends = [self.announce(*each, transaction=name) for each in values(name)]
        self.journal.flush()
        try:
            self._call("begin_transaction", self.producer.begin_transaction)
            for send in sends:
                self._call("produce", partial(self.produce, send))
            self.producer.poll(0)
            if send_offsets is not None:
                self._call("send_offsets_to_transaction", send_offsets)
            if is_aborted:
                self._abort()
                self._end_if_in_doubt()
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
            self._end_if_in_doubt()
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

    def _end_if_in_doubt(self) -> None:
        """Raise SessionOverError if messages that an abort has given up may be in the log.

        librdkafka takes them for never sent, and gives their sequence numbers to the next ones
        (`rd_kafka_toppar_purge_queues` in 2.10; seen with 2.16.1). A new session has a new epoch.
        """
        self.producer.poll(0)
        if self.has_purged and self.is_in_doubt:
            raise SessionOverError(f"{self.transaction} is aborted, with messages in doubt")

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
                self._noted(name, error)
                if error.fatal():
                    raise ending(error) from raised
                if error.txn_requires_abort():
                    raise _AbortableError(error.str()) from raised
                if not error.retriable() or time.monotonic() > deadline:
                    raise SessionOverError(f"{name}: {error.str()}") from raised
                time.sleep(AGAIN_S)


class _AbortableError(Exception):
    """The transaction is to be aborted."""
