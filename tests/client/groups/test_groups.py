"""Consumers of a group against an honest coordinator: sharing, handing over, committing, losing."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Collection
from typing import Any

import pytest
from raftlog_client import (
    CommitFailedError,
    ConnectionLostError,
    Consumer,
    IllegalStateError,
    OffsetAndMetadata,
    RaftlogClientError,
    RebalanceListener,
    ServerError,
    TopicNotFoundError,
    TopicPartition,
)

from raftlog.record.errors import INVALID_BODY, OVERLOADED, STALE_MEMBER_EPOCH
from tests.client.fake_groups import FakeGroup, FakeOffset
from tests.client.fake_node import FakeCluster, Fault
from tests.client.test_consumer import append

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
HEARTBEAT = "/v1/groups/{group}/heartbeat"
COMMIT = "/v1/groups/{group}/offsets"
COMMITTED = "/v1/groups/{group}/committed"


def member(cluster: FakeCluster, *topics: str, **settings: Any) -> Consumer[Any, Any]:
    defaults = {
        "group_id": "g",
        "retry_backoff_ms": 1,
        "retry_backoff_max_ms": 5,
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 20,
        "session_timeout_ms": 3_000,
    }
    return Consumer(
        *(topics or ("t",)), bootstrap_servers=cluster.bootstrap, **(defaults | settings)
    )


def group(cluster: FakeCluster) -> FakeGroup:
    return cluster.coordinator.group("g")


def committed(cluster: FakeCluster) -> dict[TopicPartition, int]:
    return {TopicPartition(*pair): found.offset for pair, found in group(cluster).offsets.items()}


def fill(cluster: FakeCluster, count: int, topic: str = "t") -> None:
    """Records `count` to each partition, one batch each."""
    for partition in cluster.topics[topic].partitions:
        for number in range(count):
            append(partition, b"%d-%d" % (partition.partition, number))


async def take(reader: Consumer[Any, Any], count: int) -> list[bytes | None]:
    async with asyncio.timeout(30):
        return [(await reader.getone()).value for _ in range(count)]


async def read_until(condition: Any, *readers: Consumer[Any, Any]) -> list[bytes | None]:
    """Read with all readers until the condition holds; the values that were read."""
    values: list[bytes | None] = []
    async with asyncio.timeout(30):
        while not condition():
            for reader in readers:
                for records in (await reader.getmany(timeout_ms=5)).values():
                    values += [record.value for record in records]
            await asyncio.sleep(0)
    return values


class Log(RebalanceListener):
    def __init__(self) -> None:
        self.events: list[tuple[str, frozenset[TopicPartition]]] = []

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self.events.append(("revoked", frozenset(revoked)))

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self.events.append(("assigned", frozenset(assigned)))

    async def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self.events.append(("lost", frozenset(lost)))


async def test_a_lone_member_reads_everything_and_commits_when_it_closes(
    cluster: FakeCluster,
) -> None:
    fill(cluster, 4)
    async with member(cluster) as reader:
        assert reader.assignment() == {P0, P1, P2}
        assert len(await take(reader, 12)) == 12
    assert committed(cluster) == {P0: 4, P1: 4, P2: 4}
    assert not group(cluster).members
    fill(cluster, 1)
    async with member(cluster) as reader:
        assert sorted(await take(reader, 3), key=str) == [b"0-0", b"1-0", b"2-0"]


async def test_members_share_partitions_and_every_record_is_read_once(
    cluster: FakeCluster,
) -> None:
    fill(cluster, 50)
    values: list[bytes | None] = []
    settings = {"max_poll_records": 7, "auto_commit_interval_ms": 50}
    async with member(cluster, **settings) as first:
        values += await take(first, 10)
        async with member(cluster, **settings) as second:
            values += await read_until(
                lambda: first.assignment() and second.assignment(), first, second
            )
            assert first.assignment() | second.assignment() == {P0, P1, P2}
            assert not first.assignment() & second.assignment()
            values += await read_until(lambda: sum(committed(cluster).values()) > 60, first, second)
        values += await read_until(lambda: len(first.assignment()) == 3, first)
        async with asyncio.timeout(30):
            while len(values) < 150:
                values += await take(first, 1)
    assert sorted(values, key=str) == sorted(
        (b"%d-%d" % (p, n) for p in range(3) for n in range(50)), key=str
    )


async def test_partitions_that_need_not_move_never_stop(cluster: FakeCluster) -> None:
    log, other = Log(), Log()
    async with member(cluster) as first:
        await first.subscribe(["t"], listener=log)
        async with member(cluster) as second:
            await second.subscribe(["t"], listener=other)
            await read_until(lambda: len(second.assignment()) == 1, first, second)
            moved = second.assignment()
    assert log.events[0] == ("revoked", frozenset(moved))
    assert len(log.events) == 2
    assert other.events[0] == ("assigned", frozenset(moved))


async def test_no_record_of_a_revoked_partition_is_given_out_and_its_commit_is_exact(
    cluster: FakeCluster,
) -> None:
    fill(cluster, 2_000)
    async with member(cluster, auto_commit_interval_ms=60_000) as first:
        seen: dict[TopicPartition, int] = {}
        second = member(cluster)
        joining: asyncio.Task[None] | None = None
        async with asyncio.timeout(30):
            async for record in first:
                assert record.topic_partition in first.assignment()
                seen[record.topic_partition] = record.offset + 1
                if sum(seen.values()) == 5:
                    joining = asyncio.ensure_future(second.start())
                    while len(group(cluster).members) < 2 or not any(  # noqa: ASYNC110
                        one.pending for one in group(cluster).members.values()
                    ):
                        await asyncio.sleep(0.01)
                if joining is not None:
                    # The records last until the heartbeat's answer is there.
                    await asyncio.sleep(0.001)
                    if len(first.assignment()) < 3:
                        break
        assert joining is not None
        await joining
        await read_until(second.assignment, first, second)
        [moved] = second.assignment()
        assert committed(cluster).get(moved, 0) == seen.get(moved, 0)
        await second.close()


async def test_records_in_process_are_not_committed_by_the_timer(single: FakeCluster) -> None:
    fill(single, 6)
    async with member(single, auto_commit_interval_ms=10, max_poll_records=2) as reader:
        taken = [await reader.getmany(timeout_ms=30_000) for _ in range(2)]
        assert [len(one[P0]) for one in taken] == [2, 2]
        await _commits(single, 2)
        iterator = aiter(reader)
        assert (await anext(iterator)).offset == 4
        await _commits(single, 4)
        assert (await anext(iterator)).offset == 5
        await _commits(single, 5)
        reader.pause(P0)
        await _commits(single, 5)


async def _commits(cluster: FakeCluster, offset: int) -> None:
    """Wait for an automatic commit of exactly this offset, and a few intervals more."""
    async with asyncio.timeout(30):
        while committed(cluster) != {P0: offset}:  # noqa: ASYNC110 (plain data)
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.03)
    assert committed(cluster) == {P0: offset}


@pytest.mark.parametrize("fails", [False, True])
async def test_a_failing_block_does_not_commit_the_record_in_process(
    single: FakeCluster, fails: bool
) -> None:
    fill(single, 3)

    async def work() -> None:
        async with member(single) as reader:
            async for record in reader:
                if record.offset == 1:
                    if fails:
                        raise ZeroDivisionError
                    break

    if fails:
        with pytest.raises(ZeroDivisionError):
            await work()
    else:
        await work()
    assert committed(single) == {P0: 1 if fails else 2}


async def test_without_automatic_commits_only_commit_commits(single: FakeCluster) -> None:
    fill(single, 5)
    async with member(single, auto_commit_interval_ms=None) as reader:
        await take(reader, 3)
        await reader.commit()
        assert await reader.committed([P0]) == {P0: OffsetAndMetadata(3)}
        await reader.commit({P0: OffsetAndMetadata(2, "note")})
        assert await reader.committed([P0]) == {P0: OffsetAndMetadata(2, "note")}
        await take(reader, 1)
        await reader.seek_to_committed()
        assert await take(reader, 1) == [b"0-2"]
    assert committed(single) == {P0: 2}


@pytest.mark.parametrize(
    ("path", "faults"),
    [
        (HEARTBEAT, [Fault(drop_before=True), Fault(drop_after=True)]),
        (HEARTBEAT, [Fault(), Fault(drop_after=True), Fault(error=OVERLOADED)]),
        (HEARTBEAT, [Fault(delay_s=1.0)]),
        (COMMIT, [Fault(drop_after=True), Fault(error=OVERLOADED)]),
        (COMMIT, [Fault(error=STALE_MEMBER_EPOCH)]),
        (COMMITTED, [Fault(drop_before=True), Fault(error=OVERLOADED)]),
    ],
)
async def test_faults_that_pass_are_survived(
    cluster: FakeCluster, path: str, faults: list[Fault]
) -> None:
    fill(cluster, 2)
    cluster.fail(path, *faults)
    async with member(cluster) as reader:
        assert len(await take(reader, 6)) == 6
        await reader.commit()
    assert committed(cluster) == {P0: 2, P1: 2, P2: 2}


async def test_a_lost_session_is_reported_and_the_member_joins_again(
    single: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fill(single, 4)
    log = Log()
    async with member(single, auto_commit_interval_ms=None) as reader:
        await reader.subscribe(["t"], listener=log)
        await take(reader, 2)
        await reader.commit()
        await take(reader, 1)
        with caplog.at_level(logging.WARNING, logger="raftlog_client"):
            group(single).members.clear()
            with pytest.raises(CommitFailedError, match="joins again"):
                await reader.commit()
            async with asyncio.timeout(30):
                while await take(reader, 1) != [b"0-2"]:
                    pass
        await reader.commit()
        assert committed(single) == {P0: 3}
    assert ("lost", {P0}) in log.events
    assert log.events.index(("lost", frozenset({P0}))) < len(log.events) - 1
    assert "session lost" in caplog.text
    assert "1 partitions are lost" in caplog.text


async def test_a_busy_event_loop_is_survived_within_the_session_and_measured_beyond(
    single: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fill(single, 4)
    async with member(single, session_timeout_ms=500) as reader:
        await take(reader, 1)
        for _ in range(3):
            count = single.requests[HEARTBEAT]
            time.sleep(0.3)  # noqa: ASYNC251 (the very thing under test)
            await take(reader, 1)
            await single.wait_for_requests(HEARTBEAT, count + 2)
        assert len(group(single).members) == 1
        assert "session lost" not in caplog.text
        time.sleep(0.8)  # noqa: ASYNC251
        append(single.topics["t"].partitions[0], b"last")
        with caplog.at_level(logging.WARNING, logger="raftlog_client"):
            assert (await take(reader, 1))[0] is not None
            await read_until(lambda: "session lost" in caplog.text, reader)
    assert re.search(r"stalled for up to 0\.[78] s", caplog.text)


async def test_a_stuck_application_leaves_and_comes_back_with_its_next_read(
    single: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fill(single, 4)
    log = Log()
    async with member(single, max_poll_interval_ms=200, auto_commit_interval_ms=None) as reader:
        await reader.subscribe(["t"], listener=log)
        await take(reader, 1)
        await reader.commit()
        with caplog.at_level(logging.WARNING, logger="raftlog_client"):
            async with asyncio.timeout(30):
                while group(single).members:  # noqa: ASYNC110 (plain data)
                    await asyncio.sleep(0.01)
        assert "max_poll_interval_ms" in caplog.text
        with pytest.raises(CommitFailedError):
            await reader.commit({P0: 1})
        assert await take(reader, 1) == [b"0-1"]
        assert [name for name, _ in log.events[-2:]] == ["lost", "assigned"]


async def test_waiting_for_records_is_not_being_stuck(single: FakeCluster) -> None:
    async with member(single, max_poll_interval_ms=100) as reader:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await reader.getone()
        assert group(single).members


async def test_a_cluster_that_is_gone_is_raised_and_never_waited_for(
    single: FakeCluster,
) -> None:
    async with member(single, request_timeout_ms=300, session_timeout_ms=600) as reader:
        await single.nodes[0].stop()
        for _ in range(2):
            with pytest.raises(ConnectionLostError, match="no coordinator has answered"):
                async with asyncio.timeout(30):
                    await reader.getone()
        await single.nodes[0].start()
        fill(single, 1)
        async with asyncio.timeout(30):
            while True:
                try:
                    assert (await reader.getone()).value == b"0-0"
                    break
                except ConnectionLostError:
                    continue


async def test_a_final_refusal_is_raised(single: FakeCluster) -> None:
    single.fail(HEARTBEAT, Fault(error=INVALID_BODY))
    with pytest.raises(ServerError, match="not valid"):
        async with member(single):
            pass
    with pytest.raises(TopicNotFoundError):
        async with member(single, "nothing"):
            pass


async def test_a_static_member_comes_back_to_its_partitions(cluster: FakeCluster) -> None:
    async with member(cluster) as other:
        async with member(cluster, group_instance_id="i") as reader:
            await read_until(reader.assignment, other, reader)
            before = reader.assignment()
        async with member(cluster, group_instance_id="i") as reader:
            await read_until(reader.assignment, other, reader)
            assert reader.assignment() == before
        assert len(group(cluster).members) == 2


async def test_a_static_member_that_was_killed_waits_for_its_own_session(
    single: FakeCluster,
) -> None:
    killed = member(single, group_instance_id="i", session_timeout_ms=300)
    await killed.start()
    for task in killed._group._membership._tasks:  # type: ignore[union-attr]  # as a kill does
        task.cancel()
    async with member(single, group_instance_id="i", session_timeout_ms=300) as reader:
        assert reader.assignment() == {P0}
    await killed.close()


async def test_a_seek_in_the_listener_takes_the_place_of_the_committed_offset(
    single: FakeCluster,
) -> None:
    fill(single, 4)
    group(single).offsets["t", 0] = FakeOffset(1)

    class Seeking(RebalanceListener):
        def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
            for one in assigned:
                reader.seek(one, 3)

    reader = member(single)
    reader._listener = Seeking()
    async with reader:
        assert await take(reader, 1) == [b"0-3"]


async def test_a_failing_listener_is_raised_and_the_partition_is_given_up_all_the_same(
    cluster: FakeCluster,
) -> None:
    class Failing(RebalanceListener):
        def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
            if len(revoked) < 3:
                raise ZeroDivisionError

    async with member(cluster) as first:
        await first.subscribe(["t"], listener=Failing())
        async with member(cluster) as second:
            with pytest.raises(ZeroDivisionError):
                await read_until(second.assignment, first, second)
            await read_until(second.assignment, first, second)
            await first.subscribe(["t"])


async def test_partitions_chosen_by_hand_use_the_groups_offsets(single: FakeCluster) -> None:
    fill(single, 4)
    for expected in (b"0-0", b"0-1"):
        reader = Consumer(
            bootstrap_servers=single.bootstrap, group_id="g", auto_offset_reset="earliest"
        )
        reader.assign([P0])
        async with reader:
            assert await take(reader, 1) == [expected]
            await reader.commit()
    assert [name for name, _, _ in group(single).commits[:1]] == [""]


async def test_an_offset_of_an_open_transaction_holds_back_its_partition_only(
    cluster: FakeCluster,
) -> None:
    fill(cluster, 2)
    state = group(cluster)
    state.offsets["t", 0] = FakeOffset(0)
    state.pending[7] = {("t", 0): FakeOffset(1)}
    async with member(cluster) as reader:
        assert sorted(await take(reader, 4), key=str) == [b"1-0", b"1-1", b"2-0", b"2-1"]
        state.end_transaction(7, is_commit=True)
        assert await take(reader, 1) == [b"0-1"]


async def test_topics_by_pattern_and_later_partitions_are_found(cluster: FakeCluster) -> None:
    reader = member(cluster, "t", auto_offset_reset="latest")
    async with reader:
        await reader.subscribe(pattern="t|u.*")
        cluster.create_topic("u1", 1)
        append(cluster.topics["u1"].partitions[0], b"u")
        assert await take(reader, 1) == [b"u"]
        cluster.add_partitions("t", 4)
        append(cluster.topics["t"].partitions[3], b"later")
        assert await take(reader, 1) == [b"later"]
        await reader.unsubscribe()
        assert reader.assignment() == set()
        assert not group(cluster).members


async def test_a_cancelled_read_call_loses_no_rebalance(cluster: FakeCluster) -> None:
    class Slow(RebalanceListener):
        async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
            await asyncio.sleep(0.05)

    async with member(cluster) as first:
        await first.subscribe(["t"], listener=Slow())
        async with member(cluster) as second:
            async with asyncio.timeout(30):
                while not second.assignment():
                    try:
                        async with asyncio.timeout(0.01):
                            await first.getone()
                    except TimeoutError:
                        pass
                    await second.getmany(timeout_ms=1)
            assert len(first.assignment()) + len(second.assignment()) == 3


async def test_a_node_that_holds_no_heartbeats_is_not_flooded(single: FakeCluster) -> None:
    single.coordinator.holds_heartbeats = False
    async with member(single) as reader:
        await asyncio.sleep(0.3)
        assert reader.assignment() == {P0}
        assert single.requests[HEARTBEAT] < 8


async def test_groups_need_a_group_id_and_assign_needs_none(single: FakeCluster) -> None:
    async with Consumer("t", bootstrap_servers=single.bootstrap) as reader:
        with pytest.raises(IllegalStateError, match="group_id"):
            await reader.commit()
    async with member(single) as reader:
        with pytest.raises(IllegalStateError, match="unsubscribe"):
            reader.assign([P0])


async def test_group_ids_are_encoded_in_paths(single: FakeCluster) -> None:
    async with member(single, group_id="a/b c?ä") as reader:
        assert reader.assignment() == {P0}
    assert list(single.coordinator.groups) == ["a/b c?ä"]


async def test_from_the_answer_on_no_record_of_a_revoked_partition_is_given_out(
    cluster: FakeCluster,
) -> None:
    fill(cluster, 10)
    second = member(cluster)
    joining: asyncio.Task[None] | None = None
    async with member(cluster) as first:
        while len(first._buffer._ready) < 3:  # noqa: ASYNC110 (all partitions are fetched)
            await asyncio.sleep(0.01)
        held: set[TopicPartition] = set()
        iterator = aiter(first)
        async with asyncio.timeout(30):
            for _ in range(15):
                record = await anext(iterator)
                assert record.topic_partition not in held
                if joining is None:
                    joining = asyncio.ensure_future(second.start())
                    while not held:
                        held = {p for p, state in first._states.items() if state.is_revoked}
                        await asyncio.sleep(0.01)
        assert joining is not None
        await joining
        await second.close()


async def test_a_commit_begun_before_the_session_was_lost_is_never_sent_after(
    single: FakeCluster,
) -> None:
    fill(single, 2)
    async with member(single, auto_commit_interval_ms=None) as reader:
        await take(reader, 2)
        single.fail(COMMIT, *[Fault(error=STALE_MEMBER_EPOCH)] * 1_000)
        committing = asyncio.ensure_future(reader.commit())
        await single.wait_for_requests(COMMIT, 2)
        group(single).members.clear()
        # Back in the group, with the same partition and another incarnation.
        await read_until(lambda: group(single).members and reader.assignment(), reader)
        single.faults[COMMIT].clear()
        with pytest.raises(CommitFailedError):
            await committing
        assert committed(single) == {}
        with pytest.raises(CommitFailedError, match="does not own u-0"):
            await reader.commit({TopicPartition("u", 0): 1})


async def test_an_automatic_commit_in_line_leaves_out_partitions_given_up_meanwhile(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fill(cluster, 2)
    async with member(cluster, auto_commit_interval_ms=60_000) as reader:
        await take(reader, 6)
        reader._buffer.begin_call()
        assert reader._group is not None
        cluster.fail(COMMIT, Fault(delay_s=0.1))
        before = asyncio.ensure_future(reader.commit({P0: 1}))
        await cluster.wait_for_requests(COMMIT, 1)
        automatic = asyncio.ensure_future(reader._group.offsets.commit_processed())
        await asyncio.sleep(0)
        owner = reader._group._member
        owner.gave_up(frozenset(one for one in owner.owned if one.source == P1))
        await asyncio.gather(before, automatic)
        assert "automatic commit" not in caplog.text
        assert committed(cluster) == {P0: 2, P2: 2}


async def test_a_failure_of_the_heartbeats_themselves_is_raised(
    single: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with member(single) as reader:
        monkeypatch.setattr("raftlog_client.groups.membership.ANSWER_SHARE", None)
        with pytest.raises(RaftlogClientError, match="heartbeats have failed"):
            async with asyncio.timeout(30):
                await reader.getone()


async def test_a_failure_of_the_automatic_commits_themselves_is_raised(
    single: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with member(single, auto_commit_interval_ms=10) as reader:
        monkeypatch.setattr(reader.transaction_source().offsets, "commit_processed", _broken)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await asyncio.wait_for(reader.getone(), 5)
        monkeypatch.undo()


async def _broken() -> None:
    raise ZeroDivisionError


async def test_a_member_commits_in_place_of_an_offset_that_it_did_not_know(
    cluster: FakeCluster,
) -> None:
    fill(cluster, 4)
    async with member(cluster, auto_commit_interval_ms=None) as reader:
        await take(reader, 12)
        # An earlier commit of unknown outcome, say, has arrived by now.
        group(cluster).offsets["t", 1] = FakeOffset(2)
        await reader.commit()
        assert committed(cluster) == {P0: 4, P1: 4, P2: 4}
        assert reader.assignment() == {P0, P1, P2}
