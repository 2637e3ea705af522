"""What the manager of a local cluster cannot do, in words for whoever asked."""

from __future__ import annotations


class ClusterError(Exception):
    """`str()` says what is wrong, `hint` what to do next."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class AlreadyManagedError(ClusterError):
    """Another process manages this directory's cluster: `pid`, or 0 if it has not said so yet."""

    def __init__(self, directory: str, pid: int) -> None:
        super().__init__(
            f"the cluster in {directory} runs already (manager: process {pid or 'unknown'})",
            "`raftlog cluster status` shows it, `raftlog cluster down` stops it.",
        )
        self.pid = pid
