"""The verdict on Kafka's clients: each planted mistake is found, and a sound history has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.soak import kafka_history
from tests.soak.kafka_history import ClientError, Event, Journal, OffsetEvent, TransactionEvent
from tests.soak.kafka_topics import (
    INPUT,
    LONE,
    PROTOCOLS,
    SIDE,
    copies_of,
    copy_value,
    group_of,
    source_text,
)
from tests.soak.kafka_verdict import judge
from tests.soak.recording import partition_name, partitions_in
from tests.verification.log_history import FinalRead, Operation, Poll, Send
from tests.verification.transaction_history import CommittedOffset, Processed, Transaction

COMMITTED, UNCOMMITTED = "kafka read_committed", "kafka read_uncommitted"
DOORS = {"1": False, "2": False, COMMITTED: True, UNCOMMITTED: False, "python": True}
"""Replicas and doors, and whether they read committed records only."""
COPIES = partition_name(copies_of("classic"), 0)
INPUT_0, SIDE_0, LONE_0 = (partition_name(topic, 0) for topic in (INPUT, SIDE, LONE))
ZOMBIE = 77
END = 100
"""Behind all records of all partitions."""


@dataclass
class World:
    """What clients did, and what doors show."""

    sends: list[Send] = field(default_factory=list)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    views: dict[tuple[str, str], list[tuple[int, str]]] = field(default_factory=dict)
    """By door and partition."""
    polls: list[Poll] = field(default_factory=list)
    step: int = 0

    def write(
        self, partition: str, offset: int, value: str, *, transaction: str = "", seen: bool = True
    ) -> None:
        """An acknowledged record; `seen` by readers of committed records."""
        self.step += 2
        self.sends.append(
            Send(
                partition=partition,
                producer=f"p{transaction}",
                values=(value,),
                invoked=self.step,
                completed=self.step + 1,
                outcome="ok",
                offset=offset,
                transaction=transaction,
            )
        )
        for door, is_committed in DOORS.items():
            if seen or not is_committed:
                self.views.setdefault((door, partition), []).append((offset, value))

    def end(self, name: str, *, is_commit: bool, processed: tuple[Processed, ...] = ()) -> None:
        self.step += 2
        self.transactions[name] = (
            Transaction(
                name=name,
                ending=self.step,
                completed=self.step + 1,
                outcome="committed",
                processed=processed,
            )
            if is_commit
            else Transaction(name=name, outcome="aborted")
        )

    def anomalies(self, *, zombies: tuple[int, ...] = ()) -> list[str]:
        finals = [
            FinalRead(
                partition=partition,
                node=door,
                start=0,
                end=END,
                records=tuple(records),
                is_committed=DOORS[door],
            )
            for (door, partition), records in self.views.items()
        ]
        history: list[Operation] = [*self.sends, *finals, *self.polls]
        events = [*map(TransactionEvent, self.transactions.values()), *self.events]
        return judge(history, events, zombies).anomalies


def sound() -> World:
    """A writer, three transactions (the second one aborted), and their copies by both groups."""
    world = World()
    for number in range(10):
        world.write(LONE_0, number, f"v{number}")
    for number, is_commit in enumerate((True, False, True)):
        name = f"t{number}"
        for place in range(2):
            offset = 3 * number + place
            world.write(INPUT_0, offset, f"{name}.{place}", transaction=name, seen=is_commit)
        world.write(SIDE_0, 2 * number, f"{name}.2", transaction=name, seen=is_commit)
        world.end(name, is_commit=is_commit)
    committed = world.views[COMMITTED, INPUT_0]
    for protocol in PROTOCOLS:
        end = 0
        for number, batch in enumerate((committed[:1], committed[1:])):
            name = f"{protocol}{number}"
            for offset, value in batch:
                copy = copy_value(f"{name}.{offset}", source_text(0, offset, value))
                target = partition_name(copies_of(protocol), 0)
                world.write(target, offset, copy, transaction=name)
            start, end = end, batch[-1][0] + 1
            taken = Processed(group_of(protocol), INPUT_0, start, end)
            world.end(name, is_commit=True, processed=(taken,))
    return world


def test_a_sound_history_has_no_anomaly() -> None:
    assert sound().anomalies() == []


def everywhere(
    world: World, partition: str, change: Callable[[list[tuple[int, str]]], object]
) -> None:
    """Change what every door and replica shows."""
    for (_, name), records in world.views.items():
        if name == partition:
            change(records)


def lose_an_acknowledged_record(world: World) -> None:
    everywhere(world, LONE_0, lambda records: records.pop(4))


def lose_it_on_one_replica(world: World) -> None:
    world.views["2", LONE_0].pop(4)


def duplicate_a_record(world: World) -> None:
    everywhere(world, LONE_0, lambda records: records.append((10, "v3")))


def move_a_record(world: World) -> None:
    everywhere(world, LONE_0, lambda records: records.append((11, records.pop()[1])))


def swap_two_records_of_a_producer(world: World) -> None:
    def swap(records: list[tuple[int, str]]) -> None:
        records[2], records[3] = (2, records[3][1]), (3, records[2][1])

    everywhere(world, LONE_0, swap)
    # Only their order is wrong: their acknowledgements had no offsets.
    world.sends[2:4] = [replace(one, offset=None) for one in world.sends[2:4]]


def invent_a_record(world: World) -> None:
    everywhere(world, LONE_0, lambda records: records.append((10, "never")))


def show_an_aborted_record(world: World) -> None:
    for door in (COMMITTED, "python"):
        world.views[door, SIDE_0].insert(1, (2, "t1.2"))


def show_it_to_a_reader_on_the_way(world: World) -> None:
    world.polls.append(
        Poll(
            partition=SIDE_0,
            consumer="reader",
            invoked=1_000,
            completed=1_001,
            start=1,
            next_offset=3,
            records=((2, "t1.2"),),
            is_committed=True,
        )
    )


def hide_half_of_a_transaction(world: World) -> None:
    for door in (COMMITTED, "python"):
        world.views[door, SIDE_0].pop()


def hide_a_record_from_one_door(world: World) -> None:
    world.views["python", LONE_0].pop()


def lose_a_copy(world: World) -> None:
    everywhere(world, COPIES, lambda records: records.pop())
    world.sends = [
        replace(one, outcome="unknown", offset=None) if one.partition == COPIES else one
        for one in world.sends
    ]


def copy_twice(world: World) -> None:
    offset, value = world.views[COMMITTED, INPUT_0][0]
    copy = copy_value("again", source_text(0, offset, value))
    world.write(COPIES, 20, copy, transaction="again")
    taken = Processed(group_of("classic"), INPUT_0, 0, 1)
    world.end("again", is_commit=True, processed=(taken,))


def leave_input_out(world: World) -> None:
    first = world.transactions["classic1"]
    late = replace(first.processed[0], start=3)
    world.transactions["classic1"] = replace(first, processed=(late,))


def commit_an_offset_of_no_transaction(world: World) -> None:
    world.events.append(
        OffsetEvent(
            CommittedOffset(
                group=group_of("classic"), partition=INPUT_0, invoked=900, completed=901, offset=5
            )
        )
    )


def error(code: int, name: str, *, is_fatal: bool = True, process: int = 1) -> ClientError:
    return ClientError(
        session="patient-1-1",
        process=process,
        step=5,
        during="delivery",
        code=code,
        name=name,
        text="",
        is_fatal=is_fatal,
    )


def end_a_client(world: World) -> None:
    world.events.append(error(45, "OUT_OF_ORDER_SEQUENCE_NUMBER"))


def refuse_an_abort(world: World) -> None:
    refused = error(48, "INVALID_TXN_STATE")
    world.events.append(replace(refused, during="abort_transaction", transaction="t1"))


def fence_a_client_without_a_zombie(world: World) -> None:
    world.events.append(error(47, "INVALID_PRODUCER_EPOCH"))


def lose_a_position(world: World) -> None:
    world.events.append(error(-140, "_AUTO_OFFSET_RESET", is_fatal=False))


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lose_an_acknowledged_record, "lost write"),
        (lose_it_on_one_replica, "differ in kafka-lone-0"),
        (duplicate_a_record, "duplicate"),
        (move_a_record, "lost write"),
        (swap_two_records_of_a_producer, "non-monotonic send"),
        (invent_a_record, "unwritten read"),
        (show_an_aborted_record, "aborted read"),
        (show_it_to_a_reader_on_the_way, "aborted read"),
        (hide_half_of_a_transaction, "half seen"),
        (hide_a_record_from_one_door, "differ in kafka-lone-0"),
        (lose_a_copy, "lost: kafka-copies-classic"),
        (copy_twice, "doubled: kafka-copies-classic"),
        (copy_twice, "processed twice"),
        (leave_input_out, "not processed"),
        (commit_an_offset_of_no_transaction, "offset ahead"),
        (end_a_client, "fatal error"),
        (refuse_an_abort, "fatal error"),
        (fence_a_client_without_a_zombie, "fatal error"),
        (lose_a_position, "lost its position"),
    ],
)
def test_a_mistake_is_found(mistake: Callable[[World], None], words: str) -> None:
    world = sound()
    mistake(world)
    assert any(words in anomaly for anomaly in world.anomalies())


def test_a_fenced_zombie_and_errors_that_pass_are_no_anomalies() -> None:
    world = sound()
    world.events.append(error(-144, "_FENCED", process=ZOMBIE))
    world.events.append(error(-195, "_TRANSPORT", is_fatal=False))
    # Of a transaction that no partition had joined.
    refused = error(48, "INVALID_TXN_STATE")
    world.events.append(replace(refused, during="abort_transaction", transaction="t9"))
    assert world.anomalies(zombies=(ZOMBIE,)) == []
    world.events.append(error(45, "OUT_OF_ORDER_SEQUENCE_NUMBER", process=ZOMBIE))
    assert any("fatal error" in anomaly for anomaly in world.anomalies(zombies=(ZOMBIE,)))


def test_a_killed_client_leaves_what_it_began(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "writer")
    sends = [
        Send(partition="t-0", producer="w", values=(f"v{number}",), invoked=number)
        for number in range(2)
    ]
    for send in sends:
        journal.add(send)
    for outcome in ("aborted", "unknown"):
        journal.transaction(Transaction(name="x", outcome=outcome))
    known = replace(sends[0], outcome="ok", offset=7)
    journal.add(known)
    journal.flush()
    assert partitions_in(tmp_path) == ["t-0"]
    assert list(kafka_history.all_operations(tmp_path)) == [known, sends[1]]
    (event,) = kafka_history.events(tmp_path)
    assert event == TransactionEvent(Transaction(name="x", outcome="unknown"))
    journal.close()
