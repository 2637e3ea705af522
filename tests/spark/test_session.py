from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark_raftlog
import pytest
from raftlog_spark.data_source import RaftlogDataSource
from raftlog_spark.session import CONFIG, prepare_environment, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCES = str(Path(pyspark_raftlog.__file__).parent.parent)


def test_sparks_processes_find_java_this_python_and_the_source() -> None:
    environ = {"PATH": os.environ["PATH"]}
    prepare_environment(environ)
    assert (Path(environ["JAVA_HOME"]) / "bin" / "java").exists()
    assert environ["PYSPARK_PYTHON"] == sys.executable
    assert environ["PYTHONPATH"] == SOURCES
    prepare_environment(environ)
    assert environ["PYTHONPATH"] == SOURCES


def test_what_the_user_has_set_stays() -> None:
    environ = {"PATH": os.environ["PATH"], "PYSPARK_PYTHON": "python3.12", "PYTHONPATH": "/mine"}
    prepare_environment(environ)
    assert environ["PYSPARK_PYTHON"] == "python3.12"
    assert environ["PYTHONPATH"] == os.pathsep.join(["/mine", SOURCES])


def test_an_installed_source_needs_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: SOURCES)
    environ = {"PATH": os.environ["PATH"]}
    prepare_environment(environ)
    assert "PYTHONPATH" not in environ


def test_spark_finds_the_source_by_its_name() -> None:
    assert pyspark_raftlog.DefaultSource is RaftlogDataSource
    assert RaftlogDataSource.name() == "raftlog"


def test_looking_for_the_source_imports_little() -> None:
    # Spark does it in a new process for every query; the client and Arrow would double its time.
    ended = subprocess.run(
        [sys.executable, "-c", "import pyspark_raftlog, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=SOURCES,
    )
    loaded = {name.partition(".")[0] for name in ended.stdout.split()}
    assert "pyspark" in loaded
    assert not loaded & {"pyarrow", "numpy", "pandas", "aiohttp", "raftlog_client"}


def test_a_session_has_the_settings_and_is_made_once(spark: SparkSession) -> None:
    for name, value in CONFIG.items():
        assert spark.conf.get(name) == value
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    again = session("another", master="local[2]", config={"spark.sql.ansi.enabled": "true"})
    assert again.sparkContext is spark.sparkContext
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    # The setting of the tests' session, not the default of a new session.
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
