"""Failures of the local cluster manager, worded for the command's user."""

from __future__ import annotations


class ClusterError(Exception):
    """`str()` names the cause, `hint` the next step."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class AlreadyManagedError(ClusterError):
    """Another process manages this directory's cluster. `pid` is 0 if not known yet."""

    def __init__(self, directory: str, pid: int) -> None:
        super().__init__(
            f"the cluster in {directory} runs already (manager: process {pid or 'unknown'})",
            "`raftlog cluster status` shows it, `raftlog cluster down` stops it.",
        )
        self.pid = pid
