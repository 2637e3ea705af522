from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.raft.log.journal import (
    MAGIC,
    RECORD_OVERHEAD,
    JournalContent,
    LogEntry,
    PendingRecord,
    Recovered,
    VoteRecord,
    encode_journal,
    encode_mark,
    encode_pending,
    recover,
)
from raftlog.raft.voters import NO_VOTERS, parse_voters
from raftlog.record.errors import STORAGE_FAILED, LogError

VOTERS = parse_voters("1@a:1,2@b:2")
VOTE_BYTES = RECORD_OVERHEAD + 8


class JournalWriter:
    """Writes a journal as the store does, and records its content after each record."""

    def __init__(self, initial: JournalContent) -> None:
        self.said = initial
        self.content = bytearray(b"".join(encode_journal(initial)))
        self.initial_bytes = self.synced = self.durable = len(self.content)
        self.history = [(len(self.content), initial)]
        """End of each record, and the content from there on."""
        self.rounds = [(len(self.content), initial)]
        """Content promised to peers at each sync."""

    def write(self, record: PendingRecord) -> None:
        self.content += encode_pending(
            record,
            position=len(self.content),
            synced=self.synced,
            last_index=self.said.last_index,
        )
        self.said = after(self.said, record)
        self.history.append((len(self.content), self.said))

    def mark(self) -> None:
        self.content += encode_mark(
            position=len(self.content), synced=self.synced, last_index=self.said.last_index
        )

    def round(self, *records: PendingRecord, mark: bool = True) -> None:
        for record in records:
            self.write(record)
        self.synced = len(self.content)
        self.rounds.append((self.synced, self.said))
        if mark:
            self.mark()

    def at(self, size: int) -> JournalContent:
        """Content of the records that end at or before `size`."""
        return next(content for end, content in reversed(self.history) if end <= size)


def after(content: JournalContent, record: PendingRecord) -> JournalContent:
    """Content after one record more, by another algorithm than that of `recover`."""
    entries, term, vote = list(content.entries), content.term, content.vote
    if isinstance(record, VoteRecord):
        term, vote = record.term, record.vote
    else:
        entries = [entry for entry in entries if entry[1] < record[1]] + [record]
        if record[2] > term:
            term, vote = record[2], None
    return JournalContent(
        content.base_index, content.base_term, content.voters_at_base, term, vote, entries
    )


def entry(index: int, term: int, command: bytes = b"\x00x") -> LogEntry:
    return command, index, term


def empty(base_index: int = 1, base_term: int = 0, term: int = 0) -> JournalContent:
    return JournalContent(base_index, base_term, VOTERS, term, None, [])


def small_journal() -> JournalWriter:
    """Every kind of record, conflicts and changes of term."""
    initial = JournalContent(3, 2, VOTERS, 4, 2, [entry(4, 2), entry(5, 4, b"\x01")])
    journal = JournalWriter(initial)
    journal.round(entry(6, 4), entry(7, 4), mark=False)
    journal.round(VoteRecord(5, None), VoteRecord(5, 1))
    journal.round(entry(6, 6, b"\x00in place of two"))
    journal.round(entry(7, 6), VoteRecord(8, None), entry(4, 8, b"\x00in place of all"))
    journal.round(VoteRecord(8, 2))
    return journal


def assert_damaged(content: bytes, reason: str = "metadata journal") -> None:
    with pytest.raises(LogError, match=reason) as raised:
        recover(content)
    assert raised.value.entry is STORAGE_FAILED


@settings(deadline=None)
@given(
    base=st.integers(1, 2**40),
    base_term=st.integers(0, 2**40),
    steps=st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=40)), max_size=8),
    further=st.integers(0, 3),
    vote=st.none() | st.integers(1, 2**31 - 1),
)
def test_journal_round_trips(
    base: int, base_term: int, steps: list[tuple[int, bytes]], further: int, vote: int | None
) -> None:
    entries: list[LogEntry] = []
    term = base_term
    for step, command in steps:
        term += step
        entries.append((command, base + 1 + len(entries), term))
    for voters in (VOTERS, NO_VOTERS):
        content = JournalContent(base, base_term, voters, term + further, vote, entries)
        encoded = b"".join(encode_journal(content))
        assert recover(encoded) == Recovered(content, len(encoded))


def test_appended_records_are_recovered() -> None:
    journal = small_journal()
    recovered = recover(bytes(journal.content))
    assert recovered == Recovered(journal.said, len(journal.content))
    assert recovered.content == JournalContent(
        3, 2, VOTERS, 8, 2, [entry(4, 8, b"\x00in place of all")]
    )


def test_entry_of_a_later_term_ends_the_vote() -> None:
    journal = JournalWriter(empty())
    journal.round(VoteRecord(3, 2))
    journal.round(entry(2, 3))
    assert (journal.said.term, journal.said.vote) == (3, 2)
    journal.round(entry(3, 5))
    content = recover(bytes(journal.content)).content
    assert (content.term, content.vote) == (5, None)
    # The term stays, though the entry goes.
    journal.round(entry(3, 4))
    content = recover(bytes(journal.content)).content
    assert (content.term, content.vote, content.term_at(3)) == (5, None, 4)


def test_cut_at_every_byte_leaves_what_was_said_until_there_or_stops() -> None:
    journal = small_journal()
    for size in range(len(journal.content)):
        content = bytes(journal.content[:size])
        if size < journal.initial_bytes:
            # These bytes were durable before the file had its name.
            assert_damaged(content)
        else:
            assert recover(content).content == journal.at(size)


def test_every_flipped_bit_keeps_all_that_was_durable_or_stops() -> None:
    journal = small_journal()
    mark_start = len(journal.content) - RECORD_OVERHEAD
    for bit in range(len(journal.content) * 8):
        content = bytearray(journal.content)
        content[bit // 8] ^= 1 << (bit % 8)
        if bit // 8 < mark_start:
            assert_damaged(bytes(content))
        else:
            # Only the last mark is hit, which no acknowledgement rests on.
            assert recover(bytes(content)) == Recovered(journal.said, mark_start)


records = st.lists(
    st.tuples(
        st.sampled_from(["entry", "conflict", "vote", "sync", "mark"]),
        st.integers(0, 3),
        st.binary(max_size=12),
    ),
    max_size=12,
)


def written(steps: list[tuple[str, int, bytes]]) -> JournalWriter:
    """A journal of legal records, in any possible order."""
    journal = JournalWriter(JournalContent(2, 1, VOTERS, 2, 1, [entry(3, 1), entry(4, 2)]))
    for kind, number, command in steps:
        said = journal.said
        if kind == "sync":
            journal.round(mark=False)
        elif kind == "mark":
            journal.mark()
        elif kind == "vote":
            journal.write(VoteRecord(said.term + 1 + number, None if number == 0 else number))
        else:
            back = number if kind == "conflict" else 0
            index = max(said.base_index, said.last_index - back) + 1
            term = said.term_at(index - 1) + number
            journal.write((command, index, term))
    return journal


@settings(deadline=None)
@given(steps=records, data=st.data())
def test_no_damage_is_accepted_that_lost_what_a_witness_knows(
    steps: list[tuple[str, int, bytes]], data: st.DataObject
) -> None:
    journal = written(steps)
    assert recover(bytes(journal.content)).content == journal.said
    content = bytearray(journal.content)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] ^= data.draw(st.integers(1, 255))
    damaged_at = next(
        (at for at in range(len(content)) if content[at] != journal.content[at]), len(content)
    )
    try:
        recovered = recover(bytes(content))
    except LogError:
        return
    # Accepted: then the content is a prefix of the records, and no whole record behind was witness
    # of more.
    assert recovered.content == journal.at(recovered.valid_bytes)
    assert recovered.valid_bytes <= damaged_at or recovered.valid_bytes == len(content)
    for end, said in journal.rounds:
        is_witnessed = any(
            at >= end and bytes(content[at : at + size]) == bytes(journal.content[at : at + size])
            for at, size, synced in layout(bytes(journal.content))
            if synced >= end
        )
        if is_witnessed:
            assert recovered.valid_bytes >= end, f"lost {said}"


def layout(content: bytes) -> list[tuple[int, int, int]]:
    """Position, size and `synced` of every record of an undamaged journal."""
    found = []
    position = 0
    while position < len(content):
        size = RECORD_OVERHEAD + int.from_bytes(content[position + 8 : position + 12], "big")
        synced = int.from_bytes(content[position + 21 : position + 29], "big")
        found.append((position, size, synced))
        position += size
    return found


def test_unsynced_tail_is_cut_at_its_first_bad_record() -> None:
    journal = small_journal()
    acknowledged, start = journal.said, len(journal.content)
    journal.write(entry(5, 8, b"\x00" * 50))
    end = len(journal.content)
    journal.write(VoteRecord(9, 1))
    for position in range(start, end):
        content = bytearray(journal.content)
        content[position] ^= 0xFF
        # The vote is whole and undamaged, but was never known to be durable.
        assert recover(bytes(content)) == Recovered(acknowledged, start)


def test_lost_vote_stops_like_a_lost_entry() -> None:
    journal = JournalWriter(empty())
    journal.round(VoteRecord(4, 2))
    content = bytearray(journal.content)
    content[journal.initial_bytes + RECORD_OVERHEAD] ^= 1
    assert_damaged(bytes(content), f"damaged at byte {journal.initial_bytes}")


def test_zeros_after_the_end_are_a_torn_tail() -> None:
    journal = small_journal()
    recovered = recover(bytes(journal.content) + bytes(4096))
    assert recovered == Recovered(journal.said, len(journal.content))


@settings(deadline=None)
@given(content=st.binary(max_size=300))
def test_any_bytes_behind_the_end_leave_all_that_was_said(content: bytes) -> None:
    journal = small_journal()
    assert recover(bytes(journal.content) + content).content == journal.said


def test_records_inside_a_command_are_no_witnesses() -> None:
    journal = JournalWriter(empty())
    journal.round(entry(2, 1))
    start, said = len(journal.content), journal.said
    journal.write(entry(3, 1, encode_mark(position=10**6, synced=10**6, last_index=9) * 3))
    content = bytearray(journal.content)
    content[start] ^= 1
    assert recover(bytes(content)).content == said


def test_record_moved_to_another_place_is_not_read() -> None:
    journal = JournalWriter(empty())
    start = len(journal.content)
    journal.write(entry(2, 1))
    moved = journal.content[start:]
    assert recover(bytes(journal.content + moved)).valid_bytes == len(journal.content)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (entry(7, 4), "entry 7 of term 4"),
        (entry(3, 4), "entry 3 of term 4"),
        (entry(2, 4), "entry 2 of term 4"),
        (entry(6, 3), "entry 6 of term 3"),
        (entry(4, 1), "entry 4 of term 1"),
        (VoteRecord(3, 1), "a vote for 1 in term 3"),
        (VoteRecord(4, 1), "a vote for 1 in term 4"),
        (VoteRecord(4, None), "a vote for None in term 4"),
    ],
)
def test_undamaged_record_that_breaks_the_rules_stops(record: PendingRecord, reason: str) -> None:
    content = JournalContent(3, 2, VOTERS, 4, 2, [entry(4, 2), entry(5, 4)])
    journal = JournalWriter(content)
    journal.content += encode_pending(
        record, position=len(journal.content), synced=0, last_index=content.last_index
    )
    assert_damaged(bytes(journal.content), reason)


def test_vote_is_repeated_in_its_term() -> None:
    journal = JournalWriter(empty())
    journal.round(VoteRecord(4, 2), VoteRecord(4, 2))
    assert recover(bytes(journal.content)).content.vote == 2


@pytest.mark.parametrize("kind", [0, 1, 5, 255])
def test_record_of_an_unknown_kind_is_never_cut(kind: int) -> None:
    journal = small_journal()
    mark = bytearray(
        encode_mark(position=len(journal.content), synced=0, last_index=journal.said.last_index)
    )
    mark[12] = kind
    mark[4:8] = crc32c(bytes(mark[8:])).to_bytes(4, "big")
    assert_damaged(bytes(journal.content + mark), "does not understand")


@pytest.mark.parametrize("last_index", [0, 3, 5])
def test_mark_and_vote_after_another_entry_stop(last_index: int) -> None:
    for vote in (True, False):
        journal = small_journal()
        position = len(journal.content)
        if vote:
            journal.content += encode_pending(
                VoteRecord(9, 1), position=position, synced=0, last_index=last_index
            )
        else:
            journal.content += encode_mark(position=position, synced=0, last_index=last_index)
        assert_damaged(bytes(journal.content), "does not understand")


@pytest.mark.parametrize("content", [b"", b"RLJ", b"x" * 200, MAGIC + bytes(200)])
def test_file_without_a_header_stops(content: bytes) -> None:
    assert_damaged(content, "no valid header")


def test_header_that_is_not_understood_stops() -> None:
    content = bytearray(b"".join(encode_journal(empty())))
    at = content.index(b'"term":0')
    content[at : at + 8] = b'"xerm":0'
    content[4:8] = crc32c(bytes(content[8:])).to_bytes(4, "big")
    assert_damaged(bytes(content), "header that this raftlog does not understand")


def test_term_before_that_of_the_log_is_not_written() -> None:
    with pytest.raises(AssertionError):
        list(encode_journal(JournalContent(1, 0, VOTERS, 1, None, [entry(2, 2)])))
