"""A Spark session for raftlog's sources, sinks and pipelines."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from raftlog_spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STREAMING = "org.apache.spark.sql.execution.streaming"
CONFIG: Mapping[str, str] = {
    # Without pushdown no filter reaches a Python source, and partitions are read whole.
    "spark.sql.python.filterPushdown.enabled": "true",
    # State larger than memory, and the only store with transformWithState.
    "spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider",
    # Spark's default runs a `readlink` process for every file on a local disk, 96 in two batches.
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Timestamps read the same on every machine.
    "spark.sql.session.timeZone": "UTC",
}
"""Settings of `session`, unless the caller overrides them."""

LOCAL_CONFIG: Mapping[str, str] = {
    # A laptop's own name may not resolve, or to an address that changes with the network.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Each is a task, and with state a database, in every micro-batch. 200 is for clusters.
    "spark.sql.shuffle.partitions": str(max(8, os.cpu_count() or 1)),
}
"""Further settings of `session` for a master on this machine."""


def session(
    app_name: str = "raftlog",
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the running session, or start a session set up for raftlog.

    `master`: as for Spark; the default is `local[*]`, or the master of `spark-submit`. `config`
    adds to `CONFIG` and wins over it; a running session gets only `config`. A new session uses this
    Python for its workers, unless the variable PYSPARK_PYTHON names another, and finds a Java (see
    `raftlog_spark.java`).

    Raises JavaError: there is no Java.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415  takes a second to import

    builder = SparkSession.builder
    settings: dict[str, str] = {}
    if SparkSession.getActiveSession() is None:
        builder = builder.appName(app_name)
        # Under spark-submit the JVM runs already, with its own master.
        if "PYSPARK_GATEWAY_PORT" not in os.environ:
            prepare_environment(os.environ)
            master = master or "local[*]"
        if master is not None:
            builder = builder.master(master)
        settings |= CONFIG
        if master is not None and master.startswith("local"):
            settings |= LOCAL_CONFIG
    for key, value in (settings | dict(config or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def prepare_environment(environ: MutableMapping[str, str]) -> None:
    """Set the variables by which Spark's processes find Java, this Python and the connector. Raises
    JavaError: there is no Java."""
    environ["JAVA_HOME"] = str(java_home(environ))
    # Unset, Spark takes the python3 of PATH, which may have neither Spark's version nor raftlog.
    environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Spark searches only the directories of its workers' path for sources, and an editable
    # installation is in none of them.
    directory = _directory_of_sources()
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if directory not in paths and directory not in installed:
        environ["PYTHONPATH"] = os.pathsep.join([*paths, directory])


def _directory_of_sources() -> str:
    import pyspark_raftlog  # noqa: PLC0415  imports Spark

    return str(Path(pyspark_raftlog.__file__).parent.parent)
