from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from raftlog.metadata.commands import (
    ChangePartitions,
    Command,
    FenceBroker,
    RegisterBroker,
    SetControlledShutdown,
    UnfenceBroker,
)
from raftlog.metadata.decisions.elections import PartitionKey, available_brokers, plan_elections
from raftlog.metadata.decisions.liveness import (
    brokers_without_kafka_addresses,
    plan_controlled_shutdown,
    plan_fencing,
    plan_replacement,
    plan_replica_failures,
    plan_unfencing,
    plan_unregistration,
    registration_command,
)
from raftlog.metadata.image import NO_LEADER_ID, MetadataImage, PartitionImage
from raftlog.record.errors import ILLEGAL_STATE, NOT_FOUND, LogError
from raftlog.record.types import BrokerId
from tests.examples import examples
from tests.metadata.strategies import (
    BROKER_NUMBERS,
    carry_out,
    carry_out_plan,
    cluster_images,
    create,
    fence,
    ids,
    register,
    set_configs,
    set_row,
    shut_down,
    unfence,
)

ONE = BrokerId(1)
brokers_of_images = st.sampled_from([BrokerId(number) for number in BROKER_NUMBERS])


def three(*rows: tuple[int, ...]) -> MetadataImage:
    image = MetadataImage()
    for number in (1, 2, 3):
        register(image, number)
    create(image, "t", 1, *(rows or ((1, 2, 3),))).check()
    return image


def may_be_unclean(image: MetadataImage) -> set[str]:
    return {
        topic_id
        for topic_id, topic in image.topics_by_id.items()
        if topic.configs.get("unclean.leader.election.enable") == "true"
    }


def keys_of(image: MetadataImage) -> list[PartitionKey]:
    return list(who_had_all(image))


def serves(image: MetadataImage, row: PartitionImage) -> bool:
    """Whether a member of the ISR leads, or could."""
    leads = row.leader != NO_LEADER_ID and not image.brokers[row.leader].fenced
    return leads or not available_brokers(image).isdisjoint(row.isr)


def who_had_all(image: MetadataImage) -> dict[PartitionKey, set[BrokerId]]:
    return {
        (topic.topic_id, row.partition): {*row.isr, *row.elr}
        for topic in image.topics_by_id.values()
        for row in topic.partitions
    }


@settings(max_examples=examples(200), deadline=None)
@given(cluster_images(all_lost=False), brokers_of_images)
def test_fenced_broker_neither_leads_nor_is_waited_for(
    image: MetadataImage, broker_id: BrokerId
) -> None:
    had_all = who_had_all(image)
    unclean = may_be_unclean(image)
    rows_before = {
        (topic.topic_id, row.partition): row
        for topic in image.topics_by_id.values()
        for row in topic.partitions
    }
    carry_out_plan(image, plan_fencing(image, broker_id))
    assert image.brokers[broker_id].fenced
    available = available_brokers(image)
    for topic in image.topics_by_id.values():
        for row in topic.partitions:
            key = (topic.topic_id, row.partition)
            before = rows_before[key]
            assert row.leader != broker_id
            if broker_id in row.isr:
                assert row.isr == before.isr and len(row.isr) > 1
                assert not serves(image, row), "it leaves wherever somebody else can lead"
            if topic.topic_id not in unclean:
                assert {*row.isr, *row.elr} <= had_all[key], "nobody came in from outside"
                assert {*row.isr, *row.elr}, "and somebody still has everything"
            if row.leader != before.leader:
                assert row.leader == NO_LEADER_ID or row.leader in available
                assert row.leader_epoch == before.leader_epoch + 1
                assert before.leader == broker_id, "nobody else loses a leadership"
            if before.leader == broker_id and row.leader == NO_LEADER_ID:
                assert available.isdisjoint(row.isr + row.elr)
            if broker_id not in (*before.isr, before.leader):
                assert row == before
    assert not list(plan_fencing(image, broker_id)), "nothing is left to do"


@settings(max_examples=examples(100), deadline=None)
@given(cluster_images(all_lost=False), st.data())
def test_cluster_that_was_wholly_fenced_comes_back_whole(
    image: MetadataImage, data: st.DataObject
) -> None:
    # All go, one after the other, then all return, in any order: each leader has all records.
    for number in data.draw(st.permutations(BROKER_NUMBERS)):
        carry_out_plan(image, plan_fencing(image, BrokerId(number)))
    for topic in image.topics_by_id.values():
        for row in topic.partitions:
            assert row.leader == NO_LEADER_ID and len(row.isr) != 1
            assert row.isr or row.elr, "who is to lead again must not be forgotten"
    for number in data.draw(st.permutations(BROKER_NUMBERS)):
        register(image, number, incarnation="again", fenced=True)
        carry_out_plan(image, plan_unfencing(image, BrokerId(number)))
    for topic in image.topics_by_id.values():
        for row in topic.partitions:
            assert row.leader in row.isr


def successor_plan(image: MetadataImage) -> Iterator[Command]:
    """What a new controller plans for brokers that stay silent."""
    for broker_id in sorted(image.brokers):
        if image.brokers[broker_id].fenced:
            yield from plan_fencing(image, broker_id)
    yield from plan_elections(image)


@settings(max_examples=examples(100), deadline=None)
@given(cluster_images(), brokers_of_images, st.integers(0, 3))
def test_successor_finishes_what_a_dead_controller_has_begun(
    image: MetadataImage, broker_id: BrokerId, done: int
) -> None:
    for _, command in zip(range(done), plan_fencing(image, broker_id), strict=False):
        carry_out(image, command)
    carry_out_plan(image, successor_plan(image))
    fenced = {b for b, broker in image.brokers.items() if broker.fenced}
    available = available_brokers(image)
    for topic in image.topics_by_id.values():
        for row in topic.partitions:
            assert row.leader not in fenced
            assert fenced.isdisjoint(row.isr) or not serves(image, row)
            if row.leader == NO_LEADER_ID:
                assert available.isdisjoint(row.isr + row.elr)
    assert not list(successor_plan(image))


def test_fencing_begins_with_the_broker_then_the_partitions_without_a_leader() -> None:
    image = three((2, 1, 3), (1, 2, 3), (3, 2, 1))
    fencing, moved, shrunk = carry_out_plan(image, plan_fencing(image, ONE))
    assert isinstance(fencing, FenceBroker)
    assert isinstance(moved, ChangePartitions) and isinstance(shrunk, ChangePartitions)
    assert [change.partition for change in moved.changes] == [1]
    assert [change.partition for change in shrunk.changes] == [0, 2]
    assert [(row.leader, row.isr) for row in image.topic("t").partitions] == [
        (2, (2, 3)),
        (2, (2, 3)),
        (3, (3, 2)),
    ]


def test_whole_plan_may_be_made_before_any_of_it_is_applied() -> None:
    image = three((2, 1, 3), (1, 2, 3), (3, 2, 1))
    plan = list(plan_fencing(image, ONE))
    carry_out_plan(image, plan)
    assert all(ONE not in row.isr for row in image.topic("t").partitions)


def test_unclean_election_does_not_bring_back_a_broker_being_fenced() -> None:
    image = MetadataImage()
    for number in (1, 2):
        register(image, number)
    create(image, "t", 1, (1, 2), configs={"unclean.leader.election.enable": "true"}).check()
    set_row(image, "t", isr=ids(1))
    fence(image, 2)
    carry_out_plan(image, list(plan_fencing(image, ONE)))
    row = image.partition("t", 0)
    assert (row.leader, row.elr) == (NO_LEADER_ID, (1,))


def test_last_one_in_sync_leaves_the_isr_and_leads_again_when_it_returns() -> None:
    image = three((1,))
    carry_out_plan(image, plan_fencing(image, ONE))
    row = image.partition("t", 0)
    assert (row.leader, row.isr, row.elr) == (NO_LEADER_ID, (), (1,))
    carry_out_plan(image, plan_unfencing(image, ONE))
    row = image.partition("t", 0)
    assert (row.leader, row.isr, row.elr, row.leader_epoch) == (1, (1,), (), 2)


def test_below_the_minimum_the_first_of_the_last_members_to_return_leads() -> None:
    image = three()
    for number in (3, 1, 2):
        carry_out_plan(image, plan_fencing(image, BrokerId(number)))
    row = image.partition("t", 0)
    assert (row.isr, row.elr) == ((), (1, 2)), "3 left while enough others were in sync"
    carry_out_plan(image, plan_unfencing(image, BrokerId(3)))
    assert image.partition("t", 0).leader == NO_LEADER_ID
    carry_out_plan(image, plan_unfencing(image, BrokerId(1)))
    row = image.partition("t", 0)
    assert (row.leader, row.isr, row.elr) == (1, (1,), (2,))


def test_the_isr_stays_where_only_fenced_members_would_be_left() -> None:
    image = three()
    set_row(image, "t", isr=ids(1, 2))
    set_configs(image, "t", {"min.insync.replicas": "1"})
    # 2 was restarted after a power cut, and has not reported its loss yet.
    register(image, 2, incarnation="second", fenced=True)
    carry_out_plan(image, plan_fencing(image, ONE))
    row = image.partition("t", 0)
    assert (row.leader, row.isr) == (NO_LEADER_ID, (1, 2))
    carry_out_plan(image, plan_replica_failures(image, BrokerId(2), keys_of(image), lost=True))
    assert image.partition("t", 0).isr == (1,)
    carry_out_plan(image, plan_unfencing(image, BrokerId(2)))
    assert image.partition("t", 0).leader == NO_LEADER_ID, "it may lack what was committed"
    carry_out_plan(image, plan_unfencing(image, ONE))
    row = image.partition("t", 0)
    assert (row.leader, row.isr, row.unclean_epoch) == (1, (1,), -1)


@pytest.mark.parametrize("first", [1, 2, 3])
def test_first_member_to_return_leads_where_all_died_at_once(first: int) -> None:
    image = three()
    set_configs(image, "t", {"min.insync.replicas": "1"})
    for number in (1, 2, 3):
        fence(image, number)
    for number in (1, 2, 3):
        carry_out_plan(image, plan_fencing(image, BrokerId(number)))
    register(image, first, incarnation="second", fenced=True)
    carry_out_plan(image, plan_unfencing(image, BrokerId(first)))
    row = image.partition("t", 0)
    # Its own proposal removes the others once it leads: not before, for it may fail, too.
    assert (row.leader, row.isr, row.unclean_epoch) == (first, (1, 2, 3), -1)


def test_fenced_leader_of_a_new_start_keeps_company_until_it_is_heard() -> None:
    image = three()
    set_row(image, "t", isr=ids(1, 2))
    set_configs(image, "t", {"min.insync.replicas": "1"})
    register(image, 1, incarnation="second", fenced=True)
    carry_out_plan(image, plan_fencing(image, BrokerId(2)))
    row = image.partition("t", 0)
    assert (row.leader, row.isr) == (1, (1, 2))
    carry_out_plan(image, plan_replica_failures(image, ONE, keys_of(image), lost=True))
    carry_out_plan(image, plan_unfencing(image, BrokerId(2)))
    row = image.partition("t", 0)
    assert (row.leader, row.isr, row.unclean_epoch) == (2, (2,), -1)


def test_member_that_is_about_to_stop_is_no_company() -> None:
    image = three((1, 2))
    shut_down(image, 2)
    carry_out_plan(image, plan_fencing(image, ONE))
    assert image.partition("t", 0).isr == (1, 2)
    carry_out_plan(image, plan_unfencing(image, ONE))
    row = image.partition("t", 0)
    assert (row.leader, row.isr) == (1, (1, 2))


def test_stopping_leader_does_not_wait_for_other_members() -> None:
    # While serving, the broker may commit alone.
    image = three((1, 2))
    shut_down(image, 1)
    carry_out_plan(image, plan_fencing(image, BrokerId(2)))
    row = image.partition("t", 0)
    assert (row.leader, row.isr) == (1, (1,))


def test_stopping_member_stays_where_only_fenced_members_would_be_left() -> None:
    image = three((1, 2))
    register(image, 1, incarnation="second", fenced=True)
    carry_out_plan(image, plan_controlled_shutdown(image, BrokerId(2)))
    row = image.partition("t", 0)
    assert (row.leader, row.isr) == (1, (1, 2))
    unfence(image, 1)
    carry_out_plan(image, plan_controlled_shutdown(image, BrokerId(2)))
    assert image.partition("t", 0).isr == (1,)


def test_load_of_a_dead_broker_is_spread_over_all_others() -> None:
    image = three(*[(1, 2, 3)] * 10)
    carry_out_plan(image, plan_fencing(image, ONE))
    leaders = [row.leader for row in image.topic("t").partitions]
    assert (leaders.count(BrokerId(2)), leaders.count(BrokerId(3))) == (5, 5)


def test_plans_about_unknown_brokers_are_empty() -> None:
    image = three()
    for plan in (plan_fencing, plan_unfencing, plan_controlled_shutdown):
        assert not list(plan(image, BrokerId(9)))


def test_restarted_broker_is_let_in_without_any_change_of_partitions() -> None:
    # It goes on leading in a new leader epoch: no other broker has to act.
    image = three((1,))
    register(image, 1, incarnation="second", fenced=True)
    (command,) = carry_out_plan(image, plan_unfencing(image, ONE))
    assert isinstance(command, UnfenceBroker)
    assert image.partition("t", 0).leader == 1
    assert not list(plan_unfencing(image, ONE))


def test_broker_about_to_stop_is_unfenced_but_leads_nothing() -> None:
    image = three((1,))
    shut_down(image, 1)
    carry_out_plan(image, plan_fencing(image, ONE))
    carry_out_plan(image, plan_unfencing(image, ONE))
    assert not image.brokers[ONE].fenced
    assert image.partition("t", 0).leader == NO_LEADER_ID


@settings(max_examples=examples(100), deadline=None)
@given(cluster_images(), brokers_of_images)
def test_stopping_broker_keeps_only_partitions_without_a_successor(
    image: MetadataImage, broker_id: BrokerId
) -> None:
    leaders = {
        (topic.topic_id, row.partition): row.leader
        for topic in image.topics_by_id.values()
        for row in topic.partitions
    }
    carry_out_plan(image, plan_controlled_shutdown(image, broker_id))
    assert image.brokers[broker_id].controlled_shutdown
    available = available_brokers(image)
    for topic in image.topics_by_id.values():
        for row in topic.partitions:
            before = leaders[topic.topic_id, row.partition]
            if before not in (broker_id, NO_LEADER_ID):
                assert row.leader == before
                assert broker_id not in row.isr or not serves(image, row)
            elif before == broker_id:
                if row.leader == broker_id:
                    assert available.isdisjoint(row.isr)
                else:
                    assert row.leader in available and broker_id not in row.isr
            else:
                assert row.leader == NO_LEADER_ID
    assert not list(plan_controlled_shutdown(image, broker_id)), "nothing is left to do"


def test_sole_replica_is_led_until_it_has_really_stopped() -> None:
    image = three((1,))
    create(image, "u", 2, (1, 2)).check()
    first, second = carry_out_plan(image, plan_controlled_shutdown(image, ONE))
    assert isinstance(first, SetControlledShutdown)
    assert isinstance(second, ChangePartitions)
    assert (image.partition("t", 0).leader, image.partition("u", 0).leader) == (1, 2)


def test_eligible_replicas_do_not_take_over_from_a_leader_that_still_serves() -> None:
    image = three()
    set_row(image, "t", isr=ids(1), elr=ids(2))
    carry_out_plan(image, plan_controlled_shutdown(image, ONE))
    assert image.partition("t", 0).leader == 1
    carry_out_plan(image, plan_fencing(image, ONE))
    assert image.partition("t", 0).leader == 2


def test_only_fenced_brokers_without_a_vote_get_another_directory() -> None:
    image = three((1, 2))
    with pytest.raises(LogError) as raised:
        plan_replacement(image, BrokerId(9), "new", has_vote=False)
    assert raised.value.entry is NOT_FOUND
    with pytest.raises(LogError, match="alive: stop it first") as raised:
        plan_replacement(image, ONE, "new", has_vote=False)
    assert raised.value.entry is ILLEGAL_STATE
    fence(image, 1)
    with pytest.raises(LogError, match="still has a vote"):
        plan_replacement(image, ONE, "new", has_vote=True)
    older = image.brokers[BrokerId(3)]
    image.brokers[BrokerId(3)] = replace(older, command_version=4)
    with pytest.raises(LogError, match="Node 3 runs an older release"):
        plan_replacement(image, ONE, "new", has_vote=False)
    image.brokers[BrokerId(3)] = older
    # The lost node's own release counts no more.
    image.brokers[ONE] = replace(image.brokers[ONE], command_version=4)
    command = plan_replacement(image, ONE, "new", has_vote=False)
    assert command is not None
    carry_out(image, command)
    assert image.brokers[ONE].directory_id == "new"
    assert plan_replacement(image, ONE, "new", has_vote=False) is None


def test_only_fenced_brokers_without_a_vote_are_unregistered() -> None:
    image = three((2,))
    with pytest.raises(LogError) as raised:
        plan_unregistration(image, BrokerId(9), has_vote=False)
    assert raised.value.entry is NOT_FOUND
    with pytest.raises(LogError, match="alive: stop it first") as raised:
        plan_unregistration(image, ONE, has_vote=True)
    assert raised.value.entry is ILLEGAL_STATE
    fence(image, 1)
    with pytest.raises(LogError, match="`raftlog quorum remove-voter 1`") as raised:
        plan_unregistration(image, ONE, has_vote=True)
    assert raised.value.entry is ILLEGAL_STATE
    carry_out(image, plan_unregistration(image, ONE, has_vote=False))
    assert ONE not in image.brokers
    # A voter without any registration is known, too.
    with pytest.raises(LogError, match="still has a vote"):
        plan_unregistration(image, ONE, has_vote=True)
    fence(image, 2)
    with pytest.raises(LogError, match="still holds replicas"):
        carry_out(image, plan_unregistration(image, BrokerId(2), has_vote=False))
    unfence(image, 2)


def test_kafka_address_waits_until_every_other_broker_knows_it() -> None:
    image = three()
    wanted = RegisterBroker(
        broker_id=BrokerId(3),
        directory_id="d",
        incarnation="i",
        host="h",
        port=1,
        software_version="0",
        kafka_host="k",
        kafka_port=9092,
    )
    for other in (1, 3):
        row = image.brokers[BrokerId(other)]
        image.brokers[BrokerId(other)] = replace(row, command_version=3)
    assert brokers_without_kafka_addresses(image, BrokerId(3)) == (1,)
    older = registration_command(image, wanted)
    assert (older.v, older.kafka_host, older.kafka_port) == (1, None, None)
    image.brokers[BrokerId(1)] = replace(image.brokers[BrokerId(1)], command_version=4)
    # Its own row is of its start before.
    assert registration_command(image, wanted) == replace(wanted, v=4)
    without = replace(wanted, kafka_host=None, kafka_port=None)
    assert registration_command(image, without).v == 1
