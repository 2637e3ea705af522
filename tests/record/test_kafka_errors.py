"""The error table's column for Kafka's protocol, against Kafka's own list."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from raftlog.record import errors
from raftlog.record.errors import ERROR_TABLE, ErrorEntry

ENTRIES = sorted(ERROR_TABLE.values(), key=lambda entry: entry.code)

DESIGNED = {
    "UNKNOWN_TOPIC": 3,
    "UNKNOWN_PARTITION": 3,
    "UNKNOWN_TOPIC_ID": 100,
    "NO_LEADER": 6,
    "NOT_READY": 6,
    "OFFSET_OUT_OF_RANGE": 1,
    "RECORD_TOO_LARGE": 10,
    "NOT_ENOUGH_REPLICAS": 19,
    "RETRIABLE": 7,
    "OUT_OF_ORDER_SEQUENCE": 45,
    "UNKNOWN_PRODUCER_ID": 59,
    "DUPLICATE_SEQUENCE": 46,
    "PRODUCER_FENCED": 90,
    "CORRUPT_BATCH": 2,
    "MALFORMED_BATCH": 87,
    "STORAGE_FAILED": 56,
    "DISK_FULL": 56,
    "TOPIC_EXISTS": 36,
    "INVALID_TOPIC": 17,
    "INVALID_PARTITIONS": 37,
    "INVALID_CONFIG": 40,
    "NO_CONTROLLER": 41,
    "FORBIDDEN": 29,
    "UNAUTHORIZED": 58,
    "COORDINATOR_LOADING": 14,
    "NOT_COORDINATOR": 16,
}

SAME_NAME = {
    "CONCURRENT_TRANSACTIONS",
    "FENCED_INSTANCE_ID",
    "FENCED_MEMBER_EPOCH",
    "ILLEGAL_GENERATION",
    "INVALID_PRODUCER_EPOCH",
    "INVALID_PRODUCER_ID_MAPPING",
    "INVALID_SESSION_TIMEOUT",
    "INVALID_TRANSACTION_TIMEOUT",
    "INVALID_TXN_STATE",
    "MEMBER_ID_REQUIRED",
    "OFFSET_METADATA_TOO_LARGE",
    "REBALANCE_IN_PROGRESS",
    "STALE_MEMBER_EPOCH",
    "TRANSACTION_ABORTABLE",
    "UNRELEASED_INSTANCE_ID",
    "UNSTABLE_OFFSET_COMMIT",
    "UNSUPPORTED_ASSIGNOR",
}

RETRIED_BY_KAFKA_ALONE = {
    "CORRUPT_BATCH",
    "STORAGE_FAILED",
    "UNKNOWN_PARTITION",
    "UNKNOWN_TOPIC",
    "UNKNOWN_TOPIC_ID",
}
"""Kafka's clients retry these codes; the same request over HTTP is final here."""

WITHOUT_A_CODE = {"INTERNAL", "OFFSET_SUPERSEDED", "SINK_OWNED"}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_entry_has_a_code_of_kafka(entry: ErrorEntry) -> None:
    assert ErrorCode(entry.kafka_code) is not ErrorCode.none


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_kafkas_clients_retry_what_is_retriable(entry: ErrorEntry) -> None:
    is_retried = ErrorCode(entry.kafka_code).retriable
    assert is_retried is (entry.retriable or entry.name in RETRIED_BY_KAFKA_ALONE)


@pytest.mark.parametrize(("name", "code"), DESIGNED.items())
def test_codes_are_those_that_kafkas_clients_expect(name: str, code: int) -> None:
    assert getattr(errors, name).kafka_code == code


@pytest.mark.parametrize("name", sorted(SAME_NAME))
def test_an_entry_of_the_same_name_has_that_code(name: str) -> None:
    assert ErrorCode(getattr(errors, name).kafka_code).name.upper() == name


def test_the_unknown_error_stands_only_where_kafka_has_nothing_fitting() -> None:
    unknown = {entry.name for entry in ENTRIES if entry.kafka_code == -1}
    assert unknown == WITHOUT_A_CODE
