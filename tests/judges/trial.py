"""The cluster under judgement: topics, records as librdkafka reads them, and nodes that die."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.cluster import Cluster
from tests.judges.programs import DEADLINE_S, Program, ToolShell, java_command, wait_for

NODES: Final = 3
REQUEST_S: Final = 30.0
CONSUME_MAX: Final = 1_000
RETRIABLE: Final = frozenset([KafkaError.NOT_CONTROLLER, KafkaError.REQUEST_TIMED_OUT])
"""Errors of an admin request while the controller changes."""
TRACEBACK: Final = "Traceback (most recent call last)"
QUIET: Final = {"log_level": 2}
"""Lost connections are no news while nodes are killed."""


class Effort(NamedTuple):
    """The size of a trial."""

    records: int
    kills: int
    """How often a node is killed under each judge that bears kills."""


BRIEF: Final = Effort(records=300, kills=1)
LONG: Final = Effort(records=20_000, kills=6)


class Row(NamedTuple):
    """A record as librdkafka reads it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def _row(message: Any) -> Row:
    # Typed as Any: of what was consumed without an error, each part is there.
    return Row(message.partition(), message.offset(), message.key(), message.value())


class Trial:
    """A running cluster with Kafka listeners, and a directory for the files of judges."""

    def __init__(self, cluster: Cluster, directory: Path, effort: Effort) -> None:
        self.cluster = cluster
        self.directory = directory
        self.effort = effort
        self.servers = cluster.kafka_servers
        self.tools = ToolShell(directory, self.servers)
        self._admin: AdminClient | None = None
        self._next_to_kill = itertools.cycle(sorted(cluster.nodes))
        self._numbers = itertools.count(1)

    def __enter__(self) -> Trial:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.tools.close()

    @property
    def admin(self) -> AdminClient:
        """librdkafka's admin client."""
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.servers, **QUIET})
        return self._admin

    def new_name(self, prefix: str) -> str:
        """Return a name that no judge of this trial had before."""
        return f"{prefix}-{next(self._numbers)}"

    def new_topic(self, prefix: str, partitions: int = 3, replicas: int = NODES) -> str:
        """Create a topic; return its name once every node can tell where it is."""
        name = self.new_name(prefix)
        self.create(name, partitions, replicas)
        return name

    def create(self, name: str, partitions: int = 3, replicas: int = NODES) -> None:
        """Create a topic of this name; return once its partitions have leaders and full ISRs."""
        attempts = 0

        def is_created() -> bool:
            nonlocal attempts
            attempts += 1
            topic = NewTopic(name, partitions, replicas)
            try:
                self.admin.create_topics([topic])[name].result(REQUEST_S)
            except KafkaException as failure:
                code = failure.args[0].code()
                if code in RETRIABLE:  # Java's clients repeat it, librdkafka leaves it to its users
                    return False
                if code == KafkaError.TOPIC_ALREADY_EXISTS and attempts > 1:
                    return True
                raise
            return True

        wait_for(f"topic {name}", is_created)
        self.wait_in_sync(name)

    def wait_in_sync(self, *topics: str) -> None:
        """Wait until all replicas of the topics (default: all topics) are in sync."""

        def are_in_sync() -> bool:
            found = self.admin.list_topics(timeout=REQUEST_S).topics
            if not set(topics) <= set(found):
                return False
            return all(
                partition.leader >= 0 and set(partition.isrs) == set(partition.replicas)
                for name in topics or found
                for partition in found[name].partitions.values()
            )

        wait_for(f"all replicas of {topics or 'all topics'} in sync", are_in_sync)

    def write(self, topic: str, values: Iterable[bytes], **settings: Any) -> None:
        """Write values by librdkafka, idempotent, in turn to all partitions."""
        producer = Producer(
            {"bootstrap.servers": self.servers, "enable.idempotence": True, **QUIET, **settings}
        )
        failures: list[object] = []
        partitions = len(self.admin.list_topics(topic, timeout=REQUEST_S).topics[topic].partitions)
        for number, value in enumerate(values):
            producer.produce(
                topic,
                value,
                partition=number % partitions,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0, f"{topic}: records were not acknowledged in time"
        assert not failures, failures[:3]

    def read(self, topic: str) -> list[Row]:
        """Read a topic's committed records from the start to the end, by librdkafka."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "trial",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "fetch.queue.backoff.ms": 10,
                **QUIET,
            }
        )
        try:
            partitions = set(consumer.list_topics(topic, REQUEST_S).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            rows: list[Row] = []
            deadline = time.monotonic() + DEADLINE_S
            while partitions:
                assert time.monotonic() < deadline, f"{topic}: no end of {partitions}"
                for message in consumer.consume(CONSUME_MAX, timeout=0.2):
                    error = message.error()
                    if error is None:
                        rows.append(_row(message))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        partitions.discard(message.partition())
                    else:
                        raise AssertionError(f"{topic}: {error}")
            return rows
        finally:
            consumer.close()

    def disturb(self, progress: Callable[[], int], step: int, *programs: Program) -> int:
        """Kill a node, restart it, and so on in turn; return the number of kills.

        `progress` counts the judge's work: it must grow by `step` before a kill, and again before
        the node starts again. Raises AssertionError: no progress in time, or one of the programs
        ended.
        """
        for _ in range(self.effort.kills):
            _wait_growth(progress, step, programs)
            node_id = next(self._next_to_kill)
            self.cluster.kill(node_id)
            _wait_growth(progress, step, programs)
            self.cluster.revive(node_id)
            self.wait_in_sync()
        _wait_growth(progress, step, programs)
        return self.effort.kills

    def check_nodes(self) -> None:
        """Check that the nodes run without an error of their own; start the killed ones.

        Raises AssertionError: a traceback in a log; RuntimeError: a node ended by itself.
        """
        self.cluster.heal()
        for node_id, node in self.cluster.nodes.items():
            for log in node.logs:
                text = log.read_text(errors="replace")
                found = text.find(TRACEBACK)
                assert found < 0, f"node {node_id}: {text[max(0, found - 500) : found + 3_000]}"
        for node in self.cluster.nodes.values():
            node.wait_ready()
        self.wait_in_sync()

    def file(self, name: str, text: str) -> str:
        """Write a file of a judge; return its path."""
        path = self.directory / name
        path.write_text(text)
        return str(path)

    def properties(self, name: str, **values: object) -> str:
        """Write a properties file, with dots for `__` in the keys; return its path."""
        lines = [f"{key.replace('__', '.')}={value}" for key, value in values.items()]
        return self.file(f"{name}.properties", "\n".join(lines) + "\n")

    def java(self, name: str, main_class: str, *arguments: str) -> Program:
        """Start a Java program; its deadline covers the kills of nodes. Raises UnavailableError."""
        deadline_s = DEADLINE_S * (1 + self.effort.kills)
        command = java_command(main_class, *arguments)
        return Program(command, self.directory, self.new_name(name), deadline_s=deadline_s)


@contextmanager
def trial(directory: Path, effort: Effort) -> Iterator[Trial]:
    """Start a cluster in `directory`; kill its nodes at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    with Cluster(directory / "cluster", NODES, kafka=True) as cluster:
        cluster.start()
        files = directory / "files"
        files.mkdir()
        with Trial(cluster, files, effort) as running:
            yield running


def check_values(wanted: Iterable[bytes], rows: Sequence[Row]) -> None:
    """Check that each value is there exactly once. Raises AssertionError with the difference."""
    expected = Counter(wanted)
    found = Counter(row.value for row in rows if row.value is not None)
    missing, surplus = expected - found, found - expected
    assert not missing and not surplus, (
        f"{missing.total()} of {expected.total()} values are missing ({_some(missing)}), "
        f"{surplus.total()} are surplus ({_some(surplus)})"
    )


def _some(counter: Counter[bytes]) -> str:
    return ", ".join(f"{value!r}" for value in itertools.islice(counter, 5))


def _wait_growth(progress: Callable[[], int], step: int, programs: Sequence[Program]) -> None:
    begun = progress()

    def has_grown() -> bool:
        for program in programs:
            program.check_running()
        return progress() >= begun + step

    try:
        wait_for(f"progress by {step} from {begun}", has_grown)
    except AssertionError as error:
        evidence = [program.evidence() for program in programs]
        raise AssertionError("\n".join([str(error), *evidence])) from None
