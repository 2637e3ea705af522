from __future__ import annotations

from http import HTTPStatus

import pytest

from raftlog.record import errors
from raftlog.record.errors import ERROR_TABLE, ErrorEntry, LogError

ENTRIES = [entry for entry in vars(errors).values() if isinstance(entry, ErrorEntry)]


def test_every_entry_is_in_the_table_under_its_own_code() -> None:
    assert len(ENTRIES) > 20
    assert len(ERROR_TABLE) == len(ENTRIES), "two entries share a code"
    for entry in ENTRIES:
        assert ERROR_TABLE[entry.code] is entry


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_code_begins_with_the_status_it_is_answered_with(entry: ErrorEntry) -> None:
    assert 40000 <= entry.code <= 59999
    assert HTTPStatus(entry.http_status).value == int(str(entry.code)[:3])


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_entry_is_named_as_its_constant_and_says_something(entry: ErrorEntry) -> None:
    assert getattr(errors, entry.name) is entry
    assert entry.message.endswith(".")
    assert entry.message[0].isupper()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_only_the_servers_failures_leave_the_outcome_unknown(entry: ErrorEntry) -> None:
    if entry.outcome_unknown:
        assert entry.http_status >= 500


def test_codes_never_change() -> None:
    # Clients in the field act on these numbers: adding is fine, changing is not.
    assert {
        entry.name: entry.code
        for entry in ENTRIES
        if entry.name
        in {
            "UNKNOWN_TOPIC",
            "UNKNOWN_PARTITION",
            "UNKNOWN_INSTANCE",
            "UNSUPPORTED_FORMAT",
            "INSTANCE_EXISTS",
            "ILLEGAL_STATE",
            "INVALID_BODY",
            "INVALID_CONSUMER_CONFIG",
            "UNAUTHORIZED",
            "FORBIDDEN",
            "BODY_TOO_LARGE",
            "QUOTA_EXCEEDED",
            "INTERNAL",
            "RETRIABLE",
            "NO_LEADER",
            "NOT_ENOUGH_REPLICAS",
            "OFFSET_OUT_OF_RANGE",
        }
    } == {
        "UNKNOWN_TOPIC": 40401,
        "UNKNOWN_PARTITION": 40402,
        "UNKNOWN_INSTANCE": 40403,
        "UNSUPPORTED_FORMAT": 40601,
        "INSTANCE_EXISTS": 40902,
        "ILLEGAL_STATE": 40903,
        "INVALID_BODY": 42201,
        "INVALID_CONSUMER_CONFIG": 42204,
        "UNAUTHORIZED": 40101,
        "FORBIDDEN": 40301,
        "BODY_TOO_LARGE": 41301,
        "QUOTA_EXCEEDED": 42901,
        "INTERNAL": 50002,
        "RETRIABLE": 50003,
        "NO_LEADER": 50301,
        "NOT_ENOUGH_REPLICAS": 50302,
        "OFFSET_OUT_OF_RANGE": 41601,
    }


def test_error_carries_the_specific_message_or_else_the_entrys() -> None:
    assert LogError(errors.NO_LEADER).message == errors.NO_LEADER.message
    specific = LogError(errors.NO_LEADER, "Partition flights-3 has no leader.")
    assert specific.message == str(specific) == "Partition flights-3 has no leader."
    assert specific.entry is errors.NO_LEADER
