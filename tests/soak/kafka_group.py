"""librdkafka's consumer in a group with a journal: polls, positions and committed offsets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.soak.kafka_history import Journal
from tests.soak.kafka_producers import CALL_S
from tests.soak.kafka_topics import COMMON, INPUT, KafkaOrder, group_of
from tests.soak.recording import partition_name
from tests.verification.log_history import Assign, Poll
from tests.verification.transaction_history import CommittedOffset, Processed

POLL_RECORDS_MAX: Final = 200
POLL_S: Final = 0.5
SESSION_TIMEOUT_MS: Final = 6_000


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
        row: Any
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
