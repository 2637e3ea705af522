"""Writes and leading by the state of disk and lease, with everything around made up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from raftlog.controller.disk_watch import DiskWatch
from raftlog.controller.lead_permit import LeadPermit
from raftlog.controller.messages import HeartbeatAnswer, granted_timeout_ms
from raftlog.metadata.commands import AlterClusterSettings, encode_command
from raftlog.metadata.configs.broker import DISK_RESERVE, SCRUB_RATE
from raftlog.metadata.state_machine import MetadataStateMachine
from raftlog.node.disk_policy import WritePolicy, follow_storage_limits
from raftlog.record.errors import DISK_FULL, NO_LEADER, LogError
from raftlog.record.types import BrokerEpoch, BrokerId
from raftlog.storage.disk_health import STEADY_S

ROOM_BYTES = 1 << 30


@dataclass
class World:
    """Clock, quorum and logs of a node, as far as the policy needs."""

    now: float = 100.0
    applied_index: int = 10
    lacks_room: bool = False
    room_bytes: int = ROOM_BYTES
    oldest_sync_at: float | None = None
    is_active: bool = False
    limits: list[dict[str, int]] = field(default_factory=list)
    rejections: list[LogError | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        fake = cast("Any", self)
        self.permit = LeadPermit(quorum=fake, clock=fake, broker_id=BrokerId(1))
        self.watch = DiskWatch(permit=self.permit, quorum=fake, logs=fake, clock=fake)
        self.policy = WritePolicy(
            node_id=BrokerId(1), permit=self.permit, disk=self.watch, clock=fake
        )
        self.policy.on_changed(self.rejections.append)
        self.permit.registered(BrokerEpoch(1))
        self.permit.controller_applied(10)
        self.grant_lease()

    def grant_lease(self) -> None:
        """Grant a lease for longer than any test."""
        lease = self.permit.lease
        answer = HeartbeatAnswer(
            sequence=lease.sent(2, self.now),
            broker_epoch=BrokerEpoch(1),
            term=1,
            applied_index=0,
            fenced=False,
            drained=False,
            confirmed_age_s=0.0,
            session_timeout_ms=granted_timeout_ms(60.0),
        )
        assert lease.answered(2, answer)

    def end_lease(self) -> None:
        """End the lease: another incarnation has none yet."""
        self.permit.registered(BrokerEpoch(2))

    def monotonic(self) -> float:
        return self.now

    def limit(self, **limits: int) -> None:
        self.limits.append(limits)


def test_full_disk_is_reported_at_once_and_for_a_while() -> None:
    world = World()
    world.policy.observe_disk()
    assert world.watch.can_write()
    world.room_bytes = 0
    world.policy.observe_disk()
    assert not world.watch.can_write()
    # The metadata is still applied: the node leads until the controller has moved its partitions.
    assert world.permit.may_act()
    assert world.rejections == []
    world.room_bytes = ROOM_BYTES
    world.now += STEADY_S
    world.policy.observe_disk()
    assert world.watch.can_write()


def test_node_that_its_disk_keeps_from_applying_the_metadata_neither_leads_nor_writes() -> None:
    world = World()
    world.policy.observe_disk()
    world.room_bytes = 0
    world.permit.controller_applied(11)
    world.policy.observe_disk()
    # One entry may be on its way to the disk, but no leader acts without it.
    assert world.rejections == []
    assert not world.permit.may_act()
    world.policy.observe_disk()
    (rejection,) = world.rejections
    assert rejection is not None
    assert rejection.entry is DISK_FULL
    world.applied_index = 11
    world.policy.observe_disk()
    assert world.rejections[-1] is None
    assert world.permit.may_act()


def test_records_withheld_between_two_observations_are_committed_by_the_next_one() -> None:
    world = World()
    world.room_bytes = 0
    world.policy.observe_disk()
    # An entry is on its way to the disk while an acknowledgement comes.
    world.permit.controller_applied(11)
    assert not world.permit.may_act()
    world.applied_index = 11
    assert world.permit.may_act()
    assert world.rejections == []
    world.policy.observe_disk()
    world.policy.observe_disk()
    assert world.rejections == [None]


def test_node_without_a_lease_rejects_writes() -> None:
    world = World()
    world.end_lease()
    world.policy.update()
    (rejection,) = world.rejections
    assert rejection is not None
    assert rejection.entry is NO_LEADER
    assert not world.permit.may_act()
    assert world.watch.can_write()


def test_node_that_could_not_register_for_want_of_room_says_so_first() -> None:
    world = World()
    world.watch.registration_failed(LogError(DISK_FULL, "The disk is full."))
    world.end_lease()
    world.policy.update()
    assert world.rejections == [world.watch.registration_error]
    assert not world.watch.can_write()


def test_storage_limits_follow_the_cluster_settings() -> None:
    world, machine = World(), MetadataStateMachine()
    follow_storage_limits(machine, cast("Any", world))
    default = {"reserve_bytes": 4 << 20, "scrub_bytes_per_s": 8 << 20}
    assert world.limits == [default]
    values = {DISK_RESERVE: str(8 << 20), SCRUB_RATE: "0"}
    machine.apply(1, encode_command(AlterClusterSettings(values=values)))
    assert world.limits[-1] == {"reserve_bytes": 8 << 20, "scrub_bytes_per_s": 0}
    machine.apply(2, encode_command(AlterClusterSettings(values={"flush": "async"})))
    assert len(world.limits) == 2
    removals = (DISK_RESERVE, SCRUB_RATE)
    machine.apply(3, encode_command(AlterClusterSettings(values={}, removals=removals)))
    assert world.limits[-1] == default
