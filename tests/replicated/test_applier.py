"""Effects of entries on a state, and the rules by which an entry counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raftlog_replicated import applier as applier_module
from raftlog_replicated.applier import HEADER_REQUESTS, Applier
from raftlog_replicated.codec import Commands, Digest, Entry, Fence, StructCodec, WallFence
from raftlog_replicated.errors import (
    ApplyError,
    DivergedError,
    SnapshotError,
    TooManyRequestsError,
    UnknownEntryError,
)
from raftlog_replicated.snapshots.snapshots import cut, join
from raftlog_replicated.types import At

from tests.replicated.ledger import Add, Balance, Fail, Ledger, codec

CODEC = codec()


def replica() -> tuple[Ledger, Applier[Add | Fail, Balance]]:
    ledger = Ledger()
    return ledger, Applier(ledger, CODEC)


def commands(
    term: int, *given: Add | Fail, number: int = 0, requests: dict[int, str] | None = None
) -> Commands:
    return Commands(term, number, [CODEC.encode_command(one) for one in given], requests or {})


def test_commands_of_the_last_fences_term_are_applied_and_no_others() -> None:
    ledger, applier = replica()
    assert applier.apply(commands(0), 1) == []
    assert applier.apply(Fence(2, "b", "b:1"), 1) is None
    assert (applier.term, applier.fence.endpoint) == (2, "b:1")
    assert applier.apply(commands(1, Add("x", 1)), 2) is None
    assert applier.apply(commands(3, Add("x", 1)), 2) is None
    assert applier.apply(commands(2, Add("x", 1), Add("x", -9)), 2) == [
        Balance(1),
        Balance(1, is_refused=True),
    ]
    assert ledger.balances == {"x": 1}
    assert applier.position == 5
    assert [(one.position, one.number, one.term) for one in ledger.applied] == [
        (4, 0, 2),
        (4, 1, 2),
    ]


@pytest.mark.parametrize("term", [1, 2])
def test_a_fence_that_is_not_larger_changes_nothing(term: int) -> None:
    _, applier = replica()
    applier.apply(Fence(2, "b"), 1)
    applier.apply(Fence(term, "a"), 1)
    assert applier.fence == Fence(2, "b")
    assert applier.apply(commands(2, Add("x", 1)), 1) == [Balance(1)]


def test_the_logs_time_never_goes_back() -> None:
    ledger, applier = replica()
    applier.apply(Fence(1, "a"), 1)
    for timestamp_ms in (10, 5, 20):
        applier.apply(commands(1, Add("x", 1)), timestamp_ms)
    assert [one.timestamp_ms for one in ledger.applied] == [10, 10, 20]


def test_a_request_happens_once_and_has_its_first_result_in_any_term() -> None:
    ledger, applier = replica()
    applier.apply(Fence(1, "a"), 1)
    first = applier.apply(commands(1, Add("x", 5), requests={0: "r"}), 1)
    applier.apply(Fence(2, "b"), 1)
    again = applier.apply(commands(2, Add("x", 5), Add("x", 1), requests={0: "r"}), 2)
    assert first == [Balance(5)]
    assert again == [Balance(5), Balance(6)]
    assert ledger.balances == {"x": 6}


def test_a_request_is_forgotten_by_the_logs_time() -> None:
    ledger, applier = replica()
    applier.apply(Fence(1, "a"), 1)
    entry = commands(1, Add("x", 1), requests={0: "r"})
    applier.apply(entry, 1)
    applier.apply(entry, applier_module.KEPT_MS)
    assert ledger.balances == {"x": 1}
    applier.apply(entry, 1 + applier_module.KEPT_MS)
    assert ledger.balances == {"x": 2}


HOUR_MS = 3_600_000


def test_the_logs_time_advances_with_the_time_of_each_primary_and_not_between_them() -> None:
    """The second primary's clock is an hour ahead, the third's a day behind."""
    ledger, applier = replica()
    for term, since_ms in ((1, 0), (2, HOUR_MS), (3, -24 * HOUR_MS)):
        first_ms = 1_700_000_000_000 + since_ms
        applier.apply(Fence(term, "a"), first_ms)
        for timestamp_ms in (first_ms + 50, first_ms + 70, first_ms + 60, first_ms + 170):
            applier.apply(commands(term, Add("x", 1)), timestamp_ms)
    begun_ms = 1_700_000_000_050
    assert [one.timestamp_ms - begun_ms for one in ledger.applied] == [
        *(0, 20, 20, 120),
        *(120, 140, 140, 240),
        *(240, 260, 260, 360),
    ]


def test_a_repeated_request_happens_once_though_the_next_primarys_clock_is_ahead() -> None:
    ledger, applier = replica()
    named = {0: "r"}
    applier.apply(Fence(1, "a"), 1)
    applier.apply(commands(1, Add("x", 1), requests=named), 1)
    applier.apply(Fence(2, "b"), HOUR_MS)
    applier.apply(commands(2, Add("x", 1)), HOUR_MS)
    assert applier.apply(commands(2, Add("x", 1), requests=named), HOUR_MS + 1) == [Balance(1)]
    assert ledger.balances == {"x": 2}


def test_results_are_forgotten_though_an_earlier_primarys_clock_was_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(applier_module, "KEPT_MAX", 1)
    _, applier = replica()
    applier.apply(Fence(1, "a"), 1)
    applier.apply(commands(1, Add("x", 1), requests={0: "r"}), 24 * HOUR_MS)
    applier.apply(Fence(2, "b"), 1)
    applier.apply(commands(2, Add("x", 1)), 1)
    late = commands(2, Add("x", 1), requests={0: "s"})
    (refused,) = applier.apply(late, applier_module.KEPT_MS) or ()
    assert isinstance(refused, TooManyRequestsError)
    assert applier.apply(late, 1 + applier_module.KEPT_MS) == [Balance(3)]


def test_commands_under_a_fence_of_release_0_5_keep_its_rule() -> None:
    """So a log and its snapshots have one meaning in all releases."""
    ledger, applier = replica()
    applier.apply(WallFence(1, "a"), 1)
    for timestamp_ms in (10, HOUR_MS):
        applier.apply(commands(1, Add("x", 1)), timestamp_ms)
    applier.apply(WallFence(2, "b"), 1)
    applier.apply(commands(2, Add("x", 1)), 2 * HOUR_MS)
    applier.apply(Fence(3, "c"), 1)
    applier.apply(commands(3, Add("x", 1)), 4 * HOUR_MS)
    assert [one.timestamp_ms for one in ledger.applied] == [
        10,
        HOUR_MS,
        2 * HOUR_MS,
        2 * HOUR_MS,
    ]


def test_a_restored_replica_has_the_logs_time() -> None:
    (ledger, applier), (other, restored) = replica(), replica()
    applier.apply(Fence(1, "a"), 1)
    applier.apply(commands(1, Add("x", 1)), 50)
    restored.restore(applier.snapshot())
    for one in (applier, restored):
        one.apply(commands(1, Add("x", 1)), 80)
        one.apply(Fence(2, "b"), HOUR_MS)
        one.apply(commands(2, Add("x", 1)), HOUR_MS)
        one.apply(commands(2, Add("x", 1)), HOUR_MS + 5)
    assert [one.timestamp_ms for one in ledger.applied[1:]] == [80, 80, 85]
    assert [one.timestamp_ms for one in other.applied] == [80, 80, 85]


def test_a_full_table_refuses_new_requests_and_keeps_the_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(applier_module, "KEPT_MAX", 1)
    ledger, applier = replica()
    applier.apply(Fence(1, "a"), 1)
    results = applier.apply(commands(1, *[Add("x", 1)] * 4, requests={0: "r", 1: "s", 2: "r"}), 1)
    assert results is not None
    assert isinstance(results[1], TooManyRequestsError)
    assert results[2:] == [Balance(1), Balance(2)]
    assert ledger.balances == {"x": 2}


def test_an_exception_of_the_machine_is_a_typed_end() -> None:
    _, applier = replica()
    applier.apply(Fence(1, "a"), 1)
    with pytest.raises(ApplyError, match=r"planted.*command 1 of position 1"):
        applier.apply(commands(1, Add("x", 1), Fail()), 1)


def test_an_unknown_command_changes_nothing() -> None:
    ledger, applier = replica()
    applier.apply(Fence(1, "a"), 1)
    entry = Commands(1, 0, [CODEC.encode_command(Add("x", 1)), b"\x81\xa4type\xa3New"])
    with pytest.raises(UnknownEntryError):
        applier.apply(entry, 1)
    assert (ledger.applied, applier.position) == ([], 1)


@pytest.fixture
def each_third_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applier_module, "DIGEST_EVERY", 3)


@pytest.mark.usefixtures("each_third_command")
def test_a_different_state_is_found_by_the_primarys_digest() -> None:
    log = [Fence(1, "a"), commands(1, Add("x", 1)), commands(1, *[Add("x", 1)] * 4)]
    (_, primary), (ledger, other) = replica(), replica()
    for entry in log:
        primary.apply(entry, 1)
        other.apply(entry, 1)
    assert primary.digests == other.digests
    ((position, digest),) = primary.digests.items()
    assert position == 3
    other.apply(Digest(1, position, digest), 1)
    ledger.balances["x"] = 7
    other.apply(commands(1, *[Add("x", 1)] * 3), 1)
    primary.apply(Digest(1, position, digest), 1)
    primary.apply(commands(1, *[Add("x", 1)] * 3), 1)
    with pytest.raises(DivergedError, match="position 5"):
        other.apply(Digest(1, 5, primary.digests[5]), 1)
    # A replaced primary's proves nothing, nor does one of a position without an own digest.
    other.apply(Digest(0, 5, b"old"), 1)
    other.apply(Digest(1, 4, b"unknown"), 1)


@pytest.mark.usefixtures("each_third_command")
def test_digests_are_bounded() -> None:
    _, applier = replica()
    applier.apply(Fence(1, "a"), 1)
    for _ in range(100):
        applier.apply(commands(1, *[Add("x", 1)] * 3), 1)
    assert len(applier.digests) == applier_module.DIGESTS_KEPT
    assert max(applier.digests) == applier.position


def test_a_snapshot_is_of_its_moment() -> None:
    _, applier = replica()
    applier.apply(Fence(4, "a", "h:1"), 1)
    applier.apply(commands(4, Add("x", 5), requests={0: "r"}), 9)
    chunks = applier.snapshot()
    applier.apply(commands(4, Add("x", 5), requests={0: "s"}), 10)
    other_ledger, other = replica()
    other.restore(chunks)
    assert other_ledger.balances == {"x": 5}
    assert (other.position, other.fence, other.commands) == (2, Fence(4, "a", "h:1"), 1)
    assert other.apply(commands(4, Add("x", 9), requests={0: "r"}), 11) == [Balance(5)]
    other.reset()
    assert (other_ledger.balances, other.position, other.term) == ({}, 0, 0)


@pytest.mark.parametrize("chunks", [(), (b"\xc1",), (b"",)])
def test_a_damaged_beginning_of_a_snapshot_is_typed(chunks: tuple[bytes, ...]) -> None:
    ledger, applier = replica()
    with pytest.raises(SnapshotError):
        applier.restore(chunks)
    assert ledger.balances == {}


def entries() -> st.SearchStrategy[Sequence[Entry]]:
    terms = st.integers(0, 4)
    adds = st.builds(Add, st.sampled_from("xy"), st.integers(-3, 3))
    return st.lists(
        st.one_of(
            st.builds(Fence, terms, st.sampled_from("abc")),
            st.builds(
                lambda term, given, names: commands(
                    term,
                    *given,
                    requests={at: name for at, name in names.items() if at < len(given)},
                ),
                terms,
                st.lists(adds, max_size=3),
                st.dictionaries(st.integers(0, 2), st.sampled_from("rst"), max_size=2),
            ),
        ),
        max_size=30,
    )


@given(log=entries(), cut=st.integers(0, 30), data=st.data())
@settings(deadline=None)
def test_replicas_agree_whatever_primaries_wrote(
    log: Sequence[Entry], cut: int, data: st.DataObject
) -> None:
    """Also one restored from a snapshot; and as a model without replicas says."""
    times = data.draw(st.lists(st.integers(0, 2), min_size=len(log), max_size=len(log)))
    (ledger, first), (_, other) = replica(), replica()
    results = [first.apply(entry, time) for entry, time in zip(log, times, strict=True)]
    for entry, time in zip(log[:cut], times[:cut], strict=True):
        other.apply(entry, time)
    third_ledger, third = replica()
    third.restore(list(other.snapshot()))
    for entry, time, result in zip(log[cut:], times[cut:], results[cut:], strict=True):
        assert third.apply(entry, time) == result
    assert third_ledger.balances == ledger.balances
    assert (third.position, third.fence, third.commands) == (
        first.position,
        first.fence,
        first.commands,
    )

    balances: dict[str, int] = {}
    done: dict[str, Balance] = {}
    term = 0
    for entry, result in zip(log, results, strict=True):
        if isinstance(entry, Fence):
            term = max(term, entry.term)
        elif isinstance(entry, Commands) and entry.term == term:
            expected = []
            for at, payload in enumerate(entry.payloads):
                command = CODEC.decode_command(payload)
                assert isinstance(command, Add)
                name = entry.requests.get(at)
                if name is None or name not in done:
                    after = balances.get(command.name, 0) + command.amount
                    if after < 0:
                        one = Balance(after - command.amount, is_refused=True)
                    else:
                        balances[command.name] = after
                        one = Balance(after)
                    if name is not None:
                        done[name] = one
                    expected.append(one)
                else:
                    expected.append(done[name])
            assert result == expected
        else:
            assert result is None
    assert ledger.balances == balances


class Echo:
    """Counts, and gives back what it was given."""

    def __init__(self) -> None:
        self.count = 0

    def apply(self, command: str, at: At) -> str:
        self.count += 1
        return command

    def snapshot(self) -> Iterator[bytes]:
        """By a generator: its body runs at the first `next`."""
        yield str(self.count).encode()

    def restore(self, chunks: Iterable[bytes]) -> None:
        self.count = int(b"".join(chunks) or b"0")


def echo() -> tuple[Echo, Applier[str, str]]:
    machine = Echo()
    return machine, Applier(machine, StructCodec(str, str))


def echoed(number: int, text: str, *names: str) -> Commands:
    payload = StructCodec(str, str).encode_command(text)
    return Commands(1, number, [payload] * len(names), dict(enumerate(names)))


def test_a_snapshot_by_a_generator_is_of_the_moment_of_the_call() -> None:
    _, first = echo()
    first.apply(Fence(1, "a"), 0)
    first.apply(echoed(0, "x", "one"), 0)
    chunks = first.snapshot()
    first.apply(echoed(1, "x", "two"), 0)
    machine, second = echo()
    second.restore(chunks)
    assert (second.position, machine.count) == (2, 1)


def test_many_large_results_are_restored_from_pieces_of_the_size_of_a_record() -> None:
    _, first = echo()
    first.apply(Fence(1, "a"), 0)
    names = [f"request-{number}" for number in range(HEADER_REQUESTS)]
    first.apply(echoed(0, "x" * 400, *names), 0)
    pieces = list(cut(first.snapshot()))
    assert len(pieces) > 3
    machine, second = echo()
    second.restore(join(pieces))
    assert second.apply(echoed(1, "other", "request-7"), 1) == ["x" * 400]
    assert machine.count == HEADER_REQUESTS
