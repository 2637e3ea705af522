"""Damaged, failed or lossy replicas are repaired batch by batch, or leave and are replaced.

| finding | repair |
|---|---|
| damaged batches, in service | good copies from any replica, in place, the role stays |
| the log may lack acknowledged records (power cut, flush=async) | leave ISR and ELR, then follow |
| the files are gone | leave, even as last, then renew once another leads, or elected uncleanly |
| no good copy, or log offline | leave ISR and ELR, replace once another broker leads, fetch all |
| no disk space to open or replace the log | leave if others are in sync, then try again |
| no other replica has all committed records, log offline | good copies, offline, opened again |
| the same, without good copies or in service | none, the files may be the only copy |

Replicas may be damaged in different batches, each good elsewhere. Replacing whole replicas would
quarantine the good copies, one after the other. So a replica is replaced only if no replica has a
good copy of a damaged batch, and all have answered. A log found damaged at a start is offline, and
replaced. Its intact batches are read in quarantine, as it may have the only good copies of what
rots elsewhere. The last replica with all records cannot be replaced, and waits for good copies.

Leaving is a committed change of the metadata, and no file is replaced before the change is applied
here, except for proven copies of its batches. While ISR or ELR may still contain this replica, its
files are the only proof of its records. The files are also kept afterwards. The change is
proposed even if the replica is in neither set, because its leader may be about to add it to the
ISR, by older acknowledgements. A replica that fails repeatedly is replaced for ever,
at a bounded rate.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from enum import Enum, auto
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from raftlog.metadata.decisions.liveness import may_retire_replica
from raftlog.metadata.image import NO_LEADER_ID, PartitionImage
from raftlog.peer.tasks import TaskGroup
from raftlog.record.errors import (
    DISK_FULL,
    OFFSET_OUT_OF_RANGE,
    STORAGE_FAILED,
    UNSUPPORTED_FORMAT,
    LogError,
)
from raftlog.record.types import BrokerId, Buffer, Offset, PartitionId, TopicId
from raftlog.replication.manager import ReplicaManager
from raftlog.replication.partition import Partition
from raftlog.storage.types import LogState
from raftlog.world import Backoff, Clock

RENEWALS_MAX: Final = 3
"""Replacements of one replica within `RENEWALS_S`. A failing disk must not fill with copies."""
RENEWALS_S: Final = 3600.0
RETRY_S: Final = 0.5
"""Seconds between two repair attempts, and between two inspections of the rows of lost replicas."""
ROWS_PER_TURN_MAX: Final = 256
"""Most rows of lost replicas examined in one turn of the event loop. Each may start a repair."""
BATCH_RETRIES: Final = Backoff(RETRY_S, 8.0)
"""Pauses between batch repairs, longer after each failure, as each attempt copies a segment."""
CLEAR_S_MAX: Final = 2.0
"""Longest wait of a start until reported losses are cleared on disk."""
SEARCHES_MAX: Final = 5
"""Searches for good copies, RETRY_S apart, before a replica is replaced. The next search may find
records that are not committed yet, or under repair elsewhere."""
SEARCH_S: Final = 2.0
"""Seconds between two searches for good copies for an offline replica. Each makes other replicas
read."""
REPAIRS_MAX: Final = 4
"""Most replicas in replacement at once."""

ReplicaKey: TypeAlias = tuple[TopicId, PartitionId]
ReadReplica: TypeAlias = Callable[[BrokerId, TopicId, PartitionId, Offset], Awaitable[Buffer]]

logger = logging.getLogger(__name__)


class FailReplicas(Protocol):
    """Takes replicas of this node out of ISR and ELR, as `ClusterMetadata.fail_replicas`."""

    async def __call__(self, keys: Collection[ReplicaKey], /, *, lost: bool) -> None:
        """Raises LogError."""


class _NotLeft(Enum):
    NOT_LEFT = auto()


_NOT_LEFT: Final = _NotLeft.NOT_LEFT


class _AwaitedRow(NamedTuple):
    """The state in which a lost replica waits."""

    row: PartitionImage
    is_reported: bool
    changed: asyncio.Future[None]


class Repairs:
    """Repairs the replicas of one node. Lives in the event loop."""

    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        broker_id: BrokerId,
        clock: Clock,
        fail_replicas: FailReplicas,
        read_replica: ReadReplica,
        on_fatal: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        """`read_replica` reads committed batches of another broker's replica from an offset on, and
        raises LogError. `on_fatal` gets the reason when an invariant is broken and the node must
        end."""
        self._replicas = replicas
        self._broker_id = broker_id
        self._clock = clock
        self._fail_replicas = fail_replicas
        self._read_replica = read_replica
        self._on_fatal = on_fatal
        self._tasks: dict[ReplicaKey, asyncio.Task[None]] = {}
        self._failed_again: set[ReplicaKey] = set()
        """Replicas reported again during their repair, examined once more after it."""
        self._reports: dict[ReplicaKey, asyncio.Task[None]] = {}
        self._renewed: dict[ReplicaKey, deque[float]] = {}
        self._last_logged: dict[ReplicaKey, str] = {}
        """The last logged reason of each replica under repair."""
        self._gate = asyncio.Semaphore(REPAIRS_MAX)
        self._has_begun_reporting = False
        self._lost_reported: set[ReplicaKey] = set()
        """Replicas without files, out of ISR and ELR."""
        self._awaited_rows: dict[ReplicaKey, _AwaitedRow] = {}
        self._is_watching = False
        self._watch = TaskGroup(on_fatal)
        self._is_closed = False
        replicas.on_replica_failed(self._failed)
        replicas.on_possible_loss(self._on_possible_loss)

    @property
    def under_way(self) -> int:
        """Replicas under repair, or queued for it."""
        return len(self._tasks) + len(self._reports)

    @property
    def postponed(self) -> int:
        """Replicas under repair that were replaced too often within `RENEWALS_S`, and wait."""
        return sum(not self._may_renew(key) for key in self._tasks)

    # Possible losses

    async def report_losses(self) -> None:
        """Report all replicas here that may lack acknowledged records to the metadata.

        Call this at each start, before this node may be elected. Retries until the reports are
        committed, or the quorum refuses for good (LogError). Replicas found later are reported as
        they are found.
        """
        self._has_begun_reporting = True
        distrusted = [
            replica for replica in self._replicas.replicas() if replica.loss_gate.may_have_lost_data
        ]
        lost = sorted(self._replicas.lost())
        if distrusted:
            logger.warning(
                "%d replicas may lack acknowledged records after a power cut", len(distrusted)
            )
        if lost:
            logger.error("the files of %d replicas are gone: reporting their loss", len(lost))
        if distrusted or lost:
            await self._report(distrusted, lost)
            self._lost_reported.update(lost)

    async def _report(
        self, distrusted: Collection[Partition], lost: Collection[ReplicaKey] = ()
    ) -> None:
        keys = [*((replica.topic_id, replica.partition) for replica in distrusted), *lost]
        while True:
            try:
                await self._fail_replicas(keys, lost=True)
                break
            except LogError as error:
                if not error.entry.retriable:
                    raise
                logger.info("possible losses not reported yet: %s", error.message)
                await self._clock.sleep(RETRY_S)
        # On a full disk a clearing waits for space, and the other replicas do not wait for it.
        if distrusted:
            clearings = [replica.loss_gate.clear_loss() for replica in distrusted]
            await asyncio.wait(clearings, timeout=CLEAR_S_MAX)

    def _on_possible_loss(self, topic_id: TopicId, number: PartitionId) -> None:
        """Report a replica that a reassignment brought back after the start."""
        replica = self._replicas.replica(topic_id, number)
        if replica is not None and self._has_begun_reporting:
            self._spawn(self._reports, (topic_id, number), self._report_late((topic_id, number)))

    async def _report_late(self, key: ReplicaKey) -> None:
        # Look up by key, as another partition may serve this log before the report is committed.
        while (
            (replica := self._replicas.replica(*key)) is not None
            and replica.loss_gate.may_have_lost_data
            and not replica.loss_gate.is_clearing
        ):
            await self._report([replica])

    # Failed and damaged logs

    async def close(self) -> None:
        """Stop. The next start finds unfinished repairs again."""
        self._is_closed = True
        tasks = [*self._tasks.values(), *self._reports.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._watch.close()

    def _failed(self, topic_id: TopicId, number: PartitionId) -> None:
        key = (topic_id, number)
        if key in self._tasks:
            # The task may have done its work already, and a log reports once.
            self._failed_again.add(key)
        else:
            self._spawn(self._tasks, key, self._repair(key))

    def _spawn(
        self,
        tasks: dict[ReplicaKey, asyncio.Task[None]],
        key: ReplicaKey,
        work: Coroutine[Any, Any, None],
    ) -> None:
        if key in tasks or self._is_closed:
            work.close()
            return

        def ended(task: asyncio.Task[None]) -> None:
            del tasks[key]
            self._last_logged.pop(key, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.critical("repairing %s-%d failed", *key, exc_info=error)
                self._on_fatal(f"Repairing {key[0]}-{key[1]} failed: {error!r}")
            if tasks is self._tasks and key in self._failed_again:
                self._failed_again.discard(key)
                self._failed(*key)

        task = tasks[key] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(ended)

    async def _repair(self, key: ReplicaKey) -> None:
        """Run until the replica is replaced, or needs no repair any more."""
        if await self._repair_batches(key):
            return
        left: Partition | _NotLeft | None = _NOT_LEFT
        search_at = 0.0
        lacks_room = self._replicas.lacks_room(*key)
        while (row := self._row(key)) is not None:
            try:
                if self._is_loss_accepted(key, row):
                    await self._renew(key)
                    return
                irreplaceable = self._irreplaceable(key)
                if irreplaceable is None:
                    left = await self._leave(key, row, left)
                elif self._clock.monotonic() >= search_at:
                    search_at = self._clock.monotonic() + SEARCH_S
                    await self._repair_offline(key, irreplaceable)
                row = self._row(key)
                if row is not None and lacks_room:
                    await self._replicas.open_again(*key)
                    lacks_room = False
                    continue
                is_led = row is not None and row.leader not in (NO_LEADER_ID, self._broker_id)
                if is_led and left is not _NOT_LEFT:
                    if self._may_renew(key):
                        await self._renew(key)
                        return
                    self._log_once(key, f"replaced {RENEWALS_MAX} times within an hour: waiting")
            except LogError as error:
                lacks_room = self._replicas.replica(*key) is None and error.entry is DISK_FULL
                self._log_once(key, error.message)
            if row is not None and self._waits_for_row(key, row):
                await self._row_changed(key, row)
            else:
                await self._clock.sleep(RETRY_S)
        if self._is_gone(key):
            self._renewed.pop(key, None)

    def _waits_for_row(self, key: ReplicaKey, row: PartitionImage) -> bool:
        """Whether the repair of a lost replica waits for another row, or for its report."""
        if not self._replicas.is_lost(*key) or self._is_loss_accepted(key, row):
            return False
        is_led = row.leader not in (NO_LEADER_ID, self._broker_id)
        return not is_led or key not in self._lost_reported

    async def _row_changed(self, key: ReplicaKey, row: PartitionImage) -> None:
        """Return once the metadata has another row, or the loss of the replica is reported. After a
        disk was replaced thousands of replicas wait, so one task looks after all of them."""
        is_reported = key in self._lost_reported
        awaited = _AwaitedRow(row, is_reported, asyncio.get_running_loop().create_future())
        self._awaited_rows[key] = awaited
        if not self._is_watching:
            self._is_watching = True
            self._watch.spawn(self._watch_rows(), "lost-replicas")
        try:
            await awaited.changed
        finally:
            del self._awaited_rows[key]

    async def _watch_rows(self) -> None:
        while self._awaited_rows:
            await self._clock.sleep(RETRY_S)
            for number, key in enumerate(list(self._awaited_rows), start=1):
                awaited = self._awaited_rows.get(key)
                if awaited is not None and not awaited.changed.done():
                    is_reported = key in self._lost_reported
                    if self._row(key) is not awaited.row or is_reported != awaited.is_reported:
                        awaited.changed.set_result(None)
                if number % ROWS_PER_TURN_MAX == 0:
                    await asyncio.sleep(0)
        self._is_watching = False

    async def _repair_batches(self, key: ReplicaKey) -> bool:
        """Repair a log in service from other replicas. False if no replica has a good copy."""
        searches = 0
        failures = 0
        while (replica := self._damaged_in_service(key)) is not None:
            try:
                async with self._gate:
                    if await replica.log.repair(partial(self._copies, key, replica)):
                        return True
                searches += 1
                if searches == SEARCHES_MAX:
                    return False
            except LogError as error:
                self._log_once(key, error.message)
                failures += 1
            await self._clock.sleep(BATCH_RETRIES.delay_s(failures))
        return self._row(key) is None

    def _damaged_in_service(self, key: ReplicaKey) -> Partition | None:
        replica = self._replicas.replica(*key)
        if replica is None or replica.is_closed or replica.log.damage_found is None:
            return None
        is_located = None not in replica.log.damaged_segments
        if self._is_gone(key) or len(replica.image.replicas) == 1 or not is_located:
            return None
        return replica

    async def _copies(
        self, key: ReplicaKey, replica: Partition, offset: Offset
    ) -> AsyncIterator[Buffer]:
        """The batches from `offset` on, of one replica after the other. See `Copies`."""
        is_online = replica.log.state is LogState.ONLINE
        if is_online and offset >= replica.high_watermark:
            # Not committed, so another replica may have other records there. An offline log has no
            # end before its repair, and accepts no other records.
            return
        row = replica.image
        unanswered: LogError | None = None
        for member in dict.fromkeys((*row.isr, *row.elr, *row.replicas)):
            if member == self._broker_id:
                continue
            try:
                data = await self._read_replica(member, *key, offset)
            except LogError as error:
                if error.entry not in {STORAGE_FAILED, OFFSET_OUT_OF_RANGE, UNSUPPORTED_FORMAT}:
                    unanswered = error
                continue
            if len(data):
                yield data
        if unanswered is not None:
            raise unanswered

    def _irreplaceable(self, key: ReplicaKey) -> Partition | None:
        """The damaged, offline replica if no other replica can take its place."""
        replica = self._replicas.replica(*key)
        if replica is None or replica.log.state is not LogState.DAMAGED:
            return None
        has_others = len(replica.image.replicas) > 1
        may_retire = may_retire_replica(self._replicas.image, key, self._broker_id)
        return replica if has_others and not may_retire else None

    async def _repair_offline(self, key: ReplicaKey, replica: Partition) -> None:
        """Repair the files of a replica from copies of other replicas, and open it again."""
        async with self._gate:
            if await replica.log.repair_offline(partial(self._copies, key, replica)):
                await self._replicas.reopen(*key)
                logger.warning("%s-%d was repaired offline, and is open again", *key)
                return
        self._log_once(key, "no other replica has all records, nor good copies of damaged batches")

    async def _leave(
        self, key: ReplicaKey, row: PartitionImage, left: Partition | _NotLeft | None
    ) -> Partition | _NotLeft | None:
        """Leave ISR and ELR, unless done before. Returns the replica that left, or _NOT_LEFT."""
        replica = self._replicas.replica(*key)
        is_in = self._broker_id in row.isr or self._broker_id in row.elr
        if left is not _NOT_LEFT and not is_in and replica in (left, None):
            # Still true, because a closed replica has acknowledged no records since.
            return left
        if self._replicas.is_lost(*key):
            # The start reports all of them at once. Without files it cannot enter again.
            return replica if key in self._lost_reported else _NOT_LEFT
        if not may_retire_replica(self._replicas.image, key, self._broker_id):
            self._log_once(key, "no other replica has all records: kept as it is")
            return _NOT_LEFT
        if replica is None or replica.is_closed:
            await self._fail_replicas([key], lost=False)
            return replica
        # A replica that continues to follow would enter the ISR again. It is closed only
        # afterwards. If another damaged member leaves first, this replica stays and keeps serving.
        self._replicas.set_leaving(replica, leaving=True)
        try:
            await self._fail_replicas([key], lost=False)
            replica.log.declare_damaged(replica.log.damage_found or "it is to be repaired")
        finally:
            self._replicas.set_leaving(replica, leaving=False)
        return replica

    async def _renew(self, key: ReplicaKey) -> None:
        times = self._renewed.setdefault(key, deque())
        times.append(self._clock.monotonic())
        try:
            async with self._gate:
                await self._replicas.renew(*key)
        except LogError as error:
            if error.entry is DISK_FULL:
                # No copy was begun, so the attempt does not count.
                times.pop()
            raise
        logger.warning("%s-%d was replaced by an empty replica: fetching from its leader", *key)

    def _is_loss_accepted(self, key: ReplicaKey, row: PartitionImage) -> bool:
        """Whether an operator has elected this replica uncleanly, knowing that its files are gone.

        A registration starts a new leader epoch, so the election is from this run. The row of a
        node that has not registered may be outdated.
        """
        return (
            self._has_begun_reporting
            and self._replicas.is_lost(*key)
            and row.leader == self._broker_id
            and row.unclean_epoch == row.leader_epoch
        )

    def _row(self, key: ReplicaKey) -> PartitionImage | None:
        """The partition's row of the applied metadata, if this node's replica needs repair."""
        if self._is_gone(key):
            return None
        replica = self._replicas.replica(*key)
        is_whole = (
            replica is not None and not replica.is_closed and replica.log.damage_found is None
        )
        topic = self._replicas.image.topics_by_id[key[0]]
        return None if is_whole else topic.partitions[key[1]]

    def _is_gone(self, key: ReplicaKey) -> bool:
        topic = self._replicas.image.topics_by_id.get(key[0])
        return (
            topic is None
            or key[1] >= len(topic.partitions)
            or self._broker_id not in topic.partitions[key[1]].replicas
        )

    def _may_renew(self, key: ReplicaKey) -> bool:
        times = self._renewed.get(key, deque())
        now = self._clock.monotonic()
        while times and now - times[0] > RENEWALS_S:
            times.popleft()
        return len(times) < RENEWALS_MAX

    def _log_once(self, key: ReplicaKey, reason: str) -> None:
        """Log why a replica is not repaired yet, unless the last logged reason is the same."""
        if self._last_logged.get(key) != reason:
            self._last_logged[key] = reason
            logger.error("%s-%d is not repaired yet: %s", *key, reason)
