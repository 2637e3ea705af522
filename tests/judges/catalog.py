"""All judges, in the order of a trial: cheap ones first."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from tests.judges import (
    connect,
    java_tools,
    kcat,
    python_clients,
    spark,
    streams,
    verifiable,
)
from tests.judges.jars import UnavailableError
from tests.judges.trial import Trial


class Judge(NamedTuple):
    """A judge: `run` returns its deeds, or raises AssertionError or UnavailableError."""

    name: str
    client: str
    run: Callable[[Trial], str]


JUDGES: Final = (
    Judge("kcat", "kcat", kcat.kcat_pipes),
    Judge("kafka-python", "kafka-python", python_clients.kafka_python_group),
    Judge("aiokafka", "aiokafka", python_clients.aiokafka_copies),
    Judge("topics", "TopicCommand, ConfigCommand, GetOffsetShell", java_tools.topics_and_configs),
    Judge(
        "cluster",
        "MetadataQuorumCommand, LogDirsCommand, ReassignPartitionsCommand",
        java_tools.cluster_tools,
    ),
    Judge("console", "ConsoleProducer, ConsoleConsumer", java_tools.console),
    Judge("performance", "ProducerPerformance, ConsumerPerformance", java_tools.performance),
    Judge("groups", "ConsumerGroupCommand", java_tools.groups),
    Judge("transactions", "TransactionsCommand", java_tools.transactions),
    Judge(
        "coordinator-topics",
        "OffsetsMessageFormatter, TransactionLogMessageFormatter",
        java_tools.coordinator_topics,
    ),
    Judge(
        "verifiable-classic",
        "VerifiableProducer, VerifiableConsumer (classic)",
        verifiable.verifiable_classic,
    ),
    Judge(
        "verifiable-consumer",
        "VerifiableProducer, VerifiableConsumer (KIP-848)",
        verifiable.verifiable_consumer,
    ),
    Judge("connect", "Connect standalone, file connectors", connect.connect_standalone),
    Judge("connect-once", "Connect distributed, exactly-once source", connect.connect_exactly_once),
    Judge("streams", "Streams WordCountDemo, exactly_once_v2", streams.streams_exactly_once),
    Judge("spark", "Spark's Kafka source and sink", spark.spark_source_and_sink),
)

Verdict = Literal["passed", "failed", "skipped"]


class Result(NamedTuple):
    """The end of one judge: `text` is its deeds, the evidence, or the reason of the skip."""

    judge: Judge
    verdict: Verdict
    text: str
    seconds: float


def run(judge: Judge, trial: Trial) -> Result:
    """Run one judge, and look after the nodes; a failure of any kind is a result."""
    begun = time.monotonic()
    verdict: Verdict = "passed"
    try:
        text = judge.run(trial)
        trial.check_nodes()
    except UnavailableError as reason:
        verdict, text = "skipped", str(reason)
    except Exception as error:  # a judge is a foreign program: the others run nevertheless
        verdict, text = "failed", f"{type(error).__name__}: {error}"
        trial.cluster.heal()
    return Result(judge, verdict, text, time.monotonic() - begun)
