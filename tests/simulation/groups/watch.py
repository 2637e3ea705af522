"""Observers in the coordinators: expiry of members, and responses before their commits."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

from raftlog.coordinator.groups.classic.messages import Held
from raftlog.coordinator.groups.kind import GroupKind
from raftlog.coordinator.groups.messages import (
    ConsumerHeartbeatRequest,
    GroupRequest,
    GroupResponse,
)
from raftlog.coordinator.groups.reconciliation import MemberState
from raftlog.coordinator.groups.settings import GroupSettings, GroupTimer, MemberTimer, TimerKind
from raftlog.coordinator.groups.shard import GroupShard
from raftlog.coordinator.shard.decision import Decision
from raftlog.coordinator.shard.shard import Shard
from raftlog.metadata.image import MetadataImage
from raftlog.record.errors import LogError
from tests.simulation.groups.ledger import Ledger
from tests.simulation.loop import SimulatedLoop

SLACK_S: Final = 0.002
"""Timers count whole milliseconds."""


@dataclass
class Watch:
    """Observes all shards of all nodes."""

    ledger: Ledger
    loop: SimulatedLoop
    settings: GroupSettings
    loads: int = 0
    expired: int = 0
    """Sessions that ended."""
    stuck: int = 0
    """Members that did not give up partitions in time."""
    newest: dict[int, int] = field(default_factory=dict)
    """The newest leader epoch with a loaded shard, by partition."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Observe every group shard, and check every response of every shard."""
        watch, execute, query, create = self, Shard.execute, Shard.query, Shard.__init__

        def watched(_kind: GroupKind, changed: Callable[[Hashable], None]) -> GroupShard:
            return WatchedShard(watch, changed)

        def created(shard: Any, *arguments: Any, **options: Any) -> None:
            create(shard, *arguments, **options)
            if isinstance(shard.state, WatchedShard):
                shard.state.belongs_to(shard)

        async def checked_execute(
            shard: Any, decide: Callable[[Any], Decision[Any]], **options: Any
        ) -> Any:
            end = 0

            def noted(state: Any) -> Decision[Any]:
                nonlocal end
                end = shard._next
                decision = decide(state)
                end += len(decision.records)
                return decision

            try:
                response = await execute(shard, noted, **options)
            except LogError:
                if shard.ended is None:
                    watch._check(shard, end)
                raise
            watch._check(shard, end)
            return response

        async def checked_query(shard: Any, read: Callable[[Any], Any]) -> Any:
            end = shard._next
            response = await query(shard, read)
            watch._check(shard, end)
            return response

        with (
            mock.patch.object(GroupKind, "create", watched),
            mock.patch.object(Shard, "__init__", created),
            mock.patch.object(Shard, "execute", checked_execute),
            mock.patch.object(Shard, "query", checked_query),
        ):
            yield

    def _check(self, shard: Any, end: int) -> None:
        committed = shard.partition.high_watermark
        if committed < end:
            self.ledger.complain(
                f"{shard.partition.name}: a response that depends on {end - 1} leaves at high "
                f"watermark {committed}"
            )


class WatchedShard(GroupShard):
    """Checks that members expire only after a whole session, or rebalance timeout, of silence."""

    def __init__(self, watch: Watch, changed: Callable[[Hashable], None]) -> None:
        super().__init__(watch.settings, changed)
        self._watch = watch
        self._loaded_s = watch.loop.now
        self._heard_s: dict[tuple[str, str], float] = {}
        self._partition = self._epoch = -1

    def belongs_to(self, shard: Any) -> None:
        """Note partition and leader epoch of the shard with this state."""
        self._partition = int(shard.partition.partition)
        self._epoch = int(shard.role.state.row.leader_epoch)

    def decide(
        self, request: GroupRequest, image: MetadataImage, now_ms: int, time_ms: int
    ) -> Decision[GroupResponse | Held]:
        decision = super().decide(request, image, now_ms, time_ms)
        # A repeated leave for a restart keeps the time of the first one.
        if isinstance(request, ConsumerHeartbeatRequest) and (
            request.member_epoch >= 0 or decision.records
        ):
            key, now_s = (request.group, request.member_id), self._watch.loop.now
            self._heard_s[key] = now_s
            if self._watch.newest[self._partition] > self._epoch:
                # The next coordinator does not hear the member: the old one answers without it
                # as long as its lease lasts, if it needs no record.
                self._watch.ledger.deposed[key] = now_s
        return decision

    def loaded(self, now_ms: int) -> None:
        watch = self._watch
        self._loaded_s = watch.loop.now
        watch.loads += 1
        watch.newest[self._partition] = max(watch.newest.get(self._partition, 0), self._epoch)
        super().loaded(now_ms)

    def expire(
        self,
        timer: GroupTimer,
        image: MetadataImage,
        now_ms: int,
        time_ms: int,
        expiry_ms: int | None = None,
    ) -> Decision[None]:
        if isinstance(timer, MemberTimer):
            self._check(timer)
        return super().expire(timer, image, now_ms, time_ms, expiry_ms)

    def _check(self, timer: MemberTimer) -> None:
        group = self.consumer_groups.get(timer.group)
        if group is None or timer.member_id not in group.members:
            return
        watch, member = self._watch, group.members[timer.member_id]
        key = (timer.group, timer.member_id)
        if timer.kind is TimerKind.REBALANCE:
            since_s, length_ms = self._loaded_s, member.rebalance_timeout_ms
            if group.known(timer.member_id).state != MemberState.UNREVOKED_PARTITIONS:
                watch.ledger.complain(f"{timer}: has nothing to give up")
            watch.ledger.removed[key] = "stuck"
            watch.stuck += 1
        else:
            since_s = max(self._loaded_s, self._heard_s.get(key, 0.0))
            length_ms = member.session_timeout_ms or watch.settings.session_timeout_ms
            watch.expired += 1
        silent_s = watch.loop.now - since_s
        if silent_s + SLACK_S < length_ms / 1000:
            watch.ledger.complain(f"{timer} expires after {silent_s:.3f} s of {length_ms} ms")
