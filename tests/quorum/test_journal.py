from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.quorum.journal import (
    MAGIC,
    RECORD_OVERHEAD,
    Entry,
    Kind,
    Recovered,
    encode_journal,
    encode_record,
    recover,
)
from raftlog.record.errors import STORAGE_FAILED, LogError


class JournalWriter:
    """Writes a journal as the store does, and remembers where each round ended."""

    def __init__(self, base_index: int = 0, initial: int = 0, term: int = 1) -> None:
        self.term = term
        self.entries = [
            Entry(base_index + number, term, f"initial {number}".encode())
            for number in range(1, initial + 1)
        ]
        self.index = base_index + initial
        self.content = bytearray(
            encode_journal(base_index=base_index, term=term, entries=self.entries)
        )
        self.initial_bytes = self.synced = len(self.content)
        self.ends: list[int] = []

    def entry(self, command: bytes) -> None:
        self.index += 1
        self.entries.append(Entry(self.index, self.term, command))
        self.content += encode_record(
            Kind.ENTRY,
            position=len(self.content),
            synced=self.synced,
            index=self.index,
            term=self.term,
            payload=command,
        )
        self.ends.append(len(self.content))

    def sync(self) -> None:
        self.synced = len(self.content)

    def mark(self) -> None:
        self.content += encode_record(
            Kind.MARK,
            position=len(self.content),
            synced=self.synced,
            index=self.index,
            term=self.term,
        )

    def round(self, *commands: bytes, mark: bool = True) -> None:
        for command in commands:
            self.entry(command)
        self.sync()
        if mark:
            self.mark()


def small_journal() -> JournalWriter:
    journal = JournalWriter(base_index=3, initial=2, term=4)
    journal.round(b"one", b"two", mark=False)
    journal.round(b"three")
    journal.round(b"four")
    return journal


def assert_damaged(content: bytes, reason: str = "metadata journal") -> None:
    with pytest.raises(LogError, match=reason) as raised:
        recover(content)
    assert raised.value.entry is STORAGE_FAILED


@given(
    base=st.integers(0, 2**40),
    term=st.integers(0, 2**40),
    commands=st.lists(st.binary(max_size=40), max_size=8),
)
def test_journal_round_trips(base: int, term: int, commands: list[bytes]) -> None:
    entries = [Entry(base + 1 + n, term, command) for n, command in enumerate(commands)]
    content = encode_journal(base_index=base, term=term, entries=entries)
    assert recover(content) == Recovered(base, term, entries, len(content))


def test_appended_rounds_are_recovered() -> None:
    journal = small_journal()
    assert recover(bytes(journal.content)).entries == journal.entries


def test_cut_at_every_byte_leaves_a_prefix_or_stops() -> None:
    journal = small_journal()
    for size in range(len(journal.content)):
        content = bytes(journal.content[:size])
        if size < journal.initial_bytes:
            # These bytes were durable before the file had its name.
            assert_damaged(content)
        else:
            entries = recover(content).entries
            whole = 2 + sum(end <= size for end in journal.ends)
            assert entries == journal.entries[:whole]


def test_every_flipped_bit_keeps_all_that_was_acknowledged_or_stops() -> None:
    journal = small_journal()
    mark_start = len(journal.content) - RECORD_OVERHEAD
    for bit in range(len(journal.content) * 8):
        content = bytearray(journal.content)
        content[bit // 8] ^= 1 << (bit % 8)
        if bit // 8 < mark_start:
            assert_damaged(bytes(content))
        else:
            # Only the last mark is hit, which nobody was ever told of.
            recovered = recover(bytes(content))
            assert recovered.entries == journal.entries
            assert recovered.valid_bytes == mark_start


def test_unsynced_tail_is_cut_at_its_first_bad_record() -> None:
    journal = small_journal()
    acknowledged = list(journal.entries)
    start = len(journal.content)
    journal.entry(b"a" * 50)
    journal.entry(b"b" * 50)
    for position in range(start, journal.ends[-2]):
        content = bytearray(journal.content)
        content[position] ^= 0xFF
        recovered = recover(bytes(content))
        # The second entry is whole and undamaged, but was never known to be durable.
        assert recovered.entries == acknowledged
        assert recovered.valid_bytes == start


def test_zeros_after_the_end_are_a_torn_tail() -> None:
    journal = small_journal()
    recovered = recover(bytes(journal.content) + bytes(4096))
    assert recovered.entries == journal.entries
    assert recovered.valid_bytes == len(journal.content)


def test_damage_of_the_newest_round_is_known_by_its_mark() -> None:
    journal = JournalWriter()
    journal.round(b"only")
    content = bytearray(journal.content)
    content[journal.initial_bytes + RECORD_OVERHEAD] ^= 1
    assert_damaged(bytes(content), f"damaged at byte {journal.initial_bytes}")


def test_records_inside_a_command_are_no_witnesses() -> None:
    journal = JournalWriter()
    journal.round(b"one")
    start = len(journal.content)
    inner = encode_record(Kind.MARK, position=10**6, synced=10**6, index=9, term=9)
    journal.entry(inner * 3)
    content = bytearray(journal.content)
    content[start] ^= 1
    assert recover(bytes(content)).entries == journal.entries[:1]


def test_record_moved_to_another_place_is_not_read() -> None:
    journal = JournalWriter()
    start = len(journal.content)
    journal.entry(b"one")
    record = journal.content[start:]
    assert recover(bytes(journal.content + record)).valid_bytes == len(journal.content)


def test_missing_entry_stops() -> None:
    journal = JournalWriter()
    journal.round(b"one")
    journal.index += 1
    journal.entry(b"three")
    assert_damaged(bytes(journal.content), "entry 3 of term 1")


def test_term_that_goes_back_stops() -> None:
    journal = JournalWriter(term=5)
    journal.round(b"one")
    journal.term = 4
    journal.entry(b"two")
    assert_damaged(bytes(journal.content), "entry 2 of term 4")


def test_record_of_an_unknown_kind_is_never_cut() -> None:
    journal = small_journal()
    journal.content += encode_record(
        9,  # type: ignore[arg-type]  # a newer release's
        position=len(journal.content),
        synced=0,
        index=journal.index,
        term=4,
    )
    assert_damaged(bytes(journal.content), "does not understand")


@pytest.mark.parametrize("content", [b"", b"RLJ", b"x" * 200, MAGIC + bytes(200)])
def test_file_without_a_header_stops(content: bytes) -> None:
    assert_damaged(content, "no valid header")


@given(content=st.binary(max_size=300))
def test_any_bytes_behind_the_end_leave_all_entries(content: bytes) -> None:
    journal = small_journal()
    assert recover(bytes(journal.content) + content).entries == journal.entries
