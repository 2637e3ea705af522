"""Processes of judges: each with a deadline, its output in files, and an end in any case."""

from __future__ import annotations

import base64
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, TypeVar

from tests.judges import jars

POLL_S: Final = 0.05
STOP_TIMEOUT_S: Final = 30.0
DEADLINE_S: Final = 120.0
SHOWN_CHARACTERS: Final = 3_000
JAVA_OPTIONS: Final = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
"""A small heap; quick start before speed."""

T = TypeVar("T")


def wait_for(what: str, condition: Callable[[], T | None], timeout_s: float = DEADLINE_S) -> T:
    """Return the first true result of `condition`. Raises AssertionError: none in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(POLL_S)


class Program:
    """A running process. Use it as a context manager: the end of the block kills it."""

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        name: str,
        *,
        environment: Mapping[str, str] | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.name = name
        self.output = directory / f"{name}.out"
        self.errors = directory / f"{name}.err"
        self._ends = time.monotonic() + deadline_s
        self._position = 0
        self._lines: list[str] = []
        with self.output.open("wb") as output, self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                cwd=directory,
                env={**os.environ, **(environment or {})},
            )

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def lines(self) -> list[str]:
        """Return the whole lines of standard output so far."""
        with self.output.open("rb") as output:
            output.seek(self._position)
            added = output.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._position += len(whole)
        self._lines += whole.decode(errors="replace").splitlines()
        return self._lines

    def check_running(self) -> None:
        """Raise AssertionError, with the evidence, if the process ended."""
        assert self._process.poll() is None, f"{self.name} ended\n{self.evidence()}"

    def write(self, line: str) -> None:
        """Write a line to standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def wait_for(self, what: str, condition: Callable[[], T | None]) -> T:
        """Return the first true result of `condition`.

        Raises AssertionError: the process ended, or its deadline passed.
        """

        def found() -> T | None:
            has_ended = self._process.poll() is not None
            result = condition()
            assert result or not has_ended, f"{what}: the process ended"
            return result

        try:
            return wait_for(what, found, self._left_s())
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.evidence()}") from None

    def wait(self, *codes: int) -> None:
        """Wait for the end. Raises AssertionError: too late, or with another code (default 0)."""
        try:
            code = self._process.wait(self._left_s())
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end before the deadline\n{self.evidence()}") from None
        assert code in (codes or (0,)), f"exit code {code}\n{self.evidence()}"

    def stop(self, *codes: int) -> None:
        """Ask for the end (SIGTERM) and wait for it. Raises AssertionError as `wait`."""
        self._process.terminate()
        self.extend(STOP_TIMEOUT_S)
        self.wait(*codes)

    def kill(self) -> None:
        """Kill the process, if it runs."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()

    def extend(self, deadline_s: float) -> None:
        """Set the deadline to so many seconds from now."""
        self._ends = time.monotonic() + deadline_s

    def evidence(self) -> str:
        """Return the ends of both outputs, for a message."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-SHOWN_CHARACTERS:]}"
            for path in (self.output, self.errors)
        )

    def _left_s(self) -> float:
        return max(0.0, self._ends - time.monotonic())


def java_command(main_class: str, *arguments: str) -> list[str]:
    """Return the command of a Java program of the tools' jars. Raises UnavailableError."""
    class_path = os.pathsep.join(map(str, jars.class_path("tools")))
    return [jars.java(), *JAVA_OPTIONS, "-cp", class_path, main_class, *arguments]


class Outcome(NamedTuple):
    """The end of a tool."""

    code: int
    output: str
    errors: str


class ToolShell:
    """Kafka's command line tools in one JVM (Tools.java), started at the first command."""

    def __init__(self, directory: Path, servers: str) -> None:
        self._directory = directory
        self._servers = servers
        self._program: Program | None = None
        self._count = 0

    def run(self, tool: str, *arguments: str, stdin: str = "", code: int = 0) -> str:
        """Run a tool of `org.apache.kafka.tools`, or of another package by its whole name.

        Adds `--bootstrap-server`. Returns the standard output. Raises AssertionError: another exit
        code, or no end in time; UnavailableError.
        """
        ended = self.outcome(tool, *arguments, stdin=stdin)
        assert ended.code == code, f"{tool} {arguments}: {ended}"
        return ended.output

    def outcome(self, tool: str, *arguments: str, stdin: str = "") -> Outcome:
        """Run a tool as `run` does; return its end, whatever the exit code."""
        program = self._running()
        name = tool if tool.startswith("kafka.") else f"org.apache.kafka.tools.{tool}"
        parts = (stdin, name, "--bootstrap-server", self._servers, *arguments)
        program.write(base64.b64encode("\0".join(parts).encode()).decode())
        self._count += 1
        count = self._count
        program.wait_for(f"the end of {tool} {arguments}", lambda: len(program.lines()) >= count)
        code, output, errors = program.lines()[count - 1].split(" ")
        return Outcome(
            int(code),
            base64.b64decode(output).decode(errors="replace"),
            base64.b64decode(errors).decode(errors="replace"),
        )

    def close(self) -> None:
        """End the JVM, if it runs."""
        if self._program is not None:
            self._program.kill()
            self._program = None

    def _running(self) -> Program:
        if self._program is None:
            source = str(jars.HERE / "Tools.java")
            self._program = Program(java_command(source), self._directory, "tools")
            self._count = 0
        self._program.extend(DEADLINE_S)
        return self._program
