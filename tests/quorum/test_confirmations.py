from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from raftlog.quorum.confirmations import APPENDS_MAX, Confirmations

PEERS = (2, 3)
Step = tuple[str, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(("send", "answer", "forget")), st.sampled_from(PEERS), st.integers(0, 8)
    ),
    max_size=60,
)


def test_nothing_is_known_before_the_first_answer() -> None:
    confirmations = Confirmations()
    confirmations.sent(2, 1, now=10.0)
    assert confirmations.age_s(2, now=11.0) == math.inf


def test_counts_from_when_the_append_left() -> None:
    confirmations = Confirmations()
    confirmations.sent(2, 1, now=10.0)
    confirmations.sent(2, 2, now=11.0)
    confirmations.answered(2, 1)
    assert confirmations.age_s(2, now=13.0) == 3.0


def test_an_older_answer_that_comes_later_takes_nothing_back() -> None:
    confirmations = Confirmations()
    confirmations.sent(2, 1, now=10.0)
    confirmations.sent(2, 2, now=11.0)
    confirmations.answered(2, 2)
    confirmations.answered(2, 1)
    assert confirmations.age_s(2, now=13.0) == 2.0


def test_the_oldest_are_given_up() -> None:
    confirmations = Confirmations()
    for sequence in range(APPENDS_MAX + 1):
        confirmations.sent(2, sequence, now=float(sequence))
    confirmations.answered(2, 0)
    assert confirmations.age_s(2, now=9.0) == math.inf
    confirmations.answered(2, 1)
    assert confirmations.age_s(2, now=9.0) == 8.0


@given(steps)
def test_never_younger_than_an_append_that_this_peer_was_sent_and_answered(
    history: list[Step],
) -> None:
    confirmations = Confirmations()
    sent: list[tuple[int, float]] = []
    best = dict.fromkeys(PEERS, -math.inf)
    forgotten: dict[int, int] = dict.fromkeys(PEERS, 0)
    for now, (what, peer, back) in enumerate(history):
        if what == "send":
            confirmations.sent(peer, len(sent), float(now))
            sent.append((peer, float(now)))
        elif what == "forget":
            confirmations.forget(peer)
            forgotten[peer] = len(sent)
        else:
            sequence = len(sent) - 1 - back
            confirmations.answered(peer, sequence)
            if sequence >= forgotten[peer] and sent[sequence][0] == peer:
                best[peer] = max(best[peer], sent[sequence][1])
        for each in PEERS:
            assert confirmations.age_s(each, float(now)) == now - best[each]
