"""Decodes fetched bytes to `Record`s, with the only loops over received records."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from raftlog.record.batch import RecordBatch
from raftlog.record.codec import decode
from raftlog.record.errors import RECORD_TOO_LARGE, LogError
from raftlog_client.errors import (
    CorruptDataError,
    RaftlogClientError,
    RecordTooLargeError,
    SerializationError,
)
from raftlog_client.metadata import require_at_least
from raftlog_client.types import CREATE_TIME, LOG_APPEND_TIME, Record, TopicPartition


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause automatic collection during synchronous work of a few milliseconds.

    Decoding a batch makes thousands of codec objects, which the collector tracks and which soon die
    by reference count. Their number triggers collections of the whole process. Measured with a few
    libraries loaded, these took three times as long as the decoding.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class RecordDecoder:
    """Decodes batches and deserializes their keys and values."""

    __slots__ = ("_decompressed_bytes_max", "_key_deserializer", "_value_deserializer")

    def __init__(
        self,
        key_deserializer: Callable[[bytes], Any] | None,
        value_deserializer: Callable[[bytes], Any] | None,
        decompressed_bytes_max: int,
    ) -> None:
        require_at_least(1, decompressed_bytes_max=decompressed_bytes_max)
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._decompressed_bytes_max = decompressed_bytes_max

    def records(
        self, batch: RecordBatch, source: TopicPartition, start: int
    ) -> list[Record[Any, Any]]:
        """Return the batch's records from offset `start`. Its CRC is checked already.

        Raises CorruptDataError, RecordTooLargeError, or `Unreadable` if a deserializer raised.
        """
        with gc_paused():
            return self._records(batch, source, start)

    def _records(
        self, batch: RecordBatch, source: TopicPartition, start: int
    ) -> list[Record[Any, Any]]:
        try:
            decoded = decode(batch, decompressed_bytes_max=self._decompressed_bytes_max)
        except LogError as error:
            raise record_decoding_error(error, source, batch.header.base_offset) from error
        if batch.header.base_offset < start:
            # A fetch starts with the batch around its offset. Skipped records are not deserialized,
            # because a skipped record may lack a valid value.
            decoded = [record for record in decoded if record.offset >= start]
        topic, partition = source
        timestamp_type = LOG_APPEND_TIME if batch.header.is_log_append_time else CREATE_TIME
        to_key, to_value = self._key_deserializer, self._value_deserializer
        # Each variant is one comprehension. A call or a branch per record would cost a fifth of it.
        if to_key is None and to_value is None:
            return [
                Record(
                    topic,
                    partition,
                    record.offset,
                    record.timestamp,
                    timestamp_type,
                    record.key,
                    record.value,
                    record.headers or (),
                )
                for record in decoded
            ]
        records: list[Record[Any, Any]] = []
        add = records.append
        record = None
        try:
            for record in decoded:
                key, value = record.key, record.value
                add(
                    Record(
                        topic,
                        partition,
                        record.offset,
                        record.timestamp,
                        timestamp_type,
                        key if key is None or to_key is None else to_key(key),
                        value if value is None or to_value is None else to_value(value),
                        record.headers or (),
                    )
                )
        except Exception as error:
            assert record is not None
            refusal = SerializationError(
                f"{topic}-{partition}: a deserializer refused the record at offset "
                f"{record.offset}: {error!r}. Seek past it to go on."
            )
            refusal.__cause__ = error
            raise Unreadable(refusal, records, record.offset) from error
        return records


class Unreadable(Exception):  # noqa: N818 (caught on the next floor: it never reaches a user)
    """A deserializer rejected a record. Has the good records before."""

    def __init__(
        self, error: SerializationError, records: list[Record[Any, Any]], offset: int
    ) -> None:
        super().__init__(error)
        self.error = error
        self.records = records
        self.offset = offset


def record_decoding_error(
    error: LogError, source: TopicPartition, offset: int
) -> RaftlogClientError:
    """Return the reader's exception for a rejected batch."""
    topic, partition = source
    if error.entry is RECORD_TOO_LARGE:
        return RecordTooLargeError(
            f"{topic}-{partition}, offset {offset}: {error.message} (decompressed_bytes_max)"
        )
    return CorruptDataError(
        f"{topic}-{partition}: damaged data at offset {offset}: {error.message}",
        topic=topic,
        partition=partition,
        offset=offset,
    )
