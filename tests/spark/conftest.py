"""One Spark session and one node for all tests here: starting Spark takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Final

import pytest

from bench.cluster import Cluster
from bench.node import LoneNode

from . import fault_parts, sink_parts
from .programs import CONFIG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No test runs long enough to pay for Java's second compiler, or for verification of the bytecode of
# Spark's own classes.
os.environ.setdefault(
    "JAVA_TOOL_OPTIONS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)

SMALL_QUERIES: Final = {
    **CONFIG,
    # Spark would compile Java for every query, at more cost than the few rows of a test.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings for queries of a few rows."""

_numbers = count(1)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session as users get it, in two threads. A failed task is retried once."""
    from raftlog_spark.pipelines import LOCAL_SERVER_CONFIG
    from raftlog_spark.session import session

    running = session(
        "tests",
        master="local[2,2]",
        config={
            **SMALL_QUERIES,
            **LOCAL_SERVER_CONFIG,
            "spark.python.daemon.module": "tests.spark.warm_daemon",
            # The session also serves Spark Connect.
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
        },
    )
    running.sparkContext.setLogLevel("ERROR")
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="session")
def connect_server(spark: SparkSession) -> str:
    """The address of the session for clients of Spark Connect."""
    service = getattr(
        spark.sparkContext._jvm,  # type: ignore[attr-defined]
        "org.apache.spark.sql.connect.service.SparkConnectService$",
    )
    return f"sc://127.0.0.1:{getattr(service, 'MODULE$').localPort()}"


@pytest.fixture(scope="session")
def spark_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneNode]:
    """One real node."""
    node = LoneNode(tmp_path_factory.mktemp("spark-node") / "data", flush="async")
    node.start()
    try:
        yield node
    finally:
        node.stop()


@pytest.fixture(scope="session")
def spark_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three real nodes. Tests use `spark_cluster`."""
    directory = tmp_path_factory.mktemp("spark-cluster") / "cluster"
    with Cluster(directory, 3, flush="async") as processes:
        processes.start()
        yield processes


@pytest.fixture
def spark_cluster(spark_processes: Cluster) -> Cluster:
    """Three real nodes, all running, after any test before."""
    fault_parts.make_whole(spark_processes)
    return spark_processes


@pytest.fixture
def servers(spark_node: LoneNode) -> str:
    """The address of the node."""
    return spark_node.address


@pytest.fixture
def cluster_servers(spark_cluster: Cluster) -> str:
    """The addresses of the three nodes."""
    return spark_cluster.servers


@pytest.fixture
def topic_name() -> str:
    """A unique name."""
    return f"topic-{next(_numbers)}"


@pytest.fixture
def topic(servers: str, topic_name: str) -> str:
    """An empty topic of three partitions on the node."""
    return sink_parts.create(servers, topic_name)


@pytest.fixture
def filled_topic(servers: str, topic_name: str) -> fault_parts.Topic:
    """A topic of two partitions with 30 records each on the node."""
    made = fault_parts.Topic(servers, topic_name)
    made.send(30)
    return made
