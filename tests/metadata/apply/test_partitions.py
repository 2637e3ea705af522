from __future__ import annotations

import pytest
from msgspec.structs import replace

from raftlog.metadata.apply.apply import ApplyResult, apply
from raftlog.metadata.apply.rules import Reason
from raftlog.metadata.commands import (
    AlterClusterSettings,
    AlterIsr,
    AlterTopicConfigs,
    ChangePartitions,
    PartitionChange,
)
from raftlog.metadata.image import NO_LEADER_ID, MetadataImage, PartitionImage
from raftlog.record.types import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionId,
    TopicId,
)
from tests.metadata.strategies import (
    carry_out,
    create,
    fence,
    ids,
    register,
    set_row,
    shut_down,
    unfence,
)


def three() -> MetadataImage:
    """A topic of two partitions on brokers 1, 2 and 3."""
    image = MetadataImage()
    for broker_id in (1, 2, 3, 4):
        register(image, broker_id)
    create(image, "t", 1, (1, 2, 3), (2, 3, 1))
    return image


def proposal(image: MetadataImage, *isr: int, partition: int = 0) -> AlterIsr:
    topic = image.topic("t")
    row = topic.partitions[partition]
    return AlterIsr(
        broker_id=row.leader,
        broker_epoch=image.brokers[row.leader].broker_epoch,
        topic_id=topic.topic_id,
        partition=row.partition,
        leader_epoch=row.leader_epoch,
        partition_epoch=row.partition_epoch,
        isr=tuple((BrokerId(b), image.brokers[BrokerId(b)].broker_epoch) for b in isr),
        min_isr_default=2,
    )


def change(image: MetadataImage, partition: int = 0) -> PartitionChange:
    topic = image.topic("t")
    row = topic.partitions[partition]
    return PartitionChange(
        topic_id=topic.topic_id,
        partition=row.partition,
        partition_epoch=row.partition_epoch,
        min_isr_default=2,
    )


def refused(image: MetadataImage, command: AlterIsr) -> Reason:
    before = image.copy()
    result = apply(image, image.applied_index + 1, command)
    assert result.refusal is not None
    before.applied_index = image.applied_index
    assert image == before
    return result.refusal.reason


def changed(image: MetadataImage, *changes: PartitionChange) -> ApplyResult:
    return carry_out(image, ChangePartitions(changes=changes))


def stale(image: MetadataImage, wanted: PartitionChange) -> Reason:
    before = image.copy()
    result = changed(image, wanted)
    before.applied_index = image.applied_index
    assert image == before and not result.delta
    (skipped,) = result.partitions().stale
    assert (skipped.topic_id, skipped.partition) == (wanted.topic_id, wanted.partition)
    return skipped.refusal.reason


# -- AlterIsr


def test_leader_shrinks_and_grows_its_isr_in_one_leader_epoch() -> None:
    image = three()
    result = carry_out(image, proposal(image, 1, 3))
    row = image.partition("t", 0)
    assert result.partition() is row
    assert (row.isr, row.elr, row.leader, row.leader_epoch, row.partition_epoch) == (
        (1, 3),
        (),
        1,
        0,
        1,
    )
    assert [c.partitions for c in result.delta.changed] == [(0,)]
    # The order of the proposal does not matter: equal sets are equal rows.
    row = carry_out(image, proposal(image, 3, 2, 1)).partition()
    assert (row.isr, row.partition_epoch) == ((1, 2, 3), 2)
    assert row.isr is row.replicas, "no second tuple in memory"


def test_members_below_the_minimum_stay_eligible_until_it_is_reached_again() -> None:
    image = three()
    row = carry_out(image, proposal(image, 1)).partition()
    assert (row.isr, row.elr) == ((1,), (2, 3))
    row = carry_out(image, proposal(image, 1, 2)).partition()
    assert (row.isr, row.elr) == ((1, 2), ())
    carry_out(
        image,
        AlterTopicConfigs(topic_id=image.topic("t").topic_id, values={"min.insync.replicas": "1"}),
    )
    row = carry_out(image, proposal(image, 1)).partition()
    assert (row.isr, row.elr) == ((1,), ()), "the topic's minimum, not the default"


def test_unchanged_isr_changes_nothing() -> None:
    image = three()
    result = carry_out(image, proposal(image, 1, 2, 3))
    assert not result.delta
    assert result.partition().partition_epoch == 0


def test_repeated_proposal_is_refused_and_harmless() -> None:
    image = three()
    command = proposal(image, 1, 2)
    carry_out(image, command)
    assert refused(image, command) is Reason.STALE_PARTITION_EPOCH


def test_proposals_of_others_than_the_present_leader_are_refused() -> None:
    image = three()
    command = proposal(image, 1, 2)
    epoch = image.brokers[BrokerId(2)].broker_epoch
    for wrong, reason in (
        (replace(command, broker_id=BrokerId(2), broker_epoch=epoch), Reason.STALE_LEADER_EPOCH),
        (replace(command, leader_epoch=LeaderEpoch(1)), Reason.STALE_LEADER_EPOCH),
        (replace(command, partition_epoch=PartitionEpoch(1)), Reason.STALE_PARTITION_EPOCH),
        (replace(command, broker_epoch=BrokerEpoch(99)), Reason.STALE_BROKER_EPOCH),
        (replace(command, broker_id=BrokerId(99)), Reason.GONE),
        (replace(command, partition=PartitionId(2)), Reason.GONE),
        (replace(command, partition=PartitionId(-1)), Reason.GONE),
        (replace(command, topic_id=TopicId("f" * 32)), Reason.GONE),
    ):
        assert refused(image, wrong) is reason
    register(image, 1, incarnation="second")
    assert refused(image, command) is Reason.STALE_BROKER_EPOCH
    fence(image, 1)
    assert refused(image, proposal(image, 1, 2)) is Reason.BROKER_FENCED


def test_impossible_sets_are_refused() -> None:
    image = three()
    for members in ((), (2, 3), (1, 4), (1, 1)):
        assert refused(image, proposal(image, *members)) is Reason.INVALID


def test_fenced_member_is_refused() -> None:
    image = three()
    fence(image, 2)
    assert refused(image, proposal(image, 1, 2)) is Reason.INELIGIBLE_MEMBER
    carry_out(image, proposal(image, 1, 3))


def test_member_of_an_earlier_incarnation_is_refused() -> None:
    # KIP-903: the leader saw the broker in sync before its restart.
    image = three()
    carry_out(image, proposal(image, 1, 3))
    command = proposal(image, 1, 2, 3)
    register(image, 2, incarnation="second")
    assert refused(image, command) is Reason.INELIGIBLE_MEMBER
    carry_out(image, proposal(image, 1, 2, 3))


def test_broker_about_to_stop_may_stay_but_not_return() -> None:
    image = three()
    shut_down(image, 2)
    carry_out(image, proposal(image, 1, 2))
    carry_out(image, proposal(image, 1))
    assert refused(image, proposal(image, 1, 2)) is Reason.INELIGIBLE_MEMBER
    assert image.partition("t", 0).isr == (1,)


# -- ChangePartitions


def test_each_change_stands_alone_and_the_result_names_the_stale_ones() -> None:
    image = three()
    good = replace(change(image, 1), leader=BrokerId(3))
    late = replace(change(image), partition_epoch=PartitionEpoch(7), leader=BrokerId(2))
    result = changed(image, late, good)
    assert result.partitions().applied == ((good.topic_id, 1),)
    assert [(s.partition, s.refusal.reason) for s in result.partitions().stale] == [
        (0, Reason.STALE_PARTITION_EPOCH)
    ]
    assert [row.leader for row in image.topic("t").partitions] == [1, 3]
    (touched,) = result.delta.changed
    assert touched.partitions == (1,)
    assert touched.after.partitions[0] is touched.before.partitions[0], "unchanged rows are shared"


def test_new_leader_begins_a_new_leader_epoch() -> None:
    image = three()
    changed(image, replace(change(image), leader=BrokerId(2)))
    row = image.partition("t", 0)
    assert (row.leader, row.leader_epoch, row.partition_epoch) == (2, 1, 1)
    changed(image, replace(change(image), isr=ids(2, 3)))
    row = image.partition("t", 0)
    assert (row.leader, row.leader_epoch, row.partition_epoch) == (2, 1, 2)
    changed(image, replace(change(image), leader=NO_LEADER_ID, isr=()))
    row = image.partition("t", 0)
    assert (row.leader, row.leader_epoch, row.isr, row.elr) == (NO_LEADER_ID, 2, (), (2, 3))


def test_change_that_changes_nothing_counts_as_applied() -> None:
    image = three()
    result = changed(image, replace(change(image), leader=BrokerId(1), isr=ids(3, 2, 1)))
    assert len(result.partitions().applied) == 1
    assert not result.delta
    assert image.partition("t", 0).partition_epoch == 0


def test_later_change_in_a_command_sees_the_earlier_one() -> None:
    image = three()
    one = replace(change(image), leader=BrokerId(2))
    two = replace(one, leader=BrokerId(3))
    three_ = replace(two, partition_epoch=PartitionEpoch(1))
    result = changed(image, one, two, three_)
    assert [s.refusal.reason for s in result.partitions().stale] == [Reason.STALE_PARTITION_EPOCH]
    assert (image.partition("t", 0).leader, image.partition("t", 0).leader_epoch) == (3, 2)


def test_changes_of_what_is_gone_are_skipped() -> None:
    image = three()
    assert stale(image, replace(change(image), topic_id=TopicId("f" * 32))) is Reason.GONE
    assert stale(image, replace(change(image), partition=PartitionId(9))) is Reason.GONE
    assert stale(image, replace(change(image), replicas=ids(1, 9))) is Reason.GONE


def test_broker_that_became_unavailable_since_the_decision_is_not_elected() -> None:
    image = three()
    wanted = replace(change(image), leader=BrokerId(2))
    fence(image, 2)
    assert stale(image, wanted) is Reason.BROKER_FENCED
    unfence(image, 2)
    shut_down(image, 2)
    assert stale(image, wanted) is Reason.BROKER_FENCED
    set_row(image, "t", isr=(), elr=ids(2), leader=NO_LEADER_ID)
    returning = replace(change(image), leader=BrokerId(2), isr=ids(2))
    assert stale(image, returning) is Reason.INELIGIBLE_MEMBER


def test_contradictions_are_skipped() -> None:
    image = three()
    base = change(image)
    for wrong in (
        replace(base, leader=BrokerId(4)),
        replace(base, isr=ids(2, 3)),
        replace(base, isr=ids(1, 1)),
        replace(base, isr=ids(1, 4)),
        replace(base, replicas=()),
        replace(base, replicas=ids(1, 1)),
        replace(base, replicas=ids(4)),
        replace(base, replicas=ids(2, 3)),
        replace(base, adding=ids(4)),
        replace(base, removing=ids(4)),
        replace(base, adding=ids(2), removing=ids(2)),
        replace(base, adding=ids(1, 2, 3)),
        replace(base, removing=ids(1, 2, 3)),
    ):
        assert stale(image, wrong) is Reason.INVALID


def test_replica_beyond_isr_and_elr_enters_only_if_marked_as_unclean() -> None:
    image = three()
    set_row(image, "t", isr=(), elr=ids(1), leader=NO_LEADER_ID)
    wanted = replace(change(image), leader=BrokerId(3), isr=ids(3))
    assert stale(image, wanted) is Reason.INVALID
    changed(image, replace(wanted, unclean=True))
    row = image.partition("t", 0)
    assert (row.leader, row.isr) == (3, (3,))
    assert row.elr == (), "who had more records than the new leader is no equal of it"
    assert (row.leader_epoch, row.unclean_epoch) == (1, 1)
    changed(image, replace(change(image), leader=NO_LEADER_ID, isr=()))
    changed(image, replace(change(image), leader=BrokerId(3), isr=ids(3)))
    row = image.partition("t", 0)
    assert (row.leader_epoch, row.unclean_epoch) == (3, 1), "an election from the ELR is clean"


def test_unclean_entry_begins_a_leader_epoch_even_without_another_leader() -> None:
    image = three()
    set_row(image, "t", isr=ids(1), elr=())
    changed(image, replace(change(image), isr=ids(1, 2), unclean=True))
    row = image.partition("t", 0)
    assert (row.leader, row.leader_epoch, row.unclean_epoch) == (1, 1, 1)


def test_member_that_enters_the_isr_begins_a_leader_epoch_even_from_the_elr() -> None:
    """Within a leader epoch only its leader admits members, and relies on the rule."""
    image = three()
    set_row(image, "t", isr=ids(1), elr=ids(2))
    changed(image, replace(change(image), isr=ids(1, 2)))
    row = image.partition("t", 0)
    assert (row.leader, row.isr, row.elr) == (1, (1, 2), ())
    assert (row.leader_epoch, row.unclean_epoch) == (1, -1)
    # A member that leaves takes no certainty away from the others.
    changed(image, replace(change(image), isr=ids(1)))
    assert image.partition("t", 0).leader_epoch == 1


def test_change_marked_as_unclean_that_loses_nothing_is_clean() -> None:
    image = three()
    changed(image, replace(change(image), leader=BrokerId(2), unclean=True))
    row = image.partition("t", 0)
    assert (row.leader, row.leader_epoch, row.unclean_epoch) == (2, 1, -1)


def test_member_with_all_records_cannot_be_forgotten() -> None:
    image = three()
    set_row(image, "t", isr=(), elr=ids(1), leader=NO_LEADER_ID)
    assert stale(image, replace(change(image), replicas=ids(2, 3, 4))) is Reason.INVALID
    changed(image, replace(change(image), replicas=ids(1, 4)))
    assert image.partition("t", 0).elr == (1,)


def test_no_replica_is_forgotten_where_the_holder_of_all_records_is_unknown() -> None:
    image = three()
    set_row(image, "t", isr=(), elr=(), leader=NO_LEADER_ID)
    assert stale(image, replace(change(image), replicas=ids(1, 2))) is Reason.INVALID
    changed(image, replace(change(image), replicas=ids(4, 1, 2, 3), adding=ids(4)))
    assert image.partition("t", 0).adding == (4,)


def test_elr_is_elected_without_being_unclean() -> None:
    image = three()
    set_row(image, "t", isr=(), elr=ids(1, 2), leader=NO_LEADER_ID)
    changed(image, replace(change(image), leader=BrokerId(2), isr=ids(2)))
    row = image.partition("t", 0)
    assert (row.leader, row.isr, row.elr) == (2, (2,), (1,))


def test_members_known_to_have_lost_records_leave_the_elr() -> None:
    image = three()
    set_row(image, "t", isr=ids(1), elr=ids(2, 3))
    changed(image, replace(change(image), not_eligible=ids(2)))
    row = image.partition("t", 0)
    assert (row.elr, row.leader) == ((3,), 1)
    assert (row.leader_epoch, row.partition_epoch) == (1, 1), "what they acknowledged is void"
    changed(image, replace(change(image), not_eligible=ids(2)))
    row = image.partition("t", 0)
    assert (row.leader_epoch, row.partition_epoch) == (2, 2), "whatever they were in"


def test_replicas_are_replaced_with_all_that_depends_on_them() -> None:
    image = three()
    changed(image, replace(change(image), replicas=ids(4, 1, 2, 3), adding=ids(4), removing=ids(3)))
    row = image.partition("t", 0)
    assert (row.replicas, row.isr, row.adding, row.removing) == (
        (4, 1, 2, 3),
        (1, 2, 3),
        (4,),
        (3,),
    )
    assert image.topic("t").replication_factor == 3
    changed(image, replace(change(image), replicas=ids(2, 1)))
    row = image.partition("t", 0)
    assert (row.replicas, row.isr, row.adding, row.removing) == ((2, 1), (2, 1), (), ())


# -- the minimum may fall under an ELR


def below_minimum() -> MetadataImage:
    image = three()
    set_row(image, "t", 0, isr=ids(1), elr=ids(2))
    set_row(image, "t", 1, isr=(), elr=ids(2, 3), leader=NO_LEADER_ID)
    return image


def elrs(image: MetadataImage) -> list[tuple[BrokerId, ...]]:
    return [row.elr for row in image.topic("t").partitions]


def test_changed_minimum_of_the_topic_ends_eligibility_where_it_could_be_wrong() -> None:
    image = below_minimum()
    topic_id = image.topic("t").topic_id
    result = carry_out(
        image, AlterTopicConfigs(topic_id=topic_id, values={"min.insync.replicas": "1"})
    )
    # Partition 1 has no member in sync to commit records missing in the ELR.
    assert elrs(image) == [(), (2, 3)]
    assert [c.partitions for c in result.delta.changed] == [(0,)]
    assert image.partition("t", 0).partition_epoch == 1


def test_other_configs_leave_the_elr() -> None:
    image = below_minimum()
    topic_id = image.topic("t").topic_id
    carry_out(image, AlterTopicConfigs(topic_id=topic_id, values={"flush": "async"}))
    carry_out(image, AlterClusterSettings(values={"flush": "async"}))
    assert elrs(image) == [(2,), (2, 3)]


def test_changed_minimum_of_the_cluster_reaches_topics_that_inherit_it() -> None:
    image = below_minimum()
    create(image, "own", 2, (1, 2, 3), configs={"min.insync.replicas": "2"})
    set_row(image, "own", isr=ids(1), elr=ids(2))
    result = carry_out(image, AlterClusterSettings(values={"min.insync.replicas": "1"}))
    assert elrs(image) == [(), (2, 3)]
    assert image.partition("own", 0).elr == (2,)
    assert [c.after.name for c in result.delta.changed] == ["t"]


def test_proposal_made_under_the_old_minimum_makes_no_member_eligible() -> None:
    image = three()
    command = proposal(image, 1)
    wanted = replace(change(image, 1), isr=ids(2))
    carry_out(image, AlterClusterSettings(values={"min.insync.replicas": "1"}))
    assert carry_out(image, command).partition().elr == ()
    changed(image, wanted)
    assert image.partition("t", 1).elr == ()


def test_smaller_replication_factor_lowers_the_default_minimum_and_ends_eligibility() -> None:
    image = three()
    set_row(image, "t", 1, isr=ids(2), elr=ids(3))
    changed(image, replace(change(image), replicas=ids(1, 2)))
    assert image.topic("t").replication_factor == 2
    assert elrs(image) == [(), ()]


@pytest.mark.parametrize("partition", [0, 1])
def test_rows_taken_before_stay_as_they_were(partition: int) -> None:
    image = three()
    row: PartitionImage = image.partition("t", partition)
    leader = row.leader
    changed(image, replace(change(image, partition), leader=BrokerId(3)))
    assert row.leader == leader
    assert image.partition("t", partition).leader == 3
