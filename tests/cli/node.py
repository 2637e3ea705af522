"""A real node in a process of its own, for tests of whole processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STOP_SECONDS_MAX = 20
RAFTLOG = (sys.executable, "-m", "raftlog.cli")


@dataclass(frozen=True)
class RunningNode:
    """A serving node."""

    process: subprocess.Popen[str]
    address: str
    log: list[str]
    """Its lines on stderr until the node was ready."""

    @property
    def environment(self) -> dict[str, str]:
        """The environment for commands against this node."""
        return {**clean_environment(), "RAFTLOG_SERVERS": self.address}

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Exit code, and the rest of stderr."""
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=STOP_SECONDS_MAX)
        return self.process.returncode, rest


def clean_environment() -> dict[str, str]:
    """This environment without settings of raftlog."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAFTLOG_")}


@contextmanager
def running_node(
    directory: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[RunningNode]:
    """Start `raftlog serve`, wait until the node is ready, and end the process afterwards."""
    command: Sequence[str] = (
        *RAFTLOG, "serve", "--data-dir", str(directory), "--listen", "127.0.0.1:0", *arguments
    )  # fmt: skip
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env={**clean_environment(), **(environment or {})},
    )
    try:
        log: list[str] = []
        assert process.stderr is not None
        for line in process.stderr:
            log.append(line)
            if match := re.search(r"serves at http://(127\.0\.0\.1:\d+)", line):
                yield RunningNode(process, match[1], log)
                return
        raise AssertionError(f"the node did not start: {''.join(log)}")
    finally:
        process.kill()
        process.communicate()
