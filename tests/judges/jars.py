"""Where the jars of the Java judges are: Maven resolves them once, the cache keeps the class paths.

The cache is the directory of the variable RAFTLOG_KAFKA_JARS, or `raftlog/kafka-jars` in the user's
cache directory. It holds one class path for each `*-pom.xml` here, and the checksum of this file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final, Literal

JARS_VARIABLE: Final = "RAFTLOG_KAFKA_JARS"
RESOLVE_TIMEOUT_S: Final = 900.0
HERE: Final = Path(__file__).parent

Jars = Literal["tools", "spark"]
ALL: Final[tuple[Jars, ...]] = ("tools", "spark")


class UnavailableError(Exception):
    """A program that a judge needs is missing. `str()` is the reason, and the remedy."""


def cache_directory() -> Path:
    """Return the directory of the class paths, which need not exist."""
    if chosen := os.environ.get(JARS_VARIABLE):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "raftlog" / "kafka-jars"


def class_path(jars: Jars) -> list[Path]:
    """Return the resolved jars. Raises UnavailableError: not resolved, or for other versions."""
    kept = _kept(jars)
    if kept is None:
        raise UnavailableError(
            f"no {jars} jars in {cache_directory()}: scripts/trial-kafka gets them"
        )
    return kept


def program(name: str, remedy: str) -> str:
    """Return the path of a program. Raises UnavailableError: not installed."""
    found = shutil.which(name)
    if found is None:
        raise UnavailableError(f"no {name}: {remedy}")
    return found


def java() -> str:
    """Return the path of `java`. Raises UnavailableError: none, or one without a compiler."""
    found = program("java", "install a JDK, 17 or newer (Debian: apt-get install default-jdk)")
    modules = subprocess.run(
        [found, "--list-modules"], capture_output=True, text=True, timeout=60, check=False
    )
    if "jdk.compiler@" not in modules.stdout:
        raise UnavailableError(f"{found} is no JDK of version 17 or newer")
    return found


def resolve() -> None:
    """Resolve all jars by Maven, unless the cache has them.

    Raises UnavailableError: no Java, no Maven, or Maven failed.
    """
    java()
    for jars in ALL:
        if _kept(jars) is not None:
            continue
        maven = program("mvn", "install Maven (Debian: apt-get install maven)")
        directory = cache_directory()
        directory.mkdir(parents=True, exist_ok=True)
        output = directory / f"{jars}.resolved"
        ended = subprocess.run(
            [
                *(maven, "-q", "-B", "-f", str(_pom(jars)), "dependency:build-classpath"),
                f"-Dmdep.outputFile={output}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RESOLVE_TIMEOUT_S,
            check=False,
        )
        if ended.returncode != 0:
            raise UnavailableError(f"Maven did not get the {jars} jars:\n{ended.stdout[-2000:]}")
        kept = directory / f"{jars}.classpath"
        partial = directory / f"{jars}.partial"
        partial.write_text(f"{_checksum(jars)}\n{output.read_text().strip()}\n")
        partial.replace(kept)
        output.unlink()


def _pom(jars: Jars) -> Path:
    return HERE / f"{jars}-pom.xml"


def _checksum(jars: Jars) -> str:
    return hashlib.sha256(_pom(jars).read_bytes()).hexdigest()


def _kept(jars: Jars) -> list[Path] | None:
    kept = cache_directory() / f"{jars}.classpath"
    if not kept.exists():
        return None
    checksum, _, found = kept.read_text().partition("\n")
    paths = [Path(one) for one in found.strip().split(os.pathsep) if one]
    is_whole = bool(paths) and all(path.exists() for path in paths)
    return paths if checksum == _checksum(jars) and is_whole else None
