"""Error texts of request heads combine the parser's report and the bytes received.

aiohttp shows the broken line below its reason, and does not name the header that is too long.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final

SHOWN_NAME_MAX: Final = 60
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A field name (RFC 9110, section 5.1)."""


def malformed_text(message: str) -> str:
    """The reason of the parser's message, with the broken line's header name if known."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    reasons = [line for line in lines if not line.startswith(("b'", 'b"', "^"))]
    if not reasons:
        return ""
    reason = reasons[-1].rstrip(":.")[:200]
    shown = next((line for line in lines if line.startswith(("b'", 'b"'))), None)
    if shown is not None and "header" in reason.lower():
        name = _name_of(_literal(shown))
        if name and name.lower() not in reason.lower():
            reason = f"{reason}, in {name}"
    return f"{reason}."


def too_long_text(data: bytes, field_bytes_max: int, *, is_whole: bool) -> str:
    """The text for a line over its limit. It names the header if its line begins in `data`.

    `is_whole` is set if `data` begins with a request, not in the middle of a request.
    """
    start = 0
    while 0 <= (end := data.find(b"\r\n", start)) <= start + field_bytes_max:
        if end == start:
            # The head ends in `data`, so the line is of a later request.
            return f"A header or the request line is larger than {field_bytes_max} bytes."
        start = end + 2
    if not start and is_whole:
        return f"The request line is larger than {field_bytes_max} bytes."
    name = _name_of(data[start : start + SHOWN_NAME_MAX + 1]) if start else ""
    return f"{f'The header {name}' if name else 'A header'} is larger than {field_bytes_max} bytes."


def too_large_text(message: Any, bytes_max: int) -> str:
    """The text for a whole head over its limit. It names the largest header."""
    name = max(message.raw_headers, key=lambda field: len(field[0]) + len(field[1]))[0]
    shown = name[:SHOWN_NAME_MAX].decode("latin-1")
    return f"The request headers are larger than {bytes_max} bytes; the largest is {shown}."


def _name_of(line: bytes) -> str:
    """The field name of a header line, or b"" if none can be shown."""
    name, colon, _ = line.partition(b":")
    if not colon or len(name) > SHOWN_NAME_MAX or not _NAME.fullmatch(name):
        return ""
    return name.decode("ascii")


def _literal(text: str) -> bytes:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return b""
    return value if isinstance(value, bytes) else b""
