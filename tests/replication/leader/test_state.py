"""The leader's state after acknowledgements, proposals and metadata changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from raftlog.metadata.image import BrokerImage, PartitionImage
from raftlog.record.types import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionId,
)
from raftlog.replication.leader.state import UNKNOWN_END, IsrProposal, LeaderState

LAG_S = 2.0


def ids(*members: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, members))


def row(
    *isr: int, replicas: tuple[int, ...] = (1, 2, 3), epoch: int = 0, elr: tuple[int, ...] = ()
) -> PartitionImage:
    return PartitionImage(
        partition=PartitionId(0),
        replicas=ids(*replicas),
        isr=ids(*isr),
        elr=ids(*elr),
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(4),
        partition_epoch=PartitionEpoch(epoch),
    )


def broker(number: int, **changes: Any) -> BrokerImage:
    image = BrokerImage(
        broker_id=BrokerId(number),
        broker_epoch=BrokerEpoch(10),
        directory_id="d",
        incarnation="i",
        host="h",
        port=1,
        rack=None,
        software_version="",
        command_version=1,
        fenced=False,
    )
    return replace(image, **changes)


BROKERS = {BrokerId(number): broker(number) for number in (1, 2, 3)}


def leader(*isr: int, epoch_start: int = 0, now: float = 0.0) -> LeaderState:
    return LeaderState(BrokerId(1), row(*isr), epoch_start=Offset(epoch_start), now=now)


def ack(
    state: LeaderState,
    number: int,
    end: int,
    *,
    log_end: int = 100,
    now: float = 0.0,
    epoch: int = 10,
    log_start: int = 0,
) -> None:
    state.set_attached(BrokerId(number), attached=True)
    state.acked(
        BrokerId(number),
        BrokerEpoch(epoch),
        durable_end=Offset(end),
        log_start_offset=Offset(log_start),
        log_end=Offset(log_end),
        now=now,
    )


def committed(state: LeaderState, own: int = 100, minimum: int = 2) -> Offset | None:
    return state.committed_end(Offset(own), min_insync_replicas=minimum)


def desired_isr(
    state: LeaderState,
    *,
    now: float = 0.0,
    hw: int = 0,
    brokers: Any = BROKERS,
    log_start: int = 0,
    log_end: int = 100,
) -> Any:
    found = state.desired_isr(
        brokers,
        high_watermark=Offset(hw),
        log_start=Offset(log_start),
        log_end=Offset(log_end),
        now=now,
        lag_max_s=LAG_S,
    )
    return None if found is None else [int(member) for member, _ in found.isr]


def late(state: LeaderState, now: float, log_end: int) -> IsrProposal:
    found = state.desired_isr(
        BROKERS,
        high_watermark=Offset(0),
        log_start=Offset(0),
        log_end=Offset(log_end),
        now=now,
        lag_max_s=LAG_S,
    )
    assert found is not None
    return found


class TestCommitted:
    def test_it_is_the_smallest_of_all_in_sync(self) -> None:
        state = leader(1, 2, 3)
        ack(state, 2, 70)
        ack(state, 3, 50)
        assert committed(state) == 50
        assert committed(state, own=40) == 40

    def test_nobody_knows_before_every_member_was_heard_in_this_epoch(self) -> None:
        state = leader(1, 2, 3)
        ack(state, 2, 70)
        assert committed(state) is None

    def test_others_than_the_in_sync_do_not_count(self) -> None:
        state = leader(1, 2)
        ack(state, 2, 70)
        ack(state, 3, 5)
        assert committed(state) == 70

    def test_nothing_is_committed_below_the_minimum(self) -> None:
        state = leader(1)
        assert committed(state) is None
        assert committed(state, minimum=1) == 100

    def test_nothing_is_committed_beside_an_elr(self) -> None:
        """The ELR came by a command with an outdated, higher minimum: its member may lead."""
        state = leader(1, 2, 3)
        ack(state, 2, 100)
        state.update(row(1, 2, elr=(3,), epoch=1), 0)
        assert committed(state) is None
        assert not state.all_begin_at(Offset(0), min_insync_replicas=2)
        assert state.has_outdated_elr(2)
        assert not state.has_outdated_elr(3)
        state.update(row(1, 2, epoch=2), 0)
        assert committed(state) == 100
        assert not state.has_outdated_elr(2)

    def test_minimum_is_never_more_than_there_are_replicas(self) -> None:
        state = LeaderState(BrokerId(1), row(1, replicas=(1,)), epoch_start=Offset(0), now=0)
        assert committed(state, minimum=2) == 100

    def test_who_is_proposed_counts_at_once(self) -> None:
        state = leader(1, 2)
        ack(state, 2, 70)
        ack(state, 3, 60)
        state.propose(ids(1, 2, 3))
        assert committed(state) == 60

    def test_who_is_to_leave_counts_until_that_is_applied(self) -> None:
        state = leader(1, 2, 3)
        ack(state, 2, 70)
        ack(state, 3, 10)
        state.propose(ids(1, 2))
        assert committed(state) == 10
        state.update(row(1, 2, epoch=1), 0)
        assert committed(state) == 70

    def test_proposal_lasts_until_the_partition_epoch_changes(self) -> None:
        state = leader(1, 2)
        ack(state, 2, 70)
        ack(state, 3, 60)
        state.propose(ids(1, 2, 3))
        state.update(row(1, 2), 0)
        assert committed(state) == 60
        state.update(row(1, 2, epoch=1), 0)
        assert committed(state) == 70

    def test_proposal_that_can_be_withdrawn_is_the_only_one(self) -> None:
        state = leader(1, 2)
        ack(state, 2, 70)
        ack(state, 3, 60)
        assert state.propose(ids(1, 2, 3))
        assert not state.propose(ids(1, 3))
        state.withdraw()
        assert committed(state) == 70

    def test_a_proposal_that_may_yet_add_members_is_in_doubt(self) -> None:
        state = leader(1, 2)
        assert not state.has_pending_proposal
        state.propose(ids(1))
        assert not state.has_pending_proposal, "it takes members out only"
        state.propose(ids(1, 2, 3))
        assert state.has_pending_proposal
        state.update(row(1, 2, epoch=1), 0)
        assert not state.has_pending_proposal

    def test_who_may_have_been_away_meanwhile_is_to_be_heard_anew(self) -> None:
        # A snapshot shows the row three changes later. Replica 3 may have been taken away, and
        # with its records, and be added again, empty: all in one leader epoch.
        state = leader(1, 2)
        ack(state, 2, 80)
        ack(state, 3, 80)
        assert state.update(row(1, 2, epoch=1), 0) == ()
        assert state.followers[BrokerId(3)].durable_end == 80
        assert state.update(row(1, 2, epoch=4), 0) == (3,)
        assert state.followers[BrokerId(3)].durable_end == UNKNOWN_END
        # Members of the ISR were never away: only this leader adds members.
        assert state.followers[BrokerId(2)].durable_end == 80

    @given(st.lists(st.tuples(st.integers(2, 3), st.integers(0, 100)), max_size=20))
    def test_all_in_force_have_what_is_committed(self, acks: list[tuple[int, int]]) -> None:
        state = leader(1, 2, 3)
        newest: dict[int, int] = {}
        for number, end in acks:
            ack(state, number, end)
            newest[number] = end
            end_now = committed(state, own=80)
            if end_now is None:
                assert len(newest) < 2
            else:
                assert end_now == min(80, *newest.values())


class TestLeaving:
    def test_who_lags_leaves_after_the_time_allowed(self) -> None:
        state = leader(1, 2, 3)
        ack(state, 2, 100)
        ack(state, 3, 40)
        assert desired_isr(state, now=LAG_S) is None
        assert desired_isr(state, now=LAG_S + 0.1) == [1, 2]

    def test_who_keeps_up_with_a_growing_log_stays(self) -> None:
        state = leader(1, 2, 3)
        ack(state, 3, 100)
        for second in range(1, 20):
            # Always one second behind, never at the end.
            ack(state, 2, 100 * (second - 1), log_end=100 * second, now=second)
            found = state.desired_isr(
                BROKERS,
                high_watermark=Offset(0),
                log_start=Offset(0),
                log_end=Offset(100 * second),
                now=second + 0.5,
                lag_max_s=LAG_S,
            )
            assert found is None or BrokerId(2) in dict(found.isr)

    def test_who_was_idle_with_everything_has_time_for_what_is_new(self) -> None:
        state = leader(1, 2, 3)
        ack(state, 2, 100)
        ack(state, 3, 100)
        # An hour later there is a record, and the look comes before its acknowledgement.
        state.appended(Offset(100), now=3600.0)
        assert desired_isr(state, now=3600.1, log_end=101) is None
        ack(state, 2, 101, log_end=101, now=3600.2)
        assert desired_isr(state, now=3602.1, log_end=101) == [1, 2]

    def test_who_lacked_something_has_no_more_time_for_what_is_new(self) -> None:
        state = leader(1, 2, 3)
        ack(state, 2, 100)
        ack(state, 3, 99)
        state.appended(Offset(100), now=1.9)
        assert desired_isr(state, now=2.1, log_end=101) == [1, 2]

    def test_who_has_everything_may_be_silent(self) -> None:
        state = leader(1, 2, 3)
        ack(state, 2, 100)
        ack(state, 3, 100)
        assert desired_isr(state, now=1000) is None

    def test_who_was_never_heard_is_given_the_time_allowed(self) -> None:
        state = leader(1, 2, 3, now=50.0)
        assert desired_isr(state, now=50 + LAG_S) is None
        assert desired_isr(state, now=50.1 + LAG_S) == [1]

    def test_who_is_fenced_leaves_at_once(self) -> None:
        state = leader(1, 2, 3)
        ack(state, 2, 100)
        ack(state, 3, 100)
        brokers = BROKERS | {BrokerId(3): broker(3, fenced=True)}
        assert desired_isr(state, brokers=brokers) == [1, 2]


class TestEntering:
    @pytest.mark.parametrize(("end", "enters"), [(49, False), (50, True), (60, True)])
    def test_at_the_high_watermark(self, end: int, enters: bool) -> None:
        state = leader(1, 2)
        ack(state, 2, 100)
        ack(state, 3, end)
        assert (desired_isr(state, hw=50) == [1, 2, 3]) is enters

    def test_not_below_the_start_of_the_epoch(self) -> None:
        state = leader(1, 2, epoch_start=80)
        ack(state, 2, 100)
        ack(state, 3, 79)
        assert desired_isr(state, hw=50) is None
        ack(state, 3, 80)
        assert desired_isr(state, hw=50) == [1, 2, 3]

    def test_not_before_its_log_begins_where_the_leaders_does(self) -> None:
        state = leader(1, 2)
        ack(state, 2, 100)
        ack(state, 3, 100, log_start=29)
        assert desired_isr(state, log_start=30) is None
        ack(state, 3, 100, log_start=30)
        assert desired_isr(state, log_start=30) == [1, 2, 3]

    def test_not_without_a_stream(self) -> None:
        state = leader(1, 2)
        ack(state, 2, 100)
        ack(state, 3, 100)
        state.set_attached(BrokerId(3), attached=False)
        assert desired_isr(state) is None
        state.set_attached(BrokerId(3), attached=True)
        assert desired_isr(state) == [1, 2, 3]

    def test_not_while_it_would_be_removed_as_late(self) -> None:
        """Below the minimum the high watermark stands still, and a silent follower is at it."""
        state = leader(1)
        ack(state, 3, 50, log_end=50)
        assert desired_isr(state, hw=50, now=LAG_S, log_end=51) == [1, 3]
        assert desired_isr(state, hw=50, now=LAG_S + 0.1, log_end=51) is None
        ack(state, 3, 51, log_end=51, now=LAG_S + 0.2)
        assert desired_isr(state, hw=50, now=LAG_S + 0.2, log_end=51) == [1, 3]

    def test_later_each_time_that_it_is_late_again(self) -> None:
        state, now, epoch, end = leader(1, 2), 0.0, 0, 100
        ack(state, 2, end, log_end=end)
        delays = []
        for _ in range(8):
            end += 1
            state.appended(Offset(end - 1), now)
            now += LAG_S + 0.1
            found = late(state, now, end)
            assert found.late == {2}
            state.propose(ids(1), found.late)
            epoch += 1
            state.update(row(1, epoch=epoch), now)
            ack(state, 2, end, log_end=end, now=now)
            left = now
            while desired_isr(state, now=now, log_end=end) is None:
                now += 0.5
            delays.append(now - left)
            epoch += 1
            state.update(row(1, 2, epoch=epoch), now)
            ack(state, 2, end, log_end=end, now=now)
        assert [round(delay) for delay in delays] == [0, 2, 4, 8, 16, 32, 32, 32]

    def test_at_once_after_steady_service(self) -> None:
        state = leader(1, 2)
        ack(state, 2, 100)
        for epoch, now in ((1, 100.0), (3, 200.0), (5, 300.0)):
            state.propose(ids(1), late(state, now, 200).late)
            state.update(row(1, epoch=epoch), now)
            ack(state, 2, 200, log_end=200, now=now)
            assert desired_isr(state, now=now, log_end=200) == [1, 2]
            state.update(row(1, 2, epoch=epoch + 1), now)
            ack(state, 2, 100, log_end=200, now=now)

    def test_fenced_follower_is_not_delayed(self) -> None:
        state = leader(1, 2)
        for epoch in (1, 3, 5):
            brokers = BROKERS | {BrokerId(2): broker(2, fenced=True)}
            found = state.desired_isr(
                brokers,
                high_watermark=Offset(0),
                log_start=Offset(0),
                log_end=Offset(100),
                now=0,
                lag_max_s=LAG_S,
            )
            assert found is not None and not found.late
            state.propose(ids(1), found.late)
            state.update(row(1, epoch=epoch), 0)
            ack(state, 2, 100)
            assert desired_isr(state) == [1, 2]
            state.update(row(1, 2, epoch=epoch + 1), 0)

    @pytest.mark.parametrize(
        "changes",
        [{"fenced": True}, {"controlled_shutdown": True}, {"broker_epoch": BrokerEpoch(11)}],
    )
    def test_only_the_living_and_only_this_start_of_it(self, changes: dict[str, Any]) -> None:
        state = leader(1, 2)
        ack(state, 2, 100)
        ack(state, 3, 100)
        assert desired_isr(state, brokers=BROKERS | {BrokerId(3): broker(3, **changes)}) is None

    def test_wish_names_the_epochs_it_was_decided_on(self) -> None:
        state = leader(1, 2)
        ack(state, 2, 100)
        ack(state, 3, 100)
        found = state.desired_isr(
            BROKERS,
            high_watermark=Offset(0),
            log_start=Offset(0),
            log_end=Offset(100),
            now=0,
            lag_max_s=LAG_S,
        )
        assert found == IsrProposal(
            PartitionEpoch(0), tuple((BrokerId(n), BrokerEpoch(10)) for n in (1, 2, 3))
        )


def test_replica_that_is_no_more_is_forgotten() -> None:
    state = leader(1, 2, 3)
    ack(state, 3, 100)
    state.update(row(1, 2, replicas=(1, 2), epoch=1), 0)
    ack(state, 3, 100)
    assert list(state.followers) == [2]


def test_log_start_is_followed_by_all_in_sync() -> None:
    state = leader(1, 2)
    state.acked(
        BrokerId(2),
        BrokerEpoch(10),
        durable_end=Offset(100),
        log_start_offset=Offset(7),
        log_end=Offset(100),
        now=0,
    )
    assert state.all_begin_at(Offset(7), min_insync_replicas=2)
    assert not state.all_begin_at(Offset(8), min_insync_replicas=2)


def test_below_the_minimum_no_log_start_counts_as_followed() -> None:
    """A replica that left the ISR may lead next, from the ELR."""
    state = leader(1)
    assert not state.all_begin_at(Offset(7), min_insync_replicas=2)
    assert state.all_begin_at(Offset(7), min_insync_replicas=1)
