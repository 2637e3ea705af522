""""""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from raftlog.metadata.decisions import elections
from raftlog.metadata.decisions.elections import (
    NO_LOG_END,
    Elections,
    LogEnd,
    available_brokers,
    elect_leader,
    in_batches,
    plan_elections,
    plan_leader_transfer,
    plan_preferred_leaders,
    plan_relief,
    plan_unclean_election,
    undecided_elections,
)
from raftlog.metadata.image import NO_LEADER_ID, MetadataImage, PartitionImage
from raftlog.metadata.state_machine import check_invariants
from raftlog.record.errors import ILLEGAL_STATE, NO_LEADER, NOT_FOUND, UNKNOWN_PARTITION, LogError
from raftlog.record.types import (
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionId,
    TopicId,
)
from tests.examples import examples
from tests.metadata.strategies import (
    BROKER_NUMBERS,
    alter_broker,
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


def row(replicas: tuple[int, ...], isr: tuple[int, ...], elr: tuple[int, ...]) -> PartitionImage:
    return PartitionImage(
        partition=PartitionId(0),
        replicas=ids(*replicas),
        isr=ids(*isr),
        elr=ids(*elr),
        leader=NO_LEADER_ID,
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
    )


@st.composite
def rows(draw: st.DrawFn) -> PartitionImage:
    replicas = draw(st.permutations(range(1, 6)))[: draw(st.integers(1, 5))]
    isr = [b for b in replicas if draw(st.booleans())]
    elr = [b for b in replicas if b not in isr and draw(st.booleans())]
    return row(tuple(replicas), tuple(isr), tuple(elr))


broker_sets = st.frozensets(st.integers(1, 5).map(BrokerId))
loads = st.dictionaries(st.integers(1, 5).map(BrokerId), st.integers(0, 3))
log_ends = st.builds(
    LogEnd, st.integers(-1, 2).map(LeaderEpoch), st.integers(0, 3).map(Offset)
) | st.just(NO_LOG_END)
answers = st.dictionaries(st.integers(1, 5).map(BrokerId), log_ends)


@settings(max_examples=examples(300), deadline=None)
@given(rows(), broker_sets, loads, st.booleans())
def test_only_available_members_of_isr_or_elr_are_elected_unless_loss_is_accepted(
    partition: PartitionImage,
    available: frozenset[BrokerId],
    led: dict[BrokerId, int],
    unclean: bool,
) -> None:
    election = elect_leader(partition, available=available, led=led, unclean=unclean, ends={})
    isr, elr = available.intersection(partition.isr), available.intersection(partition.elr)
    if election is None:
        assert not isr and not elr
        assert not unclean or not available.intersection(partition.replicas)
        return
    assert election.leader in available
    assert election.leader in election.isr
    # A replica outside the ISR is elected only beside an empty ISR, and so on downwards.
    assert election.leader in (isr or elr or partition.replicas)
    assert election.is_clean is bool(isr or elr)
    assert election.isr == (partition.isr if isr else (election.leader,))


@settings(max_examples=examples(300), deadline=None)
@given(rows(), broker_sets, loads)
def test_ties_are_broken_by_preference_then_fewest_led_then_lowest_id(
    partition: PartitionImage, available: frozenset[BrokerId], led: dict[BrokerId, int]
) -> None:
    election = elect_leader(partition, available=available, led=led)
    if election is None:
        return
    candidates = available.intersection(partition.isr) or available.intersection(partition.elr)
    if partition.replicas[0] in candidates:
        assert election.leader == partition.replicas[0]
        return
    fewest = min(led.get(b, 0) for b in candidates)
    assert election.leader == min(b for b in candidates if led.get(b, 0) == fewest)


@settings(max_examples=examples(300), deadline=None)
@given(rows(), broker_sets, loads, broker_sets, answers)
def test_unclean_election_takes_the_longest_log_then_fewest_led_then_lowest_id(
    partition: PartitionImage,
    available: frozenset[BrokerId],
    led: dict[BrokerId, int],
    unwritable: frozenset[BrokerId],
    ends: dict[BrokerId, LogEnd],
) -> None:
    partition = replace(partition, isr=(), elr=())
    candidates = available.intersection(partition.replicas)

    def elect(known: dict[BrokerId, LogEnd] | None) -> BrokerId | None:
        election = elect_leader(
            partition,
            available=available,
            led=led,
            unclean=True,
            unwritable=unwritable,
            ends=known,
        )
        return None if election is None else election.leader

    leader = elect(ends)
    assert (leader is None) is (not candidates)
    if leader is None:
        return
    epoch, end = ends.get(leader, NO_LOG_END)
    for other in candidates - {leader}:
        other_epoch, other_end = ends.get(other, NO_LOG_END)
        assert (other_epoch, other_end) <= (epoch, end)
        if (other_epoch, other_end) == (epoch, end):
            assert (leader in unwritable, led.get(leader, 0), leader) < (
                other in unwritable,
                led.get(other, 0),
                other,
            )
    # Without the ends there is nothing to compare but a single candidate.
    assert elect(None) == (leader if len(candidates) == 1 else None)


def test_leader_epoch_counts_before_the_length_and_a_missing_answer_last() -> None:
    partition = row((1, 2, 3), (), ())
    epochs = {1: (0, 900), 2: (4, 10), 3: (4, 11)}
    ends = {BrokerId(b): LogEnd(LeaderEpoch(e), Offset(o)) for b, (e, o) in epochs.items()}
    every = frozenset(ids(1, 2, 3))

    def leader(*answered: int) -> int:
        known = {b: end for b, end in ends.items() if b in answered}
        election = elect_leader(partition, available=every, led={}, unclean=True, ends=known)
        assert election is not None and not election.is_clean
        assert election.isr == (election.leader,)
        return election.leader

    assert [leader(1, 2, 3), leader(1, 2), leader(1), leader()] == [3, 2, 1, 1]


def test_only_unclean_elections_among_several_replicas_are_undecided() -> None:
    image = brokers(4)
    create(image, "t", 1, *[(1, 2, 3)] * 4)
    topic = image.topic("t")
    set_row(image, "t", 1, isr=(), elr=ids(1), leader=NO_LEADER_ID)
    fence(image, 1)
    assert list(undecided_elections(image)) == [], "the config does not allow any"
    set_configs(image, "t", {"unclean.leader.election.enable": "true"})
    key = topic.topic_id, PartitionId(1)
    assert list(undecided_elections(image)) == [key]
    nowhere = (topic.topic_id, PartitionId(9)), (TopicId("f" * 32), PartitionId(0))
    assert list(undecided_elections(image, [*nowhere, key])) == [key]
    assert list(undecided_elections(image, [(topic.topic_id, PartitionId(0))])) == []
    # The leader, alone in the ISR, is about to go.
    set_row(image, "t", 0, isr=ids(2), leader=BrokerId(2))
    unfence(image, 1)
    assert list(undecided_elections(image)) == [], "1 has all records of partition 1"
    alone = list(undecided_elections(image, excluding={BrokerId(2)}))
    assert alone == [(topic.topic_id, PartitionId(0))]
    fence(image, 3)
    assert list(undecided_elections(image, excluding={BrokerId(2)})) == []


def test_isr_that_is_about_to_change_is_what_counts() -> None:
    partition = row((1, 2, 3), (1, 2, 3), ())
    every = frozenset(ids(1, 2, 3))
    election = elect_leader(partition, available=every, led={}, isr=ids(2, 3))
    assert election is not None
    assert (election.leader, election.isr) == (2, (2, 3))
    assert elect_leader(partition, available=every, led={}, isr=()) is None


def brokers(count: int = 3) -> MetadataImage:
    image = MetadataImage()
    for number in range(1, count + 1):
        register(image, number)
    return image


def test_unavailable_brokers_are_fenced_or_about_to_stop() -> None:
    image = brokers()
    fence(image, 1)
    shut_down(image, 2)
    assert available_brokers(image) == {3}


def test_elections_after_each_other_spread_the_leaders() -> None:
    image = brokers(4)
    create(image, "t", 1, *[(1, 2, 3, 4)] * 9)
    state = Elections(image, excluding={BrokerId(1)})
    topic = image.topic("t")
    leaders = []
    for each in topic.partitions:
        election = state.elect(topic, each, isr=ids(2, 3, 4))
        assert election is not None
        leaders.append(election.leader)
    assert leaders == [2, 3, 4] * 3


@settings(max_examples=examples(100), deadline=None)
@given(cluster_images())
def test_every_partition_that_could_have_a_leader_gets_one(image: MetadataImage) -> None:
    available = available_brokers(image)
    led_before = {
        (t.topic_id, r.partition): r.leader
        for t in image.topics_by_id.values()
        for r in t.partitions
    }
    carry_out_plan(image, plan_elections(image))
    undecided = list(undecided_elections(image))
    ends = {key: {BrokerId(1): LogEnd(LeaderEpoch(0), Offset(1))} for key in undecided}
    carry_out_plan(image, plan_elections(image, keys=undecided, ends=ends))
    for topic in image.topics_by_id.values():
        unclean = topic.configs.get("unclean.leader.election.enable") == "true"
        for each in topic.partitions:
            before = led_before[topic.topic_id, each.partition]
            if before != NO_LEADER_ID:
                assert each.leader == before, "who leads goes on"
            elif each.leader == NO_LEADER_ID:
                assert available.isdisjoint(each.replicas if unclean else each.isr + each.elr)
            else:
                assert each.leader in available
    assert not list(plan_elections(image)), "nothing is left to do"


def test_cluster_setting_allows_unclean_elections_but_no_guess_does() -> None:
    image = brokers()
    create(image, "t", 1, (1, 2))
    set_row(image, "t", isr=ids(1), elr=(), leader=NO_LEADER_ID)
    fence(image, 1)
    for value in ("yes", "1", "false", ""):
        image.cluster_settings = {"unclean.leader.election.enable": value}
        assert not list(plan_elections(image))
    image.cluster_settings = {"unclean.leader.election.enable": "true"}
    carry_out_plan(image, plan_elections(image))
    assert (image.partition("t", 0).leader, image.partition("t", 0).isr) == (2, (2,))


def test_preferred_replica_leads_again_once_it_is_in_sync_and_available() -> None:
    image = brokers()
    create(image, "t", 1, (1, 2, 3))
    set_row(image, "t", isr=ids(2, 3), leader=2)
    assert not list(plan_preferred_leaders(image)), "not in sync yet"
    set_row(image, "t", isr=ids(1, 2, 3))
    shut_down(image, 1)
    assert not list(plan_preferred_leaders(image)), "about to stop"
    register(image, 1, incarnation="second")
    set_row(image, "t", removing=ids(1))
    assert not list(plan_preferred_leaders(image)), "about to lose its replica"
    set_row(image, "t", removing=())
    carry_out_plan(image, plan_preferred_leaders(image))
    assert image.partition("t", 0).leader == 1
    set_row(image, "t", leader=NO_LEADER_ID)
    assert not list(plan_preferred_leaders(image)), "that takes an election"


def test_preferred_replica_in_maintenance_or_back_too_lately_is_given_nothing() -> None:
    image = brokers()
    create(image, "t", 1, (1, 2, 3))
    set_row(image, "t", leader=2)
    alter_broker(image, 1, maintenance=True)
    assert not list(plan_preferred_leaders(image))
    alter_broker(image, 1, maintenance=False)
    assert not list(plan_preferred_leaders(image, excluding={BrokerId(1)}))
    carry_out_plan(image, plan_preferred_leaders(image))
    assert image.partition("t", 0).leader == 1


def test_broker_in_maintenance_is_elected_only_without_another_choice() -> None:
    image = brokers()
    create(image, "t", 1, (1, 2))
    alter_broker(image, 1, maintenance=True)
    set_row(image, "t", leader=NO_LEADER_ID)
    carry_out_plan(image, plan_elections(image))
    assert image.partition("t", 0).leader == 2
    set_row(image, "t", leader=NO_LEADER_ID, isr=ids(1))
    carry_out_plan(image, plan_elections(image))
    assert image.partition("t", 0).leader == 1


def test_elections_can_be_held_in_some_partitions_only() -> None:
    image = brokers()
    topic = create(image, "t", 1, (1, 2), (1, 2)).topic()
    for number in (0, 1):
        set_row(image, "t", number, leader=NO_LEADER_ID)
    key, nowhere = (topic.topic_id, PartitionId(1)), (topic.topic_id, PartitionId(2))
    gone = (TopicId("f" * 32), PartitionId(0))
    (command,) = plan_elections(image, keys=[key, gone, nowhere, key])
    assert [change.partition for change in command.changes] == [1]


def test_maintenance_leaves_a_broker_only_partitions_without_another_leader() -> None:
    image = brokers()
    create(image, "t", 1, (1, 2), (1, 2), (2, 1))
    set_row(image, "t", 1, isr=ids(1), elr=ids(2))
    before = image.topic("t").partitions
    assert not list(plan_relief(image))
    alter_broker(image, 1, maintenance=True)
    carry_out_plan(image, plan_relief(image))
    rows = image.topic("t").partitions
    assert [each.leader for each in rows] == [2, 1, 2]
    assert [each.isr for each in rows] == [each.isr for each in before]
    set_row(image, "t", 1, isr=ids(1, 2), elr=())
    shut_down(image, 2)
    assert not list(plan_relief(image))


def test_brokers_that_take_no_writes_are_elected_after_those_in_maintenance() -> None:
    image = brokers()
    create(image, "t", 1, (1, 2, 3))
    alter_broker(image, 2, maintenance=True)
    for unwritable, leader in (((1,), 3), ((1, 3), 2), ((1, 2, 3), 1)):
        set_row(image, "t", leader=NO_LEADER_ID)
        carry_out_plan(image, plan_elections(image, unwritable=frozenset(ids(*unwritable))))
        assert image.partition("t", 0).leader == leader


def test_member_of_the_isr_that_takes_no_writes_goes_before_others_that_may_lack_records() -> None:
    image = brokers()
    create(image, "t", 1, (1, 2, 3))
    set_row(image, "t", leader=NO_LEADER_ID, isr=ids(1), elr=ids(2))
    carry_out_plan(image, plan_elections(image, unwritable=frozenset(ids(1))))
    assert image.partition("t", 0).leader == 1


def test_relief_moves_what_a_broker_cannot_write_to_one_in_maintenance_if_to_no_other() -> None:
    image = brokers()
    create(image, "t", 1, (1, 2), (1, 3), (2, 1))
    create(image, "alone", 2, (1,))
    alter_broker(image, 2, maintenance=True)
    unwritable = frozenset(ids(1))
    carry_out_plan(image, plan_relief(image, unwritable=unwritable))
    assert [each.leader for each in image.topic("t").partitions] == [2, 3, 2]
    assert image.partition("alone", 0).leader == 1
    assert not list(plan_relief(image, unwritable=unwritable))
    carry_out_plan(image, plan_relief(image))
    assert [each.leader for each in image.topic("t").partitions] == [1, 3, 1]


@settings(max_examples=examples(50), deadline=None)
@given(cluster_images(), broker_sets)
def test_relief_of_brokers_that_cannot_write_settles_and_leaves_every_isr(
    image: MetadataImage, unwritable: frozenset[BrokerId]
) -> None:
    every = [
        (t, n) for t, topic in image.topics_by_id.items() for n in range(len(topic.partitions))
    ]
    isrs = [image.topics_by_id[t].partitions[n].isr for t, n in every]
    leaders = [image.topics_by_id[t].partitions[n].leader for t, n in every]
    carry_out_plan(image, plan_relief(image, unwritable=unwritable))
    assert not list(plan_relief(image, unwritable=unwritable))
    able = available_brokers(image) - unwritable
    for (topic_id, number), isr, leader in zip(every, isrs, leaders, strict=True):
        row = image.topics_by_id[topic_id].partitions[number]
        assert row.isr == isr
        if row.leader in unwritable:
            assert row.leader == leader and not able.intersection(isr)


@settings(max_examples=examples(50), deadline=None)
@given(cluster_images())
def test_relief_settles_in_one_round_and_leaves_every_isr(image: MetadataImage) -> None:
    before = {
        (topic.topic_id, each.partition): (each.isr, each.leader)
        for topic in image.topics_by_id.values()
        for each in topic.partitions
    }
    carry_out_plan(image, plan_relief(image))
    assert not list(plan_relief(image))
    available = available_brokers(image)
    for topic in image.topics_by_id.values():
        for each in topic.partitions:
            isr, leader = before[topic.topic_id, each.partition]
            assert each.isr == isr
            if leader == NO_LEADER_ID:
                assert each.leader == NO_LEADER_ID
                continue
            if image.brokers[each.leader].maintenance:
                assert all(b not in available or image.brokers[b].maintenance for b in isr)
            else:
                assert each.leader == leader or image.brokers[leader].maintenance


@settings(max_examples=examples(50), deadline=None)
@given(cluster_images())
def test_preferred_leaders_settle_in_one_round(image: MetadataImage) -> None:
    carry_out_plan(image, plan_preferred_leaders(image))
    assert not list(plan_preferred_leaders(image))


def test_plans_come_in_batches_that_follow_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elections, "PLANNED_CHANGES_MAX", 3)
    image = brokers()
    create(image, "a", 1, *[(1, 2)] * 7)
    create(image, "b", 2, *[(1, 2)] * 2)
    for name in ("a", "b"):
        for each in image.topic(name).partitions:
            set_row(image, name, each.partition, leader=2)
    plan = plan_preferred_leaders(image)
    sizes = []
    for command in plan:
        sizes.append(len(command.changes))
        carry_out(image, command)
        if len(sizes) == 1:
            # A partition changed by others meanwhile is not changed again.
            set_row(image, "a", 3, leader=1)
    assert sizes == [3, 3, 2]
    assert all(r.leader == 1 for t in image.topics_by_id.values() for r in t.partitions)


def test_topic_deleted_during_a_plan_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elections, "PLANNED_CHANGES_MAX", 1)
    image = brokers()
    create(image, "a", 1, (1, 2), (1, 2))
    create(image, "b", 2, (1, 2))
    for name, number in (("a", 0), ("a", 1), ("b", 0)):
        set_row(image, name, number, leader=2)
    plan = plan_preferred_leaders(image)
    next(plan)
    del image.topics_by_id[image.topic("a").topic_id]
    del image.topics_by_name["a"]
    (rest,) = plan
    assert [change.topic_id for change in rest.changes] == [image.topic("b").topic_id]


def test_nothing_to_change_is_no_command() -> None:
    image = brokers()
    create(image, "a", 1, (1, 2))
    assert not list(in_batches(image, lambda _topic, _row: None))


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


def test_broker_that_cannot_lead_gets_no_leadership() -> None:
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


def test_operator_can_accept_the_loss_of_records_of_a_leaderless_partition() -> None:
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
    # Later changes do not hide the loss.
    set_row(image, "t", isr=ids(1, 2))
    unfence(image, 1)
    transfer(image, 1)
    assert (image.partition("t", 0).leader_epoch, image.partition("t", 0).unclean_epoch) == (2, 1)


def test_operator_can_name_the_leader_though_records_are_lost() -> None:
    image = four(1, 2, 3)
    set_row(image, "t", isr=(), elr=ids(1), leader=NO_LEADER_ID)
    fence(image, 1)
    with pytest.raises(LogError) as raised:
        plan_unclean_election(image, name="t", partition=0, broker_id=BrokerId(4))
    assert raised.value.entry is NOT_FOUND
    carry_out(image, plan_unclean_election(image, name="t", partition=0, broker_id=BrokerId(3)))
    row = image.partition("t", 0)
    assert (row.leader, row.isr, row.unclean_epoch) == (3, (3,), 1)


def test_election_of_a_replica_with_all_records_is_clean_also_by_an_operator() -> None:
    image = four(1, 2, 3)
    set_row(image, "t", isr=(), elr=ids(1, 2), leader=NO_LEADER_ID)
    command = plan_unclean_election(image, name="t", partition=0, broker_id=BrokerId(2))
    assert not command.changes[0].unclean, "nor does the log say so"
    carry_out(image, command)
    row = image.partition("t", 0)
    assert (row.leader, row.isr, row.elr, row.unclean_epoch) == (2, (2,), (1,), -1)


@settings(max_examples=examples(150), deadline=None)
@given(cluster_images(), st.data())
def test_every_request_of_an_operator_leaves_a_valid_image(
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


def test_unwritable_broker_gets_no_leadership() -> None:
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
