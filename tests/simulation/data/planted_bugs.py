"""Planted bugs: the ten mistakes of docs/decisions/ten-mistakes.md, and a second list.

They exist in tests only: `planted` patches one into the shipped code for the duration of the block.
The checkers must find every one: see test_planted_bugs.py.

`MISTAKES` was made together with the checkers. `BLIND_SPOTS` was made against them, by a reader of
the code who looked for rules that no history would miss. Random histories alone must find each:

    scripts/simulate planted zombie-epoch-not-fenced 0:200     how many seeds find it, and how
    scripts/simulate planted all 1000:1200                     each, over 200 fresh seeds
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import replace as replace_feed
from typing import Any, Final
from unittest import mock

from msgspec.structs import replace

from raftlog.metadata.apply import apply
from raftlog.metadata.apply import cluster as apply_cluster
from raftlog.metadata.apply import partitions as apply_partitions
from raftlog.metadata.commands import AlterIsr
from raftlog.metadata.image import MetadataImage
from raftlog.record.types import TopicId
from raftlog.replication.follower import divergence
from raftlog.replication.follower.divergence import BelowStart, Diverging
from raftlog.replication.follower.possible_loss import LossGate
from raftlog.replication.leader.role import LeaderRole
from raftlog.replication.leader.state import LeaderState
from raftlog.replication.lifecycle import ReplicaLifecycle
from raftlog.replication.partition import Isolation, Partition
from raftlog.replication.replica import Fetched, Replica
from raftlog.replication.streams.leader_streams import LeaderStreams
from raftlog.storage.compaction.rewrite import CompactionPass
from raftlog.storage.log import opening
from raftlog.storage.log import operations as log_operations
from raftlog.storage.log.core import LogCore
from raftlog.storage.manager import LogManager
from raftlog.storage.producers import state as producer_state
from raftlog.storage.producers.entry import APPEND
from raftlog.storage.producers.state import ProducerStates, Truncation
from raftlog.world import Sync


@dataclass(frozen=True)
class Mistake:
    """One of the ten mistakes, or a variant."""

    number: int
    what: str
    owner: Any
    """The class or module in which `name` is replaced."""
    name: str
    wrong: Any

    def __str__(self) -> str:
        return f"{self.number}-{self.what.replace(' ', '-')}"

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """The shipped code has the mistake within the block."""
        with mock.patch.object(self.owner, self.name, self.wrong):
            yield


def _durable_once_written(self: Replica) -> Any:
    return self.log.log_end_offset


def _committed_once_durable_here(
    self: LeaderState, own_durable_end: Any, *, min_insync_replicas: int
) -> Any:
    return own_durable_end


def _truncating_to_high_watermark(right: Callable[..., Any]) -> Any:
    async def open_replica(self: LogManager, *arguments: Any, **named: Any) -> Any:
        known = self.logs()
        log = await right(self, *arguments, **named)
        if log.failure is None and log not in known.values():
            end = max(log.high_watermark, log.log_start_offset)
            if end < log.log_end_offset:
                await log.operations.truncate_to(end)
        return log

    return open_replica


def _offsets_without_epochs(
    history: Any, *, log_start: Any, log_end: Any, horizon: Any, position: Any
) -> Diverging | BelowStart | None:
    if position.offset < log_start:
        return BelowStart(log_start)
    if position.offset > log_end:
        return Diverging(position.last_epoch, log_end)
    return None


def _acked_before_compared(right: Callable[..., Any]) -> Any:
    """Acknowledgements to earlier leaders count, whatever the follower's log is."""

    def attach(self: LeaderRole, feed: Any, position: Any) -> Any:
        before = self._feeds.get(feed.broker_id)
        self._feeds[feed.broker_id] = feed
        self.state.set_attached(feed.broker_id, attached=True)
        self.acked(feed, position.durable_end, position.log_start_offset)
        if before is None:
            del self._feeds[feed.broker_id]
        else:
            self._feeds[feed.broker_id] = before
        return right(self, feed, position)

    return attach


def _proposed_is_effective(self: LeaderState) -> None:
    members = self._proposed or frozenset(self.row.isr)
    self._effective_isr = tuple(
        member for member in self.row.replicas if member in members and member != self.me
    )


def _entering_when_heard(self: LeaderState, broker_id: Any, broker: Any, **_limits: Any) -> bool:
    follower = self._followers.get(broker_id)
    return (
        follower is not None
        and broker is not None
        and broker.is_available
        and broker.broker_epoch == follower.broker_epoch
    )


def _trusting(right: Callable[..., None]) -> Any:
    def init(self: LossGate, replica: Replica, *, may_have_lost_data: bool, **named: Any) -> None:
        right(self, replica, may_have_lost_data=False, **named)

    return init


def _succeeding(right: Callable[..., Any]) -> Any:
    """A failed sync is retried, and seems to succeed."""

    def end_sync(self: LogCore, error: Exception | None) -> None:
        right(self, None)

    return end_sync


async def _deleting_strays(self: ReplicaLifecycle) -> None:
    for stray in self._logs.strays():
        await self._logs.delete_topic(TopicId(stray.partition("/")[0]))


MISTAKES: Final = (
    Mistake(1, "acks before its disk", Replica, "durable_end", property(_durable_once_written)),
    Mistake(
        1, "acks before its followers", LeaderState, "committed_end", _committed_once_durable_here
    ),
    Mistake(
        2,
        "truncates to the high watermark",
        LogManager,
        "open_replica",
        _truncating_to_high_watermark(LogManager.open_replica),
    ),
    Mistake(3, "fetches without epochs", divergence, "compare", _offsets_without_epochs),
    Mistake(
        4, "counts stale acks", LeaderRole, "attach", _acked_before_compared(LeaderRole.attach)
    ),
    Mistake(5, "acts on a proposed ISR", LeaderState, "_recompute", _proposed_is_effective),
    Mistake(6, "re-enters the ISR too early", LeaderState, "may_enter", _entering_when_heard),
    Mistake(
        7,
        "trusts a restart after power loss",
        LossGate,
        "__init__",
        _trusting(LossGate.__init__),
    ),
    Mistake(8, "leads without asking", LeaderRole, "_require_lead", lambda _self: None),
    Mistake(9, "goes on after a failed sync", LogCore, "end_sync", _succeeding(LogCore.end_sync)),
    Mistake(
        9, "deletes what nobody names", ReplicaLifecycle, "_remove_deleted_strays", _deleting_strays
    ),
    Mistake(
        10,
        "forgets producers at failover",
        ProducerStates,
        "update",
        lambda _self, _header, **_options: None,
    ),
    Mistake(
        10,
        "uses an epoch twice",
        apply_cluster,
        "_begin_leader_epochs",
        lambda _image, _broker_id: (),
    ),
)


@dataclass(frozen=True)
class BlindSpot:
    """A bug that random histories have to find by themselves."""

    name: str
    what: str
    """What the code does wrong, and the promise or KIP that it breaks."""
    patches: tuple[tuple[Any, str, Any], ...]
    """Class or module, name, and what takes its place."""
    seed: int
    ingredients: str = "none"
    """A seed that finds it with exactly these ingredients, whatever the checks draw today."""

    def __str__(self) -> str:
        return self.name

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """The shipped code has the bug within the block."""
        with contextlib.ExitStack() as stack:
            for owner, name, wrong in self.patches:
                stack.enter_context(mock.patch.object(owner, name, wrong))
            yield


def _committed_below_the_minimum(
    self: LeaderState, own_durable_end: Any, *, min_insync_replicas: int
) -> Any:
    ends = [self._followers[member].durable_end for member in self._effective_isr]
    end = min([own_durable_end, *ends])
    return None if end < 0 else end


def _without_name_sync(right: Callable[..., Any]) -> Any:
    def create_segment(disk: Any, *arguments: Any) -> Any:
        with mock.patch.object(disk, "sync_directory", lambda _path: None):
            return right(disk, *arguments)

    return create_segment


def _syncs_no_name(right: Callable[[LogCore], Sync | None]) -> Any:
    def begin_sync(self: LogCore) -> Sync | None:
        sync = right(self)
        return None if sync is None else Sync(sync.file)

    return begin_sync


def _with_present_epochs(right: Callable[..., Any]) -> Any:
    def alter_isr(image: MetadataImage, command: AlterIsr) -> Any:
        members = tuple(
            (member, image.brokers[member].broker_epoch if member in image.brokers else epoch)
            for member, epoch in command.isr
        )
        return right(image, replace(command, isr=members))

    return alter_isr


def _without_fencing(right: Callable[..., Any]) -> Any:
    def judge(known: Any, header: Any, terms: Any) -> Any:
        if known is not None and header.producer_epoch < known.epoch:
            return APPEND
        return right(known, header, terms)

    return judge


def _committing_all_at_once(right: Callable[..., None]) -> Any:
    def init(self: LeaderRole, replica: Replica) -> None:
        right(self, replica)
        if replica.log.log_end_offset > replica.high_watermark:
            replica.move_high_watermark(replica.log.log_end_offset)

    return init


async def _no_such_time(_self: Partition, _timestamp_ms: int, _isolation: Isolation) -> None:
    return None


def _with_the_lost(right: Callable[..., Any]) -> Any:
    def next_elr(row: Any, *, not_eligible: Any = (), **named: Any) -> Any:
        return right(row, **named)

    return next_elr


def _cut_where_told(_history: Any, *, log_start: Any, log_end: Any, diverging: Any) -> Any:
    return min(max(diverging.end_offset, log_start), log_end)


def _reading_to_the_end(right: Callable[..., Any]) -> Any:
    async def read(
        self: Partition,
        offset: Any,
        *,
        max_bytes: int,
        end_offset: Any = None,
        any_replica: bool = False,
        **options: Any,
    ) -> Any:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        if not any_replica or self.is_closed or not start <= offset < end:
            return await right(
                self,
                offset,
                max_bytes=max_bytes,
                end_offset=end_offset,
                any_replica=any_replica,
                **options,
            )
        result = await self.log.reader.read(offset, end=end, max_bytes=max_bytes)
        return Fetched(result.data, result.next_offset, end, start, end)

    return read


def _acked_by_any_incarnation(right: Callable[..., None]) -> Any:
    def acked(self: LeaderRole, feed: Any, durable_end: Any, log_start_offset: Any) -> None:
        broker = self._replica.host.brokers().get(feed.broker_id)
        if broker is None or self._feeds.get(feed.broker_id) is not feed:
            return
        present = replace_feed(feed, broker_epoch=broker.broker_epoch)
        self._feeds[feed.broker_id] = present
        try:
            right(self, present, durable_end, log_start_offset)
        finally:
            if self._feeds.get(feed.broker_id) is present:
                self._feeds[feed.broker_id] = feed

    return acked


BLIND_SPOTS: Final = (
    BlindSpot(
        "commits-below-minimum",
        "Records are committed while fewer than min.insync.replicas are in sync (KIP-966).",
        ((LeaderState, "committed_end", _committed_below_the_minimum),),
        2,
    ),
    BlindSpot(
        "cut-keeps-producers",
        "After a truncation the producers' lost batches still count as written (promise 4).",
        ((ProducerStates, "truncate_to", lambda _self, _offset: Truncation.EXACT),),
        0,
        "failovers",
    ),
    BlindSpot(
        "segment-name-not-synced",
        "The name of a new segment may be lost in a power cut, with all its records.",
        (
            (log_operations, "create_segment", _without_name_sync(opening.create_segment)),
            (opening, "create_segment", _without_name_sync(opening.create_segment)),
            (LogCore, "begin_sync", _syncs_no_name(LogCore.begin_sync)),
        ),
        19,
    ),
    BlindSpot(
        "isr-of-any-incarnation",
        "AlterIsr ignores the members' broker epochs (KIP-903).",
        ((apply, "alter_isr", _with_present_epochs(apply_partitions.alter_isr)),),
        49,
        "stutter",
    ),
    BlindSpot(
        "deletion-answered-early",
        "delete-records answers before the in-sync followers have followed.",
        ((LeaderState, "all_begin_at", lambda _self, _offset, **_minimum: True),),
        0,
        "deletions",
    ),
    BlindSpot(
        "compaction-drops-newest",
        "Compaction drops the newest record of each key, too.",
        (
            (
                CompactionPass,
                "_retained",
                lambda _self, records: [record.key is None for record in records],
            ),
        ),
        0,
        "compaction",
    ),
    BlindSpot(
        "zombie-epoch-not-fenced",
        "A batch of an older producer epoch is appended (KIP-98).",
        ((producer_state, "judge", _without_fencing(producer_state.judge)),),
        0,
        "producer-epochs",
    ),
    BlindSpot(
        "new-leader-commits-all",
        "A new leader takes all that it has for committed.",
        ((LeaderRole, "__init__", _committing_all_at_once(LeaderRole.__init__)),),
        1,
    ),
    BlindSpot(
        "times-never-found",
        "No record is ever found for a time.",
        ((Partition, "offset_for_timestamp", _no_such_time),),
        0,
        "times",
    ),
    BlindSpot(
        "lost-replica-stays-eligible",
        "A replica that lost its records stays in the ELR (KIP-966).",
        ((apply_partitions, "next_elr", _with_the_lost(apply_partitions.next_elr)),),
        8,
        "lone-async",
    ),
    BlindSpot(
        "truncates-where-told",
        "A follower truncates where the leader says, whatever its own epochs are (KIP-279).",
        ((divergence, "truncation_point", _cut_where_told),),
        2,
        "failovers",
    ),
    BlindSpot(
        "dirty-reads-at-followers",
        "Readers at a follower are shown what is not committed (promise 5).",
        ((Partition, "read", _reading_to_the_end(Partition.read)),),
        4,
        "failovers",
    ),
    BlindSpot(
        "acks-of-any-incarnation",
        "An acknowledgement of another incarnation of the follower counts (KIP-903). Two guards "
        "hold this, and each alone would do: both are off.",
        (
            (LeaderRole, "acked", _acked_by_any_incarnation(LeaderRole.acked)),
            (LeaderStreams, "broker_changed", lambda _self, _broker_id: None),
        ),
        3,
        "stutter",
    ),
)


def blind_spot(name: str) -> BlindSpot:
    """The bug of this name."""
    (found,) = (each for each in BLIND_SPOTS if each.name == name)
    return found
