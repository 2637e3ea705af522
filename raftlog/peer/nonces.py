"""The called side's nonces, without memory of callers before their proof. Pure.

A nonce is a self-contained record of its time of issue, random bytes, and a MAC by a key of this
process over both and the caller's host. Any number of strangers may request nonces without using
memory. A nonce proves that a caller is fresh. It is valid for a few seconds, for one host, and for
a single connection. Only used nonces are remembered, for as long as they would be valid. Using a
nonce takes a proof of the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from struct import Struct
from typing import Final

from raftlog.peer.auth import NONCE_BYTES

NONCE_S: Final = 5.0
"""A caller's seconds from its nonce to its proof."""
USED_MAX: Final = 4_096
"""Most used nonces remembered. With more in NONCE_S the oldest are forgotten first. Each was used
by a node of the cluster. A repetition from the same host would take a place among the openings."""

_FRONT: Final = Struct("!Q8s")
_MAC_BYTES: Final = NONCE_BYTES - _FRONT.size


class OpeningNonces:
    """The nonces of one node."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._used: dict[bytes, float] = {}
        """Used nonces with the time of their use, oldest first."""

    def issue(self, host: str, now: float) -> bytes:
        """Return a nonce for a caller at `host`. `now` is monotonic time in seconds."""
        front = _FRONT.pack(int(now * 1000), secrets.token_bytes(8))
        return front + self._mac(front, host)

    def is_fresh(self, nonce: bytes, host: str, now: float) -> bool:
        """Return whether the nonce was issued to this host a moment ago and is unused."""
        if len(nonce) != NONCE_BYTES:
            return False
        front = nonce[: _FRONT.size]
        if not hmac.compare_digest(nonce[_FRONT.size :], self._mac(front, host)):
            return False
        issued_ms, _ = _FRONT.unpack(front)
        return now * 1000 - issued_ms <= NONCE_S * 1000 and nonce not in self._used

    def use(self, nonce: bytes, now: float) -> None:
        """Spend a fresh nonce for a caller with a proof over it."""
        while self._used:
            oldest = next(iter(self._used))
            if len(self._used) < USED_MAX and now - self._used[oldest] <= NONCE_S:
                break
            del self._used[oldest]
        self._used[nonce] = now

    def _mac(self, front: bytes, host: str) -> bytes:
        mac = hmac.new(self._key, front, hashlib.sha256)
        mac.update(host.encode(errors="replace"))
        return mac.digest()[:_MAC_BYTES]
