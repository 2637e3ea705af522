"""Messages held back until the log is durable, by connection."""

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


class Harness:
    """An outbox and the messages that have left."""

    def __init__(self, *peers: int) -> None:
        self.log = Log()
        self.left: list[tuple[int, int]] = []
        self.is_disk_stuck = False
        self.outbox = Outbox(self.log, self.transmit, lambda: self.is_disk_stuck)
        for peer in peers:
            self.outbox.connected(peer)

    def transmit(self, peer: int, message: Message) -> None:
        self.left.append((peer, message.term))

    def send_vote(self, peer: int, number: int) -> None:
        self.outbox.send(peer, Vote(number))

    def append(self, peer: int, number: int) -> None:
        self.outbox.send(peer, Append(number, 1, 0, 1, 1, [(number, b"\x00entry")]))


def test_what_rests_on_nothing_new_leaves_at_once() -> None:
    harness = Harness(2)
    harness.send_vote(2, 1)
    assert harness.left == [(2, 1)]


def test_what_rests_on_a_record_waits_until_it_is_durable() -> None:
    harness = Harness(2)
    harness.log.lsn = 3
    harness.send_vote(2, 1)
    harness.log.durable_lsn = 2
    harness.outbox.release()
    assert not harness.left
    harness.log.durable_lsn = 3
    harness.outbox.release()
    assert harness.left == [(2, 1)]


def test_an_append_goes_ahead_of_the_leaders_own_disk() -> None:
    harness = Harness(2)
    harness.log.lsn = 3
    harness.send_vote(2, 1)
    harness.append(2, 2)
    assert harness.left == [(2, 2)]


def test_an_append_waits_for_the_term_it_is_made_in() -> None:
    """Or, after a crash, another entry could come to have the same index and term."""
    harness = Harness(2)
    harness.log.lsn, harness.log.term_lsn, harness.log.durable_lsn = 4, 3, 2
    harness.append(2, 1)
    assert not harness.left
    harness.log.durable_lsn = 4
    harness.outbox.release()
    assert harness.left == [(2, 1)]


def test_a_leader_whose_disk_is_stuck_falls_silent() -> None:
    harness = Harness(2)
    harness.log.lsn = 1
    harness.is_disk_stuck = True
    harness.append(2, 1)
    assert not harness.left
    harness.log.durable_lsn = 1
    harness.append(2, 2)
    assert [number for _, number in harness.left] == [1, 2]


def test_nothing_overtakes_what_waits() -> None:
    harness = Harness(2, 3)
    harness.log.lsn = 1
    harness.send_vote(2, 1)
    harness.log.durable_lsn = 1
    harness.send_vote(3, 2)
    assert harness.left == [(2, 1), (3, 2)]


def test_messages_of_an_ended_connection_are_dropped() -> None:
    harness = Harness(2)
    harness.log.lsn = 1
    harness.send_vote(2, 1)
    harness.outbox.disconnected(2)
    harness.outbox.connected(2)
    harness.send_vote(2, 2)
    harness.log.durable_lsn = 1
    harness.outbox.release()
    assert harness.left == [(2, 2)]


def test_a_newer_connection_hears_nothing_of_the_one_it_replaces() -> None:
    harness = Harness(2)
    harness.log.lsn = 1
    harness.send_vote(2, 1)
    harness.outbox.connected(2)
    harness.log.durable_lsn = 1
    harness.outbox.release()
    assert not harness.left


def test_to_a_peer_that_is_not_connected_nothing_is_said() -> None:
    harness = Harness()
    harness.send_vote(2, 1)
    harness.outbox.connected(2)
    harness.outbox.release()
    assert not harness.left


def test_after_a_failure_nothing_leaves_any_more() -> None:
    harness = Harness(2)
    harness.log.lsn = 1
    harness.send_vote(2, 1)
    harness.outbox.clear()
    harness.log.durable_lsn = 1
    harness.outbox.release()
    harness.send_vote(2, 2)
    assert not harness.left


def test_a_disk_that_is_full_for_ever_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_MAX", 10)
    harness = Harness(2)
    harness.log.lsn = 1
    for number in range(25):
        harness.send_vote(2, number)
    harness.log.durable_lsn = 1
    harness.outbox.release()
    assert harness.left == [(2, number) for number in range(10)], "the first ones, without a gap"
    harness.send_vote(2, 99)
    assert harness.left[-1] == (2, 99)


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
    harness = Harness()
    connection: Counter[int] = Counter()
    is_up: set[int] = set()
    waiting: list[tuple[int, int, int, int]] = []
    expected: list[tuple[int, int]] = []
    for number, (step, peer) in enumerate(steps):
        if step == "say":
            harness.send_vote(peer, number)
            if peer in is_up:
                waiting.append((harness.log.lsn, peer, connection[peer], number))
        elif step == "up":
            harness.outbox.connected(peer)
            connection[peer] += 1
            is_up.add(peer)
        elif step == "down":
            harness.outbox.disconnected(peer)
            connection[peer] += 1
            is_up.discard(peer)
        elif step == "record":
            harness.log.lsn += 1
        else:
            harness.log.durable_lsn = min(harness.log.lsn, harness.log.durable_lsn + peer)
            harness.outbox.release()
        # Messages that have left rest on durable records, and are a prefix of the possible ones.
        may_leave = [each for each in waiting if each[0] <= harness.log.durable_lsn]
        if step in ("durable", "say"):
            harness.outbox.release()
            expected += [
                (to, said) for _, to, on, said in may_leave if to in is_up and connection[to] == on
            ]
            waiting = waiting[len(may_leave) :]
            assert harness.left == expected
