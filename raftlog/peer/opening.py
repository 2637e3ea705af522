"""The HTTP exchange that opens a node-to-node connection, as text. No I/O.

The exchange is a WebSocket upgrade (RFC 6455, section 4) of `/v1/internal/{channel}`. Nonces and
proofs travel in its headers, in base64. As in HTTP authentication (RFC 9110, section 11), the first
request has no proof, and its response is 401 with a nonce to prove. The second request, on the same
connection, has the proof. A stranger thus gets a plain HTTP response before any upgrade.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

PATH: Final = "/v1/internal/"
SUBPROTOCOL_FAMILY: Final = "raftlog.node."
SUBPROTOCOL: Final = SUBPROTOCOL_FAMILY + "2"
"""Version of handshake and framing. Another version is refused with a reason instead of 401."""
NONCE_HEADER: Final = "Raftlog-Nonce"
"""The nonce of the header's sender."""
CALLEE_NONCE_HEADER: Final = "Raftlog-Callee-Nonce"
"""The callee's nonce as the caller proves it."""
PROOF_HEADER: Final = "Raftlog-Proof"
SCHEME: Final = "Raftlog-Node"
"""Name of this authentication scheme for `WWW-Authenticate`. Browsers do not know the scheme and
prompt for no password."""
HEAD_BYTES_MAX: Final = 8 * 1024
BODY_BYTES_MAX: Final = 64 * 1024
"""Most bytes of the body of the response with the nonce."""
KEY_BYTES: Final = 16

_CHANNEL: Final = re.compile(r"[a-z][a-z0-9-]{0,31}", re.ASCII)
_STATUS: Final = re.compile(rb"HTTP/1\.1 ([1-5][0-9]{2})(?: [^\r\n]*)?", re.ASCII)
_ACCEPT_SUFFIX: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_LENGTH: Final = re.compile(r"[0-9]{1,6}", re.ASCII)
_TOKEN_CHARACTERS_MAX: Final = 128


class OpeningError(Exception):
    """The response is not a raftlog node's. `str()` gives the difference."""


def is_channel(name: str) -> bool:
    """Return whether `name` is a short word of lower-case letters, digits and dashes."""
    return _CHANNEL.fullmatch(name) is not None


def request_head(
    address: str,
    channel: str,
    key: bytes,
    nonce: bytes,
    *,
    callee_nonce: bytes = b"",
    proof: bytes = b"",
) -> bytes:
    """Return the caller's request. The first has neither the callee's nonce nor a proof.

    `key` is WebSocket's, 16 unpredictable bytes.
    """
    assert is_channel(channel), f"{channel!r} cannot name a channel"
    proven = (
        f"{CALLEE_NONCE_HEADER}: {_text(callee_nonce)}\r\n{PROOF_HEADER}: {_text(proof)}\r\n"
        if proof
        else ""
    )
    return (
        f"GET {PATH}{channel} HTTP/1.1\r\n"
        f"Host: {address}\r\n"
        "Upgrade: websocket\r\n"
        "Connection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {_text(key)}\r\n"
        "Sec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n"
        f"{NONCE_HEADER}: {_text(nonce)}\r\n"
        f"{proven}"
        "\r\n"
    ).encode("ascii")


def challenge_headers(nonce: bytes) -> dict[str, str]:
    """Return the headers of the callee's 401 to a caller without a fresh proof."""
    return {"WWW-Authenticate": SCHEME, NONCE_HEADER: _text(nonce)}


def is_upgrade(headers: Mapping[str, str]) -> bool:
    """Return whether a request upgrades to WebSocket as a node's does. `headers` ignores case."""
    return (
        headers.get("Upgrade", "").lower() == "websocket"
        and headers.get("Connection", "").lower() == "upgrade"
        and headers.get("Sec-WebSocket-Version") == "13"
        and len(token(headers, "Sec-WebSocket-Key")) == KEY_BYTES
    )


def response_head(key: bytes, proof: bytes) -> bytes:
    """Return the callee's response to a caller with a valid first proof."""
    return (
        "HTTP/1.1 101 Switching Protocols\r\n"
        "Upgrade: websocket\r\n"
        "Connection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {_accept(key)}\r\n"
        f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n"
        f"{PROOF_HEADER}: {_text(proof)}\r\n"
        "\r\n"
    ).encode("ascii")


@dataclass(frozen=True, slots=True)
class Challenge:
    """The callee's response, with a nonce to prove (401), a proof (101), or neither."""

    status: int
    nonce: bytes = b""
    proof: bytes = b""
    body_bytes: int = 0
    """Length of the body, which explains the status to people."""


class ResponseReader:
    """Collects the callee's response."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._head = bytearray()

    def feed(self, data: bytes) -> tuple[Challenge, bytes] | None:
        """Return the response and the bytes after it, None if incomplete. Raises OpeningError."""
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end > HEAD_BYTES_MAX or (end < 0 and len(self._head) > HEAD_BYTES_MAX):
            raise OpeningError(f"a head of more than {HEAD_BYTES_MAX} bytes")
        if end < 0:
            if not b"HTTP/1.1 ".startswith(self._head[:9]):
                raise OpeningError("it does not speak HTTP/1.1")
            return None
        challenge = _challenge(bytes(self._head[:end]), self._key)
        rest = bytes(self._head[end + 4 :])
        # The next response on this connection starts behind the body.
        return (
            None if len(rest) < challenge.body_bytes else (challenge, rest[challenge.body_bytes :])
        )


def _challenge(head: bytes, key: bytes) -> Challenge:
    first, *lines = head.split(b"\r\n")
    status = _STATUS.fullmatch(first)
    if status is None:
        raise OpeningError("it does not speak HTTP/1.1")
    code = int(status[1])
    headers = {}
    for line in lines:
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    if code == HTTPStatus.UNAUTHORIZED:
        nonce = token(headers, NONCE_HEADER.lower())
        return Challenge(code, nonce, body_bytes=_body_bytes(headers) if nonce else 0)
    if code != HTTPStatus.SWITCHING_PROTOCOLS:
        return Challenge(code)
    if (
        headers.get("sec-websocket-accept") != _accept(key)
        or headers.get("sec-websocket-protocol") != SUBPROTOCOL
        or "sec-websocket-extensions" in headers
    ):
        raise OpeningError("it upgrades to another protocol than requested")
    return Challenge(code, proof=token(headers, PROOF_HEADER.lower()))


def _body_bytes(headers: Mapping[str, str]) -> int:
    text = headers.get("content-length", "")
    # A pattern, because int() also accepts signs, spaces and other alphabets' digits.
    if _LENGTH.fullmatch(text) is None or int(text) > BODY_BYTES_MAX:
        raise OpeningError("its response has no length or is too long")
    return int(text)


def token(headers: Mapping[str, str], name: str) -> bytes:
    """Decode a base64 header. Returns no bytes if it is missing or malformed."""
    text = headers.get(name, "")
    if len(text) > _TOKEN_CHARACTERS_MAX:
        return b""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _text(token_bytes: bytes) -> str:
    return base64.b64encode(token_bytes).decode("ascii")


def _accept(key: bytes) -> str:
    digest = hashlib.sha1(_text(key).encode("ascii") + _ACCEPT_SUFFIX, usedforsecurity=False)
    return _text(digest.digest())
