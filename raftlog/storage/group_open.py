"""Open or create replicas in groups that share directory syncs and threads.

Requests queue up. Each worker takes its share of the queue to a disk thread. There, all missing
directories of the group are made first, then each topic's directory is synced once, and `replicas/`
once if it has new names. A new log has no file, so its directory is all that must be durable before
the checkpoint file names the replica. So a topic costs syncs by the group, not by the partition.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from raftlog.storage.checkpoints.checkpoints import ReplicaCheckpoint, StartKind
from raftlog.storage.log.core import LogContext
from raftlog.storage.log.log import Log
from raftlog.storage.repair.quarantine import REPLICAS
from raftlog.storage.types import LogConfig
from raftlog.world import DiskError

WORKERS_MAX: Final = 4
"""Most groups opened at the same time."""
GROUP_MAX: Final = 64
"""Most replicas of a group. Each waits for the slowest, which may have to scan its log."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """One replica to open."""

    name: str
    """Directory below REPLICAS."""
    config: LogConfig
    checkpoint: ReplicaCheckpoint | None
    start: StartKind
    is_unlisted: bool
    """Whether the last run's checkpoint file names all replicas except this replica. It thus never
    took an append."""
    create: bool
    """Start the log if the replica is unknown and has no directory. Otherwise that is an error."""


@dataclass(frozen=True, slots=True, eq=False)
class _Queued:
    request: OpenRequest
    opened: asyncio.Future[Log] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


_Outcome: TypeAlias = "Log | DiskError"


class GroupOpener:
    """Opens the logs of a node. Lives in the event loop."""

    def __init__(self, shared: LogContext, publish: Callable[[], Awaitable[None]]) -> None:
        """Make a group opener. `publish` makes every open log's checkpoint durable."""
        self.unfinished: set[str] = set()
        """Replicas with a directory made in this run, and not in the checkpoint file yet."""
        self._shared = shared
        self._publish = publish
        self._queue: deque[_Queued] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._synced: set[str] = set()
        """Topic directories whose name, and names from before this run, are durable."""

    async def open(self, request: OpenRequest) -> Log:
        """Open one replica. Its directory is durable on return. Raises DiskError."""
        queued = _Queued(request)
        self._queue.append(queued)
        if len(self._workers) < WORKERS_MAX:
            worker = asyncio.get_running_loop().create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        return await queued.opened

    async def _work(self) -> None:
        while self._queue:
            share = len(self._queue)
            if self._queue[0].request.checkpoint is not None:
                # With few known replicas, long scans run on all threads. New replicas scan nothing.
                share = -(-share // WORKERS_MAX)
            group = [self._queue.popleft() for _ in range(min(share, GROUP_MAX))]
            try:
                outcomes = await self._shared.disk.run(
                    partial(self._open_group, [queued.request for queued in group])
                )
            except Exception as error:
                for queued in group:
                    if not queued.opened.done():
                        queued.opened.set_exception(error)
                continue
            for queued, outcome in zip(group, outcomes, strict=True):
                if queued.opened.done():
                    continue
                if isinstance(outcome, DiskError):
                    queued.opened.set_exception(outcome)
                else:
                    queued.opened.set_result(outcome)

    # On a disk thread

    def _open_group(self, requests: Sequence[OpenRequest]) -> list[_Outcome]:
        made: dict[str, bool] = {}
        failed: dict[str, DiskError] = {}
        for request in requests:
            try:
                made[request.name] = self._make_directory(request)
            except DiskError as error:
                failed[request.name] = error
        self._sync_names(requests, made, failed)
        return [self._open_one(request, made, failed) for request in requests]

    def _make_directory(self, request: OpenRequest) -> bool:
        """Make a new replica's directory and return whether it was missing. Raises DiskError."""
        disk = self._shared.disk
        directory = _directory(request)
        if request.name in self.unfinished:
            # An earlier attempt did not finish. Left as it is, the replica would count as existing
            # after a power cut.
            disk.remove_tree(directory)
        if request.checkpoint is not None or disk.exists(directory):
            return False
        if not request.create:
            raise DiskError(f"{directory} is missing; not created without a request")
        self.unfinished.add(request.name)
        topic_directory = directory.rpartition("/")[0]
        if not disk.exists(topic_directory):
            # This comes before other groups can find the directory, since they then sync its name
            # as well.
            self._synced.discard(topic_directory)
        disk.make_directory(directory)
        return True

    def _sync_names(
        self,
        requests: Sequence[OpenRequest],
        made: dict[str, bool],
        failed: dict[str, DiskError],
    ) -> None:
        """Make the names of the group's directories durable, each topic's with one sync."""
        disk = self._shared.disk
        groups: dict[str, list[OpenRequest]] = {}
        for request in requests:
            if request.name in failed:
                continue
            topic_directory = _directory(request).rpartition("/")[0]
            # An existing directory also counts, since a crash may have come between its creation
            # and these syncs.
            is_doubtful = (
                request.start is not StartKind.CLEAN
                and topic_directory not in self._synced
                and disk.exists(_directory(request))
            )
            if made[request.name] or is_doubtful:
                groups.setdefault(topic_directory, []).append(request)
        unsynced: dict[str, list[OpenRequest]] = {}
        for topic_directory, members in groups.items():
            try:
                disk.sync_directory(topic_directory)
            except DiskError as error:
                failed.update((each.name, error) for each in members)
            else:
                if topic_directory not in self._synced:
                    unsynced[topic_directory] = members
        if not unsynced:
            return
        try:
            disk.sync_directory(REPLICAS)
        except DiskError as error:
            failed.update((each.name, error) for members in unsynced.values() for each in members)
        else:
            self._synced.update(unsynced)

    def _open_one(
        self, request: OpenRequest, made: dict[str, bool], failed: dict[str, DiskError]
    ) -> _Outcome:
        error = failed.get(request.name)
        if error is not None:
            return error
        is_made = made[request.name]
        start = request.start
        if is_made and start is StartKind.CLEAN:
            start = StartKind.PROCESS_CRASH
        try:
            return Log.open(
                self._shared,
                _directory(request),
                request.config,
                checkpoint=request.checkpoint,
                start=start,
                is_new=is_made or (request.checkpoint is None and request.is_unlisted),
                publish=self._publish,
            )
        except DiskError as caught:
            return caught


def _directory(request: OpenRequest) -> str:
    return f"{REPLICAS}/{request.name}"
