"""VerifiableProducer and VerifiableConsumer, Kafka's own pair for its system tests."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final, Literal

from tests.judges.programs import Program
from tests.judges.trial import Trial, check_values

ENDED_BY_SIGNAL: Final = 143
STEP: Final = 100
RATE: Final = 500
"""Records a second."""


def _events(program: Program, name: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in program.lines() if line.startswith("{")]
    return [event for event in found if event["name"] == name]


def _pair(trial: Trial, protocol: Literal["classic", "consumer"]) -> str:
    """Write at a steady rate, read as a group, kill nodes; each acked record is there once."""
    topic, group = trial.new_topic(f"verifiable-{protocol}"), trial.new_name("verifiable")
    config = trial.properties(group, enable__idempotence="true", retries=2**31 - 1)
    common = ("--bootstrap-server", trial.servers, "--topic", topic)
    write = ("--acks", "-1", "--throughput", str(RATE), "--command-config", config)
    read = ("--group-id", group, "--group-protocol", protocol, "--reset-policy", "earliest")
    tools = "org.apache.kafka.tools"
    with (
        trial.java("consumer", f"{tools}.VerifiableConsumer", *common, *read) as consumer,
        trial.java("producer", f"{tools}.VerifiableProducer", *common, *write) as producer,
    ):
        consumed = _Consumed(consumer)
        kills = trial.disturb(
            lambda: min(consumed.count(), len(producer.lines())), STEP, producer, consumer
        )
        producer.wait_for(
            f"{trial.effort.records} records", lambda: len(producer.lines()) >= trial.effort.records
        )
        producer.stop(ENDED_BY_SIGNAL)
        errors = _events(producer, "producer_send_error")
        assert not errors, errors[:3]
        acked = _events(producer, "producer_send_success")
        consumer.wait_for("all records consumed", lambda: consumed.count() >= len(acked))
        consumer.stop(ENDED_BY_SIGNAL)
    rows = trial.read(topic)
    check_values((event["value"].encode() for event in acked), rows)
    in_log = {(row.partition, row.offset): row.value for row in rows}
    for event in acked:
        place = event["partition"], event["offset"]
        assert in_log[place] == event["value"].encode(), (place, event)
    consumed.check(rows)
    described = trial.tools.run(
        "consumer.group.ConsumerGroupCommand", "--describe", "--group", group, "--offsets"
    )
    ends = Counter(row.partition for row in rows)
    for number, end in ends.items():
        committed = [line.split()[3:6] for line in described.splitlines() if topic in line]
        assert [str(end), str(end), "0"] in committed, (number, end, described)
    return (
        f"{len(acked)} records acknowledged, each once in the log and read; {kills} kills, "
        f"{consumed.repeated} read again"
    )


class _Consumed:
    """The offsets that a VerifiableConsumer read, as its lines come."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._offsets: Counter[tuple[int, int]] = Counter()
        self._lines_seen = 0

    def count(self) -> int:
        """Return the number of different offsets so far."""
        lines = self._program.lines()
        for line in lines[self._lines_seen :]:
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            if event["name"] == "records_consumed":
                for part in event["partitions"]:
                    for offset in range(part["minOffset"], part["maxOffset"] + 1):
                        self._offsets[part["partition"], offset] += 1
        self._lines_seen = len(lines)
        return len(self._offsets)

    @property
    def repeated(self) -> int:
        """How many reads were of an offset read before."""
        return self._offsets.total() - len(self._offsets)

    def check(self, rows: list[Any]) -> None:
        """Check that the offsets read are those of the log. Raises AssertionError."""
        self.count()
        in_log = {(row.partition, row.offset) for row in rows}
        assert set(self._offsets) == in_log, f"{len(in_log)} in the log, {self.count()} read"


def verifiable_classic(trial: Trial) -> str:
    """The pair, with a group of the classic protocol."""
    return _pair(trial, "classic")


def verifiable_consumer(trial: Trial) -> str:
    """The pair, with a group of the protocol of KIP-848."""
    return _pair(trial, "consumer")
