"""Print records as their values, as JSON, or by a printf-like template.

The templates follow rpk and kcat. Pure, with records in and bytes out. A formatter takes a whole
fetched batch, because per-record work dominates a fast consumer.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import orjson
from raftlog_client import Record

from raftlog.cli.common.options import iso_time

BytesRecord: TypeAlias = Record[bytes | None, bytes | None]
Formatter: TypeAlias = Callable[[Sequence[BytesRecord]], bytes]
_Piece: TypeAlias = Callable[[BytesRecord], bytes]

TEMPLATE_HELP = r"""%v value, %k key, %t topic, %p partition, %o offset, %d timestamp in
milliseconds, %h headers as name=value, %V and %K length in bytes, %H number of headers, %% %{ %}
the sign itself; \n \t \r \\ \xNN. %v and %k take {hex} or {base64}, %d takes {iso}. Nothing is
added between records, so end with \n."""

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(
    r"%(?P<verb>.)(?:\{(?P<modifier>[a-z0-9]*)\})?"
    r"|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.)|(?P<text>[^%\\]+)|(?P<stray>[%\\])",
    re.DOTALL,
)


def text_formatter(*, print_key: bool, key_separator: bytes) -> Formatter:
    """Print one line per record, the value's raw bytes, after the key's if requested.

    A tombstone and an empty value both print an empty line. JSON distinguishes the two.
    """

    def values(records: Sequence[BytesRecord]) -> bytes:
        return b"\n".join([*(record.value or b"" for record in records), b""])

    def keys_and_values(records: Sequence[BytesRecord]) -> bytes:
        return b"".join(
            [
                b"%b%b%b\n" % (record.key or b"", key_separator, record.value or b"")
                for record in records
            ]
        )

    return keys_and_values if print_key else values


def json_formatter(records: Sequence[BytesRecord]) -> bytes:
    """Print one JSON object per line and record. `topic produce --envelope` reads them back.

    Keys and values are text in UTF-8. Other bytes are base64, marked by a field beside them
    (`key_encoding`, `value_encoding`). Nothing is lost either way.
    """
    return b"".join([_json_record(record) for record in records])


def template_formatter(template: str) -> Formatter:
    """Compile a template. ValueError names the unknown part. See TEMPLATE_HELP."""
    pieces = _compile(template)
    if len(pieces) == 1 and callable(pieces[0]):
        only = pieces[0]
        return lambda records: b"".join([only(record) for record in records])

    def apply(records: Sequence[BytesRecord]) -> bytes:
        out: list[bytes] = []
        for record in records:
            out.extend([piece(record) if callable(piece) else piece for piece in pieces])
        return b"".join(out)

    return apply


def _compile(template: str) -> list[_Piece | bytes]:
    pieces: list[_Piece | bytes] = []
    for token in _TOKEN.finditer(template):
        piece = _piece(token)
        if isinstance(piece, bytes) and pieces and isinstance(pieces[-1], bytes):
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return pieces


def _piece(token: re.Match[str]) -> _Piece | bytes:
    if (text := token["text"]) is not None:
        return text.encode()
    if (digits := token["hex"]) is not None:
        return bytes.fromhex(digits)
    if (escape := token["escape"]) is not None:
        if escape not in _ESCAPES:
            raise ValueError(rf"\{escape} is not an escape; a backslash is written \\")
        return _ESCAPES[escape]
    if token["stray"] is not None:
        raise ValueError(f"ends with a lone {token['stray']}; write it twice")
    verb, modifier = token["verb"], token["modifier"]
    if verb in "%{}" and modifier is None:
        return verb.encode()
    piece = _VERBS.get((verb, modifier))
    if piece is None:
        braces = "" if modifier is None else f"{{{modifier}}}"
        raise ValueError(f"%{verb}{braces} is not known; known are {TEMPLATE_HELP}")
    return piece


def _json_record(record: BytesRecord) -> bytes:
    document: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    _put(document, "key", record.key)
    _put(document, "value", record.value)
    if record.headers:
        headers = []
        for name, value in record.headers:
            header: dict[str, Any] = {"key": name}
            _put(header, "value", value)
            headers.append(header)
        document["headers"] = headers
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


def _put(document: dict[str, Any], name: str, data: bytes | None) -> None:
    if data is None:
        document[name] = None
        return
    try:
        document[name] = data.decode()
    except UnicodeDecodeError:
        document[name] = b64encode(data).decode()
        document[f"{name}_encoding"] = "base64"


def _number(value: int) -> bytes:
    return b"%d" % value


def _headers(record: BytesRecord) -> bytes:
    return b",".join(b"%b=%b" % (name.encode(), value or b"") for name, value in record.headers)


_VERBS: dict[tuple[str, str | None], _Piece] = {
    ("v", None): lambda record: record.value or b"",
    ("v", "hex"): lambda record: (record.value or b"").hex().encode(),
    ("v", "base64"): lambda record: b64encode(record.value or b""),
    ("k", None): lambda record: record.key or b"",
    ("k", "hex"): lambda record: (record.key or b"").hex().encode(),
    ("k", "base64"): lambda record: b64encode(record.key or b""),
    ("V", None): lambda record: _number(len(record.value or b"")),
    ("K", None): lambda record: _number(len(record.key or b"")),
    ("t", None): lambda record: record.topic.encode(),
    ("p", None): lambda record: _number(record.partition),
    ("o", None): lambda record: _number(record.offset),
    ("d", None): lambda record: _number(record.timestamp),
    ("d", "iso"): lambda record: iso_time(record.timestamp).encode(),
    ("h", None): _headers,
    ("H", None): lambda record: _number(len(record.headers)),
}
