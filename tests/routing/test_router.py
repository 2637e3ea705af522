"""Any node serves any request: local calls, forwarded calls, retries."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from raftlog.record.errors import (
    COORDINATOR_LOADING,
    MAYBE_WRITTEN,
    NO_LEADER,
    NOT_ENOUGH_REPLICAS,
    NOT_READY,
    OUT_OF_ORDER_SEQUENCE,
    OVERLOADED,
    RETRIABLE,
    STORAGE_FAILED,
    UNKNOWN_PARTITION,
    UNKNOWN_PRODUCER_ID,
    UNKNOWN_TOPIC,
    ErrorEntry,
    LogError,
)
from raftlog.record.types import BrokerId, LeaderEpoch, Offset
from raftlog.replication.partition import Acks, Isolation
from raftlog.routing.handle import RETRY_S_MAX
from raftlog.routing.router import WAIT_LOG_INTERVAL_S

from .forwarding_world import MAX_MESSAGE_BYTES, TOPIC_ID, Cluster, Node, batch, simulate


def now() -> float:
    return asyncio.get_running_loop().time()


async def refusal_of(node: Node, *, producer_id: int = -1, timeout_s: float = 5.0) -> LogError:
    with pytest.raises(LogError) as caught:
        sequence = 0 if producer_id >= 0 else -1
        await node.append(
            batch(b"x", producer_id=producer_id, sequence=sequence), timeout_s=timeout_s
        )
    return caught.value


def test_what_this_node_leads_is_done_here() -> None:
    async def test(cluster: Cluster) -> None:
        leader = cluster.nodes[1]
        (result,) = await leader.append(batch(b"a", b"b"))
        assert (result.base_offset, result.last_offset) == (0, 1)
        assert leader.mine.calls == ["append ALL 5.0"]
        assert (await leader.read()).next_offset == 2
        assert leader.find().max_message_bytes == MAX_MESSAGE_BYTES
        assert cluster.world.network.connections == 0

    simulate(test)


def test_what_another_node_leads_is_passed_on() -> None:
    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[2], cluster.nodes[1]
        first, second = batch(b"a", b"b"), batch(b"c")
        results = await node.append(first, second)
        assert [(one.base_offset, one.last_offset) for one in results] == [(0, 1), (2, 2)]
        fetched = await node.read()
        assert bytes(fetched.data) == bytes(first.data) + bytes(second.data)
        assert (fetched.next_offset, fetched.high_watermark, fetched.log_start_offset) == (3, 3, 0)
        access = node.find()
        assert await node.run(access.bounds()) == (0, 3)
        assert await node.run(access.offset_for_timestamp(5)) == (7, 99)
        assert await node.run(access.offset_for_timestamp(500)) is None
        assert await node.run(access.delete_records(Offset(2))) == 2
        assert await node.run(access.delete_records(Offset(-1))) == 3
        assert access.max_message_bytes == MAX_MESSAGE_BYTES
        assert leader.mine.calls[0] == "append ALL 5.0"
        assert not node.mine.calls
        assert cluster.world.network.connections == 1

    simulate(test)


def test_repeats_and_refusals_come_as_they_are() -> None:
    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[2], cluster.nodes[1]
        one = batch(b"a", producer_id=5, sequence=0)
        await node.append(one)
        (again,) = await node.append(one)
        assert again.duplicate
        leader.mine.errors.append(LogError(NOT_ENOUGH_REPLICAS, "only one"))
        error = await refusal_of(node)
        assert (error.entry, error.message) == (NOT_ENOUGH_REPLICAS, "only one")
        assert len(leader.mine.calls) == 3

    simulate(test)


def test_a_damaged_batch_is_refused_by_the_leader() -> None:
    async def test(cluster: Cluster) -> None:
        good = batch(b"abc")
        bad = type(good)(good.header, memoryview(bytes(good.data)[:-1] + b"!"))
        with pytest.raises(LogError, match="CRC"):
            await cluster.nodes[2].append(bad)
        assert not cluster.records.batches

    simulate(test)


def test_unknown_topics_and_partitions_are_refused_at_once() -> None:
    async def test(cluster: Cluster) -> None:
        partitions = cluster.nodes[2].partitions
        with pytest.raises(LogError) as caught:
            partitions.find("nope", 0)
        assert caught.value.entry is UNKNOWN_TOPIC
        with pytest.raises(LogError) as caught:
            partitions.find("t", 1)
        assert caught.value.entry is UNKNOWN_PARTITION

    simulate(test)


def test_a_request_waits_for_the_leader_to_be_elected_and_goes_to_it_at_once() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        cluster.lead(-1, 2)
        appending = asyncio.ensure_future(node.append(batch(b"a")))
        await asyncio.sleep(1.0)
        assert not appending.done()
        cluster.lead(3, 3)
        began = now()
        await appending
        # By the metadata: the pauses between retries have grown to a quarter of a second.
        assert now() - began < 0.05
        assert cluster.nodes[3].mine.calls == ["append ALL 4.0"]

    simulate(test)


def test_long_waits_for_a_leader_are_logged_with_the_reason_and_not_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "raftlog.routing.router")

    async def test(cluster: Cluster) -> None:
        cluster.lead(-1, 2)
        await refusal_of(cluster.nodes[2], timeout_s=1.0)
        assert not caplog.messages
        waits = [refusal_of(cluster.nodes[2], timeout_s=4.0) for _ in range(3)]
        error, *_ = await asyncio.gather(*waits)
        (line,) = caplog.messages
        assert error.message in line
        assert line.startswith("requests to t-0 wait for its leader: ")
        await asyncio.sleep(WAIT_LOG_INTERVAL_S)
        await refusal_of(cluster.nodes[2], timeout_s=4.0)
        assert len(caplog.messages) == 2

    simulate(test)


def test_the_wait_for_a_leader_is_bounded() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.lead(-1, 2)
        for timeout_s, bound_s in ((1.0, 1.0), (60.0, RETRY_S_MAX)):
            began = now()
            error = await refusal_of(cluster.nodes[2], timeout_s=timeout_s)
            assert error.entry is NO_LEADER
            assert bound_s <= now() - began < bound_s + 0.1
        assert not cluster.nodes[2].partitions._watches

    simulate(test)


def test_a_leader_that_does_not_know_yet_is_asked_again() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.lead(3, 2, known_to=(2,))
        appending = asyncio.ensure_future(cluster.nodes[2].append(batch(b"a")))
        await asyncio.sleep(0.2)
        cluster.lead(3, 2, known_to=(3,))
        began = now()
        await appending
        assert now() - began < 0.3
        assert len(cluster.records.batches) == 1

    simulate(test)


def test_a_new_leader_is_asked_again_after_short_pauses() -> None:
    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[2], cluster.nodes[3]
        cluster.lead(-1, 2)
        appending = asyncio.ensure_future(node.append(batch(b"a")))
        # The pauses between retries have grown to a quarter of a second.
        await asyncio.sleep(1.0)
        leader.mine.errors = [LogError(COORDINATOR_LOADING, "not yet")]
        cluster.lead(3, 3)
        began = now()
        await appending
        assert now() - began < 0.1

    simulate(test)


def test_a_node_that_stops_leading_passes_on_what_it_has_refused() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[1]
        node.mine.errors.append(LogError(NO_LEADER, "no lease"))
        appending = asyncio.ensure_future(node.append(batch(b"a")))
        await asyncio.sleep(0.005)
        cluster.lead(3, 2)
        await appending
        assert node.mine.calls == ["append ALL 5.0"]
        assert len(cluster.nodes[3].mine.calls) == 1

    simulate(test)


@pytest.mark.parametrize("number", [1, 2])
def test_an_append_waits_while_its_leader_hands_the_partition_over(number: int) -> None:
    async def test(cluster: Cluster) -> None:
        leader = cluster.nodes[1]
        leader.gate.close()
        appending = asyncio.ensure_future(cluster.nodes[number].append(batch(b"a")))
        await asyncio.sleep(0.1)
        assert not appending.done()
        cluster.lead(3, 2)
        await appending
        assert leader.mine.calls == []
        assert len(cluster.nodes[3].mine.calls) == 1

    simulate(test)


def test_a_leader_without_a_successor_takes_appends_again() -> None:
    async def test(cluster: Cluster) -> None:
        leader = cluster.nodes[1]
        leader.gate.close()
        appending = asyncio.ensure_future(leader.append(batch(b"a")))
        await asyncio.sleep(0.1)
        leader.gate.reopen()
        await appending
        assert len(leader.mine.calls) == 1

    simulate(test)


def test_a_leader_that_refuses_for_a_moment_is_asked_again_here() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[1]
        node.mine.errors += [LogError(NO_LEADER, "no lease"), LogError(NOT_READY, "opening")]
        await node.append(batch(b"a"))
        assert len(node.mine.calls) == 3

    simulate(test)


def test_what_may_be_written_is_not_repeated_without_a_producer_id() -> None:
    async def test(cluster: Cluster) -> None:
        for number in (1, 2):
            cluster.nodes[1].mine.late_errors.append(LogError(RETRIABLE, "in doubt"))
            error = await refusal_of(cluster.nodes[number])
            assert (error.entry, error.message) == (RETRIABLE, "in doubt")
        assert len(cluster.records.batches) == 2

    simulate(test)


def test_what_may_be_written_is_repeated_with_a_producer_id_and_recognised() -> None:
    async def test(cluster: Cluster) -> None:
        for number in (1, 2):
            cluster.nodes[1].mine.late_errors.append(LogError(RETRIABLE, "in doubt"))
            one = batch(b"a", producer_id=number, sequence=0)
            (result,) = await cluster.nodes[number].append(one)
            assert result.duplicate
        assert len(cluster.records.batches) == 2

    simulate(test)


def test_a_refusal_of_a_repeat_does_not_make_the_first_try_certain() -> None:
    async def test(cluster: Cluster) -> None:
        leader = cluster.nodes[1]
        leader.mine.late_errors.append(LogError(RETRIABLE, "in doubt"))
        appending = asyncio.ensure_future(refusal_of(cluster.nodes[2], producer_id=1))
        await asyncio.sleep(0.01)
        leader.mine.errors.append(LogError(OUT_OF_ORDER_SEQUENCE, "forgotten"))
        error = await appending
        assert error.entry is RETRIABLE
        assert error.message.startswith(MAYBE_WRITTEN)
        assert "forgotten" in error.message

    simulate(test)


def test_a_leader_whose_storage_failed_is_not_the_last_word_on_a_replicated_partition() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.nodes[1].mine.errors.append(LogError(STORAGE_FAILED, "broken"))
        reading = asyncio.ensure_future(cluster.nodes[2].read())
        await asyncio.sleep(0.01)
        cluster.lead(3, 2)
        await reading
        cluster.nodes[3].mine.errors.append(LogError(STORAGE_FAILED, "broken"))
        # The writer gets an error: a retry could not recognise records already written.
        assert (await refusal_of(cluster.nodes[2])).entry is STORAGE_FAILED

    simulate(test)


def test_a_leader_whose_storage_failed_is_the_last_word_if_nobody_else_has_the_records() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        topic = node.replicas.image.topics_by_id[TOPIC_ID]
        row = msgspec.structs.replace(topic.partitions[0], replicas=(BrokerId(1),))
        node.replicas.image.topics_by_id[TOPIC_ID] = msgspec.structs.replace(
            topic, partitions=(row,)
        )
        cluster.nodes[1].mine.errors.append(LogError(STORAGE_FAILED, "broken"))
        began = now()
        with pytest.raises(LogError, match="broken"):
            await node.read()
        assert now() - began < 0.1

    simulate(test)


def test_deleting_all_records_is_not_repeated_for_more_would_be_deleted() -> None:
    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[2], cluster.nodes[1]
        for before, calls in ((-1, 1), (3, 2)):
            leader.mine.calls.clear()
            leader.mine.errors.append(LogError(RETRIABLE, "not all replicas have"))
            try:
                await node.run(node.find().delete_records(Offset(before)))
            except LogError as error:
                assert error.entry is RETRIABLE
            assert len(leader.mine.calls) == calls

    simulate(test)


def test_a_leader_that_hangs_is_left_once_there_is_another() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.nodes[2].read()
        cluster.world.pause(1)
        reading = asyncio.ensure_future(cluster.nodes[2].read())
        repeatable = asyncio.ensure_future(
            cluster.nodes[2].append(batch(b"a", producer_id=1, sequence=0), timeout_s=30.0)
        )
        outcome_unknown_error = asyncio.ensure_future(refusal_of(cluster.nodes[2], timeout_s=30.0))
        await asyncio.sleep(1.0)
        assert not (reading.done() or repeatable.done() or outcome_unknown_error.done())
        began = now()
        cluster.lead(3, 2, known_to=(2, 3))
        await reading
        await repeatable
        told = await outcome_unknown_error
        assert told.entry is RETRIABLE
        assert told.message.startswith(MAYBE_WRITTEN)
        assert now() - began < 0.5
        assert not cluster.nodes[2].partitions._watches

    simulate(test)


def test_a_leader_that_has_handed_over_still_answers_what_it_was_asked() -> None:
    async def test(cluster: Cluster) -> None:
        leader = cluster.nodes[1]
        leader.mine.after = asyncio.Event()
        appending = asyncio.ensure_future(cluster.nodes[2].append(batch(b"a")))
        await asyncio.sleep(0.1)
        cluster.lead(3, 2)
        await asyncio.sleep(0.1)
        leader.mine.after.set()
        assert (await appending)[0].base_offset == 0

    simulate(test)


def test_a_deleted_topic_ends_the_wait() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        cluster.lead(-1, 2)
        appending = asyncio.ensure_future(refusal_of(node))
        await asyncio.sleep(0.5)
        image = node.replicas.image
        del image.topics_by_id[TOPIC_ID], image.topics_by_name["t"]
        node.process.context.run(node.partitions.on_metadata_applied)
        began = now()
        assert (await appending).entry is UNKNOWN_TOPIC
        assert now() - began < 0.05

    simulate(test)


def test_a_deleted_topic_ends_what_was_asked_of_its_leader() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        cluster.nodes[1].mine.gate = asyncio.Event()
        appending = asyncio.ensure_future(refusal_of(node, timeout_s=30.0))
        await asyncio.sleep(0.5)
        image = node.replicas.image
        del image.topics_by_id[TOPIC_ID], image.topics_by_name["t"]
        node.process.context.run(node.partitions.on_metadata_applied)
        began = now()
        assert (await appending).entry is RETRIABLE
        assert now() - began < 1.0

    simulate(test)


# Waiting


def test_a_wait_elsewhere_ends_with_the_records_there() -> None:
    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[2], cluster.nodes[1]
        access = node.find()
        began = now()
        waiting = asyncio.ensure_future(
            node.run(node.partitions.wait_for_data([(access, Offset(0))], 30.0))
        )
        await asyncio.sleep(1.0)
        assert not waiting.done()
        leader.replicas.wake.set()
        await waiting
        assert now() - began < 1.1
        (left_s,) = leader.replicas.waits
        assert 29.9 < left_s <= 30.0

    simulate(test)


def test_a_wait_elsewhere_ends_with_its_time_and_is_told_to_the_other_side() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        began = now()
        await node.run(node.partitions.wait_for_data([(node.find(), Offset(0))], 2.0))
        assert 2.0 <= now() - began < 2.1

    simulate(test)


def test_a_wait_ends_when_the_leader_moves_so_that_the_reader_finds_out() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        waiting = asyncio.ensure_future(
            node.run(node.partitions.wait_for_data([(node.find(), Offset(0))], 30.0))
        )
        await asyncio.sleep(0.5)
        cluster.lead(3, 2)
        began = now()
        await waiting
        assert now() - began < 1.0

    simulate(test)


def test_a_wait_without_a_leader_does_not_return_at_once_for_ever() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.lead(-1, 2)
        node = cluster.nodes[2]
        began = now()
        await node.run(node.partitions.wait_for_data([(node.find(), Offset(0))], 30.0))
        assert 0.1 < now() - began < 0.5

    simulate(test)


def test_a_wait_here_and_there_ends_with_the_first() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        here, there = node.find(any_replica=True), node.find()
        wants = ((here, Offset(0)), (there, Offset(0)))
        for who in (1, 2):
            waiting = asyncio.ensure_future(
                node.run(node.partitions.wait_for_data(wants, timeout_s=30.0))
            )
            await asyncio.sleep(0.5)
            assert not waiting.done()
            cluster.nodes[who].replicas.wake.set()
            await asyncio.sleep(0.1)
            assert waiting.done()
            cluster.nodes[who].replicas.wake.clear()

    simulate(test)


def test_a_wait_that_there_is_no_room_for_says_so() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]

        def refuse(*_: object, **__: object) -> None:
            raise LogError(OVERLOADED)

        node.forwarder.call = refuse  # type: ignore[assignment, method-assign]
        with pytest.raises(LogError) as caught:
            await node.run(node.partitions.wait_for_data([(node.find(), Offset(0))], 30.0))
        assert caught.value.entry is OVERLOADED

    simulate(test)


def test_what_led_here_once_is_asked_elsewhere_without_a_pause() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[1]
        access = node.find()
        cluster.lead(3, 2)
        node.mine.errors += [LogError(NO_LEADER, "not any more")] * 3
        began = now()
        for _ in range(3):
            await node.run(access.read(Offset(0), max_bytes=100))
        assert now() - began < 0.02 + 0.015, "a tail reads so for ever"
        waiting = asyncio.ensure_future(
            node.run(node.partitions.wait_for_data([(access, Offset(0))], 30.0))
        )
        await asyncio.sleep(0.1)
        cluster.nodes[3].replicas.wake.set()
        await asyncio.sleep(0.1)
        assert waiting.done()
        cluster.lead(1, 3)
        await node.run(node.partitions.wait_for_data([(access, Offset(0))], 1.0))
        assert node.replicas.waits == [1.0], "it leads again"
        assert cluster.world.network.connections == 1

    simulate(test)


# Reading from a follower


def test_a_follower_serves_what_it_knows_to_be_committed() -> None:
    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[2], cluster.nodes[1]
        await leader.append(batch(b"a"))
        await leader.append(batch(b"b"))
        node.mine.known_end = 1
        fetched = await node.read(any_replica=True)
        assert (fetched.next_offset, fetched.high_watermark) == (1, 1)
        assert node.mine.calls == ["read 0 1048576 None any"]
        assert await node.run(node.find(any_replica=True).bounds()) == (0, 1)
        # At the end the read is local, beyond the end it goes to the leader.
        assert not (await node.read(1, any_replica=True)).data
        assert (await node.read(2, any_replica=True)).next_offset == 2
        assert leader.mine.calls[-1] == "read 2 1048576 None"

    simulate(test)


def test_a_follower_that_cannot_read_leaves_it_to_the_leader() -> None:
    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[2], cluster.nodes[1]
        await leader.append(batch(b"a"))
        node.mine.errors.append(LogError(STORAGE_FAILED))
        assert (await node.read(any_replica=True)).next_offset == 1
        node.replicas.has_replica = False
        assert (await node.read(any_replica=True)).next_offset == 1
        assert leader.mine.calls.count("read 0 1048576 None") == 2

    simulate(test)


def test_a_reader_waits_at_a_follower_for_what_comes_there() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        waiting = asyncio.ensure_future(
            node.run(
                node.partitions.wait_for_data([(node.find(any_replica=True), Offset(0))], 30.0)
            )
        )
        await asyncio.sleep(0.1)
        node.replicas.wake.set()
        await asyncio.sleep(0.1)
        assert waiting.done()
        assert not cluster.nodes[1].replicas.waits

    simulate(test)


def test_acks_travel() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[2]
        access = node.find()
        await node.run(access.append([batch(b"a")], acks=Acks.LEADER, timeout_s=1.0))
        assert cluster.nodes[1].mine.calls == ["append LEADER 1.0"]

    simulate(test)


def test_pipelined_appends_of_a_producer_keep_their_order_over_retries() -> None:
    """The leader is not ready for the first append, and would take the second."""

    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[2], cluster.nodes[1]
        leader.mine.errors = [LogError(NOT_READY, "not yet")]
        sent = []
        for number in range(3):
            one = batch(b"%d" % number, producer_id=7, sequence=number)
            sent.append(asyncio.create_task(node.append(one)))
            await asyncio.sleep(0.001)
        results = [(await one)[0].base_offset for one in sent]
        assert results == [0, 1, 2]

    simulate(test)


def test_an_append_that_was_refused_here_is_not_overtaken_at_the_next_leader() -> None:
    """The lead moves while the first one waits here: the second one would be forwarded at once."""

    async def test(cluster: Cluster) -> None:
        old, new = cluster.nodes[1], cluster.nodes[2]
        old.mine.gate = asyncio.Event()
        old.mine.errors = [LogError(NO_LEADER, "moved")]
        first = asyncio.create_task(old.append(batch(b"0", producer_id=7, sequence=0)))
        await asyncio.sleep(0.01)
        cluster.lead(2, 2)
        second = asyncio.create_task(old.append(batch(b"1", producer_id=7, sequence=1)))
        other = await old.append(batch(b"x", producer_id=8, sequence=0))
        assert other[0].base_offset == 0
        assert len(new.mine.calls) == 1
        old.mine.gate.set()
        assert (await first)[0].base_offset == 1
        assert (await second)[0].base_offset == 2
        assert not old.partitions.routed_appends and not old.partitions.appends

    simulate(test)


@pytest.mark.parametrize("entry", [OUT_OF_ORDER_SEQUENCE, UNKNOWN_PRODUCER_ID])
def test_a_gap_before_a_refused_append_is_no_answer_to_the_next_one(entry: ErrorEntry) -> None:
    """Both begin here: the first one is refused, and succeeds by its retry."""

    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[1]
        node.mine.gate = asyncio.Event()
        node.mine.errors = [LogError(NOT_READY, "not yet"), LogError(entry, "a gap")]
        sent = []
        for number in range(2):
            one = batch(b"%d" % number, producer_id=7, sequence=number)
            sent.append(asyncio.create_task(node.append(one)))
            await asyncio.sleep(0.001)
        node.mine.gate.set()
        assert [(await one)[0].base_offset for one in sent] == [0, 1]
        # Without an earlier one it is the answer.
        node.mine.errors = [LogError(entry, "a gap")]
        with pytest.raises(LogError) as refused:
            await node.append(batch(b"2", producer_id=7, sequence=5))
        assert refused.value.entry is entry

    simulate(test)


def test_local_appends_of_a_producer_do_not_wait_for_each_other() -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[1]
        node.mine.after = asyncio.Event()
        sent = []
        for number in range(3):
            one = batch(b"%d" % number, producer_id=7, sequence=number)
            sent.append(asyncio.create_task(node.append(one)))
        await asyncio.sleep(0.01)
        assert len(cluster.records.batches) == 3
        node.mine.after.set()
        assert [(await one)[0].base_offset for one in sent] == [0, 1, 2]

    simulate(test)


@pytest.mark.parametrize("number", [1, 2])
def test_lookups_at_a_leader_are_forwarded(number: int) -> None:
    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[number]

        async def look_up() -> None:
            handle = node.find()
            assert await handle.newest_record(Isolation.READ_COMMITTED) is None
            await handle.append([batch(b"a"), batch(b"b")], acks=Acks.ALL, timeout_s=5.0)
            assert await handle.newest_record(Isolation.READ_UNCOMMITTED) == (1, 99)
            assert await handle.epoch_end(LeaderEpoch(7)) == (3, 2)
            assert await handle.epoch_end(LeaderEpoch(2)) is None
            # More than a head has room for.
            found = await handle.producers(10_000)
            assert len(found) == 10_000
            assert found == cluster.nodes[1].mine.producers(10_000)

        await node.run(look_up())

    simulate(test)


def test_an_append_behind_one_that_does_not_end_was_certainly_not_written() -> None:
    async def test(cluster: Cluster) -> None:
        node, leader = cluster.nodes[2], cluster.nodes[1]
        leader.mine.gate = asyncio.Event()
        first = asyncio.create_task(node.append(batch(b"0", producer_id=7, sequence=0)))
        await asyncio.sleep(0.01)
        error = await refusal_of(node, producer_id=7, timeout_s=1.0)
        assert error.entry is NOT_READY
        assert not error.entry.outcome_unknown
        other = await refusal_of(node, producer_id=8, timeout_s=1.0)
        assert other.entry.outcome_unknown  # it was sent
        leader.mine.gate.set()
        assert (await first)[0].base_offset == 0

    simulate(test)
