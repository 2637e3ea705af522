from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.metadata.elections import available_brokers
from raftlog.metadata.image import NO_LEADER_ID, MetadataImage
from raftlog.metadata.invariants import check_invariants
from raftlog.metadata.leadership import plan_leader_transfer, plan_unclean_election
from raftlog.record.errors import ILLEGAL_STATE, NO_LEADER, NOT_FOUND, UNKNOWN_PARTITION, LogError
from raftlog.record.types import BrokerId
from tests.metadata.strategies import (
    BROKER_NUMBERS,
    alter_broker,
    carry_out,
    cluster_images,
    create,
    fence,
    ids,
    register,
    set_row,
    shut_down,
    unfence,
)


def four(*replicas: int) -> MetadataImage:
    image = MetadataImage()
    for number in (1, 2, 3, 4):
        register(image, number)
    create(image, "t", 1, replicas)
    return image


def transfer(image: MetadataImage, broker_id: int | None) -> int:
    wanted = None if broker_id is None else BrokerId(broker_id)
    command = plan_leader_transfer(image, name="t", partition=0, broker_id=wanted)
    if command is not None:
        assert carry_out(image, command).delta
    return image.partition("t", 0).leader


def test_leadership_goes_to_the_member_that_is_named() -> None:
    image = four(1, 2, 3)
    assert transfer(image, 3) == 3
    assert transfer(image, 3) == 3, "it may be asked for twice"
    row = image.partition("t", 0)
    assert (row.isr, row.leader_epoch, row.partition_epoch) == ((1, 2, 3), 1, 1)


def test_leadership_goes_to_the_best_other_one() -> None:
    image = four(1, 2, 3)
    create(image, "u", 2, (2, 3))
    assert transfer(image, None) == 3, "it leads less than 2"
    assert transfer(image, None) == 1, "the preferred one"
    alter_broker(image, 3, maintenance=True)
    assert transfer(image, None) == 2
    fence(image, 1)
    with pytest.raises(LogError, match="No other replica") as raised:
        transfer(image, None)
    assert raised.value.entry is ILLEGAL_STATE


def test_who_cannot_lead_is_given_nothing() -> None:
    image = four(1, 2, 3)
    set_row(image, "t", isr=ids(1, 3))
    for broker_id, words, entry in (
        (4, "does not hold", NOT_FOUND),
        (2, "not in sync", ILLEGAL_STATE),
    ):
        with pytest.raises(LogError, match=words) as raised:
            transfer(image, broker_id)
        assert raised.value.entry is entry
    shut_down(image, 3)
    with pytest.raises(LogError, match="stopping or in maintenance"):
        transfer(image, 3)
    register(image, 3, incarnation="second")
    alter_broker(image, 3, maintenance=True)
    with pytest.raises(LogError, match="stopping or in maintenance"):
        transfer(image, 3)
    set_row(image, "t", isr=(), elr=ids(1), leader=NO_LEADER_ID)
    with pytest.raises(LogError) as raised:
        transfer(image, None)
    assert raised.value.entry is NO_LEADER
    with pytest.raises(LogError) as raised:
        plan_leader_transfer(image, name="t", partition=1, broker_id=None)
    assert raised.value.entry is UNKNOWN_PARTITION


def test_operator_can_accept_the_loss_of_records_where_nobody_leads() -> None:
    image = four(1, 2)
    with pytest.raises(LogError, match="is led by broker 1") as raised:
        plan_unclean_election(image, name="t", partition=0)
    assert raised.value.entry is ILLEGAL_STATE
    set_row(image, "t", isr=(), elr=ids(1), leader=NO_LEADER_ID)
    fence(image, 1)
    fence(image, 2)
    for broker_id in (None, BrokerId(2)):
        with pytest.raises(LogError, match="None of the replicas"):
            plan_unclean_election(image, name="t", partition=0, broker_id=broker_id)
    unfence(image, 2)
    carry_out(image, plan_unclean_election(image, name="t", partition=0))
    row = image.partition("t", 0)
    assert (row.leader, row.isr, row.elr) == (2, (2,), ())
    assert row.unclean_epoch == row.leader_epoch == 1
    # What comes after it does not make it forgotten.
    set_row(image, "t", isr=ids(1, 2))
    unfence(image, 1)
    transfer(image, 1)
    assert (image.partition("t", 0).leader_epoch, image.partition("t", 0).unclean_epoch) == (2, 1)


def test_operator_can_name_who_is_to_lead_though_records_are_lost() -> None:
    image = four(1, 2, 3)
    set_row(image, "t", isr=(), elr=ids(1), leader=NO_LEADER_ID)
    fence(image, 1)
    with pytest.raises(LogError) as raised:
        plan_unclean_election(image, name="t", partition=0, broker_id=BrokerId(4))
    assert raised.value.entry is NOT_FOUND
    carry_out(image, plan_unclean_election(image, name="t", partition=0, broker_id=BrokerId(3)))
    row = image.partition("t", 0)
    assert (row.leader, row.isr, row.unclean_epoch) == (3, (3,), 1)


def test_election_of_one_that_has_everything_is_clean_whoever_asked_for_it() -> None:
    image = four(1, 2, 3)
    set_row(image, "t", isr=(), elr=ids(1, 2), leader=NO_LEADER_ID)
    command = plan_unclean_election(image, name="t", partition=0, broker_id=BrokerId(2))
    assert not command.changes[0].unclean, "nor does the log say so"
    carry_out(image, command)
    row = image.partition("t", 0)
    assert (row.leader, row.isr, row.elr, row.unclean_epoch) == (2, (2,), (1,), -1)


@settings(max_examples=150, deadline=None)
@given(cluster_images(), st.data())
def test_whatever_an_operator_wants_leaves_a_valid_image(
    image: MetadataImage, data: st.DataObject
) -> None:
    topic = data.draw(st.sampled_from(list(image.topics_by_id.values())))
    row = data.draw(st.sampled_from(topic.partitions))
    broker_id = data.draw(st.none() | st.sampled_from([BrokerId(n) for n in BROKER_NUMBERS]))
    unclean = data.draw(st.booleans())
    plan = plan_unclean_election if unclean else plan_leader_transfer
    try:
        command = plan(image, name=topic.name, partition=row.partition, broker_id=broker_id)
    except LogError:
        return
    if command is None:
        assert row.leader == broker_id
        return
    assert not carry_out(image, command).partitions().stale
    check_invariants(image)
    after = image.partition(topic.name, row.partition)
    assert after.leader in available_brokers(image) & {*row.replicas}
    assert broker_id is None or after.leader == broker_id
    assert after.leader_epoch == row.leader_epoch + 1
    is_clean = after.leader in {*row.isr, *row.elr}
    assert after.unclean_epoch == (row.unclean_epoch if is_clean else after.leader_epoch)
    if not unclean:
        assert after.isr == row.isr


def test_who_cannot_write_is_given_no_lead() -> None:
    image = four(1, 2, 3)
    unwritable = frozenset(ids(2))
    with pytest.raises(LogError, match="The disk of broker 2") as raised:
        plan_leader_transfer(
            image, name="t", partition=0, broker_id=BrokerId(2), unwritable=unwritable
        )
    assert raised.value.entry is ILLEGAL_STATE
    command = plan_leader_transfer(
        image, name="t", partition=0, broker_id=None, unwritable=unwritable
    )
    assert command is not None and command.changes[0].leader == 3
    with pytest.raises(LogError, match="No other replica"):
        plan_leader_transfer(
            image, name="t", partition=0, broker_id=None, unwritable=frozenset(ids(2, 3))
        )
