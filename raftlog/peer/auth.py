"""The handshake between two nodes: both prove that they hold the cluster's secret. No I/O.

    caller                                     callee
      nonce, proof of it           ------->    or the answer for any stranger
                                   <-------    nonce, proof over both nonces
      HELLO    hello, proof        ------->
                                   <-------    ANSWER   hello, proof      (or REJECTION)
      CONFIRM  proof               ------->
                                   <-------    WELCOME  proof             (or REJECTION)

The first line each way travels in HTTP heads (opening.py), the others as messages. Every proof is
HMAC-SHA-256 under the secret over: the version of this protocol, the step, the channel, and all
messages of both sides so far, each with its length. So

- a proof is good for its step, its channel, its side and these two nonces alone: a recorded proof
  is useless, and neither side's proof can be turned against the side;
- no message can be exchanged unnoticed: ANSWER and CONFIRM cover both hellos;
- each side reads the other's hello only behind a proof made for a nonce of its own.

An attacker with a recorded first line of a caller can replay the line and gets the callee's first
line, but no further. Proofs reveal the secret only to guessing: the secret must be long and random.
The handshake gives neither secrecy nor integrity to later messages: those are TLS's part.

`Caller` and `Callee` are one handshake each. The peer's mistakes raise `AuthError` (the peer gets
no further answer) or, for the rejection by a proven peer, `RejectedError`; calls in the wrong order
are broken invariants.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import IntEnum
from struct import Struct
from typing import Final

from raftlog.world.network import RejectedError

VERSION: Final = b"raftlog node handshake 1"
"""Changed whenever a byte of the handshake, or of the framing after it, changes its meaning."""
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
HELLO_BYTES_MAX: Final = 64 * 1024
REASON_BYTES_MAX: Final = 4 * 1024
"""Longer reasons of rejections are cut."""
STEP_BYTES_MAX: Final = 1 + PROOF_BYTES + HELLO_BYTES_MAX
"""Longest message of the handshake."""

_CODE: Final = Struct("!I")


class AuthError(Exception):
    """The peer has not proven to hold the secret, or breaks the handshake's rules."""


class Step(IntEnum):
    """Purpose of a proof; the first byte of the steps that are messages."""

    OPENING = 1
    CHALLENGE = 2
    HELLO = 3
    ANSWER = 4
    CONFIRM = 5
    WELCOME = 6
    REJECTION = 7


_WITH_BODY: Final = (Step.HELLO, Step.ANSWER, Step.REJECTION)


class _Transcript:
    """All messages of both sides so far, and the proofs over them."""

    def __init__(self, secret: bytes, channel: str, caller_nonce: bytes) -> None:
        assert secret, "an empty secret proves nothing"
        assert len(caller_nonce) == NONCE_BYTES
        self._secret = secret
        self._said = [channel.encode(), caller_nonce]

    def add(self, said: bytes) -> None:
        self._said.append(said)

    def proof(self, step: Step) -> bytes:
        mac = hmac.new(self._secret, VERSION, hashlib.sha256)
        mac.update(bytes((step, len(self._said))))
        for part in self._said:
            mac.update(len(part).to_bytes(4, "big"))
            mac.update(part)
        return mac.digest()

    def check(self, step: Step, proof: bytes) -> None:
        if not hmac.compare_digest(self.proof(step), proof):
            raise AuthError("the proof is not one by the cluster's secret")

    def write(self, step: Step, body: bytes = b"") -> bytes:
        """A message with a proof over its body, too."""
        if step in _WITH_BODY:
            self.add(body)
        return bytes((step,)) + self.proof(step) + body

    def read(self, message: bytes, *expected: Step) -> tuple[Step, bytes]:
        """A message of one of the expected steps, proven. Raises AuthError."""
        if len(message) > STEP_BYTES_MAX or len(message) < 1 + PROOF_BYTES:
            raise AuthError(f"a message of {len(message)} bytes in the handshake")
        if message[0] not in expected:
            raise AuthError(f"message {message[0]} is out of order in the handshake")
        step, body = Step(message[0]), message[1 + PROOF_BYTES :]
        if step in _WITH_BODY:
            self.add(body)
        elif body:
            raise AuthError(f"a {step.name} with a body")
        self.check(step, message[1 : 1 + PROOF_BYTES])
        return step, body


def check_hello(hello: bytes) -> None:
    """Assert the bound of one's own hello."""
    assert len(hello) <= HELLO_BYTES_MAX, f"a hello of {len(hello)} bytes"


class Caller:
    """The calling side: `opening`, `challenged`, `answered`, `welcomed`, in this order."""

    def __init__(self, secret: bytes, channel: str, hello: bytes, nonce: bytes) -> None:
        check_hello(hello)
        self.nonce = nonce
        self.hello: bytes | None = None
        """The other side's hello; known after ANSWER."""
        self._own_hello = hello
        self._transcript = _Transcript(secret, channel, nonce)
        self._next = Step.CHALLENGE

    def opening(self) -> bytes:
        """The proof for the caller's nonce."""
        assert self._next is Step.CHALLENGE
        return self._transcript.proof(Step.OPENING)

    def challenged(self, nonce: bytes, proof: bytes) -> bytes:
        """Take the callee's nonce and proof; returns HELLO. Raises AuthError."""
        assert self._next is Step.CHALLENGE
        if len(nonce) != NONCE_BYTES:
            raise AuthError(f"a nonce of {len(nonce)} bytes")
        self._transcript.add(nonce)
        self._transcript.check(Step.CHALLENGE, proof)
        self._next = Step.ANSWER
        return self._transcript.write(Step.HELLO, self._own_hello)

    def answered(self, message: bytes) -> bytes:
        """Take ANSWER; returns CONFIRM. Raises AuthError, and RejectedError by the callee."""
        assert self._next is Step.ANSWER
        self.hello = self._read(message, Step.ANSWER)
        self._next = Step.WELCOME
        return self._transcript.write(Step.CONFIRM)

    def welcomed(self, message: bytes) -> None:
        """Take WELCOME: the connection is open. Raises AuthError, RejectedError by the callee."""
        assert self._next is Step.WELCOME
        self._read(message, Step.WELCOME)

    def _read(self, message: bytes, expected: Step) -> bytes:
        step, body = self._transcript.read(message, expected, Step.REJECTION)
        if step is Step.REJECTION:
            raise _rejection(body)
        return body


class Callee:
    """The called side: `challenge`, `take_hello`, `answer`, `confirmed`, `welcome`."""

    def __init__(self, secret: bytes, channel: str, caller_nonce: bytes, proof: bytes) -> None:
        """Raises AuthError if the caller's first proof is wrong."""
        if len(caller_nonce) != NONCE_BYTES:
            raise AuthError(f"a nonce of {len(caller_nonce)} bytes")
        self.hello: bytes | None = None
        """The caller's hello; known after `take_hello`."""
        self._transcript = _Transcript(secret, channel, caller_nonce)
        self._transcript.check(Step.OPENING, proof)
        self._next = Step.CHALLENGE

    def challenge(self, nonce: bytes) -> bytes:
        """The proof for the callee's own nonce."""
        assert self._next is Step.CHALLENGE
        assert len(nonce) == NONCE_BYTES
        self._transcript.add(nonce)
        self._next = Step.HELLO
        return self._transcript.proof(Step.CHALLENGE)

    def take_hello(self, message: bytes) -> bytes:
        """Take HELLO; returns the caller's hello. Raises AuthError."""
        assert self._next is Step.HELLO
        _, hello = self._transcript.read(message, Step.HELLO)
        self.hello = hello
        self._next = Step.ANSWER
        return hello

    def answer(self, hello: bytes) -> bytes:
        """ANSWER, with one's own hello."""
        assert self._next is Step.ANSWER
        check_hello(hello)
        self._next = Step.CONFIRM
        return self._transcript.write(Step.ANSWER, hello)

    def confirmed(self, message: bytes) -> None:
        """Take CONFIRM: the caller has proven itself over both hellos. Raises AuthError."""
        assert self._next is Step.CONFIRM
        self._transcript.read(message, Step.CONFIRM)
        self._next = Step.WELCOME

    def welcome(self) -> bytes:
        """WELCOME: the connection is open."""
        assert self._next is Step.WELCOME
        return self._transcript.write(Step.WELCOME)

    def rejection(self, error: RejectedError) -> bytes:
        """REJECTION, in place of ANSWER or WELCOME."""
        assert self._next in (Step.ANSWER, Step.WELCOME), "strangers get no reason"
        reason = error.message.encode(errors="replace")[:REASON_BYTES_MAX]
        return self._transcript.write(Step.REJECTION, _CODE.pack(error.code) + reason)


def _rejection(body: bytes) -> RejectedError:
    if len(body) < _CODE.size:
        raise AuthError("a rejection without a code")
    (code,) = _CODE.unpack_from(body)
    return RejectedError(code, body[_CODE.size :].decode(errors="replace"))
