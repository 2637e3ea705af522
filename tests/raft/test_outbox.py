"""What is held back until the log is durable, and for whom."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.raft import outbox as module
from raftlog.raft.messages import Append, Message, Vote
from raftlog.raft.outbox import Outbox


@dataclass
class Log:
    lsn: int = 0
    term_lsn: int = 0
    durable_lsn: int = 0


class Desk:
    """An outbox and what has left it."""

    def __init__(self, *peers: int) -> None:
        self.log = Log()
        self.left: list[tuple[int, int]] = []
        self.is_disk_stuck = False
        self.outbox = Outbox(self.log, self.transmit, lambda: self.is_disk_stuck)
        for peer in peers:
            self.outbox.connected(peer)

    def transmit(self, peer: int, message: Message) -> None:
        self.left.append((peer, message.term))

    def say(self, peer: int, number: int) -> None:
        self.outbox.send(peer, Vote(number))

    def append(self, peer: int, number: int) -> None:
        self.outbox.send(peer, Append(number, 1, 0, 1, 1, [(number, b"\x00entry")]))


def test_what_rests_on_nothing_new_leaves_at_once() -> None:
    desk = Desk(2)
    desk.say(2, 1)
    assert desk.left == [(2, 1)]


def test_what_rests_on_a_record_waits_until_it_is_durable() -> None:
    desk = Desk(2)
    desk.log.lsn = 3
    desk.say(2, 1)
    desk.log.durable_lsn = 2
    desk.outbox.release()
    assert not desk.left
    desk.log.durable_lsn = 3
    desk.outbox.release()
    assert desk.left == [(2, 1)]


def test_an_append_goes_ahead_of_the_leaders_own_disk() -> None:
    desk = Desk(2)
    desk.log.lsn = 3
    desk.say(2, 1)
    desk.append(2, 2)
    assert desk.left == [(2, 2)]


def test_an_append_waits_for_the_term_it_is_made_in() -> None:
    """Or, after a crash, another entry could come to have the same index and term."""
    desk = Desk(2)
    desk.log.lsn, desk.log.term_lsn, desk.log.durable_lsn = 4, 3, 2
    desk.append(2, 1)
    assert not desk.left
    desk.log.durable_lsn = 4
    desk.outbox.release()
    assert desk.left == [(2, 1)]


def test_a_leader_whose_disk_is_stuck_falls_silent() -> None:
    desk = Desk(2)
    desk.log.lsn = 1
    desk.is_disk_stuck = True
    desk.append(2, 1)
    assert not desk.left
    desk.log.durable_lsn = 1
    desk.append(2, 2)
    assert [number for _, number in desk.left] == [1, 2]


def test_nothing_overtakes_what_waits() -> None:
    desk = Desk(2, 3)
    desk.log.lsn = 1
    desk.say(2, 1)
    desk.log.durable_lsn = 1
    desk.say(3, 2)
    assert desk.left == [(2, 1), (3, 2)]


def test_what_was_said_on_an_ended_connection_is_for_nobody() -> None:
    desk = Desk(2)
    desk.log.lsn = 1
    desk.say(2, 1)
    desk.outbox.disconnected(2)
    desk.outbox.connected(2)
    desk.say(2, 2)
    desk.log.durable_lsn = 1
    desk.outbox.release()
    assert desk.left == [(2, 2)]


def test_a_newer_connection_hears_nothing_of_the_one_it_replaces() -> None:
    desk = Desk(2)
    desk.log.lsn = 1
    desk.say(2, 1)
    desk.outbox.connected(2)
    desk.log.durable_lsn = 1
    desk.outbox.release()
    assert not desk.left


def test_to_a_peer_that_is_not_connected_nothing_is_said() -> None:
    desk = Desk()
    desk.say(2, 1)
    desk.outbox.connected(2)
    desk.outbox.release()
    assert not desk.left


def test_after_a_failure_nothing_leaves_any_more() -> None:
    desk = Desk(2)
    desk.log.lsn = 1
    desk.say(2, 1)
    desk.outbox.clear()
    desk.log.durable_lsn = 1
    desk.outbox.release()
    desk.say(2, 2)
    assert not desk.left


def test_a_disk_that_is_full_for_ever_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_MAX", 10)
    desk = Desk(2)
    desk.log.lsn = 1
    for number in range(25):
        desk.say(2, number)
    desk.log.durable_lsn = 1
    desk.outbox.release()
    assert desk.left == [(2, number) for number in range(10)], "the first ones, without a gap"
    desk.say(2, 99)
    assert desk.left[-1] == (2, 99)


STEPS = st.one_of(
    st.tuples(st.just("say"), st.integers(1, 3)),
    st.tuples(st.just("up"), st.integers(1, 3)),
    st.tuples(st.just("down"), st.integers(1, 3)),
    st.tuples(st.just("record"), st.just(0)),
    st.tuples(st.just("durable"), st.integers(0, 5)),
)


@given(st.lists(STEPS, max_size=60))
def test_all_leaves_in_order_once_durable_and_on_its_own_connection(
    steps: list[tuple[str, int]],
) -> None:
    desk = Desk()
    connection: Counter[int] = Counter()
    is_up: set[int] = set()
    waiting: list[tuple[int, int, int, int]] = []
    expected: list[tuple[int, int]] = []
    for number, (step, peer) in enumerate(steps):
        if step == "say":
            desk.say(peer, number)
            if peer in is_up:
                waiting.append((desk.log.lsn, peer, connection[peer], number))
        elif step == "up":
            desk.outbox.connected(peer)
            connection[peer] += 1
            is_up.add(peer)
        elif step == "down":
            desk.outbox.disconnected(peer)
            connection[peer] += 1
            is_up.discard(peer)
        elif step == "record":
            desk.log.lsn += 1
        else:
            desk.log.durable_lsn = min(desk.log.lsn, desk.log.durable_lsn + peer)
            desk.outbox.release()
        # Whatever has left so far rests on what is durable, and is a prefix of what may leave.
        may_leave = [each for each in waiting if each[0] <= desk.log.durable_lsn]
        if step in ("durable", "say"):
            desk.outbox.release()
            expected += [
                (to, said) for _, to, on, said in may_leave if to in is_up and connection[to] == on
            ]
            waiting = waiting[len(may_leave) :]
            assert desk.left == expected
