"""Records made of lines of text, JSON or CSV, in bounded memory.

All is pure. Bytes become lines, and lines become `ProducerRecord`s. A CSV record may hold line ends
inside quotes. `CsvLines` joins such lines again, so that each returned line is one whole record.
Every parser is a function from one line to one record, which raises BadRecordError with a reason
for the user. `None` means a blank line.
"""

from __future__ import annotations

import csv
import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import orjson
from raftlog_client import ProducerRecord

from raftlog.cli.common.options import timestamp_ms

LINE_BYTES_MAX = 16 * 1024 * 1024


class Line(NamedTuple):
    """A line without its end, and the number (from 1) of its first physical line."""

    number: int
    data: bytes


class BadLineError(ValueError):
    """A line too long, or unfinished."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"line {number}: {reason}")
        self.number = number
        self.reason = reason


class Lines(NamedTuple):
    """Consecutive lines as plain bytes, because millions go by, and their first number."""

    first_number: int
    lines: list[bytes]


class LineSplitter:
    """Splits at line feeds. The last line needs none."""

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        self._carry: list[bytes] = []
        self._carry_bytes = 0
        self._next_number = 1

    def feed(self, chunk: bytes) -> Lines:
        """The lines that end in this chunk.

        The next call raises BadLineError after an unfinished line of too many bytes, so that no
        whole line is lost.
        """
        self._check_length()
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._carry:
            self._carry.append(lines[0])
            lines[0] = b"".join(self._carry)
            self._carry.clear()
            self._carry_bytes = 0
        if rest:
            self._carry.append(rest)
            self._carry_bytes += len(rest)
        first_number = self._next_number
        self._next_number += len(lines)
        return Lines(first_number, lines)

    def finish(self) -> Lines:
        """The last line, if the stream did not end with a line end. BadLineError as in `feed`."""
        self._check_length()
        line = b"".join(self._carry)
        self._carry.clear()
        self._carry_bytes = 0
        return Lines(self._next_number, [line] if line else [])

    def _check_length(self) -> None:
        if self._carry_bytes > self._line_bytes_max:
            reason = f"longer than {self._line_bytes_max} bytes; is this text?"
            raise BadLineError(self._next_number, reason)


class CsvLines:
    """Joins physical lines to whole CSV records (RFC 4180).

    Inside a quoted field a quote is doubled, so a complete record holds an even number of quotes.
    """

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._open_number = 0

    def feed(self, lines: Lines) -> list[Line]:
        """The records that end in these lines. Raises BadLineError like `LineSplitter.feed`."""
        if self._open and self._open_bytes > self._line_bytes_max:
            raise BadLineError(self._open_number, "a quoted field is never closed")
        records: list[Line] = []
        for number, line in enumerate(lines.lines, lines.first_number):
            is_odd = line.count(b'"') & 1
            if not self._open:
                if not is_odd:
                    records.append(Line(number, line))
                    continue
                self._open_number, self._open_bytes = number, 0
            self._open.append(line)
            self._open_bytes += len(line) + 1
            if is_odd and len(self._open) > 1:
                records.append(self._close())
        return records

    def finish(self) -> None:
        """Raise BadLineError if the input ends inside quotes."""
        if self._open:
            raise BadLineError(self._open_number, "the input ends inside a quoted field")

    def _close(self) -> Line:
        record = Line(self._open_number, b"\n".join(self._open))
        self._open.clear()
        return record


BytesRecord: TypeAlias = ProducerRecord[bytes | None, bytes | None]
LineParser: TypeAlias = Callable[[bytes], BytesRecord | None]

REQUEST_BYTES_MAX = 4 * 1024 * 1024
"""The producer's largest request."""
RECORD_LINE_BYTES_MAX = REQUEST_BYTES_MAX - 4_096
"""Bytes of a line, so that a record fits into a request. The topic's max.message.bytes is usually
less, and a node rejects more."""

csv.field_size_limit(LINE_BYTES_MAX)

_INT64_MAX = 2**63 - 1
_ENVELOPE_FIELDS = frozenset(
    {"key", "value", "headers", "timestamp", "key_encoding", "value_encoding"}
)
# Further fields printed by `topic consume --format json`. Reading its output back must work.
_ENVELOPE_IGNORED = frozenset({"topic", "partition", "offset", "timestamp_type"})
_HEADER_FIELDS = frozenset({"key", "value", "value_encoding"})
_JSON_SCALAR = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|true|false")


class BadRecordError(ValueError):
    """The reason why a line is no record.

    `str()` continues a sentence that begins with "line N".
    """


class BadHeaderRowError(BadRecordError):
    """A bad row of column names, which cannot be skipped.

    Otherwise the first data would become the names.
    """


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """The parts of each record besides its value."""

    partition: int | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    tombstone_for_empty: bool = False
    key_field: str | None = None
    timestamp_field: str | None = None

    def record(
        self, value: bytes | None, key: bytes | None = None, timestamp: int | None = None
    ) -> BytesRecord:
        """Make a record of this run. `--key` stands in for a missing key."""
        if self.tombstone_for_empty and not value:
            value = None
        return ProducerRecord(
            value=value,
            key=self.key if key is None else key,
            partition=self.partition,
            timestamp_ms=timestamp,
            headers=self.headers,
        )


def text_parser(options: RecordOptions, key_separator: bytes | None) -> LineParser:
    """Each line is a value, or a key and a value around the first separator."""

    def value_only(line: bytes) -> BytesRecord:
        return options.record(line)

    def key_and_value(line: bytes) -> BytesRecord:
        key, separator, value = line.partition(key_separator or b"")
        if not separator:
            raise BadRecordError(f"has no key separator {(key_separator or b'').decode()!r}")
        return options.record(value, key)

    return value_only if key_separator is None else key_and_value


def json_parser(options: RecordOptions) -> LineParser:
    """Parse each line as one JSON value, kept byte for byte.

    Key and timestamp come from its fields.
    """

    def parse(line: bytes) -> BytesRecord | None:
        line = line.strip()
        if not line:
            return None
        document = _json(line)
        if options.key_field is None and options.timestamp_field is None:
            return options.record(line)
        if not isinstance(document, dict):
            raise BadRecordError("is not a JSON object: there is no field to take")
        return options.record(line, *_key_and_timestamp(options, document))

    return parse


def envelope_parser(options: RecordOptions) -> LineParser:
    """Parse each line as a whole record, {"key", "value", "headers", "timestamp"}.

    The value is required.

    Text is UTF-8, or base64 with `key_encoding` or `value_encoding`. Objects, arrays, numbers and
    booleans are kept as JSON. null is a missing key or a tombstone.
    """

    def parse(line: bytes) -> BytesRecord | None:
        line = line.strip()
        if not line:
            return None
        document = _json(line)
        if not isinstance(document, dict):
            raise BadRecordError("is not a JSON object")
        if "value" not in document:
            raise BadRecordError('has no "value" (null would be a tombstone)')
        if unknown := document.keys() - _ENVELOPE_FIELDS - _ENVELOPE_IGNORED:
            raise BadRecordError(f"has the unknown field {min(unknown)!r}")
        timestamp = document.get("timestamp")
        key = _from_json(document.get("key"), document.get("key_encoding"))
        return ProducerRecord(
            value=_from_json(document["value"], document.get("value_encoding")),
            key=options.key if key is None else key,
            partition=options.partition,
            timestamp_ms=None if timestamp is None else _timestamp(timestamp),
            headers=(*_headers(document.get("headers")), *options.headers),
        )

    return parse


class CsvParser:
    """Parses each row to a JSON object with the header row's names.

    The values stay text.

    With `infer_types`, a field that reads exactly like a JSON number or boolean becomes a number or
    boolean, and an empty field null. Off by default, because codes like 007 or 1e5 are not numbers.
    """

    def __init__(self, options: RecordOptions, *, delimiter: str, infer_types: bool) -> None:
        self._options = options
        self._delimiter = delimiter
        self._infer_types = infer_types
        self.names: list[str] | None = None

    def parse(self, line: bytes) -> BytesRecord | None:
        """One row, or None for a blank line and for the header row."""
        if self.names is None:
            self._take_names(line)
            return None
        fields = self._fields(line.decode())
        if not fields:
            return None
        if len(fields) != len(self.names):
            raise BadRecordError(f"has {len(fields)} fields; the header row has {len(self.names)}")
        row: dict[str, Any] = dict(zip(self.names, fields, strict=True))
        key, timestamp = _key_and_timestamp(self._options, row)
        if self._infer_types:
            row = {name: _inferred(field) for name, field in row.items()}
        return self._options.record(orjson.dumps(row), key, timestamp)

    def _take_names(self, line: bytes) -> None:
        try:
            # Spreadsheets begin their UTF-8 with a byte order mark.
            fields = self._fields(line.decode("utf-8-sig"))
        except (BadRecordError, UnicodeDecodeError) as error:
            raise BadHeaderRowError(f"is no header row: {error}") from error
        if len(set(fields)) != len(fields):
            raise BadHeaderRowError("names a column twice")
        for wanted in (self._options.key_field, self._options.timestamp_field):
            if fields and wanted is not None and wanted not in fields:
                raise BadHeaderRowError(f"has no column {wanted!r}: {', '.join(fields)}")
        self.names = fields or None

    def _fields(self, text: str) -> list[str]:
        try:
            rows = csv.reader([text.rstrip("\r")], delimiter=self._delimiter, strict=True)
            return next(rows, [])
        except csv.Error as error:
            raise BadRecordError(f"is not CSV: {error}") from error


@dataclass(slots=True)
class Parsed:
    """The records of some lines, and the bad line that stops the run."""

    records: list[BytesRecord]
    error: BadLineError | None = None


@dataclass(slots=True)
class RecordReader:
    """Applies a parser to lines, with the policy for bad lines.

    Without `skip_bad` the first bad line ends the run, and the records before still count. `Parsed`
    holds both, so that the written records are always a prefix of the input.
    """

    parser: LineParser
    skip_bad: bool
    csv_lines: CsvLines | None = None
    on_skipped: Callable[[BadLineError], None] = field(default=lambda error: None)

    def read(self, lines: Lines) -> Parsed:
        """The records of these lines."""
        if self.csv_lines is None:
            return self._parse(enumerate(lines.lines, lines.first_number))
        try:
            return self._parse(self.csv_lines.feed(lines))
        except BadLineError as error:
            return Parsed([], error)

    def finish(self) -> Parsed:
        """Finish at the input's end, where a record may be unfinished."""
        try:
            if self.csv_lines is not None:
                self.csv_lines.finish()
        except BadLineError as error:
            return Parsed([], error)
        return Parsed([])

    def _parse(self, lines: Iterable[Line | tuple[int, bytes]]) -> Parsed:
        records: list[BytesRecord] = []
        parser = self.parser
        for number, data in lines:
            try:
                _check_size(data)
                record = parser(data)
            except (BadRecordError, UnicodeDecodeError) as error:
                # UnicodeDecodeError's own text speaks of codecs.
                reason = str(error) if isinstance(error, BadRecordError) else "is not UTF-8"
                bad = BadLineError(number, reason)
                if not self.skip_bad or isinstance(error, BadHeaderRowError):
                    return Parsed(records, bad)
                self.on_skipped(bad)
            else:
                if record is not None:
                    records.append(record)
        return Parsed(records)


def _check_size(line: bytes) -> None:
    if len(line) > RECORD_LINE_BYTES_MAX:
        raise BadRecordError(f"has {len(line)} bytes; a record may have {RECORD_LINE_BYTES_MAX}")


def _json(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadRecordError(f"is not JSON: {error.msg} (column {error.colno})") from error


def _key_and_timestamp(
    options: RecordOptions, row: Mapping[str, Any]
) -> tuple[bytes | None, int | None]:
    key: bytes | None = None
    timestamp: int | None = None
    if options.key_field is not None:
        if options.key_field not in row:
            raise BadRecordError(f"has no field {options.key_field!r} for the key")
        key = _from_json(row[options.key_field], None)
    if options.timestamp_field is not None:
        if options.timestamp_field not in row:
            raise BadRecordError(f"has no field {options.timestamp_field!r} for the timestamp")
        timestamp = _timestamp(row[options.timestamp_field])
    return key, timestamp


def _timestamp(value: Any) -> int:
    if isinstance(value, str):
        try:
            value = timestamp_ms(value)
        except ValueError as error:
            raise BadRecordError(f"has a bad timestamp: {error}") from error
    elif not isinstance(value, int | float) or isinstance(value, bool):
        raise BadRecordError("has a timestamp that is neither a number nor text")
    if not 0 <= value <= _INT64_MAX:
        raise BadRecordError(f"has a timestamp out of range: {value}")
    return int(value)


def _from_json(value: Any, encoding: Any) -> bytes | None:
    if encoding is not None:
        if encoding != "base64" or not isinstance(value, str):
            raise BadRecordError('has an encoding that is not "base64" of a text')
        try:
            return b64decode(value, validate=True)
        except Base64Error as error:
            raise BadRecordError(f"is not base64: {error}") from error
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else orjson.dumps(value)


def _headers(headers: Any) -> Iterable[tuple[str, bytes | None]]:
    if headers is None:
        return ()
    if isinstance(headers, dict):
        headers = [{"key": key, "value": value} for key, value in headers.items()]
    if not isinstance(headers, list):
        raise BadRecordError("has headers that are neither a list nor an object")
    pairs: list[tuple[str, bytes | None]] = []
    for header in headers:
        is_header = isinstance(header, dict) and header.keys() <= _HEADER_FIELDS
        if not is_header or not isinstance(header.get("key"), str):
            raise BadRecordError('has a header that is not {"key": text, "value": …}')
        pairs.append((header["key"], _from_json(header.get("value"), header.get("value_encoding"))))
    return pairs


def _inferred(field_text: str) -> Any:
    if not field_text:
        return None
    return orjson.loads(field_text) if _JSON_SCALAR.fullmatch(field_text) else field_text
