"""The distribution `raftlog-client`: all that the client needs, nothing of the server."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import raftlog

ROOT = Path(raftlog.__file__).parent.parent
SERVER_ONLY = {"click", "prometheus_client", "pysyncobj", "rich", "uvloop"}


def project(path: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / path).read_text())


def test_every_dependency_is_one_of_the_server_too_in_the_same_version() -> None:
    client, server = project("client/pyproject.toml"), project("pyproject.toml")
    assert set(client["project"]["dependencies"]) <= set(server["project"]["dependencies"])
    extras = server["project"]["optional-dependencies"]
    assert client["project"]["optional-dependencies"]["spark"] == extras["spark"]


def test_every_package_of_the_client_is_in_it() -> None:
    packages = project("client/pyproject.toml")["tool"]["setuptools"]["packages"]
    found = {
        ".".join(file.parent.relative_to(ROOT / "client").parts)
        for file in (ROOT / "client").rglob("__init__.py")
        if "build" not in file.parts
    }
    assert set(packages) == found | {"raftlog", "raftlog.api", "raftlog.record"}


def test_the_client_imports_neither_server_nor_its_dependencies() -> None:
    script = (
        "import sys, raftlog_client;"
        "print(*{name.partition('.')[0] for name in sys.modules});"
        "print(*(name for name in sys.modules if name.startswith('raftlog.')))"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    tops, ours = (set(line.split()) for line in output.splitlines())
    assert "raftlog_client" in tops
    assert not tops & SERVER_ONLY
    assert {name.split(".")[1] for name in ours} == {"api", "record"}
