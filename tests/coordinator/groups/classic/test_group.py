from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from raftlog.coordinator.groups.classic.messages import (
    ClassicHeartbeat,
    ClassicState,
    Held,
    Joined,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    MemberIdRequired,
    Protocol,
    Synced,
    SyncGroup,
)
from raftlog.coordinator.groups.offset_messages import Committer
from raftlog.record.errors import (
    FENCED_INSTANCE_ID,
    GROUP_FULL,
    ILLEGAL_GENERATION,
    INCONSISTENT_PROTOCOL,
    INVALID_SESSION_TIMEOUT,
    REBALANCE_IN_PROGRESS,
    RECORD_TOO_LARGE,
    UNKNOWN_MEMBER,
    ErrorEntry,
)
from tests.coordinator.classic_harness import GROUP, JOIN, LIMITS, Stage, replace_request

SESSION_MS, REBALANCE_MS = JOIN.session_timeout_ms, JOIN.rebalance_timeout_ms
STATIC = replace_request(JOIN, instance_id="i")


def joined(answer: object) -> Joined:
    assert isinstance(answer, Joined)
    return answer


def test_the_first_generation_waits_for_further_members() -> None:
    stage = Stage()
    first = stage.join()
    stage.advance(4)
    second = stage.join()
    stage.advance(1)
    assert stage.answers == {}, "a member came within the delay: one more"
    stage.advance(4)
    assert stage.answers == {}
    stage.advance(1)
    leader, follower = joined(stage.answer(first)), joined(stage.answer(second))
    assert (leader.generation, leader.protocol, leader.leader) == (1, "range", "m1")
    assert [each.member_id for each in leader.members] == ["m1", "m2"]
    assert follower == Joined("m2", 1, "consumer", "range", "m1")
    assert stage.group.state is ClassicState.COMPLETING_REBALANCE
    assert stage.log == []


def test_the_initial_delay_ends_within_the_rebalance_timeout() -> None:
    stage = Stage()
    first = stage.join(rebalance_timeout_ms=20)
    for _ in range(7):
        stage.advance(3)
        stage.join(rebalance_timeout_ms=20)
    assert joined(stage.answer(first)).generation == 1


def test_the_leaders_sync_makes_the_generation_stable() -> None:
    stage = Stage()
    held = [stage.join(), stage.join()]
    stage.advance(10)
    leader, follower = (joined(stage.answer(each)) for each in held)
    waiting = stage.sync(follower)
    assert isinstance(waiting, Held)
    answer = stage.sync(leader, {"m1": b"one", "m2": b"two", "unknown": b"x"})
    assert answer == Synced("consumer", "range", b"one")
    assert stage.answer(waiting) == Synced("consumer", "range", b"two")
    assert stage.group.state is ClassicState.STABLE
    [value] = stage.log
    assert value is not None
    assert (value.generation, value.leader, value.protocol) == (1, "m1", "range")
    assert [(each.member_id, each.assignment) for each in value.members] == [
        ("m1", b"one"),
        ("m2", b"two"),
    ]
    assert stage.sync(follower) == Synced("consumer", "range", b"two"), "a repeated sync"


def test_most_votes_choose_among_the_protocols_that_all_support() -> None:
    def protocols(*names: str) -> JoinGroup:
        return replace_request(JOIN, protocols=tuple(Protocol(each, b"") for each in names))

    stage = Stage()
    members = stage.stable(
        protocols("a", "b", "c"), protocols("x", "c", "b"), protocols("y", "c", "b")
    )
    assert {each.protocol for each in members} == {"c"}
    assert stage.join(protocols("x", "y")) is INCONSISTENT_PROTOCOL
    assert stage.join(protocols("b"), protocol_type="connect") is INCONSISTENT_PROTOCOL
    assert stage.join(protocols()) is INCONSISTENT_PROTOCOL
    assert isinstance(stage.join(protocols("b")), Held)


@pytest.mark.parametrize("session_timeout_ms", [9, 1_001])
def test_a_session_timeout_has_bounds(session_timeout_ms: int) -> None:
    assert Stage().join(session_timeout_ms=session_timeout_ms) is INVALID_SESSION_TIMEOUT


def test_a_new_member_joins_in_two_steps() -> None:
    stage = Stage()
    required = stage.join(requires_member_id=True)
    assert required == MemberIdRequired("m1")
    assert not stage.group.is_vacant
    held = stage.join(requires_member_id=True, member_id="m1")
    stage.advance(5)
    assert joined(stage.answer(held)).member_id == "m1"


def test_an_id_that_does_not_join_is_forgotten() -> None:
    stage = Stage()
    stage.join(requires_member_id=True)
    stage.advance(SESSION_MS)
    assert stage.group.is_vacant
    assert stage.join(member_id="m1") is UNKNOWN_MEMBER
    stage.join(requires_member_id=True)
    assert stage.leave(LeavingMember("m3")) == [0]
    assert stage.group.is_vacant and len(stage.timers) == 0


def test_a_rebalance_waits_for_an_id_that_may_join() -> None:
    stage = Stage()
    [member] = stage.stable(JOIN)
    stage.join(requires_member_id=True)
    held = stage.join(member_id=member.member_id)
    assert isinstance(held, Held)
    other = stage.join(member_id="m2")
    assert joined(stage.answer(held)).generation == joined(other).generation == 2


def test_a_group_has_a_maximum_of_members_and_of_bytes() -> None:
    stage = Stage(replace(LIMITS, members_max=2, classic_bytes_max=1_000))
    stage.join()
    stage.join(requires_member_id=True)
    assert stage.join() is GROUP_FULL
    assert stage.join(STATIC) is GROUP_FULL
    large = (Protocol("range", bytes(900)),)
    assert stage.join(member_id="m2", protocols=large) is GROUP_FULL
    assert isinstance(stage.join(member_id="m2"), Held)
    assert stage.join(member_id="m2", protocols=large) is GROUP_FULL
    stage.advance(10)
    leader = joined(stage.answers[1])
    assert stage.sync(leader, {"m1": bytes(1_001)}) is RECORD_TOO_LARGE
    assert stage.group.state is ClassicState.COMPLETING_REBALANCE
    assert isinstance(stage.sync(leader, {"m1": bytes(1_000)}), Synced)


def test_a_join_rebalances_and_members_hear_of_it_by_heartbeat() -> None:
    stage = Stage()
    [member] = stage.stable(JOIN)
    assert stage.heartbeat(member.member_id, 1) is None
    held = stage.join()
    assert stage.heartbeat(member.member_id, 1) is REBALANCE_IN_PROGRESS
    assert stage.sync(member) is REBALANCE_IN_PROGRESS
    again = joined(stage.join(member_id=member.member_id))
    assert again.generation == joined(stage.answer(held)).generation == 2
    assert stage.heartbeat(member.member_id, 1) is ILLEGAL_GENERATION
    assert stage.heartbeat("other", 2) is UNKNOWN_MEMBER
    assert stage.sync(member) is ILLEGAL_GENERATION


def test_members_that_do_not_join_again_in_time_are_removed() -> None:
    stage = Stage()
    silent, _ = stage.stable(replace_request(JOIN, session_timeout_ms=1_000), JOIN)
    stage.join()
    held = stage.join(member_id="m2")
    stage.advance(REBALANCE_MS - 1)
    assert isinstance(held, Held) and held.ticket in stage.waiting
    stage.advance(1)
    leader = joined(stage.answer(held))
    assert leader.leader == "m2" and len(leader.members) == 2
    assert stage.heartbeat(silent.member_id, 2) is UNKNOWN_MEMBER


def test_a_session_ends_without_heartbeats_and_the_group_rebalances() -> None:
    stage = Stage()
    _, alive = stage.stable(JOIN, JOIN)
    stage.advance(SESSION_MS - 1)
    assert stage.heartbeat(alive.member_id, 1) is None
    stage.advance(1)
    assert stage.heartbeat(alive.member_id, 1) is REBALANCE_IN_PROGRESS
    assert [each.member_id for each in stage.group.describe().members] == [alive.member_id]


def test_a_held_request_keeps_its_member() -> None:
    stage = Stage()
    stage.stable(replace_request(JOIN, session_timeout_ms=1_000))
    held = stage.join(session_timeout_ms=10)
    stage.advance(REBALANCE_MS - 1)
    assert isinstance(held, Held) and held.ticket in stage.waiting


def test_members_that_do_not_sync_are_removed() -> None:
    stage = Stage()
    held = [stage.join(session_timeout_ms=1_000), stage.join(session_timeout_ms=1_000)]
    stage.advance(10)
    _, follower = (joined(stage.answer(each)) for each in held)
    waiting = stage.sync(follower)
    stage.advance(REBALANCE_MS)
    assert stage.answer(waiting) is REBALANCE_IN_PROGRESS
    again = joined(stage.join(member_id=follower.member_id))
    assert again.generation == 2 and [each.member_id for each in again.members] == ["m2"]


def test_a_follower_that_does_not_sync_is_removed_from_the_stable_generation() -> None:
    stage = Stage()
    held = [stage.join(session_timeout_ms=1_000), stage.join(session_timeout_ms=1_000)]
    stage.advance(10)
    stage.sync(joined(stage.answer(held[0])), {})
    assert stage.group.state is ClassicState.STABLE
    stage.advance(REBALANCE_MS)
    assert stage.group.state is ClassicState.PREPARING_REBALANCE
    assert len(stage.group.describe().members) == 1


def test_a_newer_request_of_a_member_releases_the_older_one() -> None:
    stage = Stage()
    first, second = stage.stable(JOIN, JOIN)
    early = stage.join(member_id=first.member_id)
    late = stage.join(member_id=first.member_id)
    assert stage.answer(early) is REBALANCE_IN_PROGRESS
    stage.join(member_id=second.member_id)
    leader = joined(stage.answer(late))
    early = stage.sync(joined(stage.join(member_id=second.member_id)))
    late = stage.sync(joined(stage.join(member_id=second.member_id)))
    assert stage.answer(early) is REBALANCE_IN_PROGRESS
    stage.sync(leader, {second.member_id: b"part"})
    assert stage.answer(late) == Synced("consumer", "range", b"part")


def test_a_repeated_join_is_answered_without_a_rebalance() -> None:
    stage = Stage()
    leader, follower = stage.stable(JOIN, JOIN)
    assert stage.join(member_id=follower.member_id) == follower
    assert stage.group.state is ClassicState.STABLE
    changed = (Protocol("range", b"changed"),)
    assert isinstance(stage.join(member_id=follower.member_id, protocols=changed), Held)
    again = joined(stage.join(member_id=leader.member_id))
    assert {each.metadata for each in again.members} == {b"m", b"changed"}


def test_a_leader_that_joins_again_rebalances() -> None:
    stage = Stage()
    leader, _ = stage.stable(JOIN, JOIN)
    assert isinstance(stage.join(member_id=leader.member_id), Held)


def test_members_leave_together_and_the_group_is_empty() -> None:
    stage = Stage()
    stage.stable(JOIN, STATIC)
    stage.now_ms += 7
    outcomes = stage.leave(
        LeavingMember("m1"), LeavingMember("", "i"), LeavingMember("m1"), LeavingMember("", "i")
    )
    assert outcomes == [0, 0, UNKNOWN_MEMBER.code, UNKNOWN_MEMBER.code]
    assert stage.group.state is ClassicState.EMPTY and stage.group.generation == 2
    assert stage.group.empty_since_ms == stage.wall_ms
    value = stage.log[-1]
    assert value is not None and (value.generation, value.members) == (2, ())
    assert len(stage.timers) == 0


def test_a_member_that_leaves_gets_its_held_request_back() -> None:
    stage = Stage()
    held = stage.join()
    assert stage.leave(LeavingMember("m1")) == [0]
    assert stage.answer(held) is UNKNOWN_MEMBER
    assert stage.group.state is ClassicState.EMPTY


def test_a_static_member_that_starts_again_takes_its_place_without_a_rebalance() -> None:
    stage = Stage()
    _, static = stage.stable(JOIN, STATIC)
    again = joined(stage.join(STATIC))
    assert again.generation == 1 and again.member_id != static.member_id
    assert not again.skip_assignment and not again.members
    assert stage.heartbeat(static.member_id, 1, "i") is FENCED_INSTANCE_ID
    assert stage.sync(static, instance_id="i") is FENCED_INSTANCE_ID
    assert stage.join(STATIC, member_id=static.member_id) is FENCED_INSTANCE_ID
    assert stage.leave(LeavingMember(static.member_id, "i")) == [FENCED_INSTANCE_ID.code]
    synced = stage.sync(again, instance_id="i")
    assert synced == Synced("consumer", "range", static.member_id.encode())
    value = stage.log[-1]
    assert value is not None
    assert [each.member_id for each in value.members] == ["m1", again.member_id]
    stage.reload()
    assert stage.heartbeat(again.member_id, 1, "i") is None


def test_a_static_leader_that_starts_again_does_not_assign() -> None:
    stage = Stage()
    leader, _ = stage.stable(STATIC, JOIN)
    again = joined(stage.join(STATIC))
    assert again.skip_assignment and again.leader == again.member_id and len(again.members) == 2
    old_client = joined(stage.join(STATIC, can_skip_assignment=False))
    assert old_client.leader == again.member_id != old_client.member_id
    assert not old_client.members and not old_client.skip_assignment
    assert stage.sync(old_client) == Synced("consumer", "range", leader.member_id.encode())


def test_a_static_member_that_brings_another_protocol_rebalances() -> None:
    stage = Stage()
    stage.stable(STATIC)
    other = stage.join(STATIC, protocols=(Protocol("sticky", b""),))
    assert joined(other).generation == 2 and joined(other).protocol == "sticky"


def test_a_held_request_of_a_replaced_static_member_is_fenced() -> None:
    stage = Stage()
    held = stage.join(STATIC)
    again = stage.join(STATIC)
    assert stage.answer(held) is FENCED_INSTANCE_ID
    stage.advance(10)
    assert len(joined(stage.answer(again)).members) == 1


def test_an_absent_static_member_keeps_its_place_until_its_session_ends() -> None:
    stage = Stage()
    static = replace_request(STATIC, session_timeout_ms=1_000)
    absent, other = stage.stable(static, JOIN)
    held = stage.join(member_id=other.member_id, protocols=(Protocol("range", b"new"),))
    stage.advance(REBALANCE_MS)
    leader = joined(stage.answer(held))
    assert leader.leader == other.member_id
    assert {each.member_id for each in leader.members} == {absent.member_id, other.member_id}
    stage.sync_all([leader])
    assert stage.heartbeat(absent.member_id, 1, "i") is ILLEGAL_GENERATION
    back = stage.join(static, member_id=absent.member_id)
    assert joined(back).generation == 2


def test_a_group_of_absent_static_members_waits() -> None:
    stage = Stage()
    absent, other = stage.stable(replace_request(STATIC, session_timeout_ms=1_000), JOIN)
    stage.leave(LeavingMember(other.member_id))
    stage.advance(REBALANCE_MS)
    assert stage.group.state is ClassicState.PREPARING_REBALANCE
    again = joined(stage.join(STATIC, member_id=absent.member_id))
    assert again.generation == 2


def test_a_reload_restores_the_last_stable_generation() -> None:
    stage = Stage()
    leader, follower = stage.stable(JOIN, JOIN)
    before = stage.group.describe()
    stage.advance(SESSION_MS - 1)
    newcomer = stage.join()
    again = [stage.join(member_id=each.member_id) for each in (leader, follower)]
    lost = joined(again[1])
    assert lost.generation == 2
    stage.reload()
    assert stage.group.describe() == before and stage.group.generation == 1
    assert stage.heartbeat(leader.member_id, 1) is None, "goes on in the restored generation"
    assert stage.heartbeat(lost.member_id, 2) is ILLEGAL_GENERATION
    assert stage.heartbeat(joined(stage.join(member_id=follower.member_id)).member_id, 1) is None
    assert isinstance(newcomer, Held)
    assert stage.join(member_id="m3") is UNKNOWN_MEMBER
    stage.advance(SESSION_MS - 1)
    assert stage.group.state is ClassicState.STABLE, "sessions begin with their full length"
    stage.advance(1)
    assert stage.group.is_empty


def test_a_reload_takes_the_newest_record_of_each_member() -> None:
    stage = Stage()
    [member] = stage.stable(JOIN)
    changed = (Protocol("sticky", b"changed"),)
    again = stage.join(member_id=member.member_id, protocols=changed, session_timeout_ms=200)
    stage.sync_all([joined(again)])
    live = stage.group.describe()
    stage.reload()
    assert stage.group.describe() == live
    assert live.members[0].metadata == b"changed"
    stage.advance(199)
    assert not stage.group.is_empty


def test_timers_begin_again_after_a_time_without_writes() -> None:
    stage = Stage()
    slow = replace_request(JOIN, session_timeout_ms=1_000)
    one, two = stage.stable(slow, slow)
    stage.join(slow, requires_member_id=True)
    held = stage.join(slow, member_id=one.member_id)
    stage.advance(REBALANCE_MS - 1)
    stage.group.restart_timers(stage.now_ms)
    stage.advance(REBALANCE_MS - 1)
    assert isinstance(held, Held) and held.ticket in stage.waiting
    late = stage.join(slow, member_id=two.member_id)
    stage.advance(1)
    leader, follower = joined(stage.answer(held)), joined(stage.answer(late))
    waiting = stage.sync(follower)
    stage.advance(REBALANCE_MS - 1)
    stage.group.restart_timers(stage.now_ms)
    stage.advance(REBALANCE_MS - 1)
    stage.sync(leader)
    assert isinstance(stage.answer(waiting), Synced)
    assert isinstance(stage.join(slow, member_id="m3"), Held), "an id given out is still known"


def test_the_initial_delay_begins_again_after_a_time_without_writes() -> None:
    stage = Stage()
    held = stage.join()
    stage.advance(4)
    stage.group.restart_timers(stage.now_ms)
    stage.advance(4)
    assert stage.answers == {}
    stage.advance(1)
    assert joined(stage.answer(held)).generation == 1


def test_an_empty_group_is_deleted_by_a_tombstone() -> None:
    stage = Stage()
    assert stage.group.tombstones() == ()
    stage.stable(JOIN)
    stage.leave(LeavingMember("m1"))
    stage.join(requires_member_id=True)
    [(_, value)] = stage.group.tombstones()
    assert value is None
    stage.group.replay(value)
    assert stage.group.state is ClassicState.DEAD and len(stage.timers) == 0


def commit_error(
    stage: Stage, committer: Committer, *, is_transactional: bool = False
) -> ErrorEntry | None:
    return stage.commit(committer, is_transactional=is_transactional)


def test_commits_name_a_member_and_its_generation() -> None:
    stage = Stage()
    simple, first = Committer(), Committer("m1", 1)
    assert commit_error(stage, simple) is None
    assert commit_error(stage, first) is UNKNOWN_MEMBER
    held = stage.join()
    stage.advance(5)
    leader = joined(stage.answer(held))
    assert commit_error(stage, first) is REBALANCE_IN_PROGRESS
    assert commit_error(stage, first, is_transactional=True) is None
    stage.sync_all([leader])
    assert commit_error(stage, first) is None
    assert commit_error(stage, simple) is UNKNOWN_MEMBER
    assert commit_error(stage, simple, is_transactional=True) is None
    assert commit_error(stage, Committer("m1", 0)) is ILLEGAL_GENERATION
    assert commit_error(stage, Committer("m2", 1)) is UNKNOWN_MEMBER
    stage.advance(SESSION_MS - 1)
    assert commit_error(stage, first) is None
    stage.advance(SESSION_MS - 1)
    assert stage.group.state is ClassicState.STABLE, "a commit keeps the session"


def test_without_an_initial_delay_the_first_member_does_not_wait() -> None:
    stage = Stage(replace(LIMITS, initial_rebalance_delay_ms=0))
    assert joined(stage.join()).generation == 1


def test_a_client_without_a_rebalance_timeout_gets_its_session_timeout() -> None:
    stage = Stage()
    stage.stable(replace_request(JOIN, rebalance_timeout_ms=-1))
    assert stage.log[-1] is not None
    assert stage.log[-1].members[0].rebalance_timeout_ms == SESSION_MS


def test_messages_between_nodes_come_out_as_they_went_in() -> None:
    sent = [
        replace_request(STATIC, protocols=(Protocol("range", b"\x00\xff"),)),
        SyncGroup(GROUP, "m1", 3),
        ClassicHeartbeat(GROUP, "m1", 3),
        LeaveGroup(GROUP, (LeavingMember("m1"), LeavingMember("", "i"))),
    ]
    decoder = msgspec.msgpack.Decoder(JoinGroup | SyncGroup | ClassicHeartbeat | LeaveGroup)
    for message in sent:
        assert decoder.decode(msgspec.msgpack.encode(message)) == message
