"""`python -m raftlog.cluster DIRECTORY PLAN` is the detached manager.

`commands.spawn` starts it. PLAN is a `Plan` as JSON. Stdout carries control.py's responses, the
last of them once the cluster serves or fails. Then stdout is closed. The log is stderr.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from raftlog.api.manager import ClusterStatus, ControlAnswer, Done, Failed, Step
from raftlog.cluster.control import answer_line
from raftlog.cluster.errors import ClusterError
from raftlog.cluster.manifest import Plan
from raftlog.cluster.service import ManagerService
from raftlog.record.decoders import json_decoder

EXIT_FAILED = 1
ARGUMENTS = 3


def main(arguments: list[str]) -> int:
    """Manage the cluster until a stop signal. Return the exit code."""
    if len(arguments) != ARGUMENTS:
        _log("usage: python -m raftlog.cluster DIRECTORY PLAN")
        return EXIT_FAILED
    plan = json_decoder(Plan).decode(arguments[2])
    return asyncio.run(_run(Path(arguments[1]), plan))


async def _run(directory: Path, plan: Plan) -> int:
    starter = _Starter()

    def tell(text: str) -> None:
        _log(text)
        starter.say(Step(text))

    def on_ready(status: ClusterStatus) -> None:
        _log(f"the cluster serves at {status.servers}")
        starter.say(Done(msgspec.to_builtins(status)))
        starter.close()

    try:
        await ManagerService(directory, plan, tell).run(on_ready)
    except (ClusterError, OSError) as error:
        _log(f"the cluster cannot be started: {error}")
        hint = error.hint if isinstance(error, ClusterError) else None
        starter.say(Failed(str(error), hint))
        return EXIT_FAILED
    _log("stopped")
    return 0


class _Starter:
    """The starting command at the other end of stdout, for as long as it listens."""

    def __init__(self) -> None:
        self._descriptor = 1

    def say(self, answer: ControlAnswer) -> None:
        if self._descriptor < 0:
            return
        try:
            os.write(self._descriptor, answer_line(answer))
        except OSError:
            # The command has ended. The cluster keeps running.
            self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            self._descriptor = -1
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.close(nothing)


def _log(text: str) -> None:
    # A full disk must not end the manager.
    with suppress(OSError):
        sys.stderr.write(f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {text}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
