"""The HTTP exchange that opens a node-to-node connection, as text. No I/O.

A WebSocket upgrade (RFC 6455, section 4) of `/v1/internal/{channel}`. Nonces and proofs travel in
its headers, in base64. As with HTTP's own authentication (RFC 9110, section 11), the first request
has no proof, and its answer is 401 with a nonce to prove; the second one, on the same connection,
has the proof. So a stranger gets a plain HTTP answer, before any upgrade.
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
"""Version of handshake and framing; another one is refused with a reason, not as 401."""
NONCE_HEADER: Final = "Raftlog-Nonce"
"""The nonce of the header's sender."""
CALLEE_NONCE_HEADER: Final = "Raftlog-Callee-Nonce"
"""The callee's nonce, as the caller proves it."""
PROOF_HEADER: Final = "Raftlog-Proof"
SCHEME: Final = "Raftlog-Node"
"""Name of this way to authenticate, for `WWW-Authenticate`. Browsers know none of that name, and
ask their users nothing."""
HEAD_BYTES_MAX: Final = 8 * 1024
BODY_BYTES_MAX: Final = 64 * 1024
"""Body of the answer with the nonce."""
KEY_BYTES: Final = 16

_CHANNEL: Final = re.compile(r"[a-z][a-z0-9-]{0,31}", re.ASCII)
_STATUS: Final = re.compile(rb"HTTP/1\.1 ([1-5][0-9]{2})(?: [^\r\n]*)?", re.ASCII)
_ACCEPT_SUFFIX: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_LENGTH: Final = re.compile(r"[0-9]{1,6}", re.ASCII)
_TOKEN_CHARACTERS_MAX: Final = 128


class OpeningError(Exception):
    """The answer is not one of a raftlog node. `str()` gives the difference."""


def is_channel(name: str) -> bool:
    """Whether `name` can name a channel: a short word of lower-case letters, digits and dashes."""
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
    """The caller's request; the first one has neither the callee's nonce nor a proof.

    `key` is WebSocket's: 16 unpredictable bytes.
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
    """The headers of the callee's answer, a 401, to a caller without a fresh proof."""
    return {"WWW-Authenticate": SCHEME, NONCE_HEADER: _text(nonce)}


def is_upgrade(headers: Mapping[str, str]) -> bool:
    """Whether a request upgrades to WebSocket as a node's does. `headers` ignores case."""
    return (
        headers.get("Upgrade", "").lower() == "websocket"
        and headers.get("Connection", "").lower() == "upgrade"
        and headers.get("Sec-WebSocket-Version") == "13"
        and len(token(headers, "Sec-WebSocket-Key")) == KEY_BYTES
    )


def response_head(key: bytes, proof: bytes) -> bytes:
    """The callee's answer to a caller with a valid first proof."""
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
    """The callee's answer: a nonce to prove (401), a proof (101), or neither."""

    status: int
    nonce: bytes = b""
    proof: bytes = b""
    body_bytes: int = 0
    """Length of the body, which says for people what the status says."""


class ResponseReader:
    """Collects the callee's answer."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._head = bytearray()

    def feed(self, data: bytes) -> tuple[Challenge, bytes] | None:
        """The answer and the bytes after it, or None if incomplete. Raises OpeningError."""
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
        # The next answer on this connection begins behind the body.
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
        raise OpeningError("its upgrade is not the requested one")
    return Challenge(code, proof=token(headers, PROOF_HEADER.lower()))


def _body_bytes(headers: Mapping[str, str]) -> int:
    text = headers.get("content-length", "")
    # By pattern: int() takes signs, spaces and other alphabets' digits, too.
    if _LENGTH.fullmatch(text) is None or int(text) > BODY_BYTES_MAX:
        raise OpeningError("its answer has no length, or is too long")
    return int(text)


def token(headers: Mapping[str, str], name: str) -> bytes:
    """The bytes of a base64 header; empty if missing or malformed."""
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
